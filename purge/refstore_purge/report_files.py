"""A run's report for people and for machines: a page, and tables in Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import msgspec

from refstore_gc.html_page import head, size_shown, time_shown
from refstore_purge.place import Place
from refstore_purge.plan import NotPurged
from refstore_purge.report import Published, Report, Row
from refstore_purge.untyped_arrow import pa, pq

LISTED_MAX: Final = 500
"""How many partitions, and how many objects that were not purged, the page has at most."""
STAYS: Final = (
    "What stays: the names of paths, commit messages, and the metadata of objects and commits. Purge ids that stand "
    "there by other means."
)
_COLUMNS: Final = (
    ("objects", "objects"),
    ("by_partition", "told by the partition"),
    ("by_index", "by the index"),
    ("by_statistics", "by statistics"),
    ("by_column", "by the column"),
    ("matched", "with rows of the ids"),
    ("rewritten", "rewritten"),
    ("erased", "erased"),
    ("summaries", "summaries written"),
    ("failed", "failed"),
    ("rows_before", "rows before"),
    ("rows_changed", "removed or set to null"),
    ("rows_after", "rows after"),
)


def page(repository: str, report: Report) -> str:
    """Return the report as one page of HTML, which fetches nothing."""
    parts = [
        head(f"{repository}: purge {report.run}"),
        (
            f"<h1>{escape(repository)}</h1><p>Purge <code>{escape(report.run)}</code> of {report.ids:,} ids: "
            f"{escape(report.state)}, from {time_shown(report.began_ms)} to {time_shown(report.ended_ms)}.</p>"
        ),
    ]
    if report.failure:
        parts.append(f"<p class=ask>Failed: {escape(report.failure)}</p>")
    if report.ending:
        parts.append(
            f"<p{'' if report.is_final else ' class=ask'}>{escape(report.ending[:1].upper() + report.ending[1:])}.</p>"
        )
    if report.places:
        parts.append("<h2>Places that still have rows of the ids</h2>" + _places(report))
    parts += [f"<p>Not looked at: {escape(each)}.</p>" for each in report.not_looked_at]
    if any(row.rewritten or row.erased or row.summaries for row in report.rows):
        parts.append(f"<p>{escape(STAYS)}</p>")
    parts += [
        f"<p class=ask>Data set {escape(each.dataset)} was not purged: {escape(each.untouched)}</p>"
        for each in report.datasets
        if each.untouched
    ]
    if report.units_left:
        parts.append(
            f"<p class=ask>{report.units_left:,} partitions are left; go on with <code>--after "
            f"{escape(report.watermark)}</code></p>"
        )
    names = list(dict.fromkeys(row.dataset for row in report.rows))
    sums = [_sum(name, [row for row in report.rows if row.dataset == name]) for name in names]
    parts.append("<h2>Data sets</h2>" + _table(sums, "dataset"))
    for name in names:
        rows = [row for row in report.rows if row.dataset == name]
        busy = [row for row in rows if row.matched or row.failed] or rows
        more = f"<p>{len(rows):,} partitions; the {len(busy):,} with rows of the ids or failures are shown.</p>"
        parts.append(f"<h2>Partitions of {escape(name)}</h2>{more}{_table(busy[:LISTED_MAX], 'partition')}")
    if report.published:
        body = "".join(
            f"<tr><td>{escape(each.branch)}<td><code>{escape(each.commit)}</code><td class=n>{each.paths:,}"
            for each in report.published
        )
        parts.append(f"<h2>Commits</h2><table><tr><th>branch<th>commit<th class=n>paths{body}</table>")
    if report.not_purged_count:
        shown = report.not_purged[:LISTED_MAX]
        body = "".join(
            f"<tr><td>{escape(each.branch)}<td>{escape(each.path)}<td>{escape(each.reason)}" for each in shown
        )
        parts.append(
            f"<h2>Not purged</h2><p>{report.not_purged_count:,} in all, {len(shown):,} shown.</p>"
            f"<table><tr><th>branch<th>path<th>why{body}</table>"
        )
    steps = "".join(f"<tr><td>{escape(name)}<td class=n>{each:,.1f} s" for name, each in report.seconds.items())
    parts.append(f"<h2>How long it took</h2><table>{steps}</table>")
    return "\n".join(parts) + "\n"


def write_parquet(report: Report, folder: Path) -> list[Path]:
    """Write the tables `partitions`, `commits`, `not_purged` and `places` (`.parquet`), each row with its run; return
    the files.

    Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables: list[tuple[str, Any, Sequence[msgspec.Struct]]] = [
        ("partitions", Row, report.rows),
        ("commits", Published, report.published),
        ("not_purged", NotPurged, report.not_purged),
        ("places", Place, report.places),
    ]
    files: list[Path] = []
    for name, type_, rows in tables:
        fields = [(field.name, _arrow_type(field.type)) for field in msgspec.structs.fields(type_)]
        schema = pa.schema([("run", pa.string()), *fields])
        made = pa.Table.from_pylist([{"run": report.run, **msgspec.to_builtins(row)} for row in rows], schema=schema)
        files.append(folder / f"{name}.parquet")
        pq.write_table(made, str(files[-1]))
    return files


def _arrow_type(type_: Any) -> Any:
    of = {"int": pa.int64(), "bool": pa.bool_(), "list": pa.list_(pa.string())}
    return of.get(getattr(type_, "__name__", ""), pa.string())


def _places(report: Report) -> str:
    titles = "<tr><th>place<th>data set<th class=n>objects<th class=n>bytes<th>goes<th>why<th>restored by<th>ended by"
    body = "".join(
        f"<tr><td>{escape(each.kind)}<td>{escape(each.dataset)}<td class=n>{each.objects:,}"
        f"<td class=n>{size_shown(each.bytes)}<td>{time_shown(each.goes_ms) if each.goes_ms else 'no date'}"
        f"<td>{escape(each.why)}<td><code>{escape(each.restored_by)}</code><td><code>{escape(each.ended_by)}</code>"
        for each in report.places
    )
    return f"<p>As of {time_shown(report.places_ms)}.</p><table>{titles}{body}</table>"


def _sum(name: str, rows: Sequence[Row]) -> Row:
    made = Row(dataset=name, partition="")
    for row in rows:
        for field in (*(name for name, _ in _COLUMNS), "bytes_before", "bytes_after"):
            setattr(made, field, getattr(made, field) + getattr(row, field))
    return made


def _table(rows: Sequence[Row], named_by: str) -> str:
    titles = "".join(f"<th class=n>{title}" for _, title in _COLUMNS)
    body = "".join(
        f"<tr><td>{escape(getattr(row, named_by) or '(no partition)')}"
        + "".join(f"<td class=n>{getattr(row, field):,}" for field, _ in _COLUMNS)
        + f"<td class=n>{size_shown(row.bytes_before)}<td class=n>{size_shown(row.bytes_after)}"
        for row in rows
    )
    return f"<table><tr><th>{named_by}{titles}<th class=n>bytes before<th class=n>bytes after{body}</table>"
