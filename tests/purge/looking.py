"""Find and rewrite in memory: what the tests of the formats have in common."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from refstore.purge_document.document import Dataset
from refstore.repository import Repository
from refstore_purge import purge_ids
from refstore_purge.file_allowance import limit_memory
from refstore_purge.formats.base import FormatTask, IdKind, SearchResult
from refstore_purge.purge_ids import IdSet
from refstore_purge.verify_ids import RowSearch, WantedIds
from refstore_purge.verify_reader_process import search_object

pyorc: Any = import_module("pyorc")
_TYPES: dict[IdKind, Any] = {"string": pa.string(), "integer": pa.int64(), "binary": pa.binary()}


def id_set(*values: Any, kind: IdKind = "string", type_: Any = None) -> IdSet:
    folder = Path(tempfile.mkdtemp(prefix="refstore-tests-"))
    purge_ids.write_ids(folder, kind, [pa.array(values, type_ or _TYPES[kind])])
    return IdSet(folder)


def task(identifier: str, *, map_part: Any = "value", set_null: Sequence[str] = ()) -> FormatTask:
    return FormatTask(tuple(identifier.split(".")), map_part, tuple(tuple(name.split(".")) for name in set_null))


def parquet_of(table: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def orc_of(metadata: dict[str, bytes], *guests: str) -> bytes:
    """Return an ORC file with this user metadata."""
    out = io.BytesIO()
    with pyorc.Writer(out, "struct<guest:string>") as writer:
        writer.writerows([(guest,) for guest in guests])
        writer.set_user_metadata(**metadata)
    return out.getvalue()


def summaries(files: Mapping[str, bytes], metadata: Any = None, schema: Any = None) -> dict[str, bytes]:
    """Return `_metadata` and `_common_metadata` of some files."""
    schema = (schema or pq.read_schema(io.BytesIO(next(iter(files.values()))))).with_metadata(metadata)
    footers: list[Any] = []
    for path, body in files.items():
        footers.append(pq.read_metadata(io.BytesIO(body)))
        footers[-1].set_file_path(path)
    found: dict[str, bytes] = {}
    for name, collected in (("_metadata", footers), ("_common_metadata", None)):
        out = io.BytesIO()
        pq.write_metadata(schema, out, metadata_collector=collected)
        found[name] = out.getvalue()
    return found


def encrypted(table: Any, *, has_plain_footer: bool) -> bytes:
    """Return a Parquet file whose column `guest` is encrypted."""
    encryption: Any = import_module("pyarrow.parquet.encryption")

    class Kms(encryption.KmsClient):
        def __init__(self, _: Any) -> None:
            encryption.KmsClient.__init__(self)

        def wrap_key(self, key_bytes: bytes, _: str) -> bytes:
            return key_bytes.hex().encode()

    factory = encryption.CryptoFactory(Kms)
    config = encryption.EncryptionConfiguration("k", column_keys={"k": ["guest"]}, plaintext_footer=has_plain_footer)
    out = io.BytesIO()
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    with pq.ParquetWriter(out, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return out.getvalue()


def ids_at(repo: Repository, path: str) -> list[Any]:
    """Return the column `id` of a file on main."""
    return pq.read_table(io.BytesIO(repo.read("main", path))).column("id").to_pylist()


class FoundRows(NamedTuple):
    rows: int
    matched_rows: int
    decided_by: str


class RewrittenRows(NamedTuple):
    rows: int
    matched_rows: int


def find(module: ModuleType, body: bytes, what: FormatTask, wanted: IdSet) -> FoundRows:
    found: SearchResult = module.find(io.BytesIO(body), what, wanted)
    return FoundRows(found.rows, found.matched_rows, found.decided_by)


def rewrite(module: ModuleType, body: bytes, what: FormatTask, wanted: IdSet) -> tuple[bytes, RewrittenRows]:
    """Rewrite, and check that `find` says the same."""
    target = io.BytesIO()
    made: SearchResult = module.rewrite(io.BytesIO(body), target, what, wanted)
    found: SearchResult = module.find(io.BytesIO(body), what, wanted)
    assert (found.rows, found.matched_rows, found.matched_entries) == (
        made.rows,
        made.matched_rows,
        made.matched_entries,
    )
    return target.getvalue(), RewrittenRows(made.rows, made.matched_rows)


def dataset_ids(*values: Any, kind: IdKind = "string", type_: Any = None) -> WantedIds:
    """Return ids as `verify` has them."""
    folder = Path(tempfile.mkdtemp(prefix="refstore-tests-"))
    purge_ids.write_ids(folder, kind, [pa.array(values, type_ or _TYPES[kind])])
    return WantedIds.prepare(folder, "", is_named=False)


def rows_left(body: bytes, dataset: Dataset, ids: WantedIds, *, is_of_id: bool = False) -> int:
    """Return how many rows `verify` counts. Raises VerifyReadError, MemoryError."""
    search = RowSearch(dataset, ids, is_of_id)
    with limit_memory(len(body)):
        search_object(io.BytesIO(body), search)
    return search.findings.rows
