"""Create, reset and delete branches: whole-branch fates, each decided by one `set_if` on the branch record (rule 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from refstore import keys
from refstore.branches import Branches, Seen
from refstore.context import Context
from refstore.errors import AlreadyExists, BranchNotFound, Conflict, CorruptRecord, Gone, NotFound, OutcomeUnknown, RepositoryNotFound
from refstore.flows import refs
from refstore.ids import BranchName, CommitId, Token
from refstore.kv.base import ABSENT
from refstore.markers import BRANCH_DELETED, RESET, Markers
from refstore.records import Branch, BranchRecord, RepositoryRecord, Retired, TokenRecord, decode, maybe
from refstore.staging import Staging

ATTEMPTS: Final = 64
"""How often a lost race over one branch record is run again; each loss means that another operation got through."""


def create(ctx: Context, name: BranchName, source: str, *, hidden: bool = False) -> CommitId:
    """Make a branch at a ref's commit. Raises AlreadyExists, NotFound, Gone (the commit is marked), RepositoryNotFound.

    The repository and the mark are looked at before and again behind the record; a branch made too late takes itself back. Trouble of
    a store behind the record does not take it back: that is as a crash there, and others may use the branch by then.
    """
    check_open(ctx)
    ref = refs.resolve(ctx, source)
    refs.check_mark(ctx, ref.commit)
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    markers = Markers(ctx.kv, ctx.repo, ctx.clock)
    staging = Staging(ctx.kv, ctx.repo)
    tried: set[Token] = set()
    for _ in range(ATTEMPTS):
        token = staging.new_token(name, ctx.ids, ctx.clock)
        tried.add(token)
        with suppress(OutcomeUnknown):  # once more then, with a token that is new again
            raw = branches.create(name, ref.commit, token, hidden=hidden)
            if raw is not None:
                break
        raw = branches.raw(name)
        there = branches.decode(raw)
        if isinstance(raw, bytes) and isinstance(there, Branch) and there.id in tried:
            break  # ours after all: the reply was lost, and others may have changed the record since
        if _were_live(ctx, tried, there):
            return ref.commit  # the same, and deleted since: it is not made twice
        if isinstance(there, Branch):
            raise AlreadyExists(f"branch already exists: {name!r}")
        markers.publish(branches, name)  # a deleted branch of that name may still stand closed
    else:
        raise branches.contention(name)
    try:
        check_open(ctx)
        refs.check_mark(ctx, ref.commit)
    except (Gone, NotFound):
        _delete(ctx, branches, name, branches.seen(name, raw))
        raise
    return ref.commit


def _were_live(ctx: Context, tokens: set[Token], there: BranchRecord | None) -> bool:
    """Whether one of the tokens was current on a branch that is gone: it is retired there still, or in a marker, or was processed."""
    if there is not None and any(retired.token in tokens for retired in there.retired):
        return True
    # in this order: what a commit took is in its marker first, then has one of its own, then was processed
    if any(not tokens.isdisjoint(taken.tokens) for _, taken in Markers(ctx.kv, ctx.repo, ctx.clock).committed()):
        return True
    wanted = sorted(tokens)
    if any(value is not ABSENT for value in ctx.kv.get_many([keys.deleted_token(ctx.repo, token) for token in wanted])):
        return True
    registered = ctx.kv.get_many([keys.token(ctx.repo, token) for token in wanted])
    return any(value is not ABSENT and decode(value, TokenRecord).processed_ms for value in registered)


def reset(ctx: Context, name: BranchName) -> None:
    """Throw away everything uncommitted on a branch. One step, however much there is: the reaper does the work."""
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    staging = Staging(ctx.kv, ctx.repo)
    first = seen = branches.open(name)
    for _ in range(ATTEMPTS):
        record = seen.record
        token = staging.new_token(name, ctx.ids, ctx.clock)  # a new one each time, as in `Branches.seal`
        retired = (*record.retired, *(Retired(gone, RESET) for gone in (*record.sealed, record.token)))
        if branches.change(name, seen, token=token, sealed=(), retired=retired):
            break
        seen = branches.open(name)
        if not set(first.record.live) & set(seen.record.live):
            break  # what was staged when we were called is gone already: by our own write, or another's
    else:
        raise branches.contention(name)
    Markers(ctx.kv, ctx.repo, ctx.clock).publish(branches, name)


def delete(ctx: Context, name: BranchName, *, default: BranchName) -> None:
    """Delete a branch and everything uncommitted on it. One step, however much there is. Raises BranchNotFound, Conflict."""
    check_may_go(ctx, name, default=default)
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    _delete(ctx, branches, name, branches.open(name))


def check_may_go(ctx: Context, name: BranchName, *, default: BranchName) -> None:
    """A repository keeps its default branch. Raises Conflict."""
    if name == default:
        raise Conflict(f"{name!r} is the default branch of {ctx.name!r} and cannot be deleted")


def get(ctx: Context, name: BranchName) -> Branch:
    """Raises BranchNotFound."""
    return Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).open(name).record


def scan(ctx: Context, *, prefix: str, after: str) -> Iterator[tuple[BranchName, Branch]]:
    """The open branches, in order of name."""
    return Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).scan_open(prefix=prefix, after=after)


def close_all(ctx: Context, cause: str, *, on_corrupt: Callable[[BranchName, CorruptRecord], None] | None = None) -> int:
    """Close every branch that is open, and publish: what the deletion of a repository does, and the reaper after it. How many.

    A branch record that cannot be read is told, and keeps no other open; without `on_corrupt` it raises.
    """
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    closed = 0
    for name, raw in [(BranchName(name), raw) for name, raw in ctx.kv.scan_all(keys.branches(ctx.repo))]:
        try:
            record = branches.decode(raw)
        except CorruptRecord as error:
            if on_corrupt is None:
                raise
            on_corrupt(name, error)
            continue
        if isinstance(record, Branch):
            _delete(ctx, branches, name, Seen(raw, record), cause=cause)
            closed += 1
        else:
            Markers(ctx.kv, ctx.repo, ctx.clock).publish(branches, name)
    return closed


def check_open(ctx: Context) -> None:
    """Raises RepositoryNotFound if the repository was deleted, or made again under its name, meanwhile."""
    open_record(ctx)


def open_record(ctx: Context) -> tuple[bytes, RepositoryRecord]:
    """The repository's record, as bytes to compare with, and what they mean. Raises RepositoryNotFound, as `check_open`."""
    raw = ctx.kv.get(keys.repository(ctx.name))
    record = maybe(raw, RepositoryRecord)
    if raw is ABSENT or record is None or record.id != ctx.repo or record.closed_ms:
        raise RepositoryNotFound(f"repository {ctx.name!r} does not exist; list the repositories to see which do")
    return raw, record


def _delete(ctx: Context, branches: Branches, name: BranchName, seen: Seen, *, cause: str = BRANCH_DELETED) -> None:
    branch_id = seen.record.id
    for _ in range(ATTEMPTS):
        if branches.close(name, seen, cause):
            break
        try:
            seen = branches.open(name)
        except BranchNotFound:
            break  # closed already: by our own write, or another's
        if seen.record.id != branch_id:
            return  # the name was given to another branch meanwhile: ours is gone
    else:
        raise branches.contention(name)
    Markers(ctx.kv, ctx.repo, ctx.clock).publish(branches, name)
