"""A store whose listings have pages of an earlier time: the offline job's rules hold, and what the pages hid goes in a
later run.
"""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from refstore.core import ids
from refstore.errors import Conflict, ObjectsUnavailable
from refstore.gc_marks import Marks, RunState
from refstore.kv import open_kv
from refstore.lake import Lake
from refstore.objects import open_objects
from refstore.repository import Repository
from tests.kit import collecting
from tests.kit.clock import FakeClock
from tests.kit.faults import Faults, FaultyObjects, StaleObjects
from tests.kit.independent_audit import Audit, audit
from tests.reaping import reap_all

LATER_MS = 1_900_000_000_000
"""Later than any file's time, so that nothing is too young to go."""


class Stale:
    """A repository that is changed at random, over a store with stale pages."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.clock = FakeClock(LATER_MS)
        self.lake = Lake(open_kv("memory:", clock=self.clock), f"file://{folder}/objects?fsync=0", clock=self.clock)
        self.lake.open_store = lambda url: StaleObjects(open_objects(url), Faults(), self.random, self.clock)
        self.repo: Repository = self.lake.create_repository("stale", grace_seconds=0)

    @property
    def store(self) -> StaleObjects:
        found = self.repo.context.objects
        assert isinstance(found, StaleObjects)
        return found

    def change(self, times: int) -> None:
        for number in range(times):
            path = f"p{self.random.randrange(6)}"
            kind = self.random.choice(["upload", "upload", "upload", "delete", "commit", "reap"])
            if kind == "upload":
                self.repo.upload("main", path, f"{number}".encode())
            elif kind == "delete":
                self.repo.delete("main", path)
            elif kind == "commit":
                self.repo.commit("main", "change", allow_empty=True)
            else:
                self.clock.advance(2)
                reap_all(self.repo)
        self.repo.upload(
            "main", "last", self.random.randbytes(8)
        )  # other bytes each time: the same ones would be no change
        self.repo.commit("main", "last")
        self.repo.upload("main", "staged", b"staged")

    def old(self) -> list[ids.CommitId]:
        return [commit.id for commit in self.repo.log("main~1")]

    def audit(self) -> Audit:
        """Of the store as it is."""
        ctx = self.repo.context
        with closing(open_objects(ctx.objects.url)) as as_it_is:
            return audit(ctx.kv, as_it_is, ctx.repo, now_ms=self.clock.now_ms())


@pytest.mark.parametrize("seed", range(5))
def test_nothing_that_is_named_goes_and_what_was_hidden_goes_later(tmp_path: Path, seed: int) -> None:
    world = Stale(tmp_path, seed)
    world.change(25)
    gone_already = ids.new_address(ids.RandomIds(), 1_700_000_000_000)
    world.store.put(gone_already, b"in the old pages only")
    world.store.remember()
    world.store.delete_many([gone_already])
    world.change(25)
    hidden = ids.new_address(ids.RandomIds(), 1_700_000_000_001)
    world.store.put(hidden, b"in the new pages only")
    reap_all(world.repo)
    run, found = collecting.mark(world.repo.context, world.old(), grace_ms=0)
    done = collecting.sweep(world.repo.context, run.mark_id, found.data)
    assert not done.failed_keys
    assert gone_already not in done.deleted_keys
    assert world.audit().lost == []
    world.store.forget()
    run, found = collecting.mark(world.repo.context, world.old(), grace_ms=0)
    collecting.sweep(world.repo.context, run.mark_id, found.data)
    final = world.audit()
    assert (final.lost, final.leaked, final.unreadable, final.offline) == ([], [], [], 0)
    assert world.store.stale > 0
    world.lake.close()


def test_a_listing_that_ends_early_leaves_no_mark_that_could_be_swept(tmp_path: Path) -> None:
    world = Stale(tmp_path, 1)
    world.change(25)
    ctx = world.repo.context
    breaking_off = dataclasses.replace(
        ctx, objects=FaultyObjects(ctx.objects, Faults(request_lost=1), world.random, world.clock)
    )
    with pytest.raises(ObjectsUnavailable, match="broke off"):
        collecting.mark(breaking_off, world.old(), grace_ms=0)
    (run,) = Marks(ctx).runs.scan()
    assert run.state is RunState.MARKING
    with pytest.raises(Conflict, match="was not finished"):
        Marks(ctx).sweeps.begin(run.mark_id)
    world.lake.close()
