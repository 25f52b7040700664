"""Collect the events that the product logs."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from refstore.core import event_log


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        own: Any = record
        self.events.append({"event": own.event, "level": record.levelname.lower(), **own.fields})


@contextmanager
def collecting_events() -> Generator[list[dict[str, Any]]]:
    """Collect the events of the block, of every level, with their fields, their level, and their name as `event`."""
    collector = _Collector()
    loggers = [logging.getLogger(name) for name in event_log.ROOTS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(collector)
        logger.setLevel(logging.DEBUG)
    try:
        yield collector.events
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(collector)
            logger.setLevel(level)
