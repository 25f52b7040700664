"""The commands `refstore durations`: show and change the durations that all processes of a lake agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from refstore.cli.common import emit, invocation_of, loaded_of, open_lake
from refstore.cli.parameters import DryRun
from refstore.cli.rows import format_when
from refstore.core.durations import parse_duration
from refstore.core.safety import SHARED
from refstore.core.units import DAY_SECONDS
from refstore.errors import InvalidSettings

if TYPE_CHECKING:
    from refstore.records.lake_records import DurationsRecord

app = typer.Typer(no_args_is_help=True)


@app.callback()
def durations() -> None:
    """Show and change the durations that safety rests on, which all processes of a lake have agreed on.

    A scrubber, for instance, may only take what is older than the longest operation of any process. So these durations
    stand in the KV. A process takes them from there, and refuses to start with settings that differ.
    """


@app.command("show")
def show(ctx: typer.Context) -> None:
    """Show the agreed durations, those that still count after a change, and the settings of this process.

    \b
    Example: refstore durations show --json
    """
    from refstore.agreed_durations import read_record

    with open_lake(ctx, only_read=True, check_durations=False) as lake:
        record, now_ms = read_record(lake.kv), lake.clock.now_ms()
    rows = [_row(ctx, name, record, now_ms) for name in SHARED]
    emit(ctx, rows)
    if record is None:
        typer.echo(
            "This lake has no agreed durations yet; the first process that changes something in it sets its own.",
            err=True,
        )
    elif differing := [row for row in rows if row["own_seconds"] not in (None, row["agreed_seconds"])]:
        is_refused = any(row["own_seconds"] not in row["former_seconds"] for row in differing)
        typer.echo(
            "Settings of this process differ from what was agreed; remove them, or set them to it: a process with them "
            + ("does not start." if is_refused else f"does not start any more after {differing[0]['until']}."),
            err=True,
        )


@app.command("set")
def set_(
    ctx: typer.Context,
    changes: Annotated[
        list[str],
        typer.Argument(metavar="NAME=DURATION...", help="A setting, and seconds or a duration such as 90s, 30m, 2h."),
    ],
    *,
    dry_run: DryRun = False,
) -> None:
    """Change agreed durations for all processes of the lake. Names that are not given keep their durations.

    Processes read the change within a minute; none has to be stopped for it. Until every operation that began under the
    former durations has ended, both count: operations end within the shorter ones, and the reaper and the offline job
    wait for the longer ones. The command says until when. By then set the new durations wherever a process has them as
    settings (`refstore durations show` names where); after that, a process that starts with the former ones is refused.

    After a shorter io_timeout_seconds, start all processes again by then: they opened their connections with the longer
    one, and refuse to work with it.

    \b
    Example: refstore durations set operation_deadline_seconds=2h scrub_after_seconds=3h
             refstore durations set issue_seconds=900 --dry-run
    """
    from refstore.agreed_durations import change_durations

    new_seconds = dict(_parse(text) for text in changes)
    with open_lake(ctx, only_read=dry_run, check_durations=False) as lake:
        done = change_durations(lake.kv, lake.clock, lake.ids, lake.audit, new_seconds, dry_run=dry_run)
    rows = [
        {"setting": f"safety.{name}", "before_seconds": _number(before), "after_seconds": _number(after)}
        for name, before, after in zip(SHARED, done.before, done.after, strict=True)
        if before != after
    ]
    until = format_when(done.until_ms or None)
    if invocation_of(ctx).json:
        emit(ctx, {"changed": rows, "until": until, "dry_run": dry_run})
    else:
        emit(ctx, rows)
    if not rows:
        typer.echo("Nothing to change: these are the agreed durations.", err=True)
        return
    typer.echo(
        f"{'This was a dry run: nothing was changed. ' if dry_run else ''}Until {until} the former durations count, "
        "too. By then, set the new ones wherever a process has them as settings.",
        err=True,
    )
    if done.after.io_timeout_seconds < done.before.io_timeout_seconds:
        typer.echo("By then, also start every process again, because io_timeout_seconds is shorter.", err=True)


def _parse(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    name = name.strip().removeprefix("safety.")
    if not equals or not name:
        raise InvalidSettings(f"{text!r} is no change; write NAME=DURATION, such as operation_deadline_seconds=2h")
    try:
        return name, float(value)
    except ValueError:
        return name, parse_duration(name, value, most=3660 * DAY_SECONDS)


def _number(seconds: float) -> float:
    """Return whole seconds without a fraction."""
    return int(seconds) if seconds == int(seconds) else seconds


def _row(ctx: typer.Context, name: str, record: DurationsRecord | None, now_ms: int) -> dict[str, Any]:
    from refstore.agreed_durations import former_in_force

    loaded = loaded_of(ctx)
    former = former_in_force(record, now_ms) if record is not None else ()
    is_own = loaded.origins[f"safety.{name}"].kind != "default"
    agreed = _number(getattr(record.current, name)) if record is not None else None
    return {
        "setting": f"safety.{name}",
        "agreed_seconds": agreed,
        "former_seconds": sorted({_number(getattr(each.durations, name)) for each in former} - {agreed}),
        "until": format_when(former[-1].until_ms) if former else None,
        "own_seconds": _number(getattr(loaded.settings.safety, name)) if is_own else None,
        "origin": str(loaded.origins[f"safety.{name}"]) if is_own else None,
    }
