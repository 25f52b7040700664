"""Ref expressions: a branch (with its uncommitted changes), or a commit said in one of several ways.

main            the branch, staged changes included
main@           the branch's last commit
main~2          that many first parents up
v1^, v1^2       its first parent, its second one (of a merge)
v1.0            a tag
6e40c9…         a commit id, or a prefix of at least 6 digits that only one commit has
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import repeat
from typing import Final, NamedTuple

from refstore import keys
from refstore.branches import Branches
from refstore.commits import graph
from refstore.context import Context
from refstore.errors import BranchNotFound, CommitNotFound, Corrupt, Gone, InvalidName, NotFound
from refstore.ids import BranchName, CommitId, Path, branch_name, tag_name
from refstore.kv.base import ABSENT
from refstore.markers import Markers
from refstore.records import Commit, GcFlag, Mark, Tag, decode, maybe

PREFIX_DIGITS_MIN: Final = 6
PREFIX_MATCHES_MAX: Final = 16
"""Commit records that a prefix is compared with; those of commits that were given up do not count."""

PREFIXES_SHOWN: Final = 3

_EXPRESSION = re.compile(r"(?P<base>[^~^@]+)(?P<at>@?)(?P<steps>(?:[~^]\d{0,9})*)")
_STEP = re.compile(r"([~^])(\d*)")
_HEX = re.compile(rf"[0-9a-f]{{{PREFIX_DIGITS_MIN},64}}")


class Ref(NamedTuple):
    """What an expression names."""

    text: str
    branch: BranchName | None
    """Set when the branch itself is meant, staged changes included."""
    commit: CommitId
    """The commit; for a branch, its head when it was read."""
    from_history: bool
    """Whether the commit was named otherwise than as a branch's head, so that it may be marked (rule 13)."""


def resolve(ctx: Context, text: str) -> Ref:
    """Raises NotFound, InvalidName."""
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise InvalidName(f"{text[:80]!r} is not a ref; use a branch, a tag, a commit id, or one of these with @ or ~N behind")
    base, at, steps = match["base"], match["at"], match["steps"]
    branch, commit = _base(ctx, base)
    named = commit
    for kind, digits in _STEP.findall(steps):
        number = int(digits) if digits else 1
        for which in repeat(1, number) if kind == "~" else repeat(number, min(number, 1)):
            parents = get_commit(ctx, commit).parents
            if len(parents) < which:
                raise CommitNotFound(f"{text[:80]!r} goes further back than the history of {base!r} does")
            commit = parents[which - 1]
    staged = branch if branch is not None and not at and not steps else None
    return Ref(text, staged, commit, from_history=branch is None or commit != named)


def get_commit(ctx: Context, commit: CommitId) -> Commit:
    """Raises CommitNotFound."""
    found = maybe(ctx.kv.get(keys.commit(ctx.repo, commit)), Commit)
    if found is None:
        raise CommitNotFound(f"commit {commit} does not exist")
    return found


def head_commit(ctx: Context, commit: CommitId) -> Commit:
    """A commit that a branch names and that must therefore be there. Raises Corrupt."""
    try:
        return get_commit(ctx, commit)
    except CommitNotFound as error:
        raise Corrupt(
            f"a branch's head {commit} has no commit record; restore the KV from a backup before anything is collected"
        ) from error


def check_mark(ctx: Context, commit: CommitId, paths: Sequence[Path] | None = None) -> None:
    """Nothing may be copied from a marked commit, and no branch made at it (rule 13). Raises Gone.

    `paths`: all that is wanted of it; None: the commit itself, for which a mark on a part of it is enough.
    """
    mark = maybe(ctx.kv.get(keys.mark(ctx.repo, commit)), Mark)
    if mark is not None and (paths is None or mark.covers(paths)):
        on = maybe(ctx.kv.get(keys.gc_flag(ctx.repo)), GcFlag) if not mark.sweeping_ms else None
        if on is not None and on.mark_id == mark.mark_id:
            raise Gone(
                f"commit {commit} has expired, and the run {mark.mark_id} that is on has yet to find whether anything of it goes;"
                " if nothing does, the same call works when that run has finished"
            )
        raise marked(commit, mark)


def check_swept(ctx: Context, commit: CommitId, path: Path) -> None:
    """Raises Gone if what the commit alone named there was deleted, or is being."""
    mark = maybe(ctx.kv.get(keys.mark(ctx.repo, commit)), Mark)
    if mark is not None and mark.earlier and not mark.sweeping_ms:
        mark = decode(mark.earlier, Mark)  # a part was swept before the rest was marked
    if mark is not None and mark.sweeping_ms and mark.covers((path,)):
        raise marked(commit, mark)


def marked(commit: CommitId, mark: Mark) -> Gone:
    by = f"mark {mark.mark_id or 'without an id'}"
    if mark.prefixes:
        by += ", paths " + ", ".join(f"{prefix}*" for prefix in mark.prefixes[:PREFIXES_SHOWN])
    if mark.swept_ms:
        return Gone(f"commit {commit} had expired and its data was deleted on {_when(mark.swept_ms)} by {by}; only a backup has it")
    if mark.tagged_ms:
        return Gone(
            f"commit {commit} has expired and its data was tagged on {_when(mark.tagged_ms)} for the bucket to delete, by {by};"
            " only a backup will have it"
        )
    if mark.sweeping_ms:
        return Gone(f"commit {commit} has expired and its data is being deleted by {by}; only a backup will have it")
    return Gone(
        f"commit {commit} has expired and its data will be deleted from {_when(mark.deletes_at_ms)} on ({by});"
        " until it is swept an operator can unmark it"
    )


def is_ancestor(ctx: Context, older: CommitId, newer: CommitId) -> bool:
    return graph.is_ancestor(lambda commit: get_commit(ctx, commit), older, newer)


def _base(ctx: Context, base: str) -> tuple[BranchName | None, CommitId]:
    try:
        branch = branch_name(base)
        return branch, Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).open(branch).record.head
    except (InvalidName, BranchNotFound):
        pass
    try:
        found = ctx.kv.get(keys.tag(ctx.repo, tag_name(base)))
        if found is not ABSENT:
            return None, decode(found, Tag).commit
    except InvalidName:
        pass
    if _HEX.fullmatch(base):
        markers = Markers(ctx.kv, ctx.repo, ctx.clock)
        found_ids = [CommitId(name) for name, _ in ctx.kv.scan(keys.commits(ctx.repo), prefix=base, limit=PREFIX_MATCHES_MAX)]
        matches = [commit for commit in found_ids if markers.landed(commit)]
        if len(matches) == 1:
            return None, matches[0]
        if matches:
            raise InvalidName(f"more than one commit starts with {base!r}; give more digits")
    raise NotFound(f"{base[:80]!r} is neither a branch, a tag nor a commit of {ctx.name!r}")


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
