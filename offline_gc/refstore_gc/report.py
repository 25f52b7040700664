"""A run's report as a page: its counts, and the figures drawn. One file, nothing is fetched; needs no Spark.

Every number is from `summary.json`, which holds what the tasks and the store answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

import msgspec

from refstore.core.units import duration_shown
from refstore.errors import Corrupt, NotFound
from refstore.gc_marks import Marks, RunState
from refstore.objects.base import ObjectStore
from refstore_gc.html_page import head, size_shown, time_shown
from refstore_gc.run_layout import ROOT
from refstore_gc.run_summary import (
    BUCKET,
    DELETED,
    DRIFT_NOTE,
    Count,
    Counts,
    Online,
    Summary,
    read_summary,
)

PAGE: Final = "report.html"
RUNS_SHOWN: Final = 30
BARS_MAX: Final = 60
"""Of days; more are put together."""

_COLOURS: Final = ("#3566b8", "#c5762b", "#4c9a5b", "#9a4c93", "#8a8f98")


def write_page(store: ObjectStore, summary: Summary, others: Sequence[Summary]) -> None:
    store.put(f"{ROOT}{summary.mark_id}/{PAGE}", page(summary, others).encode())


def summaries(store: ObjectStore, marks: Marks, *, readable: bool = False) -> Iterator[Summary]:
    """Of the runs that left one, oldest first. Their state is what the KV says now.

    Raises Corrupt: one is not as it was written. With `readable` those are left out.
    """
    for run in marks.runs():
        if run.state in (RunState.MARKING, RunState.ABANDONED):
            continue
        try:
            summary = read_summary(store, run.mark_id)
        except NotFound:
            continue
        except Corrupt:
            if readable:
                continue
            raise
        yield msgspec.structs.replace(summary, state=run.shown)


def page(summary: Summary, others: Sequence[Summary]) -> str:
    """`others`: the runs before, for what each reclaimed."""
    parts = [
        (head(f"{summary.repository}: {summary.mark_id}")),
        (
            f"<h1>{escape(summary.repository)}</h1><p>Mark <code>{escape(summary.mark_id)}</code>, "
            f"{escape(summary.state)}, begun"
            f" {time_shown(summary.began_ms)}, to be swept from {time_shown(summary.deletes_at_ms)} on.</p>"
        ),
    ]
    if summary.question and summary.state == RunState.NEEDS_CONFIRMATION:
        parts.append(
            f"<p class=ask>An operator has to confirm this mark before it is swept: {escape(summary.question)}.</p>"
        )
    parts += [f"<p class=ask>Not applied: {escape(each)}.</p>" for each in summary.online.left]
    if summary.goes_on_from:
        parts.append(
            f"<p>It went on from mark <code>{escape(summary.goes_on_from)}</code>: only what is newer was listed. The "
            "last complete listing"
            f" had {summary.there_before.objects:,} objects, {size_shown(summary.there_before.bytes)}.</p>"
        )
    rows: dict[str, Count] = {
        "listed": summary.listed,
        "kept: something names it": summary.kept,
        "in an earlier mark already": summary.pending,
        "marked": summary.marked,
        f"left alone: younger than {duration_shown(summary.min_age_seconds)}": summary.young,
        "left alone: not refstore's": summary.foreign,
    }
    parts.append("<h2>What was there</h2>" + _table(rows))
    if summary.online != Online():
        taken = {
            "staged too long ago": summary.online.staged,
            f"from the latest view, by {summary.online.commits} commits": summary.online.latest_view,
        }
        parts.append("<h2>Taken from branches before</h2>" + _table(taken))
    parts.append("<h2>Why it goes</h2>" + _table(summary.by_reason or {"nothing goes": Count()}))
    if summary.drift:
        parts.append(f"<p>{escape(DRIFT_NOTE)}</p>")
    if summary.by_prefix:
        parts.append("<h2>Where it lies</h2>" + _table(summary.by_prefix))
    if summary.swept is not None:
        parts.append(f"<h2>What became of it ({time_shown(summary.swept.at_ms)})</h2>" + _table(summary.swept.outcomes))
        below = {
            f"{name}: {outcome}": of[outcome]
            for name, of in sorted(summary.swept.by_prefix.items())
            for outcome in sorted(of)
        }
        parts += ["<h2>The same by where it lay</h2>" + _table(below)] if below else []
        parts += [f"<p class=ask>Failed: {escape(each)}</p>" for each in summary.swept.failures]
        if summary.swept.commits_dropped_out:
            parts.append(
                f"<p>{summary.swept.commits_dropped_out} commits were excluded with what they name;"
                f" {summary.swept.dropped_out_by_rules} of them because the rules keep them by now.</p>"
            )
        if summary.swept.rules_changed:
            parts.append("<p>The rules changed after the mark. What the new rules keep was excluded.</p>")
        if summary.swept.purged.objects:
            parts.append(
                f"<p>{summary.swept.purged.objects:,} purged objects that nothing names went with"
                f" {summary.swept.purged.contents:,} contents and backups.</p>"
            )
    if summary.cleaned is not None:
        parts.append("<h2>What purges left behind, and was deleted before</h2>" + _table(summary.cleaned.lines()))
    parts.append("<h2>What goes, by the day it was made</h2>" + _by_day(summary.by_day))
    parts.append(
        "<h2>What each branch's head holds</h2>"
        + _bars({name: held.bytes for name, held in summary.held_by_branch.items()})
    )
    reclaimed = {time_shown(each.began_ms)[:10]: _reclaimed(each) for each in [*others, summary][-RUNS_SHOWN:]}
    parts.append("<h2>Reclaimed by each run</h2>" + _bars(reclaimed))
    parts.append(
        "<h2>How long it took</h2><table>"
        + "".join(f"<tr><td>{escape(name)}<td class=n>{seconds:,.1f} s" for name, seconds in summary.seconds.items())
        + "</table>"
    )
    return "\n".join(parts) + "\n"


def _reclaimed(summary: Summary) -> int:
    if summary.swept is None:
        return 0
    outcomes = summary.swept.outcomes
    return outcomes.get(DELETED, Count()).bytes + outcomes.get(BUCKET, Count()).bytes


def _table(rows: Mapping[str, Count]) -> str:
    body = "".join(
        f"<tr><td>{escape(name)}<td class=n>{count.objects:,}<td class=n>{size_shown(count.bytes)}"
        for name, count in rows.items()
    )
    return f"<table><tr><th><th class=n>objects<th class=n>bytes{body}</table>"


def _bars(values: Mapping[str, int]) -> str:
    """Horizontal bars of bytes."""
    if not values:
        return "<p>None.</p>"
    most = max(1, *values.values())
    shown = (
        sorted(values.items(), key=lambda item: -item[1])[:BARS_MAX] if len(values) > BARS_MAX else list(values.items())
    )
    rows = [
        f"<text x=0 y={at * 22 + 15}>{escape(name[:28])}</text>"
        f"<rect x=220 y={at * 22 + 4} width={max(1, round(400 * value / most))} height=14 fill='{_COLOURS[0]}'/>"
        f"<text x={228 + round(400 * value / most)} y={at * 22 + 15}>{size_shown(value)}</text>"
        for at, (name, value) in enumerate(shown)
    ]
    return f"<svg viewBox='0 0 760 {len(shown) * 22 + 6}' width=760 role=img>{''.join(rows)}</svg>"


def _by_day(days: Mapping[str, Counts]) -> str:
    """Upright bars of bytes, a colour for each reason; the days in order, put together where there are very many."""
    if not days:
        return "<p>Nothing.</p>"
    names = sorted(days)
    step = -(-len(names) // BARS_MAX)
    groups = [names[at : at + step] for at in range(0, len(names), step)]
    reasons = sorted({reason for counts in days.values() for reason in counts})
    heights = [[sum(days[day].get(reason, Count()).bytes for day in group) for reason in reasons] for group in groups]
    most = max(1, *(sum(each) for each in heights))
    width = min(60, 700 // len(groups))
    drawn: list[str] = []
    for at, (group, values) in enumerate(zip(groups, heights, strict=True)):
        base = 180.0
        for number, value in enumerate(values):
            height = 170 * value / most
            base -= height
            title = f"{group[0]}: {reasons[number]}, {size_shown(value)}"
            drawn.append(
                f"<rect x={at * width} y={base:.1f} width={max(1, width - 2)} height={height:.1f}"
                f" fill='{_COLOURS[number % len(_COLOURS)]}'><title>{escape(title)}</title></rect>"
            )
    key = "".join(
        f"<rect x={number * 190} y=206 width=10 height=10 fill='{_COLOURS[number % len(_COLOURS)]}'/>"
        f"<text x={number * 190 + 15} y=215>{escape(reason)}</text>"
        for number, reason in enumerate(reasons)
    )
    end = max(120, len(groups) * width)
    ends = (
        f"<text x=0 y=197>{escape(groups[0][0])}</text><text x={end} y=197 "
        f"text-anchor=end>{escape(groups[-1][-1])}</text>"
    )
    return f"<svg viewBox='0 0 960 224' width=960 role=img>{''.join(drawn)}{ends}{key}</svg>"
