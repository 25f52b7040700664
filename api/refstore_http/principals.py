"""Who makes a request, what that caller may do, and when its access key was used last: to the hour, and written at most
once per key and hour by each process.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from refstore.core import event_log
from refstore.errors import RefstoreError
from refstore.lake import Lake
from refstore.service import access_keys
from refstore.service.access_keys import Role
from refstore_http.http_errors import Forbidden

KEY_SECONDS: Final = 5.0
"""How long an access key is cached, and so how long a revoked one stays valid at most."""


class Principal(NamedTuple):
    key_id: str
    role: Role
    repositories: tuple[str, ...]
    """The only repositories that the key may use; empty: all."""
    created_ms: int
    buckets: tuple[str, ...] = ()
    """The buckets that are a branch for this key, as `NAME=REPOSITORY:BRANCH`; of the S3 gateway only."""

    def check(self, role: Role, repository: str | None) -> None:
        """Check that the key has the role and may use the repository. Raises Forbidden."""
        if self.role < role:
            raise Forbidden(
                f"access key {self.key_id!r} has the role {self.role.name.lower()}, and this call needs "
                f"{role.name.lower()}; ask an operator for a key with that role"
            )
        elsewhere = role > Role.READER if repository is None else repository not in self.repositories
        if self.repositories and elsewhere:
            raise Forbidden(
                f"access key {self.key_id!r} may use {', '.join(self.repositories)} only; ask an operator for a key"
            )


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
