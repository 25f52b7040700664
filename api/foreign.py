"""Data of others, as far as this service may read it: below `api.import_from`, and in no namespace of the lake.

It is looked at whenever something is read, not only when it was named: a place that an operator takes off the list is not read any
more, and neither is what a link or a namespace has come to lie at since.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from refstore.errors import ForeignNotAllowed, Invalid, InvalidName
from refstore.lake import Lake
from refstore.namespaces import Namespaces
from refstore.objects.foreign import ForeignStores, Place, Prefixes, parse_place
from refstore.records import Entry
from refstore.redaction import redact_url
from refstore.settings import ApiSettings

NAMESPACES_SECONDS: Final = 1.0
"""How long the list of namespaces is taken as it was read."""


class Foreign:
    """Thread-safe."""

    def __init__(self, lake: Lake, settings: ApiSettings) -> None:
        """Raises InvalidName: the setting holds what is no URL of a folder."""
        self._lake = lake
        self.allowed = Prefixes(settings.import_from)
        self.stores = ForeignStores(lake.open_store, known=[*settings.import_from, lake.objects_url])
        self._namespaces = Namespaces(())
        self._read_at = float("-inf")

    def check(self, entry: Entry) -> Place:
        """The folder below which the entry's object lies and may be read. Raises ForeignNotAllowed."""
        shown = redact_url(entry.address)[:200]
        try:
            place = parse_place(entry.address)
        except InvalidName as error:
            raise ForeignNotAllowed(f"what is named here cannot be read through this service: {error}") from None
        folder = self.allowed.covering(place)
        if folder is None:
            raise ForeignNotAllowed(f"{shown!r} cannot be read: {self.allowed.refusal}")
        namespace = self._known_namespaces().holding(place.real().url)
        if namespace is not None:
            raise ForeignNotAllowed(f"{shown!r} cannot be read as foreign data: it lies in {namespace}, a repository's namespace")
        return folder

    def get(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        """The bytes [start, end). Raises ForeignNotAllowed, Gone."""
        folder = self.check(entry)
        return self.stores.get(entry.address, entry.size_bytes, start, end, folder)

    def presign_get(self, entry: Entry, seconds: int) -> str | None:
        """A URL that reads it without credentials; None where there is none, or it may not be read."""
        with suppress(ForeignNotAllowed, Invalid):
            return self.stores.presign_get(entry.address, expires_seconds=seconds, folder=self.check(entry))
        return None

    def _known_namespaces(self) -> Namespaces:
        now = self._lake.clock.monotonic_seconds()
        if now - self._read_at > NAMESPACES_SECONDS:
            self._namespaces, self._read_at = Namespaces.read(self._lake.kv), now
        return self._namespaces
