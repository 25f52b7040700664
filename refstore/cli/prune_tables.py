"""Print what runs of `refstore prune` found and did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import typer

from refstore.cli.common import print_answer
from refstore.cli.rows import format_when
from refstore.cli.tables import Row, print_rows
from refstore.core.redaction import redact_text

if TYPE_CHECKING:
    from refstore_gc.run_summary import ObjectCount
    from refstore_prune.key_history import KeyHistory
    from refstore_prune.prune_report import PruneReport

LARGEST_SHOWN: Final = 10
PREFIXES_SHOWN: Final = 20
_GONE: Final = ("deleted", "already gone")
"""What a run says of a key that was not there any more."""


def emit_report(output: str, report: PruneReport) -> None:
    """Print a report: for people what they look at first, for programs all of it."""
    if output != "table":
        print_answer(output, report)
        return
    if not report.verdicts:
        failed = {"run": report.run_id, "state": report.state, "error": redact_text(report.error)}
        print_answer(output, {"store": redact_text(report.store), **failed})
        typer.echo("It ended before it had counted anything. The mark of the run before stands.", err=True)
        return
    print_answer(output, _summary(report))
    tables: tuple[Iterable[Row], ...] = (
        _count_rows(report),
        ({"unnamed, age": each.words, **_columns(each.unnamed)} for each in report.by_age if each.unnamed.objects),
        (
            {
                "prefix": each.prefix or "(all others)",
                "listed": each.listed.objects,
                "listed_bytes": each.listed.bytes,
                "unnamed": each.unnamed.objects,
                "unnamed_bytes": each.unnamed.bytes,
            }
            for each in (*report.by_prefix[: PREFIXES_SHOWN - 1], *report.by_prefix[PREFIXES_SHOWN - 1 :][-1:])
        ),
        (
            {
                "size_bytes": each.size_bytes,
                "written": format_when(each.written_ms),
                "marked": format_when(each.marked_ms) if each.marked_ms < report.began_ms else None,
                "largest unnamed": each.key,
            }
            for each in report.largest[:LARGEST_SHOWN]
        ),
        ({"not looked at": redact_text(each)} for each in report.not_looked_at),
        ({"not deleted": redact_text(each)} for each in report.failures),
    )
    for rows in tables:
        listed = list(rows)
        if listed:
            typer.echo()
            print_rows(listed)
    typer.echo(f"\n{_advice(report)}", err=True)


def _summary(report: PruneReport) -> dict[str, object]:
    row: dict[str, object] = {"store": redact_text(report.store), "run": report.run_id, "state": report.state}
    row |= report.describe_names()
    return row | ({"error": redact_text(report.error)} if report.error else {})


def _count_rows(report: PruneReport) -> Iterator[dict[str, object]]:
    from refstore_prune.prune_report import VERDICT_WORDS

    would = report.state == "simulated"
    yield {"": "listed", **_columns(report.listed)}
    for verdict, words in VERDICT_WORDS.items():
        if verdict in report.verdicts and (report.verdicts[verdict].objects or verdict in ("named", "unnamed")):
            yield {"": f"  {words}", **_columns(report.verdicts[verdict])}
    yield {"": "    waits for its grace period", **_columns(report.waiting)}
    yield {"": "      would be marked now" if would else "      marked now", **_columns(report.newly_marked)}
    yield {"": "    would be deleted now" if would else "    due", **_columns(report.due)}
    for outcome, count in report.outcomes.items():
        yield {"": f"      {outcome}", **_columns(count)}
    if report.named_again.objects:
        yield {"": "marked before, named now", **_columns(report.named_again)}


def _columns(count: ObjectCount) -> dict[str, object]:
    return {"objects": count.objects, "bytes": count.bytes}


def _advice(report: PruneReport) -> str:
    due = format_when(report.next_due_ms or None)
    if report.failed_checks:
        failed = "\n".join(f"  {each}" for each in report.failed_checks)
        stops = "Without --dry-run a run stops here, unless --consent has the word in brackets:"
        return f"Nothing was changed. {stops}\n{failed}"
    if report.state == "simulated":
        return (
            "Nothing was changed. Without --dry-run a run marks what is unnamed, and deletes what is due of earlier "
            "marks."
        )
    if due:
        return (
            f"What waits is due from {due} on; a run after that, with the names of that day, deletes what is still "
            "unnamed and unchanged."
        )
    return "Nothing waits."


def run_row(report: PruneReport) -> dict[str, object]:
    """Return a run as the list of runs shows it. One that is on, or ended early, has counted nothing."""
    deleted = report.count_deleted()
    row: dict[str, object] = {
        "run": report.run_id,
        "state": report.state,
        "began": format_when(report.began_ms),
        "ended": format_when(report.ended_ms or None),
        "listed": report.listed.objects,
        "unnamed": None,
        "unnamed_bytes": None,
        "deleted": deleted.objects,
        "deleted_bytes": deleted.bytes,
        "waiting": report.waiting.objects,
        "due": None if report.is_unmarked else format_when(report.next_due_ms or None),
        "unmarked": report.is_unmarked or None,
        "error": report.error or None,
    }
    unnamed = report.verdicts.get("unnamed")
    if unnamed is not None:
        return row | {"unnamed": unnamed.objects, "unnamed_bytes": unnamed.bytes}
    return row | dict.fromkeys(("listed", "deleted", "deleted_bytes", "waiting"))


def emit_history(history: KeyHistory) -> None:
    """Print for people what runs found and did with a key."""
    last = history.events[-1].found if history.events else ""
    again = ", again: it was written or restored since" if history.is_stored and last in _GONE else ""
    typer.echo(f"{history.key} is {'' if history.is_stored else 'not '}in the store{again}.")
    rows: Iterable[Row] = (
        {
            "run": each.run_id,
            "at": format_when(each.at_ms),
            "found": each.found,
            "marked": format_when(each.marked_ms),
            "size_bytes": each.size_bytes,
            "detail": each.why or None,
        }
        for each in history.events
    )
    print_rows(rows, empty="No run that is kept found it unnamed: it was named, too young, protected, or not there.")
    if history.due_ms:
        typer.echo(f"A run may delete it from {format_when(history.due_ms)} on, if it is still unnamed and unchanged.")
    if history.is_unmarked:
        typer.echo("Its mark was taken back: the next run that finds it unnamed marks it anew.")
    for sentence in history.not_looked_at:
        typer.echo(f"Not looked at: {sentence}")
