"""What a run says of its places, its exit code, and `verify`, which reads everything, never contradict each other."""

from __future__ import annotations

import io
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow.parquet as pq
import pytest

from refstore_purge import RowFinding, purge_cleanup, purge_report, remaining_places, verify
from tests.commands import Command
from tests.corpus.groups import GROUPS
from tests.offline.moving_bytes import MOVING, MovingBytes
from tests.offline.purge_runs import OneDataset
from tests.offline.test_purge_partitions import written
from tests.offline.world import World
from tests.purge.lying_statistics import lying_parquet
from tests.reaping import delete_due, release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines
    from refstore_purge.purge_report import PurgeReport

KEY: Final = b"k" * 32


class Lake(OneDataset):
    """A lake whose data sets are by identifier."""

    def upload(self, files: Mapping[str, bytes], **dataset: Any) -> None:
        """Commit files of one data set: each lies in a folder of this name."""
        name = dataset["name"]
        for path, body in files.items():
            self.world.repo.upload("main", f"{name}/{path}", body)
        self.world.repo.commit("main", name)

    def onboard(self, datasets: Iterable[Mapping[str, Any]]) -> None:
        described = [{"prefix": f"{dataset['name']}/", "mode": "rewrite", **dataset} for dataset in datasets]
        document = {"whitelist": ["*"], "datasets": described, "backup": {"days": 0, "versions": 0}}
        self.world.repo.onboard_purge(json.dumps(document), by="tests")

    def end(self, made: PurgeReport) -> PurgeReport:
        """Clean up behind a run, and look its places up again."""
        self.world.clock.sleep(2 * 86_400)
        purge_cleanup.clean_up(self.world.ctx)
        remaining_places.refresh_places(self.world.repo, [made])
        return made

    def left(self, ids: Path, **options: Any) -> set[str]:
        """Return the paths of which verify says something."""
        return {path for path, _ in self.told(ids, **options)}

    def told(self, ids: Path, **options: Any) -> set[tuple[str, str]]:
        """Return the paths of which verify says something, and the reasons."""
        return {(found.path, found.reason) for found in verify(self.world.repo, ids, **options).findings}


@pytest.fixture
def lake(world: World, engines: Engines) -> Lake:
    return Lake(world, engines)


MANY: Final = [None if row % 4 == 0 else "bob" if row % 20 == 1 else f"g{row}" for row in range(200_000)]
VISITS: Final = {"name": "visits", "format": "parquet", "identifier": "guest"}


def by_polars(guests: list[str | None], **options: Any) -> bytes:
    out = io.BytesIO()
    pl.DataFrame({"guest": guests, "n": range(len(guests))}).write_parquet(out, **options)
    return out.getvalue()


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize(("guests", "page_bytes"), [(["bob", None], 1), (MANY, 4096)], ids=["two rows", "200,000 rows"])
def test_rows_that_polars_takes_for_nulls_go(
    lake: Lake, guests: list[str | None], page_bytes: int, key: bytes | None
) -> None:
    body = by_polars(guests, data_page_size=page_bytes)
    chunk = pq.read_metadata(io.BytesIO(body)).row_group(0).column(0)
    assert chunk.statistics.has_min_max
    assert (
        chunk.statistics.null_count >= chunk.num_values
    )  # as Polars 1.44 counts; else other files must do for the test
    lake.upload({"part": body}, **VISITS)
    lake.onboard([VISITS])
    ids = lake.ids("bob")
    assert lake.left(ids) == {"visits/part"}
    made = lake.end(lake.run(ids, purge_key=key))
    assert made.is_final
    assert made.is_done
    assert lake.left(ids) == set()
    after = pl.read_parquet(io.BytesIO(lake.world.repo.read("main", "visits/part")))
    assert after["guest"].to_list() == [guest for guest in guests if guest != "bob"]


class Agreement:
    """A lake, and what is said of it: by reports, by `status` and by `verify`, with their exit codes."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.ids: dict[str, Path] = {}
        """By run."""

    def purge(self, *guests: str) -> str:
        """Make a run, and check that it and `verify` say the same of data sets that match nothing."""
        ids = self.lake.world.folder / f"ids-{len(self.ids)}.csv"
        ids.write_text("id\n" + "".join(f"{guest}\n" for guest in guests))
        made = self.lake.run(ids)
        self.ids[made.run] = ids
        untouched = {each.prefix for each in made.datasets if each.untouched_reason}
        left = self._verify(ids)
        assert {each.path for each in left if not each.ref} <= untouched
        assert all(any(each.path.startswith(prefix) for each in left) for prefix in untouched)
        assert not (untouched and made.is_done)
        assert made.is_final <= made.is_done
        self.compare()
        return made.run

    def compare(self) -> dict[str, bool]:
        """Compare what is said now of every run; return whether it is final."""
        repo = self.lake.world.repo
        every = list(purge_report.scan_reports(repo))
        remaining_places.refresh_places(repo, every)
        for each in every:
            alone = purge_report.read_report(repo, each.run)
            remaining_places.refresh_places(repo, [alone])
            assert alone.is_final == each.is_final == alone.ending_text.startswith("final: ")
            if each.is_final:
                assert self._verify(self.ids[each.run]) == []
        return {each.run: each.is_final for each in every}

    def compare_commands(self, refstore: Command) -> None:
        """Compare what the commands say of the latest run."""
        run, ids = max(self.ids.items())
        (row,) = [each for each in refstore.json("purge", "status", "sales") if each["run"] == run]
        shown = refstore.ok("purge", "status", "sales", "last").out
        assert ("\nfinal: no place" in shown, "\nnot final: " in shown) == (row["final"], not row["final"])
        ran = refstore("purge", "verify", "sales", "--ids", ids)
        assert ("nothing is left" in ran.out) == (ran.code == 0)
        assert ran.code == (4 if self._verify(ids) else 0)
        assert ran.code == 0 or not row["final"]

    def _verify(self, ids: Path) -> list[RowFinding]:
        return verify(self.lake.world.repo, ids).findings

    def wait(self, *, days: float = 8) -> None:
        """Let everything go that goes by itself in so many days."""
        world = self.lake.world
        for _ in range(2):
            world.clock.sleep(days / 2 * 86_400)
            release_all(world.repo)
            delete_due(world.repo)
            purge_cleanup.clean_up(world.ctx)


def lie(agreement: Agreement) -> None:
    """Random statistics that lie, by the kind and the type of their identifier; two runs, of which the second has an
    index.
    """
    lake = agreement.lake
    files = [lying_parquet(random.Random(seed)) for seed in range(60)]
    text = {
        f"{number}": file for number, file in enumerate(files) if file.kind == "string" and file.identifier == "guest"
    }
    lake.upload({path: file.body for path, file in text.items()}, **VISITS)
    lake.onboard([VISITS])
    gone: set[str] = set()
    for wanted in (["ann", "dan"], ["bob", "cid", "eve", "zoe"]):
        gone.update(wanted)
        run = agreement.purge(*wanted)
        agreement.wait()
        assert agreement.compare()[run]
        for path, file in text.items():
            body = lake.world.repo.read("main", f"visits/{path}")
            there = pq.read_table(io.BytesIO(body)).column("guest").to_pylist()
            assert there == [each for each in file.values if each not in gone], file.what


def move(agreement: Agreement, moving: MovingBytes, mode: str) -> None:
    """The bytes are where a run cannot purge them, come to a path, and what they came from is deleted."""
    lake = agreement.lake
    lake.upload({"x": b"guest,n\nann,1\n"}, **VISITS)
    lake.onboard([VISITS | {"format": "csv", "mode": mode}])
    come = moving.lay(lake.world, "visits/y", b"guest,n\nann,1\nbob,2\n")
    run = agreement.purge("bob")
    come()
    has_come = b"bob" in lake.world.repo.read("main", "visits/y")
    assert agreement.compare()[run] <= (not has_come)
    address = lake.world.repo.resolve("main", "visits/y").entry.address
    lake.world.repo.delete("main", "visits/y")
    agreement.wait(days=0.5)  # what a link has copied goes, and the undo trash stays
    assert agreement.compare()[run] <= (not has_come)
    lake.world.repo.restore(address, to="main")
    agreement.wait()
    assert agreement.compare()[run] == (not has_come)
    lake.world.repo.move("main", "visits/y", to_path="visits/z")
    lake.world.repo.commit("main", "came")
    agreement.wait()
    assert agreement.compare()[run] == (not has_come)
    agreement.purge("ann")
    agreement.wait()
    assert agreement.compare()[run] == (not has_come)
    agreement.purge("bob")
    agreement.wait()
    assert agreement.compare()


def mistype(agreement: Agreement, format_: str, mode: str, **mistyped: str) -> None:
    """A data set matches nothing, beside one that is right."""
    lake, body = agreement.lake, written(format_, guest=["bob", "ann"])
    lake.upload({"guest=bob/x": b"bob"} if mode == "erase" else {"x": body}, **VISITS)
    right: dict[str, Any] = {"name": "visits", "mode": mode, "identifier": "guest"}
    wrong = right | {"name": "orders", "prefix": "orders/"} | mistyped
    lake.world.repo.upload("main", "orders/x", body, metadata={"guest": "bob"})
    lake.world.repo.commit("main", "orders")
    lake.onboard([each | ({} if mode == "erase" else {"format": format_}) for each in (right, wrong)])
    run = agreement.purge("bob")
    agreement.wait()
    assert not agreement.compare()[run]
    assert not agreement.compare()[run], "also after a long while"


MODES: Final = ("keep-history", "rewrite")
CASES: Final[dict[str, Callable[[Agreement], None]]] = {
    "statistics lie": lie,
    **{f"{each.name}, {mode}": partial(move, moving=each, mode=mode) for each in MOVING for mode in MODES},
    **{
        f"mistyped {field}, {format_}, {mode}": partial(mistype, format_=format_, mode=mode, **{field: value})
        for field, value in (("prefix", "odrers/"), ("identifier", "guset"))
        for format_, mode in (("json", "rewrite"), ("json", "keep-history"), ("csv", "rewrite"), ("json", "erase"))
    },
    "mistyped path, erase": partial(mistype, format_="json", mode="erase", path="{guest}/*.jpg"),
}


BY_COMMANDS: Final = {"statistics lie", "linked as a copy, rewrite", "mistyped identifier, json, rewrite"}
"""The cases at whose end the commands are asked, too: each starts processes."""


@pytest.mark.parametrize("case", CASES)
def test_what_is_called_final_has_no_rows_and_verify_ends_as_the_run(
    refstore: Command, engines: Engines, reading_process: None, case: str
) -> None:
    """After each step all three are compared: the report, `purge status`, and `purge verify`."""
    world = World(refstore.folder / "lake", grace_seconds=86_400)
    agreement = Agreement(Lake(world, engines))
    CASES[case](agreement)
    if case in BY_COMMANDS:
        agreement.compare_commands(refstore)
    world.close()


INTEGERS_OF_128_BITS = 2
"""So many files of Polars for each kind of ids verify cannot judge."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["string", "integer", "binary"])
def test_what_verify_finds_in_files_of_the_corpus_was_left_and_listed_by_the_run(
    lake: Lake, tmp_path: Path, kind: str
) -> None:
    cases = [case for group in GROUPS.values() for case in group() if case.kind == kind]
    datasets: dict[tuple[str, str, str], dict[str, bytes]] = defaultdict(dict)
    file = tmp_path / "file"
    for number, case in enumerate(cases):
        case.write(file)
        datasets[case.format, case.identifier, case.map_part][str(number)] = file.read_bytes()
    described: list[dict[str, Any]] = []
    for number, ((format_, identifier, part), files) in enumerate(datasets.items()):
        dataset = {"name": f"d{number}", "format": format_, "identifier": identifier, "map_part": part}
        lake.upload(files, **dataset)
        described.append(dataset)
    lake.onboard(described)
    wanted = sorted({wanted for case in cases for wanted in case.wanted})
    ids = lake.ids(*(map(str, wanted) if kind == "integer" else wanted))
    options = {"id_type": kind}
    before = lake.left(ids, **options)
    made = lake.end(lake.run(ids, **options))
    told = lake.told(ids, **options)
    unknown = {path for path, reason in told if "a type that pyarrow does not know" in reason}
    assert len(unknown) <= INTEGERS_OF_128_BITS
    left = {path for path, _ in told} - unknown
    assert len(before) > len(left)
    untouched = {each.prefix for each in made.datasets if each.untouched_reason}
    assert left <= {skipped.path for skipped in made.skipped_objects} | untouched
    # what nobody can judge may be left by a run that says so
    assert not left if made.is_final else left | unknown
