"""The reaper's pen: it writes the journal, whose format and reading are in `refstore/deletions/journal_format.py`.

A batch that cannot be written down is not deleted. That its end cannot be written down is logged: the blobs are gone.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import structlog

from refstore import keys
from refstore.clock import Clock
from refstore.deletions.journal_format import BEGAN, ENDED, PREFIX, Doomed, Event, Header, NotDeleted, day_of
from refstore.errors import RefstoreError
from refstore.ids import Address
from refstore.objects.base import Deletion, ObjectStore

__all__ = ["BEGAN", "ENDED", "PREFIX", "Event", "JournalWriter"]

_COMPRESSION: Final = 1
"""Paths and tokens repeat: the fastest level saves nearly as much as the best one."""

_encoder = msgspec.json.Encoder()

_log = structlog.stdlib.get_logger(__name__)


class JournalWriter:
    """One reaper's pen. A batch is known by its first address: an address is in one batch at a time."""

    def __init__(self, objects: ObjectStore, reaper: str, clock: Clock, numbers: Iterator[int]) -> None:
        """`numbers`: each given once in the reaper's life, so that no segment is written twice, however fast it is."""
        self._objects = objects
        self._reaper = reaper
        self._clock = clock
        self._numbers = numbers
        self._open: dict[Address, str] = {}

    def began(self, doomed: Sequence[Doomed]) -> None:
        """Raises ObjectsUnavailable."""
        now = self._clock.now_ms()
        name = f"{day_of(now)}/{keys.due_time(now)}-{self._reaper}-{next(self._numbers):06d}"
        self._put(name + BEGAN, Header("began", now, self._reaper, len(doomed)), doomed)
        self._open[doomed[0].address] = name

    def ended(self, doomed: Sequence[Doomed], confirmed: Deletion) -> None:
        name = self._open.pop(doomed[0].address)
        missing, failed = len(confirmed.missing), len(confirmed.failed)
        header = Header("ended", self._clock.now_ms(), self._reaper, len(doomed), len(confirmed.deleted), missing, failed)
        lines = [NotDeleted(address, missing=True) for address in confirmed.missing]
        lines += [NotDeleted(address, failed=reason or "no reason was given") for address, reason in confirmed.failed]
        try:
            self._put(name + ENDED, header, lines)
        except RefstoreError as error:
            _log.error("journal_segment_not_written", segment=name + ENDED, deleted=len(confirmed.deleted), error=str(error))

    def _put(self, key: str, header: Header, lines: Sequence[msgspec.Struct]) -> None:
        body = _encoder.encode_lines([header, *lines])
        self._objects.put(key, gzip.compress(body, _COMPRESSION, mtime=0))
