"""Uploads, links, deletions and changes that may only take the place of the entry that their caller read (rule 20)."""

from __future__ import annotations

from .calls import Do
from .creating import Creating
from .staging import ATTEMPTS, Source
from .store import ONCE, TOMB, Branch, Entry, Ref, Steps


class Replacing(Creating):
    def upload_if_match(self, branch: str, item: tuple[str, str], expected: str) -> Steps:
        """`expected`: the address of the entry that the caller reads first, and whose place it wants to take."""
        return (yield from self.while_there(branch, item[0], expected, ("uploading_if_match", branch, item)))

    def link_if_match(self, branch: str, path: str, address: str, expected: str) -> Steps:
        return (yield from self.while_there(branch, path, expected, ("linking_if_match", branch, path, address)))

    def delete_if_match(self, branch: str, path: str, expected: str) -> Steps:
        return (yield from self.while_there(branch, path, expected, ("deleting_if_match", branch, path)))

    def while_there(self, branch: str, path: str, expected: str, then: tuple) -> Steps:
        """Rule 20, In the place of what was read: A caller has read an entry and wants to replace it, and nothing else.
        It is the same flow; only what may be there differs: that very entry, by its id as long as it is staged, by its
        address once a commit took it. The `set_if` expects exactly what lies under the current token: that entry, or
        nothing where the entry lies deeper. If anything else is there, the answer is "changed". What was replaced loses
        its reference as in rule 6. *Shown by* `MatchesAnything`, `ReplacesWhatCameSince`, `ReleasesWhatMoved`.

        """
        source = yield from self.resolve(branch, path)
        return Do(((*then, source),)) if source is not None and source.address == expected else "changed"

    def uploading_if_match(self, branch: str, wanted: tuple[str, str], expected: Source) -> Steps:
        return (yield from self.uploading_conditionally(branch, wanted, expected))

    def linking_if_match(self, branch: str, path: str, address: str, expected: Source) -> Steps:
        return (yield from self.linking_conditionally(branch, path, address, expected))

    def deleting_if_match(self, branch: str, path: str, expected: Source) -> Steps:
        """Delete the path if it still has the entry that the caller read.

        Rule 20, Deleted if it is what was read: Likewise, with a tombstone, which is owed under the next token where
        the token moved on (rule 2). Its tombstones have no ids, so none could be taken back: while something is sealed,
        and the entry lies deeper than the current token, nothing is deleted, and the answer is conflict. *Shown by*
        `DeletesOnceOnly`, `DeletesWhileSealed`.
        """
        owed = False
        for _ in range(ATTEMPTS):
            record: Branch | None = yield ("open", ("b", branch))
            if record is None:
                return "404"
            there: Source | None = yield from self.look(record, path)
            if (there is None and not owed) or (there is not None and not self.still(there, expected)):
                again = yield ("open", ("b", branch))
                if again is None or again[:3] == record[:3]:
                    return "conflict" if owed else "changed"
                continue
            lies_deeper = there is None or there.token != record.token
            if lies_deeper and record.sealed and self.refuses_while_sealed:
                return "conflict"
            mine = Entry(there.address, there.id) if there is not None and there.token == record.token else None
            done = yield ("cas", ("e", record.token, path), mine, TOMB, ONCE)
            if not done and there is None:
                return "ok"  # the tombstone is there, or somebody wrote there after it
            again = yield ("open", ("b", branch))
            if done is True and again is not None and again.token == record.token:
                yield from self.released(record.token, path, mine)
                return "ok"
            owed = owed or (bool(done) and self.owes_tombstones)
        return "busy"

    owes_tombstones = True
    refuses_while_sealed = True

    def change(self, branch: str, path: str) -> Steps:
        """Put an entry of the same address in the place of exactly the entry that was read, and start over where
        anything came in between. It never follows the branch to another token: what is there then is read again.

        Rule 20, Changed in the place of what was read: Metadata, tags and content type belong to the entry, so to
        change them is to write another entry of the same address: with a reference of its own, as a copy (rules 4, 5
        and 13), by a `set_if` over exactly what was read. If anything came in between, the flow releases that reference
        and starts over with what is there then. So it does where the token moved on, and after a lost reply, but there
        the reference stays until its token is processed. It never follows the branch. While something is sealed, and
        the entry lies deeper than the current token, nothing is changed, and the answer is conflict. (A copy onto
        itself would bring back what somebody has replaced or deleted since.) *Shown by* `ChangesBlindly`,
        `ChangesWhileSealed`, `ChangesUnderNoReference`.
        """
        for _ in range(ATTEMPTS):
            record: Branch | None = yield ("open", ("b", branch))
            if record is None:
                return "404"
            there: Source | None = yield from self.look(record, path)
            again = yield ("open", ("b", branch))
            if again is None or again[:3] != record[:3]:
                continue
            if there is None:
                return "404"
            if there.token != record.token and record.sealed and self.refuses_while_sealed:
                return "conflict"
            ref = None
            if there.token is None:
                if (yield ("get", ("x", there.head))):
                    return "410"
            elif self.changes_under_a_reference:
                ref = Ref(record.token, path, self.fresh())
                outcome = yield from self.hold(there.address, ref, own=False)
                if outcome == "missing" and (yield from self.committed_source(there, branch, path)):
                    ref = None
                elif outcome != "held":
                    continue
            replaced = Entry(there.address, there.id) if there.token == record.token else None
            changed = Entry(there.address, ref.id if ref else None)
            done = yield from self.write_change(("e", record.token, path), replaced, changed)
            again = yield ("open", ("b", branch))
            if done is True and again is not None and again.token == record.token:
                yield from self.released(record.token, path, replaced)
                return "ok"
            if done is False and ref is not None:
                yield from self.release(there.address, ref)  # it was never placed with that one
        return "busy"

    changes_under_a_reference = True

    def write_change(self, key: tuple, replaced: Entry | None, changed: Entry) -> Steps:
        return (yield ("cas", key, replaced, changed, ONCE))
