"""Read a ref: its head commit, overlaid by its sealed tokens, overlaid by its current one.

The reaper removes entries from a token's staging area once the token is processed. So a reader trusts what it read only
if the branch record did not change meanwhile (rule 12).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from refstore.context import Context
from refstore.core import user_metadata
from refstore.core.ids import Address, BranchName, CommitId, Path, Token, is_own
from refstore.errors import CommitNotFound, Contention, CorruptObject, Gone, ObjectNotFound
from refstore.kv.base import ABSENT, SCAN_LIMIT
from refstore.objects.verified_read import verify_body
from refstore.operations import refs
from refstore.operations.hidden_commits import check_hidden, read_marks
from refstore.operations.refs import ResolvedRef, head_commit
from refstore.public_types import Entry, stored_entry
from refstore.records import keys
from refstore.records.branch_records import StoredBranch
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode_optional
from refstore.records.location_records import Content
from refstore.records.mark_records import StoredMark
from refstore.records.s3_attributes import attributes_bytes, join_attributes
from refstore.records.staging_records import StagedRecord, StoredEntry, decode_staged, without_reference
from refstore.versioning.branches import OpenBranch

ATTEMPTS: Final = 64
"""How often a read is done again because the branch moved; each time means that a commit or reset got through."""

PAGE_BYTES_MAX: Final = 4 << 20
"""How many bytes of paths and metadata end a page, although more items were requested; a page has at least one item."""

PAGE_DELETED_MAX: Final = 100_000
"""How many deleted entries end a page, which may have no item then. Many, as some clients take such a page for an
empty folder; they take up to a second.
"""

PAGE_SWEPT_MAX: Final = 10_000
"""How many swept entries end one: the store is asked for each."""

FOLDER_ROWS_MAX: Final = 100
"""How many entries of a folder a listing by folders reads through; then it skips the rest by a request of its own."""


T = TypeVar("T")


class ResolvedEntry(NamedTuple):
    """A path's entry, and the level it was read from."""

    entry: StoredEntry
    token: Token | None
    """The token that the entry is staged under; None: it is committed."""
    commit: CommitId | None = None
    """The commit that a committed entry was read from, not the branch's head since."""


class PinnedObject(NamedTuple):
    """The object that a ref had at a path when it was resolved."""

    ref: str
    path: Path
    resolved: ResolvedEntry
    content: Content | None
    """Where its content lies, if that is not the entry's address."""

    @property
    def stored_content(self) -> StoredEntry | Content:
        """What has the address, size and checksum of the content."""
        return self.resolved.entry if self.content is None else self.content


class ListedPath(NamedTuple):
    """One line of a listing: an object, or a common prefix (then `entry` is None)."""

    path: str
    entry: Entry | None


class ListingPage(NamedTuple):
    """A part of a listing."""

    results: tuple[ListedPath, ...]
    has_more: bool
    searched_to: str = ""
    """The last path that was looked at, where the page ended before it was full."""

    @property
    def next_after(self) -> str:
        return self.searched_to or (self.results[-1].path if self.results else "")


def resolve_many(ctx: Context, ref: ResolvedRef, paths: Sequence[Path]) -> dict[Path, ResolvedEntry]:
    """Return the entries at the paths, as they are committed or staged; paths without one are left out.

    Raises Gone where the rules hide the commit, or the object at a path was swept.
    """
    return _resolve_many(ctx, ref, paths)[0]


def _resolve_many(ctx: Context, ref: ResolvedRef, paths: Sequence[Path]) -> tuple[dict[Path, ResolvedEntry], bool]:
    """Return the entries, and whether their content may lie elsewhere than their addresses say (rule 22)."""
    if ref.branch is None:
        marks = read_marks(ctx, ref)
        check_hidden(ctx, ref, marks, paths)
        metarange, announced = _read_metarange(ctx, ref.commit)
        committed = _committed_entries(ctx, ref.commit, metarange, paths)
        if _is_swept(marks):
            from refstore.operations.swept_entries import (
                find_sweeping_marks,  # few reads need it, and it imports pyarrow
            )

            for mark in find_sweeping_marks(
                ctx, marks, [(path, resolved.entry) for path, resolved in committed.items()]
            ):
                if mark is not None:
                    raise refs.marked_error(ref.commit, mark)
        return committed, announced

    def read(branch: StoredBranch, staged: dict[Path, tuple[StagedRecord, Token]]) -> dict[Path, ResolvedEntry]:
        resolved = {
            path: ResolvedEntry(record, token)
            for path, (record, token) in staged.items()
            if isinstance(record, StoredEntry)
        }
        unstaged = [path for path in paths if path not in staged]
        if unstaged:
            resolved |= _committed_entries(ctx, branch.head, head_commit(ctx, branch.head).metarange, unstaged)
        return resolved

    branches = ctx.branches
    open_branch = branches.read_open(ref.branch)
    for _ in range(ATTEMPTS):
        keys_read = [(token, path) for token in open_branch.record.live_tokens for path in paths]
        *values, flag = ctx.kv.get_many(
            [*(keys.entry(ctx.repo, token, path) for token, path in keys_read), keys.locations_flag(ctx.repo)]
        )
        # a call of its own: within one batch of Gets the KV chooses the order, and could read the branch before an
        # entry is removed, and the entry after that
        again = branches.read_open(ref.branch)
        if is_same_view(open_branch.record, again.record):
            staged: dict[Path, tuple[StagedRecord, Token]] = {}
            for (token, path), value in zip(keys_read, values, strict=True):
                if isinstance(value, bytes) and path not in staged:
                    staged[path] = (decode_staged(value), token)
            return read(open_branch.record, staged), flag is not ABSENT
        open_branch = again
    raise branches.contention(ref.branch)


def resolve_beneath(ctx: Context, record: StoredBranch, path: Path) -> ResolvedEntry | None:
    """Return the entry at a path of this version of the branch, without what is staged under its current token."""
    sealed_tokens = [*reversed(record.sealed_tokens)]
    values = ctx.kv.get_many([keys.entry(ctx.repo, token, path) for token in sealed_tokens]) if sealed_tokens else []
    for token, value in zip(sealed_tokens, values, strict=True):
        if isinstance(value, bytes):
            staged = decode_staged(value)
            return ResolvedEntry(staged, token) if isinstance(staged, StoredEntry) else None
    metarange = head_commit(ctx, record.head).metarange
    return _committed_entries(ctx, record.head, metarange, [path]).get(path)


def is_unchanged(ctx: Context, current: ResolvedEntry, read_before: StoredEntry) -> bool:
    """Return whether a path still has the entry that a caller read, as it is named or as it is shown. It may have been
    committed since; the same object, written there again, has another reference.
    """
    shown = [current.entry, *(_with_current_content(ctx, [current.entry]) if ctx.locations.are_announced() else ())]
    if current.token is not None:
        return read_before in shown
    return without_reference(read_before) in [without_reference(entry) for entry in shown]


def _read_metarange(ctx: Context, commit: CommitId) -> tuple[str, bool]:
    """Return a commit's metarange, and whether content may lie elsewhere. One round trip. Raises CommitNotFound."""
    value, flag = ctx.kv.get_many([keys.commit(ctx.repo, commit), keys.locations_flag(ctx.repo)])
    record = decode_optional(value, StoredCommit)
    if record is None:
        raise CommitNotFound(f"commit {commit} does not exist")
    return record.metarange, flag is not ABSENT


def stat_many(ctx: Context, ref: ResolvedRef, paths: Sequence[Path]) -> dict[Path, StoredEntry]:
    """Return the entries at the paths as they are shown: with the address, size, checksums and time of their
    content.
    """
    resolved_entries, announced = _resolve_many(ctx, ref, paths)
    entries = [resolved.entry for resolved in resolved_entries.values()]
    return dict(zip(resolved_entries, _with_current_content(ctx, entries) if announced else entries, strict=True))


def stat(ctx: Context, ref: ResolvedRef, path: Path) -> StoredEntry:
    """Return one of them. Raises ObjectNotFound."""
    return _require(stat_many(ctx, ref, (path,)), ref, path)


def _with_current_content(ctx: Context, entries: Sequence[StoredEntry]) -> list[StoredEntry]:
    """Return the entries with what is true of their content now (rule 22). Operations take them as they are committed:
    those have the identity.
    """
    contents = current_contents(ctx, entries)
    return [
        entry
        if (content := contents.get(entry.address)) is None
        else msgspec.structs.replace(
            entry,
            address=content.address,
            size_bytes=content.size_bytes,
            checksum=content.checksum,
            md5=content.md5,
            s3=join_attributes(entry.s3, None),
            # clients that compare sizes and times must not take what a purge wrote for the file that they hold
            mtime_ms=content.written_ms or entry.mtime_ms,
        )
        for entry in entries
    ]


def current_contents(ctx: Context, entries: Sequence[StoredEntry]) -> dict[Address, Content]:
    """Return the current content of the entries that have a location, by identity; others are left out (rule 22).

    One round trip. The caller has read the flag of locations.
    """
    identities = list(dict.fromkeys(entry.address for entry in entries if is_own(entry.address)))
    contents: dict[Address, Content] = {}
    for identity, record in zip(identities, ctx.locations.get_many(identities), strict=True):
        if record is not None and record.current is not None:
            contents[identity] = record.current
    return contents


def resolve(ctx: Context, ref: ResolvedRef, path: Path) -> ResolvedEntry:
    """Return the entry at one path. Raises ObjectNotFound."""
    return _require(resolve_many(ctx, ref, (path,)), ref, path)


def _require(entries: dict[Path, T], ref: ResolvedRef, path: Path) -> T:
    if path not in entries:
        raise ObjectNotFound(f"{path!r} is not on {ref.text!r}")
    return entries[path]


def open_object(ctx: Context, ref: str, path: Path, start: int, end: int | None) -> Iterator[bytes]:
    """Return the object's bytes. The path is resolved again if the blob was deleted before the read (rule 12).

    Raises Gone where the object was swept, or where its foreign owner removed or changed it; and as `open_content`.
    """
    for _ in range(ATTEMPTS):
        pinned = pin_object(ctx, ref, path)
        with suppress(ObjectNotFound):
            return open_pinned(ctx, pinned, start, end)
    raise Contention(f"{path!r} on {ref!r} kept changing while it was read; make the same call again")


def pin_object(ctx: Context, ref: str, path: Path) -> PinnedObject:
    """Return the object that a ref has at a path now. Raises ObjectNotFound, and Gone where a purge erased it."""
    resolved, content = _resolve_content(ctx, refs.resolve(ctx, ref), path)
    if content is not None and content.is_erased:
        raise Gone(f"{path!r} on {ref!r} was erased by the purge {content.run}")
    return PinnedObject(ref, path, resolved, content)


def open_pinned(ctx: Context, pinned: PinnedObject, start: int, end: int | None) -> Iterator[bytes]:
    """Return the bytes of this object, whatever its path has now.

    Raises ObjectNotFound where the object is gone because its path was changed, and otherwise as `open_object`.
    """
    ref, path, resolved, content = pinned
    if not is_own(resolved.entry.address):
        return ctx.foreign.get(resolved.entry.address, resolved.entry.size_bytes, start, end)
    stored = pinned.stored_content
    try:
        return open_content(ctx, stored, start, end, f"{path!r} on {ref!r}")
    except ObjectNotFound:
        if _resolve_content(ctx, refs.resolve(ctx, ref), path) != (resolved, content):
            raise
        if resolved.commit is not None and (mark := refs.swept_mark(ctx, resolved.commit, path)) is not None:
            raise refs.marked_error(resolved.commit, mark) from None
        raise CorruptObject(
            f"{path!r} on {ref!r} names {stored.address}, which is gone; do not run any collection, and report this"
        ) from None


def open_content(
    ctx: Context, stored: StoredEntry | Content, start: int, end: int | None, what: str
) -> Iterator[bytes]:
    """Return the bytes of an own object, whose length is compared whatever is read of it. A whole one is hashed as well
    while it is read. `what`: the object, as an error names it.

    Raises ObjectNotFound; CorruptObject where the length differs. The chunks raise it where the checksum does.
    """
    try:
        chunks = ctx.objects.get(stored.address, start=start, end=end, size_bytes=stored.size_bytes)
    except CorruptObject as error:
        raise CorruptObject(f"{what} is damaged: {error}") from error
    is_whole = start == 0 and (end is None or end >= stored.size_bytes)
    if is_whole and has_own_checksum(stored):
        return verify_body(chunks, stored.size_bytes, stored.checksum, what)
    return chunks


def has_own_checksum(stored: StoredEntry | Content) -> bool:
    """Return whether refstore computed the object's checksum (those with an MD5; a linker may give any)."""
    return bool(stored.md5) and is_own(stored.address)


def _resolve_content(ctx: Context, ref: ResolvedRef, path: Path) -> tuple[ResolvedEntry, Content | None]:
    """Return the entry at one path, and its content if it has a location. Raises ObjectNotFound."""
    entries, announced = _resolve_many(ctx, ref, (path,))
    resolved = _require(entries, ref, path)
    content = current_contents(ctx, (resolved.entry,)).get(resolved.entry.address) if announced else None
    return resolved, content


def list_page(ctx: Context, ref: ResolvedRef, *, prefix: str, after: str, amount: int, delimiter: str) -> ListingPage:
    """Return one page as it is shown, in path order. Paths with the delimiter after the prefix are folded into common
    prefixes.
    """
    if ref.branch is None:
        marks = read_marks(ctx, ref)
        check_hidden(ctx, ref, marks)
        metarange, announced = _read_metarange(ctx, ref.commit)
        source = partial(_committed_stream, ctx, metarange, prefix, rows=_first_rows(amount, delimiter))
        if _is_swept(marks):
            from refstore.operations.swept_entries import hide_swept

            page = _page(
                lambda start: hide_swept(ctx, marks, source(start)),
                prefix, after, amount, delimiter, gone_max=PAGE_SWEPT_MAX, folder_rows=1,
            )  # fmt: skip
        else:
            page = _page(
                source, prefix, after, amount, delimiter, gone_max=PAGE_DELETED_MAX, folder_rows=FOLDER_ROWS_MAX
            )
    else:
        branches = ctx.branches
        value, flag = ctx.kv.get_many([branches.key(ref.branch), keys.locations_flag(ctx.repo)])
        announced = flag is not ABSENT

        def read(branch: StoredBranch) -> ListingPage:
            metarange, rows = head_commit(ctx, branch.head).metarange, _first_rows(amount, delimiter)
            return _page(
                lambda start: stream_entries(ctx, branch, metarange, prefix, start, rows),
                prefix, after, amount, delimiter, gone_max=PAGE_DELETED_MAX, folder_rows=FOLDER_ROWS_MAX,
            )  # fmt: skip

        page = read_consistent(ctx, ref.branch, read, branches.parse_open(ref.branch, value))
    if not announced:
        return page
    stored = [stored_entry(each.entry) for each in page.results if each.entry is not None]
    entries = iter(_with_current_content(ctx, stored))
    results = (each if each.entry is None else _listed_path(each.path, next(entries)) for each in page.results)
    return page._replace(results=tuple(results))


def _is_swept(marks: Sequence[StoredMark]) -> bool:
    """Return whether a sweep of the commit, or of a part of it, has begun."""
    return any(mark.sweeping_ms for mark in marks)


def read_consistent(
    ctx: Context, name: BranchName, read: Callable[[StoredBranch], T], open_branch: OpenBranch | None = None
) -> T:
    """Call `read` until the branch record stood still: entries leave a token once it is processed (rule 12)."""
    branches = ctx.branches
    open_branch = open_branch or branches.read_open(name)
    for _ in range(ATTEMPTS):
        result = read(open_branch.record)
        again = branches.read_open(name)
        if is_same_view(open_branch.record, again.record):
            return result
        open_branch = again
    raise Contention(f"branch {name!r} kept moving while it was read; make the same call again")


def _first_rows(amount: int, delimiter: str) -> int:
    """Return how many entries a page reads at first: one more than it shows, which tells whether it is the last."""
    return min(amount, FOLDER_ROWS_MAX if delimiter else SCAN_LIMIT) + 1


def stream_entries(
    ctx: Context, branch: StoredBranch, metarange: str, prefix: str, after: str, rows: int
) -> Iterator[tuple[str, StoredEntry | None]]:
    """Yield a branch's entries after `after` under the record; None where one was deleted. The first ones are read by
    `rows`. The caller checks that the record did not change. `metarange`: of the head.
    """
    staged = ctx.staging.scan_merged(branch.live_tokens, prefix=prefix, after=after, page=rows)
    if not metarange:
        for path, value, _token in staged:
            record = decode_staged(value)
            yield path, record if isinstance(record, StoredEntry) else None
        return
    overlay = ((path, 0, value) for path, value, _token in staged)
    below = ((path, 1, entry) for path, entry in _committed_stream(ctx, metarange, prefix, after, rows))
    previous: str | None = None
    for path, _rank, value in heapq.merge(overlay, below, key=lambda item: item[:2]):
        if path == previous:
            continue  # the staged entry came first
        previous = path
        record = decode_staged(value) if isinstance(value, bytes) else value
        yield path, record if isinstance(record, StoredEntry) else None


def _committed_stream(
    ctx: Context, metarange: str, prefix: str, after: str, rows: int
) -> Iterator[tuple[str, StoredEntry]]:
    """Yield entries after `after`. The first ones are read by `rows`, the others as `KV.scan_all` does."""
    while True:
        entries = ctx.trees.scan(metarange, prefix=prefix, after=after, limit=rows)
        yield from entries
        if len(entries) < rows:
            return
        after = entries[-1][0]
        rows = max(rows, SCAN_LIMIT)


def _page(
    source: Callable[[str], Iterator[tuple[str, StoredEntry | None]]],
    prefix: str,
    after: str,
    amount: int,
    delimiter: str,
    *,
    gone_max: int,
    folder_rows: int,
) -> ListingPage:
    """Return a page of what `source` has after a path. It ends after `gone_max` entries that are gone; of a folder that
    is shown, at most `folder_rows` more are read.

    A page that ends before it is full may end within a folder that is not shown yet. So the next one skips the folder
    of `after` only where `after` is the folder itself.
    """
    results: list[ListedPath] = []
    size_bytes = gone = passed = 0
    folded = ""
    cursor = after
    if delimiter and _common_prefix(after, prefix, delimiter) == after != "":
        folded, cursor = after, after + keys.LAST_CODE_POINT
    while True:
        for path, entry in source(cursor):
            common = _common_prefix(path, prefix, delimiter) if delimiter else ""
            if common and common == folded:
                passed += 1
                if passed < min(folder_rows, amount):
                    continue
                cursor = common + keys.LAST_CODE_POINT
                break  # continue after the whole folder
            if entry is None:
                gone += 1
                if gone >= gone_max and path != common:
                    return ListingPage(tuple(results), has_more=True, searched_to=path)
                continue
            if len(results) == amount or size_bytes >= PAGE_BYTES_MAX:
                return ListingPage(tuple(results), has_more=True)
            size_bytes += len(common or path)
            if not common and (entry.metadata or entry.s3 is not None):  # nearly every object of a listing has neither
                size_bytes += user_metadata.metadata_bytes(entry.metadata) + attributes_bytes(entry.s3)
            if common:
                folded, passed = common, 0
            results.append(ListedPath(common, None) if common else _listed_path(path, entry))
        else:
            return ListingPage(tuple(results), has_more=False)


def _listed_path(path: str, entry: StoredEntry) -> ListedPath:
    return ListedPath(path, Entry(path, entry))


def _common_prefix(path: str, prefix: str, delimiter: str) -> str:
    """Return the part of `path` through the first delimiter after `prefix`; '' if there is none."""
    if not path.startswith(prefix):
        return ""
    at = path.find(delimiter, len(prefix))
    return "" if at < 0 else path[: at + len(delimiter)]


def _committed_entries(
    ctx: Context, commit: CommitId, metarange: str, paths: Sequence[Path]
) -> dict[Path, ResolvedEntry]:
    return {
        Path(path): ResolvedEntry(entry, None, commit) for path, entry in ctx.trees.get_many(metarange, paths).items()
    }


def is_same_view(one: StoredBranch, other: StoredBranch) -> bool:
    """Return whether head and live tokens are equal, so that a reader may trust what it read between the two."""
    return (one.head, one.token, one.sealed_tokens) == (other.head, other.token, other.sealed_tokens)
