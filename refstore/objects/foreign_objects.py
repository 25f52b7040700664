"""Foreign objects: parse their addresses, and read them. refstore names and reads them, and never writes or deletes
them.

    s3://bucket/key                one object of S3 (s3a:// and s3n:// are the same)
    file:///directory/name         one file of this machine (local:// is the same)

In a foreign address `%`, `?`, `#` and unprintable characters are written as %XX. All others stand for themselves. The
address never says how its bucket is reached (endpoint, region, profile). This comes from the operator's own URLs
(`import_from`, the URL of the lake's objects), or from the usual AWS configuration.

Files below a folder are read without following symbolic links, so a planted link cannot lead out of the folder.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from refstore.core.redaction import redact_url
from refstore.errors import CorruptObject, Gone, InvalidName, InvalidSettings, ObjectNotFound, StoreMisconfigured
from refstore.objects.base import ObjectStore
from refstore.objects.local import LocalObjects
from refstore.objects.named_stores import CONNECTION_OPTIONS
from refstore.objects.store_urls import StoreURL, parse_store_url

ForeignKind = Literal["file", "s3"]

_KINDS_BY_SCHEME: Final[Mapping[str, ForeignKind]] = {
    "file": "file",
    "local": "file",
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
}

ADDRESS_BYTES_MAX: Final = 2048

TO_QUOTE: Final = r'[^ -"$&->@-~]'
"""Characters that may need quoting in an address, as a regular expression that RE2 reads too: `%`, `?`, `#`, and
everything outside printable ASCII.
"""
_TO_QUOTE: Final = re.compile(TO_QUOTE)
_PLAIN: Final = re.compile(r"(?:s3://[a-z0-9][a-z0-9.-]*|file://)(?:/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)+").fullmatch
"""Matches most addresses that can be parsed, in a small part of the time: listings look at every one."""


class ForeignLocation(NamedTuple):
    """The location of a foreign object, or the prefix of many."""

    kind: ForeignKind
    bucket: str
    """'' for files."""
    path: str
    """The key. For files: the absolute path, without the leading slash."""
    options: tuple[tuple[str, str], ...] = ()
    """The options that say how the bucket is reached, if the URL has any."""

    @property
    def root(self) -> str:
        """The address of the bucket or the file system: everything before the path."""
        return f"{self.kind}://{self.bucket}/"

    @property
    def url(self) -> str:
        return self.root + quote_path(self.path)

    def resolve_links(self) -> ForeignLocation:
        """Return the same location with symbolic links resolved."""
        if self.kind != "file":
            return self
        resolved = os.path.realpath("/" + self.path)
        return self._replace(path=resolved[1:] + ("/" if self.path.endswith("/") and resolved != "/" else ""))


def parse_location(url: str) -> ForeignLocation:
    """Parse the URL of a foreign object or prefix. Raises InvalidName for a URL that cannot be read from here."""
    try:
        parsed = parse_store_url(url)
    except InvalidSettings as error:
        raise InvalidName(str(error)) from None
    kind = _KINDS_BY_SCHEME.get(parsed.scheme)
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
    unknown = [name for name in parsed.options if name not in CONNECTION_OPTIONS]
    if unknown:
        raise InvalidName(
            f"{shown!r} has the option {unknown[0]!r}; use {', '.join(CONNECTION_OPTIONS)}, or %3F for a '?' in the key"
        )
    return ForeignLocation("s3", parsed.host, parsed.path.removeprefix("/"), tuple(sorted(parsed.options.items())))


def check_address(url: str) -> ForeignLocation | None:
    """Check the address of one foreign object before it is staged, and return its location; None: refstore does not
    read this scheme, and the address need only be a URL. Raises InvalidName.
    """
    scheme, separator, rest = url.partition("://")
    if not (
        separator
        and scheme.isascii()
        and scheme.isalnum()
        and rest
        and url.isprintable()
        and len(url.encode(errors="replace")) <= ADDRESS_BYTES_MAX
    ):
        raise InvalidName(
            f"{redact_url(url)[:80]!r} is not the URL of an object; give its full address, such as s3://bucket/key"
        )
    if scheme.lower() in _KINDS_BY_SCHEME:
        place = parse_location(url)
        if not place.path:
            raise InvalidName(f"{redact_url(url)[:200]!r} names no object; give its full address")
        return place
    try:
        urlsplit(url)
    except ValueError:
        raise InvalidName(
            f"{redact_url(url)[:200]!r} cannot be parsed as a URL; write brackets, and what is not ASCII, as %XX"
        ) from None
    if "\0" in unquote(url):
        raise InvalidName(f"{redact_url(url)[:200]!r} has a NUL in it (%00); no store has such a name")
    return None


def unreadable_reason(address: str) -> str:
    """Return why refstore cannot read a foreign object by its address; '': it can, as far as the address tells."""
    if _PLAIN(address):
        return ""
    try:
        parse_location(address)
    except InvalidName as error:
        return str(error)
    return ""


def quote_path(path: str) -> str:
    """Return a key or a file's path as it is written in an address."""
    if not _TO_QUOTE.search(path):
        return path
    return "".join(
        character if character.isprintable() and character not in "%?#" else quote(character) for character in path
    )


class AllowedPrefixes:
    """The locations below which foreign objects may be read, and imported over HTTP. Each one counts as a folder."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Raises InvalidName."""
        self._places = tuple(parse_location(url) for url in urls)

    def __bool__(self) -> bool:
        return bool(self._places)

    def __str__(self) -> str:
        return ", ".join(place.url for place in self._places)

    @property
    def refusal(self) -> str:
        """The message that refuses a location below none of the prefixes, with what to do about it."""
        what = (
            f"it lies outside the lake, and below none of the places where foreign objects may be read ({self})"
            if self
            else "it lies outside the lake, and foreign objects may be read nowhere"
        )
        return (
            f"{what}; an operator allows a place with the setting import_from, such as s3://bucket/prefix/ or "
            "file:///directory/, or for one command with --allow-foreign PREFIX"
        )

    def find_covering(self, place: ForeignLocation) -> ForeignLocation | None:
        """Return the folder below which `place` lies, with symbolic links resolved; None if there is none.

        Every location whose path begins with the folder's path lies below it, too.
        """
        real = place.resolve_links()
        for prefix in self._places:
            folder = prefix.resolve_links()
            below = folder.path.rstrip("/") + "/" if folder.path else ""
            if (folder.kind, folder.bucket) == (real.kind, real.bucket) and real.path.startswith(below):
                return folder._replace(path=below)
        return None


class ForeignStores:
    """Opens the stores of foreign objects, and keeps the clients of their buckets. Thread-safe."""

    def __init__(self, open_store: Callable[[str], ObjectStore], *, known: Sequence[str] = ()) -> None:
        """`known`: URLs whose options say how their buckets are reached. The options of the last URL are for all other
        buckets.
        """
        self._open_store = open_store
        self._known = [parsed for parsed in map(parse_store_url, known) if parsed.scheme == "s3"]
        self._buckets: dict[str, ObjectStore] = {}
        self._lock = threading.Lock()

    def open_bucket(self, place: ForeignLocation) -> ObjectStore:
        """Return a store for the whole bucket; its keys are the bucket's keys. Raises InvalidSettings, MissingExtra."""
        url = StoreURL("s3", place.bucket, "", self._options(place)).text()
        with self._lock:
            found = self._buckets.get(url)
            if found is None:
                found = self._buckets[url] = self._open_store(url)
            return found

    def find_store(self, place: ForeignLocation, folder: ForeignLocation | None = None) -> tuple[ObjectStore, str]:
        """Return the store that has the object, and the object's key there.

        `folder`, for a file: a folder above it whose path has no symbolic links.
        """
        if place.kind == "s3":
            return self.open_bucket(place), place.path
        above = folder.path.rstrip("/") if folder is not None else place.path.rpartition("/")[0]
        return LocalObjects("/" + above, fsync=False, make=False), place.path.removeprefix(above).lstrip("/")

    def get(self, url: str, size_bytes: int, start: int, end: int | None, folder: ForeignLocation) -> Iterator[bytes]:
        """Return the bytes [start, end) of the object that has `size_bytes`. Raises Gone if the object does not exist
        any more, cannot be read, or has another size.

        `folder`: the folder that the object must lie below, from `AllowedPrefixes.find_covering`.
        """
        store, key = self.find_store(_resolve_location(url), folder)
        try:
            return store.get(key, start=start, end=end, size_bytes=size_bytes)
        except ObjectNotFound:
            raise Gone(
                f"{url} does not exist any more; it is a foreign object, which refstore never deletes: its owners "
                "removed it"
            ) from None
        except StoreMisconfigured as error:  # its owners replaced the file by a link, or withdrew the permission
            raise Gone(f"{url} cannot be read any more ({error}); it is a foreign object: ask its owners") from error
        except CorruptObject as error:
            raise Gone(
                f"{url} has another size; it had {size_bytes} when it was recorded. It is a foreign object that its "
                "owners changed: import or stage it again"
            ) from error

    def presign_get(self, url: str, *, expires_seconds: int, folder: ForeignLocation) -> str:
        """Return a URL that reads the object without credentials. Raises Invalid if the store has no presigned URLs."""
        store, key = self.find_store(_resolve_location(url), folder)
        return store.presign_get(key, expires_seconds=expires_seconds)

    def close(self) -> None:
        with self._lock:
            for store in self._buckets.values():
                store.close()
            self._buckets.clear()

    def _options(self, place: ForeignLocation) -> dict[str, str]:
        if place.options:
            return dict(place.options)
        own = next((known for known in self._known if known.host == place.bucket and known.options), None)
        known = own or (self._known[-1] if self._known else None)
        options: Mapping[str, str] = known.options if known is not None else {}
        return {name: value for name, value in options.items() if name in CONNECTION_OPTIONS}


def _resolve_location(url: str) -> ForeignLocation:
    """Return the location of an object with links resolved, and without the options that its address may have."""
    return parse_location(url).resolve_links()._replace(options=())
