"""Set up the logs of a process of refstore: its own events and the records of the libraries, in one form.

Everything goes to standard error, so that standard output is the answer and nothing else. A command writes plain lines,
`refstore: warning: ...`. A service writes what machines collect: one JSON object a line, or a console line with its
time on a terminal. URLs lose their passwords on the way out, in whatever field they stand.

Only entry points call this. The library asks `refstore.core.event_log` for loggers, and an application that embeds it
keeps its own set-up.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO, cast

from refstore.configuration.settings import LogSettings
from refstore.core import event_log
from refstore.core.redaction import redact_text
from refstore.core.visible_text import make_visible, own_stream

if TYPE_CHECKING:
    from structlog.typing import EventDict

_LIBRARY_LEVEL: Final = logging.WARNING
"""Of boto3, redis and the like: their debug records hold request headers."""


class LogSetup(NamedTuple):
    """How a process logs, for its helpers to log alike."""

    settings: LogSettings
    is_service: bool


_set_up: Final = [LogSetup(LogSettings(), is_service=False)]
"""The last one of this process."""


def current_setup() -> LogSetup:
    """Return how this process logs; the defaults, if nobody has said."""
    return _set_up[-1]


def configure_logs(settings: LogSettings, stream: TextIO, *, service: bool = False) -> None:
    """Send all logs of this process to `stream`. Called by entry points; calling it again replaces the set-up.

    `service`: this process runs until somebody ends it, or belongs to one that does; `format = "auto"` means JSON then.
    """
    _set_up[:] = [LogSetup(settings, service)]
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    handler = logging.StreamHandler(own_stream(stream))  # what is logged is made visible before it gets its colours
    if settings.format == "json" or service:
        handler.setFormatter(_StructuredFormatter(is_console=_is_console(settings, stream), has_colors=stream.isatty()))
    else:
        handler.setFormatter(_PlainFormatter())
    logging.basicConfig(handlers=[handler], level=max(level, _LIBRARY_LEVEL), force=True)
    for name in event_log.ROOTS:
        logging.getLogger(name).setLevel(level)


def _is_console(settings: LogSettings, stream: TextIO) -> bool:
    return settings.format == "console" or (settings.format == "auto" and stream.isatty())


class _PlainFormatter(logging.Formatter):
    """Writes what a person reads beside a command's answer."""

    def __init__(self) -> None:
        super().__init__("refstore: %(level)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.__dict__["level"] = record.levelname.lower()
        return make_visible(redact_text(super().format(record)))


class _StructuredFormatter(logging.Formatter):
    """Writes JSON or console lines by structlog, from the first record on: structlog imports rich, and a service
    answers before it has anything to log.
    """

    def __init__(self, *, is_console: bool, has_colors: bool) -> None:
        super().__init__()
        self._make = partial(_structlog_formatter, is_console=is_console, has_colors=has_colors)
        self._formatter: logging.Formatter | None = None

    def format(self, record: logging.LogRecord) -> str:
        if self._formatter is None:
            self._formatter = self._make()
        return self._formatter.format(record)


def _structlog_formatter(*, is_console: bool, has_colors: bool) -> logging.Formatter:
    import structlog

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[_add_fields, structlog.stdlib.add_log_level],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Tracebacks are plain text: the pretty ones, and structlog's JSON ones, print local variables, so secrets.
            structlog.processors.format_exc_info,
            _redact,
            *(
                (
                    _make_visible,
                    structlog.dev.ConsoleRenderer(colors=has_colors, exception_formatter=structlog.dev.plain_traceback),
                )
                if is_console
                else (structlog.processors.JSONRenderer(),)
            ),
        ],
    )


def _add_fields(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Take over an event's own fields. A library's record gets its logger's name, and the request it belongs to."""
    record: Any = event["_record"]
    if hasattr(record, "fields"):
        return {**event, "event": record.event, **cast(dict[str, object], record.fields)}
    return {**event, **event_log.context_fields(), "logger": record.name}


def _redact(_logger: object, _method: str, event: EventDict) -> EventDict:
    return {key: event_log.redact_value(value) for key, value in event.items()}


def _make_visible(_logger: object, _method: str, event: EventDict) -> EventDict:
    return {key: make_visible(value) if isinstance(value, str) else value for key, value in event.items()}
