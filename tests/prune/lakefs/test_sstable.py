"""The reader of lakeFS's tables: it reads all layouts whole, or refuses a table by saying why."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore.errors import Corrupt, ObjectNotFound
from refstore.objects import ObjectStore, make_objects, open_objects
from refstore_prune.sources.lakefs.sstable import (
    BLOCK_BYTES_MAX,
    READ_BYTES,
    WHOLE_BYTES_MAX,
    Table,
    TableFile,
    read_table,
)
from tests.kit.forwarding import ForwardingObjects
from tests.prune.lakefs.real_files import real_file
from tests.prune.lakefs.table_writer import (
    LAYOUTS,
    SEPARATOR,
    SET,
    USUAL,
    Layout,
    Record,
    TableWriter,
    encode_block,
    encode_footer,
    encode_handle,
    encode_restarts,
    seal_block,
    usual_properties,
    varint,
    write_table,
)

KIND = b"ranges"


def read(body: bytes, name: str = "a table") -> list[Record]:
    found: list[Record] = []
    for entries in read_table(TableFile.from_bytes(name, body), KIND):
        assert entries.keys, "no batch is empty"
        found += zip(entries.keys, entries.values, strict=True)
    return found


def some_records(count: int, *, value_bytes: int = 40) -> list[Record]:
    rng = random.Random(count)
    return [(f"events/day={n // 10:03}/part-{n:05}".encode(), rng.randbytes(value_bytes)) for n in range(count)]


class TestRealFiles:
    @pytest.mark.parametrize("name", ["h.sst", "h.no-compression.sst", "h.no-compression.two_level_index.sst"])
    def test_a_table_of_pebble_has_the_words_and_counts_that_were_written(self, name: str) -> None:
        lines = real_file("h.txt").read_text().splitlines()
        words = [(word.encode(), count.encode()) for count, word in map(str.split, lines)]
        table = Table(TableFile.from_bytes(name, real_file(name).read_bytes()))
        found = [pair for entries in table.entries() for pair in zip(entries.keys, entries.values, strict=True)]
        assert found == words
        assert table.entry_count == len(words) == 1710

    def test_range_deletions_are_refused(self) -> None:
        with pytest.raises(Corrupt, match=r"'h\.sst': it has range deletions, which this version"):
            read(real_file("h.sst").read_bytes(), "h.sst")

    @pytest.mark.parametrize("name", ["metarange.sst", "range.sst", "h.no-compression.two_level_index.sst"])
    def test_no_changed_byte_changes_what_is_read(self, name: str) -> None:
        body = real_file(name).read_bytes()
        check_flips(body, _read_with_deletions, positions=range(0, len(body), 1 + len(body) // 1200))


class TestLayouts:
    @pytest.mark.parametrize("count", [0, 1, 2, 17, 300])
    @pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
    def test_all_that_was_written_is_read(self, layout: Layout, count: int) -> None:
        records = some_records(count)
        assert read(write_table(records, layout)) == records

    @pytest.mark.parametrize("restart_every", [0, 1, 2, 16])
    @pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
    def test_blocks_of_any_size(self, block_bytes: int, restart_every: int) -> None:
        layout = Layout(block_bytes=block_bytes, restart_every=restart_every, two_levels=block_bytes == 100)
        records = some_records(200)
        assert read(write_table(records, layout)) == records

    def test_lengths_of_several_bytes(self) -> None:
        records = [(b"a" * 300, b""), (b"a" * 300 + b"b" * 20_000, b"v" * 70_000), (b"b", b"x"), (b"b" * 130, b"")]
        assert read(write_table(records)) == records

    @settings(max_examples=60, deadline=None)
    @given(
        keys=st.sets(st.binary(max_size=12), max_size=40),
        layout=st.builds(
            Layout,
            two_levels=st.booleans(),
            snappy=st.booleans(),
            block_bytes=st.integers(1, 300),
            restart_every=st.integers(0, 5),
            partition_entries=st.integers(1, 4),
        ),
        seed=st.integers(0, 1 << 30),
    )
    def test_any_keys_and_values(self, keys: set[bytes], layout: Layout, seed: int) -> None:
        rng = random.Random(seed)
        records = [(key, rng.randbytes(rng.choice((0, 3, 200)))) for key in sorted(keys)]
        assert read(write_table(records, layout)) == records

    def test_filters_are_left_aside(self) -> None:
        layout = Layout(more_blocks={"fullfilter.rocksdb.BuiltinBloomFilter": b"\xff" * 50})
        records = some_records(20)
        assert read(write_table(records, layout)) == records

    def test_a_table_of_another_kind_is_refused(self) -> None:
        with pytest.raises(Corrupt, match="it has b'metaranges' instead of b'ranges'"):
            read(write_table([], properties={"type": b"metaranges"}))


class TestDamagedBytes:
    @pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
    def test_no_changed_byte_changes_what_is_read(self, layout: Layout) -> None:
        body = write_table(some_records(12, value_bytes=30), replace(layout, block_bytes=100, partition_entries=2))
        check_flips(body, read, positions=range(len(body)))

    @pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
    def test_a_table_that_is_cut_off_is_refused(self, layout: Layout) -> None:
        body = write_table(some_records(12), replace(layout, block_bytes=100))
        for end in range(len(body)):
            with pytest.raises(Corrupt):
                read(body[:end])
        for start in range(1, len(body)):
            with pytest.raises(Corrupt):
                read(body[start:])

    def test_the_error_names_the_file_and_says_what_to_do(self) -> None:
        body = bytearray(write_table(some_records(3)))
        body[10] ^= 1
        with pytest.raises(Corrupt, match=r"^'_lakefs/77': a block does not have its checksum; .* from a copy$"):
            read(bytes(body), "_lakefs/77")


def check_flips(body: bytes, read_body: Callable[[bytes], list[Record]], *, positions: range) -> None:
    """Change one bit of each of these bytes, then all: the table must be refused, or read as if nothing was changed."""
    true = read_body(body)
    refused = 0
    for position in positions:
        for bits in (1 << position % 8, 255):
            changed = bytearray(body)
            changed[position] ^= bits
            try:
                assert read_body(bytes(changed)) == true, f"bits {bits} of byte {position}"
            except Corrupt:
                refused += 1
    assert refused > len(positions), "most bytes matter"


def _read_with_deletions(body: bytes) -> list[Record]:
    table = Table(TableFile.from_bytes("x", body))
    return [pair for entries in table.entries() for pair in zip(entries.keys, entries.values, strict=True)]


class TestUnknownForms:
    @pytest.mark.parametrize(
        ("layout", "message"),
        [
            (Layout(version=5), "it is of version 5 of the format, which this version of refstore does not read"),
            (Layout(checksum_type=3), "its checksums are xxHash64, which"),
            (Layout(checksum_type=77), "its checksums are 77, which"),
            (Layout(magic=bytes.fromhex("57fb808b247547db")), "its format is LevelDB's, not RocksDB's"),
            (Layout(magic=bytes.fromhex("f09faab3f09faab3")), "its format is Pebble's own, not RocksDB's"),
            (Layout(magic=b"PAR1PAR1"), "it is cut off, or no table"),
            (Layout(properties={"rocksdb.comparator": b"mine"}), "its property 'rocksdb.comparator' is b'mine'"),
            (Layout(properties={"rocksdb.comparator": b""}), "its property 'rocksdb.comparator' is None"),
            (Layout(properties={"rocksdb.block.based.table.index.type": b"\3\0\0\0"}), "table.index.type' is"),
            (Layout(properties={"rocksdb.index.key.is.user.key": b"\1"}), "its property 'rocksdb.index.key.is"),
            (Layout(properties={"rocksdb.index.value.is.delta.encoded": b"\1"}), "its property 'rocksdb.index.value"),
            (Layout(properties={"rocksdb.num.entries": b""}), "a number is cut off"),
            (Layout(properties={"rocksdb.num.range-deletions": b"\2"}), "it has range deletions"),
            (Layout(more_blocks={"pebble.value_index": b"xx"}), "it has a block b'pebble.value_index'"),
            (Layout(more_blocks={"rocksdb.range_del2": b"xx"}), "it has a block b'rocksdb.range_del2'"),
            (Layout(key_suffix=b"\0" + bytes(7)), "it has a deletion"),
            (Layout(key_suffix=b"\2" + bytes(7)), "it has a merge"),
            (Layout(key_suffix=b"\7" + bytes(7)), "it has a single deletion"),
            (Layout(key_suffix=b"\x0f" + bytes(7)), "it has a range deletion"),
            (Layout(key_suffix=b"\x12" + bytes(7)), "it has an entry of kind 18"),
        ],
    )
    def test_they_are_refused_by_name(self, layout: Layout, message: str) -> None:
        with pytest.raises(Corrupt, match=message.replace(".", r"\.")):
            read(write_table(some_records(3), layout))

    @pytest.mark.parametrize(
        ("kind", "message"),
        [(2, "zlib"), (4, "LZ4"), (7, "Zstandard"), (99, "99")],
    )
    def test_other_compressions(self, kind: int, message: str) -> None:
        body = table_of(seal_block(encode_block([(b"a" + SET, b"v")], 16), kind=kind), 1)
        with pytest.raises(Corrupt, match=f"a block is compressed by {message}, which"):
            read(body)

    def test_one_deletion_among_many_entries(self) -> None:
        records = [(f"{n:04}".encode() + (SET if n != 77 else bytes(8)), b"v") for n in range(100)]
        with pytest.raises(Corrupt, match="it has a deletion"):
            read(table_of(seal_block(encode_block(records, 16)), 100))

    def test_an_index_that_says_more(self) -> None:
        writer = TableWriter()
        ((key, handle),) = writer.add_blocks(some_records(3))
        body = writer.finish(writer.add_index([(key, handle + b"\x07")]), usual_properties(3))
        with pytest.raises(Corrupt, match="its index says more of a block than where it lies"):
            read(body)


def table_of(block: bytes, entries: int) -> bytes:
    """A table of one data block that is given as it is stored."""
    writer = TableWriter()
    writer.body += block
    index = writer.add_index([(b"z" + SEPARATOR, encode_handle(0, len(block) - 5))])
    return writer.finish(index, usual_properties(entries))


class TestHostileBlocks:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "restart points of a block lie outside"),
            (b"\0\0\0", "restart points of a block lie outside"),
            (bytes(4), "restart points of a block lie outside"),
            (bytes(8), "restart points of a block lie outside"),
            (encode_restarts([0])[:-4] + b"\2\0\0\0", "restart points of a block lie outside"),
            (encode_restarts([0])[:-4] + b"\xff\xff\xff\xff", "restart points of a block lie outside"),
            (b"\0\x05\1abc" + encode_restarts([0]), "an entry leaves its block"),
            (b"\0\x09\x7f" + b"a" + SET + b"v" + encode_restarts([0]), "an entry leaves its block"),
            (b"\1\x09\1" + b"a" + SET + b"v" + encode_restarts([0]), "an entry leaves its block"),
            (b"\0" + varint(2**63) + b"\1" + b"a" + SET + b"v" + encode_restarts([0]), "an entry leaves its block"),
            (b"\0\x09" + varint(2**64 - 1) + b"a" + SET + b"v" + encode_restarts([0]), "an entry leaves its block"),
            (varint(2**64 - 9) + b"\x09\1" + b"a" + SET + b"v" + encode_restarts([0]), "an entry leaves its block"),
            (b"\0\x09" + varint(2**64) + b"a" + SET + b"v" + encode_restarts([0]), "a number is cut off or too large"),
            (b"\xff" * 30 + encode_restarts([0]), "a number is cut off or too large"),
            (b"\0\x07\0" + SET[:7] + encode_restarts([0]), "a key is cut off"),
            (b"\0\0\0" + encode_restarts([0]), "a key is cut off"),
            (b"\x80" + encode_restarts([0]), "a number is cut off|an entry leaves its block"),
            (b"\0" + encode_restarts([0]), "an entry leaves its block|a key is cut off"),
        ],
    )
    def test_they_are_refused(self, content: bytes, message: str) -> None:
        with pytest.raises(Corrupt, match=message):
            read(table_of(seal_block(content), 1))

    @pytest.mark.parametrize("keys", [[b"b", b"a"], [b"a", b"a"], [b"a", b"b", b"b"], [b"aa", b"a"]])
    @pytest.mark.parametrize("block_bytes", [1, 4096])
    def test_keys_out_of_order(self, keys: list[bytes], block_bytes: int) -> None:
        with pytest.raises(Corrupt, match="its keys are not in order"):
            read(write_table([(key, b"v") for key in keys], Layout(block_bytes=block_bytes)))

    @pytest.mark.parametrize("keys", [[b"b", b"c", b"a"], [b"a", b"b", b"b"]])
    def test_keys_out_of_order_in_blocks_that_are_not_read_at_once(self, keys: list[bytes]) -> None:
        value = bytes(READ_BYTES * 2 // 3)
        with pytest.raises(Corrupt, match="its keys are not in order"):
            read(write_table([(key, value) for key in keys], Layout(snappy=False)))

    @pytest.mark.parametrize("said", [0, 2, 4, 2**40])
    def test_another_number_of_entries(self, said: int) -> None:
        body = write_table(some_records(3), Layout(properties={"rocksdb.num.entries": varint(said)}))
        with pytest.raises(Corrupt, match=f"it has 3 entries, and should have {said}; its bytes are not those"):
            read(body)

    @pytest.mark.parametrize("size", [4096, 97 << 20, 2**32 - 1, 2**63])
    def test_a_small_block_that_says_that_it_is_large(self, size: int) -> None:
        packed = pa.compress(encode_block([(b"a" + SET, b"v")], 16), "snappy", asbytes=True)
        with pytest.raises(Corrupt, match=f"a block of .* bytes cannot have {size} when it is decompressed"):
            read(table_of(seal_block(varint(size) + packed[1:], kind=1), 1))

    def test_a_block_that_says_another_size(self) -> None:
        packed = pa.compress(encode_block([(b"a" + SET, b"v")], 16), "snappy", asbytes=True)
        with pytest.raises(Corrupt, match="a block cannot be decompressed"):
            read(table_of(seal_block(bytes([packed[0] + 1]) + packed[1:], kind=1), 1))

    @pytest.mark.parametrize("size", [BLOCK_BYTES_MAX + 1, 1 << 40])
    def test_a_block_that_is_too_large_is_not_read(self, size: int) -> None:
        footer = encode_footer(encode_handle(0, size), encode_handle(0, 8))

        def read_piece(start: int, end: int) -> bytes:
            assert end - start <= len(footer)
            return footer

        with pytest.raises(Corrupt, match=f"it has a block of {size} bytes, which"):
            Table(TableFile("a table", 1 << 41, read_piece))

    def test_a_block_that_is_no_snappy(self) -> None:
        with pytest.raises(Corrupt, match="a block cannot be decompressed"):
            read(table_of(seal_block(b"\x10" + b"\xff" * 30, kind=1), 1))

    def test_any_changed_byte_behind_a_true_checksum_is_refused_or_read(self) -> None:
        """Whoever may write to the store can make a table of anything: no other error than Corrupt comes of it."""
        content = encode_block([(key + SET, value) for key, value in some_records(6, value_bytes=200)], 2)
        for position in range(len(content)):
            for octet in (0, 1, 127, 128, 255):
                changed = content[:position] + bytes([octet]) + content[position + 1 :]
                with suppress(Corrupt):
                    assert len(read(table_of(seal_block(changed), 6))) == 6

    @settings(max_examples=200, deadline=None)
    @given(content=st.binary(max_size=200), compression=st.sampled_from([0, 1]))
    def test_any_content_is_refused_or_read(self, content: bytes, compression: int) -> None:
        with suppress(Corrupt):
            assert len(read(table_of(seal_block(content, kind=compression), 6))) == 6

    def test_keys_that_repeat_a_long_key(self) -> None:
        long = b"k" * (1 << 20)
        first = b"\0" + varint(len(long) + 8) + b"\0" + long + SET
        others = [varint(len(long)) + b"\x0a\0" + n.to_bytes(2, "big") + SET for n in range(200)]
        block = seal_block(first + b"".join(others) + encode_restarts([0]), snappy=True)
        assert len(block) < 100_000
        with pytest.raises(Corrupt, match=r"its keys take more than \d+ bytes"):
            read(table_of(block, 200))


class TestHostileIndexes:
    """An index may lead in circles, or out of the file: it takes no longer than a true one."""

    def read_with(self, index: list[Record], *, two_levels: bool = False) -> list[Record]:
        """Read a table of a data block of three records, at 0, whose index is given."""
        writer = TableWriter(Layout(snappy=False))
        writer.add_blocks(some_records(3))
        return read(
            writer.finish(writer.add_index(index), usual_properties(3, two_levels=two_levels)),
        )

    @property
    def data_handle(self) -> bytes:
        return encode_handle(0, len(encode_block([(key + SET, value) for key, value in some_records(3)], 16)))

    def test_a_true_one_is_read(self) -> None:
        assert self.read_with([(b"z" + SEPARATOR, self.data_handle)]) == some_records(3)

    def test_a_block_that_is_named_twice(self) -> None:
        with pytest.raises(Corrupt, match="a block lies outside of the file, or within another one"):
            self.read_with([(b"y" + SEPARATOR, self.data_handle), (b"z" + SEPARATOR, self.data_handle)])

    def test_an_index_of_two_levels_that_names_data(self) -> None:
        with pytest.raises(Corrupt):
            self.read_with([(b"z" + SEPARATOR, self.data_handle)], two_levels=True)

    def test_an_index_that_names_itself(self) -> None:
        writer = TableWriter(Layout(snappy=False))
        writer.add_blocks(some_records(3))
        offset = len(writer.body)
        size = len(encode_block([(b"z" + SEPARATOR, encode_handle(offset, 27))], 1))
        body = writer.finish(
            writer.add_index([(b"z" + SEPARATOR, encode_handle(offset, size))]), usual_properties(3, two_levels=True)
        )
        with pytest.raises(Corrupt):
            read(body)

    @pytest.mark.parametrize(
        ("offset", "size"), [(10**6, 10), (0, 10**6), (0, 2**63), (2**63, 1), (2**64 - 1, 2**64 - 1), (0, 96 << 20)]
    )
    def test_a_block_outside_of_the_file(self, offset: int, size: int) -> None:
        with pytest.raises(Corrupt, match="a block lies outside of the file, or within another one"):
            self.read_with([(b"z" + SEPARATOR, encode_handle(offset, size))])

    def test_a_footer_that_leads_out_of_the_file(self) -> None:
        body = write_table(some_records(3))
        for metaindex in (encode_handle(2**64 - 1, 5), encode_handle(0, 2**40), b"\xff" * 20):
            footer = encode_footer(metaindex, encode_handle(0, 5), USUAL)[:53]
            with pytest.raises(Corrupt):
                read(body[:-53] + footer)

    def test_a_table_without_properties(self) -> None:
        writer = TableWriter()
        index = writer.add_index(writer.add_blocks(some_records(3)))
        metaindex = writer.add_block(encode_block([], 0))
        with pytest.raises(Corrupt, match="it has no properties"):
            read(bytes(writer.body) + encode_footer(metaindex, index))


class CountedReads(ForwardingObjects):
    """Notes which ranges of bytes are read."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.reads: list[tuple[int, int | None]] = []

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        self.reads.append((start, end))
        return super().get(key, start=start, end=end, size_bytes=size_bytes)


class TestStoredFiles:
    @pytest.fixture
    def store(self, tmp_path: Path) -> CountedReads:
        make_objects(f"file://{tmp_path}/store")
        return CountedReads(open_objects(f"file://{tmp_path}/store"))

    def test_a_small_file_is_read_at_once(self, store: CountedReads) -> None:
        records = some_records(300)
        store.put("_lakefs/aa", write_table(records, Layout(two_levels=True)))
        file = TableFile.from_store(store, "_lakefs/aa")
        assert [key for entries in read_table(file, KIND) for key in entries.keys] == [key for key, _ in records]
        assert store.reads == [(0, WHOLE_BYTES_MAX + 1)]

    def test_of_a_large_file_pieces_are_read(self, store: CountedReads) -> None:
        rng = random.Random(1)
        records = [(f"{n:05}".encode(), rng.randbytes(300_000)) for n in range(130)]
        body = write_table(records, Layout(two_levels=True, snappy=False))
        assert len(body) > WHOLE_BYTES_MAX
        store.put("_lakefs/aa", io.BytesIO(body))
        file = TableFile.from_store(store, "_lakefs/aa")
        rest = list(records)
        for entries in read_table(file, KIND):
            assert list(zip(entries.keys, entries.values, strict=True)) == rest[: len(entries.keys)]
            del rest[: len(entries.keys)]
        assert rest == []
        assert all(end is not None and end - start <= READ_BYTES for start, end in store.reads[1:])

    def test_a_file_that_ends_early(self) -> None:
        body = write_table(some_records(3))
        file = TableFile("a table", len(body), lambda start, end: body[start : end if end == len(body) else end - 1])
        with pytest.raises(Corrupt, match="'a table': it is cut off"):
            Table(file)

    def test_a_file_that_is_not_there(self, store: CountedReads) -> None:
        with pytest.raises(ObjectNotFound):
            TableFile.from_store(store, "_lakefs/aa")
