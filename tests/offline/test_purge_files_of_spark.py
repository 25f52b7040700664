"""What Spark writes, Spark reads after a purge: the same values but for the rows that went."""

from __future__ import annotations

import io
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from refstore_gc.engines import spark_session
from tests.purge.looking import id_set, task

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

TIMES = ("1960-01-01 00:00:00", "2020-02-03 04:05:06.789", "1970-01-01 00:00:00.000001")
COLUMNS = (
    "concat('g', id) guest",
    "id",
    "cast(id as byte) b",
    "cast(id as short) s",
    "cast(id as int) i",
    "id / 3 d",
    "cast(id / 3 as float) f",
    "cast(id / 7 as decimal(9, 2)) small",
    "cast(id / 7 as decimal(38, 9)) large",
    "id % 2 = 0 even",
    "cast(cast(id as string) as binary) bytes",
    "date_sub(date'1970-01-02', cast(id * 10000 as int)) day",
    f"cast(element_at(array{TIMES}, cast(id % 3 + 1 as int)) as timestamp) at",
    "array(id, null) many",
    "map(cast(id as string), struct(id n, if(id % 3 = 0, null, 'x') x)) by",
    "if(id % 4 = 0, null, struct(id n, array(struct(id n)) deep)) nested",
)

NTZ = f"cast(element_at(array{TIMES}, cast(id % 3 + 1 as int)) as timestamp_ntz) there"
"""In ORC only: in Parquet a run refuses it beside Spark's timestamps of 96 bits."""


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("orc", {}),
        ("orc", {"compression": "zlib", "orc.compress.size": "10000"}),
        ("parquet", {}),
        ("parquet", {"compression": "gzip", "parquet.enable.dictionary": "false"}),
    ],
)
def test_rows_that_stay_are_as_they_were(
    spark_engines: Engines, tmp_path: Path, kind: str, options: dict[str, str]
) -> None:
    spark_engines.for_objects(0)
    spark: Any = spark_session.active()
    columns = [*COLUMNS, NTZ] if kind == "orc" else COLUMNS
    spark.range(40).selectExpr(*columns).coalesce(1).write.options(**options).format(kind).save(str(tmp_path / "old"))
    (old,) = (tmp_path / "old").glob("part-*")
    made = io.BytesIO()
    format_: Any = import_module(f"refstore_purge.formats.{kind}")
    counts = format_.rewrite(io.BytesIO(old.read_bytes()), made, task("guest"), id_set("g7", "g12"))
    assert (counts.rows, counts.matched) == (40, 2)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / old.name).write_bytes(made.getvalue())

    def rows(folder: str) -> list[str]:
        read = spark.read.format(kind).load(str(tmp_path / folder))
        return [str(row) for row in read.filter("guest not in ('g7', 'g12')").collect()]

    assert rows("new") == rows("old")
    assert spark.read.format(kind).load(str(tmp_path / "new")).count() == 38
