"""Who reads the trees of all commits while the offline job sweeps commits that never landed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from refstore.configuration.settings import embedded_urls
from refstore.context import Context
from refstore.core.ids import CommitId
from refstore.errors import CorruptRange
from refstore.gc_marks import Marks
from refstore.operations import refs
from refstore.operations.commit_entries import entries_of_commit
from refstore.operations.version_entries import scan_versions
from refstore.purge_document.document import Dataset
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.mark_records import StoredMark
from refstore.records.staging_records import StoredEntry
from refstore.repository import Repository
from refstore.versioning.commits import object_names
from refstore.versioning.commits.trees import Trees
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from refstore_purge.object_holders import scan_names
from refstore_purge.verify_objects import scan_targets
from tests.durations import unchecked_lake
from tests.offline.world import World
from tests.reaping import reap_all, release_all
from tests.unit.test_marks import aborted

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

LANDED, NEVER = True, False
SWEEPING = StoredMark(1, 1, "m", sweeping_ms=2)
DATASET = Dataset("all", "", "guest", "rewrite", "csv")
AT_ONCE = GcOptions(grace_days=0, min_age_seconds=0)
WALKS: dict[str, Callable[[Repository], Iterator[tuple[str, str]]]] = {
    "scan_versions": lambda repo: ((each.ref, each.path) for each in scan_versions(repo.context)),
    "scan_names": lambda repo: ((each.ref, each.path) for each in scan_names(repo.context)),
    "scan_targets": lambda repo: ((each.ref, each.path) for each in scan_targets(repo.context, DATASET, is_deep=True)),
}


@pytest.fixture
def reader(world: World) -> Iterator[Repository]:
    """The same repository as another process sees it, whose cache has no tree."""
    kv, objects = embedded_urls(world.folder)
    with unchecked_lake(kv, objects) as lake:
        yield lake.repository("sales")


@pytest.mark.parametrize("begun", [False, True], ids=["marked", "sweeping"])
@pytest.mark.parametrize("walk", list(WALKS))
def test_a_commit_that_never_landed_is_swept_before_its_tree_is_read(
    world: World, engines: Engines, reader: Repository, monkeypatch: pytest.MonkeyPatch, walk: str, begun: bool
) -> None:
    old = world.commit(a=b"guest\none\n")
    world.commit(a=None, b=b"guest\ntwo\n")
    never = aborted(world.repo)
    world.repo.reset("main")
    world.clock.sleep(world.ctx.safety.scrub_after_seconds + 1)
    reap_all(world.repo)
    world.age()
    mark_id = gc_run.mark(world.ctx, engines, AT_ONCE).mark_id
    if begun:
        Marks(world.ctx).sweeps.begin(mark_id)
    never_read = refs.get_commit(world.ctx, never).metarange
    overlapping_ranges = Trees.overlapping_ranges
    sweeps: list[str] = []

    def late(trees: Trees, metarange: str, **options: Any) -> Any:
        if metarange == never_read and not sweeps:
            sweeps.append(gc_run.sweep(world.ctx, engines, mark_id).state)
        return overlapping_ranges(trees, metarange, **options)

    monkeypatch.setattr(Trees, "overlapping_ranges", late)
    named = set(WALKS[walk](reader))
    reads_both = not (begun and walk == "scan_versions")  # it reads no commit whose sweep has begun
    assert len(sweeps) == reads_both
    assert ((old, "a") in named) == reads_both
    assert ("main", "b") in named
    assert not any(path == "never" for _, path in named)


@pytest.mark.parametrize(
    ("walk", "mark"),
    [*((walk, None) for walk in WALKS), ("scan_names", SWEEPING), ("scan_targets", SWEEPING)],
)
def test_a_tree_of_a_commit_that_landed_is_lost(
    world: World, reader: Repository, walk: str, mark: StoredMark | None
) -> None:
    old = world.commit(a=b"guest\none\n")
    world.commit(a=None, b=b"guest\ntwo\n")
    if mark is not None:
        world.ctx.kv.set(keys.mark(world.ctx.repo, old), encode(mark))
    world.ctx.objects.delete_many(
        [object_names.key(object_names.METARANGES, refs.get_commit(world.ctx, old).metarange)]
    )
    with pytest.raises(CorruptRange, match="not in the object store"):
        list(WALKS[walk](reader))


@pytest.mark.parametrize(
    ("landed", "mark", "damage"),
    [
        (LANDED, SWEEPING, "missing"),
        (NEVER, None, "missing"),
        (NEVER, StoredMark(1, 1, "m"), "missing"),
        (NEVER, StoredMark(1, 1, "m", sweeping_ms=2, prefixes=("tmp/",)), "missing"),
        (NEVER, SWEEPING, "changed"),
    ],
    ids=["landed", "unmarked", "not yet sweeping", "sweeping in part", "changed"],
)
def test_what_no_sweep_took_is_lost(
    world: World, reader: Repository, landed: bool, mark: StoredMark | None, damage: str
) -> None:
    commit, of_range = shared(world, landed=landed, mark=mark)
    world.ctx.objects.delete_many([of_range])
    if damage == "changed":
        world.ctx.objects.put(of_range, b"something else")
    with pytest.raises(CorruptRange):
        list(read(reader.context, commit, set()))


def test_a_lost_range_is_found_by_the_next_commit_that_has_it(world: World, reader: Repository) -> None:
    never, of_range = shared(world, landed=False, mark=SWEEPING)
    world.ctx.objects.delete_many([of_range])
    seen: set[tuple[str, str]] = set()
    assert list(read(reader.context, never, seen)) == []
    with pytest.raises(CorruptRange):
        list(read(reader.context, world.repo.get_branch("main").head, seen))


def shared(world: World, *, landed: bool, mark: StoredMark | None) -> tuple[CommitId, str]:
    """Make a commit with the same tree as main's head. Return it, and the key of the range that both have."""
    commit = world.commit(a=b"one")
    head = world.commit()
    release_all(world.repo)
    ctx = world.ctx
    if not landed:
        ctx.kv.delete(keys.landed_mark(ctx.repo, commit))
    if mark is not None:
        ctx.kv.set(keys.mark(ctx.repo, commit), encode(mark))
    metarange = refs.get_commit(ctx, commit).metarange
    assert refs.get_commit(ctx, head).metarange == metarange
    (range_id,) = ctx.trees.ranges(metarange)
    return commit, object_names.key(object_names.RANGES, range_id)


def read(ctx: Context, commit: CommitId, seen: set[tuple[str, str]]) -> Iterator[tuple[str, StoredEntry]]:
    return entries_of_commit(ctx, commit, refs.get_commit(ctx, commit), "", seen)
