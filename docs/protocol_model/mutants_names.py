"""Rule 19 dropped, piece by piece: a branch and a tag do not share a name."""

# ruff: noqa: ARG002  # an override keeps the arguments of what it drops

from __future__ import annotations

from .offline import Proto
from .store import Branch, Steps, Tag


class BranchesLookFirst(Proto):
    """Rule 19 dropped: who creates a branch looks for a tag before it reserves the name."""

    def create_branch(self, branch: str, source: str) -> Steps:
        if (yield ("get", ("tag", branch))):
            return "409"
        return (yield from super().create_branch(branch, source))

    def is_tagged(self, name: str) -> Steps:
        return False
        yield


class TagsLookFirst(Proto):
    """Rule 19 dropped: who creates a tag looks for a branch before it, and not behind it."""

    def tag_may_stay(self, tag: str, commit: str) -> Steps:
        return "410" if (yield ("get", ("x", commit))) else "ok"


class LeavesReservations(Proto):
    """Rule 19 dropped: a reserved name counts as free, and its branch may be opened."""

    def has_branch(self, name: str) -> Steps:
        return isinstance((yield ("get", ("b", name))), Branch)


class KeepsRefusedTags(Proto):
    """Rule 19 dropped: a tag whose name a branch has stays, and its creator is told no."""

    def create_tag(self, tag: str, commit: str) -> Steps:
        if not (yield ("cas", ("tag", tag), None, Tag(commit, self.fresh()))):
            return "409"
        return (yield from self.tag_may_stay(tag, commit))
