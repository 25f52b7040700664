"""Make events by day and tenant, with the identifier in a struct. The same seed makes the same file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet

pa: Any = pyarrow  # its stubs know less than it can
pc: Any = pyarrow.compute
pq: Any = pyarrow.parquet

PREFIX: Final = "events/"
DAYS: Final = tuple(f"2026-11-{day:02d}" for day in range(1, 11))
TENANTS: Final = ("acme", "globex", "initech", "umbrella")
GUESTS: Final = 200_000
ROW_BYTES: Final = 41
"""Of Parquet: what cannot be compressed is a session's 16 bytes, an amount, and parts of the guest and the time."""
ROW_GROUPS: Final = 4
_KINDS: Final = ("view", "click", "cart", "order")


def paths() -> list[str]:
    return [f"{PREFIX}day={day}/tenant={tenant}/part-00000.parquet" for day in DAYS for tenant in TENANTS]


def rows_for(size_bytes: int) -> int:
    """Return how many rows each file has, so that all of them together have about this size."""
    return max(ROW_GROUPS, size_bytes // len(paths()) // ROW_BYTES)


def table(path: str, rows: int) -> Any:
    """Return the events of a path: user (a struct with guestid and country), kind, amount, session, at."""
    rng = np.random.default_rng(paths().index(path))
    guests = pa.array([f"guest-{number:06d}" for number in range(GUESTS)])
    user = pa.StructArray.from_arrays(
        [
            guests.take(pa.array(rng.integers(0, GUESTS, rows))),
            pa.array(["de", "fr", "jp", "us"]).take(pa.array(rng.integers(0, 4, rows))),
        ],
        ["guestid", "country"],
    )
    return pa.table(
        {
            "user": user,
            "kind": pa.array(_KINDS).take(pa.array(rng.integers(0, len(_KINDS), rows))),
            "amount": rng.random(rows),
            "session": pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(16), rows, [None, pa.py_buffer(rng.bytes(16 * rows))]
            ),
            "at": pa.array(rng.integers(0, 86_400_000, rows, dtype=np.int32), pa.time32("ms")),
        }
    )


def parquet(made: Any) -> bytes:
    target = io.BytesIO()
    pq.write_table(made, target, row_group_size=-(-len(made) // ROW_GROUPS))
    return target.getvalue()


def read(body: bytes) -> Any:
    return pq.read_table(io.BytesIO(body))


def without(made: Any, ids: Sequence[str]) -> Any:
    """Return the events of everybody else, in order."""
    return made.filter(
        pc.invert(pc.is_in(pc.struct_field(made["user"], ["guestid"]), value_set=pa.array(ids, pa.string())))
    )
