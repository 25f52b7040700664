"""The reader of lakeFS's metaranges and ranges: it names every address, or refuses the file."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore.errors import Corrupt
from refstore.objects import ObjectStore, make_objects, open_objects
from refstore_prune.sources.base import BATCH_NAMES
from refstore_prune.sources.lakefs.committed import (
    RangeRef,
    RangeTask,
    range_key,
    read_metarange,
    read_range_addresses,
)
from refstore_prune.sources.lakefs.sstable import TableFile
from tests.prune.lakefs.real_files import real_file
from tests.prune.lakefs.table_writer import (
    LAYOUTS,
    USUAL,
    Layout,
    Record,
    encode_entry,
    encode_range_data,
    encode_value,
    entry_record,
    field_bytes,
    field_number,
    id_of,
    varint,
    write_metarange,
    write_range,
    write_table,
)
from tests.servers.s3_base import S3Server

RELATIVE, FULL = 1, 2
ENTRY = encode_entry("data/a1")


def read_range(body: bytes, ref: RangeRef | None = None) -> list[str]:
    batches = list(read_range_addresses(TableFile.from_bytes("a range", body), ref))
    assert all(len(batch) <= BATCH_NAMES for batch in batches)
    return [address for batch in batches for address in batch.to_pylist()]


def read_ranges(body: bytes) -> list[RangeRef]:
    return read_metarange(TableFile.from_bytes("a metarange", body))


def records_of(addresses: Sequence[str]) -> list[Record]:
    """Records of a range, with the metadata, types and texts that lakeFS's clients write."""
    rng = random.Random(len(addresses))
    return [
        entry_record(
            f"tables/part-{number:07}.parquet",
            encode_entry(
                address,
                address_type=FULL if "://" in address else RELATIVE,
                size=rng.choice((0, 1, 127, 128, 10**6, 2**62)),
                etag=rng.choice(("", "a" * 32)),
                metadata={f"key{each}": "v" * each for each in range(rng.choice((0, 0, 1, 3)))},
                content_type=rng.choice(("", "application/octet-stream")),
            ),
        )
        for number, address in enumerate(addresses)
    ]


class TestRealFiles:
    def test_a_metarange_and_the_range_that_it_names(self) -> None:
        (ref,) = read_ranges(real_file("metarange.sst").read_bytes())
        assert ref == RangeRef(
            "a83af763ba098c15369d9d6d723731eb9ce18b8dfac4f88c6f1287e772393d0e", b"a/b/c/no", b"a/b/c/yes", 2
        )
        assert read_range(real_file("range.sst").read_bytes(), ref) == [
            "b0c968736d8f42a2b1c6284835f08226",
            "fdf87fcf9ec849f98514ddb7e041ad56",
        ]

    def test_a_range_whose_addresses_are_of_the_old_type(self) -> None:
        addresses = read_range(real_file("ok1.sst").read_bytes())
        assert len(set(addresses)) == 105
        assert addresses[:2] == ["4e068d1a46734113abd2218e87aace4c", "0707eb0e2c6d4eab8ff6fab5a6a4b517"]

    def test_a_large_range_with_addresses_in_other_buckets(self) -> None:
        addresses = read_range(
            real_file("common-crawl.range.sst").read_bytes(),
            RangeRef(
                "a1",
                b"common-crawl-hive-analysis/CC-MAIN-2014-23/part-m-01364.gz",
                b"phishing-domains/domains.csv",
                13868,
            ),
        )
        assert len(addresses) == 13868
        assert [address for address in addresses if "://" not in address] == ["7f1283fbf81f4e588586d6017370ac13"]
        assert addresses[0] == "s3://oz-repo/datasets/common-crawl-hive-analysis/CC-MAIN-2014-23/part-m-01364.gz"
        # what a parser of a few lines has read, which takes one byte after the other and shares nothing with this one
        assert hashlib.sha256("\n".join(addresses).encode()).hexdigest() == (
            "aeaca4d4bd07d02a3afc1451341feb3aad3c3a11366871da8968db42aba872dc"
        )


class TestRanges:
    @pytest.mark.parametrize("count", [0, 1, 2, 17, 300])
    @pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
    def test_all_addresses_are_named_in_order(self, layout: Layout, count: int) -> None:
        addresses = [f"data/{n % 7}/{n:04}" if n % 3 else f"s3://other/é {n}" for n in range(count)]
        assert read_range(write_range(records_of(addresses), layout)) == addresses

    @settings(max_examples=60, deadline=None)
    @given(addresses=st.lists(st.text(min_size=1, max_size=200).filter(lambda text: "://" not in text), max_size=40))
    def test_any_addresses(self, addresses: list[str]) -> None:
        body = write_range(records_of(addresses), Layout(block_bytes=300, two_levels=True))
        assert read_range(body) == addresses

    def test_batches_are_bounded(self) -> None:
        addresses = [f"a{n}" for n in range(BATCH_NAMES + 10)]
        records = [(f"{n:06}".encode(), encode_value(b"", field_bytes(1, a.encode()))) for n, a in enumerate(addresses)]
        assert read_range(write_range(records, Layout(block_bytes=1 << 30))) == addresses

    @pytest.mark.parametrize(
        ("address", "address_type"),
        [
            ("data/a", RELATIVE),
            ("a:b", RELATIVE),
            ("a/s3://b", RELATIVE),
            ("s3://bucket/a", FULL),
            ("https://account.blob.core.windows.net/container/a", FULL),
            ("local:///disk/a", FULL),
            ("0123abcd", 0),
            ("s3://bucket/a", 0),
            ("long/" + "x" * 20_000, RELATIVE),
        ],
    )
    def test_types_of_addresses(self, address: str, address_type: int) -> None:
        record = entry_record("a", encode_entry(address, address_type=address_type))
        assert read_range(write_range([record])) == [address]

    def test_an_entry_with_much_metadata(self) -> None:
        metadata = {f"key {n}": "value " * n for n in range(300)}
        records = [
            entry_record("a", encode_entry("data/a")),
            entry_record("b", encode_entry("data/b", metadata=metadata, content_type="text/csv")),
            entry_record("c", encode_entry("s3://x/c", address_type=FULL)),
        ]
        assert read_range(write_range(records)) == ["data/a", "data/b", "s3://x/c"]

    def test_fields_in_another_order(self) -> None:
        message = field_number(6, FULL) + field_bytes(7, b"text/csv") + field_bytes(1, b"s3://b/a") + field_number(3, 5)
        assert read_range(write_range([entry_record("a", message)])) == ["s3://b/a"]

    @pytest.mark.parametrize("two_levels", [True, False])
    def test_no_changed_byte_changes_what_is_read(self, two_levels: bool) -> None:
        body = write_range(records_of(["data/a", "s3://b/c", "data/d"]), Layout(two_levels=two_levels))
        for position in range(len(body)):
            changed = bytearray(body)
            changed[position] ^= 1 << position % 8
            with suppress(Corrupt):
                assert read_range(bytes(changed)) == ["data/a", "s3://b/c", "data/d"], position


class TestEntriesThatAreRefused:
    @pytest.mark.parametrize(
        ("message", "error"),
        [
            (ENTRY + field_bytes(8, b"x"), "it has a field 8 of the wire type 2"),
            (ENTRY + field_number(300, 1), "it has a field 300 of the wire type 0"),
            (ENTRY + varint(2**63 + 2) + b"\0", "it has a field -?[0-9]+ of the wire type 2"),
            (b"\2\0" + ENTRY, "it has a field 0 of the wire type 2"),
            (field_number(1, 5), "it has a field 1 of the wire type 0"),
            (ENTRY + b"\x1d\0\0\0\0", "it has a field 3 of the wire type 5"),
            (ENTRY + b"\x33", "it has a field 6 of the wire type 3"),
            (ENTRY + field_bytes(1, b"data/other"), "a message has a field twice"),
            (ENTRY + field_number(6, FULL), "a message has a field twice"),
            (encode_entry(""), "the entry b'a' has the address '' of type 1, which"),
            (b"", "the entry b'a' has the address '' of type 0, which"),
            (encode_entry("data/a", address_type=3), "the entry b'a' has the address 'data/a' of type 3, which"),
            (encode_entry("data/a", address_type=-1), f"has the address 'data/a' of type {2**64 - 1}, which"),
            (encode_entry("data/a", address_type=FULL), "has the address 'data/a' of type 2, which"),
            (encode_entry("s3://b/a", address_type=RELATIVE), "has the address 's3://b/a' of type 1, which"),
            (field_bytes(1, b"data/\xff") + field_number(6, RELATIVE), "an address is not in UTF-8"),
            (ENTRY[:-1], "a number is cut off"),
            (ENTRY + b"\x3a", "a number is cut off"),
            (ENTRY + b"\x3a\x05text", "a field leaves its message"),
            (ENTRY + b"\x3a" + varint(2**63), "a field leaves its message"),
            (ENTRY + b"\x3a" + varint(2**64 - 1), "a field leaves its message"),
            (ENTRY + b"\x3a" + b"\xff" * 9 + b"\2", "a number is cut off or too large"),
            (ENTRY + b"\x3a" + b"\xff" * 11, "a number is cut off or too large"),
        ],
    )
    def test_messages(self, message: bytes, error: str) -> None:
        good = [entry_record("0", encode_entry("data/0")), entry_record("z", encode_entry("data/z"))]
        with pytest.raises(Corrupt, match=error):
            read_range(write_range([good[0], entry_record("a", message), good[1]]))

    @pytest.mark.parametrize(
        ("value", "error"),
        [
            (b"", "a (value|number) is cut off"),
            (b"\0", "a (value|number) is cut off"),
            (varint(2 * 5) + b"1234", "a (value|number) is cut off"),
            (varint(1) + varint(2 * len(ENTRY)) + ENTRY, "a (value|number) is cut off"),
            (varint(2**63) + varint(2 * len(ENTRY)) + ENTRY, "a (value|number) is cut off"),
            (varint(2**62) + varint(2 * len(ENTRY)) + ENTRY, "a (value|number) is cut off"),
            (varint(2**64) + varint(2 * len(ENTRY)) + ENTRY, "too large"),
            (encode_value(b"id", ENTRY)[:-1], "a (value|number) is cut off"),
            (encode_value(b"id", ENTRY) + b"\0", "there is something behind a value"),
        ],
    )
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_values(self, value: bytes, error: str, place: int) -> None:
        good = encode_value(b"id", ENTRY)
        values = [value if number == place else good for number in range(3)]
        with pytest.raises(Corrupt, match=error):
            read_range(write_range([(b"%d" % number, value) for number, value in enumerate(values)]))

    def test_any_changed_byte_behind_a_true_checksum_is_refused_or_read(self) -> None:
        """Whoever may write to the store can make a range of anything: no other error than Corrupt comes of it."""
        value = encode_value(b"identity", encode_entry("data/a1", metadata={"key": "value" * 30}, content_type="text"))
        for position in range(len(value)):
            for octet in (0, 1, 127, 128, 255):
                changed = value[:position] + bytes([octet]) + value[position + 1 :]
                records = [(b"a", encode_value(b"id", ENTRY)), (b"b", changed), (b"c", encode_value(b"id", ENTRY))]
                with suppress(Corrupt):
                    assert len(read_range(write_range(records))) == 3

    @settings(max_examples=200, deadline=None)
    @given(values=st.lists(st.binary(max_size=60), min_size=1, max_size=5))
    def test_any_values_are_refused_or_read(self, values: list[bytes]) -> None:
        records = [(b"%03d" % number, value) for number, value in enumerate(values)]
        for read in (read_range, read_ranges):
            with suppress(Corrupt):
                assert len(read(write_table(records))) == len(values)

    @settings(max_examples=200, deadline=None)
    @given(message=st.binary(max_size=60))
    def test_any_message_is_refused_or_read(self, message: bytes) -> None:
        for read in (read_range, read_ranges):
            with suppress(Corrupt):
                assert len(read(write_table([(b"a", encode_value(b"ab12", message))]))) == 1


def ref_to(records: Sequence[Record], body: bytes) -> RangeRef:
    return RangeRef(id_of(body), records[0][0], records[-1][0], len(records))


REFS = [RangeRef(f"{n:064x}", b"%03d/a" % n, b"%03d/z" % n, n * 1000 + 1) for n in range(60)]


class TestMetaranges:
    @pytest.mark.parametrize("count", [0, 1, 60])
    @pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
    def test_all_ranges_are_read(self, layout: Layout, count: int) -> None:
        rows = [(ref.id, ref.min_key, ref.max_key, ref.count) for ref in REFS[:count]]
        assert read_ranges(write_metarange(rows, layout)) == REFS[:count]

    def test_an_old_one_without_counts(self) -> None:
        (ref,) = read_ranges(write_metarange([("ab12", b"a", b"b", 0)]))
        assert ref == RangeRef("ab12", b"a", b"b", 0)

    @pytest.mark.parametrize(
        ("id_", "message"),
        [
            (b"../../other", encode_range_data(b"a", b"k", 1)),
            (b"", encode_range_data(b"a", b"k", 1)),
            (b"\xff", encode_range_data(b"a", b"k", 1)),
            (b"ab12", encode_range_data(b"a", b"j", 1)),
            (b"ab12", encode_range_data(b"l", b"k", 1)),
            (b"ab12", encode_range_data(b"a", b"k", -1)),
        ],
    )
    def test_what_is_impossible_is_refused(self, id_: bytes, message: bytes) -> None:
        with pytest.raises(Corrupt, match="what it says of a range is impossible: "):
            read_ranges(write_table([(b"k", encode_value(id_, message))]))

    def test_an_unknown_field_is_refused(self) -> None:
        message = encode_range_data(b"a", b"k", 1) + field_bytes(5, b"x")
        with pytest.raises(Corrupt, match="it has a field 5 of the wire type 2"):
            read_ranges(write_table([(b"k", encode_value(b"ab12", message))]))

    @pytest.mark.parametrize("says_its_kind", [True, False])
    def test_neither_is_read_as_the_other(self, says_its_kind: bool) -> None:
        layout = USUAL if says_its_kind else replace(USUAL, properties={"type": b""})
        with pytest.raises(Corrupt):
            read_range(write_metarange([("ab12", b"a", b"b", 5)], layout))
        with pytest.raises(Corrupt):
            read_ranges(write_range(records_of(["data/a", "data/b"]), layout))

    @pytest.mark.parametrize(
        "change", [{"count": 2}, {"count": 4}, {"min_key": b"a"}, {"max_key": b"zz"}, {"max_key": b"a"}]
    )
    def test_a_range_that_is_not_as_the_metarange_says(self, change: dict[str, Any]) -> None:
        records = records_of(["data/a", "data/b", "data/c"])
        body = write_range(records)
        ref = ref_to(records, body)
        assert read_range(body, ref) == read_range(body, replace(ref, count=0)) == ["data/a", "data/b", "data/c"]
        with pytest.raises(Corrupt, match="it has 3 entries, from b'tables/part-0000000"):
            read_range(body, replace(ref, **change))

    def test_an_empty_range_is_not_what_a_metarange_says(self) -> None:
        with pytest.raises(Corrupt, match="it has 0 entries"):
            read_range(write_range([]), RangeRef("ab12", b"a", b"b", 1))


class TestTasks:
    PREFIX = "repositories/sales/"

    def fill(self, store: ObjectStore) -> tuple[RangeTask, list[str]]:
        """Put some ranges, and return the task that reads them, with what they name."""
        refs, names = list[RangeRef](), list[str]()
        for number in range(7):
            addresses = [f"data/{number}/{each}" for each in range(40)]
            records = records_of(addresses)
            body = write_range(records, Layout(two_levels=number % 2 == 0, block_bytes=500))
            refs.append(ref_to(records, body))
            names += addresses
            store.put(range_key(self.PREFIX, refs[-1].id), body)
        task = RangeTask(store.url, self.PREFIX, tuple(refs))
        again: RangeTask = pickle.loads(pickle.dumps(task))  # noqa: S301  # of this test
        assert again == task
        return again, names

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        make_objects(f"file://{tmp_path}/store")
        return open_objects(f"file://{tmp_path}/store")

    def test_it_names_all_addresses_and_may_be_run_again(self, store: ObjectStore) -> None:
        task, names = self.fill(store)
        for _ in range(2):
            assert [name for batch in task() for name in batch.to_pylist()] == names

    @pytest.mark.server
    def test_it_reads_from_s3(self, rclone_s3_server: S3Server) -> None:
        task, names = self.fill(open_objects(rclone_s3_server.url()))
        assert [name for batch in task() for name in batch.to_pylist()] == names

    def test_a_range_that_is_not_there(self, store: ObjectStore) -> None:
        task, _ = self.fill(store)
        key = range_key(self.PREFIX, task.ranges[3].id)
        store.delete_many([key])
        with pytest.raises(Corrupt, match=f"the range .* is gone, and a commit names it; put it back .*{key}"):
            list(task())

    def test_a_range_that_was_replaced_by_another_one(self, store: ObjectStore) -> None:
        task, _ = self.fill(store)
        key = range_key(self.PREFIX, task.ranges[3].id)
        store.put(key, write_range(records_of(["data/other"])))
        with pytest.raises(Corrupt, match=f"'{key}': it has 1 entries"):
            list(task())
