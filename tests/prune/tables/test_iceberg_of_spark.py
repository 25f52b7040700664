"""Tables that Spark wrote with Iceberg's own library: a Hadoop catalog, delete files, deletion vectors, statistics, and
snapshots that Spark expired.

`ICEBERG_SPARK_HOME` names a PySpark for which there are Iceberg's jars (such as the folder of PySpark 3.5's sdist), and
`ICEBERG_SPARK_JARS` names these, with commas between. Where one of them is missing, the tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.prune.folders import make_store
from tests.prune.tables import spark_iceberg_tables
from tests.prune.tables.table_runs import names_of, prune_twice

HOME, JARS = (os.environ.get(name, "") for name in ("ICEBERG_SPARK_HOME", "ICEBERG_SPARK_JARS"))
ORPHANS = {"data/day=0/left-over.parquet", "data/left-over-deletes.puffin", "metadata/snap-left-over.avro"}


def run_spark(warehouse: Path, action: str) -> dict[str, Any]:
    zips = [str(each) for each in Path(HOME, "lib").glob("py4j-*.zip")]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        "PYTHONPATH": ":".join([HOME, *zips]),
        "SPARK_HOME": f"{HOME}/deps",
    }
    command = [sys.executable, spark_iceberg_tables.__file__, JARS, str(warehouse), action]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return json.loads(next(line for line in output.splitlines() if line.startswith("rows ")).removeprefix("rows "))


@pytest.mark.skipif(not (HOME and JARS), reason="ICEBERG_SPARK_HOME and ICEBERG_SPARK_JARS name no Spark with Iceberg")
def test_every_snapshot_of_spark_stays(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    rows = run_spark(warehouse, "write")
    names = [f"iceberg:{warehouse}/shop/{name}" for name in rows]
    assert all(any(each.endswith(".stats") for each in names_of(name)) for name in names)
    assert any(each.endswith("-deletes.puffin") for each in names_of(names[1]))
    orphans = {f"shop/{name}/{key}" for name in rows for key in ORPHANS}
    make_store(warehouse, orphans)
    assert prune_twice(warehouse, names) == orphans
    assert run_spark(warehouse, "read") == rows
