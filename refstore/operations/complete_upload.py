"""Complete a multipart upload (rule 23): fix which parts are joined -> join them -> take the address, as a link does
-> entry and token check -> release the parts.

Until the address is taken, anybody may make the call again, with the same parts. A repeated call that had landed
answers the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from refstore.context import Context
from refstore.errors import Conflict, Contention, CorruptObject, InvalidParts, ObjectNotFound, RefstoreError
from refstore.objects.base import ObjectInfo
from refstore.operations import read
from refstore.operations.multipart import PARTS_MAX, close, end_upload, newest_parts, upload_not_found
from refstore.operations.refs import ResolvedRef
from refstore.operations.stage_entries import PlannedPlacement, find_refused, place_each
from refstore.records.multipart_records import MultipartUpload
from refstore.records.reference_records import Emptied, Issued, Listed, Reference
from refstore.records.s3_attributes import S3Attributes, add_sources, join_attributes
from refstore.records.staging_records import StoredEntry
from refstore.versioning.address_state import changed_ms
from refstore.versioning.multipart_uploads import RegisteredUpload, UploadName, WrittenPart

PART_BYTES_MIN: Final = 5 << 20
"""Of every part but the last, as S3 has it: an upload has a bounded number of requests for each byte."""


class RequestedPart(NamedTuple):
    """A part that a caller wants to be joined."""

    number: int
    etag: str
    """As the part's writing answered it, without quotes."""


def complete(
    ctx: Context,
    name: UploadName,
    requested: Sequence[RequestedPart],
    *,
    if_absent: bool = False,
    if_entry: StoredEntry | None = None,
    describe: Callable[[MultipartUpload, Sequence[WrittenPart]], S3Attributes | None] = lambda upload, _parts: (
        join_attributes(upload.s3, None)
    ),
) -> StoredEntry:
    """Join the parts, put the object at its path, and return its entry. A repeated call that had landed answers the
    same. `describe`: the S3 attributes of the object, from the upload and its parts; what it raises refuses the call.

    Raises UploadNotFound, InvalidParts, AlreadyExists, PathChanged, BranchNotFound; Contention: another such call is
    under way.
    """
    _check_order(requested)
    digest = sha256("\n".join(f"{number} {etag}" for number, etag in requested).encode()).hexdigest()
    registered = ctx.uploads.read(name)
    if registered is None:
        raise upload_not_found(name)
    if not isinstance(ctx.references.get_many([name.address])[0], Issued):
        return _find_completed(ctx, name, digest)
    chosen = _choose_parts(ctx, name, requested)
    if isinstance(chosen, InvalidParts):
        return _find_completed(ctx, name, digest, otherwise=chosen)
    planned = PlannedPlacement(name.path, if_absent, if_entry)
    for error in find_refused(ctx, name.branch, [planned]).values():
        raise error
    s3 = add_sources(describe(registered.record, chosen), (each for item in chosen for each in item.part.sources))
    fixed = ctx.references.fix_parts(name.address, registered.record.token_id, digest)
    if fixed is None:
        return _find_completed(ctx, name, digest)
    registered = _record_parts(ctx, registered, digest)
    try:
        info = _join(ctx, registered, chosen)
    except (ObjectNotFound, CorruptObject) as error:
        missing = InvalidParts(f"{error}; begin the upload again", fault="missing")
        return _find_completed(ctx, name, digest, otherwise=missing)
    return _link(ctx, registered, fixed, info, s3, planned)


def _record_parts(ctx: Context, registered: RegisteredUpload, digest: str) -> RegisteredUpload:
    """Record which parts are joined before the address is taken: a repeated call compares its own with them."""
    if registered.record.parts_digest == digest:
        return registered
    changed = ctx.uploads.change(registered, msgspec.structs.replace(registered.record, parts_digest=digest))
    if changed is not None:
        return changed
    current = ctx.uploads.read(registered.name)
    if current is None or current.record.parts_digest != digest:
        raise upload_not_found(registered.name)
    return current


def _join(ctx: Context, registered: RegisteredUpload, parts: Sequence[WrittenPart]) -> ObjectInfo:
    """Join the parts, and return what the store has then. Raises ObjectNotFound, CorruptObject, and
    InvalidParts: not all is there.
    """
    address, store_upload = registered.name.address, registered.record.store_upload
    if store_upload:
        info = ctx.objects.complete_upload(address, store_upload, [(item.number, item.part.etag) for item in parts])
    else:
        info = ctx.objects.join(address, [(item.address, item.part.size_bytes) for item in parts])
    size_bytes = sum(item.part.size_bytes for item in parts)
    if info.size_bytes != size_bytes:
        raise InvalidParts(
            f"the object of the upload {registered.name.upload_id} has {info.size_bytes} bytes, and its parts had "
            f"{size_bytes}: something changed them in the store; nothing was linked, so begin the upload again",
            fault="missing",
        )
    return info


def _link(
    ctx: Context,
    registered: RegisteredUpload,
    fixed: bytes,
    info: ObjectInfo,
    s3: S3Attributes | None,
    planned: PlannedPlacement,
) -> StoredEntry:
    """Take the address, once, and write the entry. Only who has taken it does."""
    name, record = registered.name, registered.record
    token = ctx.branches.read_open(name.branch).record.token
    reference = Reference(token, name.path, ctx.ids.new_id(ctx.clock.now_ms()))
    if not ctx.references.link([(name.address, record.token_id, reference)], [fixed])[0]:
        return _find_completed(ctx, name, record.parts_digest)
    entry = StoredEntry(
        name.address,
        info.size_bytes,
        "",
        info.mtime_ms,
        record.metadata,
        record.content_type,
        reference.id,
        s3=s3,
    )
    witness = ctx.safety.witness == "always"
    refused = place_each(ctx, name.branch, token, [planned.with_entry(entry)], witness=witness)
    with suppress(RefstoreError):  # it has landed, or was refused: the scrubber ends what is left open here
        landed = None if refused else entry
        close(ctx, registered, msgspec.structs.replace(record, closed_ms=ctx.clock.now_ms(), entry=landed))
        end_upload(ctx, name, record.token_id)
    for error in refused.values():
        raise error
    return entry


def _find_completed(
    ctx: Context, name: UploadName, digest: str, *, otherwise: RefstoreError | None = None
) -> StoredEntry:
    """Return the entry that another call made of the same parts. Raises Contention: it may still make it.

    The address is read first: an entry that is not there yet comes before its address leaves the list. One under a
    token that moved on may have to be written again by its writer (rule 2), so it does not count yet.

    `otherwise`: the error if the upload is still open.
    """
    state = ctx.references.get_many([name.address])[0]
    if isinstance(state, Issued):
        if state.expires_ms <= ctx.clock.now_ms():
            raise upload_not_found(name)
        raise otherwise or Conflict(
            f"other parts of the upload {name.upload_id} are being joined, by a call that is under way or failed; "
            "complete it with the same parts, or abort it"
        )
    registered = ctx.uploads.read(name)
    if registered is not None and registered.record.parts_digest == digest:
        if registered.record.entry is not None:
            return registered.record.entry
        resolved = read.resolve_many(ctx, ResolvedRef.of_branch(name.branch), [name.path]).get(name.path)
        if resolved is not None and resolved.entry.address == name.address:
            if resolved.token is None or resolved.token == ctx.branches.read_open(name.branch).record.token:
                return resolved.entry
        elif registered.record.closed_ms or not isinstance(state, Listed | Emptied) or _is_old(ctx, changed_ms(state)):
            raise upload_not_found(name)
        raise Contention(f"the upload {name.upload_id} is being completed by another call; make the same call again")
    raise upload_not_found(name)


def _is_old(ctx: Context, at_ms: int) -> bool:
    """Return whether every operation that changed something then has ended."""
    return at_ms < ctx.clock.now_ms() - int(ctx.waits.scrub_after_seconds * 1000)


def _choose_parts(
    ctx: Context, name: UploadName, requested: Sequence[RequestedPart]
) -> list[WrittenPart] | InvalidParts:
    """Return the parts that are to be joined, or what is wrong with them."""
    newest = newest_parts(ctx.uploads.scan_parts(name.upload_id))
    chosen: list[WrittenPart] = []
    for number, etag in requested:
        written = newest.get(number)
        if written is None or written.part.etag != etag:
            return InvalidParts(
                f"part {number} was not written, or with another ETag; list the parts, and complete with theirs",
                fault="missing",
            )
        chosen.append(written)
    small = next((item for item in chosen[:-1] if item.part.size_bytes < PART_BYTES_MIN), None)
    if small is not None:
        return InvalidParts(
            f"part {small.number} has {small.part.size_bytes} bytes, and every part but the last needs at least "
            f"{PART_BYTES_MIN}; write it again with more",
            fault="small",
        )
    return chosen


def _check_order(requested: Sequence[RequestedPart]) -> None:
    if not 1 <= len(requested) <= PARTS_MAX:
        raise InvalidParts(f"an upload is completed with 1 to {PARTS_MAX} parts", fault="missing")
    if any(one.number >= other.number for one, other in pairwise(requested)):
        raise InvalidParts("the parts are not in ascending order of their numbers; sort them", fault="order")
