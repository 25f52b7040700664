"""Create, reset and delete branches: whole-branch fates, each decided by one `set_if` on the branch record (rule 3)."""

from __future__ import annotations

from collections.abc import Callable

from refstore.audit import EntryDraft
from refstore.context import Context
from refstore.core.ids import BranchName, CommitId, Token
from refstore.errors import (
    AlreadyExists,
    BranchNotFound,
    Conflict,
    CorruptRecord,
    Gone,
    NotFound,
    RepositoryNotFound,
)
from refstore.kv.base import ABSENT
from refstore.kv.unknown_outcomes import UnknownOutcomes
from refstore.operations import multipart, refs
from refstore.records import keys
from refstore.records.branch_records import BranchRecord, RetiredToken, StoredBranch, TokenRecord
from refstore.records.encoding import decode, decode_optional
from refstore.records.repository_records import RepositoryRecord
from refstore.versioning.branches import ATTEMPTS, OpenBranch
from refstore.versioning.manifest import BranchCreated
from refstore.versioning.markers import BRANCH_DELETED_CAUSE, RESET_CAUSE


def create_branch(
    ctx: Context, name: BranchName, source: str, *, hidden: bool = False, lease_until_ms: int = 0
) -> CommitId:
    """Make a branch at a ref's commit. Raises AlreadyExists, NotFound, Gone (the commit is marked), RepositoryNotFound.

    The repository and the mark are checked before the record is written, and again after it; a branch that was made too
    late is deleted again. If a store fails after the record was written, the branch stays, as after a crash: others may
    use it by then. `lease_until_ms`: of a transaction's branch (rule 24).
    """
    open_record(ctx)
    ref = refs.resolve(ctx, source)
    refs.check_mark(ctx, ref.commit)
    branches = ctx.branches
    tried: set[Token] = set()
    unknown = UnknownOutcomes(ctx.clock)
    for _ in range(ATTEMPTS):
        token = ctx.staging.new_token(name, ctx.ids, ctx.clock)
        tried.add(token)
        with unknown.tolerate():  # try again then, with another new token
            raw = branches.create(name, ref.commit, token, hidden=hidden, lease_until_ms=lease_until_ms)
            if raw is not None:
                break
        raw = branches.read_raw(name)
        current = branches.decode(raw)
        if isinstance(raw, bytes) and isinstance(current, StoredBranch) and current.id in tried:
            break  # our write landed and its reply was lost; others may have changed the record since
        if _were_current(ctx, tried, current):
            return ref.commit  # our write landed, and the branch was deleted since: it is not made twice
        if isinstance(current, StoredBranch):
            raise AlreadyExists(f"branch already exists: {name!r}")
        ctx.markers.publish(branches, name)  # the closed record of a deleted branch may still have that name
    else:
        raise branches.contention(name)
    try:
        open_record(ctx)
        refs.check_mark(ctx, ref.commit)
    except (Gone, NotFound):
        _close_branch(ctx, name, branches.parse_open(name, raw))
        raise
    created = branches.parse_open(name, raw).record
    entry = BranchCreated(name, created.id, ref.commit, created.created_ms, hidden, lease_until_ms)
    ctx.manifest.add_landed(entry, f"branch {name!r} was created")
    return ref.commit


def _were_current(ctx: Context, tokens: set[Token], current: BranchRecord | None) -> bool:
    """Return whether one of the tokens was current on a branch that was deleted since.

    Such a token is retired on the closed record, or in a marker, or was processed.
    """
    if current is not None and any(retired.token in tokens for retired in current.retired_tokens):
        return True
    # in this order: a token that a commit took is in the commit's marker, then has its own marker, then is processed
    if any(not tokens.isdisjoint(marker.tokens) for _, marker in ctx.markers.scan_committed()):
        return True
    sorted_tokens = sorted(tokens)
    if any(
        value is not ABSENT
        for value in ctx.kv.get_many([keys.deleted_token(ctx.repo, token) for token in sorted_tokens])
    ):
        return True
    registered = ctx.kv.get_many([keys.token(ctx.repo, token) for token in sorted_tokens])
    return any(value is not ABSENT and decode(value, TokenRecord).processed_ms for value in registered)


def reset_branch(ctx: Context, name: BranchName) -> None:
    """Discard all uncommitted changes of a branch, in one step for any number of them: the reaper does the work."""
    branches = ctx.branches
    first = open_branch = branches.read_open(name)
    for _ in range(ATTEMPTS):
        record = open_branch.record
        token = ctx.staging.new_token(name, ctx.ids, ctx.clock)  # a new one each time, as in `Branches.seal`
        retired = (
            *record.retired_tokens,
            *(RetiredToken(retired_token, RESET_CAUSE) for retired_token in (*record.sealed_tokens, record.token)),
        )
        if branches.change(name, open_branch, token=token, sealed_tokens=(), retired_tokens=retired):
            break
        open_branch = branches.read_open(name)
        if not set(first.record.live_tokens) & set(open_branch.record.live_tokens):
            break  # what was staged at the call was discarded already: by our own write, or another's
    else:
        raise branches.contention(name)
    ctx.markers.publish(branches, name)
    multipart.abort_all(ctx, name)


def delete_branch(ctx: Context, name: BranchName, *, default: BranchName) -> None:
    """Delete a branch and all its uncommitted changes, in one step for any number of them.

    Raises BranchNotFound, Conflict.
    """
    check_deletable(ctx, name, default=default)
    opened = ctx.branches.read_open(name)
    before = {"commit": opened.record.head, "created_ms": opened.record.created_ms}
    with ctx.audit.act("branch.delete", repository=ctx.name, target=name, before=before) as draft:
        _close_branch(ctx, name, opened, draft)


def check_deletable(ctx: Context, name: BranchName, *, default: BranchName) -> None:
    """Raise Conflict for the default branch, which a repository keeps."""
    if name == default:
        raise Conflict(f"{name!r} is the default branch of {ctx.name!r} and cannot be deleted")


def close_all(
    ctx: Context, cause: str, *, on_corrupt: Callable[[BranchName, CorruptRecord], None] | None = None
) -> int:
    """Close every open branch, publish its markers, and return how many there were.

    The deletion of a repository does this, and the reaper again after it. A branch record that cannot be read goes to
    `on_corrupt`, and the other branches are closed; without `on_corrupt` it raises.
    """
    branches = ctx.branches
    closed = 0
    for name, raw in [(BranchName(name), raw) for name, raw in ctx.kv.scan_all(keys.branches(ctx.repo))]:
        try:
            record = branches.decode(raw)
        except CorruptRecord as error:
            if on_corrupt is None:
                raise
            on_corrupt(name, error)
            continue
        if isinstance(record, StoredBranch):
            _close_branch(ctx, name, OpenBranch(raw, record), cause=cause)
            closed += 1
        else:
            ctx.markers.publish(branches, name)
    return closed


def open_record(ctx: Context) -> tuple[bytes, RepositoryRecord]:
    """Return the repository's record: its bytes, to compare with, and what they mean. Raises RepositoryNotFound if it
    was deleted, or made again under its name, meanwhile.
    """
    raw = ctx.kv.get(keys.repository(ctx.name))
    record = decode_optional(raw, RepositoryRecord)
    if raw is ABSENT or record is None or record.id != ctx.repo or record.closed_ms:
        raise RepositoryNotFound(f"repository {ctx.name!r} does not exist; list the repositories to see which do")
    return raw, record


def _close_branch(
    ctx: Context,
    name: BranchName,
    open_branch: OpenBranch,
    draft: EntryDraft | None = None,
    *,
    cause: str = BRANCH_DELETED_CAUSE,
) -> None:
    branches = ctx.branches
    branch_id = open_branch.record.id
    for _ in range(ATTEMPTS):
        if branches.close(name, open_branch, cause):
            if draft is not None:
                draft.landed = True
            break
        try:
            open_branch = branches.read_open(name)
        except BranchNotFound:
            break  # it is closed already: by our own write, or another's
        if open_branch.record.id != branch_id:
            return  # our branch was deleted, and another one was made under its name meanwhile
    else:
        raise branches.contention(name)
    ctx.markers.publish(branches, name)
    multipart.abort_all(ctx, name)
