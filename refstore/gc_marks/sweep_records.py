"""Read the records of single addresses from the files of a run of the offline job in the namespace.

`offline_gc/refstore_gc/run_layout.py` defines the files, `offline_gc/refstore_gc/run_summary.py` and
`offline_gc/refstore_gc/sweep_tasks.py` their contents.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from io import BytesIO
from typing import Any, Final, NamedTuple

import msgspec

from refstore.core.arrow_arrays import make_array, make_scalar
from refstore.errors import Corrupt, ObjectNotFound
from refstore.objects.base import ObjectStore
from refstore.versioning.commits.columns import pa, pc, pq

ROOT: Final = "_refstore/gc/"


class RunRules(msgspec.Struct, frozen=True):
    """The part of a run's summary about its rules."""

    min_age_seconds: float
    rules_digest: str
    expired_by: dict[str, int]
    """How many commits expired by each rule."""


class MarkedRow(NamedTuple):
    """An address in a mark."""

    size_bytes: int
    reason: str


class OutcomeRow(NamedTuple):
    """The outcome of an address in a sweep."""

    size_bytes: int
    reason: str
    outcome: str
    why: str
    """The store's reason, if it failed."""


class RunFilesMissing(Exception):
    """A run's files do not exist any more. An operator may remove those of a swept mark."""


class _MarkUnit(msgspec.Struct, frozen=True, array_like=True):
    key: str
    first_address: str


class _MarkManifest(msgspec.Struct, frozen=True):
    units: list[_MarkUnit]


def read_run_rules(objects: ObjectStore, mark_id: str) -> RunRules | None:
    """Return the facts of the run's summary; None if it has none. Raises Corrupt, ObjectsUnavailable."""
    key = f"{ROOT}{mark_id}/summary.json"
    try:
        return msgspec.json.decode(objects.read(key), type=RunRules)
    except ObjectNotFound:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _corrupt_file(objects, key, error) from error


def find_unit(objects: ObjectStore, mark_id: str, address: str) -> str | None:
    """Return the file of the mark that may contain the address; None if there is none. Raises RunFilesMissing, Corrupt,
    ObjectsUnavailable.

    A mark's files are in the order of addresses, so one of them is enough.
    """
    units = _read_units(objects, mark_id)
    at = bisect_right([unit.first_address for unit in units], address) - 1
    return units[at].key if at >= 0 else None


def read_marked_row(objects: ObjectStore, unit: str, address: str) -> MarkedRow | None:
    """Return the row of an address in a file of a mark. Raises RunFilesMissing, Corrupt, ObjectsUnavailable."""
    row = _find_row(objects, unit, address, ["address", "size_bytes", "reason"])
    return MarkedRow(row["size_bytes"], row["reason"]) if row is not None else None


def read_outcome_row(objects: ObjectStore, file: str, address: str) -> OutcomeRow | None:
    """Return the row of an address in an outcome file. Raises RunFilesMissing, Corrupt, ObjectsUnavailable."""
    row = _find_row(objects, file, address, ["address", "size_bytes", "reason", "outcome", "why"])
    return OutcomeRow(row["size_bytes"], row["reason"], row["outcome"], row["why"]) if row is not None else None


def read_outcomes(objects: ObjectStore, mark_id: str, addresses: Iterable[str]) -> dict[str, str]:
    """Return the outcome in a sweep of each address that the mark holds. Raises RunFilesMissing, Corrupt,
    ObjectsUnavailable.
    """
    units = _read_units(objects, mark_id)
    firsts = [unit.first_address for unit in units]
    wanted: dict[str, list[str]] = {}
    for address in addresses:
        at = bisect_right(firsts, address) - 1
        if at >= 0:
            wanted.setdefault(units[at].key, []).append(address)
    outcomes: dict[str, str] = {}
    for unit, of_unit in wanted.items():
        table = _read_table(objects, outcome_key(unit), ["address", "outcome"])
        chosen = table.filter(pc.is_in(table.column("address"), make_array(of_unit, pa.string())))
        outcomes.update(zip(chosen.column("address").to_pylist(), chosen.column("outcome").to_pylist(), strict=True))
    return outcomes


def outcome_key(unit: str) -> str:
    """Return the key of the outcome file for a file of a mark."""
    return unit.replace("/mark/", "/sweep/")


def _read_units(objects: ObjectStore, mark_id: str) -> list[_MarkUnit]:
    key = f"{ROOT}{mark_id}/mark.json"
    try:
        return msgspec.json.decode(objects.read(key), type=_MarkManifest).units
    except ObjectNotFound as error:
        raise RunFilesMissing(key) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _corrupt_file(objects, key, error) from error


def _find_row(objects: ObjectStore, key: str, address: str, columns: list[str]) -> dict[str, Any] | None:
    table = _read_table(objects, key, columns)
    at = pc.index(table.column("address"), make_scalar(address, pa.string())).as_py()
    return table.slice(at, 1).to_pylist()[0] if at >= 0 else None


def _read_table(objects: ObjectStore, key: str, columns: list[str]) -> Any:
    try:
        return pq.ParquetFile(BytesIO(objects.read(key))).read(columns=columns, use_threads=False)
    except ObjectNotFound as error:
        raise RunFilesMissing(key) from error
    except (pa.ArrowException, OSError) as error:
        raise _corrupt_file(objects, key, error) from error


def _corrupt_file(objects: ObjectStore, key: str, error: Exception) -> Corrupt:
    return Corrupt(f"{key} in {objects.url} is not what was written ({error}); restore it from a backup, or remove it")
