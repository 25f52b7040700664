"""A run that says that the erasure is final, and `verify`, which reads everything, never contradict each other."""

from __future__ import annotations

import io
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from refstore_gc import purge_cleanup
from refstore_purge import place_lookup, verify
from tests.corpus.groups import GROUPS
from tests.offline.purge_runs import OneDataset
from tests.offline.world import World
from tests.purge.lying_statistics import LyingFile, lying_orc, lying_parquet

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
        place_lookup.refresh_places(self.world.repo, [made])
        return made

    def left(self, ids: Path, **options: Any) -> set[str]:
        """Return the paths of which verify says something."""
        return {found.path for found in verify.verify(self.world.repo, ids, **options)}


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


@pytest.mark.parametrize(("make", "format_"), [(lying_parquet, "parquet"), (lying_orc, "orc")])
def test_no_statistics_hide_a_row(lake: Lake, make: Callable[[random.Random], LyingFile], format_: str) -> None:
    """Random lies, by the kind and the type of their identifier; two runs, of which the second has an index."""
    files = [make(random.Random(seed)) for seed in range(60)]
    text = {
        f"{number}": file for number, file in enumerate(files) if file.kind == "string" and file.identifier == "guest"
    }
    lake.upload({path: file.body for path, file in text.items()}, **VISITS)
    lake.onboard([VISITS | {"format": format_}])
    gone: set[str] = set()
    for wanted in (["ann", "dan"], ["bob", "cid", "eve", "zoe"]):
        gone.update(wanted)
        ids = lake.ids(*wanted)
        made = lake.end(lake.run(ids, purge_key=KEY))
        assert made.is_final
        assert made.is_done
        assert lake.left(ids) == set()
        for path, file in text.items():
            body = lake.world.repo.read("main", f"visits/{path}")
            assert rows_of(format_, body) == [each for each in file.values if each not in gone], file.what


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
    left = lake.left(ids, **options)
    assert len(before) > len(left)
    assert left <= {skipped.path for skipped in made.skipped_objects}
    assert made.is_final == (not left)


def rows_of(format_: str, body: bytes) -> list[Any]:
    table = pq.read_table(io.BytesIO(body)) if format_ == "parquet" else orc.ORCFile(io.BytesIO(body)).read()
    return table.column("guest").to_pylist()
