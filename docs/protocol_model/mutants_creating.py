"""Rule 20 dropped, piece by piece: uploads and links that may only go where nothing is."""

from __future__ import annotations

from .offline import Proto
from .staging import Item, Source
from .store import Branch, Entry, Op, Steps


class PlacesAgain(Proto):
    """Rule 20 dropped: over a tombstone, which comes back, the write is made again after a lost reply, as any other
    is.
    """

    makes_all_again = True


class PlacesUnderTheSame(Proto):
    """Rule 20 dropped: after a lost reply it goes round under the reference that it had, which may have been
    released.
    """

    takes_another_reference = False


class PlacesBlindly(Proto):
    """Rule 20 dropped: it looks whether something is there, and then writes over whatever is."""

    def written_once(self, item: Item, token: str, old: object) -> Op:
        return ("set", ("e", token, item.path), super().written_once(item, token, old)[3])


class LooksAtTheCurrent(Proto):
    """Rule 20 dropped: what is sealed is not looked at, only the current token and the head."""

    def standing(self, branch: str, path: str) -> Steps:
        record = yield ("open", ("b", branch))
        return None if record is None else (yield from self.look(record._replace(sealed=()), path))


class LooksOnce(Proto):
    """Rule 20 dropped: what is not there is not looked for again under the branch as it is by then: it went from a
    token that was processed to a commit that had not been read.
    """

    def standing(self, branch: str, path: str) -> Steps:
        record = yield ("open", ("b", branch))
        return None if record is None else (yield from self.look(record, path))


class LooksAtSealedFirst(Proto):
    """Not a loss: in which order the live tokens are read, as long as the branch stood still. What is sealed does not
    change any more but by writers that have not been told ok, and write again under the current token.
    """

    def look(self, record: Branch, path: str) -> Steps:
        found = []
        for token in (*record.sealed, record.token):
            found.append((token, (yield ("get", ("e", token, path)))))  # noqa: PERF401  # a comprehension cannot yield
        for token, entry in reversed(found):
            if entry is not None:
                return Source(entry.address, token, entry.id, None) if isinstance(entry, Entry) else None
        commit = yield ("get", ("c", record.head))
        address = dict(commit.tree).get(path)
        return Source(address, None, None, record.head) if address else None


class PlacesUnderAnyToken(Proto):
    """Rule 20 dropped: it does not look whether the token is current still, behind its entry."""

    looks_at_the_token = False


class KnowsItsReferenceOnly(Proto):
    """Rule 20 dropped: its own landed entry is known by its reference, which is another one by then."""

    def is_own(self, there: Entry, item: Item) -> bool:
        return super().is_own(there, item) and item.ref is not None and there.id == item.ref.id


class LooksBeneathOnce(Proto):
    """Rule 20 dropped: over nothing, it trusts what it saw under a sealed token, where a writer that began before comes
    late, and hears ok from the commit.
    """

    looks_beneath = False


class ReplacesWhatCameSince(Proto):
    """Rule 20 dropped: it compares the path with what its caller read, and then writes over whatever lies under the
    token.
    """

    def may_replace(self, old: object, there: Source | None, token: str) -> bool:
        return there is not None or super().may_replace(old, there, token)

    def written_once(self, item: Item, token: str, old: object) -> Op:
        return ("set", ("e", token, item.path), super().written_once(item, token, old)[3])


class MatchesAnything(Proto):
    """Rule 20 dropped: it does not compare the path with what its caller read."""

    def may_be_placed(self, there: Source | None, expected: Source | None) -> bool:
        return there is not None or expected is None


class DeletesOnceOnly(Proto):
    """Rules 2 and 20 dropped: a conditional deletion whose tombstone fell under a token that moved on is not owed."""

    owes_tombstones = False


class DeletesWhileSealed(Proto):
    """Rule 20 dropped: a conditional deletion trusts what it saw under a sealed token."""

    refuses_while_sealed = False


class ReleasesWhatMoved(Proto):
    """Rules 6 and 20 dropped: what a conditional write replaced is released although the token moved on."""

    releases_only_if_current = False


class ChangesBlindly(Proto):
    """Rule 20 dropped: a change of what an entry says of its object is written over whatever is there."""

    def write_change(self, key: tuple, replaced: Entry | None, changed: Entry) -> Steps:
        del replaced
        yield ("swap", key, changed)
        return True


class ChangesWhileSealed(Proto):
    """Rule 20 dropped: a change trusts what it saw under a sealed token."""

    refuses_while_sealed = False


class ChangesUnderNoReference(Proto):
    """Rule 1 dropped: a changed entry has no reference of its own."""

    changes_under_a_reference = False
