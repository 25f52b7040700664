"""What a run prints: a table for people, JSON for machines. Both from the same rows; nothing is rounded before it is
judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measure import Row, Series

WIDTH_MIN = 150
"""A table that is written to a file must not be cut to the width of a terminal that is not there."""

Rows = Sequence[tuple[str, Row]]
"""(benchmark, row)."""


def table(rows: Rows, machine: Mapping[str, str], *, judge: bool) -> None:
    console = Console()
    if console.width < WIDTH_MIN:
        console = Console(width=WIDTH_MIN)
    for name, value in machine.items():
        console.print(f"{name:10} {value}", highlight=False)
    shown = Table(show_lines=True)
    for name in ("what", "ours", "floor or peer", "ratio", "bar", ""):
        shown.add_column(name, justify="right" if name in ("ours", "ratio") else "left")
    for benchmark, row in rows:
        other = f"{number(row.other)}  {row.other_name}" if row.other else ""
        shown.add_row(
            f"{benchmark}: {row.what}" + (f" ({row.note})" if row.note else ""),
            number(row.ours),
            other,
            spread(row.ratios),
            f"{row.bar.kind} {row.bar.limit:g}" if row.bar else "",
            verdict(row, judge=judge),
        )
    console.print(shown)


def document(rows: Rows, machine: Mapping[str, str], *, judge: bool) -> str:
    return json.dumps(
        {"machine": dict(machine), "judged": judge, "rows": [_row(name, row) for name, row in rows]}, indent=2
    )


def missed(rows: Rows) -> list[str]:
    return [f"{name}: {row.what} ({row.other_name or row.ours.unit})" for name, row in rows if row.passed is False]


def verdict(row: Row, *, judge: bool) -> str:
    if row.passed is None:
        return ""
    if not judge:
        return "not judged"
    return "pass" if row.passed else "FAIL"


def number(series: Series) -> str:
    """The median, and from where to where the turns went."""
    middle = f"{_short(series.middle)} {series.unit}"
    return (
        middle if len(series.values) == 1 else f"{middle} ({_short(min(series.values))}-{_short(max(series.values))})"
    )


def spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return ""
    middle = Series(tuple(ratios), "").middle
    return f"{middle:.3g}" if len(ratios) == 1 else f"{middle:.3g} ({min(ratios):.3g}-{max(ratios):.3g})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _row(benchmark: str, row: Row) -> dict[str, Any]:
    return {
        "benchmark": benchmark,
        "what": row.what,
        "unit": row.ours.unit,
        "ours": row.ours.values,
        "other": row.other.values if row.other else None,
        "other_name": row.other_name,
        "ratios": row.ratios,
        "ratio": row.ratio,
        "bar": {"kind": row.bar.kind, "limit": row.bar.limit} if row.bar else None,
        "passed": row.passed,
        "note": row.note,
    }
