"""The commands `refstore audit`: show and verify the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Final

import msgspec
import typer

from refstore.audit.audit_entries import Act, AuditEntry, format_timestamp
from refstore.audit.audit_reader import NumberedAuditEntry, entries_since
from refstore.audit.audit_verification import (
    AuditFinding,
    AuditVerification,
    UnknownEntries,
    accept_entries,
    find_unknown_entries,
)
from refstore.cli.common import emit, invocation_of, open_lake, progress
from refstore.cli.confirmation import confirm
from refstore.cli.parameters import DryRun, Limit, Repositories, Yes
from refstore.cli.rows import parse_date
from refstore.core.clock import to_ms

app = typer.Typer(no_args_is_help=True)

DAMAGED: Final = 6
"""The exit code if an entry is missing or was changed: an operator must look."""


@app.callback()
def audit() -> None:
    """Show who changed what, when, from where; and verify that log.

    It records changes of access keys and of retention rules (pins and legal holds included), confirmations, marks,
    the breaker's decisions, and deletions of branches, tags and repositories. docs/operating.md says what it protects
    against.
    """


@app.command("verify")
def verify(ctx: typer.Context) -> None:
    """Verify every entry, and list what is missing, changed, moved or forged, and where a tail was cut.

    The exit code is 0 if the log is whole, and 6 if it is not. An act with an unknown outcome is listed, too. It is no
    damage: its process died, or is still running.

    \b
    Example: refstore audit verify
             refstore audit verify --json
    """
    with open_lake(ctx, read_only=True) as lake:
        verification = AuditVerification(lake.kv, lake.own_store)
        damaged = 0

        def counted_findings() -> Iterator[AuditFinding]:
            nonlocal damaged
            with progress("verifying the audit log") as bar:
                for finding in verification.findings():
                    damaged += finding.is_damage
                    bar.advance()
                    yield finding

        emit(ctx, (_finding_row(finding) for finding in counted_findings()), is_check=True)
        if not invocation_of(ctx).json:
            entries = _count_text(verification.entries, "1 entry", "entries")
            chains = _count_text(verification.chains, "1 chain", "chains")
            faults = _count_text(damaged, "1 fault was found", "faults were found")
            state = faults if damaged else "none is missing, and none was changed"
            typer.echo(f"{entries} in {chains}: {state}.", err=True)
    if damaged:
        raise typer.Exit(DAMAGED)


def _count_text(count: int, one: str, several: str) -> str:
    return one if count == 1 else f"{count} {several}"


@app.command("accept")
def accept(ctx: typer.Context, *, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Accept the entries that the KV does not know, because an older copy of it was restored, or it was rebuilt.

    It lists them and asks. Then it writes to the log that you accepted them, and `audit verify` verifies them as all
    others: it ends with 0 if nothing else is wrong, and lists the acceptance from then on. Only entries that follow
    what the KV knows, each with the hash of the one before, are accepted. Look whether you know them: whoever can write
    to the object store could have added them.

    \b
    Example: refstore audit accept --dry-run
             refstore audit accept --yes
    """
    with open_lake(ctx, read_only=dry_run) as lake:
        with progress("reading the audit log") as bar:
            found: list[UnknownEntries] = []
            for each in find_unknown_entries(lake.kv, lake.own_store):
                found.append(each)
                bar.advance()
        acts = [(each.chain, number, act) for each in found for number, act in enumerate(each.acts, each.first)]
        emit(ctx, ({"chain": chain, "number": number, **_act_row(act)} for chain, number, act in acts), is_check=True)
        if acts and not dry_run:
            confirm(ctx, f"{len(acts)} entries will be accepted as written by refstore", yes=yes)
            accept_entries(lake.kv, lake.audit, found)
    if not invocation_of(ctx).json:
        would = "would be accepted" if dry_run else "were accepted"
        typer.echo(f"{_count_text(len(acts), '1 entry', 'entries')} {would}.", err=True)


@app.command("log")
def log(
    ctx: typer.Context,
    *,
    since: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only entries written since then: 2026-11-21, or with a time.")
    ] = None,
    action: Annotated[
        str | None, typer.Option(metavar="ACTION", help="Only this action; key.* means all that begin with key.")
    ] = None,
    repositories: Repositories = None,
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Only by this access key, user or reaper.")] = None,
    limit: Limit = 50,
) -> None:
    """List the entries of the audit log, newest first: who did what, when, from where. --json also shows before and
    after.

    A change has two entries: `begun` is written before it, and the other one says how it ended. This command does not
    verify the log: run `refstore audit verify`. If an entry cannot be read, it says so and the exit code is 6.

    \b
    Example: refstore audit log --since 2026-11-21 --action "key.*"
             refstore audit log --repository sales --limit 0 --json
    """
    since_ms = to_ms(from_date) if (from_date := parse_date(since)) is not None else 0
    unreadable: list[str] = []

    def matches(read: NumberedAuditEntry) -> bool:
        entry = read.entry
        if entry is None:
            unreadable.append(f"{read.chain}/{read.number}") if len(unreadable) < 10 else None
            return False
        act = entry.act
        return (
            (action is None or (act.action.startswith(action[:-1]) if action.endswith("*") else act.action == action))
            and (not repositories or act.repository in repositories)
            and by in (None, act.actor.id)
        )

    def choose_entries(reads: Iterator[NumberedAuditEntry]) -> Iterator[AuditEntry]:
        for read in reads:
            if matches(read) and read.entry is not None:
                yield read.entry

    with open_lake(ctx, read_only=True) as lake:
        skew = lake.durations.waits.clock_skew_seconds
        reads = entries_since(lake.kv, lake.own_store, since_ms, clock_skew_seconds=skew)
        entries = islice(choose_entries(reads), limit or None)
        emit(ctx, (_whole(entry) if invocation_of(ctx).json else _act_row(entry.act) for entry in entries))
    if unreadable:
        typer.echo(
            f"refstore: entries that cannot be read: {', '.join(unreadable)}; see: refstore audit verify", err=True
        )
        raise typer.Exit(DAMAGED)


def _finding_row(finding: AuditFinding) -> dict[str, object]:
    return {
        "finding": finding.kind.value,
        "damage": finding.is_damage,
        "chain": finding.chain,
        "number": finding.number or None,
        "message": finding.message,
    }


def _act_row(act: Act) -> dict[str, object]:
    return {
        "time": act.time,
        "actor": f"{act.actor.kind}:{act.actor.id}",
        "from": " ".join(word for word in (act.actor.address, act.actor.command) if word),
        "action": act.action,
        "repository": act.repository,
        "target": act.target,
        "outcome": f"{act.outcome} ({act.error})" if act.error else act.outcome,
    }


def _whole(entry: AuditEntry) -> dict[str, object]:
    act = msgspec.to_builtins(entry.act)
    return {"chain": entry.chain, "number": entry.number, "written": format_timestamp(entry.written_ms), **act}
