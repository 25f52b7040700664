"""Read foreign data as far as the service may: below `api.import_from`, and in no namespace of the lake; and say which
addresses callers may stage.

This is checked at every read, not only when an object is staged. So the service stops reading a place that an operator
takes off the list. It also stops when a link or a namespace has moved there since.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from refstore.core.records import Entry
from refstore.core.redaction import redact_url
from refstore.core.settings import ApiSettings
from refstore.errors import (
    ForeignNotAllowed,
    Invalid,
    InvalidName,
    MissingExtra,
    ObjectsRefused,
    StoreMisconfigured,
)
from refstore.lake import Lake
from refstore.namespaces import Namespaces, check_beside
from refstore.objects.foreign_objects import (
    ForeignLocation,
    ForeignStores,
    Prefixes,
    check_address,
    parse_place,
)

NAMESPACES_SECONDS: Final = 1.0
"""How long the list of namespaces is cached."""
_BELOW_THE_LAKE: Final = re.compile(r"(?:local|mem)://[^/]").match
"""Matches lakeFS's names for what lies below the lake's own folder."""


class ForeignReads:
    """Read objects outside the lake that the settings allow. Thread-safe."""

    def __init__(self, lake: Lake, settings: ApiSettings) -> None:
        """Raises InvalidName if `api.import_from` holds something that is no URL of a folder."""
        self._lake = lake
        self.allowed = Prefixes(settings.import_from)
        self.stores = ForeignStores(lake.open_url, known=[*settings.import_from, lake.objects_url])
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
        if self._known_namespaces().holding(place.real().url) is not None:
            raise ForeignNotAllowed(f"{shown!r} cannot be read as foreign data: it lies in a repository's namespace")
        return folder

    def check_staged(self, url: str) -> None:
        """Raise InvalidName for an address that no caller of the service may stage.

        What an operator has not listed is refused without a look at the repositories, and files without a look at what
        is there: an answer that depends on them would tell a caller where they are.
        """
        if _BELOW_THE_LAKE(url):
            check_beside(url, self._lake.objects_url)
        place = check_address(url)
        if place is not None and self.allowed.covering(place) is not None:
            return
        if place is not None and place.kind == "file":
            raise InvalidName(
                f"{redact_url(url)[:200]!r} cannot be staged: it lies in or beside a repository's namespace, or "
                f"{self.allowed.refusal}; what a repository has can be copied, and new data uploaded or linked"
            )
        check_beside(url, self._lake.objects_url)

    def get(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes [start, end). Raises ForeignNotAllowed, Gone."""
        folder = self.check(entry)
        return self.stores.get(entry.address, entry.size_bytes, start, end, folder)

    def presign_get(self, entry: Entry, seconds: int) -> str | None:
        """Return a URL that reads the object without credentials; None if there is none, or it may not be read."""
        # one address of a listing must not keep the others from being listed
        with suppress(ForeignNotAllowed, Invalid, MissingExtra, ObjectsRefused, StoreMisconfigured):
            return self.stores.presign_get(entry.address, expires_seconds=seconds, folder=self.check(entry))
        return None

    def _known_namespaces(self) -> Namespaces:
        now = self._lake.clock.monotonic_seconds()
        if now - self._read_at > NAMESPACES_SECONDS:
            self._namespaces, self._read_at = Namespaces.read(self._lake.kv), now
        return self._namespaces
