"""A run of the offline gc that goes on from what the run before it recorded (rule 13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from .calls import Do
from .offline import ABANDONED, MARKING, Proto
from .store import Entry, Steps


class Baseline(NamedTuple):
    """What a run recorded for the next one."""

    number: int
    """Of the runs that finished. Their ids may be in another order."""
    made: frozenset[str] = frozenset()
    """Addresses that were made by then, whether their blobs were there or not: these are not listed again."""
    listed: frozenset[str] = frozenset()
    """The blobs that were listed, and stay."""
    in_kv: frozenset[str] = frozenset()
    """What references and staging areas named."""
    read: frozenset[str] = frozenset()
    """The commits that kept what they name."""
    past: frozenset[str] = frozenset()
    """The commits that the look disregarded."""


class Incremental(Proto):
    """A run that goes on from the one before.

    Rule 13, A run may go on from the one before: It then reads only what changed: commits that are kept now and were
    not read then, and the other way round, both as sets. By the order of ids or dates it would miss a commit that was
    begun early and landed late. [0095](decisions/0095-a-marking-run-builds-on-the-run-before.md) has the rest, and
    [0184](decisions/0184-a-writer-that-stalled-creates-nothing-anew.md) each look that skips what is older. *Shown by*
    `GcReadsLaterIds`.
    """

    goes_on = False
    recorded = Baseline(0)
    """By this run's look."""

    def gc_again(self, *expired: str) -> Steps:
        """What runs every night: mark, on what the last run recorded if that can be, then sweep whatever stands."""
        known = yield ("scan", ("g",))
        return Do((("mark_again", f"{self.me}gc{len(known)}", *expired), ("sweep_all",)))

    def mark_again(self, run: str, *expired: str) -> Steps:
        self.goes_on = True
        return (yield from self.mark(run, *expired))

    def look_around(self, run: str, disregards: tuple[str, ...], expired: tuple[str, ...]) -> Steps:
        if not self.goes_on:
            return (yield from super().look_around(run, disregards, expired))
        before = yield from self.last_finished()
        blobs = yield ("blobs",)
        in_kv = yield from self.named_in_kv()
        kept = {*(yield from self.heads())}
        past: set[str] = set()
        for key in (yield ("scan", ("c",))):
            is_past = self.disregarded((yield ("get", ("x", key[1]))), run, disregards)
            (past if is_past else kept).add(key[1])
        pins = {key[2] for key in (yield ("scan", ("pin", run)))}
        if before.past & (kept | {*expired}):  # what they name was garbage then, and has been no news since
            before = Baseline(before.number)
        no_longer = yield from self.count_names(before.read - kept)
        names = yield from self.count_names([*before.read, *self.read_anew(kept, before.read)])
        names.subtract(no_longer)
        named = in_kv | pins | {address for address, count in names.items() if count}
        new = {*blobs} - before.made
        found = (new | (before.listed & (before.in_kv | {*no_longer}))) - named
        self.recorded = Baseline(
            before.number + 1,
            before.made | {*blobs} | in_kv,
            (before.listed | new) - found,
            frozenset(in_kv),
            frozenset(kept),
            frozenset(past - kept),
        )
        return tuple(sorted(found))

    def read_anew(self, kept: set[str], before: frozenset[str]) -> set[str]:
        """The commits whose names nobody has read yet."""
        return kept - before

    def last_finished(self) -> Steps:
        """What the last run recorded that finished; nothing, if what a run had found garbage was taken back."""
        last = Baseline(0)
        is_valid = True
        for key in (yield ("scan", ("base",))):
            record = yield ("get", ("g", key[1]))
            if record.state != MARKING:
                is_valid &= record.state != ABANDONED or not record.candidates
                last = max(last, (yield ("get", key)), key=lambda baseline: baseline.number)
        return last if is_valid else Baseline(last.number)

    def named_in_kv(self) -> Steps:
        found = {key[1] for key in (yield ("scan", ("r",)))}
        for token in (yield ("scan", ("t",))):
            for key in (yield ("scan", ("e", token[1]))):
                entry = yield ("get", key)
                if isinstance(entry, Entry):
                    found.add(entry.address)
        return found

    def count_names(self, commits: Iterable[str]) -> Steps:
        """How many of the commits name each address."""
        names = Counter[str]()
        for commit in sorted(commits):
            names.update(address for _, address in (yield ("get", ("c", commit))).tree)
        return names

    def may_stand(self, run: str) -> Steps:
        if self.goes_on:
            yield ("set", ("base", run), self.recorded)
        return True
