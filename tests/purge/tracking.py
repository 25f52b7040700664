"""The data set of seed 002's example: `tracking.event`, with the ids to purge in `u_purger.guestids`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from refstore.repository import Repository

PREFIX = "tracking/event/"
PARTITION = "datepartition=2017-02-16-00/is_guest=0"
PATH = f"{PREFIX}{PARTITION}/part-0.parquet"
DOCUMENT: dict[str, Any] = {
    "whitelist": ["tracking.*"],
    "datasets": [
        {
            "name": "tracking.event",
            "prefix": PREFIX,
            "format": "parquet",
            "identifier": "metadata.guestid",
            "mode": "keep-history",
        }
    ],
}

SCHEMA: Any = pa.schema(
    [
        pa.field("metadata", pa.struct([pa.field("guestid", pa.string()), pa.field("device", pa.int32())])),
        pa.field("col_a", pa.string()),
        pa.field("col_b", pa.int64()),
    ]
)


def onboard(repo: Repository, **changes: object) -> None:
    """Onboard the example's data set, with these changes to its description."""
    document = {**DOCUMENT, "datasets": [{**DOCUMENT["datasets"][0], **changes}]}
    repo.onboard_purge(json.dumps(document), by="tests")


def event(guest: str | None, number: int) -> dict[str, Any]:
    return {"metadata": {"guestid": guest, "device": number % 3}, "col_a": f"a{number}", "col_b": number}


def parquet(rows: list[dict[str, Any]], schema: Any = SCHEMA, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), out, **options)
    return out.getvalue()


def events(*guests: str | None) -> bytes:
    return parquet([event(guest, number) for number, guest in enumerate(guests)])


def rows_at(repo: Repository, ref: str, path: str) -> list[dict[str, Any]]:
    """Return the rows of a path as pyarrow reads them."""
    return pq.read_table(io.BytesIO(repo.read(ref, path))).to_pylist()


def guests_at(repo: Repository, ref: str, path: str = PATH) -> list[str | None]:
    return [row["metadata"]["guestid"] for row in rows_at(repo, ref, path)]


def guestids(folder: Path, *guests: str | None, name: str = "guestids.parquet") -> Path:
    """Write `u_purger.guestids`."""
    file = folder / name
    pq.write_table(pa.table({"id": pa.array(guests, pa.string())}), file)
    return file
