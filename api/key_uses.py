"""When each access key was used last, to the hour: written at most once for each key, process and hour, never with each request."""

from __future__ import annotations

import threading
from typing import Final

import structlog

from refstore import access
from refstore.errors import RefstoreError
from refstore.lake import Lake

HOUR_MS: Final = 3_600_000

_log = structlog.stdlib.get_logger(__name__)


class KeyUses:
    """May be told from any thread. Only keys that were proven come here, so there are no more entries than keys."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._lock = threading.Lock()
        self._hour = -1
        self._noted: set[tuple[str, int]] = set()
        """The keys of this hour, each with when it was made: another one may have its id."""

    def note(self, key_id: str, created_ms: int) -> None:
        """Write down that the key is in use, unless that was done within this hour. A store that fails here fails no request."""
        hour = self._lake.clock.now_ms() // HOUR_MS
        with self._lock:
            if hour != self._hour:
                self._hour = hour
                self._noted.clear()
            if (key_id, created_ms) in self._noted:
                return
            self._noted.add((key_id, created_ms))  # before the write: one that fails is not tried again with each request
        try:
            access.note_use(self._lake.kv, self._lake.clock, key_id)
        except RefstoreError as error:
            _log.warning("key_use_not_noted", key_id=key_id, error=str(error))
