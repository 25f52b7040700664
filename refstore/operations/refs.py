"""Ref expressions: a branch (with its uncommitted changes), or a commit in one of several notations.

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
from contextlib import suppress
from itertools import islice, repeat
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core.clock import format_utc
from refstore.core.ids import BranchName, CommitId, Path, branch_name, tag_name
from refstore.core.suggestions import find_nearest
from refstore.errors import (
    BranchNotFound,
    CommitNotFound,
    Corrupt,
    Gone,
    InvalidName,
    NotFound,
    TagNotFound,
    Unavailable,
)
from refstore.kv.base import ABSENT
from refstore.records import keys
from refstore.records.branch_records import StoredTag
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode, decode_optional
from refstore.records.mark_records import GcFlag, StoredMark

PREFIX_DIGITS_MIN: Final = 6
PREFIX_MATCHES_MAX: Final = 16
"""How many commit records with the prefix are read; those of commits that never landed do not count as matches."""

PREFIXES_SHOWN: Final = 3

STEPS_MAX: Final = 1000
"""The limit for one expression. Each step is a read of the KV, in a thread that other requests of a service
wait for.
"""

_EXPRESSION = re.compile(r"(?P<base>[^~^@]+)(?P<at>@?)(?P<steps>(?:[~^]\d{0,9})*)")
_STEP = re.compile(r"([~^])(\d*)")
_HEX = re.compile(rf"[0-9a-f]{{{PREFIX_DIGITS_MIN},64}}")


class ResolvedRef(NamedTuple):
    """The commit that an expression names, or the branch itself."""

    text: str
    branch: BranchName | None
    """The branch, where the ref means it with its staged changes; else None."""
    commit: CommitId
    """The commit; for a branch, its head when it was read."""
    is_pinned_to_commit: bool
    """Whether the expression names the commit otherwise than as a branch's head, so that it may be marked (rule 13)."""

    @classmethod
    def of_branch(cls, branch: BranchName, head: CommitId | None = None) -> ResolvedRef:
        """A ref to the branch with its staged changes; without `head` it serves only to read the branch itself."""
        return cls(branch, branch, head or CommitId(""), is_pinned_to_commit=False)


def resolve(ctx: Context, text: str) -> ResolvedRef:
    """Resolve an expression. Raises NotFound, InvalidName."""
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise InvalidName(
            f"{text[:80]!r} is not a ref; use a branch, a tag, a commit id, or one of these followed by @ or ~N"
        )
    base, at = match["base"], match["at"]
    steps = [(kind, int(digits) if digits else 1) for kind, digits in _STEP.findall(match["steps"])]
    if sum(number if kind == "~" else 1 for kind, number in steps) > STEPS_MAX:
        raise InvalidName(
            f"{text[:80]!r} goes more than {STEPS_MAX:,} steps back; give the commit's id, which a log shows"
        )
    branch, commit = _resolve_base(ctx, base)
    base_commit = commit
    for kind, number in steps:
        for which in repeat(1, number) if kind == "~" else repeat(number, min(number, 1)):
            parents = get_commit(ctx, commit).parents
            if len(parents) < which:
                raise CommitNotFound(f"{text[:80]!r} goes further back than the history of {base!r} does")
            commit = parents[which - 1]
    staged = branch if branch is not None and not at and not steps else None
    return ResolvedRef(text, staged, commit, is_pinned_to_commit=branch is None or commit != base_commit)


def get_commit(ctx: Context, commit: CommitId) -> StoredCommit:
    """Return a commit's record. Raises CommitNotFound."""
    record = decode_optional(ctx.kv.get(keys.commit(ctx.repo, commit)), StoredCommit)
    if record is None:
        raise CommitNotFound(f"commit {commit} does not exist")
    return record


def head_commit(ctx: Context, commit: CommitId) -> StoredCommit:
    """Return the record of a branch's head, which must exist. Raises Corrupt."""
    try:
        return get_commit(ctx, commit)
    except CommitNotFound as error:
        raise Corrupt(
            f"a branch's head {commit} has no commit record; restore the KV from a backup before anything is collected"
        ) from error


def check_mark(ctx: Context, commit: CommitId, paths: Sequence[Path] | None = None) -> None:
    """Raise Gone for a marked commit: what is copied from it, or branched at it, its sweep would delete (rule 13).

    `paths`: the only paths that the caller uses. None: the whole commit, so that a mark on a part of it counts.
    """
    mark = decode_optional(ctx.kv.get(keys.mark(ctx.repo, commit)), StoredMark)
    if mark is not None and (paths is None or mark.covers(paths)):
        on = decode_optional(ctx.kv.get(keys.gc_flag(ctx.repo)), GcFlag) if not mark.sweeping_ms else None
        if on is not None and on.mark_id == mark.mark_id:
            raise Gone(
                f"commit {commit} has expired, and the run {mark.mark_id} that is on has yet to find whether anything "
                "of it goes; if nothing does, the same call works when that run has finished"
            )
        raise marked_error(commit, mark)


def swept_mark(ctx: Context, commit: CommitId, path: Path) -> StoredMark | None:
    """Return the mark whose sweep deletes, or deleted, what the commit alone named at the path; None if none does."""
    mark = decode_optional(ctx.kv.get(keys.mark(ctx.repo, commit)), StoredMark)
    if mark is not None and mark.earlier_marks and not mark.sweeping_ms:
        mark = decode(mark.earlier_marks, StoredMark)  # a part was swept before the rest was marked
    return mark if mark is not None and mark.sweeping_ms and mark.covers((path,)) else None


def marked_error(commit: CommitId, mark: StoredMark) -> Gone:
    by = f"mark {mark.mark_id}"
    if mark.prefixes:
        by += ", paths " + ", ".join(f"{prefix}*" for prefix in mark.prefixes[:PREFIXES_SHOWN])
    if mark.swept_ms:
        return Gone(
            f"commit {commit} had expired and the data that only expired commits named was deleted on "
            f"{format_utc(mark.swept_ms)} by {by}; only a backup has it"
        )
    if mark.tagged_ms:
        return Gone(
            f"commit {commit} has expired and the data that only expired commits named was tagged on "
            f"{format_utc(mark.tagged_ms)} for the bucket to delete, by {by}; only a backup will have it"
        )
    if mark.sweeping_ms:
        return Gone(f"commit {commit} has expired and its data is being deleted by {by}; only a backup will have it")
    return Gone(
        f"commit {commit} has expired and its data will be deleted from {format_utc(mark.deletes_at_ms)} on ({by});"
        " until it is swept an operator can unmark it"
    )


def _resolve_base(ctx: Context, base: str) -> tuple[BranchName | None, CommitId]:
    try:
        branch = branch_name(base)
        return branch, ctx.branches.read_open(branch).record.head
    except (InvalidName, BranchNotFound):
        pass
    try:
        value = ctx.kv.get(keys.tag(ctx.repo, tag_name(base)))
        if value is not ABSENT:
            return None, decode(value, StoredTag).commit
    except InvalidName:
        pass
    if _HEX.fullmatch(base):
        markers = ctx.markers
        found_ids = [
            CommitId(name) for name, _ in ctx.kv.scan(keys.commits(ctx.repo), prefix=base, limit=PREFIX_MATCHES_MAX)
        ]
        matches = [commit for commit in found_ids if markers.has_landed(commit)]
        if len(matches) == 1:
            return None, matches[0]
        if matches:
            raise InvalidName(f"more than one commit starts with {base!r}; give more digits")
    raise NotFound(
        f"{base[:80]!r} is neither a branch, a tag nor a commit of {ctx.name!r}; list the branches and the tags to see "
        "what is there",
        unknown="" if _HEX.fullmatch(base) else base,  # no name is near an id
    )


NAMES_MAX: Final = 1000
"""How many branches, and how many tags, are compared with an unknown name."""


def suggest_name(ctx: Context, error: NotFound) -> None:
    """Add to an error that names an unknown branch, tag or ref which one may be meant: for a branch, only a branch."""
    unknown, error.unknown = error.unknown, ""  # once
    if not unknown:
        return
    with suppress(Unavailable, Corrupt):  # the error itself says more than that the search failed
        open_branches = ((name, record.is_hidden) for name, record in ctx.branches.scan_open())
        branches = [name for name, hidden in islice(open_branches, NAMES_MAX) if not hidden]
        tags = [name for name, _ in ctx.kv.scan(keys.tags(ctx.repo), limit=NAMES_MAX)]
        names = [*branches, *tags]
        head = str(error).partition("; ")[0]
        if unknown in names:  # it is of the other kind
            error.args = (f"{head}; {unknown!r} is a {'tag' if unknown in tags else 'branch'}",)
            return
        fitting = branches if isinstance(error, BranchNotFound) else tags if isinstance(error, TagNotFound) else names
        if close := find_nearest(unknown, fitting):
            error.args = (f"{head}; did you mean {close!r}?",)
