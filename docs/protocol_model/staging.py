"""Flows on entries. Each ends with the token check: entries count only under a token that is still current."""

from __future__ import annotations

from typing import NamedTuple

from .store import (
    DEAD,
    EMPTY,
    ENDING,
    ISSUED,
    LOST,
    ONCE,
    TOMB,
    Branch,
    Entry,
    Op,
    Ref,
    Retry,
    Steps,
    Tomb,
    branch_of,
    dead_after,
    each,
    listed,
    refs,
)

ATTEMPTS = 4


class Source(NamedTuple):
    """Where a path's address was found."""

    address: str
    token: str | None
    """The live token whose entry names it; None: only the head's tree does."""
    id: str | None
    head: str | None
    """The commit whose tree names it, where no entry does."""


class Item(NamedTuple):
    path: str
    address: str
    ref: Ref | None
    """Its reference, already on the list; None: the address is committed."""

    def written(self, token: str) -> Op:
        return ("swap", ("e", token, self.path), Entry(self.address, self.ref.id if self.ref else None))


class Entered(NamedTuple):
    address: str
    ref: Ref


class Overwrite(NamedTuple):
    """One write of a move's copy, and what it replaced; LOST: nobody knows."""

    token: str
    item: Item
    old: Entry | Tomb | str | None


class Staging(Retry):
    def __init__(self, me: str = "", *, zero_grace: bool = False, shards: tuple[str, ...] = ()) -> None:
        self.me = me
        self.shards = shards
        self.zero_grace = zero_grace
        self._made = 0

    def fresh(self) -> str:
        """An id that nobody else makes."""
        self._made += 1
        return f"{self.me}{self._made}"

    # ---- the list of an address

    def hold(self, address: str, ref: Ref, *, own: bool) -> Steps:
        """Put a reference on the list. `own`: the address is this operation's, so an emptied list takes it too (rule
        5).
        """
        while True:
            held = yield ("get", ("r", address))
            if held is None:
                return "missing"
            if not listed(held):
                return "leaving"
            if not held[1] and not own:
                return "empty"
            if (yield ("cas", ("r", address), held, refs(*held[1], ref))):
                return "held"

    def release(self, address: str, ref: Ref, *, whole_token: bool = False) -> Steps:
        """Take a reference off the list, or all of its token; who empties the list leaves a due hint."""
        while True:
            held = yield ("get", ("r", address))
            if held == EMPTY:  # perhaps by this very call, the reply lost, so that the hint is still to be left
                yield from self.hint(address, ref)
                return
            if not listed(held):
                return
            left = {other for other in held[1] if other.token != ref.token} if whole_token else held[1] - {ref}
            if len(left) == len(held[1]):
                return
            at_once = self.zero_grace and not left and (yield from self.may_delete(EMPTY))
            if (yield ("cas", ("r", address), held, DEAD if at_once else refs(*left))):
                if not left:
                    yield from self.hint(address, ref)
                return

    def hint(self, address: str, _last: Ref) -> Steps:
        """Leave a due hint."""
        yield ("set", ("d", address), True)

    def may_delete(self, held: object) -> Steps:
        """Whether the time has come to delete what is EMPTY or ISSUED: one answer for all that ask (rule 8). Without a
        clock, at any moment.
        """
        del held
        return (yield ("get", ("~clock",))) != ENDING

    def begin_deletion(self, address: str, held: object) -> Steps:
        """Enter `deleting`, one way, if the time has come."""
        return (yield from self.may_delete(held)) and (yield ("cas", ("r", address), held, dead_after(held)))

    # ---- entries

    fast_release = True

    def released(self, token: str, path: str, old: Entry | str | None) -> Steps:
        """Rule 6: what was swapped out under a token that is still current loses exactly its own reference."""
        if self.fast_release and isinstance(old, Entry) and old.id is not None:
            yield from self.release(old.address, Ref(token, path, old.id))

    def enter(
        self,
        branch: str,
        items: list[Item],
        token: str,
        *,
        own: bool,
        entered: list[Entered] | None = None,
        source: str | None = None,
        overwrites: list[Overwrite] | None = None,
    ) -> Steps:
        """Write the entries, whose references stand, then ONE token check for all (rule 2).

        Where the token moved on, or a swap's reply was lost: a new reference for what is left, and again. "again":
        start from the source (copies only); "lost": the address is gone and the caller must upload again. `entered`
        takes the entries that stood under the branch's current token. `source`: the commit that they were copied from.
        `overwrites` takes what each write replaced, whose reference the caller releases then.
        """
        if not items:
            return "ok"
        for _ in range(ATTEMPTS):
            olds = yield from each(*(item.written(token) for item in items))
            if overwrites is not None:
                overwrites += [Overwrite(token, item, old) for item, old in zip(items, olds, strict=True)]
            if source is not None and (yield ("get", ("x", source))):
                for item, old in zip(items, olds, strict=True):
                    yield from self.put_back(token, item, old)
                return "410"
            record = yield ("open", ("b", branch))
            if record is None:
                return "404"
            if record.token == token:
                for item, old in zip(items, olds, strict=True):
                    if overwrites is None:
                        yield from self.released(token, item.path, old)
                    if entered is not None and old is not LOST and item.ref is not None:
                        entered.append(Entered(item.address, item.ref))
                items = [item for item, old in zip(items, olds, strict=True) if old is LOST]
            left = []
            for item in items:
                verdict = yield from self.place_again(branch, item, token, record.token, own=own)
                if isinstance(verdict, Item):
                    left.append(verdict)
                elif verdict != "ok":
                    return verdict
            if not left:
                return "ok"
            items, token = left, record.token
        return "busy"

    def put_back(self, token: str, item: Item, old: Entry | str | None) -> Steps:
        """Take an entry away whose commit was marked meanwhile, and put back what it replaced, under a new reference:
        while it was not there, the scrubber may have released the one that it had (rule 9). Without a key it is
        committed if it has content: whoever deletes a blob deletes its key last.
        """
        mine = item.written(token)[2]
        if old in (LOST, mine):
            old = None
        if isinstance(old, Entry) and old.id is not None:
            ref = Ref(token, item.path, self.fresh())
            outcome = yield from self.hold(old.address, ref, own=True)
            if outcome == "held":
                old = old._replace(id=ref.id)
            elif outcome != "missing" or not (yield ("head", old.address)):
                old = None
        yield ("cas", ("e", token, item.path), mine, old)

    def place_again(self, branch: str, item: Item, before: str, now: str, *, own: bool) -> Steps:
        """A new reference for an entry that has to be written again; the old one stays until its token is processed."""
        path, address, ref = item
        if ref is None:
            return item
        if before == now:
            held = yield ("get", ("r", address))
            if held is not None and not (
                listed(held) and ref in held[1]
            ):  # no key says nothing: it may be committed elsewhere
                record = yield ("open", ("b", branch))
                if record is not None and record.token == before:
                    return "ok"  # the swap had landed: only who replaced the entry takes its reference off a live token
                return "lost" if own else "again"
        new = Ref(now, path, self.fresh())
        outcome = yield from self.hold(address, new, own=own)
        if outcome == "held":
            return Item(path, address, new)
        if outcome == "missing":
            source = yield from self.resolve(branch, path)
            if source is not None and source.address == address:
                return "ok"  # committed with the entry in it
        return "lost" if own else "again"

    def upload(self, branch: str, *items: tuple[str, str]) -> Steps:
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        placed = []
        for path, address in items:
            item = yield from self.create(path, address, record.token)
            if item is None:
                return "busy"
            placed.append(item)
        yield from each(*(("put", item.address) for item in placed))
        if not (yield from self.still_held(placed)):
            return "lost"
        return (yield from self.enter(branch, placed, record.token, own=True))

    def finish_upload(self, branch: str, item: tuple[str, str]) -> Steps:
        """What is left of an upload whose blob and reference stand under the branch's first token: for scenarios that
        begin there.
        """
        token = f"{branch}:0"
        placed = Item(*item, Ref(token, item[0], "late"))
        return (yield from self.enter(branch, [placed], token, own=True))

    def still_held(self, placed: list[Item]) -> Steps:
        """Whether a long upload has not outlived its token; else what it wrote is taken back, as it was never placed
        (rule 11): its references, and where the address is `deleting`, the blob. No other: what is in its grace window,
        somebody may have restored; what has no key, restored and committed.
        """
        records = yield from each(*(("get", ("r", item.address)) for item in placed))
        if all(listed(held) and item.ref in held[1] for item, held in zip(placed, records, strict=True)):
            return True
        for item in placed:
            yield from self.release(item.address, item.ref)
            if self.withdraws((yield ("get", ("r", item.address)))):
                yield ("rm", item.address)
        return False

    def withdraws(self, held: object) -> bool:
        return held == DEAD

    def create(self, path: str, address: str, token: str) -> Steps:
        """The first reference of a new address; another address where it is not sure that this one is new."""
        for _ in range(ATTEMPTS):
            item = Item(path, address, Ref(token, path, self.fresh()))
            if (yield ("cas", ("r", address), None, refs(item.ref))):
                return item
            address += "'"
        return None

    def issue(self, address: str) -> Steps:
        yield ("set", ("d", address), True)
        if not (yield ("cas", ("r", address), None, ISSUED)):
            return "busy"
        yield ("put", address)
        return "ok"

    def link(self, branch: str, path: str, address: str, entered: list[Entered] | None = None) -> Steps:
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        item = Item(path, address, Ref(record.token, path, self.fresh()))
        if not (yield ("cas", ("r", address), ISSUED, refs(item.ref))):
            held = yield ("get", ("r", address))
            if (
                not listed(held) or item.ref not in held[1]
            ):  # it is there if the reply was lost and somebody added to the list since
                return "409"
        return (yield from self.enter(branch, [item], record.token, own=True, entered=entered))

    def link_copy(self, branch: str, path: str, address: str, copy: str, entered: list[Entered] | None = None) -> Steps:
        """Link a copy at a new address, where nobody else can write (rule 10). The copy is made as an upload; then the
        issued address is taken, as by a link, and goes to `deleting`: no restore may bring it back.
        """
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        item = yield from self.create(path, copy, record.token)
        if item is None:
            return "busy"
        if not (yield from self.is_written(address)):
            yield from self.release(item.address, item.ref)
            return "404"
        yield ("put", item.address)
        if not (yield from self.still_held([item])):
            return "lost"
        if not (yield from self.take_issued(address, Ref(record.token, path, self.fresh()))):
            yield from self.release(item.address, item.ref)
            return "409"
        return (yield from self.enter(branch, [item], record.token, own=True, entered=entered))

    def take_issued(self, address: str, own: Ref) -> Steps:
        """Whether this call is the one that links the address; then nobody else names it, and it goes."""
        if not (yield ("cas", ("r", address), ISSUED, refs(own))):
            held = yield ("get", ("r", address))
            if not listed(held) or own not in held[1]:
                return False
        if (yield ("cas", ("r", address), refs(own), DEAD)):
            yield from self.hint(address, own)
        return True

    def restore(self, branch: str, path: str, address: str, entered: list[Entered] | None = None) -> Steps:
        """Take an address back that is in its grace window, or on its way there: named by what is reset, or by a dead
        call's reference.
        """
        if not (yield from self.is_written(address)):
            return "404"
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        item = Item(path, address, Ref(record.token, path, self.fresh()))
        if (yield from self.hold(address, item.ref, own=True)) != "held":
            return "409"
        return (yield from self.enter(branch, [item], record.token, own=True, entered=entered))

    def is_written(self, address: str) -> Steps:
        """Whether the address has content, wherever it lies."""
        return (yield ("head", address))

    def look(self, record: Branch, path: str) -> Steps:
        """Source, or None: newest token first, then the head's tree."""
        return (yield from self.look_under((record.token, *reversed(record.sealed)), record.head, path))

    def look_under(self, tokens: tuple[str, ...], head: str, path: str) -> Steps:
        for token in tokens:
            entry = yield ("get", ("e", token, path))
            if entry is not None:
                return Source(entry.address, token, entry.id, None) if isinstance(entry, Entry) else None
        commit = yield ("get", ("c", head))
        address = dict(commit.tree).get(path)
        return Source(address, None, None, head) if address else None

    def resolve(self, branch: str, path: str) -> Steps:
        """Source, or None; read again until the branch record stood still meanwhile."""
        while True:
            record = yield ("open", ("b", branch))
            if record is None:
                return None
            found = yield from self.look(record, path)
            again = yield ("open", ("b", branch))
            if again is None:
                return None
            if again[:3] == record[:3]:
                return found

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
        """Rule 4: whether a source without reference key is committed: it is, if it still resolves to the same entry.

        While a gc runs, the address is pinned first: the gc may have read the place this copy goes to, and not find any
        more the place it comes from.
        """
        run = (yield ("get", ("gc",))) if self.pins else None
        if run is not None:
            yield ("set", ("pin", run, source.address), True)
        return (yield from self.resolve(branch, path)) == source

    def copy_from_commit(self, commit: str, source_path: str, branch: str, path: str) -> Steps:
        tree = yield from self.named(commit)
        if isinstance(tree, str):
            return tree
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        address = tree[source_path]
        return (yield from self.enter(branch, [Item(path, address, None)], record.token, own=False, source=commit))

    checks_landed = True

    def named(self, commit: str) -> Steps:
        """The tree of a commit that a caller names by its id: "404" if it never landed, "410" if it is marked."""
        record = yield ("get", ("c", commit))
        if record is None or (self.checks_landed and not (yield from self.landed_by_id(commit, record.tokens))):
            return "404"
        if (yield ("get", ("x", commit))):
            return "410"
        return dict(record.tree)

    def landed_by_id(self, commit: str, tokens: tuple[str, ...]) -> Steps:
        if (yield ("get", ("l", commit))):
            return True
        return bool(tokens) and (yield from self.landed(commit, branch_of(tokens[0])))

    def landed(self, commit: str, branch: str) -> Steps:
        """Whether a commit was ever the head. Who publishes a branch's `retired` sets the landed mark before taking the
        tokens off, so one of the two is there if it was, in this order.
        """
        record = yield ("get", ("b", branch))
        if record is not None and any(fate == commit for _, fate in record.retired):
            if (yield from self.record_landing(branch, record.born, commit, published=True)):
                yield ("set", ("l", commit), True)
            return True
        return (yield ("get", ("l", commit))) is not None

    def delete(self, branch: str, *paths: str) -> Steps:
        for _ in range(ATTEMPTS):
            record = yield ("open", ("b", branch))
            if record is None:
                return "404"
            olds = yield from each(*(("swap", ("e", record.token, path), TOMB) for path in paths))
            again = yield ("open", ("b", branch))
            if again is None:
                return "404"
            if again.token == record.token:
                for path, old in zip(paths, olds, strict=True):
                    yield from self.released(record.token, path, old)
                paths = tuple(path for path, old in zip(paths, olds, strict=True) if old is LOST)
                if not paths:
                    return "ok"
        return "busy"

    deletes_again = True
    answers_by_the_deletion = True
    takes_copies_back = True

    def move(self, branch: str, path: str, to: str, to_branch: str | None = None) -> Steps:
        """Copy, then delete the source: who deletes it has moved it, and anybody else takes its own copy back (rule
        6). What the copy replaced keeps its reference until then.
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

    release_anyway = False

    def reset_paths(self, branch: str, *paths: str) -> Steps:
        """Drop what is staged at some paths: only under the current token, and a conflict while tokens are sealed."""
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        if record.sealed:
            return "409"
        taken = []
        for path in paths:
            old = yield ("get", ("e", record.token, path))
            if old is not None and (yield ("cas", ("e", record.token, path), old, None)):
                taken.append((path, old))
        again = yield ("open", ("b", branch))
        if again is None:
            return "404"
        if again.token != record.token and not self.release_anyway:
            return "409"  # a commit may have seen the entries; their references go when the token is processed
        for path, old in taken:
            yield from self.released(record.token, path, old)
        return "ok"
