"""Write a run's report as tables in Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from refstore_purge.purge_plan import SkippedObject
from refstore_purge.purge_report import PartitionRow, PublishedCommit, PurgeReport
from refstore_purge.remaining_places import Place
from refstore_purge.untyped_pandas import pa, pq


def write_parquet(report: PurgeReport, folder: Path) -> list[Path]:
    """Write the tables `partitions`, `commits`, `skipped_objects` and `places` (`.parquet`), and return the files.

    Each row has its run. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables: list[tuple[str, Any, Sequence[msgspec.Struct]]] = [
        ("partitions", PartitionRow, report.rows),
        ("commits", PublishedCommit, report.published_commits),
        ("skipped_objects", SkippedObject, report.skipped_objects),
        ("places", Place, report.places),
    ]
    files: list[Path] = []
    for name, type_, rows in tables:
        fields = [(field.name, _arrow_type(field.type)) for field in msgspec.structs.fields(type_)]
        schema = pa.schema([("run", pa.string()), *fields])
        made = pa.Table.from_pylist([{"run": report.run, **msgspec.to_builtins(row)} for row in rows], schema=schema)
        files.append(folder / f"{name}.parquet")
        pq.write_table(made, str(files[-1]))
    return files


def _arrow_type(type_: Any) -> Any:
    of = {"int": pa.int64(), "bool": pa.bool_(), "list": pa.list_(pa.string())}
    return of.get(getattr(type_, "__name__", ""), pa.string())
