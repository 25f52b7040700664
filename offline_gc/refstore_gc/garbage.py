"""Decide what is garbage offline, and write it to the files of a mark."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from refstore.core.arrow_arrays import make_array, to_numpy
from refstore_gc.address_codec import AddressKeys, are_among, encode_addresses, sort_distinct
from refstore_gc.run_layout import ObjectKind, RunLayout, open_store, write_table
from refstore_gc.run_summary import ObjectCount, UnitRow
from refstore_gc.untyped_arrow import pa

Flags = NDArray[np.bool_]
"""A yes or no for each of some objects."""

UNIT_ROWS: Final = 10_000
"""What a file of the mark holds: ten bulk deletions. A sweep goes on unit by unit after a crash."""

EXPIRED_REASON: Final = "expired"
"""The reason where a marked commit named the object, and no other commit does."""
ORPHAN_REASON: Final = {
    ObjectKind.DATA: "orphan blob",
    ObjectKind.RANGE: "orphan range",
    ObjectKind.METARANGE: "orphan metarange",
    ObjectKind.ADDED: "orphan listing of a commit",
    ObjectKind.FOREIGN: "foreign",
}
"""The reasons where no marked commit named the object either."""
DELETED_REPOSITORY_REASON: Final = "deleted repository"


class MarkedCount(NamedTuple):
    """How much of a kind of objects is marked for a reason."""

    kind: int
    reason: str
    amount: ObjectCount


MarkedRow = UnitRow | MarkedCount
"""What is told of garbage: the file of the mark that holds it, and counts."""


def is_garbage(listed: Flags, live: Flags, pending: Flags) -> Flags:
    """Return which objects are garbage: rule 13 of docs/protocol.md, "Offline". It is decided here and nowhere else.

    An object may go if all of these are true:

    - It was `listed` before the KV and the commits were read, and it is older than the longest operation
      (`list_objects.list_interval`). Of an incremental run, an earlier run may have listed it.
    - It is not `live`: no reference, staging entry, head, unmarked commit, pin or location record names it
      (`refstore/gc_marks/live_set.py`, read in the order of rule 13).
    - It is not `pending`: no earlier mark that stands will sweep it.

    A live address has its key among the live keys, so it is never garbage. A garbage address may share its key with a
    live one by chance; then it stays until the next run. The sweep checks once more what was named since (rule 14).
    """
    return listed & ~live & ~pending


def write_garbage(
    layout: RunLayout, number: int, garbage: Any, expired: list[AddressKeys], every_reason: str = ""
) -> Iterator[MarkedRow]:
    """Write a table of garbage, in order of addresses, to files of the mark.

    File names contain the attempt, because an engine may run a task twice, and the store may tell the two attempts
    different things. Under one name, a unit could hold what the manifest says is in another.
    """
    if not garbage.num_rows:
        return
    store, attempt = open_store(layout.files, layout), secrets.token_hex(8)
    kinds, sizes = to_numpy(garbage.column("kind")), to_numpy(garbage.column("size_bytes"))
    reasons = _garbage_reasons(
        kinds, are_among(encode_addresses(garbage.column("address"), layout.seed), expired), every_reason
    )
    garbage = garbage.append_column("reason", make_array(reasons, pa.string()))
    for part, at in enumerate(range(0, garbage.num_rows, UNIT_ROWS)):
        unit = garbage.slice(at, UNIT_ROWS)
        key = layout.file_key("mark", number * 1000 + part, attempt)
        write_table(store, key, unit)
        first, total = unit.column("address")[0].as_py(), int(sizes[at : at + UNIT_ROWS].sum())
        yield UnitRow(key, first, unit.num_rows, total)
    for kind in sort_distinct(kinds).tolist():
        for reason in sorted({*reasons[kinds == kind].tolist()}):
            chosen = (kinds == kind) & (reasons == reason)
            yield MarkedCount(kind, reason, count_of(sizes, chosen))


def _garbage_reasons(kinds: Any, expired: Any, every_reason: str) -> Any:
    reasons = np.full(len(kinds), every_reason, object)
    if not every_reason:
        for kind in sort_distinct(kinds).tolist():
            reasons[kinds == kind] = ORPHAN_REASON[ObjectKind(kind)]
        reasons[expired] = EXPIRED_REASON
    return reasons


def count_of(sizes: Any, chosen: Flags) -> ObjectCount:
    """Return the number and the sizes of the chosen objects."""
    return ObjectCount(int(chosen.sum()), int(sizes[chosen].sum()))
