"""Small files by many writers, over all types and options of a format: a purge of each is right, or refused by name.

"Right" is: the rows that stay, their order and types, as every reader that reads the file at all reads them; the
schema, the options, the metadata; of Parquet the bytes of each column where no row matched; and no id anywhere.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refstore_purge.formats import parquet
from tests.corpus import by_pyarrow, checking, table
from tests.corpus.checking import check, purges
from tests.corpus.expected import COMPARED, REFUSED
from tests.corpus.groups import GROUPS

DOCUMENT: Final = Path(__file__).parent / "README.md"

pytestmark = [
    pytest.mark.xdist_group("corpus"),  # what it imports takes as long as a tenth of the files
    pytest.mark.usefixtures("own_temporary_folder"),
]


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_each_file_is_purged_right_or_refused_by_name(group: str, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    wrong = [told for case in GROUPS[group]() for told in check(case, tmp_path, counts, REFUSED)]
    assert not wrong, "\n".join(wrong)
    assert {reader: counts[reader] for reader, least in COMPARED[group].items() if counts[reader] < least} == {}


def test_the_corpus_is_large_enough_and_its_names_are_right() -> None:
    cases = table.every_case()
    names = Counter(case.name for case in cases)
    assert len(cases) >= 300
    assert len({case.writer for case in cases}) >= 6
    assert {name for name, count in names.items() if count > 1} == set()
    assert REFUSED.keys() - {name for case in cases for name in (case.name, *_names_of_purges(case))} == set()
    assert not any("damaged" in told for told in REFUSED.values())
    have_none = {case.name for case in cases if len(case.keys) > 1 and not case.gone} - REFUSED.keys()
    assert have_none == {"pyarrow parquet: identifier of nulls alone", "Python json: identifier of nulls alone"}


def test_the_document_lists_what_is_tried() -> None:
    """`python -m tests.corpus.table` writes the table."""
    assert list(table.table()) == [line for line in DOCUMENT.read_text("utf-8").splitlines() if line.startswith("|")]


def _names_of_purges(case: Any) -> list[str]:
    return [f"{case.name} ({purge.what})" for purge in purges(case)]


def _with(table_: Any, name: str, column: Any) -> Any:
    return table_.set_column(table_.schema.get_field_index(name), name, column)


def _later(column: Any) -> Any:
    return pa.array([column[0].value + 1, *(each.value for each in column[1:])]).cast(column.type)


FAULTS: Final[dict[str, tuple[str, Callable[[Any], Any], dict[str, Any], str]]] = {
    "a row that stays is lost": ("codec snappy", lambda rows: rows.slice(1), {}, "115 rows instead of 116"),
    "rows change places": (
        "codec snappy", lambda rows: rows.take([1, 0, *range(2, len(rows))]), {}, "column 'guest': other values",
    ),
    "a time changes": (
        "codec snappy", lambda rows: _with(rows, "at", _later(rows["at"])), {}, "column 'at': other values",
    ),
    "-0.0 becomes 0.0": (
        "float64", lambda rows: _with(rows, "v", pa.array([0.0, 0.0, *rows["v"][2:].to_pylist()])), {},
        "column 'v': other numbers",
    ),
    "a time zone is lost": (
        "codec snappy", lambda rows: _with(rows, "at", rows["at"].cast(pa.timestamp("us"))), {}, "reads other types",
    ),
    "a codec changes": ("codec snappy", lambda rows: rows, {"compression": "gzip"}, "codec 2 instead of 1"),
    "dictionaries are lost": ("codec snappy", lambda rows: rows, {"use_dictionary": False}, "guest: dictionary lost"),
    "statistics are lost": ("codec snappy", lambda rows: rows, {"write_statistics": False}, "statistics lost"),
    "checksums are lost": ("page checksums", lambda rows: rows, {}, "page checksums lost"),
    "a column's index is lost": ("page index", lambda rows: rows, {}, "column index lost"),
    "the order of sorting is lost": ("sorting columns", lambda rows: rows, {}, "sorting columns: None instead of"),
    "nothing is copied": ("compression level", lambda rows: rows, {}, "not copied byte for byte"),
    "an id stays": (
        "codec none", lambda rows: _with(rows, "word", pa.array([by_pyarrow.WANTED[0]] * len(rows))),
        {"compression": "none"}, "an id stands in its bytes",
    ),
}  # fmt: skip
"""A file, what is done to its rows and written with which options, and what is to be told of it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    what, change, options, told = FAULTS[fault]
    rewrite = parquet.rewrite

    def rewrite_wrongly(source: Any, target: Any, task: Any, ids: Any) -> Any:
        made = io.BytesIO()
        done = rewrite(source, made, task, ids)
        writer: Any = pq
        writer.write_table(change(pq.read_table(made)), target, row_group_size=40, **options)
        return done

    monkeypatch.setattr(parquet, "rewrite", rewrite_wrongly)
    monkeypatch.setattr(checking, "TOLD", 1000)
    (case,) = (case for case in by_pyarrow.cases() if case.what == what)
    wrong = check(case, tmp_path, Counter(), REFUSED)
    assert any(told in each for each in wrong), wrong
