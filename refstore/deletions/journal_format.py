"""The reaper's journal: what was deleted online, when, and why. It is append-only, in the repository's own namespace.

    _refstore/journal/<yyyy>/<mm>/<dd>/<time>-<reaper id>-<number>.began.jsonl.gz     before the blobs are deleted
    _refstore/journal/<yyyy>/<mm>/<dd>/<time>-<reaper id>-<number>.ended.jsonl.gz     what the store confirmed

Each batch has two segments. A segment is a header line, then a line for each address. The `ended` segment has lines
only for addresses that were not deleted (`missing`, or `failed` with the store's reason). All other addresses of the
`began` segment were confirmed as deleted. The header has the counts. A batch without an `ended` segment was
interrupted; a later batch finished it. Segments are written once, under names that are never used again. They are
deleted only with their repository.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from io import BytesIO
from typing import Final, Literal, NamedTuple, TypeVar, cast

import msgspec

from refstore.core import event_log, keys
from refstore.core.ids import Address, BranchName, Path, Token, branch_of
from refstore.errors import ObjectNotFound
from refstore.objects.base import ObjectStore

PREFIX: Final = "_refstore/journal/"
BEGAN: Final = ".began.jsonl.gz"
ENDED: Final = ".ended.jsonl.gz"

Outcome = Literal["deleted", "missing", "failed", "interrupted"]

Line = TypeVar("Line", bound=msgspec.Struct)

_UNREADABLE: Final = (zlib.error, EOFError, OSError, ObjectNotFound, msgspec.MsgspecError)

_log = event_log.get_logger(__name__)


class PendingDelete(msgspec.Struct, frozen=True, gc=False):
    """An address that is `deleting`: its blob is to be deleted now. Also a line of a `began` segment."""

    address: Address
    token: Token
    """The token of the reference whose removal emptied the list; '' if there never was one."""
    path: Path
    cause: str
    size_bytes: int
    """-1: unknown."""


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


class Event(NamedTuple):
    """One deletion of an address in the journal."""

    at_ms: int
    outcome: Outcome
    """missing: there was no blob. interrupted: a later event has the outcome, if any."""
    doomed: PendingDelete
    reaper: str
    reason: str
    """The store's reason, if it failed."""
    segment: str


class Sought(NamedTuple):
    """What to search for in the journal: an address, or a path of a branch."""

    address: Address | None = None
    branch: BranchName | None = None
    """With `path`. None: any branch."""
    path: Path | None = None

    @property
    def needle(self) -> bytes:
        """Bytes that every matching line contains. Other lines are not decoded."""
        return self.address.encode() if self.address is not None else msgspec.json.encode(self.path)

    def matches(self, line: PendingDelete) -> bool:
        if self.address is not None:
            return line.address == self.address
        return line.path == self.path and (
            self.branch is None or (line.token != "" and branch_of(line.token) == self.branch)
        )


def find(
    objects: ObjectStore,
    sought: Sought,
    *,
    after: str,
    segments_max: int | None = None,
    unreadable: Callable[[str], None] | None = None,
) -> Iterator[Event]:
    """Yield the matching events, oldest first. Read every segment after the key `after`, one at a time.

    `segments_max`: read only so many, the newest ones. `unreadable` is called with a text for each part that was not
    read: a damaged segment hides no others. Raises ObjectsUnavailable.
    """
    began = (info.key for info in objects.list(PREFIX, after=after) if info.key.endswith(BEGAN))
    if segments_max is not None:
        listed = list(began)
        if len(listed) > segments_max and unreadable is not None:
            unreadable(f"{len(listed) - segments_max} older segments of the journal")
        began = iter(listed[-segments_max:])
    for key in began:
        yield from find_in(objects, key, sought, unreadable=unreadable)


def find_in(
    objects: ObjectStore, key: str, sought: Sought, *, unreadable: Callable[[str], None] | None = None
) -> Iterator[Event]:
    """Yield the matching events of one segment."""
    try:
        header, found = _search(objects.read(key), sought)
        for doomed in found:
            outcome, reason = _outcome(objects, key.removesuffix(BEGAN) + ENDED, doomed.address)
            yield Event(header.at_ms, outcome, doomed, header.reaper, reason, key)
    except _UNREADABLE as error:
        _log.error("journal_segment_unreadable", segment=key, error=str(error))
        if unreadable is not None:
            unreadable(f"{key}, which is damaged")


def read_lines(body: bytes) -> list[PendingDelete]:
    """Return all lines of a `began` segment. Raises ValueError if it is not one."""
    decoder = msgspec.json.Decoder(PendingDelete)
    try:
        with gzip.open(BytesIO(body)) as lines:
            msgspec.json.decode(lines.readline(), type=Header)
            return [decoder.decode(line) for line in cast("Iterator[bytes]", lines)]
    except _UNREADABLE as error:
        raise ValueError(str(error)) from error


def first_after(at_ms: int) -> str:
    """Return a key that sorts before all segments that began at that time or later, and after all earlier ones."""
    return f"{day_of(at_ms)}/{keys.due_time(at_ms)}"


def day_of(at_ms: int) -> str:
    """Return the prefix of the keys of the day's segments, in UTC."""
    return PREFIX + datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y/%m/%d")


def _search(body: bytes, sought: Sought) -> tuple[Header, list[PendingDelete]]:
    """Return the segment's header, and the matching lines."""
    with gzip.open(BytesIO(body)) as lines:
        header = msgspec.json.decode(lines.readline(), type=Header)
        return header, [line for line in _matching(lines, sought.needle, PendingDelete) if sought.matches(line)]


def _outcome(objects: ObjectStore, segment: str, address: Address) -> tuple[Outcome, str]:
    """Return the outcome of an address of a batch, and the store's reason if it failed."""
    try:
        body = objects.read(segment)
    except ObjectNotFound:
        return "interrupted", ""
    with gzip.open(BytesIO(body)) as lines:
        lines.readline()
        for line in _matching(lines, address.encode(), NotDeleted):
            if line.address == address:
                return ("missing", "") if line.missing else ("failed", line.failed)
    return "deleted", ""


def _matching(lines: gzip.GzipFile, needle: bytes, kind: type[Line]) -> Iterator[Line]:
    """Yield the lines that contain the needle. All others are not decoded."""
    decoder = msgspec.json.Decoder(kind)
    for line in cast("Iterator[bytes]", lines):
        if needle in line:
            yield decoder.decode(line)
