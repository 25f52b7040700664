"""Upload, stage, issue and link: the operations that bring data in.

Upload: branch -> reference under its token (rule 1) -> blob -> [re-check of a long upload, rule 11] -> entry and token
check (rule 2) -> release of what was replaced (rule 6). A body that cannot be stored leaves a reference without an
entry; when its token is processed, the reference is released, and the blob, if any, is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

import msgspec

from refstore.context import Context
from refstore.core import argument_types, deadline, ids, user_metadata
from refstore.core.clock import to_datetime, to_ms
from refstore.core.ids import Address, BranchName, Path, Token
from refstore.errors import (
    AlreadyExists,
    AlreadyLinked,
    Contention,
    Invalid,
    InvalidPath,
    InvalidToken,
    ObjectNotFound,
    PathChanged,
    RefstoreError,
)
from refstore.kv.base import Result
from refstore.kv.unknown_outcomes import UnknownOutcomes
from refstore.namespaces import Namespaces
from refstore.objects.base import ObjectInfo, StoredObject
from refstore.objects.foreign_objects import check_address
from refstore.operations import upload_bodies
from refstore.operations.stage_entries import (
    Placement,
    PlannedPlacement,
    check_distinct,
    find_refused,
    place,
    place_each,
)
from refstore.operations.upload_bodies import copy_all, put_all
from refstore.public_types import Entry, expected_entry
from refstore.records.reference_records import Deleting, Issued, Reference
from refstore.records.s3_attributes import S3Attributes, add_sources
from refstore.records.staging_records import StoredEntry
from refstore.versioning.issuance import IssuedAddressClaims
from refstore.versioning.references import Release

UPLOAD_FAILED_CAUSE: Final = "upload failed"
LINKED_AS_COPY_CAUSE: Final = "linked as a copy"

BATCH: Final = 1000
"""How many objects of a bulk call share their round trips. More would delay a batch's first object."""


def _no_attributes() -> None:
    """A function of the module, as an upload may be pickled."""


class Upload(msgspec.Struct, frozen=True):
    """One object to upload: `Upload("2026/11/21.csv", b"...")`."""

    path: str
    body: upload_bodies.UploadBody
    """Bytes, a readable binary file, an iterable of bytes, or the path of a file (`pathlib.Path`)."""
    metadata: Mapping[str, str] = {}
    content_type: str = ""
    modified: datetime | None = None
    """When the content was last changed; None: now."""
    if_absent: bool = False
    """Whether it is refused where something is at the path already (AlreadyExists)."""
    if_entry: Entry | None = None
    """The entry, as it was read, whose place it may take: it is refused if another one is there (PathChanged)."""
    s3: Callable[[], S3Attributes | None] = _no_attributes
    """Of the S3 gateway: asked for when the body was read."""


class Stage(msgspec.Struct, frozen=True):
    """One object that exists outside the namespace, to be named and never deleted."""

    path: str
    url: str
    size_bytes: int
    checksum: str = ""
    metadata: Mapping[str, str] = {}
    content_type: str = ""
    modified: datetime | None = None
    """When the content was last changed; None: now."""


class IssuedAddress(NamedTuple):
    """A physical address to write to, and the token that links it (rule 10)."""

    branch: BranchName
    path: Path
    address: Address
    token: str
    expires: datetime
    """When the token can link no more."""


class Link(msgspec.Struct, frozen=True):
    """One issued address that has been written to."""

    path: str
    token: str
    address: str = ""
    """The address that the caller means, refused if the token was issued for another; '': the token's."""
    size_bytes: int | None = None
    """How much the writer believes it wrote, refused if the store has another size; None: the store's size."""
    checksum: str = ""
    md5: str = ""
    """Given only by who hashed what it wrote: it vouches for `checksum`, too (`equality`). The API gives none."""
    metadata: Mapping[str, str] = {}
    content_type: str = ""
    if_absent: bool = False
    """Whether it is refused where something is at the path already (AlreadyExists)."""
    if_entry: Entry | None = None
    """The entry, as it was read, whose place it may take: it is refused if another one is there (PathChanged)."""
    s3: S3Attributes | None = None
    """Given only by who puts other content in the place of an object."""


UploadItem = TypeVar("UploadItem", Upload, Link)
UploadOutcome = TypeVar("UploadOutcome", bound=StoredEntry | RefstoreError)


def upload_many(ctx: Context, branch: BranchName, uploads: Sequence[Upload]) -> list[StoredEntry]:
    """Upload up to BATCH objects; if one is refused, raise its error after the others were uploaded.

    Raises AlreadyExists and PathChanged before anything is written where that is known by then.
    """
    _check_uploads(uploads)
    return _write_all(ctx, branch, uploads, _upload)


def upload_each(
    ctx: Context, branch: BranchName, uploads: Sequence[Upload]
) -> list[StoredEntry | AlreadyExists | PathChanged | Contention]:
    """Upload up to BATCH objects with shared round trips, and return the entry or the refusal of each.

    The body of an upload that is refused at once is not read.
    """
    _check_uploads(uploads)
    return _write_each(ctx, branch, uploads, _upload)


def _write_all(
    ctx: Context,
    branch: BranchName,
    items: Sequence[UploadItem],
    write: Callable[
        [Context, BranchName, Sequence[UploadItem], Sequence[PlannedPlacement]], Sequence[StoredEntry | RefstoreError]
    ],
) -> list[StoredEntry]:
    """Write all items, then raise the first refusal. Entries after the refused one stay on the branch."""
    planned = _plan_placements(items)
    for error in find_refused(ctx, branch, planned).values():
        raise error
    entries: list[StoredEntry] = []
    for outcome in write(ctx, branch, items, planned):
        if isinstance(outcome, RefstoreError):
            raise outcome
        entries.append(outcome)
    return entries


def _write_each(
    ctx: Context,
    branch: BranchName,
    items: Sequence[UploadItem],
    write: Callable[[Context, BranchName, Sequence[UploadItem], Sequence[PlannedPlacement]], Sequence[UploadOutcome]],
) -> list[UploadOutcome | AlreadyExists | PathChanged]:
    """Write the items whose paths are free, and return the outcome of each item in order."""
    planned = _plan_placements(items)
    refused = find_refused(ctx, branch, planned)
    accepted = [(item, each) for item, each in zip(items, planned, strict=True) if each.path not in refused]
    outcomes = iter(
        write(ctx, branch, [item for item, _ in accepted], [each for _, each in accepted]) if accepted else ()
    )
    return [refused.get(each.path) or next(outcomes) for each in planned]


def _check_uploads(uploads: Sequence[Upload]) -> None:
    """Check the types of what a record will hold, and that there is a body. Raises Invalid."""
    argument_types.check_items(uploads, Upload)
    for item in uploads:
        upload_bodies.check_body(item.body, item.path)


def _plan_placements(items: Sequence[Upload | Link]) -> list[PlannedPlacement]:
    """Plan the placements, after every check that needs no store. Raises Invalid."""
    planned = [
        PlannedPlacement(ids.object_path(item.path), item.if_absent, expected_entry(item.if_entry)) for item in items
    ]
    check_distinct([item.path for item in planned])
    for item in items:
        user_metadata.check_object_metadata(item.metadata)
        ids.content_type(item.content_type)
        if item.if_absent and item.if_entry is not None:
            raise Invalid(f"{item.path!r} cannot be absent and have an entry; give if_absent or if_entry")
    return planned


def _upload(
    ctx: Context, branch: BranchName, uploads: Sequence[Upload], planned: Sequence[PlannedPlacement]
) -> list[StoredEntry | AlreadyExists | PathChanged | Contention]:
    """Upload to free paths. Raises what `place` does, and what the stores do."""
    token = ctx.branches.read_open(branch).record.token
    now = ctx.clock.now_ms()
    reserved = _reserve(ctx, token, [item.path for item in planned])
    addresses = [address for address, _ in reserved]
    began = ctx.clock.monotonic_seconds()
    with _withdraw_on_error(ctx, reserved):
        stored = put_all(ctx, [(address, item.body) for address, item in zip(addresses, uploads, strict=True)])
        _recheck_references(ctx, branch, reserved, began, again="upload again")
    entries = [_make_entry(*each, now) for each in zip(addresses, stored, uploads, strict=True)]
    placements = [item.with_entry(entry) for item, entry in zip(planned, entries, strict=True)]
    refused = place_each(ctx, branch, token, placements)
    return [refused.get(item.path) or entry for item, entry in zip(planned, entries, strict=True)]


@contextmanager
def _withdraw_on_error(ctx: Context, reserved: Sequence[tuple[Address, Reference]]) -> Generator[None, None, None]:
    try:
        yield
    except Exception:
        with suppress(RefstoreError):
            _withdraw(ctx, reserved)
        raise


def _recheck_references(
    ctx: Context, branch: BranchName, reserved: Sequence[tuple[Address, Reference]], began: float, *, again: str
) -> None:
    """Check again that the references are listed, if the blobs took long to write (rule 11). Raises Contention."""
    took_seconds = ctx.clock.monotonic_seconds() - began
    if took_seconds >= ctx.safety.recheck_after_seconds and not all(ctx.references.are_listed(reserved)):
        raise Contention(
            f"the data outlived its reference, because branch {branch!r} was committed or reset long ago; {again}"
        )


def _withdraw(ctx: Context, reserved: Sequence[tuple[Address, Reference]]) -> None:
    """Take back stored blobs that will not be placed: what was never placed was never committed.

    Their references are released at once. A blob is deleted only where its address is `deleting` (rule 11): an address
    in its grace window may be restored, and one without a key may have been restored and committed. If the reaper was
    done with an address before its blob was written, the blob is left to the offline job.
    """
    references = ctx.references
    references.release([Release(*item, UPLOAD_FAILED_CAUSE, None) for item in reserved])
    addresses = [address for address, _ in reserved]
    records = references.get_many(addresses)
    leaving = [address for address, record in zip(addresses, records, strict=True) if isinstance(record, Deleting)]
    if leaving:
        ctx.objects.delete_many(leaving)


def stage_many(ctx: Context, branch: BranchName, items: Sequence[Stage]) -> list[StoredEntry]:
    """Name objects outside of this lake. They have no reference, and are never deleted.

    Raises InvalidName for objects inside the lake and for an address that cannot be parsed; Invalid for a size that no
    object has.
    """
    argument_types.check_items(items, Stage)
    placements: list[Placement] = []
    namespaces = Namespaces.read(ctx.kv, ctx.foreign.objects_url, ctx.objects.url)
    now = ctx.clock.now_ms()
    for item in items:
        user_metadata.check_object_metadata(item.metadata)
        ids.content_type(item.content_type)
        ids.object_size(item.size_bytes)
        namespaces.check_object(item.url)
        check_address(item.url)
        mtime = now if item.modified is None else to_ms(item.modified)
        entry = StoredEntry(
            Address(item.url), item.size_bytes, item.checksum, mtime, dict(item.metadata), item.content_type
        )
        placements.append(Placement(ids.object_path(item.path), entry=entry, is_referenced=False))
    token = ctx.branches.read_open(branch).record.token
    place(ctx, branch, token, placements, on_empty=False)
    return [item.entry for item in placements if item.entry is not None]


def issue_many(ctx: Context, branch: BranchName, paths: Sequence[str]) -> list[IssuedAddress]:
    """Issue physical addresses to write to, each with a token that links it once, at its path (rule 10)."""
    checked = [ids.object_path(path) for path in paths]
    unknown = UnknownOutcomes(ctx.clock)
    while True:  # `unknown` ends it
        ctx.branches.read_open(branch)
        with unknown.tolerate():  # try new addresses then: these may have been issued, and expire unused
            return _issue(ctx, branch, checked)


def _issue(ctx: Context, branch: BranchName, checked: Sequence[Path]) -> list[IssuedAddress]:
    now = ctx.clock.now_ms()
    expires = now + int(ctx.safety.issue_seconds * 1000)
    issued: list[IssuedAddress] = []
    records: list[tuple[Address, Issued]] = []
    for path in checked:
        address = ids.new_address(ctx.ids, now)
        token_id = ctx.ids.new_id(now)
        token = ctx.issuer.sign(IssuedAddressClaims(ctx.repo, branch, path, address, token_id, expires))
        records.append((address, Issued(token_id, expires, branch, path)))
        issued.append(IssuedAddress(branch, path, address, token, to_datetime(expires)))
    ctx.references.issue(records)
    return issued


def link_many(ctx: Context, branch: BranchName, items: Sequence[Link]) -> list[StoredEntry]:
    """Link issued addresses; if one is refused, raise its error after the others were linked.

    Raises AlreadyLinked; and AlreadyExists and PathChanged before anything is linked where that is known by then.
    """
    argument_types.check_items(items, Link)
    return _write_all(ctx, branch, items, _link)


def link_each(
    ctx: Context, branch: BranchName, items: Sequence[Link]
) -> list[StoredEntry | AlreadyLinked | AlreadyExists | PathChanged | Contention]:
    """Put issued addresses that were written to on the branch, and return the entry or the refusal of each.

    Everything is checked before anything is linked. A refused token leaves its address to expire. Raises InvalidToken,
    ObjectNotFound.
    """
    argument_types.check_items(items, Link)
    return _write_each(ctx, branch, items, _link)


def _link(
    ctx: Context, branch: BranchName, items: Sequence[Link], planned: Sequence[PlannedPlacement]
) -> list[StoredEntry | AlreadyLinked | AlreadyExists | PathChanged | Contention]:
    branches = ctx.branches
    references = ctx.references
    paths = [item.path for item in planned]
    claims = [ctx.issuer.verify(item.token, ctx.repo, branch, path) for item, path in zip(items, paths, strict=True)]
    # one round trip, in any order: only the `set_if` of `references.link` counts (rule 10)
    results = ctx.kv.execute(
        [branches.get_operation(branch), *references.get_operations([claim.address for claim in claims])]
    )
    token = branches.parse_open(branch, results[0]).record.token
    if any(item.address and item.address != claim.address for item, claim in zip(items, claims, strict=True)):
        raise InvalidToken("the token was issued for another physical address; link the one that it came with")
    infos = [
        _stat_written(item, claim, info)
        for item, claim, info in zip(
            items, claims, ctx.objects.head_many([claim.address for claim in claims]), strict=True
        )
    ]
    if ctx.safety.copy_linked == "always":
        placements, linked_flags = _take_copies(ctx, branch, token, items, claims, results[1:])
    else:
        placements, linked_flags = _take_issued(ctx, token, items, claims, infos, results[1:])
    linked = [item for item, ok in zip(placements, linked_flags, strict=True) if ok]
    refused = place_each(ctx, branch, token, linked, witness=ctx.safety.witness == "always")
    entries = {item.path: item.entry for item in linked}
    return [
        refused.get(path)
        or entries.get(path)
        or AlreadyLinked(
            f"{path!r}: this physical address was linked before, or is expired; if a link of yours was not answered, "
            "look at the path; if your upload is not there, get a new address and upload again"
        )
        for path in paths
    ]


def _take_issued(
    ctx: Context,
    token: Token,
    items: Sequence[Link],
    claims: Sequence[IssuedAddressClaims],
    infos: Sequence[ObjectInfo],
    values: Sequence[Result],
) -> tuple[list[Placement], list[bool]]:
    """Put a reference of the path in place of `issued`, and return the placements, and for which ones it worked."""
    now = ctx.clock.now_ms()
    # a reference of its own: a repeated link must not mistake the other one's for its own
    references = [Reference(token, claim.path, ctx.ids.new_id(now)) for claim in claims]
    placements = [
        PlannedPlacement(claim.path, item.if_absent, expected_entry(item.if_entry)).with_entry(
            _make_linked_entry(item, claim.address, info, ref.id)
        )
        for item, claim, info, ref in zip(items, claims, infos, references, strict=True)
    ]
    links = [(claim.address, claim.token_id, ref) for claim, ref in zip(claims, references, strict=True)]
    return placements, ctx.references.link(links, values)


def _take_copies(
    ctx: Context,
    branch: BranchName,
    token: Token,
    items: Sequence[Link],
    claims: Sequence[IssuedAddressClaims],
    values: Sequence[Result],
) -> tuple[list[Placement], list[bool]]:
    """Copy what was written to new addresses, as uploads, take the issued ones, and return as `_take_issued` does.

    A URL that writes to the issued address may work on for a while. So what counts is what the copy has.
    """
    reserved = _reserve(ctx, token, [claim.path for claim in claims])
    began = ctx.clock.monotonic_seconds()
    with _withdraw_on_error(ctx, reserved):
        copies = copy_all(ctx, [(claim.address, address) for claim, (address, _) in zip(claims, reserved, strict=True)])
        placements = [
            PlannedPlacement(claim.path, item.if_absent, expected_entry(item.if_entry)).with_entry(
                _make_linked_entry(item, address, _stat_written(item, claim, info), "", sources=[claim.address]),
                issued_address=claim.address,
            )
            for item, claim, (address, _), info in zip(items, claims, reserved, copies, strict=True)
        ]
        _recheck_references(ctx, branch, reserved, began, again="link again")
        now = ctx.clock.now_ms()
        taken = [(claim, Reference(token, claim.path, ctx.ids.new_id(now))) for claim in claims]
        flags = ctx.references.replace_issued(
            [(claim.address, claim.token_id, ref) for claim, ref in taken],
            values,
            cause=LINKED_AS_COPY_CAUSE,
            due_ms=[claim.expires_ms for claim in claims],
        )
    if refused := [each for each, is_taken in zip(reserved, flags, strict=True) if not is_taken]:
        _withdraw(ctx, refused)
    return placements, flags


def _stat_written(item: Link, claim: IssuedAddressClaims, info: ObjectInfo | None) -> ObjectInfo:
    """Return what the store has. Raises ObjectNotFound, InvalidPath: its size is not what the writer believes."""
    if info is None:
        raise ObjectNotFound(f"nothing was uploaded to {claim.address}; write the data there first, then link it")
    if item.size_bytes is not None and item.size_bytes != info.size_bytes:
        raise InvalidPath(
            f"{claim.path!r}: the store holds {info.size_bytes} bytes, not {item.size_bytes}; upload again, then link"
        )
    return info


def _make_linked_entry(
    item: Link, address: Address, info: ObjectInfo, reference_id: str, *, sources: Sequence[Address] = ()
) -> StoredEntry:
    return StoredEntry(
        address,
        info.size_bytes,
        item.checksum,
        info.mtime_ms,
        dict(item.metadata),
        item.content_type,
        reference_id,
        item.md5,
        add_sources(item.s3, sources),
    )


def _reserve(ctx: Context, token: Token, paths: Sequence[Path]) -> list[tuple[Address, Reference]]:
    """Make new addresses, each with its first reference: without one nobody finds the blob after a crash (rule 1)."""
    unknown = UnknownOutcomes(ctx.clock)
    while True:  # `unknown` ends it
        now = ctx.clock.now_ms()
        reserved = [(ids.new_address(ctx.ids, now), Reference(token, path)) for path in paths]
        with unknown.tolerate():  # try new addresses then: nothing was written to these
            ctx.references.create(reserved)
            return reserved
        deadline.check()


def _make_entry(address: Address, stored: StoredObject, item: Upload, now_ms: int) -> StoredEntry:
    mtime = now_ms if item.modified is None else to_ms(item.modified)
    return StoredEntry(
        address,
        stored.size_bytes,
        stored.checksum,
        mtime,
        dict(item.metadata),
        item.content_type,
        md5=stored.md5,
        s3=item.s3(),
    )
