"""Objects of others, which refstore names and reads but never writes or deletes: what their URLs say, and how they are
read.

    s3://bucket/key                one object of S3 (s3a:// and s3n:// are the same)
    file:///directory/name         one file of this machine (local:// is the same)

In such an address `%`, `?`, `#` and what cannot be printed stand as %XX, and everything else as it is. How a bucket is
reached (endpoint, region, profile) is never the address's to say: it comes from the operator's own URLs
(`api.import_from`, the lake's own objects), or from where every AWS tool finds it.

Files are read below a folder without following symbolic links, so a link that is planted there leads nowhere else.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

from refstore.core.redaction import redact_url
from refstore.errors import Gone, InvalidName, InvalidSettings, ObjectNotFound, StoreMisconfigured
from refstore.objects.base import ObjectInfo, ObjectStore
from refstore.objects.local import LocalObjects
from refstore.objects.store_urls import StoreURL, parse

Kind = Literal["file", "s3"]

_KINDS: Final[Mapping[str, Kind]] = {"file": "file", "local": "file", "s3": "s3", "s3a": "s3", "s3n": "s3"}
_REACHED_BY: Final = ("endpoint", "region", "profile", "addressing")
"""Options that say how a bucket is reached; those that say how it is written to are no concern here."""

TO_QUOTE: Final = r'[^ -"$&->@-~]'
"""What may have to be quoted in an address, as a regular expression that RE2 reads too: `%`, `?`, `#`, and all that is
not ASCII.
"""
_TO_QUOTE: Final = re.compile(TO_QUOTE)


class ForeignLocation(NamedTuple):
    """An object of others, or the beginning of many."""

    kind: Kind
    bucket: str
    """'' for files."""
    path: str
    """The key; of files the absolute path, without the slash in front."""
    options: tuple[tuple[str, str], ...] = ()
    """How the bucket is reached, where the URL says so."""

    @property
    def root(self) -> str:
        """The address of everything there, up to the path."""
        return f"{self.kind}://{self.bucket}/"

    @property
    def url(self) -> str:
        return self.root + quoted(self.path)

    def real(self) -> ForeignLocation:
        """The same, symbolic links resolved."""
        if self.kind != "file":
            return self
        resolved = os.path.realpath("/" + self.path)
        return self._replace(path=resolved[1:] + ("/" if self.path.endswith("/") and resolved != "/" else ""))


def parse_place(url: str) -> ForeignLocation:
    """Raise InvalidName for a URL that names nothing that can be read here."""
    try:
        parsed = parse(url)
    except InvalidSettings as error:
        raise InvalidName(str(error)) from None
    kind = _KINDS.get(parsed.scheme)
    shown = redact_url(url)[:200]
    if kind is None:
        raise InvalidName(f"{shown!r} cannot be read from here; name objects of s3:// or file://")
    if any(segment in (".", "..") for segment in parsed.path.split("/")):
        raise InvalidName(f"{shown!r} has '.' or '..' between slashes; give the object's own path")
    if kind == "file":
        if parsed.host not in ("", "localhost") or not parsed.path.startswith("/"):
            raise InvalidName(f"{shown!r} is not a file of this machine; write three slashes: file:///directory/name")
        if parsed.options:
            raise InvalidName(f"{shown!r} has options; a file has none: write %3F for a '?' that belongs to its name")
        return ForeignLocation("file", "", re.sub("/+", "/", parsed.path)[1:])
    if not parsed.host:
        raise InvalidName(f"{shown!r} names no bucket; write s3://bucket/key")
    unknown = [name for name in parsed.options if name not in _REACHED_BY]
    if unknown:
        raise InvalidName(
            f"{shown!r} has the option {unknown[0]!r}; use {', '.join(_REACHED_BY)}, or %3F for a '?' of the key"
        )
    return ForeignLocation("s3", parsed.host, parsed.path.removeprefix("/"), tuple(sorted(parsed.options.items())))


def quoted(path: str) -> str:
    """A key or a file's path as it stands in an address."""
    if not _TO_QUOTE.search(path):
        return path
    return "".join(
        character if character.isprintable() and character not in "%?#" else quote(character) for character in path
    )


class Prefixes:
    """The places below which foreign objects may be imported and read; each is taken as a folder."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Raises InvalidName."""
        self._places = tuple(parse_place(url) for url in urls)

    def __bool__(self) -> bool:
        return bool(self._places)

    def __str__(self) -> str:
        return ", ".join(place.url for place in self._places)

    @property
    def refusal(self) -> str:
        """Why what lies below none of them is refused, and what to do about it."""
        what = (
            f"it lies below none of the places that this service may read ({self})"
            if self
            else "this service may read no such place"
        )
        return (
            f"{what}; an operator allows places with the setting api.import_from, such as s3://bucket/prefix/ or "
            "file:///directory/"
        )

    def covering(self, place: ForeignLocation) -> ForeignLocation | None:
        """The folder, symbolic links resolved, below which `place` lies; so do all that begin with it. None: it lies
        below none.
        """
        real = place.real()
        for each in self._places:
            folder = each.real()
            below = folder.path.rstrip("/") + "/" if folder.path else ""
            if (folder.kind, folder.bucket) == (real.kind, real.bucket) and real.path.startswith(below):
                return folder._replace(path=below)
        return None


class ForeignStores:
    """Opens the stores of foreign objects, and keeps the clients of buckets. Thread-safe."""

    def __init__(self, open_store: Callable[[str], ObjectStore], *, known: Sequence[str] = ()) -> None:
        """`known`: URLs whose options say how their buckets are reached; those of the last one are for all other
        buckets.
        """
        self._open_store = open_store
        self._known = [parsed for parsed in map(parse, known) if parsed.scheme == "s3"]
        self._buckets: dict[str, ObjectStore] = {}
        self._lock = threading.Lock()

    def bucket(self, place: ForeignLocation) -> ObjectStore:
        """The whole bucket as a store whose keys are the bucket's. Raises InvalidSettings, MissingExtra."""
        url = StoreURL("s3", place.bucket, "", self._options(place)).text()
        with self._lock:
            found = self._buckets.get(url)
            if found is None:
                found = self._buckets[url] = self._open_store(url)
            return found

    def store_of(self, place: ForeignLocation, folder: ForeignLocation | None = None) -> tuple[ObjectStore, str]:
        """The store that has the object, and its key there. `folder`: of a file, one above it that is known to be its
        own.
        """
        if place.kind == "s3":
            return self.bucket(place), place.path
        above = folder.path.rstrip("/") if folder is not None else place.path.rpartition("/")[0]
        return LocalObjects("/" + above, fsync=False, make=False), place.path.removeprefix(above).lstrip("/")

    def head(self, url: str, folder: ForeignLocation | None = None) -> ObjectInfo:
        """Raise InvalidName, ObjectNotFound."""
        store, key = self.store_of(self._placed(url, folder), folder)
        return store.head(key)

    def get(
        self, url: str, size_bytes: int, start: int, end: int | None, folder: ForeignLocation | None = None
    ) -> Iterator[bytes]:
        """The bytes [start, end) of the object that has `size_bytes`. Raises Gone: it is not there any more, cannot be
        read, or has another size.

        `folder`: it must lie below that one, which `Prefixes.covering` gave.
        """
        store, key = self.store_of(self._placed(url, folder), folder)
        try:
            found = store.head(key)
            if found.size_bytes == size_bytes:
                return store.get(key, start=start, end=end)
        except ObjectNotFound:
            raise Gone(
                f"{url} is not there any more; it belongs to others, who removed it: nothing of refstore deletes it"
            ) from None
        except StoreMisconfigured as error:  # that of others, who have put a link in its place, or shut us out
            raise Gone(f"{url} cannot be read any more ({error}); it belongs to others: ask them") from error
        raise Gone(
            f"{url} has {found.size_bytes} bytes, and had {size_bytes} when it was named; it belongs to others, who "
            "changed it:"
            " import or stage it again"
        )

    def presign_get(self, url: str, *, expires_seconds: int, folder: ForeignLocation | None = None) -> str:
        """Raise Invalid where the store has no such thing."""
        store, key = self.store_of(self._placed(url, folder), folder)
        return store.presign_get(key, expires_seconds=expires_seconds)

    def close(self) -> None:
        with self._lock:
            for store in self._buckets.values():
                store.close()
            self._buckets.clear()

    def _placed(self, url: str, folder: ForeignLocation | None) -> ForeignLocation:
        place = parse_place(url)
        return place._replace(options=()) if folder is None else place.real()._replace(options=())

    def _options(self, place: ForeignLocation) -> dict[str, str]:
        if place.options:
            return dict(place.options)
        own = next((known for known in self._known if known.host == place.bucket and known.options), None)
        known = own or (self._known[-1] if self._known else None)
        return (
            {name: value for name, value in known.options.items() if name in _REACHED_BY} if known is not None else {}
        )
