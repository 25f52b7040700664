"""Which engine a run gets."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from refstore.core import python_gc
from refstore.errors import InvalidSettings
from refstore_gc.engines import spark_session
from refstore_gc.engines.base import Engine
from refstore_gc.engines.local import LocalEngine

Choice = Literal["auto", "local", "spark"]

SPARK_FROM_OBJECTS: Final = 5_000_000
"""Up to so many objects two cores take as long to compare as Spark takes to start."""
LOCAL_MASTER: Final = "local[*]"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What a run gets: this machine or Spark, and which Spark."""

    choice: Choice = "auto"
    spark_from_objects: int = SPARK_FROM_OBJECTS
    """With `auto` and without a master: a run that compares more objects gets Spark, if that is installed."""
    master: str | None = None
    """Spark's; with it `auto` is Spark. '': what spark-submit, or Spark's own configuration, says. None: all cores of
    this machine.
    """
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    """Spark settings, over the defaults."""

    def __post_init__(self) -> None:
        """Raises InvalidSettings."""
        if self.choice not in get_args(Choice):
            raise InvalidSettings(f"{self.choice!r} is not an engine; use auto, local or spark")

    @classmethod
    def make(cls, engine: Choice | EngineOptions) -> EngineOptions:
        """Return what a caller chose. Raises InvalidSettings."""
        return engine if isinstance(engine, EngineOptions) else cls(choice=engine)


class Engines:
    """Gives each run its engine, and opens an engine when a run first gets it."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._opened = ExitStack()
        self._local: LocalEngine | None = None
        self._spark: Engine | None = None

    def for_objects(self, objects: int) -> Engine:
        """Return the engine for a run that compares so many objects. Raises MissingExtra."""
        if self._takes_spark(objects):
            self._spark = self._spark or self._open_spark()
            return self._spark
        if self._local is None:
            self._local = LocalEngine()
            self._opened.callback(self._local.close)
        return self._local

    def close(self) -> None:
        self._opened.close()

    def _takes_spark(self, objects: int) -> bool:
        options = self._options
        if options.choice != "auto":
            return options.choice == "spark"
        is_large = objects > options.spark_from_objects and spark_session.is_installed()
        return options.master is not None or is_large

    def _open_spark(self) -> Engine:
        """Open Spark. A session that is there already (under spark-submit, in a notebook) is used, and left running."""
        spark_session.check_installed()
        from refstore_gc.engines.spark import SparkEngine

        session = spark_session.active_session()
        if session is not None:
            return SparkEngine(session)
        master = LOCAL_MASTER if self._options.master is None else self._options.master
        engine = SparkEngine(spark_session.start_session(master, self._options.conf))
        self._opened.callback(engine.close)
        return engine


@contextmanager
def open_engines(options: EngineOptions) -> Generator[Engines, None, None]:
    """Open engines for the block, in a process of refstore's own."""
    engines = Engines(options)
    try:
        with python_gc.collect_seldom():
            yield engines
    finally:
        engines.close()
