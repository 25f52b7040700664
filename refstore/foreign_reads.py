"""Read foreign objects where the settings allow it: below `import_from`, in no namespace of the lake, and not its audit
log or its KV; and say which addresses callers of the service may stage.

Whoever may write to a branch can stage any URL, and a reader of the branch has other rights than who staged it. So
every reader of foreign objects (the SDK, the commands, the service, the purge) reads through here.

This is checked at every read, not only when an object is staged. So a place that an operator takes off the list is read
no more. Nor is one to which a link or a namespace has moved since.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from refstore.core.clock import Clock
from refstore.core.ids import Address
from refstore.core.redaction import redact_url
from refstore.errors import (
    ForeignNotAllowed,
    Invalid,
    InvalidName,
    MissingExtra,
    ObjectsRefused,
    StoreMisconfigured,
)
from refstore.kv.base import KV
from refstore.namespaces import OWN_FOLDER, Namespaces, check_outside_lake
from refstore.objects.base import ObjectStore
from refstore.objects.foreign_objects import (
    AllowedPrefixes,
    ForeignLocation,
    ForeignStores,
    check_address,
    parse_location,
)
from refstore.objects.store_urls import child

NAMESPACES_SECONDS: Final = 1.0
"""How long the list of namespaces is cached."""
_BELOW_THE_LAKE: Final = re.compile(r"(?:local|mem)://[^/]").match
"""Matches lakeFS's names for what lies below the lake's own folder."""


class ForeignReads:
    """Read objects outside the lake that the settings allow. Thread-safe."""

    def __init__(
        self,
        kv: KV,
        clock: Clock,
        open_store: Callable[[str], ObjectStore],
        *,
        prefixes: Sequence[str],
        objects_url: str,
    ) -> None:
        """`prefixes`: the URLs of the folders that may be read. `objects_url`: the lake's, which says how other buckets
        are reached. Raises InvalidName if one of the prefixes is no URL of a folder.
        """
        self._kv = kv
        self._clock = clock
        self.objects_url = objects_url
        self.allowed = AllowedPrefixes(prefixes)
        self.stores = ForeignStores(open_store, known=[*prefixes, objects_url])
        self._namespaces = Namespaces(())
        self._read_at = float("-inf")

    def check(self, address: Address) -> ForeignLocation:
        """Return the allowed folder that holds the object. Raises ForeignNotAllowed."""
        shown = redact_url(address)[:200]
        try:
            place = parse_location(address)
        except InvalidName as error:
            raise ForeignNotAllowed(f"the object's address cannot be read by refstore: {error}") from None
        folder = self.allowed.find_covering(place)
        if folder is None:
            raise ForeignNotAllowed(f"{shown!r} cannot be read: {self.allowed.refusal}")
        if self._read_namespaces().find_holding(place.resolve_links().url) is not None:
            raise ForeignNotAllowed(
                f"{shown!r} cannot be read as foreign data: it lies in a repository's namespace, or is the lake's own"
            )
        return folder

    def check_staged(self, url: str) -> None:
        """Raise InvalidName for an address that no caller of the service may stage.

        What an operator has not listed is refused without a look at the repositories, and files without a look at what
        is there: an answer that depends on them would tell a caller where they are.
        """
        if _BELOW_THE_LAKE(url):
            check_outside_lake(url, self.objects_url)
        place = check_address(url)
        if place is not None and self.allowed.find_covering(place) is not None:
            return
        if place is not None and place.kind == "file":
            raise InvalidName(
                f"{redact_url(url)[:200]!r} cannot be staged: it lies in or beside a repository's namespace, or "
                f"{self.allowed.refusal}; what a repository has can be copied, and new data uploaded or linked"
            )
        check_outside_lake(url, self.objects_url)

    def get(self, address: Address, size_bytes: int, start: int, end: int | None) -> Iterator[bytes]:
        """Return the bytes [start, end) of the object that had `size_bytes` when it was recorded. Raises
        ForeignNotAllowed, and Gone if it is not that object any more.
        """
        folder = self.check(address)
        return self.stores.get(address, size_bytes, start, end, folder)

    def presign_get(self, address: Address, *, expires_seconds: int) -> str | None:
        """Return a URL that reads the object without credentials; None if there is none, or it may not be read."""
        # one address of a listing must not keep the others from being listed
        with suppress(ForeignNotAllowed, Invalid, MissingExtra, ObjectsRefused, StoreMisconfigured):
            return self.stores.presign_get(address, expires_seconds=expires_seconds, folder=self.check(address))
        return None

    def close(self) -> None:
        self.stores.close()

    def _read_namespaces(self) -> Namespaces:
        now = self._clock.monotonic_seconds()
        if now - self._read_at > NAMESPACES_SECONDS:
            # a wide folder of `import_from` may hold the audit log and the KV, which has the keys that sign tokens
            own = [child(self.objects_url, OWN_FOLDER), *(file.as_uri() for file in self._kv.local_files)]
            self._namespaces, self._read_at = Namespaces.read(self._kv, self.objects_url, *own), now
        return self._namespaces
