"""Write the reaper's journal. `refstore/deletion_history/journal_format.py` has the format, and reads it.

If the journal cannot be written, the batch is not deleted. If only the second segment cannot be written, this is
logged, because the blobs are deleted already.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from refstore.core import event_log
from refstore.core.clock import Clock
from refstore.core.ids import Address
from refstore.deletion_history.journal_format import (
    BEGAN,
    ENDED,
    INDEXED_AFTER_MS,
    Header,
    NotDeleted,
    day_of,
)
from refstore.errors import RefstoreError
from refstore.objects.base import DeleteResult, ObjectStore
from refstore.records import keys
from refstore.records.pending_deletes import PendingDelete

_COMPRESSION: Final = 1
"""The fastest level: paths and tokens repeat, so it saves nearly as much as the best one."""

_encoder = msgspec.json.Encoder()

_log = event_log.get_logger(__name__)


class _OpenSegment(NamedTuple):
    name: str
    """Of both segments of a batch, without the ending."""
    began_seconds: float
    """Monotonic."""


class JournalWriter:
    """Writes the segments of one reaper. A batch is identified by its first address, because an address is in one batch
    at a time.
    """

    def __init__(self, objects: ObjectStore, reaper: str, clock: Clock, numbers: Iterator[int]) -> None:
        """`numbers`: each number occurs once in the reaper's life, so that no segment name is used twice."""
        self._objects = objects
        self._reaper = reaper
        self._clock = clock
        self._numbers = numbers
        self._open: dict[Address, _OpenSegment] = {}

    def record_start(self, batch: Sequence[PendingDelete]) -> None:
        """Write the first segment of a batch. Raises ObjectsUnavailable."""
        while True:
            now = self._clock.now_ms()
            name = f"{day_of(now)}/{keys.format_due_time(now)}-{self._reaper}-{next(self._numbers):06d}"
            segment = _OpenSegment(name, self._clock.monotonic_seconds())
            self._put(name + BEGAN, Header("began", now, self._reaper, len(batch)), batch)
            if not self._may_be_indexed(segment):
                break  # else the process was stopped, and the index may have taken the time of the name without it
        self._open[batch[0].address] = segment

    def record_end(self, batch: Sequence[PendingDelete], confirmed: DeleteResult) -> None:
        missing, failed = len(confirmed.missing_keys), len(confirmed.failed_keys)
        header = Header(
            "ended", self._clock.now_ms(), self._reaper, len(batch), len(confirmed.deleted_keys), missing, failed
        )
        lines = [NotDeleted(address, missing=True) for address in confirmed.missing_keys]
        lines += [
            NotDeleted(address, failed=reason or "no reason was given") for address, reason in confirmed.failed_keys
        ]
        segment = self._open.pop(batch[0].address)
        try:
            if self._may_be_indexed(segment):  # as interrupted
                self.record_start(batch)
                segment = self._open.pop(batch[0].address)
            self._put(segment.name + ENDED, header, lines)
        except RefstoreError as error:
            _log.error(
                "journal_segment_not_written",
                segment=segment.name + ENDED,
                deleted=len(confirmed.deleted_keys),
                error=str(error),
            )

    def _may_be_indexed(self, segment: _OpenSegment) -> bool:
        """Return whether the index may have been through with the time in the segment's name. Half of the time is for
        clocks that are apart.
        """
        return (self._clock.monotonic_seconds() - segment.began_seconds) * 1000 >= INDEXED_AFTER_MS / 2

    def _put(self, key: str, header: Header, lines: Sequence[msgspec.Struct]) -> None:
        body = _encoder.encode_lines([header, *lines])
        self._objects.put(key, gzip.compress(body, _COMPRESSION, mtime=0))
