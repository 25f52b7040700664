"""Statistics that lie: a run sees every row that `verify` sees, and leaves none."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc

from refstore.purge_document.document import Dataset
from refstore_purge.formats.registry import load_format
from refstore_purge.verify_ids import NORMAL, BatchedLookup, RowCount, WantedIds
from refstore_purge.verify_rows import count_rows
from tests.purge.looking import find, id_set, rewrite, task
from tests.purge.lying_statistics import LyingFile, lying_orc, lying_parquet

pytestmark = pytest.mark.usefixtures("own_temporary_folder")


@pytest.mark.parametrize("make", [lying_parquet, lying_orc])
def test_a_run_sees_what_verify_sees(make: Callable[[random.Random], LyingFile]) -> None:
    @settings(max_examples=150)
    @given(st.randoms(use_true_random=False))
    def check(rng: random.Random) -> None:
        file = make(rng)
        there = [value for value in file.values if value is not None]
        if there:
            check_purge(file, set(rng.sample(sorted(set(there)), 1)))

    check()


def check_purge(file: LyingFile, wanted: set[Any]) -> None:
    module, what = load_format(file.format), task(file.identifier)
    gone = sum(value in wanted for value in file.values)
    assert count_by_verify(file, file.body, wanted) == gone
    made, counts = rewrite(module, file.body, what, id_set(*wanted, kind=file.kind, type_=_id_type(file)))
    assert counts == (len(file.values), gone)
    assert _read(file, made) == [value for value in file.values if value not in wanted]
    assert count_by_verify(file, made, wanted) == 0
    again = find(module, made, what, id_set(*wanted, kind=file.kind, type_=_id_type(file)))
    assert again.matched_rows == 0


def _id_type(file: LyingFile) -> Any:
    return file.type if file.kind == "integer" else None


def count_by_verify(file: LyingFile, body: bytes, wanted: set[Any]) -> int:
    dataset = Dataset("d", "d/", file.identifier, "rewrite", file.format)
    ids = WantedIds(file.kind, pa.array(wanted, file.type).cast(NORMAL[file.kind]))
    lookup, count = BatchedLookup(ids), RowCount()
    count_rows(io.BytesIO(body), dataset, lookup, count, is_of_id=False)
    lookup.finish()
    return count.rows


def _read(file: LyingFile, body: bytes) -> list[Any]:
    """Return what stands at the identifier, as a reader tells that looks at no statistics."""
    source = io.BytesIO(body)
    if file.format == "orc":
        return orc.ORCFile(source).read().column("guest").to_pylist()
    opened = pq.ParquetFile(source)
    groups = [opened.read_row_group(number).column("guest") for number in range(opened.num_row_groups)]
    rows = [row for group in groups for row in group.to_pylist()]
    return [row["id"] for row in rows] if "." in file.identifier else rows
