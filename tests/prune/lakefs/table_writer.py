"""Write tables as lakeFS does, of the tests' own: RocksDB's block-based format, ranges and metaranges.

It shares nothing with the reader. `Layout` has what a table may look like, and what none of lakeFS's does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from awscrt.checksums import crc32c

MAGIC = bytes.fromhex("f7cff485b741e288")
SET = b"\x01" + bytes(7)
SEPARATOR = b"\x11" + b"\xff" * 7

Record = tuple[bytes, bytes]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a table is written."""

    two_levels: bool = False
    snappy: bool = True
    block_bytes: int = 4096
    """A block ends when its content is as long."""
    restart_every: int = 16
    """How many entries follow each other between two keys that stand whole."""
    partition_entries: int = 8
    """How many blocks one block of an index of two levels names."""
    key_suffix: bytes = SET
    properties: Mapping[str, bytes] = field(default_factory=dict)
    """What replaces or adds to the usual ones. An empty value leaves the property out."""
    more_blocks: Mapping[str, bytes] = field(default_factory=dict)
    """The contents of blocks beside the usual ones."""
    checksum_type: int = 1
    version: int = 2
    magic: bytes = MAGIC


USUAL = Layout()
LAYOUTS = {
    f"{levels} level{'s' * (levels - 1)}, {'Snappy' if snappy else 'no compression'}": Layout(
        two_levels=levels == 2, snappy=snappy, block_bytes=512
    )
    for levels in (1, 2)
    for snappy in (True, False)
}
"""Each layout that lakeFS's files have, with blocks so small that a test has several."""


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_block(records: Iterable[Record], restart_every: int) -> bytes:
    """The content of a block. `restart_every` 0: only the first key stands whole."""
    out, restarts, last = bytearray(), list[int](), b""
    for count, (key, value) in enumerate(records):
        shared = 0
        while last[shared : shared + 1] == key[shared : shared + 1] != b"":
            shared += 1
        if count == 0 or (restart_every and count % restart_every == 0):
            restarts.append(len(out))
            shared = 0
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return bytes(out) + encode_restarts(restarts or [0])


def encode_restarts(restarts: Sequence[int]) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in (*restarts, len(restarts)))


def seal_block(content: bytes, *, snappy: bool = False, kind: int | None = None) -> bytes:
    """A block as it is stored. `kind`: the byte that says how it is compressed, whatever is true."""
    stored, true_kind = content, 0
    if snappy:
        packed = pa.compress(content, "snappy", asbytes=True)
        if len(packed) < len(content) - len(content) // 8:
            stored, true_kind = packed, 1
    stored += bytes([true_kind if kind is None else kind])
    crc = crc32c(stored)
    return stored + (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def encode_handle(offset: int, size: int) -> bytes:
    return varint(offset) + varint(size)


def encode_footer(metaindex: bytes, index: bytes, layout: Layout = USUAL) -> bytes:
    handles = bytes([layout.checksum_type]) + metaindex + index
    return handles.ljust(41, b"\0") + layout.version.to_bytes(4, "little") + layout.magic


class TableWriter:
    """Writes one table."""

    def __init__(self, layout: Layout = USUAL) -> None:
        self.layout = layout
        self.body = bytearray()

    def add_block(self, content: bytes, *, snappy: bool = False) -> bytes:
        """Write a block, and return where it lies."""
        stored = seal_block(content, snappy=snappy)
        handle = encode_handle(len(self.body), len(stored) - 5)
        self.body += stored
        return handle

    def add_blocks(self, records: Iterable[Record]) -> list[Record]:
        """Write the data blocks, and return the entries of their index."""
        index, waiting, size = list[Record](), list[Record](), 0

        def flush() -> None:
            block = encode_block(waiting, self.layout.restart_every)
            last = waiting[-1][0][:-8] if waiting else b""
            index.append((last + SEPARATOR, self.add_block(block, snappy=self.layout.snappy)))
            waiting.clear()

        for key, value in records:
            waiting.append((key + self.layout.key_suffix, value))
            size += len(key) + len(value) + 11
            if size >= self.layout.block_bytes:
                flush()
                size = 0
        if waiting or not index:  # a table without entries has one block
            flush()
        return index

    def add_index(self, index: Sequence[Record]) -> bytes:
        if self.layout.two_levels:
            step = self.layout.partition_entries
            index = [
                (part[-1][0], self.add_block(encode_block(part, 1), snappy=self.layout.snappy))
                for part in (index[at : at + step] for at in range(0, len(index), step))
            ]
        return self.add_block(encode_block(index, 1), snappy=self.layout.snappy)

    def finish(self, index: bytes, properties: Mapping[str, bytes]) -> bytes:
        """Write the properties, what names them, and the footer; return the table."""
        changed = {**properties, **self.layout.properties}
        rows = sorted((key.encode(), value) for key, value in changed.items() if value)
        places = {name: self.add_block(content) for name, content in self.layout.more_blocks.items()}
        places["rocksdb.properties"] = self.add_block(encode_block(rows, 0))
        metaindex = self.add_block(encode_block(sorted((name.encode(), at) for name, at in places.items()), 0))
        return bytes(self.body) + encode_footer(metaindex, index, self.layout)


def usual_properties(entries: int, *, two_levels: bool = False) -> dict[str, bytes]:
    """What every table of Pebble has, as far as a reader may care."""
    return {
        "rocksdb.block.based.table.index.type": bytes([2 * two_levels, 0, 0, 0]),
        "rocksdb.comparator": b"leveldb.BytewiseComparator",
        "rocksdb.compression": b"Snappy",
        "rocksdb.deleted.keys": varint(0),
        "rocksdb.index.key.is.user.key": varint(0),
        "rocksdb.index.value.is.delta.encoded": varint(0),
        "rocksdb.merge.operands": varint(0),
        "rocksdb.num.entries": varint(entries),
        "rocksdb.num.range-deletions": varint(0),
    }


def write_table(
    records: Sequence[Record], layout: Layout = USUAL, *, properties: Mapping[str, bytes] | None = None
) -> bytes:
    """Write a table of these records, which are in order of their keys."""
    writer = TableWriter(layout)
    index = writer.add_index(writer.add_blocks(records))
    usual = usual_properties(len(records), two_levels=layout.two_levels)
    return writer.finish(index, {**usual, **(properties or {})})


def field_bytes(number: int, value: bytes) -> bytes:
    """A field of Protocol Buffers that is bytes, text or a message; nothing if it is empty."""
    return varint(number << 3 | 2) + varint(len(value)) + value if value else b""


def field_number(number: int, value: int) -> bytes:
    """A field that is a number; nothing if it is 0."""
    return varint(number << 3) + varint(value % 2**64) if value else b""


def encode_entry(
    address: str,
    *,
    address_type: int = 1,
    size: int = 11,
    etag: str = "664c688b4ea9c56730daacfc3d70aeed",
    metadata: Mapping[str, str] | None = None,
    content_type: str = "",
    modified: tuple[int, int] = (1_628_000_000, 471_452_235),
) -> bytes:
    """The message of an object in a range."""
    pairs = (field_bytes(1, key.encode()) + field_bytes(2, value.encode()) for key, value in (metadata or {}).items())
    return b"".join(
        (
            field_bytes(1, address.encode()),
            field_bytes(2, field_number(1, modified[0]) + field_number(2, modified[1])),
            field_number(3, size),
            field_bytes(4, etag.encode()),
            *(field_bytes(5, pair) for pair in pairs),
            field_number(6, address_type),
            field_bytes(7, content_type.encode()),
        )
    )


def encode_range_data(min_key: bytes, max_key: bytes, count: int, estimated_size: int = 1190) -> bytes:
    """The message of a range in a metarange."""
    numbers = field_number(3, estimated_size) + field_number(4, count)
    return field_bytes(1, min_key) + field_bytes(2, max_key) + numbers


def encode_value(identity: bytes, message: bytes) -> bytes:
    """A value of a range or metarange."""
    return varint(2 * len(identity)) + identity + varint(2 * len(message)) + message


def entry_record(path: str, message: bytes) -> Record:
    return path.encode(), encode_value(hashlib.sha256(message).digest(), message)


def write_range(records: Sequence[Record], layout: Layout = USUAL) -> bytes:
    """Write a range of records of `entry_record`."""
    return write_table(records, layout, properties=_properties_of_lakefs("ranges", records))


def write_metarange(ranges: Iterable[tuple[str, bytes, bytes, int]], layout: Layout = USUAL) -> bytes:
    """Write a metarange of ranges: their ids, first and last keys, and how many entries they have."""
    records = [
        (last, encode_value(id_.encode(), encode_range_data(first, last, count))) for id_, first, last, count in ranges
    ]
    return write_table(records, layout, properties=_properties_of_lakefs("metaranges", records))


def id_of(table: bytes) -> str:
    """An id as those of lakeFS look."""
    return hashlib.sha256(table).hexdigest()


def _properties_of_lakefs(kind: str, records: Sequence[Record]) -> dict[str, bytes]:
    keys = [key for key, _ in records]
    return {
        "type": kind.encode(),
        "count": str(len(records)).encode(),
        "min_key": keys[0] if keys else b"",
        "max_key": keys[-1] if keys else b"",
    }
