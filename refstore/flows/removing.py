"""Delete, and reset of paths and prefixes.

Delete writes a tombstone under the current token, as any placement does. Reset takes the staged change itself away, so that
what is committed shows again; it works only under the current token, and is a conflict while tokens are sealed, because
what a commit under way has read cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from refstore import ids, keys
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import Conflict, Contention
from refstore.flows.placing import DELETED, Placement, check_distinct, place, replaced
from refstore.flows.reading import Resolved, resolve_many, stream, while_still
from refstore.flows.refs import Ref
from refstore.ids import BranchName, CommitId, Path, Token
from refstore.kv.base import ABSENT, SetIf
from refstore.markers import RESET
from refstore.records import Branch, Entry, unreferenced
from refstore.references import References
from refstore.staging import TOMBSTONE, Staging

ATTEMPTS: Final = 16
"""How often a deletion that depends on what it read is run again, because the branch or the path changed."""

BATCH: Final = 1000
"""Paths that share their round trips in deletions by prefix."""


def delete_many(ctx: Context, branch: BranchName, paths: Sequence[str]) -> None:
    """Delete paths, whether they are there or not. What they named under the current token is released at once (rule 6)."""
    token = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).open(branch).record.token
    placements = [Placement(ids.object_path(path), None, referenced=False) for path in paths]
    check_distinct(placements)
    if placements:
        place(ctx, branch, token, placements, on_empty=False)


def delete_prefix(ctx: Context, branch: BranchName, prefix: str) -> int:
    """Delete every path that starts with `prefix`, page by page; how many there were. What is added meanwhile may stay."""
    ids.path_prefix(prefix)
    count, after = 0, ""
    while True:
        page = while_still(ctx, branch, lambda record, start=after: _page_of_paths(ctx, record, prefix, start))
        if page:
            delete_many(ctx, branch, page)
            count += len(page)
        if len(page) < BATCH:
            return count
        after = page[-1]


def delete_copied(ctx: Context, branch: BranchName, copied: dict[Path, Entry]) -> None:
    """Delete paths if they still are what was copied from them; what somebody wrote there meanwhile stays.

    So does the same address put there again: by a move back, which has let go of what was copied to.
    """
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    references = References(ctx.kv, ctx.repo, ctx.clock)
    ref = Ref(branch, branch, CommitId(""), from_history=False)
    owed: set[Path] = set()
    for _ in range(ATTEMPTS):
        token = branches.open(branch).record.token
        paths = sorted(copied)
        raws = ctx.kv.get_many([keys.entry(ctx.repo, token, path) for path in paths])
        now = resolve_many(ctx, ref, paths)
        left = [
            (path, raw)
            for path, raw in zip(paths, raws, strict=True)
            # a tombstone that fell under a token that moved on may hide what a commit under way has read before: it is owed again
            if (path in now and _still(now[path], copied[path])) or (path in owed and path not in now and raw is ABSENT)
        ]
        if not left:
            return
        # over exactly what was read: the staged entry itself, or nothing where the source lies deeper
        *won, raw_branch = ctx.kv.execute(
            [*(SetIf(keys.entry(ctx.repo, token, path), raw, TOMBSTONE) for path, raw in left), branches.get_op(branch)]
        )
        if branches.seen(branch, raw_branch).record.token == token:
            gone = [(path, raw) for (path, raw), ok in zip(left, won, strict=True) if ok]
            references.release(replaced(token, gone, DELETED), grace_seconds=ctx.grace_seconds)
            copied = {path: copied[path] for (path, _), ok in zip(left, won, strict=True) if not ok}
            owed = set()
        else:
            owed |= {path for (path, _), ok in zip(left, won, strict=True) if ok}
    raise branches.contention(branch)


def reset_paths(ctx: Context, branch: BranchName, *, path: str | None = None, prefix: str | None = None) -> int:
    """Undo the staged changes of one path, or of all paths with a prefix; how many there were.

    Raises Conflict while a commit is under way or was left unfinished: its sealed changes are no longer to be picked apart.
    """
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    staging = Staging(ctx.kv, ctx.repo)
    seen = branches.open(branch)
    if seen.record.sealed:
        raise Conflict(f"branch {branch!r} has an unfinished commit; commit or reset the whole branch first")
    token = seen.record.token
    if path is not None:
        name = ids.object_path(path)
        value = ctx.kv.get(keys.entry(ctx.repo, token, name))
        return 0 if value is ABSENT else reset_batch(ctx, branches, branch, token, [(name, value)])
    count = 0
    batch: list[tuple[Path, bytes]] = []
    for name, value in staging.scan(token, prefix=ids.path_prefix(prefix or "")):
        batch.append((Path(name), value))
        if len(batch) == BATCH:
            count += reset_batch(ctx, branches, branch, token, batch)
            batch = []
    return count + (reset_batch(ctx, branches, branch, token, batch) if batch else 0)


def reset_batch(ctx: Context, branches: Branches, branch: BranchName, token: Token, batch: Sequence[tuple[Path, bytes]]) -> int:
    """Take staged changes away as they were read; how many were. Raises Contention."""
    gone, stood_still = take_staged(ctx, branches, branch, token, batch, cause=RESET)
    if not stood_still:
        raise Contention(f"branch {branch!r} was committed or reset meanwhile; look at it, and reset again if need be")
    return len(gone)


def take_staged(
    ctx: Context, branches: Branches, branch: BranchName, token: Token, batch: Sequence[tuple[Path, bytes]], *, cause: str
) -> tuple[list[tuple[Path, bytes]], bool]:
    """Take staged changes away as they were read, then release what they named if the token stood still (rule 6).

    Which were, and whether it did. If not, they may be committed all the same: a commit may have read them before they went.
    """
    *won, raw = ctx.kv.execute(
        [*(SetIf(keys.entry(ctx.repo, token, path), value, ABSENT) for path, value in batch), branches.get_op(branch)]
    )
    gone = [(path, value) for (path, value), ok in zip(batch, won, strict=True) if ok]
    if branches.seen(branch, raw).record.token != token:
        return gone, False  # their references stay until the token is processed
    References(ctx.kv, ctx.repo, ctx.clock).release(replaced(token, gone, cause), grace_seconds=ctx.grace_seconds)
    return gone, True


def _still(now: Resolved, copied: Entry) -> bool:
    """Whether a path is the entry that was copied from it, which may have been committed since."""
    return now.entry == copied if now.token is not None else unreferenced(now.entry) == unreferenced(copied)


def _page_of_paths(ctx: Context, record: Branch, prefix: str, after: str) -> list[str]:
    return [path for path, _ in islice(stream(ctx, record, prefix, after, BATCH), BATCH)]
