"""A KV that was restored from before a purge: nothing is lost, and nothing that was purged comes back untold."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from refstore.errors import KVSettling, KVWentBack
from refstore.kv_recovery import reconciliation
from refstore_gc.gc_run import GcOptions
from refstore_purge import purge_cleanup, verify
from tests.offline.purge_runs import purge_with, run_nightly
from tests.offline.test_restored_kv import back_up, found, later, restore
from tests.offline.world import World
from tests.purge.tracking import PARTITION, PREFIX, event, guestids, onboard, parquet, rows_at

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

PATH = f"{PREFIX}{PARTITION}/part-0.parquet"
ROWS = [event(guest, number) for number, guest in enumerate(["ann", "bob", "cid", "bob"])]
LEFT = [ROWS[0], ROWS[2]]


def purge(world: World, engines: Engines, *guests: str) -> None:
    ids = guestids(world.folder, *guests)
    assert purge_with(world, engines, ids, share=1).is_whole


@pytest.mark.parametrize("backup_ended", [False, True])
@pytest.mark.parametrize("copied_when", ["before the purge", "after the purge"])
def test_a_copy_of_the_kv_is_put_back(world: World, engines: Engines, backup_ended: bool, copied_when: str) -> None:
    world.repo.upload("main", PATH, parquet(ROWS))
    world.repo.commit("main", "events")
    onboard(world.repo, mode="rewrite")
    later(world)
    copy = back_up(world)
    purge(world, engines, "bob")
    if copied_when == "after the purge":
        copy = back_up(world)
    content = world.repo.stat("main", PATH).address
    if backup_ended:
        world.clock.sleep(31 * 86_400)
        assert purge_cleanup.clean_up(world.ctx).backups.objects == 1
        assert world.data() == {content}
    stored = world.data()

    restore(world, copy)
    if copied_when == "before the purge" or backup_ended:
        with contextlib.suppress(KVWentBack, KVSettling):  # a KV that knows of no purge has nothing to clean
            assert purge_cleanup.clean_up(world.ctx).backups.objects == 0
        with pytest.raises((KVWentBack, KVSettling)):
            run_nightly(world.ctx, engines, GcOptions(is_full=True))
    assert world.data() == stored  # nothing is deleted, whatever the KV says
    reconciliation.restore_lost_records(world.lake)
    reconciliation.settle_lake(world.lake, accept=False, clients_stopped=True)
    assert rows_at(world.repo, "main", PATH) == LEFT
    assert world.repo.stat("main", PATH).address == content
    assert verify(world.repo, guestids(world.folder, "bob")).findings == []
    later(world)
    world.clock.sleep(31 * 86_400)
    world.age()
    run_nightly(world.ctx, engines, GcOptions(is_full=True))
    assert world.data() == {content}
    assert rows_at(world.repo, "main", PATH) == LEFT
    assert found(world).ok
