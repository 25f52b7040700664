"""The reaper's journal: what was deleted online, when, and why. It is append-only, in the repository's own namespace.

    _refstore/journal/<yyyy>/<mm>/<dd>/<time>-<reaper id>-<number>.began.jsonl.gz     before the blobs are deleted
    _refstore/journal/<yyyy>/<mm>/<dd>/<time>-<reaper id>-<number>.ended.jsonl.gz     what the store confirmed

Each batch has two segments. A segment is a header line, then a line for each address. The `ended` segment has lines
only for addresses that were not deleted (`missing`, or `failed` with the store's reason). All other addresses of the
`began` segment were confirmed as deleted. The header has the counts. A batch without an `ended` segment was
interrupted; a later batch finished it. Segments are written once, under names that are never used again. They are
deleted only with their repository.

If the journal cannot be written, the batch is not deleted. If only the second segment cannot be written, this is
logged, because the blobs are deleted already.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from io import BytesIO
from typing import Final, Literal, NamedTuple, cast

import msgspec

from refstore.core import event_log
from refstore.core.clock import Clock
from refstore.core.ids import Address, Token, branch_of
from refstore.deletion_history import causes
from refstore.errors import ObjectNotFound, RefstoreError
from refstore.objects.base import DeleteResult, ObjectStore
from refstore.records import keys
from refstore.records.pending_deletes import PendingDelete

PREFIX: Final = "_refstore/journal/"
BEGAN: Final = ".began.jsonl.gz"
ENDED: Final = ".ended.jsonl.gz"
INDEXED_AFTER_MS: Final = 2 * 3_600_000
"""How old a segment is by its name when it is indexed: clocks may be apart, and a put may land late."""

_UNREADABLE: Final = (zlib.error, EOFError, OSError, ObjectNotFound, msgspec.MsgspecError)

_log = event_log.get_logger(__name__)


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
    """A line of an `ended` segment."""

    address: str
    missing: bool = False
    failed: str = ""
    """The store's reason."""


class DeletionRecord(NamedTuple):
    """One deletion of an address, by whatever part of refstore."""

    address: str
    at_ms: int
    by: str
    """`reaper`, `sweep` for the offline job, or `cleaning` for that of what purges left behind."""
    run: str
    """The id of the reaper, of the mark, or of the cleaning."""
    outcome: str
    """deleted. missing, already gone: there was no blob. interrupted: a later deletion has the outcome, if any. failed:
    it will be tried again. tagged: the bucket's lifecycle rule deletes it.
    """
    cause: str
    """Why it was not needed: reset, overwritten, ... expired, orphan blob, ..."""
    rule: str
    """The rule by which it was deleted, as a text."""
    path: str
    """The last path that named it; '' if no record has it."""
    token: str
    size_bytes: int
    """-1: unknown."""
    reason: str
    """The store's reason, if it failed."""


def path_key(branch: str, path: str) -> str:
    """Return the key of a path of a branch. It differs from every address, because no address has a line break."""
    return f"{branch}\n{path}"


def keys_of(record: PendingDelete | DeletionRecord) -> tuple[str, ...]:
    """Return by what a deletion is found: its address, and the branch and path that last named it."""
    of_path = (path_key(branch_of(Token(record.token)), record.path),) if record.token else ()
    return (record.address, *of_path)


def find(
    objects: ObjectStore,
    key: str,
    *,
    after: str,
    before: str = "",
    segments_max: int | None = None,
    unreadable: Callable[[str], None] | None = None,
) -> Iterator[DeletionRecord]:
    """Yield the deletions of a key (`keys_of`), oldest first. Read every segment between two others, one at a time.

    `segments_max`: read only so many, the newest ones. `unreadable` is called with a text for each part that was not
    read: a damaged segment hides no others. Raises ObjectsUnavailable.
    """
    began = began_segments(objects, after=after, before=before)
    if segments_max is not None:
        listed = list(began)
        if len(listed) > segments_max and unreadable is not None:
            unreadable(f"{len(listed) - segments_max} older segments of the journal")
        began = iter(listed[-segments_max:])
    for segment in began:
        yield from find_in(objects, segment, key, unreadable=unreadable)


def began_segments(objects: ObjectStore, *, after: str, before: str = "") -> Iterator[str]:
    """Yield the keys of the `began` segments between two keys, oldest first."""
    listed = objects.list(PREFIX, after=after, before=before)
    return (info.key for info in listed if info.key.endswith(BEGAN))


def find_in(
    objects: ObjectStore, segment: str, key: str | None = None, *, unreadable: Callable[[str], None] | None = None
) -> list[DeletionRecord]:
    """Return the deletions of a key in one segment. None: all of them."""
    try:
        with gzip.open(BytesIO(objects.read(segment))) as lines:
            header = msgspec.json.decode(lines.readline(), type=Header)
            batch = [line for line in _decode_line(lines, key) if key is None or key in keys_of(line)]
        outcomes = _outcomes(objects, segment.removesuffix(BEGAN) + ENDED) if batch else {}
    except _UNREADABLE as error:
        _log.error("journal_segment_unreadable", segment=segment, error=str(error))
        if unreadable is not None:
            unreadable(f"{segment}, which is damaged")
        return []
    deleter = causes.deleter_of(header.reaper)
    default = ("interrupted" if outcomes is None else "deleted", "")
    return [_record(line, header.at_ms, deleter, *(outcomes or {}).get(line.address, default)) for line in batch]


def first_after(at_ms: int) -> str:
    """Return a key that sorts before all segments that began at that time or later, and after all earlier ones."""
    return f"{day_of(at_ms)}/{keys.format_due_time(at_ms)}"


def day_of(at_ms: int) -> str:
    """Return the prefix of the keys of the day's segments, in UTC."""
    return PREFIX + datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y/%m/%d")


def began_ms(segment: str) -> int:
    """Return the time in a segment's name, when its batch began."""
    return int(segment.rpartition("/")[2].partition("-")[0])


def _record(item: PendingDelete, at_ms: int, deleter: causes.Deleter, outcome: str, reason: str) -> DeletionRecord:
    rule = causes.rule_of(item.address, item.cause)
    return DeletionRecord(
        item.address,
        at_ms,
        deleter.by,
        deleter.run,
        outcome,
        item.cause,
        rule,
        item.path,
        item.token,
        item.size_bytes,
        reason,
    )


def _decode_line(lines: gzip.GzipFile, key: str | None) -> Iterator[PendingDelete]:
    """Yield the lines that may have the key. All others are not decoded."""
    decoder = msgspec.json.Decoder(PendingDelete)
    needle = msgspec.json.encode((key or "").rpartition("\n")[2])[1:-1]
    for line in cast("Iterator[bytes]", lines):
        if needle in line:
            yield decoder.decode(line)


def _outcomes(objects: ObjectStore, segment: str) -> dict[str, tuple[str, str]] | None:
    """Return the outcomes of the addresses that were not deleted, with the store's reason; None: it was interrupted."""
    try:
        body = objects.read(segment)
    except ObjectNotFound:
        return None
    decoder = msgspec.json.Decoder(NotDeleted)
    with gzip.open(BytesIO(body)) as lines:
        lines.readline()
        rows = [decoder.decode(line) for line in cast("Iterator[bytes]", lines)]
    return {row.address: ("missing", "") if row.missing else ("failed", row.failed) for row in rows}


_COMPRESSION: Final = 1
"""The fastest level: paths and tokens repeat, so it saves nearly as much as the best one."""

_encoder = msgspec.json.Encoder()


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
