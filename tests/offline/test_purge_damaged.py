"""A file that something cut off, or made longer, in the store: a purge makes no new content of it, which would have a
checksum of its own, and no backup that is damaged comes back.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from refstore.core.ids import Address
from refstore.errors import CorruptObject
from refstore_purge import purge_run, restore_backups
from refstore_purge.purge_report import PurgeReport
from refstore_purge.purge_run import PurgeOptions
from refstore_purge.restore_backups import RestoreScope
from tests.offline.test_purge_partitions import FORMATS, written
from tests.offline.world import World
from tests.purge.tracking import guestids

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

PATH = "visits/x"


def purge(world: World, engines: Engines) -> PurgeReport:
    return purge_run.run_purge(
        world.repo, engines, PurgeOptions(ids=guestids(world.folder, "bob"), share=1), lambda _: None
    )


def stage(world: World, format_: str, mode: str) -> Address:
    dataset = {"name": "visits", "prefix": "visits/", "format": format_, "identifier": "guest", "mode": mode}
    world.repo.onboard_purge(json.dumps({"whitelist": ["*"], "datasets": [dataset]}), by="tests")
    world.commit_files({PATH: written(format_, guest=["ann", "bob", "cid"])})
    return world.repo.stat("main", PATH).address


@pytest.mark.parametrize("mode", ["keep-history", "rewrite"])
@pytest.mark.parametrize("format_", FORMATS)
def test_a_run_leaves_an_object_of_another_length_and_says_so(
    world: World, engines: Engines, format_: str, mode: str
) -> None:
    address = stage(world, format_, mode)
    body = world.repo.read("main", PATH)
    for damaged in (body[:-1], body[: body.find(b"\n") + 1], b"", body + body):
        world.ctx.objects.put(address, damaged)
        before = world.data()
        made = purge(world, engines)
        assert not made.is_whole
        assert world.repo.stat("main", PATH).address == address
        assert world.data() == before, "nothing was written"
        with pytest.raises(CorruptObject, match=f"{PATH}.* has {len(damaged)} bytes"):
            world.repo.read("main", PATH)
    world.ctx.objects.put(address, body)
    assert purge(world, engines).is_whole
    assert b"bob" not in world.repo.read("main", PATH)


def test_a_damaged_backup_is_not_restored(world: World, engines: Engines) -> None:
    address = stage(world, "csv", "rewrite")
    before = world.repo.read("main", PATH)
    made = purge(world, engines)
    purged = world.repo.read("main", PATH)
    assert purged != before
    world.ctx.objects.put(address, before[:-1])
    done = restore_backups.restore_backups(world.repo, RestoreScope(run=made.run))
    (failure,) = done.not_restored
    assert failure.reason == (
        f"the backup at {address} is damaged: it has {len(before) - 1} bytes, and had {len(before)}"
    )
    assert world.repo.read("main", PATH) == purged
    world.ctx.objects.put(address, before)
    assert restore_backups.restore_backups(world.repo, RestoreScope(run=made.run)).objects == 1
    assert world.repo.read("main", PATH) == before
