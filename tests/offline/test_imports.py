"""What was imported belongs to others: no run, reset, deletion or reaper ever touches it, and no run takes what an
import is writing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from refstore.configuration.settings import ReaperSettings
from refstore.core.clock import to_datetime
from refstore.public_types import stored_commit
from refstore.records.repository_records import ImportSource
from refstore.versioning.commits import ranges
from refstore.versioning.commits.columns import Rows
from refstore.versioning.commits.sorted_runs import SortedRuns
from refstore_gc.gc_run import GcOptions, run_nightly
from refstore_reaper.daemon import Reaper
from tests.offline.world import World

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "landing"
    for number in range(20):
        file = folder / f"part-{number % 3}" / f"{number}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"number {number}")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def import_all(world: World, landing: Path, destination: str, *, branch: str = "main") -> None:
    source = ImportSource(f"file://{landing}", destination)
    world.repo.import_objects(branch, [source], "import")


def test_expired_imports_lose_their_commits_and_their_owner_loses_nothing(
    world: World, engines: Engines, landing: Path
) -> None:
    before = files(landing)
    for number in range(3):
        import_all(world, landing, f"at-{number}/")
    world.repo.import_objects("main", [ImportSource(f"file://{landing}/part-0", "at-0/")], "less")
    world.commit(days_ago=5, mine=b"own")
    world.repo.delete("main", "mine")
    world.repo.commit("main", "without mine", date=to_datetime(world.clock.now_ms()))
    world.repo.create_branch("dev", source="main")
    import_all(world, landing, "dev/", branch="dev")
    world.repo.stage("dev", "staged", f"file://{landing}/part-0/0.csv", size_bytes=8)
    world.repo.reset("dev")
    world.repo.stage("dev", "staged", f"file://{landing}/part-0/3.csv", size_bytes=8)
    world.repo.delete_branch("dev")
    world.clock.sleep(40 * 86_400)
    reap(world)
    world.age(days=90)
    ran = run_nightly(world.ctx, engines, GcOptions(min_age_seconds=0, includes_foreign=True))
    (swept,) = ran.sweep_summaries
    assert swept.sweep is not None
    assert swept.sweep.outcomes["deleted"].objects > 0, "the run had something of its own to delete"
    assert files(landing) == before
    assert world.repo.read("main", "at-1/part-1/1.csv") == b"number 1"
    world.lake.delete_repository("sales")
    world.clock.sleep(world.ctx.safety.scrub_after_seconds + 1)
    reap(world)
    assert files(landing) == before


def reap(world: World) -> None:
    with Reaper(world.lake, ReaperSettings(scrub_every_seconds=1)) as reaper:
        for _ in range(3):
            reaper.run_passes(lambda: False)


@pytest.mark.parametrize("early", [False, True], ids=["as it is", "ranges written while it lists"])
def test_a_run_in_the_middle_of_a_long_listing_takes_nothing_of_it(
    world: World, engines: Engines, landing: Path, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """The listing takes ten days, and a run comes in between. With the fault planted, the same run takes the import's
    ranges.
    """
    world.commit(a=b"kept")
    ran: list[object] = []
    add = SortedRuns.add

    def add_and_write(self: SortedRuns, rows: Rows) -> None:
        add(self, rows)
        self.early = world.ctx.trees.apply("", ranges.items_of(rows))

    def long_listing(_objects: int, _skipped: int) -> None:
        if not ran:
            world.clock.sleep(10 * 86_400)
            world.age(days=9)
            ran.append(run_nightly(world.ctx, engines, GcOptions(min_age_seconds=0)))

    if early:
        monkeypatch.setattr(SortedRuns, "add", add_and_write)
        monkeypatch.setattr(
            "refstore.versioning.commits.trees.Trees.replace_prefixes",
            lambda _self, _base, spool, _prefixes: spool.early,
        )
    world.repo.import_objects("main", [ImportSource(f"file://{landing}", "in/")], "import", watch=long_listing)
    assert ran
    metarange = stored_commit(world.repo.get_commit("main")).metarange
    written = set(world.ctx.trees.ranges(metarange)) if not early else set()
    there = {
        found.key.rpartition("/")[2].removesuffix(".parquet") for found in world.ctx.objects.list("_refstore/ranges/")
    }
    if early:
        assert not (world.blobs / f"_refstore/metaranges/{metarange}.parquet").exists(), (
            "the fault was not planted well"
        )
    else:
        assert written <= there
        assert len(list(world.repo.list("main", prefix="in/"))) == 20
