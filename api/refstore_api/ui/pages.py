"""Make pages from templates. Autoescape is on for every template; no page marks a stored text as safe. What would
turn a page's text round is made visible, but in the values that a form sends back (`|exact`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from refstore import __version__
from refstore.core.clock import to_ms
from refstore.core.redaction import redact_text
from refstore.core.safety import is_for_trying
from refstore.core.units import format_age, format_countdown, format_duration, format_size
from refstore.core.visible_text import make_visible
from refstore.errors import RefstoreError
from refstore.lake import Lake
from refstore.records.figure_records import DayAmount
from refstore_api.ui.page_urls import base_path_of
from refstore_http.service import Service

POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
CHART_HEIGHT: Final = 100
CHART_STEP: Final = 20


class ChartBar(NamedTuple):
    """A bar of a chart."""

    x: int
    height: int
    label: str


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page. `values`: what the template shows."""
    service: Service = request.app.state.service
    shared = {
        "base": base_path_of(request),
        "session": getattr(request.state, "session", None),
        "now_ms": service.lake.clock.now_ms(),
        "version": __version__,
        "path": request.url.path,
        "refresh_seconds": 0,
        "repository": None,
        "has_prune_states": bool(service.settings.prune_states),
    }
    return HTMLResponse(_environment().get_template(template).render({**shared, **values}), status, HEADERS)


def settlement_text(lake: Lake) -> str:
    """Return until when nothing is deleted, and why, after other servers of the KV answer; '': deletion goes on, or the
    stores do not say.
    """
    with suppress(RefstoreError):
        wait = lake.settlement_wait()
        return wait.describe(lake.clock.now_ms()) if wait is not None else ""
    return ""


def durations_text(lake: Lake) -> str:
    """Return that the lake is for trying; '' for any other lake, or where the KV does not say."""
    with suppress(RefstoreError):
        waits = lake.durations.waits
        if is_for_trying(waits):
            return f"this lake is for trying: an operation may take {waits.operation_deadline_seconds:g} s"
    return ""


def render_error(request: Request, status: int, message: str) -> Response:
    """Return a page that says what went wrong and what to do next."""
    what, _, advice = message.partition("; ")
    return render(request, "error.html", status=status, what=what, advice=advice, code=status)


def format_time(at_ms: int) -> str:
    return f"{_utc(at_ms).replace(tzinfo=None).isoformat(' ', 'minutes')} UTC"


def ms_of(at: datetime | None) -> int:
    """Return what an application sees as a wall time; 0: none. Templates reckon with wall times."""
    return 0 if at is None else to_ms(at)


def make_bars(days: Sequence[DayAmount]) -> list[ChartBar]:
    """Return the bars of what was reclaimed on each day, by its bytes."""
    most = max((day.bytes for day in days), default=0) or 1
    return [
        ChartBar(
            number * CHART_STEP,
            max(2 if day.objects else 0, round(CHART_HEIGHT * day.bytes / most)),
            f"{day.day}: {day.objects:,} objects, {format_size(day.bytes)}",
        )
        for number, day in enumerate(days)
    ]


def query(values: Mapping[str, Any]) -> str:
    """Return a query string without what is empty."""
    return urlencode({name: value for name, value in values.items() if value not in ("", None, 0, False)})


def _utc(at_ms: int) -> datetime:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # a damaged record may have any number
        return datetime.fromtimestamp(0, UTC)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("refstore_api.ui"),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters: dict[str, Any] = environment.filters
    filters |= {
        "size": format_size,
        "age": format_age,
        "countdown": format_countdown,
        "duration": format_duration,
        "ms": ms_of,
        "time": format_time,
        "iso": _iso,
        "count": _count,
        "segment": _segment,
        "exact": _ExactText,
        "redacted": redact_text,
        "query": query,
        "bars": make_bars,
    }
    names: dict[str, Any] = environment.globals
    names |= {"CHART_HEIGHT": CHART_HEIGHT, "CHART_STEP": CHART_STEP}
    return environment


class _ExactText(str):
    """The value of a form's field, which comes back as it was sent."""

    __slots__ = ()


def _finalize(value: object) -> object:
    """Return what a template shows, with callers' text made visible."""
    if not isinstance(value, str) or isinstance(value, _ExactText):
        return value
    shown = make_visible(value)
    return value if shown == value else type(value)(shown)  # markup stays markup


def _iso(at_ms: int) -> str:
    return _utc(at_ms).isoformat()


def _count(number: int) -> str:
    return f"{number:,}"


def _segment(text: str) -> str:
    """Return a name as one segment of a path."""
    return quote(text, safe="")
