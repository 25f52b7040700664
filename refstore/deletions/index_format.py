"""The index over all deletions of a repository: for each address, the runs and segments of the journal that have it.

    _refstore/gc/deletions/<level>-<sources>-<id>.idx

A *segment* is written once and never changed. It is a list of entries of ENTRY_BYTES in order of hash, then `sources`
records of SOURCE_BYTES, which the entries number:

    entry    hash (8 bytes, big-endian), number of its source (4), outcome (1), reason (1), spare (2)
    source   length (2), a MessagePack array (`Source`), zeros

There is no manifest that two writers could contend for: the listed segments are the index. A segment of the next level
replaces several others: it is written completely, then they are removed. So at any time, and after any crash of a
writer, each entry is in at least one segment. A duplicate entry does no harm. A reader that misses a segment lists
again.

Hashes are uniform, so the position of an entry can be estimated. In n entries the standard deviation is half the square
root of n. One request for five deviations to each side finds the entry, except once in a million times.

See docs/decisions/0110-an-index-over-all-deletions.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

import msgspec

from refstore.errors import CorruptObject, ObjectNotFound, Unavailable
from refstore.objects.base import ObjectStore

FOLDER: Final = "_refstore/gc/deletions/"
EXTENSION: Final = ".idx"
ENTRY_BYTES: Final = 16
SOURCE_BYTES: Final = 256
HASH_BITS: Final = 64

OUTCOMES: Final = (
    "",
    "deleted",
    "tagged",
    "already gone",
    "failed",
    "deleted by the bucket",
    "deleted, kept as a version",
)
"""By code. Only append, because files contain the codes. 0: the source has the outcome."""
REASONS: Final = (
    "",
    "expired",
    "orphan blob",
    "orphan range",
    "orphan metarange",
    "orphan listing of a commit",
    "foreign",
    "deleted repository",
)
"""By code; only append. 0: the source has the reason."""

SWEEP: Final = "sweep"
JOURNAL: Final = "journal"

_DEVIATIONS: Final = 5
"""How many standard deviations the first request reads to each side of the estimated position."""
_SLACK: Final = 64
_ATTEMPTS: Final = 8
"""How often the segments are listed again because one of them was merged meanwhile."""
_HASH_BYTES: Final = HASH_BITS // 8

T = TypeVar("T")


class Source(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The file that has the complete record of an entry. New kinds and new fields may be added; old ones are read for
    ever.
    """

    kind: str
    """SWEEP: a file of a run of the offline job. JOURNAL: a segment of the reaper's journal."""
    run: str
    """The mark id; '' for the journal."""
    file: str
    """The key of the file."""
    at_ms: int
    """The time when the run was swept, or the batch began."""


class Segment(NamedTuple):
    """A file of the index."""

    key: str
    level: int
    sources: int
    entries: int

    @property
    def sources_at(self) -> int:
        """The offset in the file at which the sources begin."""
        return self.entries * ENTRY_BYTES


class Match(NamedTuple):
    """An entry for the requested text."""

    source: Source
    outcome: str
    reason: str


def hash_of(text: str) -> bytes:
    """Return the hash of an address, as an entry contains it."""
    return blake2b(text.encode(), digest_size=_HASH_BYTES).digest()


def path_text(branch: str, path: str) -> str:
    """Return the text that is hashed for a path of a branch, by which the index finds deletions in the journal. It
    differs from every address, because no address has a line break.
    """
    return f"{branch}\n{path}"


def segment_key(level: int, sources: int, id_: str) -> str:
    return f"{FOLDER}{level:02d}-{sources:08d}-{id_}{EXTENSION}"


def encode_source(source: Source) -> bytes:
    """Encode a source. Raises ValueError if it is too long. Mark ids have at most 63 characters, so none is."""
    body = msgspec.msgpack.encode(source)
    if len(body) > SOURCE_BYTES - 2:
        raise ValueError(f"a source of {len(body)} bytes: {source}")
    return (len(body).to_bytes(2, "big") + body).ljust(SOURCE_BYTES, b"\0")


def segments(objects: ObjectStore) -> list[Segment]:
    """Return the existing segments, in order of level, then of time. Raises CorruptObject, ObjectsUnavailable."""
    found: list[Segment] = []
    for info in objects.list(FOLDER):
        parts = info.key.removeprefix(FOLDER).removesuffix(EXTENSION).split("-")
        if not info.key.endswith(EXTENSION) or len(parts) != 3 or not (parts[0] + parts[1]).isdigit():
            continue  # refstore did not write it
        sources = int(parts[1])
        size = info.size_bytes - sources * SOURCE_BYTES
        if size < 0 or size % ENTRY_BYTES:
            raise damaged(objects, info.key, f"it has {info.size_bytes} bytes")
        found.append(Segment(info.key, int(parts[0]), sources, size // ENTRY_BYTES))
    return found


def lookup(objects: ObjectStore, texts: Sequence[str]) -> dict[str, list[Match]]:
    """Return the index's matches for each text (an address, or a `path_text`), each source once, oldest first.

    This takes one request for the list, one for each segment and text, and one for each match. Raises CorruptObject,
    ObjectsUnavailable.
    """
    for _ in range(_ATTEMPTS):
        try:
            found: dict[str, set[Match]] = {text: set() for text in texts}
            for segment in segments(objects):
                for text, matches in found.items():
                    matches.update(_matches(objects, segment, hash_of(text)))
        except ObjectNotFound:
            continue
        return {
            text: sorted(matches, key=lambda match: (match.source.at_ms, match.source.file))
            for text, matches in found.items()
        }
    raise Unavailable(
        f"the index of deletions in {objects.url} kept changing while it was read; make the same call again"
    )


def read_sources(objects: ObjectStore, segment: Segment) -> list[bytes]:
    """Return the records of a segment's sources, encoded. Raises ObjectNotFound, CorruptObject."""
    body = _read(objects, segment, segment.sources_at, segment.sources_at + segment.sources * SOURCE_BYTES)
    return [body[at : at + SOURCE_BYTES] for at in range(0, len(body), SOURCE_BYTES)]


def decode_source(objects: ObjectStore, key: str, body: bytes) -> Source:
    """Decode a source. Raises CorruptObject."""
    try:
        return msgspec.msgpack.decode(body[2 : 2 + int.from_bytes(body[:2], "big")], type=Source)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(objects, key, f"a source cannot be decoded ({error})") from error


def damaged(objects: ObjectStore, key: str, reason: str) -> CorruptObject:
    return CorruptObject(
        f"{key} in {objects.url} is not what was written ({reason}); restore it from a backup, or remove {FOLDER} "
        "completely and run `refstore gc index`, which writes it again from the records of the runs"
    )


def _matches(objects: ObjectStore, segment: Segment, wanted: bytes) -> Iterator[Match]:
    if not segment.entries:
        return
    for entry in _entries_of(objects, segment, wanted):
        number = int.from_bytes(entry[8:12], "big")
        if number >= segment.sources:
            raise damaged(objects, segment.key, f"an entry names source {number} of {segment.sources}")
        at = segment.sources_at + number * SOURCE_BYTES
        source = decode_source(objects, segment.key, _read(objects, segment, at, at + SOURCE_BYTES))
        yield Match(source, _named(OUTCOMES, entry[12]), _named(REASONS, entry[13]))


def _entries_of(objects: ObjectStore, segment: Segment, wanted: bytes) -> list[bytes]:
    """Return the entries with the hash, which are neighbours. The range that is read grows until it contains all of
    them.
    """
    count = segment.entries
    centre = int.from_bytes(wanted, "big") * count >> HASH_BITS
    reach = int(_DEVIATIONS * math.sqrt(count) / 2) + _SLACK
    first, last = max(0, centre - reach), min(count, centre + reach)
    while True:
        body = _read(objects, segment, first * ENTRY_BYTES, last * ENTRY_BYTES)
        hashes = [body[at : at + _HASH_BYTES] for at in range(0, len(body), ENTRY_BYTES)]
        if any(later < earlier for earlier, later in pairwise(hashes)):
            raise damaged(objects, segment.key, "its entries are not in order")
        before_all, after_all = first > 0 and hashes[0] >= wanted, last < count and hashes[-1] <= wanted
        if not before_all and not after_all:
            return [
                body[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES] for at, found in enumerate(hashes) if found == wanted
            ]
        reach *= 4
        first = max(0, first - reach) if before_all else first
        last = min(count, last + reach) if after_all else last


def _read(objects: ObjectStore, segment: Segment, start: int, end: int) -> bytes:
    body = b"".join(objects.get(segment.key, start=start, end=end))
    if len(body) != end - start:
        raise damaged(objects, segment.key, f"it has only {len(body)} of the {end - start} bytes from {start} on")
    return body


def _named(names: Sequence[str], code: int) -> str:
    """Return the name of a code, or a text for a code that a later version wrote."""
    return names[code] if code < len(names) else f"unknown to this version ({code})"
