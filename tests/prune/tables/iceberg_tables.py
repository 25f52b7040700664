"""Iceberg tables of a catalog in a file, and what a reader sees of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable, Table

Rows = list[tuple[Any, ...]]


def catalog_properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def make_table(folder: Path, name: str = "sales.orders", **options: Any) -> Table:
    (folder / "warehouse").mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("shop", **catalog_properties(folder))
    catalog.create_namespace_if_not_exists(name.partition(".")[0])
    return catalog.create_table(name, pa.schema([("id", pa.int64()), ("day", pa.string())]), **options)


def numbers(first: int, count: int = 5) -> pa.Table:
    return pa.table({"id": list(range(first, first + count)), "day": ["monday"] * count})


def path_of(location: str) -> Path:
    return Path(unquote(urlsplit(location).path)) if "%" in location else Path(urlsplit(location).path)


def snapshots_of(metadata_file: str) -> dict[int, Rows]:
    """Return what a reader sees of each snapshot of a metadata file."""
    table = StaticTable.from_metadata(metadata_file)
    return {each.snapshot_id: read_rows(table, each.snapshot_id) for each in table.snapshots()}


def read_rows(table: Table, snapshot_id: int | None = None) -> Rows:
    return sorted(tuple(row.values()) for row in table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist())


def metadata_files(table: Table) -> list[str]:
    """Return the current metadata file, and those in its log that are there."""
    older = [entry.metadata_file for entry in table.metadata.metadata_log]
    return [table.metadata_location, *(each for each in older if path_of(each).exists())]


def needed_files(table: Table) -> set[str]:
    """Return what the metadata files of the table name, read as pyiceberg's own readers do."""
    found: set[str] = set()
    for metadata_file in metadata_files(table):
        static = StaticTable.from_metadata(metadata_file)
        found.add(metadata_file)
        for snapshot in static.snapshots():
            if not path_of(snapshot.manifest_list).exists():
                continue
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(static.io):
                if path_of(manifest.manifest_path).exists():
                    found.add(manifest.manifest_path)
                    entries = manifest.fetch_manifest_entry(static.io, discard_deleted=False)
                    found.update(entry.data_file.file_path for entry in entries)
    return found


def keys_in(folder: Path, locations: set[str]) -> set[str]:
    return {path_of(each).relative_to(folder).as_posix() for each in locations}


def same_state(table: Table) -> Mapping[str, dict[int, Rows]]:
    """Return all that can be read: each snapshot of each metadata file."""
    return {metadata_file: snapshots_of(metadata_file) for metadata_file in metadata_files(table)}
