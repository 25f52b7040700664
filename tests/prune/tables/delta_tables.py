"""Delta tables, what a reader sees of them, and parts of their log that deltalake reads and does not write."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

Rows = list[tuple[Any, ...]]
_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


ODD_DAYS: Final = ("mon:day 50%", "tues/day", "übermorgen")
"""Folders of partitions with these values have other names than the log has."""
DAYS: Final = ("monday", "tuesday", "wednesday")


def numbers(first: int, count: int = 6, days: Sequence[str] = DAYS) -> pa.Table:
    return pa.table({"id": list(range(first, first + count)), "day": [days[each % 3] for each in range(count)]})


def make_table(folder: Path, days: Sequence[str] = DAYS) -> DeltaTable:
    """Write a table with a history of seven versions, with change data."""
    write_deltalake(
        folder, numbers(0, days=days), partition_by=["day"], configuration={"delta.enableChangeDataFeed": "true"}
    )
    for first in range(10, 40, 10):
        write_deltalake(folder, numbers(first, days=days), mode="append")
    table = DeltaTable(folder)
    table.delete("id < 2")
    table.update({"id": "id + 1000"}, predicate="id = 12")
    table.optimize.compact()
    return table


def log_file(folder: Path, version: int, ending: str = "json") -> Path:
    return folder / "_delta_log" / f"{version:020}.{ending}"


def versions_of(folder: Path) -> dict[int, Rows]:
    """Return what a reader sees of each version that it can read."""
    newest = DeltaTable(folder).version()
    found: dict[int, Rows] = {}
    for version in range(newest + 1):
        try:
            table = DeltaTable(folder, version=version)
        except (DeltaError, TableNotFoundError):  # its log was cleaned up
            continue
        found[version] = rows_of(table)
    return found


def rows_of(table: DeltaTable) -> Rows:
    rows = pa.table(QueryBuilder().register("t", table).execute("select * from t").read_all()).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def changes_of(folder: Path, first: int = 0) -> Rows:
    changes = pa.table(DeltaTable(folder).load_cdf(starting_version=first).read_all())
    return sorted(tuple(str(each) for each in row.values()) for row in changes.to_pylist())


def needed_keys(folder: Path) -> set[str]:
    """Return what the log's commits and newest checkpoints name, and the log, read line by line."""
    found = {file.relative_to(folder).as_posix() for file in folder.glob("_delta_log/**/*") if file.is_file()}
    for action in actions_of(folder):
        for kind in ("add", "remove", "cdc"):
            if action.get(kind):
                found.add(unquote(action[kind]["path"]))
    return {key for key in found if (folder / key).exists()}


def actions_of(folder: Path) -> Iterable[dict[str, Any]]:
    for file in folder.glob("_delta_log/*.json"):
        yield from (json.loads(line) for line in file.read_text().splitlines())
    for file in folder.glob("_delta_log/*.checkpoint*.parquet"):
        yield from pq.read_table(file).to_pylist()


def deletion_vector_file(rows: Iterable[int]) -> bytes:
    """Return a file of one deletion vector, as the protocol has it: a 64-bit Roaring bitmap with one array."""
    values = sorted(rows)
    header = struct.pack("<IIHHI", 12346, 1, 0, len(values) - 1, 16)
    bitmap = header + b"".join(struct.pack("<H", each) for each in values)
    vector = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    return b"\x01" + struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))


def encode_z85(data: bytes) -> str:
    text = ""
    for at in range(0, len(data), 4):
        value = int.from_bytes(data[at : at + 4], "big")
        digits = ""
        for _ in range(5):
            value, digit = divmod(value, 85)
            digits = _Z85[digit] + digits
        text += digits
    return text


def delete_rows(folder: Path, rows: Iterable[int], *, prefix: str = "", absolute: bool = False) -> Path:
    """Commit a deletion vector for the first file of the newest version, and return its file."""
    table = DeltaTable(folder)
    version = table.version() + 1
    adds: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("_delta_log/*.json")):
        for action in map(json.loads, file.read_text().splitlines()):
            if "add" in action:
                adds[action["add"]["path"]] = action["add"]
            adds.pop(action.get("remove", {}).get("path", ""), None)
    add = adds[min(adds)]
    id_ = uuid.uuid4()
    vector = folder / prefix / f"deletion_vector_{id_}.bin"
    vector.parent.mkdir(exist_ok=True)
    content = deletion_vector_file(rows)
    vector.write_bytes(content)
    where = {"storageType": "p", "pathOrInlineDv": vector.as_uri()}
    if not absolute:
        where = {"storageType": "u", "pathOrInlineDv": prefix + encode_z85(id_.bytes)}
    size = len(content) - 9
    described = {**where, "offset": 1, "sizeInBytes": size, "cardinality": len(list(rows))}
    remove = {name: add[name] for name in ("path", "partitionValues", "size", "deletionVector") if add.get(name)}
    remove |= {"deletionTimestamp": 0, "dataChange": True, "extendedFileMetadata": True}
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors", "v2Checkpoint"],
        "writerFeatures": ["deletionVectors", "v2Checkpoint", "changeDataFeed"],
    }
    lines = [{"protocol": protocol}, {"remove": remove}, {"add": {**add, "deletionVector": described}}]
    log_file(folder, version).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return vector


def split_checkpoint(folder: Path, version: int, parts: int) -> None:
    """Make a checkpoint of so many parts of that of one file."""
    whole = log_file(folder, version, "checkpoint.parquet")
    table = pq.read_table(whole)
    whole.unlink()
    each = -(-len(table) // parts)
    for part in range(parts):
        name = f"checkpoint.{part + 1:010}.{parts:010}.parquet"
        pq.write_table(table.slice(part * each, each), log_file(folder, version, name))
    hint = {"version": version, "size": len(table), "parts": parts}
    (folder / "_delta_log" / "_last_checkpoint").write_text(json.dumps(hint))


def move_to_sidecars(folder: Path, version: int, *, as_json: bool) -> None:
    """Make a checkpoint of the second kind of that of one file: its names are in two other files."""
    whole = log_file(folder, version, "checkpoint.parquet")
    table = pq.read_table(whole)
    whole.unlink()
    (folder / "_delta_log" / "_sidecars").mkdir(exist_ok=True)
    sidecars: list[dict[str, Any]] = []
    for action in ("add", "remove"):
        files = table.filter(pc.is_valid(table[action])).select(["add", "remove"])
        if len(files):
            sidecar = folder / "_delta_log" / "_sidecars" / f"{uuid.uuid4()}.parquet"
            pq.write_table(files, sidecar)
            size = sidecar.stat().st_size
            sidecars.append({"path": sidecar.name, "sizeInBytes": size, "modificationTime": 0})
    rest = table.filter(pc.and_(pc.is_null(table["add"]), pc.is_null(table["remove"]))).drop_columns(["add", "remove"])
    actions = [{"checkpointMetadata": {"version": version}}, *({"sidecar": each} for each in sidecars)]
    actions += [{kind: value for kind, value in row.items() if value is not None} for row in rest.to_pylist()]
    name = f"checkpoint.{uuid.uuid4()}"
    if as_json:
        text = "".join(json.dumps(_with_objects(action)) + "\n" for action in actions)
        log_file(folder, version, f"{name}.json").write_text(text)
    else:
        empty = table.filter(pc.is_valid(table["add"])).drop_columns(["add", "remove"])[: 1 + len(sidecars)]
        rows = [*([{}] * len(rest)), *actions[: 1 + len(sidecars)]]
        both = pa.concat_tables([rest, empty])
        for kind in ("checkpointMetadata", "sidecar"):
            both = both.drop_columns([kind] if kind in both.column_names else [])
            both = both.append_column(kind, pa.array([row.get(kind) for row in rows]))
        pq.write_table(both, log_file(folder, version, f"{name}.parquet"))
    (folder / "_delta_log" / "_last_checkpoint").unlink()


def _with_objects(value: Any, name: str = "") -> Any:
    """Return maps, which Arrow gives as pairs, as objects."""
    if isinstance(value, dict):
        return {name: _with_objects(each, name) for name, each in value.items() if each is not None}
    return dict(value) if name in ("configuration", "options", "tags") else value
