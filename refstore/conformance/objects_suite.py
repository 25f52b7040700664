"""What every object store driver holds: `refstore/objects/base.py`, executable.

A driver's test module subclasses `ObjectStoreSuite` and gives the fixture `url`, a namespace of the test's own.
"""

from __future__ import annotations

import hashlib
import io
import threading
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ClassVar, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from refstore.conformance.interleavings import Interleaving, switching_often
from refstore.core.clock import SystemClock
from refstore.core.units import DAY_SECONDS
from refstore.errors import AlreadyExists, CorruptObject, Invalid, InvalidPath, ObjectNotFound, ObjectsUnavailable
from refstore.objects import ObjectStore, child, open_objects
from refstore.objects.base import DeleteResult, ObjectPage, SkippedKeys

# ruff: noqa: S310  # presigned URLs of servers that the tests started

MIB = 1 << 20

HOSTILE_KEYS = (
    "",
    "/",
    "/etc/passwd",
    "..",
    "../outside",
    "a/../../outside",
    "a/..",
    ".",
    "./a",
    "a/./b",
    "a//b",
    "a/",
    "nul\0",
    "line\nbreak",
    "carriage\rreturn",
    "\x01",
    "lone\ud800surrogate",
    "\uffff",
    "x" * 1025,
    "é" * 513,
    ".tmp/x",
    "a/.tmp/x",
)

KEYS = (
    "a",
    "a b",
    "a+b",
    "a%2Fb",
    "a&b",
    "a<b>",
    "a'b\"c",
    "a?b#c",
    "a\\b",
    "a:b",
    "~a",
    ".hidden",
    "..a",
    "d-x",
    "d.x",
    "d/a",
    "d/b-c",
    "d/b.c",
    "d/b/c",
    "d/b0",
    "d0",
    "d0x/y",
    "data/2026112107/0000",
    "data/2026112107/0001",
    "data/2026112108/0000",
    "data/2026112108-x",
    "z",
    "\x7f",
    "é",
    "e\u0301",
    "ﬀ",
    "\ue000",
    "\ufffd",
    "𐀀",
    "😀",
    "日本/語",
    "w" * 200,
)
"""No key is also the directory of another: a file system cannot hold that. The order of their bytes is not that of
UTF-16 (`\\ufffd` and `😀`), nor that of their segments (`d-x`, `d/a`, `d0`).
"""


def pattern(size_bytes: int, chunk_bytes: int = 1_000_003) -> Iterator[bytes]:
    """A body that is nowhere whole, in chunks that fit no boundary."""
    block = hashlib.sha256(b"refstore").digest() * (chunk_bytes // 32 + 1)
    for at in range(0, size_bytes, chunk_bytes):
        yield block[: min(chunk_bytes, size_bytes - at)]


class Broken(Exception):
    """A body's own failure."""


def breaking(after_bytes: int) -> Iterator[bytes]:
    yield from pattern(after_bytes)
    raise Broken


def in_threads(count: int, task: Callable[[int], object]) -> list[object]:
    """The results, or exceptions, of `count` calls that begin together, in threads that switch often."""
    gate = threading.Barrier(count)

    def run(number: int) -> object:
        gate.wait(30)
        try:
            return task(number)
        except Exception as error:  # noqa: BLE001  # it is what is looked at
            return error

    with switching_often(), ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def fill(store: ObjectStore, keys: list[str] | tuple[str, ...], body: bytes = b"x") -> None:
    def put(key: str) -> None:
        store.put(key, body)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, keys))


class ObjectStoreSuite:
    presigns: ClassVar[bool] = False
    conditional: ClassVar[bool] = True
    """Whether the store enforces `if_absent`, by itself and in one step."""
    tells_missing: ClassVar[bool] = True
    """Whether `delete_many` can tell what was not there."""
    streams: ClassVar[bool] = True
    """Whether a body may be larger than memory."""
    knows_when_begun: ClassVar[bool] = True
    """Whether the store can tell when an upload was begun."""
    numbers_parts_freely: ClassVar[bool] = True
    """Whether the numbers of parts may leave some out, and a part be copied, or written again. rclone passes parts on
    as they come."""
    many: ClassVar[int] = 2500

    @pytest.fixture
    def store(self, url: str) -> Iterator[ObjectStore]:
        store = open_objects(url, create=True)
        yield store
        store.close()

    # -- put and get

    @pytest.mark.parametrize(
        ("make", "expected"),
        [
            pytest.param(lambda: b"hello", b"hello", id="bytes"),
            pytest.param(lambda: b"", b"", id="empty"),
            pytest.param(lambda: io.BytesIO(b"from a file"), b"from a file", id="file"),
            pytest.param(lambda: [b"in", b"", b"chunks"], b"inchunks", id="chunks"),
            pytest.param(lambda: iter([b"once", b" only"]), b"once only", id="iterator"),
            pytest.param(list[bytes], b"", id="no chunks"),
            pytest.param(lambda: bytearray(b"bytearray"), b"bytearray", id="bytearray"),
            pytest.param(lambda: memoryview(b"a view"), b"a view", id="memoryview"),
        ],
    )
    def test_what_is_put_is_got(self, store: ObjectStore, make: Callable[[], Any], expected: bytes) -> None:
        body = make()
        stored = store.put("data/2026112107/x", body)
        assert stored == (
            len(expected),
            hashlib.sha256(expected).hexdigest(),
            hashlib.md5(expected, usedforsecurity=False).hexdigest(),
        )
        assert b"".join(store.get("data/2026112107/x")) == expected
        assert store.read("data/2026112107/x") == expected
        assert store.head("data/2026112107/x")[:2] == ("data/2026112107/x", len(expected))

    def test_a_put_replaces_what_was_there(self, store: ObjectStore) -> None:
        store.put("a/b", b"first, and longer")
        store.put("a/b", b"second")
        assert store.read("a/b") == b"second"
        assert [info.key for info in store.list()] == ["a/b"]

    def test_a_copy_is_an_object_of_its_own(self, store: ObjectStore) -> None:
        store.put("data/a b/é", b"first")
        store.put("copy", b"what the copy replaces")
        assert store.copy("data/a b/é", "copy")[:2] == ("copy", 5)
        store.put("data/a b/é", b"second")
        assert store.read("copy") == b"first"
        with pytest.raises(ObjectNotFound):
            store.copy("nothing", "copy")
        assert store.read("copy") == b"first"

    def test_the_time_is_about_now(self, store: ObjectStore) -> None:
        before = SystemClock().now_ms()
        store.put("a", b"x")
        after = SystemClock().now_ms()
        (listed,) = store.list()
        for mtime in (listed.mtime_ms, store.head("a").mtime_ms):
            assert before - 2000 <= mtime <= after + 2000  # some stores keep whole seconds

    def test_a_buffer_that_is_filled_again_is_no_trap(self, store: ObjectStore) -> None:
        def refill() -> Iterator[bytearray]:
            buffer = bytearray(4)
            for word in (b"one,", b"two,", b"end."):
                buffer[:] = word
                yield buffer

        store.put("a", cast("Iterator[bytes]", refill()))
        assert store.read("a") == b"one,two,end."

    def test_a_large_body_streams_through(self, store: ObjectStore) -> None:
        size = 64 * MIB
        expected = hashlib.sha256()
        for chunk in pattern(size):
            expected.update(chunk)
        tracemalloc.start()
        try:
            stored = store.put("big", pattern(size))
            _, put_peak = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            got, got_bytes = hashlib.sha256(), 0
            for chunk in store.get("big"):
                got.update(chunk)
                got_bytes += len(chunk)
            _, get_peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert stored[:2] == (size, expected.hexdigest())
        assert (got_bytes, got.hexdigest()) == (size, expected.hexdigest())
        assert (
            b"".join(store.get("big", start=size // 2 - 7, end=size // 2 + 7))
            == b"".join(pattern(size))[size // 2 - 7 : size // 2 + 7]
        )
        if self.streams:
            assert put_peak < 40 * MIB, f"{put_peak / MIB:.1f} MiB"
            assert get_peak < 10 * MIB, f"{get_peak / MIB:.1f} MiB"

    @pytest.mark.parametrize("after_bytes", [0, 100, 9 * MIB, 20 * MIB])
    def test_a_put_that_fails_midway_leaves_nothing(self, store: ObjectStore, after_bytes: int) -> None:
        with pytest.raises(Broken):
            store.put("data/2026112107/x", breaking(after_bytes))
        with pytest.raises(ObjectNotFound):
            store.head("data/2026112107/x")
        assert list(store.list()) == []
        self.assert_nothing_staged(store)

    def test_a_put_that_fails_midway_leaves_what_was_there(self, store: ObjectStore) -> None:
        store.put("a", b"before")
        for after_bytes in (100, 9 * MIB):
            with pytest.raises(Broken):
                store.put("a", breaking(after_bytes))
        assert store.read("a") == b"before"
        self.assert_nothing_staged(store)

    def assert_nothing_staged(self, store: ObjectStore) -> None:
        """Drivers look where they stage."""

    # -- ranges

    @pytest.mark.parametrize(
        ("start", "end"),
        [
            (0, None),
            (0, 10),
            (0, 1),
            (9, 10),
            (3, 7),
            (3, None),
            (10, None),
            (10, 10),
            (10, 99),
            (0, 99),
            (5, 99),
            (5, 5),
            (0, 0),
        ],
    )
    def test_ranges(self, store: ObjectStore, start: int, end: int | None) -> None:
        store.put("a", b"0123456789")
        assert b"".join(store.get("a", start=start, end=end)) == b"0123456789"[start:end]

    @pytest.mark.parametrize(("start", "end"), [(11, None), (11, 11), (11, 20), (-1, None), (0, -1), (5, 4)])
    def test_ranges_that_make_no_sense(self, store: ObjectStore, start: int, end: int | None) -> None:
        store.put("a", b"0123456789")
        with pytest.raises(Invalid):
            store.get("a", start=start, end=end)

    def test_ranges_of_an_empty_object(self, store: ObjectStore) -> None:
        store.put("a", b"")
        for start, end in ((0, None), (0, 0), (0, 5)):
            assert b"".join(store.get("a", start=start, end=end)) == b""
        with pytest.raises(Invalid):
            store.get("a", start=1)

    @pytest.mark.parametrize("size_bytes", [0, 9, 11])
    def test_an_object_of_another_length_is_not_read(self, store: ObjectStore, size_bytes: int) -> None:
        store.put("a", b"0123456789")
        for start, end in ((0, None), (0, 9), (0, 11), (0, 0), (2, 4), (9, None), (10, None), (11, 12)):
            with pytest.raises(CorruptObject, match=f"10 bytes.* {size_bytes} "):
                store.get("a", start=start, end=end, size_bytes=size_bytes)
        assert b"".join(store.get("a", size_bytes=10)) == b"0123456789"
        assert b"".join(store.get("a", start=2, end=4, size_bytes=10)) == b"23"
        store.put("empty", b"")
        with pytest.raises(CorruptObject):
            store.get("empty", size_bytes=1)
        assert b"".join(store.get("empty", size_bytes=0)) == b""

    # -- what is not there

    @pytest.mark.parametrize("key", ["nothing", "no/such/directory/nothing"])
    def test_what_is_not_there_is_not_found_by_the_call_itself(self, store: ObjectStore, key: str) -> None:
        store.put("a", b"x")
        looks: list[Callable[[], object]] = [
            lambda: store.head(key),
            lambda: store.get(key),
            lambda: store.read(key),
            lambda: store.get(key, start=3),
            lambda: store.get(key, start=3, end=3),
        ]
        for look in looks:
            with pytest.raises(ObjectNotFound, match="nothing"):
                look()

    def test_a_look_at_many_is_a_look_at_each(self, store: ObjectStore) -> None:
        keys = ["a", "b/c", "b/d", "b/e/f"]
        for key in keys:
            store.put(key, key.encode())
        asked = ["b/d", "nothing", "a", "b", "b/e/f", "a/below-an-object", "nothing/either", "b/c", "b/d"]
        there = {key: store.head(key) for key in keys}
        assert list(store.head_many(asked)) == [there.get(key) for key in asked]
        assert not list(store.head_many([]))

    def test_a_get_that_is_not_read_to_its_end_can_be_closed(self, store: ObjectStore) -> None:
        store.put("a", bytes(3 * MIB))
        for _ in range(30):  # more than any pool of connections holds
            chunks = store.get("a")
            assert next(chunks)
            cast("Generator[bytes]", chunks).close()
        assert len(store.read("a")) == 3 * MIB

    # -- names

    @pytest.mark.parametrize("key", HOSTILE_KEYS, ids=[ascii(key[:20]) for key in HOSTILE_KEYS])
    def test_hostile_keys_are_refused_everywhere(self, store: ObjectStore, key: str) -> None:
        store.put("a", b"x")

        def never() -> Iterator[bytes]:
            pytest.fail("the body was touched")
            yield b""

        attempts: list[Callable[[], object]] = [
            lambda: store.put(key, never()),
            lambda: store.put(key, never(), if_absent=True),
            lambda: store.get(key),
            lambda: store.head(key),
            lambda: store.head_many(["a", key]),
            lambda: store.delete_many(["a", key]),
            lambda: store.delete_unchanged(ObjectPage(["a", key], [1, 1], [store.head("a").mtime_ms, 0], ["", ""])),
        ]
        if self.presigns:
            attempts += [
                lambda: store.presign_get(key, expires_seconds=60),
                lambda: store.presign_put(key, expires_seconds=60),
            ]
        for attempt in attempts:
            with pytest.raises(InvalidPath):
                attempt()
        assert store.read("a") == b"x", "nothing of a call is done if one of its keys is refused"

    @pytest.mark.parametrize("prefix", ["../", "/", "a//", "a/../b", "\0", "x" * 1025, "\ud800"], ids=ascii)
    def test_hostile_prefixes_are_refused(self, store: ObjectStore, prefix: str) -> None:
        with pytest.raises(InvalidPath):
            list(store.list(prefix))

    # -- listing

    def test_listing_is_ordered_by_bytes_from_any_point_for_any_prefix(self, store: ObjectStore) -> None:
        fill(store, KEYS)
        ordered = sorted(KEYS, key=str.encode)
        assert [info.key for info in store.list()] == ordered
        points = [
            "",
            *KEYS,
            "d",
            "d/",
            "d/b",
            "d/b/",
            "data/2026112107",
            "data/2026112107/",
            "data/2026112107/00",
            "data/2026112108",
            "zz",
            "~~~",
        ]
        for number, after in enumerate(points):
            assert [info.key for info in store.list(after=after)] == [key for key in ordered if key > after], after
            for before in (points[(number + 2) % len(points)], points[(number * 7 + 3) % len(points)]):
                expected = [key for key in ordered if key > after and (not before or key < before)]
                assert [info.key for info in store.list(after=after, before=before)] == expected, (after, before)
                pages = store.list_pages(skipped=SkippedKeys(), after=after, before=before)
                assert [key for page in pages for key in page.keys] == expected, (after, before)
        for prefix in [
            "d",
            "d/",
            "d/b",
            "d/b/",
            "data/",
            "data/2026112107/",
            "data/2026112108",
            "日本/",
            "a",
            "nothing",
            "nothing/",
        ]:
            for after in ("", "d", "d/b", "d/b.c", "data/2026112107/0000", "data/2026112107/0000x", "e", "zzz"):
                expected = [key for key in ordered if key.startswith(prefix) and key > after]
                assert [info.key for info in store.list(prefix, after=after)] == expected, (prefix, after)

    def test_every_key_can_be_read_and_deleted(self, store: ObjectStore) -> None:
        for key in KEYS:
            store.put(key, key.encode())
        for key in KEYS:
            assert store.read(key) == key.encode()
            assert store.head(key).size_bytes == len(key.encode())
        deletion = store.delete_many(KEYS)
        assert (sorted(deletion.deleted_keys), deletion.missing_keys, deletion.failed_keys) == (sorted(KEYS), (), ())
        assert list(store.list()) == []

    def test_a_listing_may_be_left(self, store: ObjectStore) -> None:
        fill(store, ["a/1", "a/2", "b/1"])
        listing = store.list()
        assert next(listing).key == "a/1"
        del listing  # what it held open must not be missed, or warned of

    # -- deleting

    def test_deleting_many_says_what_became_of_each(self, store: ObjectStore) -> None:
        keys = [f"data/20261121{hour:02}/{number:05}" for number in range(self.many) for hour in [number % 3]]
        there = [key for number, key in enumerate(keys) if number % 10 != 3]
        fill(store, there)
        store.put("data/2026112100/kept", b"x")
        assert len(list(store.list("data/"))) == len(there) + 1
        deletion = store.delete_many(keys)
        gone = set(keys) - set(there)
        assert deletion.failed_keys == ()
        assert set(deletion.missing_keys) == (gone if self.tells_missing else set())
        assert set(deletion.deleted_keys) == (set(there) if self.tells_missing else set(keys))
        assert len(deletion.deleted_keys) + len(deletion.missing_keys) == len(keys)
        assert [info.key for info in store.list()] == ["data/2026112100/kept"]

    def test_deleting_nothing_and_the_same_twice(self, store: ObjectStore) -> None:
        assert store.delete_many([]) == DeleteResult((), (), ())
        store.put("a", b"x")
        assert store.delete_many(["a", "a"]) == DeleteResult(("a",), (), ())
        again = store.delete_many(["a"])
        assert again == (DeleteResult((), ("a",), ()) if self.tells_missing else DeleteResult(("a",), (), ()))

    def test_what_changed_since_it_was_listed_is_not_deleted(self, store: ObjectStore) -> None:
        keys = sorted([f"data/{number:05}" for number in range(120)] + ["a", "b/c", "z/é"], key=str.encode)
        fill(store, keys)
        listed = self.list_page(store)
        assert listed.keys == keys
        changed, gone = ["a", "data/00000", "data/00050", "z/é"], ["b/c", "data/00119"]
        for key in changed:
            store.put(key, b"longer")
        store.delete_many(gone)
        store.put("data/00050x", b"new")
        deletion = store.delete_unchanged(listed)
        assert sorted(deletion.changed_keys) == sorted(changed)
        assert sorted(deletion.missing_keys) == gone, "a look tells what is missing, whatever a deletion does"
        assert sorted(deletion.deleted_keys) == sorted({*keys} - {*changed, *gone})
        assert deletion.failed_keys == ()
        assert sorted(info.key for info in store.list()) == sorted([*changed, "data/00050x"])

    @pytest.mark.parametrize("count", [1, 3, 30])
    def test_the_size_the_time_and_the_etag_must_be_as_given(self, store: ObjectStore, count: int) -> None:
        keys = [f"data/{number:05}" for number in range(count)]
        fill(store, keys)
        listed = self.list_page(store)
        other_size = listed._replace(sizes_bytes=[size + 1 for size in listed.sizes_bytes])
        other_time = listed._replace(mtimes_ms=[mtime - 3000 for mtime in listed.mtimes_ms])
        other_etag = listed._replace(etags=["0" * 32 for _ in keys])
        for other in [other_size, other_time, *([other_etag] if listed.etags[0] else [])]:
            deletion = store.delete_unchanged(other)
            assert deletion == DeleteResult((), (), (), changed_keys=tuple(keys))
        without_etags = listed._replace(etags=[""] * count)
        assert store.delete_unchanged(without_etags) == DeleteResult(tuple(keys), (), ())
        assert store.delete_unchanged(listed) == DeleteResult((), tuple(keys), ())
        assert store.delete_unchanged(ObjectPage([], [], [], [])) == DeleteResult((), (), ())

    def test_few_unchanged_objects_among_many_are_deleted(self, store: ObjectStore) -> None:
        keys = [f"data/{number:05}" for number in range(self.many)]
        fill(store, keys)
        listed = self.list_page(store)
        some = listed.select([number % 100 == 7 for number in range(self.many)])
        assert store.delete_unchanged(some) == DeleteResult(tuple(some.keys), (), ())
        assert [info.key for info in store.list()] == sorted({*keys} - {*some.keys})

    def list_page(self, store: ObjectStore) -> ObjectPage:
        """All objects, as one page."""
        columns = zip(*store.list_pages(skipped=SkippedKeys()), strict=True)
        return ObjectPage(*([value for part in column for value in part] for column in columns))

    # -- if_absent

    def test_if_absent_leaves_what_is_there(self, store: ObjectStore) -> None:
        store.put("a/b", b"first", if_absent=True)
        with pytest.raises(AlreadyExists):
            store.put("a/b", b"second", if_absent=True)
        assert store.read("a/b") == b"first"
        self.assert_nothing_staged(store)

    def test_if_absent_with_a_large_body(self, store: ObjectStore) -> None:
        stored = store.put("big", pattern(20 * MIB), if_absent=True)
        assert store.head("big").size_bytes == stored.size_bytes == 20 * MIB
        with pytest.raises(AlreadyExists):
            store.put("big", pattern(18 * MIB), if_absent=True)
        assert store.head("big").size_bytes == 20 * MIB
        self.assert_nothing_staged(store)

    def test_of_many_that_put_if_absent_exactly_one_wins(self, store: ObjectStore) -> None:
        assert store.conditional_put is self.conditional
        if not self.conditional:
            return  # the server has no such thing, and the store does not claim it
        for round_number in range(5):
            key = f"new/directory-{round_number}/x"
            results = in_threads(16, lambda number, key=key: store.put(key, b"by %d" % number, if_absent=True))
            winners = [number for number, result in enumerate(results) if not isinstance(result, Exception)]
            assert len(winners) == 1, results
            assert all(
                isinstance(result, AlreadyExists) for number, result in enumerate(results) if number not in winners
            ), results
            assert store.read(key) == b"by %d" % winners[0]

    def test_a_put_if_absent_is_atomic_at_each_of_its_steps(self, store: ObjectStore) -> None:
        if not self.conditional:
            return

        def put(number: int, body: bytes) -> bool:
            try:
                store.put(f"new/{number:05d}", body, if_absent=True)
            except AlreadyExists:
                return False
            return True

        race = Interleaving(lambda number: put(number, b"paused"), lambda number: put(number, b"rival"))
        for number, paused_won, rival_won in race.rounds():
            assert (paused_won, rival_won) in ((True, False), (False, True))
            assert store.read(f"new/{number:05d}") == (b"paused" if paused_won else b"rival")

    def test_puts_and_deletes_of_one_key_at_once_leave_it_whole(self, store: ObjectStore) -> None:
        bodies = {bytes([65 + number]) * 50_000 for number in range(4)}

        def mix(number: int) -> None:
            for _ in range(10):
                if number < 4:
                    store.put("shared/x", bytes([65 + number]) * 50_000)
                elif number == 4:
                    store.delete_many(["shared/x"])
                else:
                    with suppress(ObjectNotFound, ObjectsUnavailable):  # rclone answers 500 where a put replaces a file
                        assert store.read("shared/x") in bodies

        assert [result for result in in_threads(6, mix) if result is not None] == []
        store.put("shared/x", b"last")
        assert store.read("shared/x") == b"last"

    # -- the namespace

    def test_the_url_opens_the_same_namespace(self, store: ObjectStore, url: str) -> None:
        store.put("a", b"x")
        for again in (store.url, url):
            other = open_objects(again)
            try:
                assert other.read("a") == b"x"
                assert other.url == store.url
            finally:
                other.close()

    def test_namespaces_below_one_root_are_apart(self, store: ObjectStore) -> None:
        one, other = (open_objects(child(store.url, name), create=True) for name in ("one.0a", "other"))
        try:
            one.put("a", b"x")
            assert list(other.list()) == []
            with pytest.raises(ObjectNotFound):
                other.head("a")
            other.delete_many(["a"])
            assert [info.key for info in one.list()] == ["a"]
        finally:
            one.close()
            other.close()

    def test_sweeping_touches_no_object(self, store: ObjectStore) -> None:
        store.put("a", b"x")
        assert store.sweep_temporary(older_than_seconds=3600, clock=SystemClock()) == 0
        assert store.read("a") == b"x"

    def test_closing_twice(self, url: str) -> None:
        store = open_objects(url, create=True)
        store.put("a", b"x")
        store.close()
        store.close()

    # -- uploads in parts

    def test_objects_are_joined(self, store: ObjectStore) -> None:
        bodies = [b"".join(pattern(3 * MIB)), b"", b"tail"]
        for number, body in enumerate(bodies):
            store.put(f"parts/{number}", body)
        sources = [(f"parts/{number}", len(body)) for number, body in enumerate(bodies)]
        assert store.join("whole", sources).size_bytes == sum(map(len, bodies))
        assert store.read("whole") == b"".join(bodies)
        assert store.join("whole", [("parts/2", 4)]).size_bytes == sum(map(len, bodies)), (
            "it stays as it was joined first"
        )
        with pytest.raises(ObjectNotFound):
            store.join("other", [("parts/2", 4), ("parts/9", 4)])
        for size_bytes in (3, 5):
            with pytest.raises(CorruptObject):
                store.join("other", [("parts/1", 0), ("parts/2", size_bytes)])
        assert [info.key for info in store.list()] == [*(key for key, _ in sources), "whole"]

    def test_an_upload_in_parts(self, store: ObjectStore) -> None:
        upload = store.begin_upload("a")
        if not upload:
            for attempt in (
                lambda: store.put_part("a", "u", 1, b"x"),
                lambda: store.copy_part("a", "u", 1, "b", 0, 1, size_bytes=1),
                lambda: store.complete_upload("a", "u", []),
            ):
                with pytest.raises(Invalid, match="join"):
                    attempt()
            assert store.abort_uploads("a") == 0
            return
        source = b"".join(pattern(6 * MIB))
        store.put("source", source)
        one, two, three = (2, 5, 9) if self.numbers_parts_freely else (1, 2, 3)
        if self.numbers_parts_freely:
            store.put_part("a", upload, three, b"tail")
        first = store.put_part("a", upload, one, (chunk for chunk in (b"x" * MIB, b"y" * (4 * MIB))))
        again = store.put_part("a", upload, three, iter((b"the ", b"tail")))
        if self.numbers_parts_freely:
            copied = store.copy_part("a", upload, two, "source", 1, 5 * MIB + 1, size_bytes=len(source))
        else:
            copied = store.put_part("a", upload, two, source[1 : 5 * MIB + 1])
        with pytest.raises(CorruptObject):
            store.copy_part("a", upload, two, "source", 1, 5 * MIB + 1, size_bytes=len(source) + 1)
        assert (first.size_bytes, again.size_bytes, copied.size_bytes) == (5 * MIB, 8, 5 * MIB)
        assert again.etag == hashlib.md5(b"the tail", usedforsecurity=False).hexdigest()
        with pytest.raises(ObjectNotFound):
            store.head("a")
        parts = [(one, first.etag), (two, copied.etag), (three, again.etag)]
        assert store.complete_upload("a", upload, parts).size_bytes == 10 * MIB + 8
        assert store.read("a") == b"x" * MIB + b"y" * (4 * MIB) + source[1 : 5 * MIB + 1] + b"the tail"
        assert store.complete_upload("a", upload, parts).size_bytes == 10 * MIB + 8, "as a repeated call finds it"
        assert store.abort_uploads("a") == 0
        assert store.head("a").size_bytes == 10 * MIB + 8

    def test_uploads_in_parts_are_aborted_by_their_key(self, store: ObjectStore) -> None:
        uploads = [store.begin_upload("a"), store.begin_upload("a")]
        if not uploads[0]:
            return
        other = store.begin_upload("a2")
        part = store.put_part("a", uploads[0], 1, b"x")
        assert store.abort_uploads("a") == 2
        assert store.abort_uploads("a") == 0
        for attempt in (
            lambda: store.put_part("a", uploads[0], 1, b"x"),
            lambda: store.complete_upload("a", uploads[0], [(1, part.etag)]),
        ):
            with pytest.raises((ObjectNotFound, ObjectsUnavailable)):  # moto fails where an upload is not there
                attempt()
        kept = store.put_part("a2", other, 1, b"x")
        if self.knows_when_begun:
            assert store.sweep_temporary(older_than_seconds=-60, clock=SystemClock(), spared_keys=("a2",)) == 0
        assert store.complete_upload("a2", other, [(1, kept.etag)]).size_bytes == 1

    # -- presigned

    def test_presigned_urls_work_without_credentials(self, store: ObjectStore) -> None:
        if not self.presigns:
            for presign in (store.presign_get, store.presign_put):
                with pytest.raises(Invalid, match="s3://"):
                    presign("a", expires_seconds=60)
            return
        put = Request(
            store.presign_put("a b/é", expires_seconds=60),
            b"hello",
            {"Content-Type": "application/x-anything"},
            method="PUT",
        )
        with urlopen(put, timeout=30) as answer:
            assert answer.status == 200
        assert store.read("a b/é") == b"hello"
        with urlopen(store.presign_get("a b/é", expires_seconds=60), timeout=30) as answer:
            assert answer.read() == b"hello"
        with pytest.raises(HTTPError) as refused:
            urlopen(store.presign_get("nothing", expires_seconds=60), timeout=30)
        refused.value.close()
        assert refused.value.code == 404
        for seconds in (0, -1, 8 * DAY_SECONDS):
            with pytest.raises(Invalid):
                store.presign_get("a", expires_seconds=seconds)
