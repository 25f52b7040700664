"""Uploads, links and deletions that may only take the place of the entry that their caller read (rule 20): of all that
read the same entry one wins, what somebody else wrote since stays.

The entry is known by its id as long as it is staged, and by its address once a commit took it. The write expects
exactly what lies under the current token: that entry, or nothing where the entry lies deeper. Nothing comes back, so
the write is made once, as in `creating.py`.
"""

from __future__ import annotations

from .calls import Do
from .creating import Creating
from .staging import ATTEMPTS, Source
from .store import ONCE, TOMB, Branch, Entry, Steps


class Replacing(Creating):
    def upload_if_match(self, branch: str, item: tuple[str, str], expected: str) -> Steps:
        """`expected`: the address of the entry that the caller reads first, and whose place it wants to take."""
        return (yield from self.while_there(branch, item[0], expected, ("uploading_if_match", branch, item)))

    def link_if_match(self, branch: str, path: str, address: str, expected: str) -> Steps:
        return (yield from self.while_there(branch, path, expected, ("linking_if_match", branch, path, address)))

    def delete_if_match(self, branch: str, path: str, expected: str) -> Steps:
        return (yield from self.while_there(branch, path, expected, ("deleting_if_match", branch, path)))

    def while_there(self, branch: str, path: str, expected: str, then: tuple) -> Steps:
        source = yield from self.resolve(branch, path)
        return Do(((*then, source),)) if source is not None and source.address == expected else "changed"

    def uploading_if_match(self, branch: str, wanted: tuple[str, str], expected: Source) -> Steps:
        return (yield from self.uploading_conditionally(branch, wanted, expected))

    def linking_if_match(self, branch: str, path: str, address: str, expected: Source) -> Steps:
        return (yield from self.linking_conditionally(branch, path, address, expected))

    def deleting_if_match(self, branch: str, path: str, expected: Source) -> Steps:
        """Rule 2, with a `cas` in place of the swap: a tombstone that fell under a token that moved on, or whose reply
        was lost, is owed under the token that is current then.

        Tombstones have no ids, so none could be taken back (see `still_beneath`): where the entry lies deeper while
        something is sealed, nothing is deleted.
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
