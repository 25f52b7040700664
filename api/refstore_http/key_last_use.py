"""Record when each access key was used last, to the hour. Each process writes at most once per key and hour."""

from __future__ import annotations

import threading
from typing import Final

from refstore.core import event_log
from refstore.errors import RefstoreError
from refstore.lake import Lake
from refstore.service import access_keys

HOUR_MS: Final = 3_600_000

_log = event_log.get_logger(__name__)


class KeyLastUse:
    """Record the use of proven keys, from any thread. Only proven keys come here, so there are no more entries than
    keys.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._lock = threading.Lock()
        self._hour = -1
        self._noted: set[tuple[str, int]] = set()
        """The keys used in this hour, each with its creation time, because a later key may have the same id."""

    def record_use(self, key_id: str, created_ms: int) -> None:
        """Record that the key is in use, unless that was done in this hour. A failing store fails no request."""
        hour = self._lake.clock.now_ms() // HOUR_MS
        with self._lock:
            if hour != self._hour:
                self._hour = hour
                self._noted.clear()
            if (key_id, created_ms) in self._noted:
                return
            # before the write, so that a failed write is not repeated with each request
            self._noted.add((key_id, created_ms))
        try:
            access_keys.note_use(self._lake.kv, self._lake.clock, key_id)
        except RefstoreError as error:
            _log.warning("key_use_not_noted", key_id=key_id, error=str(error))
