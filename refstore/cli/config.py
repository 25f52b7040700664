"""The command `refstore config`: show the settings in force and their origins, without secrets; and show or change the
durations that all processes of a lake have agreed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refstore.cli.common import emit, invocation_of, loaded_of, open_lake
from refstore.cli.parameters import DryRun
from refstore.cli.rows import format_when
from refstore.core.durations import parse_duration
from refstore.core.safety import LONGEST_SECONDS, SHARED
from refstore.errors import InvalidSettings

if TYPE_CHECKING:
    from refstore.records.lake_records import DurationsRecord

app = typer.Typer()


@app.command("config")
def config(
    ctx: typer.Context,
    *,
    agreed: Annotated[
        bool, typer.Option("--agreed", help="Show the durations that all processes of the lake have agreed on.")
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=DURATION",
            help="Change an agreed duration, for all processes of the lake; may be given several times.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Show which settings file is in force, every setting, and where it came from.

    A value comes from the command line, then from REFSTORE_* variables, then from one TOML file (--config,
    REFSTORE_CONFIG, or refstore/refstore.toml in your configuration directory, such as ~/.config). The first row names
    the file. Passwords and keys are hidden.

    Some durations are no settings, because safety rests on them: a scrubber, for instance, may only take what is older
    than the longest operation of any process. They stand in the KV, and every process takes them from there. --agreed
    shows them, and those that still count after a change.

    --set changes them. Processes read the change within a minute; none has to be stopped for it. Until every operation
    that began under the former durations has ended, both count: operations end within the shorter ones, and the reaper
    and the offline job wait for the longer ones. The command says until when.

    After a shorter io_timeout, start all processes again by then: they opened their connections with the longer
    one, and refuse to work with it.

    \b
    Example: refstore config --kv redis://localhost/0 --objects s3://bucket/lake
             refstore config --agreed
             refstore config --set operation_deadline=2h --set issue=15m --dry-run
    """
    if changes:
        _change_agreed(ctx, changes, dry_run=dry_run)
    elif dry_run:
        ctx.fail("--dry-run shows what --set would change; give it, too")
    elif agreed:
        _show_agreed(ctx)
    else:
        emit(ctx, loaded_of(ctx).rows())


def _show_agreed(ctx: typer.Context) -> None:
    from refstore.agreed_durations import read_record

    with open_lake(ctx, read_only=True) as lake:
        record, now_ms = read_record(lake.kv), lake.clock.now_ms()
    emit(ctx, [_row(name, record, now_ms) for name in SHARED])
    if record is None:
        typer.echo(
            "This lake has no agreed durations yet; the first process that changes something in it sets the defaults.",
            err=True,
        )


def _change_agreed(ctx: typer.Context, changes: Sequence[str], *, dry_run: bool) -> None:
    from refstore.agreed_durations import change_durations

    new_seconds = dict(_parse(text) for text in changes)
    with open_lake(ctx, read_only=dry_run) as lake:
        done = change_durations(lake.kv, lake.clock, lake.ids, lake.audit, new_seconds, dry_run=dry_run)
    rows = [
        {"duration": name.removesuffix("_seconds"), "before_seconds": _number(before), "after_seconds": _number(after)}
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
        "too.",
        err=True,
    )
    if done.after.io_timeout_seconds < done.before.io_timeout_seconds:
        typer.echo("By then, also start every process again, because io_timeout is shorter.", err=True)


def _parse(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise InvalidSettings(f"{text!r} is no change; write NAME=DURATION, such as operation_deadline=2h")
    return f"{name}_seconds", parse_duration(name, value, least=0, most=LONGEST_SECONDS)


def _number(seconds: float) -> float:
    """Return whole seconds without a fraction."""
    return int(seconds) if seconds == int(seconds) else seconds


def _row(name: str, record: DurationsRecord | None, now_ms: int) -> dict[str, Any]:
    from refstore.agreed_durations import former_in_force

    former = former_in_force(record, now_ms) if record is not None else ()
    agreed = _number(getattr(record.current, name)) if record is not None else None
    return {
        "duration": name.removesuffix("_seconds"),
        "agreed_seconds": agreed,
        "former_seconds": sorted({_number(getattr(each.durations, name)) for each in former} - {agreed}),
        "until": format_when(former[-1].until_ms) if former else None,
    }
