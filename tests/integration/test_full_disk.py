"""A lake on a disk that is full: everything can be read, errors say so, and a reaper makes room by its reserve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from refstore.configuration.settings import ReaperSettings
from refstore.core.disk_space import DiskSpace
from refstore.errors import KVUnavailable
from refstore.kv.retries import RetryingKV
from refstore.kv.sqlite import SqliteKV
from refstore.lake import Lake
from refstore_reaper.daemon import Reaper
from tests.commands import Command
from tests.small_disk import fill, mounted

pytestmark = pytest.mark.root

MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", size_mib=24) as disk:
        yield disk


@pytest.fixture
def sales(refstore: Command, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, with a repository on the small disk: one object committed, two deleted, one of them reaped."""
    monkeypatch.setenv("REFSTORE_DATA", str(disk / "lake"))
    monkeypatch.setenv("REFSTORE_REAPER_RESERVE", str(MIB))
    refstore.ok("repo", "create", "sales", "--grace", "0")
    refstore.ok("upload", "sales", "main", "-", "kept", stdin=b"k" * MIB)
    refstore.ok("commit", "sales", "main", "-m", "kept")
    for name in ("first", "second"):
        refstore.ok("upload", "sales", "main", "-", name, stdin=b"x" * 3 * MIB)
    return refstore


def objects_of(disk: Path) -> set[str]:
    return {file.name for file in (disk / "lake" / "objects").glob("sales.*/data/*/*")}


def journal_of(disk: Path) -> list[str]:
    names = (file.name.partition(".")[2] for file in (disk / "lake/objects").glob("sales.*/_refstore/journal/**/*.gz"))
    return sorted(names)


def test_a_reaper_frees_room_on_a_full_disk(sales: Command, disk: Path) -> None:
    reserve = disk / "lake" / "refstore-reserve"
    sales.ok("rm", "sales", "main", "first")
    assert sales.json("reaper", "--once")["deleted"] == 1
    assert reserve.stat().st_size == MIB
    sales.ok("rm", "sales", "main", "second")
    fill(disk)
    assert (len(objects_of(disk)), len(journal_of(disk))) == (2, 2)
    for call in ("ls sales main", "stat sales main kept", "log sales main", "status sales", "repo list", "trash sales"):
        sales.ok(*call.split())
    assert len(sales.ok("cat", "sales", "main", "kept").out_bytes) == MIB
    checks = {each["check"]: each for each in sales("doctor", "--no-write", "--json").json}
    assert checks[f"disk at {disk}"]["state"] == "error"
    done = sales("download", "sales", "main", "kept", disk / "copy")
    assert (done.code, f"bytes are free at {disk}" in done.err) == (5, True), done.err
    assert not (disk / "copy").exists()

    ran = sales("reaper", "--once", "--json")
    assert (ran.code, ran.json["deleted"], ran.json["bytes"]) == (0, 1, 3 * MIB), ran.err
    assert "disk_reserve_released" in ran.err
    assert len(objects_of(disk)) == 1
    assert journal_of(disk) == ["began.jsonl.gz", "began.jsonl.gz", "ended.jsonl.gz", "ended.jsonl.gz"]
    assert reserve.stat().st_size == MIB, "there is room again, so it is made again"
    sales.ok("upload", "sales", "main", "-", "small", stdin=b"x" * 1000)
    refused = sales("upload", "sales", "main", "-", "large", stdin=b"x" * 3 * MIB)
    assert (refused.code, f"bytes are free at {disk}" in refused.err) == (5, True), refused.err
    assert DiskSpace(str(disk), 0, 24 * MIB).reserved_bytes > MIB, "what uploads leave free, a reaper can write"


def test_without_a_reserve_nothing_is_deleted_on_a_full_disk(sales: Command, disk: Path) -> None:
    """No mark and no journal can be written, so no object goes."""
    sales.ok("rm", "sales", "main", "second")
    filler = fill(disk)
    kv = RetryingKV(SqliteKV(disk / "lake" / "kv.sqlite", busy_timeout_seconds=1), attempts=1)  # the disk stays full
    with (
        Lake(kv, f"file://{disk}/lake/objects") as lake,
        Reaper(lake, ReaperSettings()) as reaper,
        pytest.raises(KVUnavailable, match=f"bytes are free at {disk}"),
    ):
        reaper.run_once(lambda: False)
    assert (len(objects_of(disk)), journal_of(disk)) == (3, [])
    filler.unlink()
    assert sales.json("reaper", "--once")["deleted"] == 1
    assert len(objects_of(disk)) == 2
