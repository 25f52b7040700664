"""UUIDs that stand as text in the names of folders are those whose 16 bytes are the ids, for a run and for verify."""

from __future__ import annotations

import io
import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from refstore_purge import purge_run, verify
from refstore_purge.purge_run import PurgeOptions
from refstore_purge.untyped_pandas import pa, pq
from tests.offline.world import World

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

ANN, BOB = uuid.UUID(int=2**127 // 3), uuid.UUID(int=2**127 // 5)


@pytest.mark.parametrize("mode", ["rewrite", "erase"])
@pytest.mark.parametrize("is_text", [True, False])
def test_uuids_in_folders_are_found(world: World, engines: Engines, mode: str, is_text: bool) -> None:
    body = io.BytesIO()
    pq.write_table(pa.table({"n": [1]}), body)
    for path in (f"guest={str(BOB).upper()}/a", f"guest={BOB.hex}/b", f"guest={ANN}/c"):
        world.repo.upload("main", f"visits/{path}", body.getvalue())
    world.repo.commit("main", "data")
    dataset = {"name": "visits", "prefix": "visits/", "identifier": "guest", "mode": mode}
    dataset |= {"format": "parquet"} if mode == "rewrite" else {}
    world.repo.onboard_purge(json.dumps({"whitelist": ["*"], "datasets": [dataset]}), by="tests")
    file = world.folder / "ids.parquet"
    values: Any = [str(BOB)] if is_text else pa.array([BOB.bytes], pa.binary(16))
    pq.write_table(pa.table({"id": values}), file)
    id_type = "uuid" if is_text else ""
    found = verify.verify(world.repo, file, id_type=id_type)
    assert sorted((each.path[-1], each.rows) for each in found) == [("a", 1), ("b", 1)]
    assert purge_run.run_purge(
        world.repo, engines, PurgeOptions(ids=file, id_type=id_type, share=1), lambda _: None
    ).is_whole
    assert list(verify.verify(world.repo, file, id_type=id_type)) == []
