"""`reconcile` dies before any of its writes: nothing is deleted meanwhile, and run again it ends as if it had not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from refstore.kv.base import Get, Op, Result
from refstore.kv_recovery import kv_verification, reconciliation
from refstore.objects.base import Body, StoredObject
from refstore.records import keys
from tests.reaper_world import World
from tests.unit.test_kv_losses import Losing


class ProcessDied(BaseException):
    """No code catches it."""


class Dying:
    """Ends the process before its write number `at`; counts the writes."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch, at: int) -> None:
        self.writes = 0
        self.at = at
        kv, store, objects = world.kv.inner, world.lake.own_store, world.objects
        execute = kv.execute

        def watched_execute(ops: Sequence[Op]) -> list[Result]:
            if any(not isinstance(op, Get) for op in ops):
                self.count()
            return execute(ops)

        patch.setattr(kv, "execute", watched_execute)
        for each in (store, objects):
            patch.setattr(each, "put", partial(self.put, each.put))

    def put(self, put: Callable[..., StoredObject], key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        self.count()
        return put(key, body, if_absent=if_absent)

    def count(self) -> None:
        self.writes += 1
        if self.writes == self.at:
            raise ProcessDied


def went_back() -> World:
    """A lake that lost two commits, a branch and a tag, and whose branch main has moved elsewhere since."""
    losing = Losing()
    world = losing.world
    world.upload("main", "a")
    world.repo.commit("main", "one")
    world.run_once()
    kept = losing.copy()
    world.upload("main", "b")
    world.repo.commit("main", "two")
    world.repo.create_branch("dev", source="main")
    world.repo.create_tag("v1", ref="dev")
    world.upload("dev", "c")
    world.repo.commit("dev", "three")
    world.run_once()
    losing.put_back(kept)
    losing.identity = "run-2"
    world.upload("main", "z")
    world.repo.commit("main", "kept")
    return world


def reconcile(world: World) -> None:
    reconciliation.restore_lost_records(world.lake)
    assert not kv_verification.verify_kv(world.lake).has_unrestorable_losses
    reconciliation.settle_lake(world.lake, accept=False, clients_stopped=True)


def test_reconcile_may_die_before_each_of_its_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    at, died = 0, True
    while died:
        at += 1
        world = went_back()
        with monkeypatch.context() as patch:
            dying = Dying(world, patch, at)
            try:
                reconcile(world)
            except ProcessDied:
                died = True
            else:
                died = False
        if died:
            stored = world.stored()
            world.run_once()
            assert world.stored() == stored, at
            reconcile(world)
        found = kv_verification.verify_kv(world.lake)
        assert found.is_settled, at
        assert not found.has_losses, at
        assert not world.run_once().error_count, at
        ctx = world.repo.context
        assert ctx.kv.count(keys.commits(ctx.repo), limit=9) == 5, at
        assert [name for name, _ in ctx.kv.scan_all(keys.tags(ctx.repo))] == ["v1"], at
        heads = {str(name): world.repo.get_commit(record.head).message for name, record in ctx.branches.scan_open()}
        assert sorted(heads.values()) == ["kept", "three", "two"], at
        assert (heads.pop("main"), heads.pop("dev")) == ("kept", "three"), at
        assert [name[:10] for name in heads] == ["lost/main-"], at
        assert dying.writes >= at or not died
    assert at > 30
