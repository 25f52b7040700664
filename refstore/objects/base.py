"""The object store interface: one instance is one storage namespace, and no key can leave it.

Keys are relative to the namespace (`data/2026112107/0jv…`), separated by `/`, and validated on the way in and on the
way out. Every driver guarantees this (`refstore.conformance.ObjectStoreSuite` tests it; docs/drivers.md):

- `put` streams: the whole body is never in memory at once. A put that fails or is killed leaves the key unchanged.
  `sweep_temporary`, or the store itself, removes its temporary data. An object is visible completely or not at all.
- `delete_many` returns for each key what the store confirmed. A key that does not exist is `missing_keys`, which is no
  error. A store that cannot tell the difference (S3 cannot) answers `deleted_keys`. Failures are retried with jitter
  within the call, then returned. They are not raised for single keys.
- `delete_unchanged` deletes nothing that is no longer as its caller saw it, except for what is written in the moment
  between its look and the deletion, where the store has no conditional deletion.
- `list` is ordered by the bytes of the keys, and complete. An interrupted listing raises.
- A store that does not answer raises `ObjectsUnavailable`. A key that does not exist raises `ObjectNotFound`. A store
  that refuses (credentials, permissions, no such bucket) raises `ObjectsRefused`, which says what to do.
- Keys follow the rules of `object_keys.py`. For any other key the store raises `InvalidPath` and does nothing. Objects
  of the namespace with other keys (such as a console's folder markers) are foreign: listings skip them and log a
  warning.
- A multipart upload is `begin_upload`, then any number of `put_part` and `copy_part` in any order, then
  `complete_upload` or `abort_uploads`. A store that has none inherits these methods. There, parts are objects of their
  own, and `join` makes one object of them.
- All methods may be called from several threads at once.
"""

from __future__ import annotations

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

from refstore.core import deadline
from refstore.core.batches import split_batches
from refstore.core.clock import Clock
from refstore.errors import AlreadyExists, CorruptObject, Invalid, ObjectNotFound
from refstore.objects.object_look import look_at

Body = bytes | BinaryIO | Iterable[bytes]
"""What can be put: bytes, a readable binary file, or chunks."""

LISTED_PAGE_KEYS: Final = 8192
"""Large enough that the cost of a page is small against that of its keys; about one MiB at once."""

OWN_FILES: Final = "_refstore/"
"""What the keys of refstore's own files begin with."""

CHUNK_BYTES = 1 << 20
"""The unit of streaming: large enough that Python is not the bottleneck, small enough to hold many at once."""


class StoredObject(NamedTuple):
    """What a put wrote, as the store confirmed it."""

    size_bytes: int
    checksum: str
    """Hex SHA-256 of the body, computed while it was sent."""
    md5: str = ""
    """Hex MD5 of the same bytes, for S3 clients; '' of refstore's own files, which none of these reads."""


class BodyDigest:
    """Counts and hashes the chunks of the body of an object."""

    def __init__(self, key: str) -> None:
        self._size_bytes = 0
        self._sha256 = hashlib.sha256()
        self._md5 = None if key.startswith(OWN_FILES) else hashlib.md5(usedforsecurity=False)

    def add(self, chunk: bytes) -> None:
        self._size_bytes += len(chunk)
        self._sha256.update(chunk)
        if self._md5 is not None:
            self._md5.update(chunk)

    @property
    def stored_object(self) -> StoredObject:
        return StoredObject(self._size_bytes, self._sha256.hexdigest(), self._md5.hexdigest() if self._md5 else "")


class ObjectInfo(NamedTuple):
    key: str
    size_bytes: int
    mtime_ms: int
    """When the object was written, in ms since the epoch, by the store's clock."""


class ObjectPage(NamedTuple):
    """Neighbouring objects of a listing, as columns."""

    keys: list[str]
    sizes_bytes: list[int]
    mtimes_ms: list[int]
    etags: list[str]
    """The ETags without quotes; '' where the store has none."""

    def select(self, chosen: Sequence[bool]) -> ObjectPage:
        """Return the chosen rows."""
        keys, sizes, mtimes, etags = self
        picked = list(compress(keys, chosen)), list(compress(sizes, chosen)), list(compress(mtimes, chosen))
        return ObjectPage(*picked, list(compress(etags, chosen)))


class SkippedKeys:
    """Counts the objects that a listing left out because their keys are invalid, with a few examples."""

    EXAMPLES_MAX: Final = 10

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[tuple[str, str]] = []
        """(name, reason); names are printable."""

    def add(self, name: str, reason: str) -> None:
        self.count += 1
        if len(self.examples) < self.EXAMPLES_MAX:
            self.examples.append((name if name.isprintable() else ascii(name)[1:-1], reason))


class DeleteResult(NamedTuple):
    """What `delete_many`, or `delete_unchanged`, confirmed for its keys."""

    deleted_keys: tuple[str, ...]
    missing_keys: tuple[str, ...]
    failed_keys: tuple[tuple[str, str], ...]
    """(key, the store's reason), after retries."""
    kept_keys: tuple[tuple[str, str], ...] = ()
    """(key, why) of `deleted_keys`: the key is gone, but the store keeps its bytes as a version, so no space is freed.
    """
    changed_keys: tuple[str, ...] = ()
    """Of `delete_unchanged`: what is not as it was given, and was not deleted."""


class VersioningStatus(NamedTuple):
    """Whether the store keeps versions of what is deleted through it."""

    keeps_versions: bool | None
    """None: not known."""
    warning: str
    """What an operator must know, and what to do; '': nothing."""


class StoredPart(NamedTuple):
    """What the store has of one part of a multipart upload."""

    size_bytes: int
    etag: str
    """The ETag that completes the upload, without quotes."""


class TagResult(NamedTuple):
    """What `tag_many` confirmed for its keys."""

    tagged_keys: tuple[str, ...]
    missing_keys: tuple[str, ...]
    failed_keys: tuple[tuple[str, str], ...]
    """(key, the store's reason), after retries."""


class ObjectStore(ABC):
    @abstractmethod
    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        """Write the object. With `if_absent`, raises AlreadyExists if the key is there and the store can tell
        (`conditional_put`).
        """

    def copy(self, source: str, key: str) -> ObjectInfo:
        """Write the object at `source` to `key`, too, under the operation's deadline; in the store where it can. Return
        what is there then. Raises ObjectNotFound; CorruptObject: the copy is not as long as its source.
        """
        self.put(key, deadline.check_each(self.get(source)))
        return self.head(key)

    @abstractmethod
    def get(
        self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        """Return the bytes [start, end) of one version of the object, in chunks. An `end` past the size means the size.
        `size_bytes`: of the whole object, as the caller knows it.

        The call itself, before any chunk is read, raises ObjectNotFound; CorruptObject where the object has another
        size; and Invalid where `start` is past the size or after `end`. The chunks are all of these bytes, or raise.
        The result has a `close`, for callers that do not read it to its end.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Return what the store says about the object. Raises ObjectNotFound."""

    def head_many(self, keys: Sequence[str]) -> Sequence[ObjectInfo | None]:
        """Return the `head` of each key, in their order, or None for a key that is not there."""
        return [_head_or_none(self, key) for key in keys]

    @abstractmethod
    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects in key order: keys that start with `prefix`, come strictly after `after`, and strictly
        before `before` ('' is the end).
        """

    def list_pages(
        self, prefix: str = "", *, skipped: SkippedKeys, after: str = "", before: str = ""
    ) -> Iterator[ObjectPage]:
        """Yield the objects of `list` as pages of columns, with ETags where the store has them. Skipped objects are
        added to `skipped`.
        """
        del skipped
        return page_objects(self.list(prefix, after=after, before=before))

    @abstractmethod
    def delete_many(self, keys: Sequence[str]) -> DeleteResult:
        """Delete the objects of any number of keys, in batches as the store needs them."""

    def delete_unchanged(self, objects: ObjectPage) -> DeleteResult:
        """Delete those of the objects that still have the size, the time, and the ETag where both sides have one, with
        which they are given. Each key is given once; best in key order. What is gone is among `missing_keys`.

        By default this looks, then deletes: what is written between both is deleted. A store that can decide in one
        step, or looks right before each deletion, should do so instead.
        """
        look = look_at(objects, self._list_after, self._head_page)
        return look.merge(self.delete_many(look.unchanged.keys))

    def _list_after(self, key: str) -> Iterator[ObjectPage]:
        return self.list_pages(skipped=SkippedKeys(), after=key)

    def _head_page(self, keys: Sequence[str]) -> ObjectPage:
        found = [info for info in self.head_many(keys) if info is not None]
        return next(page_objects(found), ObjectPage([], [], [], []))

    def presign_get(self, key: str, *, expires_seconds: int) -> str:
        """Return a URL that reads the object without credentials. Raises Invalid if the store has no presigned URLs."""
        del key, expires_seconds
        raise Invalid(f"{self.url} has no presigned URLs; read through refstore, or use an s3:// store")

    def presign_put(self, key: str, *, expires_seconds: int, if_absent: bool = False) -> str:
        """Return a URL that writes the object without credentials. Raises Invalid if the store has no
        presigned URLs.

        `if_absent`: the request must have the header `If-None-Match: *`, and an existing object is never replaced.
        Raises Invalid if the store ignores that (`conditional_put`).
        """
        del key, expires_seconds, if_absent
        raise Invalid(f"{self.url} has no presigned URLs; upload through refstore, or use an s3:// store")

    @property
    @abstractmethod
    def url(self) -> str:
        """The namespace's URL, without secrets. It is stored in the repository's record."""

    @property
    def is_remote(self) -> bool:
        """Whether bytes come over a network: larger pieces are read then."""
        return True

    @property
    def local_folder(self) -> Path | None:
        """The folder on a disk of this machine in which the objects lie; None: they lie elsewhere."""
        return None

    @property
    def conditional_put(self) -> bool:
        """Whether `if_absent` is enforced by the store."""
        return True

    def tag_many(self, keys: Sequence[str], tags: Mapping[str, str]) -> TagResult:
        """Replace the tags of the objects with `tags`, which may be empty. Raises Invalid if the store has no tags."""
        del keys, tags
        raise Invalid(f"{self.url} has no object tags; leave them out, or use an s3:// store")

    def versioning_status(self) -> VersioningStatus:
        """Ask whether the store keeps versions of what is deleted. Raises ObjectsUnavailable."""
        return VersioningStatus(False, "")

    def is_stored(self, key: str) -> bool:
        """Return whether the store has content of the key that a deletion through it would remove."""
        return _head_or_none(self, key) is not None

    def lifecycle_rules(self) -> list[dict[str, Any]]:
        """Return the lifecycle rules of the whole bucket, including those of its other users. Raises Invalid if the
        store has no such rules.
        """
        raise Invalid(f"{self.url} has no lifecycle rules; use an s3:// store")

    def set_lifecycle_rules(self, rules: Sequence[Mapping[str, Any]]) -> None:
        """Replace all lifecycle rules. Raises Invalid if the store has no such rules."""
        del rules
        raise Invalid(f"{self.url} has no lifecycle rules; use an s3:// store")

    def begin_upload(self, key: str) -> str:
        """Begin a multipart upload of the key, and return the store's id of it; '': the store has none, so each part is
        to be put as an object of its own, and then joined.
        """
        del key
        return ""

    def put_part(self, key: str, upload: str, number: int, body: Body) -> StoredPart:
        """Write a part of an upload that was begun. Raises ObjectNotFound: the upload is over."""
        del upload, number, body
        raise Invalid(f"{self.url} has no multipart uploads; put the parts of {key!r} as objects, and join them")

    def copy_part(
        self, key: str, upload: str, number: int, source: str, start: int, end: int, *, size_bytes: int
    ) -> StoredPart:
        """Write the bytes [start, end) of the object at `source`, which has `size_bytes`, as a part, in the store.
        Raises ObjectNotFound: the source, or the upload, is not there; CorruptObject: the source has another size.
        """
        del upload, number, source, start, end, size_bytes
        raise Invalid(f"{self.url} has no multipart uploads; put the parts of {key!r} as objects, and join them")

    def complete_upload(self, key: str, upload: str, parts: Sequence[tuple[int, str]]) -> ObjectInfo:
        """Make the object of the parts: (number, ETag), in order of number. An object that is there already stays: an
        earlier call, with the same parts, made it. Raises ObjectNotFound: a part, or the upload, is not there.
        """
        del upload, parts
        raise Invalid(f"{self.url} has no multipart uploads; put the parts of {key!r} as objects, and join them")

    def join(self, key: str, sources: Sequence[tuple[str, int]]) -> ObjectInfo:
        """Write the contents of the sources (key, size), one after the other, as one object, under the operation's
        deadline and without holding them. An object that is there already stays, as of `complete_upload`. Raises
        ObjectNotFound; CorruptObject: a source has another size, and nothing is written.
        """
        found = _head_or_none(self, key)
        if found is None:
            parts = (self.get(source, size_bytes=size_bytes) for source, size_bytes in sources)
            chunks = (chunk for part in parts for chunk in deadline.check_each(part))
            with suppress(AlreadyExists):
                self.put(key, chunks, if_absent=True)
        return found or self.head(key)

    def abort_uploads(self, key: str) -> int:
        """Abort every multipart upload of the key that the store knows, with its parts, and return how many there
        were. The key itself, if there is such an object, stays.
        """
        del key
        return 0

    def sweep_temporary(self, *, older_than_seconds: float, clock: Clock, spared_keys: Container[str] = ()) -> int:
        """Remove unfinished files or uploads that are older than any put may take: their clients were killed. Return
        their number. Several callers may call it at once, each about once an hour.

        `spared_keys`: of multipart uploads that are open, however old.
        """
        del older_than_seconds, clock, spared_keys
        return 0

    def read(self, key: str) -> bytes:
        """Return the whole object. Use it for objects that are known to be small or are needed completely (ranges,
        journals).
        """
        return b"".join(self.get(key))

    def close(self) -> None:
        """Release connections. May be called twice."""
        return


def list_objects(pages: Iterable[ObjectPage], skipped: SkippedKeys, store: str, prefix: str) -> Iterator[ObjectInfo]:
    """Yield the objects of the pages of a driver, and log how many were skipped."""
    try:
        for page in pages:
            yield from map(ObjectInfo, page.keys, page.sizes_bytes, page.mtimes_ms)
    finally:
        if skipped.count:
            from refstore.core import event_log  # the import takes far longer than a deletion, which needs no log

            event_log.get_logger(__name__).warning(
                "left out of a listing: objects that refstore could not have written",
                store=store,
                prefix=prefix,
                count=skipped.count,
            )


def page_objects(listed: Iterable[ObjectInfo]) -> Iterator[ObjectPage]:
    """Yield the listed objects as pages of columns."""
    for page in split_batches(listed, LISTED_PAGE_KEYS):
        keys, sizes, mtimes = zip(*page, strict=True)
        yield ObjectPage([*keys], [*sizes], [*mtimes], [""] * len(page))


def put_if_new(store: ObjectStore, key: str, body: bytes) -> None:
    """Put an object where none is. Raises AlreadyExists, as well as a store without a conditional put can tell."""
    if store.conditional_put:
        store.put(key, body, if_absent=True)
    elif _head_or_none(store, key) is None:
        store.put(key, body)
    else:
        raise AlreadyExists(f"there is an object at {key!r} already; it was not changed")


def _head_or_none(store: ObjectStore, key: str) -> ObjectInfo | None:
    try:
        return store.head(key)
    except ObjectNotFound:
        return None


def chunks_of(body: Body) -> Iterator[bytes]:
    """Yield `body` as non-empty chunks that the caller may keep. A buffer that its owner may overwrite is copied.

    Raises Invalid for chunks that are no bytes. A number is none: `bytes(5)` would be five zeros.
    """
    if not hasattr(body, "read"):
        with suppress(TypeError):  # no buffer, as a list of chunks is none
            view = memoryview(cast("bytes", body))
            body = io.BytesIO(view if view.c_contiguous else view.tobytes())
    if hasattr(body, "read"):
        while chunk := cast("BinaryIO", body).read(CHUNK_BYTES):
            yield _as_bytes(chunk)
    else:
        yield from filter(None, map(_as_bytes, body))


def _as_bytes(chunk: object) -> bytes:
    if isinstance(chunk, bytes):
        return chunk
    try:
        return bytes(memoryview(cast("bytes", chunk)))
    except TypeError:
        raise Invalid(
            f"a body gave a chunk of type {type(chunk).__name__}, and must give bytes; open files with mode 'rb', and "
            "encode texts"
        ) from None


def check_range(key: str, start: int, end: int | None) -> None:
    """Check the bounds as far as possible without knowing the object's size. Raises Invalid."""
    if start < 0 or (end is not None and end < start):
        raise Invalid(
            f"the range [{start}, {'' if end is None else end}) of {key!r} is not valid; use 0 <= start <= end"
        )


def clip_range(key: str, start: int, end: int | None, size_bytes: int) -> tuple[int, int]:
    """Return (first, last + 1) of the bytes to read from an object of that size. Raises Invalid."""
    check_range(key, start, end)
    if start > size_bytes:
        raise Invalid(f"byte {start} is past the end of {key!r}, which has {size_bytes} bytes; ask for its size first")
    return start, size_bytes if end is None else min(end, size_bytes)


def check_length(key: str, expected_bytes: int | None, found_bytes: int) -> None:
    """Check that an object is as long as its caller knows it to be; None: it does not know. Raises CorruptObject."""
    if expected_bytes is not None and found_bytes != expected_bytes:
        raise CorruptObject(
            f"{key!r} has {found_bytes} bytes in the store, and had {expected_bytes} when it was recorded: something "
            "cut it off or changed it, which refstore never does; find out what, and put it back from a copy"
        )
