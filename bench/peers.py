"""What the peers are given to delete: as many files, of the same size, made by their own code as far as that is quick.

deltalake: a table whose log says, written by deltalake, that the files were added and removed again. icechunk: a
repository, made by icechunk, and chunks that no snapshot names, as a session that was never committed leaves them;
their files are written here, under names as icechunk gives them. pylance: a dataset, made by pylance, and data files
that no version names, as a write that failed leaves them, written here likewise.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# The peers are in requirements-bench.lock only: where types are checked, they are not installed.

from __future__ import annotations

import secrets
import uuid
from pathlib import Path

from bench import lakes

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ID_DIGITS = 20
"""Of an icechunk id: 12 bytes in Crockford's base 32, the last digit holding the one bit that is left."""


def bare_files(folder: Path, count: int) -> None:
    for number in range(count):
        lakes.write_file(folder / f"{number:026d}", lakes.body_of(number))


def delta_table(folder: Path, count: int) -> None:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, write_deltalake
    from deltalake.transaction import AddAction, RemoveAction

    write_deltalake(folder, pa.table({"number": pa.array([0], pa.int64())}))
    names = [f"part-{number:05d}-{secrets.token_hex(16)}.c000.snappy.parquet" for number in range(count)]
    for number, name in enumerate(names):
        lakes.write_file(folder / name, lakes.body_of(number))
    table = DeltaTable(folder)
    adds: list[AddAction | RemoveAction] = [
        AddAction(name, lakes.BODY_BYTES, {}, 1_700_000_000_000, True, "{}") for name in names
    ]
    table.create_write_transaction(adds, mode="append", schema=table.schema(), commit_properties=CommitProperties())
    write_deltalake(folder, pa.table({"number": pa.array([1], pa.int64())}), mode="overwrite")


def icechunk_repository(folder: Path, count: int) -> None:
    import icechunk
    import zarr

    configuration = icechunk.RepositoryConfig.default()
    configuration.inline_chunk_threshold_bytes = 0
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)), config=configuration)
    session = repository.writable_session("main")
    array = zarr.group(session.store).create_array("kept", shape=(64,), chunks=(16,), dtype="u1", fill_value=255)
    array[:] = 1
    session.commit("what stays")
    for number in range(count):
        lakes.write_file(folder / "chunks" / _chunk_name(), lakes.body_of(number))


def lance_dataset(folder: Path, count: int) -> None:
    import lance
    import pyarrow as pa

    lance.write_dataset(pa.table({"number": pa.array([0], pa.int64())}), str(folder), mode="overwrite")
    lance.write_dataset(pa.table({"number": pa.array([1], pa.int64())}), str(folder), mode="overwrite")
    for _ in range(count):
        lakes.write_file(folder / "data" / f"{uuid.uuid4()}.lance", lakes.body_of(0))


def _chunk_name() -> str:
    number = int.from_bytes(secrets.token_bytes(12)) << 4
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(5 * (ID_DIGITS - 1), -1, -5))
