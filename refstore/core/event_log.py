"""Log events by name and with fields, on Python's own `logging`.

    _log = event_log.get_logger(__name__)
    _log.warning("kv_settled", servers=3)

The record's message is one line, `kv_settled servers=3`; the record also has the attributes `event`, a text, and
`fields`, a dict. URLs lose their passwords before there is a record, so no handler of an application sees one; only
tracebacks are redacted as they are written (`refstore.configuration.logs`).

An application that embeds refstore says where its records go. Until it does, they go nowhere.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final, cast

from refstore.core.redaction import redact_text

ROOTS: Final = (
    "refstore",
    "refstore_api",
    "refstore_http",
    "refstore_reaper",
    "refstore_gc",
    "refstore_prune",
    "refstore_purge",
    "refstore_s3",
)
"""The names above all loggers of this product: its packages."""

for _name in ROOTS:
    logging.getLogger(_name).addHandler(logging.NullHandler())

_context: ContextVar[Mapping[str, object]] = ContextVar("refstore_log_fields", default=MappingProxyType({}))


class EventLogger:
    """A logger of events. Each method takes the event's name, and its fields as keyword arguments."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **fields: object) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: object) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, event, fields, exc_info=True)

    def _log(self, level: int, event: str, fields: Mapping[str, object], *, exc_info: bool = False) -> None:
        if not self._logger.isEnabledFor(level):
            return
        event = redact_text(event)
        shown = {name: redact_value(value) for name, value in {**_context.get(), **fields}.items()}
        line = " ".join([event, *(f"{name}={_quote_value(value)}" for name, value in shown.items())])
        extra = {"event": event, "fields": shown}
        self._logger.log(level, line, exc_info=exc_info, extra=extra, stacklevel=3)  # 3: where the event was logged


def get_logger(name: str) -> EventLogger:
    return EventLogger(name)


def context_fields() -> Mapping[str, object]:
    """Return the fields that `bind_fields` adds here."""
    return _context.get()


@contextmanager
def bind_fields(**fields: object) -> Generator[None, None, None]:
    """Add these fields to every event that is logged in the block, by this thread or asyncio task."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def redact_value(value: object) -> object:
    """Return a field's value with the URLs in it redacted, however deep."""
    match value:
        case str():
            return redact_text(value)
        case None | int() | float():
            return value
        case BaseException():
            return redact_text(str(value))
        case dict():
            return {key: redact_value(inner) for key, inner in cast(dict[object, object], value).items()}
        case list() | tuple():
            return [redact_value(inner) for inner in cast(list[object], value)]
        case _:
            return redact_text(repr(value))


def _quote_value(value: object) -> str:
    """Write a value so that it stays on the line and its end can be seen."""
    text = str(value)
    return repr(text) if isinstance(value, str) and (not text.isprintable() or " " in text or not text) else text
