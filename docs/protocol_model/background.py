"""Reaper, hard deletion, scrubber.

Any number of them run at once. Time is not modelled: grace is over, and an issued address expired, at any moment; what
is to be "older than the longest operation" waits at a barrier instead. Only the scenarios of times have a clock: there
nothing may be deleted before `may_delete` says so.
"""

from __future__ import annotations

from .branching import Branching
from .calls import Do
from .store import (
    CLOSED,
    DEAD,
    DEAD_PARTS,
    EMPTY,
    ISSUED,
    NEW,
    OVER,
    PROCESSED,
    Branch,
    Entry,
    Ref,
    Steps,
    branch_of,
    each,
    is_issued,
    listed,
    refs,
)


class Background(Branching):
    # ---- the reaper

    def reap(self) -> Steps:
        """One pass. Deleted markers come first here because that is the worse order: with several reapers any order
        happens.
        """
        closed = (yield ("get", ("repo",))) == CLOSED
        names = [key[1] for key in (yield ("scan", ("b",)))]
        calls: list[tuple] = [("delete_branch", name) for name in names] if closed else []
        calls += [("drain", name) for name in names]
        return Do((*calls, ("reap_deleted",), ("reap_committed",), ("reap_deleted",), ("hard_delete",)))

    def reap_committed(self) -> Steps:
        keys = yield ("scan", ("mc",))
        return Do(("process_commit", key[1]) for key in keys)

    def process_commit(self, commit: str) -> Steps:
        """Process a committed marker.

        Rule 7: Committed addresses are forgotten first.

        Whoever processes a committed marker does three things in this order. It deletes the reference keys of the
        addresses that the commit *added*. Then it writes a deleted marker for each of the commit's tokens, so that what
        was overwritten or tombstoned loses its reference. Then it deletes the committed marker. The references of a
        token are released only when the token is processed. The result is the same in whichever order markers are
        found, and whoever publishes or processes them again.

        *Without it* another reaper processes a token as deleted, and releases what the commit names. *Shown by*
        `DeletedFirst`.
        """
        tokens = yield ("get", ("mc", commit))
        if tokens is None:
            return
        record = yield ("get", ("c", commit))
        yield from self.forget_added(record.added)
        for token in tokens:
            yield ("set", ("md", token), True)
        yield ("del", ("mc", commit))

    def forget_added(self, added: frozenset[str]) -> Steps:
        for address in sorted(added):
            yield ("del", ("r", address))

    def reap_deleted(self) -> Steps:
        keys = yield ("scan", ("md",))
        return Do(("process_token", key[1]) for key in keys)

    def process_token(self, token: str) -> Steps:
        if (yield ("get", ("md", token))) is None:
            return
        for key in (yield ("scan", ("e", token))):
            entry = yield ("get", key)
            if isinstance(entry, Entry) and entry.id is not None:
                yield from self.release(entry.address, Ref(token, key[2], entry.id), whole_token=True)
            yield ("del", key)
        yield ("cas", ("t", token), NEW, PROCESSED)
        yield ("del", ("md", token))

    def hard_delete(self) -> Steps:
        keys = yield ("scan", ("d",))
        return Do(("finish", key[1]) for key in keys)

    def finish(self, address: str) -> Steps:
        """Delete one hinted address whose time has come.

        Rule 8: Deleting is one way.

        The list is empty. After the grace window follow `set_if(empty -> deleting)`, the deletion of the blob, and the
        deletion of the key. Any reaper may finish another's `deleting`. With no grace window the last release may go
        from `[reference]` to `deleting` in one `set_if`.

        **From when an address may be deleted is one answer for all who delete or hint**
        (`refstore/versioning/address_state.py`): when the grace window is over since its list became empty; when an
        issued address has expired, and then for as long as two clocks may be apart, because the clock of whoever links
        may be behind.

        Hard deletion reads only addresses that are hinted. A hint is written after a list became empty or `deleting`,
        and before an address is issued. Whoever finds the list empty already writes the hint again, and so does the
        full pass of the scrubber: it finds what a crash in between has left.

        *Without it* a restore succeeds while a reaper deletes the blob that it names. Without the second hint, garbage
        stays for ever after a crash. A deleter with a time of its own refuses a link or a restore that was still
        promised.

        *Shown by* `DeletesEmptyLists`, `DeletingUnconditionally`, `NoHintsAgain`, `LeavesTheSkewOut`, `HasItsOwnGrace`,
        `ReleasesAtOnce`.
        """
        held = yield ("get", ("r", address))
        if is_issued(held):
            return
        if held == EMPTY:
            if not (yield from self.begin_deletion(address, EMPTY)):
                return
            held = DEAD
        if held == DEAD_PARTS:
            yield from self.abort_in_store(address)
        if held in (DEAD, DEAD_PARTS):
            yield from self.remove_blob(address)
            yield ("cas", ("r", address), held, None)
        yield ("del", ("d", address))

    def remove_blob(self, address: str) -> Steps:
        yield ("rm", address)

    def expire(self, address: str) -> Steps:
        if (yield from self.begin_deletion(address, ISSUED)):
            yield from self.finish(address)

    def tick(self) -> Steps:
        """The clocks go on: past the grace window, and past the expiry by as much as two clocks may be apart."""
        yield ("set", ("~clock",), OVER)

    # ---- the scrubber

    def scrub(self) -> Steps:
        addresses = yield ("scan", ("r",))
        tokens = yield ("scan", ("t",))
        uploads = yield ("scan", ("u",))
        calls = [("scrub_address", key[1]) for key in addresses]
        calls += [("scrub_token", key[1]) for key in tokens]
        calls += [("scrub_upload", key[1]) for key in uploads]
        calls += [("release_unnamed", key[1]) for key in addresses]
        return Do((*calls, ("hard_delete",)))

    fate_order = "branch committed deleted"

    def undecided(self, token: str) -> Steps:
        """Tell whether the token is live, or on its way to being processed.

        Rule 9: The scrubber drops what crashes have left.

        **Under a token that is over.** A reference or a staging entry is left over from a crash if its token is neither
        live nor retired and has no marker. The scrubber drops it.

        - It reads the **branch before the committed markers**, because a fate travels in this direction.
        - It takes only what is older than the longest operation, because a young token may be about to become current.
        - A token is registered before it can be current. It is stamped when it is processed, before its marker is
          deleted. Its area and then its registry key are deleted when the record as read is old, by `set_if` on that
          record. A stamp that came in between means that late writers are still to be waited for.

        *Without it* committed data is lost (the other order of reading), a young token loses its entries, and a token
        that is forgotten too early leaves entries that nobody finds.

        *Shown by* `ScrubMarkersFirst`, `ScrubCommittedFirst`, `ScrubsYoung`, `ForgetsUnseen`, `RegistersLater`;
        `ScrubDeletedEarly` holds.
        """
        for place in self.fate_order.split():
            if place == "branch":
                record = yield ("get", ("b", branch_of(token)))
                if record is not None:
                    live = (record.token, *record.sealed) if isinstance(record, Branch) else ()
                    if token in live or any(token == other for other, _ in record.retired):
                        return True
            elif place == "committed":
                for key in (yield ("scan", ("mc",))):
                    if token in ((yield ("get", key)) or ()):
                        return True
            elif (yield ("get", ("md", token))):
                return True
        return False

    hints_again = True

    def scrub_address(self, address: str) -> Steps:
        """Drop the references of tokens that are over; leave a hint wherever a list waits without one."""
        held = yield ("get", ("r", address))
        if held is None:
            return
        if listed(held) and held[1]:
            over = set()
            for token in sorted({ref.token for ref in held[1]}):
                if not (yield from self.undecided(token)):
                    over.add(token)
            left = [ref for ref in held[1] if ref.token not in over]
            if over and (yield ("cas", ("r", address), held, refs(*left))):
                held = refs(*left)
        if not (listed(held) and held[1]) and self.hints_again and not (yield ("get", ("d", address))):
            yield ("set", ("d", address), True)

    waits = True

    def release_unnamed(self, address: str, *guard: object) -> Steps:
        """Release the references whose entry does not name the address. `guard`: what `may_release` asks for.

        Rule 9, Under a token that is current: A writer may die between its reference and its entry, or between its
        entry and the release of what it replaced. The branch may never be committed, so the scrubber releases such a
        reference: the entry at its path does not name its address. It does so in this order:

        1. It reads the list. Only references that are **older than the longest operation** count: no entry of theirs is
           on its way, no retry will look for them, and no write of theirs lands late. Each reference has a time of its
           own, in its id, because a list that copies change all the time has old references, too.
        2. It reads the **entry, then the branch**. If the token is current *after* the entry was read, no commit has
           read what was there before, and one that seals the token later finds the entry as the scrubber did. What a
           sealed token has is released with its token: a commit may have read it, and a late writer replaced it since.
        3. It checks that the same servers answer as when its pass began (rule 21). If an entry was lost in between, its
           release would explain the loss.
        4. It releases by `set_if` on the **list as it was read**, into the grace window, and never straight to
           deletion. If a copy or a restore came in between, the list has changed, and the scrubber starts over. One
           that comes later finds the list empty: a copy reads its source again (rule 5), and a restore takes the
           address (rule 17).

        *Without it* an object stays for ever that nothing names. In another order a commit, a copy or a running upload
        loses what it names, or a restore is refused whose time is not over.

        *Shown by* `KeepsUnnamed`, `NeverWaitsForEntries`, `ReadsTheBranchBeforeTheEntry`, `ReleasesSealed`,
        `WritesOverTheList`, `DeletesUnnamed`, `ReleasesUnderOtherServers`.
        """
        old = yield ("get", ("r", address))
        if not (listed(old) and old[1]):
            return
        if self.waits_for_entries:
            yield ("barrier",)  # the references in `old` are older than the longest operation
        held = yield ("get", ("r", address))
        unnamed = []
        for ref in sorted(old[1] & held[1], key=str) if listed(held) else ():
            if (yield from self.is_unnamed(address, ref)):
                unnamed.append(ref)  # noqa: PERF401  # a comprehension cannot yield
        if unnamed and (yield from self.may_release(*guard)):
            yield from self.release_as_read(address, held, unnamed)

    def is_unnamed(self, address: str, ref: Ref) -> Steps:
        entry = yield ("get", ("e", ref.token, ref.path))
        if isinstance(entry, Entry) and entry.address == address:
            return False
        record = yield ("open", ("b", branch_of(ref.token)))
        return record is not None and record.token == ref.token

    def may_release(self) -> Steps:
        return True
        yield

    def release_as_read(self, address: str, held: tuple, unnamed: list[Ref]) -> Steps:
        """Into grace, and never straight to deletion: from there it can be restored."""
        left = held[1] - {*unnamed}
        if (yield ("cas", ("r", address), held, refs(*left))) and not left:
            yield from self.hint(address, unnamed[-1])

    area_first = True
    forgets_unseen = False

    def scrub_token(self, token: str) -> Steps:
        """Drop what was written late under a token that is over, then forget the token. Staging is reached by the
        registry only.

        The first look may come at any time, because it reads the area before the branch: a token that is about to
        become current has no entries yet. To forget the token, its registry record must be old, and must still be the
        one that was found old: who processes the token stamps it, and its late writers are then to be waited for.
        """
        state = yield ("get", ("t", token))
        late = yield ("scan", ("e", token))
        if not (yield from self.undecided(token)):
            if not self.area_first:
                late = yield ("scan", ("e", token))
            yield from each(*(("del", key) for key in late))
        if self.waits:
            yield ("barrier",)  # `state` is older than the longest operation
        if state is None or (yield from self.undecided(token)):
            return
        left = yield ("scan", ("e", token))
        yield from each(*(("del", key) for key in left))
        if self.forgets_unseen:
            yield ("del", ("t", token))
        else:
            yield ("cas", ("t", token), state, None)

    # ---- a closed repository

    def forget_repository(self) -> Steps:
        """The closed record goes last, when nothing is left and it is older than the longest operation."""
        if (yield ("get", ("repo",))) != CLOSED:
            return
        if self.waits:
            yield ("barrier",)
        for kind in ("b", "mc", "md", "t", "r", "e"):
            if (yield ("scan", (kind,))):
                return
        yield ("cas", ("repo",), CLOSED, None)
