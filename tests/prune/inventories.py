"""Write inventories as S3 does (S3 Inventory), of the tests' own: rows in no order, in gzipped CSV, ORC or Parquet."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final
from urllib.parse import quote_plus

from refstore_gc.untyped_arrow import pa, pc, pq

FOLDER: Final = "inventories/big/all"
FORMATS: Final = ("CSV", "ORC", "Parquet")
_CSV_NAMES: Final = {
    "bucket": "Bucket",
    "key": "Key",
    "version_id": "VersionId",
    "is_latest": "IsLatest",
    "is_delete_marker": "IsDeleteMarker",
    "size": "Size",
    "last_modified_date": "LastModifiedDate",
    "e_tag": "ETag",
    "storage_class": "StorageClass",
}


class InventoryWriter:
    """Writes one inventory, file by file; `finish` writes its manifest."""

    def __init__(
        self, put: Callable[[str, bytes], object], *, bucket: str, file_format: str, made_ms: int, folder: str = FOLDER
    ) -> None:
        """`put` takes keys of the bucket in which the inventory lies."""
        self._put = put
        self._bucket = bucket
        self._format = file_format
        self._made_ms = made_ms
        self._folder = folder
        self.files: list[dict[str, object]] = []
        """What the manifest says of each."""
        self.names = ["bucket", "key", "size", "last_modified_date", "e_tag"]
        self.change: dict[str, object] = {}
        """What the manifest says otherwise."""

    def add_file(self, rows: Any) -> str:
        """Write a file with rows of `make_rows`, and return its key."""
        bucket = pa.array([self._bucket], pa.string())
        if "bucket" not in rows.column_names:
            rows = rows.add_column(0, "bucket", bucket.take(pa.array([0] * len(rows), pa.int8())))
        body = _ENCODERS[self._format](rows)
        ending = "csv.gz" if self._format == "CSV" else self._format.lower()
        key = f"{self._folder}/data/{hashlib.sha256(body).hexdigest()[:32]}.{ending}"
        self._put(key, body)
        self.names = rows.column_names
        self.files.append({"key": key, "size": len(body), "MD5checksum": hashlib.md5(body).hexdigest()})  # noqa: S324
        return key

    def finish(self, *, checksum: str | None = None) -> str:
        """Write the manifest, and return its key."""
        manifest = {
            "sourceBucket": self._bucket,
            "destinationBucket": "arn:aws:s3:::inventories",
            "version": "2016-11-30",
            "creationTimestamp": str(self._made_ms),
            "fileFormat": self._format,
            "fileSchema": ", ".join(_CSV_NAMES.get(name, name) for name in self.names),
            "files": self.files,
        }
        body = json.dumps({**manifest, **self.change}).encode()
        key = f"{self._folder}/2026-11-28T01-00Z/manifest.json"
        self._put(key, body)
        digest = hashlib.md5(body).hexdigest()  # noqa: S324
        self._put(key.replace(".json", ".checksum"), f"{digest if checksum is None else checksum}\n".encode())
        return key


def make_rows(objects: Sequence[tuple[str, int, int, str]], **columns: Sequence[Any]) -> Any:
    """Make rows of objects: key, size, time in ms, ETag. `columns`: more of them; None leaves one out."""
    keys, sizes, times, etags = map(list, zip(*objects, strict=True))
    rows: dict[str, Any] = {
        "key": pa.array(keys, pa.string()),
        "size": pa.array(sizes, pa.int64()),
        "last_modified_date": pa.array(times, pa.timestamp("ms", "UTC")),
        "e_tag": pa.array(etags, pa.string()),
    }
    return pa.table({**rows, **columns})


def _encode_csv(rows: Any) -> bytes:
    keys = pa.array([quote_plus(key, safe="/") for key in rows["key"].to_pylist()], pa.string())
    rows = rows.set_column(rows.column_names.index("key"), "key", keys)
    texts = pa.table({name: _as_text(rows[name]) for name in rows.column_names})
    out = io.BytesIO()
    csv = import_module("pyarrow.csv")
    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    csv.write_csv(texts, out, options)
    return gzip.compress(out.getvalue(), 1)


def _as_text(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        return pc.strftime(column, "%Y-%m-%dT%H:%M:%SZ")
    text = column.cast(pa.string())
    return pc.fill_null(text, "")


def _encode_orc(rows: Any) -> bytes:
    out = io.BytesIO()
    import_module("pyarrow.orc").write_table(rows, out)
    return out.getvalue()


def _encode_parquet(rows: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(rows, out)
    return out.getvalue()


_ENCODERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "CSV": _encode_csv,
    "ORC": _encode_orc,
    "Parquet": _encode_parquet,
}
