"""Read RocksDB's block-based tables, as Pebble writes them for lakeFS. The checksum of every block that is read is
verified, every entry is counted, and what is not known here is refused by its name.

    file     data blocks, other blocks, the block that names these, the index of the data blocks, a footer of 53 bytes
    block    its content, perhaps compressed; a byte that says by what; a masked CRC32C of both
    content  entries, then the offsets of those whose key stands whole (restart points), then their number
    entry    how many bytes of its key are those of the key before it, how many follow, how long the value is; these

A key ends with eight bytes of RocksDB's own: what the entry does (it sets a value), and a sequence number. An index has
one level, or two: blocks that name data blocks, and one that names these.

https://github.com/facebook/rocksdb/wiki/Rocksdb-BlockBasedTable-Format
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from awscrt.checksums import crc32c  # pyright: ignore[reportMissingTypeStubs]  # it has none

from refstore.errors import Corrupt
from refstore.objects.base import ObjectStore
from refstore_gc.untyped_arrow import pa

WHOLE_BYTES_MAX: Final = 32 << 20
"""Up to this size a file is read whole: lakeFS makes ranges of about 20 MB. Of a larger one, pieces are read."""
READ_BYTES: Final = 1 << 20
"""How much of the data blocks is read and decoded at a time, unless one block is larger."""
BLOCK_BYTES_MAX: Final = 96 << 20
"""The largest block that is read. lakeFS's largest value has 80 MiB."""
ENTRIES_BYTES_MAX: Final = 128 << 20
"""How much memory the keys of `READ_BYTES` may take: an entry of three bytes can repeat a long key."""

_MAGIC: Final = bytes.fromhex("f7cff485b741e288")
_OTHER_MAGICS: Final[Mapping[bytes, str]] = {
    bytes.fromhex("57fb808b247547db"): "LevelDB's",
    bytes.fromhex("f09faab3f09faab3"): "Pebble's own",
}
_FOOTER_BYTES: Final = 53
_FORMAT_VERSION: Final = 2
_TRAILER_BYTES: Final = 5
_CHECKSUMS: Final = dict(enumerate(("none", "CRC32C", "xxHash", "xxHash64", "XXH3")))
_CRC_MASK: Final = 0xA282EAD8
_COMPRESSIONS: Final = dict(enumerate(("none", "Snappy", "zlib", "bzip2", "LZ4", "LZ4HC", "XPRESS", "Zstandard")))
_SNAPPY_RATIO_MAX: Final = 22
"""Three bytes of Snappy stand for at most 64."""
_SUFFIX_BYTES: Final = 8
_SET: Final = 1
_ENTRY_KINDS: Final[Mapping[int, str]] = {0: "a deletion", 2: "a merge", 7: "a single deletion", 15: "a range deletion"}
_PROPERTIES: Final = b"rocksdb.properties"
_RANGE_DELETIONS: Final = b"rocksdb.range_del"
_FILTERS: Final = (b"filter.", b"fullfilter.", b"partitionedfilter.")
_INDEX_TYPE: Final = b"rocksdb.block.based.table.index.type"
_TWO_LEVELS: Final = b"\2\0\0\0"
_SUPPORTED: Final[Mapping[bytes, tuple[bytes, ...]]] = {
    b"rocksdb.comparator": (b"leveldb.BytewiseComparator",),
    _INDEX_TYPE: (b"\0\0\0\0", _TWO_LEVELS),
    b"rocksdb.index.key.is.user.key": (b"\0",),
    b"rocksdb.index.value.is.delta.encoded": (b"\0",),
}
"""The properties that say how a table is to be read, and what each may be."""

Handle = tuple[int, int]
"""Where a block begins, and how long it is without its trailer."""


class TableError(Exception):
    """What is wrong with a table. `name_errors` makes a Corrupt of it, which names the file."""


def damage(what: str) -> TableError:
    return TableError(f"{what}; its bytes are not those that lakeFS wrote: put the file back from a copy")


def unknown_form(what: str) -> TableError:
    return TableError(f"{what}, which this version of refstore does not read; look for a newer one, or report it")


@contextmanager
def name_errors(name: str) -> Generator[None]:
    """Raise Corrupt, with the name of the file, for a TableError."""
    try:
        yield
    except TableError as error:
        raise Corrupt(f"{name!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class TableFile:
    """The bytes of a table."""

    name: str
    """For messages."""
    size_bytes: int
    read: Callable[[int, int], bytes | memoryview]
    """Returns the bytes [start, end)."""

    @classmethod
    def from_bytes(cls, name: str, body: bytes) -> TableFile:
        view = memoryview(body)
        return cls(name, len(view), lambda start, end: view[start:end])

    @classmethod
    def from_store(cls, store: ObjectStore, key: str) -> TableFile:
        """Read an object up to `WHOLE_BYTES_MAX`, in one request; else its pieces when they are needed. Raises
        ObjectNotFound.
        """
        body = b"".join(store.get(key, end=WHOLE_BYTES_MAX + 1))
        if len(body) <= WHOLE_BYTES_MAX:
            return cls.from_bytes(key, body)
        size = store.head(key).size_bytes
        return cls(key, size, lambda start, end: b"".join(store.get(key, start=start, end=end, size_bytes=size)))


class Entries(NamedTuple):
    """Neighbouring entries of a table."""

    keys: list[bytes]
    values: list[bytes]


class Table:
    """A table whose footer and properties have been read."""

    def __init__(self, file: TableFile) -> None:
        """Raises Corrupt."""
        self._file = file
        with name_errors(file.name):
            metaindex, self._index = _read_footer(file)
            places = dict(_read_entries(file, [metaindex]))
            for place in places:
                if place not in (_PROPERTIES, _RANGE_DELETIONS) and not place.startswith(_FILTERS):
                    raise unknown_form(f"it has a block {place!r}")
            if _PROPERTIES not in places:
                raise damage("it has no properties")
            self.properties = dict(_read_entries(file, [_parse_handle((_PROPERTIES, places[_PROPERTIES]))]))
            for key, supported in _SUPPORTED.items():
                if self.properties.get(key) not in supported:
                    raise unknown_form(f"its property {key.decode()!r} is {self.properties.get(key)!r}")
            self.range_deletions, _ = read_varint(self.properties.get(b"rocksdb.num.range-deletions", b""), 0)
            """How many there are. `entries` does not apply them."""
            all_entries, _ = read_varint(self.properties.get(b"rocksdb.num.entries", b""), 0)
            self.entry_count = all_entries - self.range_deletions

    def entries(self) -> Iterator[Entries]:
        """Yield all entries, in order of their keys. Raises Corrupt, at the latest when all have been read."""
        count, last = 0, list[bytes]()
        with name_errors(self._file.name):
            for contents in _read_blocks(self._file, self._data_handles()):
                some = _take_suffixes(parse_entries(contents))
                keys = [*last, *some.keys]
                if any(map(operator.ge, keys, keys[1:])):
                    raise damage("its keys are not in order")
                last = keys[-1:]
                count += len(some.keys)
                if some.keys:
                    yield some
            if count != self.entry_count:
                raise damage(f"it has {count} entries, and should have {self.entry_count}")

    def _data_handles(self) -> Iterator[Handle]:
        handles = map(_parse_handle, _read_entries(self._file, [self._index]))
        if self.properties[_INDEX_TYPE] != _TWO_LEVELS:
            return handles
        return map(_parse_handle, _read_entries(self._file, handles))


def read_table(file: TableFile, kind: bytes) -> Iterator[Entries]:
    """Yield all entries of a table of lakeFS, which is of this kind unless it says none. Raises Corrupt, at the latest
    when all have been read.
    """
    table = Table(file)
    with name_errors(file.name):
        if table.properties.get(b"type", kind) != kind:
            raise damage(f"it has {table.properties[b'type']!r} instead of {kind!r}")
        if table.range_deletions:
            raise unknown_form("it has range deletions")
    yield from table.entries()


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Return the number at this place, and where it ends."""
    if at + 1 < len(content):  # nearly all have one byte or two
        first, second = content[at], content[at + 1]
        if first < 128:
            return first, at + 1
        if second < 128:
            return first & 127 | second << 7, at + 2
    value = 0
    for shift, octet in enumerate(content[at : at + 10]):
        value |= (octet & 127) << 7 * shift
        if octet < 128 and value >> 64 == 0:
            return value, at + shift + 1
    raise damage("a number is cut off or too large")


def parse_entries(contents: Iterable[bytes]) -> Entries:
    """Parse the contents of some blocks. Raises TableError."""
    entries, room = Entries([], []), ENTRIES_BYTES_MAX
    for content in contents:
        try:
            room = _parse_block(content, entries, room)
        except IndexError:
            raise damage("an entry leaves its block") from None
    return entries


def _parse_block(content: bytes, entries: Entries, room: int) -> int:
    """Add the entries of a block; return how many of `room` bytes are left."""
    end = len(content) - 4 - 4 * int.from_bytes(content[-4:], "little")
    if not 0 <= end <= len(content) - 8:
        raise damage("the restart points of a block lie outside of it")
    at, key = 0, b""
    while at < end:
        # a call would take as long as all the rest
        shared, at = (content[at], at + 1) if content[at] < 128 else read_varint(content, at)
        unshared, at = (content[at], at + 1) if content[at] < 128 else read_varint(content, at)
        length, at = read_varint(content, at)
        key_end = at + unshared
        value_end = key_end + length
        room -= shared + unshared + 64
        if shared > len(key) or value_end > end:
            raise damage("an entry leaves its block")
        if room < 0:
            raise unknown_form(
                f"its keys take more than {ENTRIES_BYTES_MAX} bytes in memory, of {READ_BYTES} bytes read"
            )
        key = key[:shared] + content[at:key_end]
        entries.keys.append(key)
        entries.values.append(content[key_end:value_end])
        at = value_end
    return room


def _take_suffixes(entries: Entries) -> Entries:
    """Return the entries with the keys that lakeFS gave them."""
    if any(len(key) < _SUFFIX_BYTES for key in entries.keys):
        raise damage("a key is cut off")
    for kind in {key[-_SUFFIX_BYTES] for key in entries.keys} - {_SET}:
        raise unknown_form(f"it has {_ENTRY_KINDS.get(kind, f'an entry of kind {kind}')}")
    return Entries([key[:-_SUFFIX_BYTES] for key in entries.keys], entries.values)


def _read_footer(file: TableFile) -> tuple[Handle, Handle]:
    """Return where the block that names the other blocks lies, and the index."""
    footer = bytes(file.read(max(0, file.size_bytes - _FOOTER_BYTES), file.size_bytes))
    if footer[-8:] in _OTHER_MAGICS:
        raise unknown_form(f"its format is {_OTHER_MAGICS[footer[-8:]]}, not RocksDB's")
    if footer[-8:] != _MAGIC or len(footer) != _FOOTER_BYTES:
        raise damage(f"it is cut off, or no table: it has {file.size_bytes} bytes, and does not end like one")
    version = int.from_bytes(footer[41:45], "little")
    if version != _FORMAT_VERSION:
        raise unknown_form(f"it is of version {version} of the format")
    if footer[0] != 1:
        raise unknown_form(f"its checksums are {_CHECKSUMS.get(footer[0], footer[0])}")
    meta_offset, at = read_varint(footer[:41], 1)
    meta_size, at = read_varint(footer[:41], at)
    index_offset, at = read_varint(footer[:41], at)
    return (meta_offset, meta_size), (index_offset, read_varint(footer[:41], at)[0])


def _parse_handle(entry: tuple[bytes, bytes]) -> Handle:
    offset, at = read_varint(entry[1], 0)
    size, at = read_varint(entry[1], at)
    if at != len(entry[1]):
        raise unknown_form("its index says more of a block than where it lies")
    return offset, size


def _read_entries(file: TableFile, handles: Iterable[Handle]) -> Iterator[tuple[bytes, bytes]]:
    for contents in _read_blocks(file, handles):
        yield from zip(*parse_entries(contents), strict=True)


def _read_blocks(file: TableFile, handles: Iterable[Handle]) -> Iterator[list[bytes]]:
    """Yield the contents of blocks, as many at once as lie in `READ_BYTES`. A block must lie behind the one before it,
    so none is read twice, whatever an index says.
    """
    group: list[Handle] = []
    last_end = 0
    for offset, size in handles:
        end = offset + size + _TRAILER_BYTES
        if offset < last_end or end > file.size_bytes - _FOOTER_BYTES:
            raise damage("a block lies outside of the file, or within another one")
        if size > BLOCK_BYTES_MAX:
            raise unknown_form(f"it has a block of {size} bytes")
        if group and end - group[0][0] > READ_BYTES:
            yield _read_group(file, group, last_end)
            group = []
        group.append((offset, size))
        last_end = end
    if group:
        yield _read_group(file, group, last_end)


def _read_group(file: TableFile, handles: Sequence[Handle], end: int) -> list[bytes]:
    start = handles[0][0]
    piece = memoryview(file.read(start, end))
    if len(piece) != end - start:
        raise damage("it is cut off")
    return [_open_block(piece[offset - start :][: size + _TRAILER_BYTES]) for offset, size in handles]


def _open_block(stored: memoryview) -> bytes:
    """Return the content of a block that is given with its trailer."""
    crc = crc32c(cast(bytes, stored[:-4]))
    if ((crc >> 15 | crc << 17) + _CRC_MASK) & 0xFFFFFFFF != int.from_bytes(stored[-4:], "little"):
        raise damage("a block does not have its checksum")
    content, compression = stored[:-_TRAILER_BYTES], stored[-_TRAILER_BYTES]
    if compression == 0:
        return bytes(content)
    if compression != 1:
        raise unknown_form(f"a block is compressed by {_COMPRESSIONS.get(compression, compression)}")
    size, _ = read_varint(bytes(content[:10]), 0)
    if size > min(BLOCK_BYTES_MAX, _SNAPPY_RATIO_MAX * len(content)):
        raise damage(f"a block of {len(content)} bytes cannot have {size} when it is decompressed")
    try:
        return cast(bytes, pa.decompress(content, size, "snappy", asbytes=True))
    except (OSError, ValueError) as error:
        raise damage("a block cannot be decompressed") from error
