"""What every KV driver holds: the executable form of `refstore/kv/base.py`.

A driver's test module subclasses `KVSuite` and has a module-scoped fixture `kv`. Each test works in a partition of its
own, so that one server serves all of them and nothing needs to be flushed.

The tests of atomicity need no luck: they pause an operation at each of its steps, and run a rival there.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refstore.conformance.interleavings import PAUSES_MAX, Interleaving, switching_often
from refstore.errors import StoreMisconfigured
from refstore.kv.base import ABSENT, KV, Absent, Delete, Exchange, Get, Key, Op, Result, Set, SetIf

THREADS = 16

T = TypeVar("T")

HOSTILE_NAMES = [
    "a",
    "a\x01",
    "a\x01b",
    "a ",
    "a/b",
    "a0",
    "ab",
    "ab\x7f",
    "a\u0080",
    "aß",
    "a\uffff",  # after it in UTF-8, before it in UTF-16: the next
    "a\U0001f600",
    "a\U0010ffff",
    "a\U0010ffffz",
    "b",
    "[a",
    "(a",
    "+",
    "-",
    "*",
    "%",
    "_",
    "{a}",
    "}{",
    "\x01",
    "\n",
    "\r\n$3",
    "'; DROP TABLE kv; --",
    "\ud7ff",
    "\ue000",
    "é",
    "e\u0301",  # another key than é: nothing is normalised
    "k" * 1024,
    "k" * 1023 + "l",
]

HOSTILE_VALUES = [
    b"",
    b"\0",
    b"\0\0",
    b"a\0b",
    b"\x01",
    b"\xff\xfe\x00\x80",
    b"0",
    b"nil",
    b"\r\n",
    bytes(range(256)) * 4,
]

RACES = {
    "create, create": (ABSENT, SetIf(Key("", ""), ABSENT, b"a"), SetIf(Key("", ""), ABSENT, b"b")),
    "replace, set": (b"o", SetIf(Key("", ""), b"o", b"a"), Set(Key("", ""), b"b")),
    "replace, delete": (b"o", SetIf(Key("", ""), b"o", b"a"), Delete(Key("", ""))),
    "remove, replace": (b"o", SetIf(Key("", ""), b"o", ABSENT), SetIf(Key("", ""), b"o", b"b")),
    "exchange, exchange": (b"o", Exchange(Key("", ""), b"a"), Exchange(Key("", ""), b"b")),
    "exchange, replace": (b"o", Exchange(Key("", ""), b"a"), SetIf(Key("", ""), b"o", b"b")),
}
"""(what the key holds, an operation that is paused, the rival that runs meanwhile); each round has a key of its own."""


class KVSuite:
    @pytest.fixture
    def part(self) -> str:
        return f"suite/{uuid.uuid4().hex}"

    # ---- one key

    def test_a_key_is_absent_until_it_is_set(self, kv: KV, part: str) -> None:
        key = Key(part, "k")
        assert kv.get(key) is ABSENT
        kv.set(key, b"1")
        assert kv.get(key) == b"1"
        kv.set(key, b"2")
        assert kv.get(key) == b"2"
        kv.delete(key)
        assert kv.get(key) is ABSENT
        kv.delete(key)

    @pytest.mark.parametrize(
        ("before", "expected", "value", "won", "after"),
        [
            (ABSENT, ABSENT, b"n", True, b"n"),
            (b"o", ABSENT, b"n", False, b"o"),
            (b"", ABSENT, b"n", False, b""),
            (b"o", b"o", b"n", True, b"n"),
            (b"o", b"o", b"o", True, b"o"),
            (b"o", b"x", b"n", False, b"o"),
            (b"o", b"x", b"o", False, b"o"),
            (b"o", b"", b"n", False, b"o"),
            (b"", b"", b"n", True, b"n"),
            (b"o", b"o", b"", True, b""),
            (ABSENT, b"o", b"n", False, ABSENT),
            (ABSENT, b"", b"n", False, ABSENT),
            (b"o", b"o", ABSENT, True, ABSENT),
            (b"o", b"x", ABSENT, False, b"o"),
            (ABSENT, b"o", ABSENT, False, ABSENT),
            (ABSENT, ABSENT, ABSENT, True, ABSENT),
            (b"o", ABSENT, ABSENT, False, b"o"),
        ],
    )
    def test_set_if(
        self,
        kv: KV,
        part: str,
        *,
        before: bytes | Absent,
        expected: bytes | Absent,
        value: bytes | Absent,
        won: bool,
        after: bytes | Absent,
    ) -> None:
        key = Key(part, "k")
        if before is not ABSENT:
            kv.set(key, before)
        assert kv.set_if(key, expected, value) is won
        assert kv.get(key) == after

    def test_partitions_are_apart(self, kv: KV, part: str) -> None:
        names = [part, part + "/", part + "x", part + "{", part + "}x", part + ":k", part + "\x01"]
        for name in names:
            kv.set(Key(name, "k"), name.encode())
        assert kv.get_many([Key(name, "k") for name in names]) == [name.encode() for name in names]
        assert all(kv.scan(name) == [("k", name.encode())] for name in names)

    # ---- batches

    def test_partitions_are_listed_while_they_hold_a_key(self, kv: KV, part: str) -> None:
        """Where the driver can tell: a copy of a whole KV needs it."""
        names = [f"{part}/{name}" for name in ("a", "b:c", "\u00e4*?[x]", "\U0001f600")]
        try:
            assert not {*names} & {*kv.partitions()}
        except StoreMisconfigured:
            pytest.skip("the driver does not list partitions")
        kv.set_many([(Key(name, key), b"") for name in names for key in ("1", "2")])
        listed = kv.partitions()
        assert [name for name in listed if name.startswith(part)] == names
        assert listed == sorted({*listed})
        kv.delete_many([Key(names[1], key) for key in ("1", "2")])
        assert [name for name in kv.partitions() if name.startswith(part)] == [names[0], *names[2:]]

    def test_results_come_in_the_order_of_the_operations(self, kv: KV, part: str) -> None:
        a, b, c = Key(part, "a"), Key(part + "2", "b"), Key(part, "c")
        ops: list[Op] = [
            Set(a, b"1"),
            Get(a),
            Exchange(a, b"2"),
            Exchange(b, b"9"),
            SetIf(a, b"2", b"3"),
            SetIf(b, ABSENT, b"8"),
            Get(a),
            Get(b),
            Get(c),
            Delete(a),
            Get(a),
            SetIf(a, ABSENT, b"4"),
            SetIf(b, b"9", ABSENT),
            Get(b),
            Get(a),
        ]
        assert kv.execute(ops) == [
            None, b"1", b"1", ABSENT, True, False, b"3", b"9", ABSENT, None, ABSENT, True, True, ABSENT, b"4",
        ]  # fmt: skip

    def test_an_empty_batch(self, kv: KV) -> None:
        assert kv.execute([]) == []
        assert kv.get_many([]) == []
        kv.set_many([])
        kv.delete_many([])

    def test_large_batches_over_many_partitions(self, kv: KV, part: str) -> None:
        keys = [Key(f"{part}/{i % 37}", f"k{i:05d}") for i in range(4000)]
        assert kv.set_if_many([SetIf(key, ABSENT, f"v{i}".encode()) for i, key in enumerate(keys)]) == [True] * len(
            keys
        )
        assert kv.get_many(keys) == [f"v{i}".encode() for i in range(len(keys))]
        old = kv.execute([Exchange(key, b"w") for key in keys])
        assert old == [f"v{i}".encode() for i in range(len(keys))]
        kv.set_many([(key, b"x" * (i % 7)) for i, key in enumerate(keys)])
        assert kv.get_many(keys) == [b"x" * (i % 7) for i in range(len(keys))]
        kv.delete_many(keys[::2])
        assert kv.get_many(keys) == [b"x" * (i % 7) if i % 2 else ABSENT for i in range(len(keys))]

    def test_a_large_batch_of_set_if_tells_winners_from_losers(self, kv: KV, part: str) -> None:
        """All shapes at once; each result is checked against what the key holds."""
        keys = [Key(f"{part}/{i % 3}", f"k{i:05d}") for i in range(3000)]
        before: list[bytes | Absent] = [(ABSENT, b"a", b"b")[i % 3] for i in range(len(keys))]
        kv.set_many([(key, value) for key, value in zip(keys, before, strict=True) if value is not ABSENT])
        expected: list[bytes | Absent] = [(ABSENT, b"a", b"z", b"b")[i % 4] for i in range(len(keys))]
        value: list[bytes | Absent] = [(b"n", ABSENT)[i % 5 == 0] for i in range(len(keys))]
        won = kv.set_if_many([SetIf(*op) for op in zip(keys, expected, value, strict=True)])
        assert won == [b == e for b, e in zip(before, expected, strict=True)]
        assert kv.get_many(keys) == [v if ok else b for b, v, ok in zip(before, value, won, strict=True)]

    def test_exchanges_between_existing_keys(self, kv: KV, part: str) -> None:
        """New keys that lie between, before and after what is there."""
        kv.set_many([(Key(part, f"{i:04d}"), b"old") for i in range(0, 1000, 10)])
        old = kv.execute([Exchange(Key(part, f"{i:04d}"), b"new") for i in range(5, 1005, 5)])
        assert old == [b"old" if i % 10 == 0 and i < 1000 else ABSENT for i in range(5, 1005, 5)]
        assert [name for name, _ in kv.scan_all(part)] == ["0000"] + [f"{i:04d}" for i in range(5, 1005, 5)]

    def test_a_key_is_not_the_keys_that_begin_with_it(self, kv: KV, part: str) -> None:
        """What stands next to an absent key in order is not mistaken for it, by any operation, one by one or in
        batches.
        """
        near = ["a\x01", "a\x01b", "a ", "ab", "b\x01", "b\x01\x01"]
        kv.set_many([(Key(part, name), b"near") for name in near])
        a, b = Key(part, "a"), Key(part, "b")
        for keys in ([a], [b], [a, b]):
            assert kv.get_many(keys) == [ABSENT] * len(keys)
            assert kv.set_if_many([SetIf(key, b"near", b"x") for key in keys]) == [False] * len(keys)
            assert kv.set_if_many([SetIf(key, b"near", ABSENT) for key in keys]) == [False] * len(keys)
            assert kv.set_if_many([SetIf(key, ABSENT, ABSENT) for key in keys]) == [True] * len(keys)
            kv.delete_many(keys)
            assert kv.set_if_many([SetIf(key, ABSENT, b"1") for key in keys]) == [True] * len(keys)
            kv.delete_many(keys)
            assert kv.execute([Exchange(key, b"1") for key in keys]) == [ABSENT] * len(keys)
            kv.delete_many(keys)
            kv.set_many([(key, b"1") for key in keys])
            assert kv.get_many(keys) == [b"1"] * len(keys)
            kv.delete_many(keys)
            assert kv.scan(part) == [(name, b"near") for name in sorted(near)]

    # ---- order

    def test_scan_is_ordered_by_the_bytes_of_the_keys(self, kv: KV, part: str) -> None:
        kv.set_many([(Key(part, name), name.encode()) for name in reversed(HOSTILE_NAMES)])
        ordered = sorted(HOSTILE_NAMES, key=str.encode)
        assert kv.scan(part) == [(name, name.encode()) for name in ordered]
        assert kv.get_many([Key(part, name) for name in HOSTILE_NAMES]) == [name.encode() for name in HOSTILE_NAMES]
        assert kv.count(part, limit=1000) == len(HOSTILE_NAMES)

    def test_scan_with_every_prefix_and_from_every_point(self, kv: KV, part: str) -> None:
        kv.set_many([(Key(part, name), b"\0" + name.encode()) for name in HOSTILE_NAMES])
        ordered = sorted(HOSTILE_NAMES, key=str.encode)
        starts = ["", *HOSTILE_NAMES, "a\x02", "zz", "k" * 1000]
        for prefix in ["", "a", "a\x01", "ab", "a\U0010ffff", "\ud7ff", "k" * 1023, "nothing", "*", "%", "_"]:
            for after in starts:
                expected = [name for name in ordered if name.startswith(prefix) and name.encode() > after.encode()]
                found = kv.scan(part, prefix=prefix, after=after)
                assert [name for name, _ in found] == expected, (prefix, after)
                assert all(value == b"\0" + name.encode() for name, value in found)

    def test_scan_in_pages(self, kv: KV, part: str) -> None:
        pairs = [(f"dir/{i:05d}", str(i).encode()) for i in range(2500)]
        kv.set_many([(Key(part, name), value) for name, value in pairs])
        kv.set(Key(part, "dir"), b"")
        kv.set(Key(part, "dis"), b"")
        assert kv.scan(part, prefix="dir/", limit=3) == pairs[:3]
        assert kv.scan(part, prefix="dir/", after="dir/00002", limit=2) == pairs[3:5]
        assert kv.scan(part, prefix="dir/", after="dir/00002x", limit=2) == pairs[3:5]
        assert kv.scan(part, prefix="dir/", after="dir/02498", limit=2) == pairs[2499:]
        assert kv.scan(part, prefix="dir/", after="dir/02499", limit=2) == []
        assert len(kv.scan(part, prefix="dir/")) == 1000
        assert list(kv.scan_all(part, prefix="dir/", page=999)) == pairs
        assert list(kv.scan_all(part, prefix="dir/", after="dir/01999", page=500)) == pairs[2000:]

    def test_delete_range_is_inclusive(self, kv: KV, part: str) -> None:
        names = sorted(HOSTILE_NAMES, key=str.encode)
        for first, last in [
            ("a", "a"),
            ("a", "b"),
            ("\x01", "\x01"),
            ("a\x01", "a\U0010ffff"),
            ("b", "a"),
            ("aa", "aa"),
            ("k", "kz"),
        ]:
            kv.set_many([(Key(part, name), b"\x01\xff") for name in names])
            kv.delete_range(part, first, last)
            left = [name for name in names if not first.encode() <= name.encode() <= last.encode()]
            assert [name for name, _ in kv.scan(part)] == left, (first, last)
            kv.delete_range(part, first, last)
        kv.delete_range(part + "/nothing", "a", "z")

    def test_delete_range_of_many(self, kv: KV, part: str) -> None:
        kv.set_many([(Key(part, f"{i:05d}"), b"v") for i in range(12_345)])
        kv.delete_range(part, "00001", "12343")
        assert [name for name, _ in kv.scan(part)] == ["00000", "12344"]

    def test_count_stops_at_the_limit(self, kv: KV, part: str) -> None:
        assert kv.count(part, limit=10) == 0
        kv.set_many([(Key(part, f"{i}"), b"") for i in range(25)])
        assert kv.count(part, limit=10) == 10
        assert kv.count(part, limit=25) == 25
        assert kv.count(part, limit=100) == 25

    # ---- values

    def test_hostile_values(self, kv: KV, part: str) -> None:
        keys = [Key(part, f"k{i}") for i in range(len(HOSTILE_VALUES))]
        kv.set_many(list(zip(keys, HOSTILE_VALUES, strict=True)))
        assert kv.get_many(keys) == HOSTILE_VALUES
        assert [value for _, value in kv.scan(part)] == HOSTILE_VALUES
        assert (
            kv.execute([Exchange(key, value + b"\0") for key, value in zip(keys, HOSTILE_VALUES, strict=True)])
            == HOSTILE_VALUES
        )
        assert all(
            kv.set_if_many([SetIf(key, value + b"\0", value) for key, value in zip(keys, HOSTILE_VALUES, strict=True)])
        )
        assert not any(
            kv.set_if_many([SetIf(key, value + b"\0", b"!") for key, value in zip(keys, HOSTILE_VALUES, strict=True)])
        )
        assert kv.get_many(keys) == HOSTILE_VALUES

    def test_values_of_a_mebibyte(self, kv: KV, part: str) -> None:
        values = [bytes([i]) * (1 << 20) + b"\0" for i in range(5)]
        keys = [Key(part, f"k{i}") for i in range(5)]
        assert (
            kv.set_if_many([SetIf(key, ABSENT, value) for key, value in zip(keys, values, strict=True)]) == [True] * 5
        )
        assert kv.get_many(keys) == values
        assert (
            kv.set_if_many([SetIf(key, value[:-1], b"") for key, value in zip(keys, values, strict=True)])
            == [False] * 5
        )
        assert kv.execute([Exchange(key, b"") for key in keys]) == values
        assert kv.scan(part) == [(f"k{i}", b"") for i in range(5)]

    # ---- many at once

    @pytest.mark.parametrize(
        ("race", "batch_ops"), [*((race, 1) for race in RACES), ("replace, set", 3), ("exchange, exchange", 3)]
    )
    def test_an_operation_is_atomic_at_each_of_its_steps(self, kv: KV, part: str, race: str, batch_ops: int) -> None:
        """The results, and what the key holds, are as if one of the two had come after the other."""
        before, paused, rival = RACES[race]

        def raced_key(number: int) -> Key:
            return Key(part, f"{number:05d}/{batch_ops // 2}")

        def run_paused(number: int) -> Result:
            """The raced operation stands in the middle of its batch."""
            keys = [Key(part, f"{number:05d}/{index}") for index in range(batch_ops)]
            return kv.execute([msgspec.structs.replace(paused, key=key) for key in keys])[batch_ops // 2]

        def run_rival(number: int) -> Result:
            return kv.execute([msgspec.structs.replace(rival, key=raced_key(number))])[0]

        if before is not ABSENT:
            rounds = range(PAUSES_MAX + 2)
            kv.set_many(
                [(Key(part, f"{number:05d}/{index}"), before) for number in rounds for index in range(batch_ops)]
            )
        rival_first = _in_order(before, rival, paused)
        allowed = [_in_order(before, paused, rival), (rival_first[1], rival_first[0], rival_first[2])]
        for number, result, answer in Interleaving(run_paused, run_rival).rounds():
            seen = (result, answer, kv.get(raced_key(number)))
            assert seen in allowed, (
                f"{race}: {seen} are the results of the paused operation and of its rival, and what the key holds; "
                f"one order of the two gives one of {allowed}"
            )

    @pytest.mark.parametrize("rival", [Delete(Key("", "b")), Set(Key("", "a"), b"2")], ids=["delete", "set"])
    def test_a_scan_paused_at_each_of_its_steps_misses_nothing_that_stood(
        self, kv: KV, part: str, rival: Delete | Set
    ) -> None:
        """A key that stands is listed once, whatever another thread does to a key before it."""
        _set_in_rounds(kv, part, ["b", "d", "f"])

        def scan(number: int) -> list[str]:
            return [name for name, _ in kv.scan(f"{part}/{number}")]

        def write(number: int) -> None:
            kv.execute([msgspec.structs.replace(rival, key=Key(f"{part}/{number}", rival.key.name))])

        for _, names, _ in Interleaving(scan, write).rounds():
            assert names == sorted(set(names))
            assert {"d", "f"} <= set(names)

    def test_of_racing_creations_exactly_one_wins_also_in_batches(self, kv: KV, part: str) -> None:
        keys = [Key(f"{part}/{i % 5}", f"k{i:03d}") for i in range(200)]

        def race(thread: int) -> list[bool]:
            return kv.set_if_many([SetIf(key, ABSENT, f"by {thread}".encode()) for key in keys])

        won = in_threads(race)
        now = kv.get_many(keys)
        for index in range(len(keys)):
            winners = [thread for thread in range(THREADS) if won[thread][index]]
            assert [f"by {thread}".encode() for thread in winners] == [now[index]]

    def test_no_increment_is_lost(self, kv: KV, part: str) -> None:
        key = Key(part, "counter")
        kv.set(key, b"0")

        def count_up(_thread: int) -> None:
            for _ in range(10):
                while True:
                    now = kv.get(key)
                    assert now is not ABSENT
                    if kv.set_if(key, now, str(int(now) + 1).encode()):
                        break

        in_threads(count_up)
        assert kv.get(key) == str(THREADS * 10).encode()

    def test_exchanges_form_a_chain(self, kv: KV, part: str) -> None:
        """Each value is replaced exactly once: what was put in, less what came out, is what is there."""
        key = Key(part, "k")

        def swap(thread: int) -> list[bytes | Absent]:
            return [kv.exchange(key, f"{thread}-{i}".encode()) for i in range(10)]

        came_out = [value for values in in_threads(swap) for value in values]
        assert len(set(came_out)) == len(came_out)
        put_in = {f"{thread}-{i}".encode() for thread in range(THREADS) for i in range(10)}
        assert put_in - set(came_out) == {kv.get(key)}

    def test_a_scan_amid_writes_misses_nothing_that_stood(self, kv: KV, part: str) -> None:
        """Keys that are there all the time are in every page, with one of their values, while they and their neighbours
        change.
        """
        standing = [f"{i:03d}" for i in range(0, 100, 2)]
        kv.set_many([(Key(part, name), b"0") for name in standing])
        stop = threading.Event()

        def write(thread: int) -> None:
            round_ = 0
            while not stop.is_set():
                round_ += 1
                kv.set_many([(Key(part, name), str(round_).encode()) for name in standing[thread::4]])
                kv.set_many([(Key(part, f"{i:03d}"), b"x") for i in range(thread * 2 + 1, 100, 8)])
                kv.delete_many([Key(part, f"{i:03d}") for i in range(thread * 2 + 1, 100, 8)])

        with switching_often(), ThreadPoolExecutor(4) as pool:
            writers = [pool.submit(write, thread) for thread in range(4)]
            try:
                for _ in range(30):
                    names = [name for name, _ in kv.scan(part)]
                    assert names == sorted(set(names))
                    assert set(standing) <= set(names)
            finally:
                stop.set()
            for writer in writers:
                writer.result()

    # ---- against a model

    @given(data=st.data())
    @settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.differing_executors],
    )
    def test_it_behaves_like_a_dict(self, kv: KV, data: st.DataObject) -> None:
        """Any sequence of batches, scans, counts and ranges gives what a plain dict gives."""
        base = f"model/{uuid.uuid4().hex}/"
        model: dict[Key, bytes] = {}
        keys = st.builds(Key, st.sampled_from([base + "p", base + "q"]), NAMES)
        for _ in range(data.draw(st.integers(1, 12))):
            step = data.draw(st.sampled_from(["batch", "batch", "batch", "scan", "delete_range", "count"]))
            part = data.draw(st.sampled_from([base + "p", base + "q"]))
            if step == "batch":
                ops = _without_repeats(data.draw(st.lists(_operations(keys), max_size=12)))
                assert kv.execute(ops) == [apply(model, op) for op in ops]
            elif step == "scan":
                prefix, after = data.draw(st.one_of(st.just(""), NAMES)), data.draw(st.one_of(st.just(""), NAMES))
                limit = data.draw(st.integers(1, 10))
                assert (
                    kv.scan(part, prefix=prefix, after=after, limit=limit)
                    == expected_scan(model, part, prefix, after)[:limit]
                )
            elif step == "delete_range":
                first, last = data.draw(NAMES), data.draw(NAMES)
                kv.delete_range(part, first, last)
                for key in [
                    key
                    for key in model
                    if key.partition == part and first.encode() <= key.name.encode() <= last.encode()
                ]:
                    del model[key]
            else:
                limit = data.draw(st.integers(1, 10))
                assert kv.count(part, limit=limit) == min(limit, sum(key.partition == part for key in model))
        for part in (base + "p", base + "q"):
            assert kv.scan(part) == expected_scan(model, part, "", "")

    # ---- servers

    def test_each_server_stores_the_partition_that_it_is_named_with(self, kv: KV) -> None:
        """A deleter keeps its position there."""
        servers = kv.servers()
        assert servers
        partitions = [server.partition for server in servers]
        assert partitions == sorted(set(partitions)), "each server comes once, in order of partition"
        keys = [Key(partition, f"suite/{uuid.uuid4().hex}") for partition in partitions]
        kv.set_many([(key, key.partition.encode()) for key in keys])
        assert kv.get_many(keys) == [partition.encode() for partition in partitions]
        kv.delete_many(keys)
        assert kv.get_many(keys) == [ABSENT] * len(keys)

    def test_servers_are_the_same_while_nothing_happens_to_them(self, kv: KV, part: str) -> None:
        servers = kv.servers()
        kv.set(Key(part, "k"), b"1")
        assert kv.servers() == servers
        kv.close()
        assert kv.servers() == servers

    def test_closing_twice(self, kv: KV) -> None:
        """And what is closed opens again when it is used: a close does not end the others that share it."""
        kv.close()
        kv.close()
        assert kv.get(Key("suite/closed", "k")) is ABSENT


NAMES = st.one_of(
    st.text(st.sampled_from("ab\x01/\uffff\U0001f600"), min_size=1, max_size=4),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8),
    st.sampled_from(HOSTILE_NAMES),
)
VALUES = st.one_of(st.sampled_from([b"", b"a", b"b", b"\0"]), st.binary(max_size=12))


def _operations(keys: st.SearchStrategy[Key]) -> st.SearchStrategy[Op]:
    maybe = st.one_of(st.just(ABSENT), st.sampled_from([b"a", b"b", b""]))
    return st.one_of(
        st.builds(Get, keys),
        st.builds(Set, keys, VALUES),
        st.builds(SetIf, keys, maybe, maybe),
        st.builds(Exchange, keys, VALUES),
        st.builds(Delete, keys),
    )


def _without_repeats(ops: list[Op]) -> list[Op]:
    """`ops` without those that would name a key twice within one run, which the interface rules out."""
    kept: list[Op] = []
    seen: set[Key] = set()
    for op in ops:
        if kept and type(kept[-1]) is not type(op):
            seen = set()
        if op.key not in seen:
            kept.append(op)
            seen.add(op.key)
    return kept


def apply(model: dict[Key, bytes], op: Op) -> Result:
    old = model.get(op.key, ABSENT)
    match op:
        case Get():
            return old
        case Set(key, value):
            model[key] = value
            return None
        case Exchange(key, value):
            model[key] = value
            return old
        case Delete(key):
            model.pop(key, None)
            return None
        case SetIf(key, expected, value):
            if old != expected:
                return False
            if value is ABSENT:
                model.pop(key, None)
            else:
                model[key] = value
            return True


def expected_scan(model: dict[Key, bytes], part: str, prefix: str, after: str) -> list[tuple[str, bytes]]:
    return sorted(
        (
            (key.name, value)
            for key, value in model.items()
            if key.partition == part and key.name.startswith(prefix) and key.name.encode() > after.encode()
        ),
        key=lambda pair: pair[0].encode(),
    )


def _in_order(before: bytes | Absent, first: Op, second: Op) -> tuple[Result, Result, bytes | Absent]:
    """Return what both operations answer one after the other, and what their key then holds."""
    model = {} if before is ABSENT else {first.key: before}
    return apply(model, first), apply(model, second), model.get(first.key, ABSENT)


def _set_in_rounds(kv: KV, part: str, names: list[str]) -> None:
    """Set the names in a partition of its own for each round of an Interleaving."""
    for number in range(PAUSES_MAX + 2):
        kv.set_many([(Key(f"{part}/{number}", name), b"1") for name in names])


def in_threads(work: Callable[[int], T]) -> list[T]:
    """Call `work(i)` in THREADS threads that start together and switch often."""
    start = threading.Barrier(THREADS)

    def run(thread: int) -> T:
        start.wait(60)
        return work(thread)

    with switching_often(), ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))
