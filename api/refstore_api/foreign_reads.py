"""Read foreign data as far as the service may: below `api.import_from`, and in no namespace of the lake.

This is checked at every read, not only when an object is staged. So the service stops reading a place that an operator
takes off the list. It also stops when a link or a namespace has moved there since.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from refstore.core.records import Entry
from refstore.core.redaction import redact_url
from refstore.core.settings import ApiSettings
from refstore.errors import ForeignNotAllowed, Invalid, InvalidName
from refstore.lake import Lake
from refstore.namespaces import Namespaces
from refstore.objects.foreign_objects import ForeignLocation, ForeignStores, Prefixes, parse_place

NAMESPACES_SECONDS: Final = 1.0
"""How long the list of namespaces is cached."""


class ForeignReads:
    """Read objects outside the lake that the settings allow. Thread-safe."""

    def __init__(self, lake: Lake, settings: ApiSettings) -> None:
        """Raises InvalidName if `api.import_from` holds something that is no URL of a folder."""
        self._lake = lake
        self.allowed = Prefixes(settings.import_from)
        self.stores = ForeignStores(lake.open_store, known=[*settings.import_from, lake.objects_url])
        self._namespaces = Namespaces(())
        self._read_at = float("-inf")

    def check(self, entry: Entry) -> ForeignLocation:
        """Return the allowed folder that holds the entry's object. Raises ForeignNotAllowed."""
        shown = redact_url(entry.address)[:200]
        try:
            place = parse_place(entry.address)
        except InvalidName as error:
            raise ForeignNotAllowed(f"the object's address cannot be read through this service: {error}") from None
        folder = self.allowed.covering(place)
        if folder is None:
            raise ForeignNotAllowed(f"{shown!r} cannot be read: {self.allowed.refusal}")
        namespace = self._known_namespaces().holding(place.real().url)
        if namespace is not None:
            raise ForeignNotAllowed(
                f"{shown!r} cannot be read as foreign data: it lies in {namespace}, a repository's namespace"
            )
        return folder

    def get(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes [start, end). Raises ForeignNotAllowed, Gone."""
        folder = self.check(entry)
        return self.stores.get(entry.address, entry.size_bytes, start, end, folder)

    def presign_get(self, entry: Entry, seconds: int) -> str | None:
        """Return a URL that reads the object without credentials; None if there is none, or it may not be read."""
        with suppress(ForeignNotAllowed, Invalid):
            return self.stores.presign_get(entry.address, expires_seconds=seconds, folder=self.check(entry))
        return None

    def _known_namespaces(self) -> Namespaces:
        now = self._lake.clock.monotonic_seconds()
        if now - self._read_at > NAMESPACES_SECONDS:
            self._namespaces, self._read_at = Namespaces.read(self._lake.kv), now
        return self._namespaces
