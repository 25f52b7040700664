"""`refstore kv copy` moves a lake to another KV: whole, in one of the two at any time, and again after any crash."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from refstore.agreed_durations import REREAD_SECONDS
from refstore.core.clock import SystemClock
from refstore.errors import Conflict, Corrupt, KVUnavailable, WrongStore
from refstore.kv import open_kv
from refstore.kv.base import ABSENT, KV, Key, Op, Result, SetIf
from refstore.kv.memory import MemoryKV
from refstore.kv_recovery import kv_copy
from refstore.kv_recovery.kv_copy import NOT_COPIED, PAGE, copy_kv, give_up
from refstore.lake import Lake, open_lake_at
from refstore.records import keys
from refstore.records.encoding import decode, encode
from refstore.records.lake_records import KvCopy
from refstore.records.reaper_records import Heartbeat
from tests.commands import Command

SHOWN = ("the old KV", "the new KV")
STATE = keys.KV_COPY


class Interrupted(Exception):
    """The process ends here."""


class TargetKV(MemoryKV):
    """A KV; after so many calls that write the process ends."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left = 1 << 30
        self.before_write: Callable[[Sequence[Op]], None] = lambda _: None

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        if any(hasattr(op, "value") for op in ops):
            self.before_write(ops)
            self.writes_left -= 1
            if self.writes_left < 0:
                raise Interrupted
        return super().execute(ops)


def fill(lake: Lake) -> None:
    for name in ("sales", "cold"):
        repo = lake.create_repository(name)
        repo.upload("main", "a", b"committed")
        repo.commit("main", "one")
        repo.upload("main", "b", b"staged")
    lake.kv.set_many([(Key("sales/staging/many", f"{number:05}"), b"x" * 50) for number in range(2 * PAGE + 3)])
    lake.kv.set_many([(Key(f"sales/staging/{number:03}", "\U0001f600"), b"") for number in range(50)])


def dump(kv: KV) -> dict[Key, bytes]:
    found = {Key(name, key): value for name in kv.partitions() for key, value in kv.scan_all(name)}
    return {key: value for key, value in found.items() if key not in NOT_COPIED}


def without_audit(kv: KV) -> dict[Key, bytes]:
    return {key: value for key, value in dump(kv).items() if not key.partition.startswith("audit/")}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A lake whose KV is in memory."""
    with open_lake_at("memory:", f"file://{tmp_path}/objects") as made:
        fill(made)
        yield made


@pytest.fixture
def target(lake: Lake) -> Lake:
    """The same lake by a KV that is empty."""
    return at(lake, TargetKV())


def at(lake: Lake, kv: KV) -> Lake:
    return Lake(kv, lake.objects_url)


def state(kv: KV) -> str:
    raw = kv.get(STATE)
    return "" if raw is ABSENT else decode(raw, KvCopy).state


def is_open(lake: Lake, kv: KV) -> bool:
    opened = at(lake, kv)
    try:
        opened.agree(explicit={}, must_exist=True, read_only=False, check_identity=True)
        return opened.repository("sales").read("main", "b") == b"staged"
    except WrongStore:
        return False


def test_everything_is_copied_and_the_lake_goes_on_there(lake: Lake, target: Lake) -> None:
    found = copy_kv(lake, target, shown=SHOWN, clients_stopped=True)
    before, behind = dump(lake.kv), dump(target.kv)
    behind = {key: value for key, value in behind.items() if key in before or key.partition != keys.AUDIT_HEADS}
    assert behind == before
    assert (found.keys, found.partitions) == (len(before), len({key.partition for key in before}))
    assert not is_open(lake, lake.kv)
    assert is_open(lake, target.kv)
    assert target.kv.get(keys.LAKE) == lake.kv.get(keys.LAKE)


def test_whoever_opens_the_old_kv_hears_where_the_lake_went(lake: Lake, target: Lake) -> None:
    copy_kv(lake, target, shown=SHOWN, clients_stopped=True)
    for check_identity in (True, False):
        with pytest.raises(WrongStore, match="has moved to the KV the new KV"):
            at(lake, lake.kv).agree(explicit={}, must_exist=False, read_only=True, check_identity=check_identity)
    with pytest.raises(WrongStore, match="has moved"):
        lake.check_kv()
    with pytest.raises(Conflict, match="has moved to the new KV"):
        copy_kv(lake, target, shown=SHOWN, clients_stopped=True)
    with pytest.raises(Conflict, match="cannot be opened here again"):
        give_up(lake)


def test_a_process_that_was_not_stopped_does_nothing_more(lake: Lake, target: Lake) -> None:
    class LaterClock(SystemClock):
        seconds = 0.0

        def monotonic_seconds(self) -> float:
            return super().monotonic_seconds() + self.seconds

    clock = LaterClock()
    running = replace(at(lake, lake.kv), clock=clock)
    running.agree(explicit={}, must_exist=True, read_only=False, check_identity=True)
    repo = running.repository("sales")
    repo.upload("main", "c", b"1")
    copy_kv(lake, target, shown=SHOWN, clients_stopped=True)
    clock.seconds = REREAD_SECONDS
    for call in (
        lambda: repo.upload("main", "d", b"1"),
        lambda: running.create_repository("new"),
        lambda: running.set_metadata("sales", put={"a": "b"}),
        lambda: running.delete_repository("sales"),
    ):
        with pytest.raises(WrongStore, match="has moved"):
            call()


def test_what_a_process_that_was_not_stopped_still_writes_is_waited_for(lake: Lake, target: Lake) -> None:
    late = Key("sales/staging/many", "late")

    class WaitingClock(SystemClock):
        seconds = 0.0

        def now_ms(self) -> int:
            return super().now_ms() + int(self.seconds * 1000)

        def sleep(self, seconds: float) -> None:
            self.seconds += seconds
            lake.kv.set(late, f"after {self.seconds:.0f} s".encode())

    clock = WaitingClock()
    copy_kv(replace(at(lake, lake.kv), clock=clock), target, shown=SHOWN)
    assert clock.seconds >= REREAD_SECONDS + lake.safety.operation_deadline_seconds
    assert target.kv.get(late) == lake.kv.get(late)


@pytest.mark.parametrize("is_old", [False, True], ids=["of the new KV", "of the old KV"])
def test_after_a_crash_at_any_write_the_lake_is_open_in_one_kv_at_most(tmp_path: Path, is_old: bool) -> None:
    """And the same call ends the copy."""
    with open_lake_at("memory:", f"file://{tmp_path}/objects") as lake:
        fill(lake)
        crashes, seen = 0, set[tuple[str, str]]()
        while True:
            old, new = TargetKV(), TargetKV()
            old.set_many(list(dump(lake.kv).items()))
            old.set(keys.LAKE, as_bytes(lake.kv.get(keys.LAKE)))
            old.writes_left = crashes if is_old else 1 << 30
            new.writes_left = 1 << 30 if is_old else crashes
            try:
                copy_kv(at(lake, old), at(lake, new), shown=SHOWN, clients_stopped=True)
                break
            except Interrupted:
                old.writes_left = new.writes_left = 1 << 30
            seen.add((state(old), state(new)))
            assert not (is_open(lake, old) and is_open(lake, new))
            copy_kv(at(lake, old), at(lake, new), shown=SHOWN, clients_stopped=True)
            assert (state(old), state(new)) == ("gone", "")
            assert is_open(lake, new)
            crashes += 1
        assert crashes > (3 if is_old else 10)
        assert seen >= ({("", "")} if is_old else {("leaving", ""), ("leaving", "arriving"), ("gone", "checked")})


def as_bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


def test_a_copy_goes_on_where_it_was(lake: Lake, target: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_copy, "NOTED_EVERY", 1)
    kv = target.kv
    assert isinstance(kv, TargetKV)
    written: list[Key] = []
    kv.before_write = lambda ops: written.extend(op.key for op in ops)
    kv.writes_left = 60
    with pytest.raises(Interrupted):
        copy_kv(lake, target, shown=SHOWN, clients_stopped=True)
    kv.writes_left, first = 1 << 30, len(written)
    copy_kv(lake, target, shown=SHOWN, clients_stopped=True)
    again = {*written[:first]} & {*written[first:]} - {STATE}
    assert first > 60
    assert len(again) <= PAGE


def test_a_copy_that_was_given_up_lets_the_old_kv_go_on(lake: Lake, target: Lake) -> None:
    kv = target.kv
    assert isinstance(kv, TargetKV)
    kv.writes_left = 10
    with pytest.raises(Interrupted):
        copy_kv(lake, target, shown=SHOWN, clients_stopped=True)
    assert not is_open(lake, lake.kv)
    kv.writes_left = 1 << 30
    give_up(lake)
    assert is_open(lake, lake.kv)
    with pytest.raises(WrongStore, match="is being copied from the old KV"):
        at(lake, kv).agree(explicit={}, must_exist=True, read_only=True, check_identity=True)
    with pytest.raises(Conflict, match="empty"):
        copy_kv(lake, target, shown=SHOWN, clients_stopped=True)
    assert is_open(lake, lake.kv)
    copy_kv(lake, at(lake, TargetKV()), shown=SHOWN, clients_stopped=True)


def test_a_copy_that_was_given_up_meanwhile_opens_nothing(lake: Lake, target: Lake) -> None:
    kv = target.kv
    assert isinstance(kv, TargetKV)

    def give_up_at_the_end(ops: Sequence[Op]) -> None:
        for op in ops:
            value = op.value if isinstance(op, SetIf) and op.key == STATE else ABSENT
            if value is not ABSENT and decode(value, KvCopy).state == "checked":
                give_up(lake)

    kv.before_write = give_up_at_the_end
    with pytest.raises(Conflict, match="given the copy up"):
        copy_kv(lake, target, shown=SHOWN, clients_stopped=True)
    assert is_open(lake, lake.kv)
    assert not is_open(lake, target.kv)


@pytest.mark.parametrize(
    ("partition", "reads"),
    [("sales/staging/many", 1), ("sales/staging/many", 4), (keys.LAKE.partition, 2)],
    ids=["copying", "comparing", "opening"],
)
def test_a_call_that_was_taken_for_dead_writes_nothing_more(
    lake: Lake, target: Lake, partition: str, reads: int
) -> None:
    """Another one has ended the copy meanwhile, and clients write to the new KV."""
    gone, new = Key("sales/staging/many", "00500"), Key("sales/staging/many", "new")
    after: dict[Key, bytes] = {}

    class SourceKV(MemoryKV):
        seen = -1

        def note(self, name: str) -> None:
            self.seen += self.seen >= 0 and name == partition
            if self.seen == reads:
                self.seen = -1
                assert copy_kv(at(lake, self), target, shown=SHOWN, clients_stopped=True).keys
                target.kv.delete(gone)
                target.kv.set(new, b"acknowledged")
                after.update(without_audit(target.kv))

        def scan(
            self, partition: str, *, prefix: str = "", after: str = "", limit: int = PAGE
        ) -> list[tuple[str, bytes]]:
            self.note(partition)
            return super().scan(partition, prefix=prefix, after=after, limit=limit)

        def execute(self, ops: Sequence[Op]) -> list[Result]:
            for op in ops:
                self.note(op.key.partition if op.key == keys.LAKE else "")
            return super().execute(ops)

    source = SourceKV()
    source.set_many([*dump(lake.kv).items(), (keys.LAKE, as_bytes(lake.kv.get(keys.LAKE)))])
    source.seen = 0
    with pytest.raises(Conflict):
        copy_kv(at(lake, source), target, shown=SHOWN, clients_stopped=True)
    assert new in after
    assert without_audit(target.kv) == after


def test_what_was_written_meanwhile_is_copied_once_more(lake: Lake, target: Lake) -> None:
    kv = target.kv
    assert isinstance(kv, TargetKV)
    late = iter([Key("sales/staging/many", "00000"), Key("sales/staging/many", "00001x")])

    def write_late(ops: Sequence[Op]) -> None:
        if any(op.key.name == "02002" for op in ops):
            for key in late:
                lake.kv.set(key, b"late")
            lake.kv.delete(Key("sales/staging/many", "00002"))

    kv.before_write = write_late
    copy_kv(lake, target, shown=SHOWN, clients_stopped=True)
    assert target.kv.get(Key("sales/staging/many", "00001x")) == b"late"
    assert target.kv.get(Key("sales/staging/many", "00002")) is ABSENT


def test_a_kv_that_keeps_other_bytes_is_noticed(lake: Lake) -> None:
    class LossyKV(MemoryKV):
        def scan(
            self, partition: str, *, prefix: str = "", after: str = "", limit: int = PAGE
        ) -> list[tuple[str, bytes]]:
            found = super().scan(partition, prefix=prefix, after=after, limit=limit)
            return [(name, value) for name, value in found if name != "00777"]

    with pytest.raises(Corrupt, match="differ in 1 partitions, such as 'sales/staging/many'"):
        copy_kv(lake, at(lake, LossyKV()), shown=SHOWN, clients_stopped=True)
    assert state(lake.kv) == "leaving"
    give_up(lake)
    assert is_open(lake, lake.kv)


def test_what_stands_in_the_way_is_refused_before_the_lake_is_closed(lake: Lake, tmp_path: Path) -> None:
    used = MemoryKV()
    used.set(Key("a", "b"), b"")
    with pytest.raises(Conflict, match="holds something already"):
        copy_kv(lake, at(lake, used), shown=SHOWN, clients_stopped=True)
    with pytest.raises(Conflict, match="holds something already"):
        copy_kv(lake, at(lake, lake.kv), shown=SHOWN, clients_stopped=True)
    other = open_lake_at("memory:", f"file://{tmp_path}/other/objects")
    with other, pytest.raises(WrongStore, match="and the object store of"):
        copy_kv(Lake(lake.kv, other.objects_url), at(lake, MemoryKV()), shown=SHOWN, clients_stopped=True)
    lake.kv.set(keys.heartbeat("r1"), encode(Heartbeat("host", 1, 0, lake.clock.now_ms(), 10.0)))
    with pytest.raises(Conflict, match="r1 was at work"):
        copy_kv(lake, at(lake, MemoryKV()), shown=SHOWN, clients_stopped=True)
    lake.kv.delete(keys.heartbeat("r1"))
    assert is_open(lake, lake.kv)


def test_a_kv_that_fails_leaves_the_lake_closed_and_the_copy_goes_on(lake: Lake, target: Lake) -> None:
    kv = target.kv
    assert isinstance(kv, TargetKV)

    def fail(_: Sequence[Op]) -> None:
        raise KVUnavailable("planted")

    kv.before_write = fail
    with pytest.raises(KVUnavailable):
        copy_kv(lake, target, shown=SHOWN, clients_stopped=True)
    assert state(lake.kv) == "leaving"
    kv.before_write = lambda _: None
    copy_kv(lake, target, shown=SHOWN, clients_stopped=True)
    assert is_open(lake, target.kv)


# ---- the command


@pytest.fixture
def folder(refstore: Command) -> Path:
    """The folder of a lake, with a namespace outside."""
    refstore.ok("repo", "create", "sales")
    refstore.ok("repo", "create", "far", "--namespace", f"file://{refstore.folder}/far")
    for name in ("sales", "far"):
        refstore.ok("upload", name, "main", "-", "a", stdin=b"committed")
        refstore.ok("commit", name, "main", "-m", "one")
        refstore.ok("upload", name, "main", "-", "b", stdin=b"staged")
    refstore.ok("reaper", "--once")
    return refstore.folder / "lake"


@pytest.mark.server
def test_a_pilot_goes_from_its_folder_to_another_kv_and_back(refstore: Command, folder: Path, redis_url: str) -> None:
    old, back = f"sqlite://{folder}/kv.sqlite", f"sqlite://{folder}/new.sqlite"
    shared = f"{redis_url}?prefix=copy-{uuid.uuid4().hex}"
    run, objects = refstore, f"file://{folder}/objects"
    assert run("kv", "copy", old, shared, stdin=b"n\n").code != 0
    copied = run.json("kv", "copy", old, shared, "--clients-stopped", "--yes")
    assert (copied["keys"] > 20, len(copied["sha256"])) == (True, 64)

    refused = run("ls", "sales", "main")
    assert refused.code == 6
    assert "has moved to the KV redis://" in refused.err
    assert run("kv", "reconcile", "--yes").code == 6
    assert run("doctor").code == 6

    for kv in (shared, back):
        here = ("--kv", kv, "--objects", objects)
        if kv == back:
            run.ok("--objects", objects, "--kv", shared, "kv", "copy", shared, back, "--clients-stopped", "--yes")
            assert run("--kv", shared, "--objects", objects, "ls", "sales", "main").code == 6
        for name in ("sales", "far"):
            assert run.ok(*here, "cat", name, "main", "b").out == "staged"
            run.ok(*here, "upload", name, "main", "-", "c", stdin=kv.encode())
            run.ok(*here, "commit", name, "main", "-m", "two")
        run.ok(*here, "kv", "verify")
        run.ok(*here, "audit", "verify")
        run.ok(*here, "kv", "reconcile", "--clients-stopped", "--yes")
        run.ok(*here, "reaper", "--once")
        entries = [entry for entry in run.json(*here, "audit", "log") if entry["action"].startswith("kv.copy")]
        assert {entry["outcome"] for entry in entries} <= {"begun", "done"}
        assert {entry["action"] for entry in entries} == {"kv.copy", "kv.copy.begin"}


def test_the_kv_of_a_folders_copy_is_not_copied_where_it_would_share_a_store(
    refstore: Command, folder: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "copied"))
    ran = refstore(
        "--data", copied, "kv", "copy", f"sqlite://{copied}/kv.sqlite", f"sqlite://{tmp_path}/new.sqlite", "--yes"
    )
    assert (ran.code, "another copy of this lake's folder holds" in ran.err) == (6, True)
    refstore.ok("--data", copied, "ls", "sales", "main")


def test_a_copy_is_given_up_by_the_command(refstore: Command, folder: Path, tmp_path: Path) -> None:
    old, new = f"sqlite://{folder}/kv.sqlite", f"sqlite://{tmp_path}/new.sqlite"
    assert refstore("kv", "copy", old, new, "--give-up").code == 4
    with closing(open_kv(old)) as kv:
        kv.set(STATE, encode(KvCopy("c", "leaving", new, 1)))
    assert refstore("ls", "sales", "main").code == 6
    refstore.ok("kv", "copy", old, new, "--give-up")
    refstore.ok("ls", "sales", "main")


def test_no_message_has_a_password(refstore: Command, folder: Path) -> None:
    """But of the lake that cannot be reached there."""
    ran = refstore("kv", "copy", f"sqlite://{folder}/kv.sqlite", "redis://ada:hunter2@127.0.0.1:1/0", "--yes")
    assert ran.code == 5
    assert "hunter2" not in ran.out + ran.err
    refstore.ok("ls", "sales", "main")
