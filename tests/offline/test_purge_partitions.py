"""The purge of data sets whose identifier is a partition's value: the path tells, as it does for Hive and Spark."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from refstore.errors import Conflict, Invalid
from refstore_gc.engines.local import LocalEngine, SharedWork
from refstore_purge import purge_run, purge_tasks, verify
from refstore_purge.purge_report import PurgeReport
from tests.engines import OneEngine
from tests.offline.purge_runs import onboard_visits, options_of, purge_with
from tests.offline.world import World
from tests.purge import avro_files
from tests.purge.tracking import guestids

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

Purge = Callable[[Path], PurgeReport]
FORMATS = ("parquet", "orc", "avro", "json", "csv")
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@pytest.fixture
def purge(world: World, engines: Engines) -> Purge:
    return lambda file: purge_with(world, engines, file, purge_key=b"k" * 32)


def written(format_: str, **columns: list[Any]) -> bytes:
    target = io.BytesIO()
    table = pa.table(columns)
    match format_:
        case "parquet":
            pq.write_table(table, target)
        case "orc":
            orc.write_table(table, target)
        case "avro":
            target.write(avro_files.of_rows(table.to_pylist()))
        case "json":
            target.write(b"".join(json.dumps(row).encode() + b"\n" for row in table.to_pylist()))
        case _:
            lines = [",".join(columns), *(",".join(map(str, row.values())) for row in table.to_pylist())]
            target.write("".join(f"{line}\n" for line in lines).encode())
    return target.getvalue()


def read(format_: str, body: bytes) -> list[dict[str, Any]]:
    match format_:
        case "parquet":
            return pq.read_table(io.BytesIO(body)).to_pylist()
        case "orc":
            return orc.ORCFile(io.BytesIO(body)).read().to_pylist()
        case "avro":
            return avro_files.read(body)
        case "json":
            return [json.loads(line) for line in body.splitlines()]
        case _:
            header, *lines = body.decode().splitlines()
            return [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]


def onboard(world: World, format_: str, **more: Any) -> None:
    onboard_visits(world, format=format_, mode="keep-history", **more)


def integers(folder: Path, *values: int) -> Path:
    pq.write_table(pa.table({"id": pa.array(values)}), folder / "integers.parquet")
    return folder / "integers.parquet"


@pytest.mark.parametrize("format_", FORMATS)
def test_all_rows_of_a_partition_go_and_others_are_not_even_read(world: World, purge: Purge, format_: str) -> None:
    onboard(world, format_)
    bodies = {
        "visits/guest=bob/p": written(format_, n=[1, 2]),
        "visits/guest=a%20b/p": written(format_, n=[3]),
        "visits/guest=ann/p": b"nobody can read this",
        f"visits/guest={HIVE_NULL}/p": b"nor this",
        "visits/p": written(format_, n=[4, 5], guest=["bob", "ann"]),
    }
    for path, body in bodies.items():
        world.repo.upload("main", path, body)
    world.repo.commit("main", "visits")
    ids = guestids(world.folder, "bob", "a b", HIVE_NULL, None)
    made = purge(ids)
    assert made.is_whole, made
    after = {path: world.repo.read("main", path) for path in bodies}
    assert read(format_, after["visits/guest=bob/p"]) == read(format_, after["visits/guest=a%20b/p"]) == []
    assert after["visits/guest=ann/p"] == bodies["visits/guest=ann/p"]
    assert [row["guest"] for row in read(format_, after["visits/p"])] == ["ann"]
    if format_ == "parquet":
        assert pq.read_schema(io.BytesIO(after["visits/guest=bob/p"])).names == ["n"]
    by_partition = {row.partition: (row.by_partition, row.rows_changed) for row in made.rows}
    assert by_partition == {
        "": (0, 1),
        f"guest={HIVE_NULL}": (1, 0),
        "guest=a%20b": (1, 1),
        "guest=ann": (1, 0),
        "guest=bob": (1, 2),
    }
    assert verify(world.repo, ids).findings == []
    assert purge(ids).published_commits == []


class AheadEngine(LocalEngine):
    """Notes what is started ahead, and starts nothing."""

    def __init__(self) -> None:
        super().__init__(shared=SharedWork(0))
        self.ahead: list[tuple[Sequence[str], int]] = []

    def start_ahead(self, modules: Sequence[str], items: int) -> None:
        self.ahead.append((modules, items))


@pytest.mark.parametrize("long_bytes", [1, 20, 1000])
def test_processes_start_ahead_where_there_is_much_to_read(
    world: World, monkeypatch: pytest.MonkeyPatch, long_bytes: int
) -> None:
    onboard(world, "csv")
    for path in ("visits/guest=ann/p", "visits/guest=bob/p", "visits/p"):
        world.repo.upload("main", path, b"guest\nbob\n")
    world.repo.commit("main", "visits")
    monkeypatch.setattr(purge_tasks, "LONG_BYTES", long_bytes)
    engine = AheadEngine()
    options = options_of(guestids(world.folder, "bob"), dry_run=True)
    purge_run.run_purge(world.repo, OneEngine(engine), options, lambda _: None)
    needed = ["refstore_purge.purge_tasks", "refstore_purge.formats.csv"]
    assert engine.ahead == ([(needed, 2)] if long_bytes <= 20 else []), "of ann nothing is read"


@pytest.mark.parametrize("format_", FORMATS)
def test_columns_of_a_partition_are_set_to_null(world: World, purge: Purge, format_: str) -> None:
    onboard(world, format_, set_null=["mail"])
    for guest in ("bob", "ann"):
        world.repo.upload("main", f"visits/guest={guest}/p", written(format_, n=[1, 2], mail=["x@y", "z"]))
    world.repo.commit("main", "visits")
    ids = guestids(world.folder, "bob")
    assert [left.path for left in verify(world.repo, ids).findings] == ["visits/guest=bob/p"]
    assert purge(ids).rows[1].rows_changed == 2
    rows = read(format_, world.repo.read("main", "visits/guest=bob/p"))
    assert [row["mail"] or None for row in rows] == [None, None]
    assert [row["mail"] for row in read(format_, world.repo.read("main", "visits/guest=ann/p"))] == ["x@y", "z"]
    assert verify(world.repo, ids).findings == []
    assert purge(ids).published_commits == []


def test_integers_are_compared_as_numbers(world: World, purge: Purge) -> None:
    onboard(world, "parquet")
    for guest in ("007", "8"):
        world.repo.upload("main", f"visits/guest={guest}/p", written("parquet", n=[1]))
    world.repo.commit("main", "visits")
    ids = integers(world.folder, 7)
    assert [left.path for left in verify(world.repo, ids).findings] == ["visits/guest=007/p"]
    assert [(row.partition, row.rows_changed) for row in purge(ids).rows] == [("guest=007", 1), ("guest=8", 0)]
    assert verify(world.repo, ids).findings == []


def test_a_partition_that_is_no_integer_is_refused_with_the_way_that_works(world: World, purge: Purge) -> None:
    onboard(world, "parquet")
    world.commit(**{"visits/guest=bob/p": written("parquet", n=[1])})
    with pytest.raises(Invalid, match=r"'guest=bob'.*'visits' has no integer as 'guest'.*--id-type string"):
        purge(integers(world.folder, 7))


def test_an_object_that_lies_in_partitions_of_two_guests_is_listed(world: World, purge: Purge) -> None:
    """To remove its rows would remove those of the other guest."""
    onboard(world, "parquet")
    world.commit(**{"visits/guest=bob/p": written("parquet", n=[1])})
    world.repo.copy("main", "visits/guest=bob/p", to_branch="main", to_path="visits/guest=ann/p")
    world.repo.commit("main", "copy")
    made = purge(guestids(world.folder, "bob"))
    assert (made.published_commits, made.is_whole) == ([], False)
    assert "of another guest; upload it anew" in made.skipped_objects[0].reason


def test_rows_of_partitions_that_were_not_read_count_for_the_breaker(world: World, engines: Engines) -> None:
    onboard(world, "parquet")
    for guest in ("bob", "ann", "cid", "eve"):
        world.repo.upload("main", f"visits/guest={guest}/p", written("parquet", n=list(range(50))))
    world.repo.commit("main", "visits")

    def purged(share: float) -> PurgeReport:
        options = options_of(guestids(world.folder, "bob"), share=share, floor_rows=0)
        return purge_run.run_purge(world.repo, engines, options, lambda _: None)

    with pytest.raises(Conflict, match="50 of 200 rows"):
        purged(0.2)
    assert len(purged(0.3).published_commits) == 1
