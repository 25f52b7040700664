"""Flows on entries. Each ends with the token check: entries count only under a token that is still current."""

from __future__ import annotations

from typing import NamedTuple

from .store import (
    DEAD,
    EMPTY,
    ENDING,
    ISSUED,
    LOST,
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
        """Put a reference on the list. `own`: the address is this operation's, so an emptied list takes it too.

        Rule 5: An empty list takes no copy.

        A copy that finds an empty list starts over, because its source has changed. Only two may put a reference on an
        empty list: the writer that owns P, in its own retry, and `restore`, before `deleting`.

        *Without it* nothing is lost: a copy that revives an emptied list finds it empty or `deleting`, never in
        between. The rule gives the grace window its meaning, so that only `restore` ends it. *Shown by*
        `CopiesOntoEmpty`, which holds.
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
        """Release what was swapped out, under a token that is still current.

        Rule 6: Overwrite and delete release at once, if that is safe.

        A writer exchanges the entry and learns the old one. If rule 2's check says that T is still current, it takes
        the old entry's own reference off the list of the old address. If T moved on, it leaves that reference, because
        a commit may have seen the old entry.

        *Without it* a commit names an object that an overwrite released. *Shown by* `ReleasesBlindly`.
        """
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

        Rule 2: The token is checked after the entry.

        A writer writes its entry under T, and then reads the branch again. If T is no longer current, it adds a
        reference for the new token and writes the entry again there. It leaves the old reference alone: that one is
        released only when T is processed.

        - A batch places every reference, then every entry, and then makes one check for all of them.
        - A tombstone that fell under a token that moved on is owed under the new token, even if the path looks deleted
          by then. A commit may have read T before the tombstone was there.

        *Without it* an overwrite under a sealed token releases what a commit has already read, or an acknowledged
        upload or deletion is in no commit. A writer that drops its own old reference loses committed data, because T
        may be committed with P in it.

        *Shown by* `NaiveOverwrite`, `DropsOwnReference`, `ChecksTheFirst`, `TombstoneOnce`.
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
        """Take away an entry whose commit was marked meanwhile, and put back what it replaced.

        Rule 9, Whoever puts an entry back gives it a new reference: The scrubber may have released the old one while
        the entry was not there, however young the operation is. An address without a key is committed if it has
        content, because whoever deletes a blob deletes its key last; anything else is gone. *Shown by*
        `PutsBackAsItWas`.
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
        """Tell whether a long upload has not outlived its token; otherwise take back what it wrote.

        Rule 11: A long upload checks its reference again.

        Between the end of the blob and the first entry, a long upload reads its references. If one is gone, the upload
        was never placed, and so it was never committed. It takes its references off and starts over. It deletes its
        blob itself only where the address is `deleting`. What is on a list or in its grace window may have been
        restored by somebody; what has no key may have been restored and committed.

        *Without it* nothing is lost, because the writer checks its token behind the entry as well; a writer that dies
        may leave an entry under a scrubbed token for longer. But an upload that deletes more than this rule allows
        deletes what somebody restored.

        *Shown by* `WithdrawsAll`, `WithdrawsWhatHasNoKey`; `NeverLooksBack` holds.
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
        """Write the first reference of a new address; of another address where it is not sure that this one is new.

        Rule 1: The reference comes before the entry.

        `references/<P>` lists (T, path, id) before `staging/T/path` names P with that id, and before the blob is
        written. So an entry under a live token always has its reference, or P is committed. **Every placement has an id
        of its own**: each copy, link and restore, and each retry of any of them.

        *Without it* an entry may be committed before its reference is written. The reference comes after the reaper has
        forgotten the commit's references, is released as left over, and the reaper deletes what the commit names. A
        writer that dies between the blob and its reference leaves a blob that nobody finds. And if (T, path) alone were
        the reference, an overwrite that is about to release its old one would take away the reference of a copy that
        has just brought P back to the same path.

        *Shown by* `EntryFirst`, `SameReference`, `CopiesUnderNoReference`.
        """
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
        """Rule 10: An issued address is linked once, through the same key.

        GetPhysicalAddress creates `references/<P> = issued`. LinkPhysicalAddress is `set_if(issued -> [(T, path,
        id)])`. A second link finds no `issued`, and neither does a replay after the commit. An address that has expired
        and is not linked is deleted by `issued -> deleting`.

        **A link that died between its reference and its entry is never taken up again**, not by the same token either.
        What it left looks like a link whose entry was replaced, by a write that has yet to release it or under a token
        that a commit has sealed. Its writer asks for a new address.

        *Without it* two calls link one address, and both hear ok.

        *Shown by* `LinksTwice`, `LinksUnderOneReference`, `TakesLinksUpAgain`.
        """
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
        """Link a copy at a new address, where nobody else can write.

        Rule 10, A link may name a copy: `safety.copy_linked` asks for it, because a URL of P that the store has signed
        can write there until it expires. The copy is made as an upload, at an address Q of its own: reference, blob,
        re-check (rule 11). Then P is taken as by a link, by `set_if(issued -> [(T, path, id)])`, and at once
        `set_if(that -> deleting)`, with the hint of its expiry. It never has an empty list, from which it could be
        restored. Only who has taken P writes the entry of Q; anybody else releases the reference of Q. *Shown by*
        `CopiesTwice`.
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
        """Take back an address that is in its grace window, or on its way there.

        Rule 17: Restore.

        A restore is `set_if(empty -> [(T, path, id)])` under the current token, before `deleting`, and then an entry as
        in any placement. A list that is not empty yet takes it as well: what names the address was reset and is not
        processed, or belongs to a call that died.

        The restored entry is the one that named the address. The empty list keeps it. Before the list is empty, the
        entry is under its own token. A name leaves the list, which keeps its entry then, before the entry leaves the
        token. So where no entry is found, the list is read again.

        *Without it* a restore of an address that is `deleting` names a blob that is about to be deleted. *Shown by*
        `RestoresDeleting`.
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
        """Source, or None.

        Rule 12: A reader reads the branch again.

        A reader whose object was not found, or moved, reads the branch again: entries leave the area of a token once it
        is processed.

        *Without it* a reader does not find what was there all the time. *Shown by* `ReadsOnce`.
        """
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
        """Tell whether a commit was ever the head.

        Rule 18: A commit counts once it landed.

        A commit's record is written before the branch moves. It outlives a commit that was given up and whose blobs are
        deleted. So a commit that a caller names by its id must have its landed mark; or be in `retired` of its branch
        now; or have the mark when it is looked for again. The landed mark is written by the committer, and by whoever
        publishes `retired`, before the marker. The same three reads, in this order, tell a committer whose `set_if` is
        refused whether it had landed: ok, or never.

        *Without it* a branch or a cherry-pick names blobs of a commit that never was, or a caller hears "aborted" of a
        commit that landed. *Shown by* `AnyCommitId`, `AnswersByTheRecord`.
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

    release_anyway = False

    def reset_paths(self, branch: str, *paths: str) -> Steps:
        """Drop what is staged at some paths.

        Rule 15: Reset of a path or prefix.

        It works only under the current token, and is a conflict while tokens are sealed. It is `set_if(entry ->
        ABSENT)`, then rule 2's check. If T is still current, it releases as in rule 6. Otherwise it leaves the
        reference and says conflict.

        *Without it* the reset releases what a commit has read. *Shown by* `ResetsPathsBlindly`.
        """
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
