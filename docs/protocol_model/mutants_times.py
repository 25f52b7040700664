"""The times of rule 8 dropped: from when an address may be deleted is decided in one place."""

from __future__ import annotations

from .offline import Proto
from .store import EMPTY, ISSUED, Steps


class LeavesTheSkewOut(Proto):
    """Rule 8 dropped: an issued address goes when it has expired by the deleter's clock, however far that is ahead."""

    def may_delete(self, held: object) -> Steps:
        return held == ISSUED or (yield from super().may_delete(held))


class HasItsOwnGrace(Proto):
    """Rule 8 dropped: hard deletion goes by a grace window of its own, shorter than the repository's."""

    def finish(self, address: str) -> Steps:
        yield ("cas", ("r", address), EMPTY, ("dead",))
        yield from super().finish(address)


class ReleasesAtOnce(Proto):
    """Rule 8 dropped: who processes a token deletes at once, as if there were no grace window."""

    def release(self, address: str, ref: object, *, whole_token: bool = False) -> Steps:
        self.zero_grace = whole_token
        yield from super().release(address, ref, whole_token=whole_token)

    def may_delete(self, held: object) -> Steps:
        del held
        return True
        yield
