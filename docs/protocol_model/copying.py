"""Flows that take an entry from one path to another: copy, and move, which deletes the source behind it."""

from __future__ import annotations

from .staging import ATTEMPTS, Item, Overwrite, Source, Staging
from .store import LOST, ONCE, Entry, Ref, Steps, Tomb


class Copying(Staging):
    def copy(self, source_branch: str, source_path: str, branch: str, path: str) -> Steps:
        return (yield from self.copying(branch, (source_branch, source_path, path)))[0]

    def copy_many(self, branch: str, *pairs: tuple[str, str, str]) -> Steps:
        """pairs: (source branch, source path, path)."""
        return (yield from self.copying(branch, *pairs))[0]

    checks_heads = True

    def copying(self, branch: str, *pairs: tuple[str, str, str], overwrites: list[Overwrite] | None = None) -> Steps:
        """(verdict, the source copied last). Every reference, then every entry, then one token check."""
        copied = None
        for _ in range(ATTEMPTS):
            record = yield ("open", ("b", branch))
            if record is None:
                return "404", None
            items = []
            later = []
            for pair in pairs:
                source_branch, source_path, path = pair
                source = yield from self.resolve(source_branch, source_path)
                if source is None:
                    return "404", None
                ref = None
                if source.token is None:
                    if self.checks_heads and (yield ("get", ("x", source.head))):
                        return "410", None
                else:
                    ref = Ref(record.token, path, self.fresh())
                    outcome = yield from self.hold(source.address, ref, own=False)
                    if outcome == "missing" and (yield from self.committed_source(source, source_branch, source_path)):
                        ref = None
                    elif outcome != "held":
                        later.append(pair)  # its source has changed
                        continue
                items.append(Item(path, source.address, ref))
                copied = source
            verdict = yield from self.enter(branch, items, record.token, own=False, overwrites=overwrites)
            if verdict == "ok":
                pairs = tuple(later)
                if not pairs:
                    return "ok", copied
            elif verdict != "again":
                return verdict, None
        return "busy", None

    pins = True

    def committed_source(self, source: Source, branch: str, path: str) -> Steps:
        """Tell whether a source without reference key is committed.

        Rule 4: A missing reference key does not mean "committed".

        A copy that finds no reference key reads its source again. If the source still resolves to the same entry,
        through a live token or a commit, then P is committed and the copy needs no reference. Otherwise the copy starts
        over.

        *Without it* a copy names a blob that was just reaped. *Shown by* `MissingMeansCommitted`.
        """
        yield from self.pin(source.address)
        return (yield from self.resolve(branch, path)) == source

    def pin(self, address: str) -> Steps:
        """Rule 13, Pins: An entry without a reference can be copied or moved from a staging area that was not read yet
        to one that was. So while a run is on, such a copy from a staged source first pins the address *for that run*,
        then reads its source again, then writes. (A run is on while a flag has its id. The flag is set before the wait
        and removed by `set_if`.) *Shown by* `GcWithoutPins`, `GcPinsEarly`.

        """
        run = (yield ("get", ("gc",))) if self.pins else None
        if run is not None:
            yield ("set", ("pin", run, address), True)

    def copy_from_commit(self, commit: str, source_path: str, branch: str, path: str) -> Steps:
        tree = yield from self.named(commit)
        if isinstance(tree, str):
            return tree
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        address = tree[source_path]
        return (yield from self.enter(branch, [Item(path, address, None)], record.token, own=False, source=commit))

    deletes_again = True
    answers_by_the_deletion = True
    takes_copies_back = True

    def move(self, branch: str, path: str, to: str, to_branch: str | None = None) -> Steps:
        """Copy, then delete the source.

        Rule 6, Who deletes the source has moved it: A move deletes only what it copied, by `set_if` on that entry (on
        ABSENT where the source lies deeper). Whatever was written over the source since stays, even if it is the same
        object that was copied or moved back: an entry is known by its id, and not by its address alone. So of any
        number of moves of one path one is told ok, and there is no lock that could outlive its owner. A move whose
        `set_if` is refused takes its copy back: it puts back what the copy replaced, under a new reference (rule 9), by
        `set_if` on its own entry. What the copy replaced keeps its reference until the move is decided.

        - The tombstone of a move has an id, so that a move knows its own where a reply was lost.
        - A copy is taken back only if it was written once, under a token that is current behind that. Otherwise a
          commit may have it, or nobody knows what it replaced: it stays, and the answer is conflict. So it is where a
          tombstone fell under a token that moved on, and somebody else wrote at the path since.
        - If the mover dies before it deletes the source, both names stay, and nobody was told ok.

        *Without it* a move deletes what somebody else wrote, or two moves of one path are told ok and leave two names.
        *Shown by* `MovesBlindly`, `MovesByAddress`, `MovesWhatOthersMoved`, `KeepsItsCopy`, `TombstonesAlike`,
        `TakesBackWhatMovedOn`, `ReleasesBeforeItDeletes`.
        """
        to_branch = to_branch or branch
        overwrites: list[Overwrite] = []
        verdict, copied = yield from self.copying(to_branch, (branch, path, to), overwrites=overwrites)
        if verdict != "ok":
            return verdict
        verdict = yield from self.remove(branch, path, copied)
        if verdict == "404" and self.takes_copies_back and self.may_take_back(overwrites):
            return (yield from self.take_back(to_branch, overwrites[-1]))
        last = overwrites[-1]
        yield from self.released(last.token, to, last.old)
        return "conflict" if verdict == "404" and self.takes_copies_back else verdict

    def may_take_back(self, overwrites: list[Overwrite]) -> bool:
        """Whether the copy was written once: a commit may have what was written under a token that moved on, and what a
        write replaced whose reply was lost, nobody knows.
        """
        return len(overwrites) == 1 and overwrites[0].old is not LOST

    def take_back(self, branch: str, overwrite: Overwrite) -> Steps:
        """Put back what the copy replaced, under a new reference (rule 9). If the token moved on, a commit may have
        the copy.
        """
        token, item, old = overwrite
        yield from self.put_back(token, item, old)
        record = yield ("open", ("b", branch))
        if record is None or record.token != token:
            return "conflict"
        if item.ref is not None:
            yield from self.release(item.address, item.ref)
        yield from self.released(token, item.path, old)
        return "404"

    def still(self, source: Source, copied: Source) -> bool:
        """Whether it is the entry that was copied, staged as it was or committed since: the same object copied back has
        another id.
        """
        return source.address == copied.address and (
            source.token is None or (copied.token is not None and source.id == copied.id)
        )

    def tombstone_of_a_move(self) -> Tomb | str:
        """It has an id, so that a move knows its own although a reply was lost."""
        return Tomb(self.fresh())

    def remove(self, branch: str, path: str, copied: Source) -> Steps:
        """Delete what was copied, and nothing that was written over it since. "404": this call did not delete it;
        "conflict": nobody knows, because its own tombstone fell under a token that moved on, or may land yet.
        """
        mine = self.tombstone_of_a_move()
        owed = False
        for _ in range(ATTEMPTS):
            record = yield ("open", ("b", branch))
            if record is None:
                return "conflict"
            top = yield ("get", ("e", record.token, path))
            source = yield from self.look(record, path)
            if top != mine and (
                (source is None and not owed) or (source is not None and not self.still(source, copied))
            ):
                again = yield ("open", ("b", branch))
                if again is None or again[:3] == record[:3]:
                    return self.not_deleted(owed=owed)
                continue
            done = top == mine
            if not done:
                staged = source is not None and source.token == record.token
                old = Entry(source.address, source.id) if staged else None
                # over an entry, whose id never comes back, it is made again where the reply was lost
                done = yield ("cas", ("e", record.token, path), old, mine, *(() if staged else (ONCE,)))
                if not done and source is None:
                    return self.not_deleted(owed=owed)  # somebody else wrote there under this token
            again = yield ("open", ("b", branch))
            if done is True and again is not None and (again.token == record.token or not self.deletes_again):
                yield from self.released(record.token, path, Entry(copied.address, copied.id))
                return "ok"
            owed = owed or bool(done)  # a commit may have read the token before the tombstone
        return "busy"

    def not_deleted(self, *, owed: bool) -> str:
        if not self.answers_by_the_deletion:
            return "ok"
        return "conflict" if owed else "404"
