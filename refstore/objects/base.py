"""The object store interface: one instance is one storage namespace, and no key can leave it.

Keys are relative to the namespace (`data/2026112107/0jv…`), `/`-separated, validated on the way in and on the way
out. Semantics every driver holds (`tests/conformance/objects_suite.py` is their executable form):

- `put` streams: the body is never held whole in memory. A put that fails, or is killed, leaves no object under the
  key (at most something the store's own housekeeping takes). An object is visible whole or not at all.
- `delete_many` says per key what the store confirmed. A key that was not there is `missing`, not an error; where a
  store cannot tell the two apart (S3 does not say) it answers `deleted`. Failures are retried with jitter within
  the call, then returned, never raised for single keys and never swallowed.
- `list` is ordered by key bytes and complete, or raises: a listing that ends early is never mistaken for one that ended.
- A store that does not answer raises `ObjectsUnavailable`; a key that is not there, `ObjectNotFound`; one that
  refuses (credentials, permissions, no such bucket), `InvalidSettings`, saying what to do.
- Keys follow `naming.py`, or `InvalidPath` is raised and nothing is done. An object in the namespace whose key does not
  (a folder marker of some console, say) is foreign: it is left out of listings, with a warning in the log.
"""

from __future__ import annotations

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, BinaryIO, Final, NamedTuple, cast

from refstore.clock import Clock
from refstore.errors import Invalid, ObjectNotFound

Body = bytes | BinaryIO | Iterable[bytes]
"""What can be put: bytes, a readable binary file, or chunks."""

LISTED_PAGE_KEYS: Final = 8192
"""Enough to make the cost of a page small against that of its keys; about a MiB at once."""

CHUNK_BYTES = 1 << 20
"""The unit of streaming: large enough that Python is not the bottleneck, small enough to hold many at once."""


class Stored(NamedTuple):
    """What a put confirmed."""

    size_bytes: int
    checksum: str
    """Hex SHA-256 of the body, computed while it streamed by."""
    md5: str = ""
    """Hex MD5 of the same bytes."""


class Tally:
    """Counts and hashes a body while it streams by."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False)

    def add(self, chunk: bytes) -> None:
        self._size_bytes += len(chunk)
        self._sha256.update(chunk)
        self._md5.update(chunk)

    @property
    def stored(self) -> Stored:
        return Stored(self._size_bytes, self._sha256.hexdigest(), self._md5.hexdigest())


class ObjectInfo(NamedTuple):
    key: str
    size_bytes: int
    mtime_ms: int
    """When the store says it was written, in ms since the epoch; the store's clock."""


class ListedPage(NamedTuple):
    """Neighbouring objects of a listing, column by column."""

    keys: list[str]
    sizes_bytes: list[int]
    mtimes_ms: list[int]
    etags: list[str]
    """What the store says of each object's content, without quotes; '' where it says nothing."""

    def where(self, chosen: Sequence[bool]) -> ListedPage:
        """The chosen rows."""
        keys, sizes, mtimes, etags = self
        picked = list(compress(keys, chosen)), list(compress(sizes, chosen)), list(compress(mtimes, chosen))
        return ListedPage(*picked, list(compress(etags, chosen)))


class Skipped:
    """What a listing left out because it can never be named, counted, with the reasons of the first few."""

    EXAMPLES_MAX: Final = 10

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[tuple[str, str]] = []
        """(name, reason); names are printable."""

    def add(self, name: str, reason: str) -> None:
        self.count += 1
        if len(self.examples) < self.EXAMPLES_MAX:
            self.examples.append((name if name.isprintable() else ascii(name)[1:-1], reason))


class Deletion(NamedTuple):
    """What `delete_many` confirmed of its keys."""

    deleted: tuple[str, ...]
    missing: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]
    """(key, the store's reason), after retries."""


class Tagging(NamedTuple):
    """What `tag_many` confirmed of its keys."""

    tagged: tuple[str, ...]
    missing: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]
    """(key, the store's reason), after retries."""


class ObjectStore(ABC):
    @abstractmethod
    def put(self, key: str, body: Body, *, if_absent: bool = False) -> Stored:
        """Write the object. With `if_absent`, raises AlreadyExists where the store can tell (`conditional_put`)."""

    @abstractmethod
    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes [start, end) in chunks, of one version of the object. What can be known before the first chunk is
        raised by the call itself: ObjectNotFound, and Invalid where start is past the size or after end. An end past the
        size is the size."""

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Raises ObjectNotFound."""

    def head_many(self, keys: Sequence[str]) -> Sequence[ObjectInfo | None]:
        """`head` of each, in their order; None: it is not there."""
        return [_head_or_none(self, key) for key in keys]

    @abstractmethod
    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, strictly after the key `after`, in key order.

        `before`: up to that key, which is left out; '': to the end.
        """

    def list_pages(self, prefix: str = "", *, skipped: Skipped) -> Iterator[ListedPage]:
        """The same as `list`, in pages of columns, with ETags where the store has them; what is left out goes into `skipped`."""
        del skipped
        return in_pages(self.list(prefix))

    @abstractmethod
    def delete_many(self, keys: Sequence[str]) -> Deletion:
        """Remove objects; any number of keys, batched as the store wants it."""

    @abstractmethod
    def presign_get(self, key: str, *, expires_seconds: int) -> str:
        """A URL that reads the object without credentials. Raises Invalid where the store has no such thing."""

    @abstractmethod
    def presign_put(self, key: str, *, expires_seconds: int) -> str:
        """A URL that writes the object without credentials. Raises Invalid where the store has no such thing."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The namespace's URL, without secrets, as it may stand in a repository's record."""

    @property
    def conditional_put(self) -> bool:
        """Whether `if_absent` is enforced by the store."""
        return True

    def tag_many(self, keys: Sequence[str], tags: Mapping[str, str]) -> Tagging:
        """Set the tags of objects (replacing what they had; no tags: take them off). Raises Invalid where the store has no tags."""
        del keys, tags
        raise Invalid(f"{self.url} has no object tags; leave them out, or use an s3:// store")

    def lifecycle_rules(self) -> list[dict[str, Any]]:
        """The rules by which the store itself deletes, of everybody who uses the bucket. Raises Invalid where it has no such thing."""
        raise Invalid(f"{self.url} has no lifecycle rules; use an s3:// store")

    def set_lifecycle_rules(self, rules: Sequence[Mapping[str, Any]]) -> None:
        """Replace all of them. Raises Invalid where the store has no such thing."""
        del rules
        raise Invalid(f"{self.url} has no lifecycle rules; use an s3:// store")

    def sweep_temporary(self, *, older_than_seconds: float, clock: Clock) -> int:
        """Remove what puts of killed clients left behind unseen, if it is so old that no put can still be at it. Returns how
        many there were. Cheap enough to be called once an hour; several callers at once are fine."""
        del older_than_seconds, clock
        return 0

    def read(self, key: str) -> bytes:
        """The whole object; for what is known to be small or is needed whole (ranges, journals)."""
        return b"".join(self.get(key))

    def close(self) -> None:
        """Release connections. Calling it twice is fine."""
        return


def in_pages(listed: Iterable[ObjectInfo]) -> Iterator[ListedPage]:
    """Column by column as they come: to hold a page of tuples sets off the garbage collector, which takes as long as the listing."""
    page = ListedPage([], [], [], [])
    keys, sizes, mtimes, etags = page
    for key, size, mtime in listed:
        keys.append(key)
        sizes.append(size)
        mtimes.append(mtime)
        if len(keys) == LISTED_PAGE_KEYS:
            etags += [""] * len(keys)
            yield page
            page = ListedPage([], [], [], [])
            keys, sizes, mtimes, etags = page
    if keys:
        etags += [""] * len(keys)
        yield page


def _head_or_none(store: ObjectStore, key: str) -> ObjectInfo | None:
    try:
        return store.head(key)
    except ObjectNotFound:
        return None


def chunks_of(body: Body) -> Iterator[bytes]:
    """`body` as non-empty chunks. They may be kept: a buffer that its owner fills again is copied, bytes are not."""
    if isinstance(body, bytes | bytearray | memoryview):
        body = io.BytesIO(body)
    if hasattr(body, "read"):
        while chunk := cast("BinaryIO", body).read(CHUNK_BYTES):
            yield bytes(chunk)
    else:
        yield from (bytes(chunk) for chunk in body if chunk)  # not a file: chunks
