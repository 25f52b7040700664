"""Statistics that a run believes are right: no value of any column of any file lies outside of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from refstore_purge.formats.base import kind_of
from refstore_purge.formats.believed_statistics import parquet_bounds
from refstore_purge.formats.parquet_footer import read_footer
from refstore_purge.formats.parquet_schema import REPEATED, read_schema_tree
from tests.corpus.case import Case
from tests.corpus.groups import GROUPS

BELIEVED: Final = {"pyarrow": 300, "DuckDB": 100}
"""Of how many columns by each writer statistics are believed, at least: looking at fewer files is what they are for."""


OTHERS: Final = {"Polars": {"written through pyarrow"}, "fastparquet": set[str]()}
"""Writers that are not believed, but for some files."""

pytestmark = [
    pytest.mark.xdist_group("corpus"),
    pytest.mark.slow,
]


@pytest.mark.parametrize("group", [*BELIEVED, *OTHERS])
def test_no_value_lies_outside(group: str, tmp_path: Path) -> None:
    believed: Counter[str] = Counter()
    wrong = [told for case in GROUPS[group]() for told in lies(case, tmp_path / "file", believed)]
    assert not wrong, "\n".join(wrong)
    if group in OTHERS:
        assert set(believed) == OTHERS[group]
    else:
        assert believed.total() >= BELIEVED[group]


def lies(case: Case, path: Path, believed: Counter[str]) -> Iterator[str]:
    """Yield which columns of a file have a value outside of the bounds that a run believes; count those it believes."""
    if case.format != "parquet":
        return
    case.write(path)
    for name, bounds, values in _columns_of(path):
        if bounds is not None:
            believed[case.what] += 1
            comparable = [value.encode() if isinstance(value, str) else value for value in values if value is not None]
            if not all(any(low <= value <= high for low, high in bounds) for value in comparable):
                yield f"{case.name}: column {name}"


def _columns_of(path: Path) -> Iterator[tuple[str, Any, list[Any]]]:
    try:
        columns: list[Any] = pq.ParquetFile(path).read().columns
    except (pa.ArrowException, OSError):  # of a type that pyarrow does not know
        return
    with path.open("rb") as source:
        footer, _ = read_footer(source)
    for top, column in zip(read_schema_tree(footer).children, columns, strict=True):
        for leaf in top.leaves():
            values = None if REPEATED in leaf.levels else _leaf_values(column, leaf.path[1:])
            if values is not None and kind_of(values.type) is not None:
                yield ".".join(leaf.path), parquet_bounds(footer, leaf, values.type), values.to_pylist()


def _leaf_values(column: Any, path: tuple[str, ...]) -> Any:
    """Return what stands in a column of structs; None: it is stored as another type than it is read as."""
    for name in path:
        if not pa.types.is_struct(column.type):
            return None
        column = pc.struct_field(column, [name])
    values = column.combine_chunks()
    return values.storage if isinstance(values, pa.ExtensionArray) else values
