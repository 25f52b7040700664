"""Give `verify` the ids that a run reads, in the forms in which `verify_ids.py` compares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refstore_purge.ids_file import IdsFile, convert_ids, ids_folder, load_ids
from refstore_purge.purge_ids import IdSet
from refstore_purge.verify_ids import UUID, WantedIds, WantedIdsByDataset


def read_ids(file: IdsFile, *, id_type: str = "", datasets: Sequence[str] = ()) -> WantedIdsByDataset:
    """Read the ids of a file. `datasets`: which its column may name. Raises Invalid, which names no id."""
    with ids_folder() as folder:
        loaded = load_ids(file, folder, id_type=id_type, datasets=datasets)
        wanted = {
            name: _make_wanted(IdSet(folder, prefix=prefix), id_type, is_named=bool(name))
            for name, prefix in loaded.sets.items()
        }
    return WantedIdsByDataset(wanted.get(""), wanted, loaded.text)


def _make_wanted(ids: IdSet, id_type: str, *, is_named: bool) -> WantedIds:
    others: dict[str, Any] = {}
    if ids.kind == "string" and not id_type:
        for wanted in (UUID, "integer") if is_named else (UUID,):
            if (values := convert_ids(ids.values, ids.kind, wanted)) is not None:
                others[wanted] = values
    return WantedIds(ids.kind, ids.values, others)
