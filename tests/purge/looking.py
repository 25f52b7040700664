"""Find and rewrite in memory: what the tests of the formats have in common."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from refstore_purge import ids
from refstore_purge.formats.base import Found, Kind, Rewritten, Task
from refstore_purge.ids import IdSet

_TYPES: dict[Kind, Any] = {"string": pa.string(), "integer": pa.int64(), "binary": pa.binary()}


def id_set(*values: Any, kind: Kind = "string", type_: Any = None) -> IdSet:
    folder = Path(tempfile.mkdtemp(prefix="refstore-tests-"))
    ids.write(folder, kind, [pa.array(values, type_ or _TYPES[kind])])
    return IdSet(folder)


def task(identifier: str, *, map_part: Any = "value", set_null: Sequence[str] = ()) -> Task:
    return Task(tuple(identifier.split(".")), map_part, tuple(tuple(name.split(".")) for name in set_null))


def find(module: ModuleType, body: bytes, what: Task, wanted: IdSet) -> Found:
    return module.find(io.BytesIO(body), what, wanted)


def rewrite(module: ModuleType, body: bytes, what: Task, wanted: IdSet) -> tuple[bytes, Rewritten]:
    """Rewrite, and check that `find` says the same."""
    target = io.BytesIO()
    made = module.rewrite(io.BytesIO(body), target, what, wanted)
    found = find(module, body, what, wanted)
    assert (found.rows, found.matched) == (made.rows, made.matched)
    return target.getvalue(), made
