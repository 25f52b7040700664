"""Multipart uploads: begin, write and copy parts, list, abort, and end what is over (rule 23).

`complete_upload.py` completes them.

Begin: registry -> issued address -> the store's own upload, if it has any. Part: an issued address of its own -> blob
-> record; or a part of the store's upload -> record. What is left of an upload that is over, expires, or the scrubber
finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from refstore.context import Context
from refstore.core import deadline, ids, user_metadata
from refstore.core.batches import split_batches
from refstore.core.ids import Address, BranchName, Path, UploadId
from refstore.errors import InvalidParts, ObjectNotFound, RefstoreError, UploadNotFound
from refstore.kv.base import ABSENT
from refstore.kv.unknown_outcomes import UnknownOutcomes
from refstore.objects.base import Body, StoredPart, chunks_of
from refstore.records import keys
from refstore.records.encoding import decode
from refstore.records.multipart_records import MultipartUpload, UploadedPart
from refstore.records.reference_records import Issued, decode_reference
from refstore.records.s3_attributes import S3Attributes
from refstore.records.staging_records import StoredEntry, sources_of_copy
from refstore.versioning.address_state import PART_RELEASED, UPLOAD_ABORTED
from refstore.versioning.multipart_uploads import RegisteredUpload, UploadName, WrittenPart

PARTS_MAX: Final = 10_000

_RELEASE_PAGE: Final = 1000

NO_CHECKSUMS: Final[Mapping[str, str]] = {}


def begin(
    ctx: Context,
    branch: BranchName,
    path: str,
    *,
    seconds: float,
    metadata: Mapping[str, str] | None = None,
    content_type: str = "",
    s3: S3Attributes | None = None,
) -> RegisteredUpload:
    """Begin an upload that may be completed within `seconds`. Raises BranchNotFound."""
    checked = ids.object_path(path)
    details = dict(metadata or {})
    user_metadata.check_object_metadata(details)
    ids.content_type(content_type)
    unknown = UnknownOutcomes(ctx.clock)
    while True:  # `unknown` ends it
        ctx.branches.read_open(branch)
        now = ctx.clock.now_ms()
        name = UploadName(branch, checked, ids.upload_id_of(ids.new_address(ctx.ids, now)))
        record = MultipartUpload(ctx.ids.new_id(now), now, now + int(seconds * 1000), details, content_type, s3=s3)
        registered = ctx.uploads.register(name, record)
        issued = Issued(record.token_id, record.expires_ms, branch, checked, in_parts=True)
        with unknown.tolerate():  # begin another one then: this one may have begun, and expires unused
            ctx.references.issue([(name.address, issued)])
            return _begin_in_store(ctx, registered)
        deadline.check()


def _begin_in_store(ctx: Context, registered: RegisteredUpload) -> RegisteredUpload:
    store_upload = ctx.objects.begin_upload(registered.name.address)
    if not store_upload:
        return registered
    changed = ctx.uploads.change(registered, msgspec.structs.replace(registered.record, store_upload=store_upload))
    if changed is None:
        raise upload_not_found(registered.name)
    return changed


def write_part(
    ctx: Context,
    name: UploadName,
    number: int,
    body: Body,
    *,
    checksums: Callable[[], Mapping[str, str]] = lambda: NO_CHECKSUMS,
    sources: tuple[str, ...] = (),
) -> WrittenPart:
    """Write a part. Of several with one number the one that was written last counts. `checksums`: asked for when the
    body was read. `sources`: the addresses from which the body is copied. Raises UploadNotFound.
    """
    registered = read_open(ctx, name)
    check_number(number)
    if registered.record.store_upload:
        address, chunks = name.address, deadline.check_each(chunks_of(body))
        try:
            stored = ctx.objects.put_part(address, registered.record.store_upload, number, chunks)
        except ObjectNotFound:
            raise upload_not_found(name) from None
    else:
        address, stored = _put_as_object(ctx, registered, body)
    part = UploadedPart(stored.size_bytes, stored.etag, ctx.clock.now_ms(), dict(checksums()), sources)
    written = WrittenPart(number, address, part)
    ctx.uploads.write_part(name.upload_id, written)
    return written


def copy_part(
    ctx: Context, name: UploadName, number: int, source: StoredEntry, start: int, end: int
) -> WrittenPart | None:
    """Write the bytes [start, end) of the repository's object as a part, in the store; None: the store has no uploads,
    so write the part. By its path, another object than the caller looked at could be copied. Raises UploadNotFound,
    ObjectNotFound, CorruptObject.
    """
    registered = read_open(ctx, name)
    check_number(number)
    if not registered.record.store_upload:
        return None
    if start >= end:
        return write_part(ctx, name, number, b"")
    try:
        stored = ctx.objects.copy_part(
            name.address,
            registered.record.store_upload,
            number,
            source.address,
            start,
            end,
            size_bytes=source.size_bytes,
        )
    except ObjectNotFound:
        ctx.objects.head(source.address)  # raises if it is the source that is gone
        raise upload_not_found(name) from None
    part = UploadedPart(stored.size_bytes, stored.etag, ctx.clock.now_ms(), sources=sources_of_copy(source))
    written = WrittenPart(number, name.address, part)
    ctx.uploads.write_part(name.upload_id, written)
    return written


def _put_as_object(ctx: Context, registered: RegisteredUpload, body: Body) -> tuple[Address, StoredPart]:
    """Write a part to an issued address of its own, which expires with the upload."""
    name, record = registered.name, registered.record
    unknown = UnknownOutcomes(ctx.clock)
    while True:  # `unknown` ends it
        address = ids.new_address(ctx.ids, ctx.clock.now_ms())
        with unknown.tolerate():  # take another address then: nothing was written to this one
            ctx.references.issue([(address, Issued(record.token_id, record.expires_ms, name.branch, name.path))])
            break
        deadline.check()
    try:
        stored = ctx.objects.put(address, deadline.check_each(chunks_of(body)))
    except Exception:
        with suppress(RefstoreError):
            ctx.references.end_issued([(address, record.token_id)], PART_RELEASED)
        raise
    return address, StoredPart(stored.size_bytes, stored.md5)


def abort(ctx: Context, name: UploadName) -> None:
    """End an upload, and let its parts go. Raises UploadNotFound, also where it was completed."""
    registered = ctx.uploads.read(name)
    if registered is None or not _abort(ctx, registered):
        raise upload_not_found(name)


def abort_all(ctx: Context, branch: BranchName) -> None:
    """Abort what is open on a branch that was reset or deleted. What a crash or an error leaves, expires."""
    with suppress(RefstoreError):
        for registered in ctx.uploads.scan(branch):
            with suppress(RefstoreError):
                _abort(ctx, registered)


def _abort(ctx: Context, registered: RegisteredUpload) -> bool:
    """Take the address first: from then on nobody completes the upload, and only then its parts go."""
    name, record = registered.name, registered.record
    if not ctx.references.end_issued([(name.address, record.token_id)], UPLOAD_ABORTED)[0]:
        return False
    close(ctx, registered, msgspec.structs.replace(record, closed_ms=ctx.clock.now_ms()))
    end_upload(ctx, name, record.token_id)
    return True


def close(ctx: Context, registered: RegisteredUpload, record: MultipartUpload) -> None:
    """Record that the upload is over. `record`: with the time, and the entry of a completion."""
    if ctx.uploads.change(registered, record) is None:
        again = ctx.uploads.read(registered.name)
        if again is not None:
            ctx.uploads.change(
                again, msgspec.structs.replace(again.record, closed_ms=record.closed_ms, entry=record.entry)
            )


def end_upload(ctx: Context, name: UploadName, token_id: str) -> None:
    """Let go what is left of an upload that is over: first what the store itself keeps, then the parts, and their
    records last.
    """
    ctx.objects.abort_uploads(name.address)
    for batch in split_batches(ctx.uploads.scan_parts(name.upload_id), _RELEASE_PAGE):
        own = [(item.address, token_id) for item in batch if item.address != name.address]
        if own:
            ctx.references.end_issued(own, PART_RELEASED)
    ctx.uploads.forget_parts(name.upload_id)


def newest_parts(parts: Iterable[WrittenPart]) -> dict[int, WrittenPart]:
    """Return of each number the part that was written last, as a store that keeps one of a number does."""
    newest: dict[int, WrittenPart] = {}
    for item in parts:
        known = newest.get(item.number)
        if known is None or item.part.written_ms >= known.part.written_ms:
            newest[item.number] = item
    return newest


def check_number(number: int) -> None:
    """Raise InvalidParts for the number of a part that no upload has."""
    if not 1 <= number <= PARTS_MAX:
        raise InvalidParts(f"a part has a number from 1 to {PARTS_MAX}, not {number}", fault="number")


def read_open(ctx: Context, name: UploadName) -> RegisteredUpload:
    """Return an upload that may be completed still. Raises UploadNotFound."""
    # one round trip, in any order: the operations that follow do not rely on what is read here
    raw, value = ctx.kv.get_many([keys.upload(ctx.repo, *name), keys.reference(ctx.repo, name.address)])
    if raw is ABSENT or value is ABSENT:
        raise upload_not_found(name)
    record, state = decode(raw, MultipartUpload), decode_reference(value)
    if not isinstance(state, Issued) or state.token_id != record.token_id or state.expires_ms <= ctx.clock.now_ms():
        raise upload_not_found(name)
    return RegisteredUpload(name, raw, record)


def upload_not_found(name: UploadName) -> UploadNotFound:
    return UploadNotFound(
        f"there is no open upload {name.upload_id} of {name.path!r} on {name.branch!r}: it was completed or aborted, "
        "or has expired; begin another one"
    )


class PartsPage(NamedTuple):
    parts: tuple[WrittenPart, ...]
    has_more: bool


def list_parts(ctx: Context, name: UploadName, *, after: int, amount: int) -> tuple[RegisteredUpload, PartsPage]:
    """Return the upload, and its parts with numbers after one. Raises UploadNotFound."""
    registered = read_open(ctx, name)
    page: list[WrittenPart] = []
    numbers: set[int] = set()
    for item in ctx.uploads.scan_parts(name.upload_id, after=after):
        numbers.add(item.number)
        if len(numbers) > amount + 1:
            break
        page.append(item)
    newest = tuple(newest_parts(page).values())
    return registered, PartsPage(newest[:amount], len(newest) > amount)


class UploadsPage(NamedTuple):
    uploads: tuple[RegisteredUpload, ...]
    common_prefixes: tuple[str, ...]


def list_uploads(
    ctx: Context,
    branch: BranchName,
    *,
    prefix: str = "",
    delimiter: str = "",
    after_path: str = "",
    after_upload_id: str = "",
    amount: int = 1000,
) -> UploadsPage:
    """Return a page of the open uploads of a branch, in the order of their paths, then of their beginning.

    `after_path`: after all uploads of this path, or common prefix; with `after_upload_id`, after that one of them.
    """
    ctx.branches.read_open(branch)
    of_branch = keys.uploads_of(branch)
    shown: list[RegisteredUpload | str] = []
    after = ""
    if after_path and after_upload_id:
        after = keys.upload(ctx.repo, branch, Path(after_path), UploadId(after_upload_id)).name
    elif after_path:
        is_folded = bool(delimiter) and after_path.endswith(delimiter)
        last = of_branch + after_path if is_folded else keys.uploads_of_path(branch, after_path)
        after = last + keys.LAST_CODE_POINT
    while len(shown) < amount:
        page = list(islice(ctx.uploads.scan(branch, prefix=prefix, after=after, page=amount), amount))
        if not page:
            break
        for registered in _select_open(ctx, page):
            path = registered.name.path
            after = keys.upload(ctx.repo, *registered.name).name
            cut = path.find(delimiter, len(prefix)) if delimiter else -1
            if cut >= 0:
                shown.append(path[: cut + len(delimiter)])
                after = of_branch + path[: cut + len(delimiter)] + keys.LAST_CODE_POINT
                break
            shown.append(registered)
            if len(shown) == amount:
                break
        else:
            after = keys.upload(ctx.repo, *page[-1].name).name
    return UploadsPage(
        tuple(item for item in shown if isinstance(item, RegisteredUpload)),
        tuple(item for item in shown if isinstance(item, str)),
    )


def _select_open(ctx: Context, page: Sequence[RegisteredUpload]) -> list[RegisteredUpload]:
    now = ctx.clock.now_ms()
    states = ctx.references.get_many([item.name.address for item in page])
    return [
        item
        for item, state in zip(page, states, strict=True)
        if isinstance(state, Issued) and state.token_id == item.record.token_id and state.expires_ms > now
    ]
