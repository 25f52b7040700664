"""Reading a ref: its head commit, overlaid by its sealed tokens, overlaid by its current one.

Entries leave a token's staging area once the token is processed, so what was read is only trusted if the branch record
stood still meanwhile (rule 12).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from refstore import keys, user_metadata
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import Contention, CorruptObject, ObjectNotFound
from refstore.flows import refs
from refstore.flows.hiding import check_hidden
from refstore.flows.refs import Ref, get_commit, head_commit
from refstore.ids import BranchName, CommitId, Path, Token, is_own
from refstore.kv.base import SCAN_LIMIT
from refstore.records import Branch, Entry, StagedRecord, Tombstone, decode_staged
from refstore.staging import Staging

ATTEMPTS: Final = 64
"""How often a read is done again because the branch moved; each time means that a commit or reset got through."""

PAGE_BYTES_MAX: Final = 4 << 20
"""Of the paths and the metadata on one page, which ends there although more items were asked for; one item is always given."""

_BEHIND: Final = "\U0010ffff"
"""Sorts behind whatever a path can go on with."""

T = TypeVar("T")


class Resolved(NamedTuple):
    """What a path is, and whence."""

    entry: Entry
    token: Token | None
    """The staging token that it is staged under; None: it is committed."""
    commit: CommitId | None = None
    """The commit whose tree names it, where it is committed: the one that was read, not what the branch has come to since."""


class Listed(NamedTuple):
    """One line of a listing: an object, or a common prefix (then `entry` is None)."""

    path: str
    entry: Entry | None


class Page(NamedTuple):
    results: tuple[Listed, ...]
    has_more: bool

    @property
    def next_after(self) -> str:
        return self.results[-1].path if self.results else ""


def resolve_many(ctx: Context, ref: Ref, paths: Sequence[Path]) -> dict[Path, Resolved]:
    """What the paths are; those that are not there are left out. Raises Gone: hidden by the rules, or tagged
    for the bucket to delete."""
    if ref.branch is None:
        check_hidden(ctx, ref, paths)
        return _committed(ctx, ref.commit, get_commit(ctx, ref.commit).metarange, paths)

    def read(branch: Branch, staged: dict[Path, tuple[StagedRecord, Token]]) -> dict[Path, Resolved]:
        found = {path: Resolved(record, token) for path, (record, token) in staged.items() if isinstance(record, Entry)}
        unstaged = [path for path in paths if path not in staged]
        if unstaged:
            found |= _committed(ctx, branch.head, head_commit(ctx, branch.head).metarange, unstaged)
        return found

    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    seen = branches.open(ref.branch)
    for _ in range(ATTEMPTS):
        asked = [(token, path) for token in seen.record.live for path in paths]
        values = ctx.kv.get_many([keys.entry(ctx.repo, token, path) for token, path in asked])
        # a call of its own: in one batch of Gets the KV chooses the order, and the branch could be read before its entries go
        again = branches.open(ref.branch)
        if _same(seen.record, again.record):
            staged: dict[Path, tuple[StagedRecord, Token]] = {}
            for (token, path), value in zip(asked, values, strict=True):
                if isinstance(value, bytes) and path not in staged:
                    staged[path] = (decode_staged(value), token)
            return read(seen.record, staged)
        seen = again
    raise branches.contention(ref.branch)


def resolve(ctx: Context, ref: Ref, path: Path) -> Resolved:
    """Raises ObjectNotFound."""
    found = resolve_many(ctx, ref, (path,)).get(path)
    if found is None:
        raise ObjectNotFound(f"{path!r} is not on {ref.text!r}")
    return found


def open_object(ctx: Context, ref: str, path: Path, start: int, end: int | None) -> Iterator[bytes]:
    """The object's bytes; resolved again if the blob went between the look and the read (rule 12).

    Raises Gone: it was swept; or it belongs to others, who removed or changed it.
    """
    for _ in range(ATTEMPTS):
        resolved = resolve(ctx, refs.resolve(ctx, ref), path)
        if not is_own(resolved.entry.address):
            return ctx.foreign.get(resolved.entry.address, resolved.entry.size_bytes, start, end)
        try:
            return ctx.objects.get(resolved.entry.address, start=start, end=end)
        except ObjectNotFound:
            if resolve(ctx, refs.resolve(ctx, ref), path) == resolved:
                if resolved.commit is not None:
                    refs.check_swept(ctx, resolved.commit, path)
                raise CorruptObject(
                    f"{path!r} on {ref!r} names {resolved.entry.address}, which is gone; do not run any collection, and report this"
                ) from None
    raise Contention(f"{path!r} on {ref!r} kept changing while it was read; make the same call again")


def list_page(ctx: Context, ref: Ref, *, prefix: str, after: str, amount: int, delimiter: str) -> Page:
    """One page, in path order. With a delimiter, paths that go on behind it are folded into their common prefix."""
    if ref.branch is None:
        check_hidden(ctx, ref)
        metarange = get_commit(ctx, ref.commit).metarange
        return _page(lambda start: _committed_stream(ctx, metarange, prefix, start, amount), prefix, after, amount, delimiter)
    return while_still(
        ctx,
        ref.branch,
        lambda branch: _page(lambda start: stream(ctx, branch, prefix, start, amount), prefix, after, amount, delimiter),
    )


def while_still(ctx: Context, name: BranchName, read: Callable[[Branch], T]) -> T:
    """Read under a branch record, again until the record stood still meanwhile (rule 12)."""
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    seen = branches.open(name)
    for _ in range(ATTEMPTS):
        result = read(seen.record)
        again = branches.open(name)
        if _same(seen.record, again.record):
            return result
        seen = again
    raise Contention(f"branch {name!r} kept moving while it was read; make the same call again")


def stream(ctx: Context, branch: Branch, prefix: str, after: str, amount: int) -> Iterator[tuple[str, Entry]]:
    """What a branch holds from `after` on, as of the given record; the caller checks that the record stood still."""
    page = min(SCAN_LIMIT, amount + 1)
    staged = Staging(ctx.kv, ctx.repo).merged(branch.live, prefix=prefix, after=after, page=page)
    metarange = head_commit(ctx, branch.head).metarange
    if not metarange:
        for path, value, _token in staged:
            record = decode_staged(value)
            if isinstance(record, Entry):
                yield path, record
        return
    overlay = ((path, 0, value) for path, value, _token in staged)
    below = ((path, 1, entry) for path, entry in _committed_stream(ctx, metarange, prefix, after, page))
    previous: str | None = None
    for path, _rank, value in heapq.merge(overlay, below, key=lambda item: item[:2]):
        if path == previous:
            continue  # staged over: the overlay came first
        previous = path
        record = decode_staged(value) if isinstance(value, bytes) else value
        if not isinstance(record, Tombstone):
            yield path, record


def _committed_stream(ctx: Context, metarange: str, prefix: str, after: str, page: int) -> Iterator[tuple[str, Entry]]:
    while True:
        found = ctx.trees.scan(metarange, prefix=prefix, after=after, limit=page)
        yield from found
        if len(found) < page:
            return
        after = found[-1][0]


def _page(source: Callable[[str], Iterator[tuple[str, Entry]]], prefix: str, after: str, amount: int, delimiter: str) -> Page:
    results: list[Listed] = []
    size_bytes = 0
    folded = ""
    cursor = after
    if delimiter and (inside := _common_prefix(after, prefix, delimiter)):
        folded, cursor = inside, inside + _BEHIND
    while True:
        for path, entry in source(cursor):
            common = _common_prefix(path, prefix, delimiter) if delimiter else ""
            if common and common == folded:
                continue
            if len(results) == amount or size_bytes >= PAGE_BYTES_MAX:
                return Page(tuple(results), has_more=True)
            size_bytes += len(common or path) + (0 if common else user_metadata.size_of(entry.metadata))
            if common:
                results.append(Listed(common, None))
                folded, cursor = common, common + _BEHIND
                break  # go on behind the whole prefix rather than through it
            results.append(Listed(path, entry))
        else:
            return Page(tuple(results), has_more=False)


def _common_prefix(path: str, prefix: str, delimiter: str) -> str:
    """The part of `path` up to and with the first delimiter behind `prefix`; '' if there is none."""
    if not path.startswith(prefix):
        return ""
    at = path.find(delimiter, len(prefix))
    return "" if at < 0 else path[: at + len(delimiter)]


def _committed(ctx: Context, commit: CommitId, metarange: str, paths: Sequence[Path]) -> dict[Path, Resolved]:
    return {Path(path): Resolved(entry, None, commit) for path, entry in ctx.trees.get_many(metarange, paths).items()}


def _same(one: Branch, other: Branch) -> bool:
    """Whether a reader may trust what it read between the two: head and live tokens are what they were."""
    return (one.head, one.token, one.sealed) == (other.head, other.token, other.sealed)
