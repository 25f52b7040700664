"""Files that Spark writes, purged and read by everybody; and every other file of the corpus, read by Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from refstore_gc.engines import spark_session
from tests.corpus import by_spark, readers
from tests.corpus.checking import check
from tests.corpus.expected import COMPARED, READ_BY_SPARK, REFUSED
from tests.corpus.groups import GROUPS
from tests.corpus.test_statistics import lies

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

BELIEVED_OF_SPARK: Final = 100
"""Of how many columns of Parquet and ORC statistics are believed, at least."""

pytestmark = pytest.mark.slow


@pytest.fixture
def spark(spark_engines: Engines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A session, which is among the readers, too."""
    spark_engines.for_objects(0)
    session: Any = spark_session.active_session()

    def read(path: Path) -> readers.Read:
        frame = session.read.format(path.suffix[1:]).load(str(path))
        return readers.Read(frame.schema.json(), frame.toArrow())

    for format_ in ("parquet", "orc"):
        monkeypatch.setitem(readers.READERS[format_], "Spark", read)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return session


def test_files_of_spark(spark: Any, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    wrong = [told for case in by_spark.cases(spark, tmp_path) for told in check(case, tmp_path, counts, REFUSED)]
    assert not wrong, "\n".join(wrong)
    assert {reader: counts[reader] for reader, least in COMPARED["Spark"].items() if counts[reader] < least} == {}


def test_statistics_of_spark_that_a_run_believes_are_right(spark: Any, tmp_path: Path) -> None:
    believed: Counter[str] = Counter()
    path = tmp_path / "file"
    wrong = [told for case in by_spark.cases(spark, tmp_path) for told in lies(case, path, believed)]
    assert not wrong, "\n".join(wrong)
    assert believed.total() >= BELIEVED_OF_SPARK


@pytest.mark.parametrize("group", [group for group in GROUPS if group in READ_BY_SPARK])
def test_files_of_others_are_read_by_spark(group: str, spark: Any, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    wrong = [told for case in GROUPS[group]() for told in check(case, tmp_path, counts, REFUSED, only="Spark")]
    assert not wrong, "\n".join(wrong)
    assert counts["Spark"] >= READ_BY_SPARK[group]
