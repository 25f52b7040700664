"""Upload, stage, issue and link: how data comes in.

Upload: branch -> reference under its token (rule 1) -> blob -> [re-check of a long upload, rule 11] -> entry and token check
(rule 2) -> release of what was replaced (rule 6). A body that cannot be stored leaves a reference without an entry; it goes
when its token is processed, and the blob, if any, with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Final, NamedTuple

import msgspec

from refstore import deadline, ids
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import (
    AlreadyExists,
    AlreadyLinked,
    Contention,
    InvalidName,
    InvalidPath,
    InvalidToken,
    KVUnavailable,
    ObjectNotFound,
    OutcomeUnknown,
    RefstoreError,
)
from refstore.flows.placing import (
    Moved,
    Placement,
    check_distinct,
    explain_moved,
    place,
    place_where_nothing_is,
    there_already,
)
from refstore.ids import Address, BranchName, Path, Token
from refstore.issuance import Claims
from refstore.namespaces import Namespaces
from refstore.objects.base import Body, Stored, chunks_of
from refstore.records import Deleting, Entry, Issued, Reference
from refstore.references import References, Release

ATTEMPTS: Final = 8
"""How often addresses are made anew because the KV did not say whether it took the last ones."""

UPLOAD_FAILED: Final = "upload failed"

BATCH: Final = 1000
"""How many objects of a bulk call share their round trips. More would hold a batch's first object back for long."""

WRITERS: Final = 4
"""Bodies of one batch that are written at a time; more only helps where the store is far away."""

METADATA_BYTES_MAX: Final = 8192
"""User metadata of one object, keys and values together; S3 allows 2 KiB, lakeFS bounds it by its request size."""


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """One object to upload."""

    path: str
    body: Body
    metadata: dict[str, str] = {}
    content_type: str = ""
    mtime_ms: int | None = None
    """When the content was last changed; None: now."""
    if_absent: bool = False
    """Whether it is refused where something is at the path already (AlreadyExists)."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One object that exists outside the namespace, to be named and never deleted."""

    path: str
    url: str
    size_bytes: int
    checksum: str = ""
    metadata: dict[str, str] = {}
    content_type: str = ""
    mtime_ms: int | None = None


class IssuedAddress(NamedTuple):
    """A physical address to write to, and the token that links it (rule 10)."""

    branch: BranchName
    path: Path
    address: Address
    token: str
    expires_ms: int


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One issued address that has been written to."""

    path: str
    token: str
    address: str = ""
    """The physical address that the caller means; refused if the token is another's. '': whatever the token says."""
    size_bytes: int | None = None
    """What the writer believes it wrote; refused if the store says otherwise. None: whatever the store says."""
    checksum: str = ""
    metadata: dict[str, str] = {}
    content_type: str = ""
    if_absent: bool = False
    """Whether it is refused where something is at the path already (AlreadyExists)."""


def upload_many(ctx: Context, branch: BranchName, uploads: Sequence[Upload]) -> list[Entry]:
    """`upload_each`, where one that is refused fails the call: behind the others, which are uploaded.

    Raises AlreadyExists, before anything is written where it can tell.
    """
    planned = _planned(uploads)
    for error in there_already(ctx, branch, planned).values():
        raise error
    return _all_or_raise(_upload(ctx, branch, uploads, [item.path for item in planned]))


def upload_each(ctx: Context, branch: BranchName, uploads: Sequence[Upload]) -> list[Entry | AlreadyExists | Contention]:
    """Upload up to BATCH objects with shared round trips; what became of each. Bodies of those that are refused at once are not read."""
    planned = _planned(uploads)
    paths = [item.path for item in planned]
    there = there_already(ctx, branch, planned)
    wanted = [(item, path) for item, path in zip(uploads, paths, strict=True) if path not in there]
    done = iter(_upload(ctx, branch, [item for item, _ in wanted], [path for _, path in wanted]) if wanted else ())
    return [there.get(path) or next(done) for path in paths]


def _planned(items: Sequence[Upload] | Sequence[Link]) -> list[Placement]:
    """What is to be placed, before there are addresses: checked for what can be checked now. Raises Invalid."""
    planned = [Placement(ids.object_path(item.path), None, referenced=True, if_absent=item.if_absent) for item in items]
    check_distinct(planned)
    for item in items:
        _check_metadata(item.metadata)
        ids.content_type(item.content_type)
    return planned


def _all_or_raise(results: Sequence[Entry | RefstoreError]) -> list[Entry]:
    """What is behind one that was refused is there all the same: it can be asked for, or written again."""
    entries: list[Entry] = []
    for result in results:
        if isinstance(result, RefstoreError):
            raise result
        entries.append(result)
    return entries


def _upload(ctx: Context, branch: BranchName, uploads: Sequence[Upload], paths: Sequence[Path]) -> list[Entry | AlreadyExists | Contention]:
    """Raises what `place` does, and what the stores do."""
    references = References(ctx.kv, ctx.repo, ctx.clock)
    token = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).open(branch).record.token
    now = ctx.clock.now_ms()
    held = _reserve(ctx, references, token, paths)
    addresses = [address for address, _ in held]
    began = ctx.clock.monotonic_seconds()
    try:
        stored = put_all(ctx, [(address, item.body) for address, item in zip(addresses, uploads, strict=True)])
    except Exception:
        with suppress(RefstoreError):
            _withdraw(ctx, references, held)
        raise
    if ctx.clock.monotonic_seconds() - began >= ctx.safety.recheck_after_seconds and not all(references.holds(held)):
        _withdraw(ctx, references, held)
        raise Contention(f"the upload outlived its reference, because branch {branch!r} was committed or reset long ago; upload again")
    placements = [
        Placement(path, _entry(address, done, item, now), referenced=True, if_absent=item.if_absent)
        for path, address, done, item in zip(paths, addresses, stored, uploads, strict=True)
    ]
    refused = _place(ctx, branch, token, placements)
    return [refused.get(item.path) or item.entry for item in placements if item.entry is not None]


def _withdraw(ctx: Context, references: References, held: Sequence[tuple[Address, Reference]]) -> None:
    """Take back what was stored and is not going to be placed: never placed means never committed.

    Its references go without waiting for their token's end. A blob goes only where its address is `deleting` (rule 11): what is in its
    grace window somebody may restore, and what has no key any more somebody may have restored and committed. If it was the reaper that
    was through with an address before its blob came, the blob is left to the offline job.
    """
    references.release([Release(*item, UPLOAD_FAILED, None) for item in held], grace_seconds=ctx.grace_seconds)
    addresses = [address for address, _ in held]
    records = references.get_many(addresses)
    leaving = [address for address, record in zip(addresses, records, strict=True) if isinstance(record, Deleting)]
    if leaving:
        ctx.objects.delete_many(leaving)


def _place(ctx: Context, branch: BranchName, token: Token, placements: Sequence[Placement]) -> dict[Path, AlreadyExists | Contention]:
    """Place what is new; those that were refused because something was there. Raises what `place` does, but Moved."""
    refused = place_where_nothing_is(ctx, branch, token, placements, on_empty=True)
    others = [item for item in placements if not item.if_absent]
    if others:
        try:
            place(ctx, branch, token, others, on_empty=True)
        except Moved as moved:
            for item in moved.placements:
                try:
                    explain_moved(ctx, branch, Moved([item]))
                except Contention as error:
                    refused[item.path] = error
    return refused


def stage_many(ctx: Context, branch: BranchName, items: Sequence[Stage]) -> list[Entry]:
    """Name objects outside of this lake. They have no reference, and are never deleted. Raises InvalidName for those inside."""
    placements: list[Placement] = []
    namespaces = Namespaces.read(ctx.kv, ctx.objects.url)
    now = ctx.clock.now_ms()
    for item in items:
        _check_metadata(item.metadata)
        ids.content_type(item.content_type)
        address = _foreign_address(item.url, namespaces)
        mtime = now if item.mtime_ms is None else item.mtime_ms
        entry = Entry(address, item.size_bytes, item.checksum, mtime, item.metadata, item.content_type)
        placements.append(Placement(ids.object_path(item.path), entry, referenced=False))
    token = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).open(branch).record.token
    place(ctx, branch, token, placements, on_empty=False)
    return [item.entry for item in placements if item.entry is not None]


def issue_many(ctx: Context, branch: BranchName, paths: Sequence[str]) -> list[IssuedAddress]:
    """Physical addresses to write to, each with the token that links it once, for that path (rule 10)."""
    checked = [ids.object_path(path) for path in paths]
    for _ in range(ATTEMPTS):
        Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).open(branch)
        with suppress(OutcomeUnknown):  # new addresses then: these may have been issued, and expire unseen
            return _issue(ctx, branch, checked)
    raise KVUnavailable("the KV did not keep an issued address, several times over; try again later")


def _issue(ctx: Context, branch: BranchName, checked: Sequence[Path]) -> list[IssuedAddress]:
    now = ctx.clock.now_ms()
    expires = now + int(ctx.safety.issue_seconds * 1000)
    given: list[IssuedAddress] = []
    records: list[tuple[Address, Issued]] = []
    for path in checked:
        address = ids.new_address(ctx.ids, now)
        token_id = ctx.ids.unique(now)
        token = ctx.issuer.sign(Claims(ctx.repo, branch, path, address, token_id, expires))
        records.append((address, Issued(token_id, expires, branch, path)))
        given.append(IssuedAddress(branch, path, address, token, expires))
    References(ctx.kv, ctx.repo, ctx.clock).issue(records)
    return given


def link_many(ctx: Context, branch: BranchName, items: Sequence[Link]) -> list[Entry]:
    """`link_each`, where one that is refused fails the call: behind the others, which are linked.

    Raises AlreadyLinked; AlreadyExists, before anything is linked where it can tell.
    """
    planned = _planned(items)
    for error in there_already(ctx, branch, planned).values():
        raise error
    return _all_or_raise(_link(ctx, branch, items, [item.path for item in planned]))


def link_each(ctx: Context, branch: BranchName, items: Sequence[Link]) -> list[Entry | AlreadyLinked | AlreadyExists | Contention]:
    """Put issued addresses, now written to, on the branch; what became of each. Raises InvalidToken, ObjectNotFound.

    Everything is checked before anything is linked; a token that is refused leaves its address to expire.
    """
    planned = _planned(items)
    paths = [item.path for item in planned]
    there = there_already(ctx, branch, planned)
    wanted = [(item, path) for item, path in zip(items, paths, strict=True) if path not in there]
    done = iter(_link(ctx, branch, [item for item, _ in wanted], [path for _, path in wanted]) if wanted else ())
    return [there.get(path) or next(done) for path in paths]


def _link(
    ctx: Context, branch: BranchName, items: Sequence[Link], paths: Sequence[Path]
) -> list[Entry | AlreadyLinked | AlreadyExists | Contention]:
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    references = References(ctx.kv, ctx.repo, ctx.clock)
    claims = [ctx.issuer.verify(item.token, ctx.repo, branch, path) for item, path in zip(items, paths, strict=True)]
    token = branches.open(branch).record.token
    if any(item.address and item.address != claim.address for item, claim in zip(items, claims, strict=True)):
        raise InvalidToken("the token was issued for another physical address; link the one that it came with")
    placements: list[Placement] = []
    links: list[tuple[Address, str, Reference]] = []
    now = ctx.clock.now_ms()
    there = ctx.objects.head_many([claim.address for claim in claims])
    for item, path, claim, info in zip(items, paths, claims, there, strict=True):
        if info is None:
            raise ObjectNotFound(f"nothing was uploaded to {claim.address}; write the data there first, then link it")
        if item.size_bytes is not None and item.size_bytes != info.size_bytes:
            raise InvalidPath(f"{path!r}: the store holds {info.size_bytes} bytes, not {item.size_bytes}; upload again, then link")
        ref = Reference(token, path, ctx.ids.unique(now))  # its own: the same link made twice must not take the other's for it
        entry = Entry(claim.address, info.size_bytes, item.checksum, info.mtime_ms, item.metadata, item.content_type, ref.id)
        placements.append(Placement(path, entry, referenced=True, if_absent=item.if_absent))
        links.append((claim.address, claim.token_id, ref))
    won = references.link(links)
    linked = [item for item, ok in zip(placements, won, strict=True) if ok]
    refused = _place(ctx, branch, token, linked)
    done = {item.path: item.entry for item in linked}
    return [
        refused.get(path)
        or done.get(path)
        or AlreadyLinked(
            f"{path!r}: this physical address was linked before, or is expired; if a link of yours was not answered, look at the path; "
            "if your upload is not there, get a new address and upload again"
        )
        for path in paths
    ]


def _reserve(ctx: Context, references: References, token: Token, paths: Sequence[Path]) -> list[tuple[Address, Reference]]:
    """New addresses, each with its first reference (rule 1)."""
    for _ in range(ATTEMPTS):
        now = ctx.clock.now_ms()
        held = [(ids.new_address(ctx.ids, now), Reference(token, path)) for path in paths]
        with suppress(OutcomeUnknown):  # new addresses then: nothing has been put to these
            references.create(held)
            return held
        deadline.check()
    raise KVUnavailable("the KV did not keep a reference, several times over; try again later")


def put_all(ctx: Context, bodies: Sequence[tuple[Address, Body]]) -> list[Stored]:
    """Write the blobs, several at a time; the deadline of the operation holds in every thread."""

    def put(address: Address, body: Body) -> Stored:
        return ctx.objects.put(address, deadline.checked(chunks_of(body)) if not isinstance(body, bytes) else body)

    if len(bodies) == 1:
        return [put(*bodies[0])]
    waiting = deque(enumerate(bodies))
    stored: dict[int, Stored] = {}

    def write() -> None:
        while True:
            try:
                place, (address, body) = waiting.popleft()
            except IndexError:
                return
            try:
                stored[place] = put(address, body)
            except BaseException:
                waiting.clear()  # the batch has failed: what was not begun need not be
                raise

    # one task for each writer, not for each body: handing small bodies over one by one takes longer than writing them
    with ThreadPoolExecutor(max_workers=min(WRITERS, len(bodies)), thread_name_prefix="refstore-put") as pool:
        for writer in [pool.submit(copy_context().run, write) for _ in range(min(WRITERS, len(bodies)))]:
            writer.result()
    return [stored[place] for place in range(len(bodies))]


def _foreign_address(url: str, namespaces: Namespaces) -> Address:
    """The address of data that is staged from outside. Raises InvalidName for anything that could be ours to delete."""
    scheme, separator, rest = url.partition("://")
    if not separator or not scheme.isalnum() or not rest or not url.isprintable() or len(url.encode(errors="replace")) > 2048:
        raise InvalidName(f"{url[:80]!r} is not the URL of an object; give its full address, such as s3://bucket/key")
    namespaces.check_object(url)
    return Address(url)


def in_batches(items: Iterator[Upload], size: int, write: Callable[[list[Upload]], list[Entry]]) -> Iterator[Entry]:
    """Upload any number of objects, batch by batch, as they are produced."""
    batch: list[Upload] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield from write(batch)
            batch = []
    if batch:
        yield from write(batch)


def _entry(address: Address, stored: Stored, item: Upload, now_ms: int) -> Entry:
    mtime = now_ms if item.mtime_ms is None else item.mtime_ms
    return Entry(address, stored.size_bytes, stored.checksum, mtime, dict(item.metadata), item.content_type, md5=stored.md5)


def _check_metadata(metadata: dict[str, str]) -> None:
    size = sum(len(key.encode(errors="replace")) + len(value.encode(errors="replace")) for key, value in metadata.items())
    if size > METADATA_BYTES_MAX:
        raise InvalidPath(f"metadata of {size} bytes is more than {METADATA_BYTES_MAX}; keep large things in an object")
