"""Logs: one set-up for all entry points, structlog's events and the libraries' records alike.

Everything goes to standard error, so that standard output is the answer and nothing else: a console line on a terminal,
one JSON object a line elsewhere. URLs lose their passwords on the way out, in whatever field they stand. The library
itself only asks structlog for a logger; without this set-up an application that embeds it keeps its own.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Final, TextIO, cast

import structlog

from refstore.core.redaction import redact_text
from refstore.core.settings import LogSettings

_LIBRARY_LEVEL: Final = logging.WARNING
"""Of boto3, redis and the like: their debug records hold request headers."""


def configure(settings: LogSettings, stream: TextIO) -> None:
    """Send all logs of this process to `stream`. Called by entry points, once; calling it again replaces the set-up."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    console = settings.format == "console" or (settings.format == "auto" and stream.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks are plain text: the pretty ones, and structlog's own JSON ones, print local variables, so secrets.
    renderer = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
        if console
        else structlog.processors.JSONRenderer()
    )
    last: list[structlog.typing.Processor] = [structlog.processors.format_exc_info, _redact, renderer]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
        # loggers stand in modules; a cached one would keep the set-up of the first call
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(level, _LIBRARY_LEVEL), force=True)


def _redact(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        event[key] = _redacted(value)
    return event


def _redacted(value: object) -> object:
    match value:
        case str():
            return redact_text(value)
        case BaseException():
            return redact_text(str(value))
        case dict():
            return {key: _redacted(inner) for key, inner in cast(dict[object, object], value).items()}
        case list() | tuple():
            return [_redacted(inner) for inner in cast(list[object], value)]
        case _:
            return value
