"""What the pages of reports have in common: a style, and times and sizes as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import Final

_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2430;background:#fff}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}td,th{padding:.2rem 1rem .2rem 0;text-align:left;
vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}h2{margin:2rem 0 .3rem;font-size:1.15rem}
.ask{border-left:4px solid #b3261e;padding:.4rem .8rem;background:#fdecea}
svg text{font:12px system-ui,sans-serif;fill:#1c2430}
@media (prefers-color-scheme:dark){body{background:#15191f;color:#e3e8ef}svg text{fill:#e3e8ef}.ask{background:#3a1a18}}
"""


def head(title: str) -> str:
    """Return the beginning of a page, which fetches nothing."""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )


def time_shown(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def size_shown(size: int) -> str:
    shown = float(size)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if shown < 1000 or unit == "TB":
            return f"{shown:,.0f} {unit}" if unit == "B" else f"{shown:,.1f} {unit}"
        shown /= 1000
    raise AssertionError
