"""Marks: what the offline job decides in the KV. Marking, pins, the look, unmark, and the sweep's re-check (rules 13 and 14).

    run      begin --> marking --finish_marking--> marked | needs confirmation --begin_sweep--> sweeping --finish_sweep--> swept
                       unmark, abandon, or a run that takes over: --> abandoned (until the sweep)
    commit   active --begin--> marked --begin_sweep--> sweeping --finish_sweep--> swept
                                      --unmark--> active

A commit's fate is decided in its own mark, by `set_if`: who unmarks it and who sweeps it cannot both win. A mark id is used
once, so a mark of this run is told apart from one that was taken back and made again by another.

    mark:    begin, wait, then the object listing, then look, finish_marking
    sweep:   begin_sweep, then dropped_out, then the deletions, finish_sweep

The listing, the trees of commits and the deletions are the caller's: all of them scale with objects, nothing here does but
`look`. Whoever deletes must have taken off what `dropped_out` names *after* `begin_sweep` has answered.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec

from refstore import ids, keys
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import AlreadyExists, Conflict, Contention, Corrupt, CorruptRecord, Gone, InvalidName, NotFound, OutcomeUnknown
from refstore.ids import Address, CommitId, is_own
from refstore.kv.base import ABSENT, SetIf
from refstore.markers import Markers
from refstore.records import Branch, Commit, Entry, GcFlag, GcRun, Mark, Tag, decode, decode_branch, decode_staged_many, encode, maybe
from refstore.safety import Safety

PAGE: Final = 1000
"""Keys that share a round trip."""
ATTEMPTS: Final = 16
"""How often a lost race over one record is run again."""
TAKE_OVER_MS: Final = 900_000
"""A run that did not beat for so long is taken for dead. Only politeness: a live one that is taken over notices, and marks nothing."""
BEAT_SECONDS: Final = 60.0

_MARK_ID: Final = re.compile(r"[0-9a-z][0-9a-z-]{2,62}")
_BEHIND: Final = "\U0010ffff"

T = TypeVar("T")


class State(StrEnum):
    MARKING = "marking"
    MARKED = "marked"
    ASKING = "needs confirmation"
    SWEEPING = "sweeping"
    SWEPT = "swept"
    ABANDONED = "abandoned"


STANDING: Final = frozenset((State.MARKED, State.ASKING, State.SWEEPING))
"""Its commits were marked, and the wait was over."""


class Run(NamedTuple):
    mark_id: str
    record: GcRun
    marked_at_seconds: float | None = None
    """Monotonic, where this process marked; a wall clock that is set forward must not shorten the wait."""

    @property
    def state(self) -> State:
        return State(self.record.state)


class Source(StrEnum):
    REFERENCE = "reference"
    STAGED = "staged"
    HEAD = "head"
    COMMIT = "commit"
    HISTORY = "history"
    """Of a commit that is marked or swept, and landed once: its tree's metadata is kept, what the tree names is not."""
    PIN = "pin"


class Named(NamedTuple):
    """A batch of what must be kept. Commits' trees are immutable, so when they are read makes no difference."""

    source: Source
    addresses: Sequence[Address] = ()
    commits: Sequence[tuple[CommitId, Commit]] = ()


def new_mark_id(ctx: Context) -> str:
    """One that nobody has; they sort by time."""
    return ctx.ids.unique(ctx.clock.now_ms())


def barrier_seconds(safety: Safety) -> float:
    """How long to wait behind the last mark, until whoever did not see it has ended.

    Twice the time of a request: the mark itself may land so late where its first reply was lost, and the operation's last write, too.
    """
    return safety.operation_deadline_seconds + 2 * safety.io_timeout_seconds + safety.clock_skew_seconds


def pin(ctx: Context, addresses: Iterable[Address]) -> None:
    """While a run is on: have it keep these. Who copies an entry that has no reference calls this before reading the source again
    (rule 13): the run may have read the place the copy goes to, and not find any more the place it comes from."""
    held = maybe(ctx.kv.get(keys.gc_flag(ctx.repo)), GcFlag)
    if held is not None:
        ctx.kv.set_many([(keys.gc_pin(ctx.repo, held.mark_id, address), b"") for address in dict.fromkeys(addresses)])


class Marks:
    """The marks of one repository. Not for several threads at once."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._kv = ctx.kv
        self._repo = ctx.repo
        self._clock = ctx.clock

    # ---- a run of marking

    def begin(
        self, rules_digest: str, grace_ms: int, commits: Iterable[CommitId], mark_id: str, *, owner: str = "", take_over: bool = False
    ) -> Run:
        """Set the run flag and mark `commits`, but for heads of branches and tags, and for what is marked already.

        The run that is on is abandoned if it is dead, or if `take_over` says so; else raises Conflict. Raises AlreadyExists: a
        mark id is for one run; one that crashed is begun again under a new one.
        """
        if not _MARK_ID.fullmatch(mark_id):
            raise InvalidName(f"{mark_id[:80]!r} is not a mark id; use 3 to 63 of a-z, 0-9 and '-'")
        if self._kv.get(keys.gc_run(self._repo, mark_id)) is not ABSENT:
            raise AlreadyExists(f"mark {mark_id} exists already; begin under a new mark id")
        now = self._clock.now_ms()
        self._take_flag(mark_id, owner, now, take_over=take_over)
        disregards = self._end_earlier(mark_id)
        record = GcRun(self._write_id(), State.MARKING, now, grace_ms, now + grace_ms, rules_digest, disregards)
        self._create(mark_id, record)
        counts = self._mark(mark_id, Mark(now, record.deletes_at_ms, mark_id), commits)
        run = self._changed(Run(mark_id, record), marked_ms=self._clock.now_ms(), counts=counts)
        return run._replace(marked_at_seconds=self._clock.monotonic_seconds())

    def barrier_over_at(self, run: Run) -> int:
        """When every operation that began before the last mark has ended; the listing and the look come after it."""
        return run.record.marked_ms + math.ceil(barrier_seconds(self._ctx.safety) * 1000)

    def wait(self, run: Run) -> None:
        """Wait until the barrier is over. Raises Conflict if the run was taken over meanwhile."""
        left = (self.barrier_over_at(run) - self._clock.now_ms()) / 1000
        if run.marked_at_seconds is not None:
            left = run.marked_at_seconds + barrier_seconds(self._ctx.safety) - self._clock.monotonic_seconds()
        while left > 0:
            step = min(left, BEAT_SECONDS)
            self._clock.sleep(step)
            left -= step
            if left > 0:
                self.beat(run)

    def beat(self, run: Run) -> None:
        """Say that the run goes on; to be called now and then by who works on it. Raises Conflict if it was taken over."""
        raw = self._kv.get(keys.gc_flag(self._repo))
        flag = maybe(raw, GcFlag)
        if flag is None or flag.mark_id != run.mark_id:
            raise _overtaken(run.mark_id)
        self._kv.set_if(keys.gc_flag(self._repo), raw, encode(msgspec.structs.replace(flag, beat_ms=self._clock.now_ms())))

    def look(self, run: Run, *, page: int = PAGE) -> Iterator[Named]:
        """Everything that must be kept, in the reading order of rule 13; the object listing is *complete* before this begins.

        What moves while we look moves in this order, or is pinned: from references to staging areas, from there to heads, from
        heads to commits; pins are last. To be read to its end: then the run is known to have been on throughout. Raises
        Conflict (too early, or taken over), Corrupt (nothing may be marked then).
        """
        if self._clock.now_ms() < self.barrier_over_at(run):
            raise Conflict(f"mark {run.mark_id} has to wait for operations that began before it; look again when they are over")
        yield from self._references(page)
        yield from self._staged(page)
        yield from self._heads(page)
        yield from self._commits(run, page)
        yield from self._pins(run, page)
        self._check_on(run.mark_id)

    def finish_marking(self, run: Run, counts: Mapping[str, int], *, question: str = "") -> Run:
        """The mark stands, as what the look left over says. `question`: what an operator has to confirm first. Raises Conflict."""
        self._check_on(run.mark_id)
        state = State.ASKING if question else State.MARKED
        counted = {**run.record.counts, **counts}
        done = self._changed(run, state=state, finished_ms=self._clock.now_ms(), counts=counted, question=question)
        self._end(run.mark_id)
        return done

    def abandon(self, run: Run, why: str = "given up") -> None:
        """End a run that marks nothing after all: its commits are active again. Nothing happens to one whose sweep began."""
        if self._give_up(run.mark_id, why):
            self._clear(run.mark_id)
        self._end(run.mark_id)

    # ---- what stands

    def runs(self) -> Iterator[Run]:
        """All there were, in order of mark id: by time, where the ids are `new_mark_id`'s."""
        for mark_id, value in self._kv.scan_all(keys.gc_runs(self._repo)):
            yield Run(mark_id, decode(value, GcRun))

    def run(self, mark_id: str) -> Run:
        """Raises NotFound."""
        record = maybe(self._kv.get(keys.gc_run(self._repo, mark_id)), GcRun)
        if record is None:
            raise NotFound(f"there is no mark {mark_id[:80]!r}; list them to see which there are")
        return Run(mark_id, record)

    def on(self) -> GcFlag | None:
        """The run that marks now."""
        return maybe(self._kv.get(keys.gc_flag(self._repo)), GcFlag)

    def scan(self) -> Iterator[tuple[CommitId, Mark]]:
        """Every commit that is marked, on its way, or swept."""
        for name, value in self._kv.scan_all(keys.marks(self._repo)):
            yield CommitId(name), decode(value, Mark)

    def of(self, commits: Sequence[CommitId]) -> list[Mark | None]:
        return [maybe(value, Mark) for value in self._kv.get_many([keys.mark(self._repo, commit) for commit in commits])]

    def marked(self, mark_id: str) -> Iterator[CommitId]:
        """What the run marked, whatever became of it since."""
        for commit, _ in self._by(mark_id):
            yield commit

    def still_marked(self, mark_id: str) -> Iterator[CommitId]:
        """Of these, what is still marked by this very run, on its way, or swept by it."""
        for commit, mark in self._by(mark_id):
            if mark is not None and mark.mark_id == mark_id:
                yield commit

    def given_up(self) -> Iterator[CommitId]:
        """Commits that never landed and never will: for the next run to mark, so that what they left can go.

        The branch is read before the landed mark, as a commit travels. A commit whose tokens are not all sealed any more can
        never be advanced to: a token is sealed once.
        """
        markers = Markers(self._kv, self._repo, self._clock)
        for page in _pages(self._kv.scan_all(keys.commits(self._repo)), PAGE):
            known = self._kv.get_many([keys.landed(self._repo, CommitId(name)) for name, _ in page])
            marked = self.of([CommitId(name) for name, _ in page])
            for (name, value), landed, mark in zip(page, known, marked, strict=True):
                tokens = decode(value, Commit).tokens
                if landed is ABSENT and mark is None and tokens and not self._live(tokens) and not markers.landed(CommitId(name)):
                    yield CommitId(name)

    def heads(self) -> set[CommitId]:
        """What branches and tags name: active, marked or not."""
        found = {record.head for _, _, record in self._branches().scan() if isinstance(record, Branch)}
        return found | {decode(value, Tag).commit for _, value in self._kv.scan_all(keys.tags(self._repo))}

    # ---- unmark, confirm

    def confirm(self, mark_id: str, by: str) -> Run:
        """Let a mark be swept that needs it. Raises NotFound, Conflict."""
        run = self.run(mark_id)
        if run.state is not State.ASKING:
            raise Conflict(f"mark {mark_id} is {run.state}; only one that needs confirmation can be confirmed")
        return self._changed(run, state=State.MARKED, confirmed_by=by, confirmed_ms=self._clock.now_ms())

    def unmark(self, which: str) -> int:
        """Make a commit, or all that a mark id marked, active again; how many were. Until the sweep (rule 14), then raises Gone.

        Raises NotFound (no such mark), Conflict (the commit is not marked).
        """
        return self._unmark_commit(CommitId(which)) if _is_commit(which) else self._unmark_all(which)

    def _unmark_commit(self, commit: CommitId) -> int:
        for _ in range(ATTEMPTS):
            raw = self._kv.get(keys.mark(self._repo, commit))
            mark = maybe(raw, Mark)
            if mark is None:
                raise Conflict(f"commit {commit} is not marked; nothing is to be undone")
            if mark.sweeping_ms or mark.swept_ms:
                raise Gone(f"commit {commit} cannot be unmarked any more; mark {mark.mark_id} has begun to delete its data")
            if self._kv.set_if(keys.mark(self._repo, commit), raw, ABSENT):
                return 1
        raise Contention(f"others kept changing the mark of commit {commit}; make the same call again")

    def _unmark_all(self, mark_id: str) -> int:
        if self.run(mark_id).state in (State.SWEEPING, State.SWEPT):
            raise Gone(f"mark {mark_id} cannot be undone any more; it has begun to delete")
        if not self._give_up(mark_id, "unmarked"):
            raise Gone(f"mark {mark_id} cannot be undone any more; it has begun to delete meanwhile")
        count = self._clear(mark_id)
        self._end(mark_id)
        return count

    # ---- the sweep

    def begin_sweep(self, mark_id: str) -> Run:
        """From here on the mark cannot be taken back. What is a head by now is unmarked. May be called again after a crash.

        Raises Conflict (not due, not confirmed, not finished), Gone (unmarked), NotFound. A run that was swept is answered as it is.
        """
        run = self._start_sweeping(mark_id)
        if run.state is State.SWEPT:
            return run
        now = self._clock.now_ms()
        heads = self.heads()
        for page in _pages(self._by(mark_id), PAGE):
            mine = [(commit, mark) for commit, mark in page if mark is not None and mark.mark_id == mark_id and not mark.sweeping_ms]
            self._kv.set_if_many(
                [
                    SetIf(
                        keys.mark(self._repo, commit),
                        encode(mark),
                        ABSENT if commit in heads else encode(msgspec.structs.replace(mark, sweeping_ms=now)),
                    )
                    for commit, mark in mine
                ]
            )
        return run

    def dropped_out(self, run: Run) -> Iterator[tuple[CommitId, Commit]]:
        """Commits that the look disregarded and that are not on their way: what they name must not be deleted.

        They were unmarked since, marked by another run since, or stand under an older mark that is not swept yet. To be read
        after `begin_sweep`: from then on none can be added.
        """
        for mark_id in (run.mark_id, *run.record.disregards):
            for page in _pages(self._by(mark_id), PAGE):
                back = [commit for commit, mark in page if mark is None or mark.mark_id != mark_id or not mark.sweeping_ms]
                yield from self._records(back)

    def finish_sweep(self, mark_id: str, counts: Mapping[str, int]) -> Run:
        """Everything that was to go is gone: the commits are swept. May be called again after a crash."""
        run = self.run(mark_id)
        if run.state is State.SWEPT:
            return run
        if run.state is not State.SWEEPING:
            raise Conflict(f"mark {mark_id} is {run.state}; begin its sweep first")
        now = self._clock.now_ms()
        for page in _pages(self._by(mark_id), PAGE):
            mine = [(commit, mark) for commit, mark in page if mark is not None and mark.mark_id == mark_id and not mark.swept_ms]
            swept = [(commit, mark) for commit, mark in mine if mark.sweeping_ms]
            self._kv.set_if_many(
                [
                    SetIf(keys.mark(self._repo, commit), encode(mark), encode(msgspec.structs.replace(mark, swept_ms=now)))
                    for commit, mark in swept
                ]
            )
        return self._changed(run, state=State.SWEPT, swept_ms=now, swept=dict(counts))

    def _start_sweeping(self, mark_id: str) -> Run:
        run = self.run(mark_id)
        match run.state:
            case State.SWEPT | State.SWEEPING:
                return run
            case State.MARKING:
                raise Conflict(f"mark {mark_id} was not finished; run the marking again")
            case State.ABANDONED:
                raise Gone(f"mark {mark_id} is abandoned ({run.record.ended}) and will not be swept; run the marking again")
            case State.ASKING:
                raise Conflict(f"mark {mark_id} needs confirmation: {run.record.question}; confirm it first")
            case State.MARKED:
                now = self._clock.now_ms()
                if now < run.record.deletes_at_ms:
                    raise Conflict(
                        f"mark {mark_id} is not due for another {(run.record.deletes_at_ms - now) // 1000} s; wait, or unmark it"
                    )
                return self._changed(run, state=State.SWEEPING, sweep_began_ms=now)

    # ---- what the look reads, in its order

    def _references(self, page: int) -> Iterator[Named]:
        """Whatever a reference's key says, it is the online path's to delete."""
        for shard in range(keys.SHARDS):
            for found in _pages(self._kv.scan_all(keys.references(self._repo, shard), page=page), page):
                yield Named(Source.REFERENCE, [_own(name) for name, _ in found])

    def _staged(self, page: int) -> Iterator[Named]:
        for token, _ in self._kv.scan_all(keys.tokens(self._repo), page=page):
            for found in _pages(self._kv.scan_all(keys.staging(self._repo, ids.staging_token(token)), page=page), page):
                entries = decode_staged_many([value for _, value in found])
                yield Named(Source.STAGED, [entry.address for entry in entries if isinstance(entry, Entry) and is_own(entry.address)])

    def _heads(self, page: int) -> Iterator[Named]:
        for found in _pages(iter(sorted(self.heads())), page):
            yield Named(Source.HEAD, commits=list(self._records(found)))

    def _commits(self, run: Run, page: int) -> Iterator[Named]:
        """Every unmarked commit keeps what it names, reachable or not: it may still be copied from."""
        for found in _pages(self._kv.scan_all(keys.commits(self._repo), page=page), page):
            commits = [(CommitId(name), decode(value, Commit)) for name, value in found]
            expired = [_expired(run, mark) for mark in self.of([commit for commit, _ in commits])]
            kept = [commit for commit, gone in zip(commits, expired, strict=True) if not gone]
            yield Named(Source.COMMIT, commits=kept)
            left = [commit for commit, gone in zip(commits, expired, strict=True) if gone]
            landed = self._kv.get_many([keys.landed(self._repo, commit) for commit, _ in left]) if left else []
            history = [commit for commit, value in zip(left, landed, strict=True) if value is not ABSENT]
            if history:
                yield Named(Source.HISTORY, commits=history)

    def _pins(self, run: Run, page: int) -> Iterator[Named]:
        prefix = f"{run.mark_id}/"
        for found in _pages(self._kv.scan_all(keys.gc_pins(self._repo), prefix=prefix, page=page), page):
            yield Named(Source.PIN, [_own(name.removeprefix(prefix)) for name, _ in found])

    # ---- the run's records

    def _take_flag(self, mark_id: str, owner: str, now: int, *, take_over: bool) -> None:
        new = encode(GcFlag(mark_id, now, now, owner))
        for _ in range(ATTEMPTS):
            raw = self._kv.get(keys.gc_flag(self._repo))
            held = maybe(raw, GcFlag)
            if held is not None and held.mark_id == mark_id:
                return  # our own write, its reply lost
            if held is not None:
                other = maybe(self._kv.get(keys.gc_run(self._repo, held.mark_id)), GcRun)
                alive = other is not None and other.state == State.MARKING and now - held.beat_ms < TAKE_OVER_MS
                if alive and not take_over:
                    raise Conflict(
                        f"mark {held.mark_id} is being made{f' by {held.owner}' if held.owner else ''}; wait for it, or abandon it"
                    )
                self._give_up(held.mark_id, f"taken over by {mark_id}", unfinished_only=True)
            with suppress(OutcomeUnknown):
                if self._kv.set_if(keys.gc_flag(self._repo), raw, new):
                    return
        raise Contention("other runs kept taking the repository's marks; make the same call again")

    def _end_earlier(self, mark_id: str) -> tuple[str, ...]:
        """Clear what runs left that came to nothing; the marks that stand. The flag is ours, so no other run will finish."""
        standing: list[str] = []
        for run in list(self.runs()):
            if run.state is State.MARKING:
                self._give_up(run.mark_id, f"taken over by {mark_id}", unfinished_only=True)
            if run.state in STANDING:
                standing.append(run.mark_id)
            elif run.state is not State.SWEPT:
                self._clear(run.mark_id)  # also what it marked after it was taken over
        self._drop_late_pins()
        return tuple(standing)

    def _drop_late_pins(self) -> None:
        """What was pinned for runs that are over by operations that outlived them. Never another run's: one may have taken over."""
        after = ""
        while found := self._kv.scan(keys.gc_pins(self._repo), after=after, limit=1):
            mark_id = found[0][0].partition("/")[0]
            after = f"{mark_id}/{_BEHIND}"
            record = maybe(self._kv.get(keys.gc_run(self._repo, mark_id)), GcRun)
            if record is not None and record.state != State.MARKING:
                self._kv.delete_range(keys.gc_pins(self._repo), f"{mark_id}/", after)

    def _mark(self, mark_id: str, mark: Mark, commits: Iterable[CommitId]) -> dict[str, int]:
        """In the run's list first: what it marked must be found again, by the sweep and by who clears up after it."""
        heads = self.heads()
        counts = {"commits_marked": 0, "commits_marked_before": 0, "heads_left_out": 0}
        value = encode(mark)
        for page in _pages(iter(commits), PAGE):
            wanted = [commit for commit in dict.fromkeys(page) if commit not in heads]
            counts["heads_left_out"] += sum(commit in heads for commit in page)
            self._check_on(mark_id)  # one that was taken over stops here; what it marked since is cleared by the next
            for _ in range(ATTEMPTS):
                raws = self._kv.get_many([keys.mark(self._repo, commit) for commit in wanted]) if wanted else []
                counts["commits_marked"] += sum(raw == value for raw in raws)
                counts["commits_marked_before"] += sum(raw not in (ABSENT, value) for raw in raws)
                wanted = [commit for commit, raw in zip(wanted, raws, strict=True) if raw is ABSENT]
                if not wanted:
                    break
                self._kv.set_many([(keys.gc_marked(self._repo, mark_id, commit), b"") for commit in wanted])
                with suppress(OutcomeUnknown):  # once more then: the same mark twice is one mark
                    self._kv.set_if_many([SetIf(keys.mark(self._repo, commit), ABSENT, value) for commit in wanted])
            else:
                raise Contention("others kept marking and unmarking the same commits; make the same call again")
        return counts

    def _give_up(self, mark_id: str, why: str, *, unfinished_only: bool = False) -> bool:
        """Whether the run marks nothing from here on; not if its sweep began."""
        for _ in range(ATTEMPTS):
            raw = self._kv.get(keys.gc_run(self._repo, mark_id))
            record = maybe(raw, GcRun)
            if record is None:  # it took the flag and came no further; so that it never will
                record = GcRun(self._write_id(), State.ABANDONED, self._clock.now_ms(), 0, 0, "", ended=why)
                with suppress(OutcomeUnknown):
                    if self._kv.set_if(keys.gc_run(self._repo, mark_id), ABSENT, encode(record)):
                        return True
                continue
            if record.state == State.ABANDONED:
                return True
            if record.state in (State.SWEEPING, State.SWEPT) or (unfinished_only and record.state != State.MARKING):
                return False
            new = msgspec.structs.replace(record, state=State.ABANDONED, ended=why, write_id=self._write_id())
            if self._kv.set_if(keys.gc_run(self._repo, mark_id), raw, encode(new)):
                return True
        raise Contention(f"others kept changing mark {mark_id}; make the same call again")

    def _clear(self, mark_id: str) -> int:
        """Take off every mark of a run, where it still is this run's; how many there were."""
        count = 0
        for page in _pages(self._by(mark_id), PAGE):
            mine = [(commit, mark) for commit, mark in page if mark is not None and mark.mark_id == mark_id and not mark.sweeping_ms]
            count += sum(self._kv.set_if_many([SetIf(keys.mark(self._repo, commit), encode(mark), ABSENT) for commit, mark in mine]))
        return count

    def _end(self, mark_id: str) -> None:
        """Take the flag off if it is still this run's, then what was pinned for it."""
        raw = self._kv.get(keys.gc_flag(self._repo))
        flag = maybe(raw, GcFlag)
        if flag is not None and flag.mark_id == mark_id:
            self._kv.set_if(keys.gc_flag(self._repo), raw, ABSENT)
        self._kv.delete_range(keys.gc_pins(self._repo), f"{mark_id}/", f"{mark_id}/{_BEHIND}")

    def _check_on(self, mark_id: str) -> None:
        flag = self.on()
        if flag is None or flag.mark_id != mark_id:
            raise _overtaken(mark_id)

    def _create(self, mark_id: str, record: GcRun) -> None:
        key = keys.gc_run(self._repo, mark_id)
        for _ in range(ATTEMPTS):
            with suppress(OutcomeUnknown):
                if self._kv.set_if(key, ABSENT, encode(record)) or self._kv.get(key) == encode(record):
                    return
                break
        raise AlreadyExists(f"mark {mark_id} exists already; begin under a new mark id")

    def _changed(self, run: Run, **changes: object) -> Run:
        """One `set_if` from the record as it was read. Raises Conflict."""
        new = msgspec.structs.replace(run.record, **changes, write_id=self._write_id())
        if not self._kv.set_if(keys.gc_run(self._repo, run.mark_id), encode(run.record), encode(new)):
            raise Conflict(f"mark {run.mark_id} was changed by others meanwhile; look at it, then make the same call again")
        return run._replace(record=new)

    # ---- reading

    def _by(self, mark_id: str) -> Iterator[tuple[CommitId, Mark | None]]:
        """What the run marked, each with the mark that it has now."""
        for page in _pages(self._kv.scan_all(keys.gc_marked_by(self._repo, mark_id)), PAGE):
            commits = [CommitId(name) for name, _ in page]
            yield from zip(commits, self.of(commits), strict=True)

    def _records(self, commits: Sequence[CommitId]) -> Iterator[tuple[CommitId, Commit]]:
        """Raises Corrupt where one is missing: nothing that depends on it may be deleted."""
        values = self._kv.get_many([keys.commit(self._repo, commit) for commit in commits]) if commits else []
        for commit, value in zip(commits, values, strict=True):
            if value is ABSENT:
                raise Corrupt(f"commit {commit} has no record; restore the KV from a backup before anything is collected")
            yield commit, decode(value, Commit)

    def _live(self, tokens: Sequence[str]) -> bool:
        """Whether a commit of these tokens may still be advanced to."""
        value = self._kv.get(keys.branch(self._repo, ids.branch_of(ids.staging_token(tokens[0]))))
        record = decode_branch(value) if value is not ABSENT else None
        return isinstance(record, Branch) and set(tokens) <= {record.token, *record.sealed}

    def _branches(self) -> Branches:
        return Branches(self._kv, self._repo, self._ctx.ids, self._clock)

    def _write_id(self) -> str:
        return self._ctx.ids.unique(self._clock.now_ms())


def _expired(run: Run, mark: Mark | None) -> bool:
    """Whether the look disregards a commit with this mark: its own, one that stood before the run began, or one beyond recall.

    A mark that another run makes meanwhile does not count: nobody has waited for the operations that began before it.
    """
    if mark is None:
        return False
    return bool(mark.sweeping_ms) or mark.mark_id == run.mark_id or mark.mark_id in run.record.disregards


def _is_commit(text: str) -> bool:
    try:
        ids.commit_id(text)
    except InvalidName:
        return False
    return True


def _own(name: str) -> Address:
    try:
        return ids.own_address(name)
    except InvalidName as error:
        raise CorruptRecord(f"{name[:120]!r} is the key of a reference or a pin and no address; nothing will be deleted") from error


def _overtaken(mark_id: str) -> Conflict:
    return Conflict(f"mark {mark_id} was taken over by another run, or unmarked; nothing is marked, run the marking again")


def _pages(source: Iterator[T], size: int) -> Iterator[list[T]]:
    while page := list(islice(source, size)):
        yield page
