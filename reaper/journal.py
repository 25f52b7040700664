"""What was deleted, when, and why: append-only, in the repository's own namespace.

    _refstore/journal/<yyyy>/<mm>/<dd>/<time>-<reaper id>-<number>.began.jsonl.gz     before the blobs go
    _refstore/journal/<yyyy>/<mm>/<dd>/<time>-<reaper id>-<number>.ended.jsonl.gz     what the store confirmed of them

Each segment is one batch: a line that says what it is, then a line for each address. A segment that ended has lines only for
what was not deleted (`missing`, or `failed` with the store's reason); everything else that its other half names was
confirmed as deleted, and the first line has the counts. A batch without a second half was interrupted: the batch that finished
it stands further on. Segments are written once, under names that are never used again, and no code removes them.

A batch that cannot be written down is not deleted. That its end cannot be written down is logged: the blobs are gone.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from io import BytesIO
from typing import Final, Literal, NamedTuple, TypeVar, cast

import msgspec
import structlog

from reaper.processing import Doomed
from refstore import keys
from refstore.clock import Clock
from refstore.errors import ObjectNotFound, RefstoreError
from refstore.ids import Address
from refstore.objects.base import Deletion, ObjectStore

PREFIX: Final = "_refstore/journal/"
BEGAN: Final = ".began.jsonl.gz"
ENDED: Final = ".ended.jsonl.gz"

_COMPRESSION: Final = 1
"""Paths and tokens repeat: the fastest level saves nearly as much as the best one."""

Outcome = Literal["deleted", "missing", "failed", "interrupted"]

Line = TypeVar("Line", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()

_log = structlog.stdlib.get_logger(__name__)


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line of a segment."""

    event: Literal["began", "ended"]
    at_ms: int
    reaper: str
    addresses: int
    deleted: int | None = None
    missing: int | None = None
    failed: int | None = None


class NotDeleted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a segment that ended."""

    address: str
    missing: bool = False
    failed: str = ""
    """The store's reason."""


class Event(NamedTuple):
    """One deletion of an address, as the journal tells it."""

    at_ms: int
    outcome: Outcome
    """missing: there was no blob. interrupted: what became of it stands in a later event, if in any."""
    doomed: Doomed
    reaper: str
    reason: str
    """The store's, where it failed."""
    segment: str


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
        name = f"{_day_of(now)}/{keys.due_time(now)}-{self._reaper}-{next(self._numbers):06d}"
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


def find(objects: ObjectStore, address: Address, *, since_ms: int) -> Iterator[Event]:
    """What the journal says of an address, oldest first, reading every segment from `since_ms` on, one at a time."""
    for info in objects.list(PREFIX, after=f"{_day_of(since_ms)}/{keys.due_time(since_ms)}"):
        if not info.key.endswith(BEGAN):
            continue
        try:
            header, doomed = _search(objects.read(info.key), address)
            if doomed is not None:
                outcome, reason = _outcome(objects, info.key.removesuffix(BEGAN) + ENDED, address)
                yield Event(header.at_ms, outcome, doomed, header.reaper, reason, info.key)
        except (zlib.error, EOFError, OSError, ObjectNotFound, msgspec.MsgspecError) as error:
            _log.error("journal_segment_unreadable", segment=info.key, error=str(error))


def _search(body: bytes, address: Address) -> tuple[Header, Doomed | None]:
    """The segment's header, and the address's line."""
    with gzip.open(BytesIO(body)) as lines:
        header = msgspec.json.decode(lines.readline(), type=Header)
        return header, next((line for line in _matching(lines, address, Doomed) if line.address == address), None)


def _outcome(objects: ObjectStore, segment: str, address: Address) -> tuple[Outcome, str]:
    """What became of an address that a batch began with, and the store's reason where it failed."""
    try:
        body = objects.read(segment)
    except ObjectNotFound:
        return "interrupted", ""
    with gzip.open(BytesIO(body)) as lines:
        lines.readline()
        for line in _matching(lines, address, NotDeleted):
            if line.address == address:
                return ("missing", "") if line.missing else ("failed", line.failed)
    return "deleted", ""


def _matching(lines: gzip.GzipFile, address: Address, kind: type[Line]) -> Iterator[Line]:
    """The lines that hold the text of the address somewhere; all others are not decoded."""
    needle = address.encode()
    decoder = msgspec.json.Decoder(kind)
    for line in cast("Iterator[bytes]", lines):
        if needle in line:
            yield decoder.decode(line)


def _day_of(at_ms: int) -> str:
    return PREFIX + datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y/%m/%d")
