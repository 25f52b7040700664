"""Small files by many writers, over all types and options of a format: a purge of each is right, or refused by name.

"Right" is: the rows that stay, their order and types, as every reader that reads the file at all reads them; the
schema, the options, the metadata; of Parquet the bytes of each column where no row matched; and no id anywhere.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.corpus import by_duckdb, by_fastparquet, by_polars, by_pyarrow, by_pyarrow_orc, by_pyorc, by_text
from tests.corpus.case import Case
from tests.corpus.checking import check, purges
from tests.corpus.expected import COMPARED, REFUSED

pytestmark = pytest.mark.xdist_group("corpus")  # what it imports takes as long as a tenth of the files

GROUPS: Final[dict[str, Callable[[], Iterator[Case]]]] = {
    "pyarrow": by_pyarrow.cases,
    "DuckDB": by_duckdb.cases,
    "Polars": by_polars.cases,
    "fastparquet": by_fastparquet.cases,
    "pyarrow, ORC": by_pyarrow_orc.cases,
    "pyorc": by_pyorc.cases,
    "text": by_text.cases,
}


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_each_file_is_purged_right_or_refused_by_name(group: str, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    wrong = [told for case in GROUPS[group]() for told in check(case, tmp_path, counts, REFUSED)]
    assert not wrong, "\n".join(wrong)
    assert {reader: counts[reader] for reader, least in COMPARED[group].items() if counts[reader] < least} == {}


def test_there_are_enough_files_and_each_refusal_is_of_one() -> None:
    cases = [case for group in GROUPS.values() for case in group()]
    names = Counter(case.name for case in cases)
    assert len(cases) >= 300
    assert len({case.writer for case in cases}) >= 6
    assert {name for name, count in names.items() if count > 1} == set()
    known = {name for case in cases for name in (case.name, *(f"{case.name} ({purge.what})" for purge in purges(case)))}
    assert {name for name in REFUSED.keys() - known if not name.startswith("Spark")} == set()
    assert not [case.name for case in cases if len(case.keys) > 1 and not case.gone and "null" not in case.what.lower()
                and case.name not in REFUSED]  # fmt: skip
