"""The commands `refstore kv`: look into a KV that went back in time, settle it, or make it anew; copy it to another."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from refstore import lake_identity
from refstore.audit import act_as, local_actor
from refstore.cli.common import emit, invocation_of, open_lake, progress, settings_of
from refstore.cli.confirmation import confirm
from refstore.cli.errors import exit_code
from refstore.cli.parameters import DryRun, Yes
from refstore.cli.rows import format_when
from refstore.configuration import configured_lake
from refstore.core.redaction import redact_url
from refstore.errors import KVWentBack
from refstore.kv_recovery import kv_copy, reconciliation
from refstore.kv_recovery.kv_verification import KvFindingKind, KvVerification, verify_kv
from refstore.kv_recovery.lake_parts import RestoredRecord
from refstore.kv_recovery.manifest_backfill import fill_gaps
from refstore.lake import Lake

app = typer.Typer(no_args_is_help=True)

SHOWN_MAX: Final = 100
"""How many lines of one kind people see; --json has all."""


@app.callback()
def kv() -> None:
    """Look into a KV that went back in time; settle it, or make it anew; copy it to another one.

    A failover or a restored copy loses the last writes of a KV. Deletion is then stopped until it is settled: look
    with verify, then run reconcile. Where no copy of the KV is left, rebuild makes one from the object store.
    """


@app.command("verify")
def verify(ctx: typer.Context) -> None:
    """Compare the KV with the object store: where it went back, and what may be lost. Changes nothing.

    It reads the whole manifest and the whole audit log, and looks for every staged object. Ends with 0 if nothing is
    missing and no access key, retention rule or purge document is older than the audit log says, else with 6.

    \b
    Example: refstore kv verify
             refstore kv verify --json
    """
    with open_lake(ctx) as lake, progress("looking at witnesses") as bar:
        found = verify_kv(lake, progress=bar)
    if invocation_of(ctx).json:
        emit(ctx, _as_json(found))
    else:
        _show(found)
    if found.has_losses:
        raise typer.Exit(exit_code(KVWentBack))


@app.command("reconcile")
def reconcile(
    ctx: typer.Context,
    *,
    dry_run: DryRun = False,
    accept: Annotated[bool, typer.Option("--accept", help="Give up what cannot be put back.")] = False,
    clients_stopped: Annotated[
        bool,
        typer.Option(
            "--clients-stopped", help="No client has run since before the KV went back: do not wait for operations."
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Put back the commits, branches and tags that the KV lost, then let deletion go on.

    A branch that is behind is moved on; one that has moved elsewhere stays, and its lost commits become a new branch
    lost/NAME-COMMIT. Before deletion goes on, reconcile waits for the longest operation that began before. Nothing is
    deleted meanwhile. It may be interrupted, and run again.

    At its end it writes what the KV has and the manifest in the object store lacks, so that a loss of it would be
    noticed, and rebuild works. Where the KV lost nothing, it does only that.

    Where the audit log has newer access keys or rules than the KV, what keeps more holds: no revoked key or old secret
    opens anything, and legal holds and pins are back. All sessions end.

    Staged objects that are missing cannot be put back: reconcile names them and ends with 6. Bring them back from a
    backup of the object store, or give them up with --accept.

    Other commands refuse a KV and an object store that do not hold the same lake's id, and what another copy of the
    lake's folder holds. reconcile does not: it asks, and at its end both hold the object store's id.

    \b
    Example: refstore kv reconcile --dry-run
             refstore kv reconcile
             refstore kv reconcile --accept --clients-stopped
    """
    with open_lake(ctx, check_identity=False) as lake:
        if not dry_run:
            _confirm_identity(ctx, lake, yes=yes)
        with progress("looking at witnesses") as bar:
            found = verify_kv(lake, progress=bar)
            done = (
                reconciliation.restore_lost_records(lake, dry_run=dry_run, progress=bar) if not found.is_settled else []
            )
            left = found if found.is_settled or dry_run else verify_kv(lake, progress=bar)
        answer = _begin_answer(done, left)
        if not dry_run:
            if not found.is_settled and _may_settle(ctx, left, accept=accept, yes=yes):
                with progress("settling") as bar:
                    answer["settled"] = reconciliation.settle_lake(
                        lake, accept=accept, clients_stopped=clients_stopped, progress=bar
                    )
            if found.is_settled or answer["settled"] is not None:
                answer |= _record(lake, left)
        if invocation_of(ctx).json:
            emit(ctx, answer)
        else:
            _tell(found, left, done, answer, dry_run=dry_run)
        if left.has_unrestorable_losses and not dry_run and answer["settled"] is None:
            raise typer.Exit(exit_code(KVWentBack))


def _begin_answer(done: list[RestoredRecord], left: KvVerification) -> dict[str, object]:
    return {
        "restored_records": [item._asdict() for item in done],
        "not_restored": _as_json(left) if left.has_unrestorable_losses else None,
        "settled": None,
        "recorded": [],
        "id_written": False,
        "moved": [],
    }


def _record(lake: Lake, left: KvVerification) -> dict[str, object]:
    """Make the object store know what the KV has, and both hold one id."""
    with progress("recording") as bar:
        gaps = fill_gaps(lake, progress=bar) if left.of_kind(KvFindingKind.GAP) else []
    own_id = lake.ids.new_id(lake.clock.now_ms())
    id_written = lake_identity.unify_ids(lake.kv, lake.own_store, own_id)
    moved = lake.take_stores()
    return {
        "recorded": [{"repository": gap.repository, "name": str(gap)} for gap in gaps],
        "id_written": id_written,
        "moved": moved,
    }


def _confirm_identity(ctx: typer.Context, lake: Lake, *, yes: bool) -> None:
    """Ask whether to go on where the KV and the object store are not of one lake."""
    known, stored = lake_identity.read_both(lake.kv, lake.own_store)
    if known and stored and known != stored:
        what = f"the KV is of lake {known}, and the object store of lake {stored}"
        confirm(ctx, f"{what}: what this object store's manifest has will be put into this KV", yes=yes)
    _confirm_stores(ctx, lake, yes=yes)


def _confirm_stores(ctx: typer.Context, lake: Lake, *, yes: bool) -> None:
    """Ask whether to take what another copy of the lake's folder holds."""
    if others := lake.take_stores(dry_run=True):
        what = f"another copy of this lake's folder holds {', '.join(others[:SHOWN_MAX])}"
        confirm(ctx, f"{what}: that copy must never be used again, or each deletes what the other one names", yes=yes)


def _may_settle(ctx: typer.Context, left: KvVerification, *, accept: bool, yes: bool) -> bool:
    """Return whether deletion may go on: nothing is left, or an operator gives it up."""
    if left.has_unrestorable_losses and accept:
        if not invocation_of(ctx).json:
            _show(left, advise=False)
        confirm(ctx, "what is named above will be given up", yes=yes)
    return accept or not left.has_unrestorable_losses


@app.command("rebuild")
def rebuild(ctx: typer.Context, *, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Make an empty KV from the object store: repositories, commits, branches and tags.

    Stop every client first. What is staged is lost, and with it access keys, retention rules, marks of the offline job,
    issued addresses, and changed metadata of repositories. Legal holds and pins are put back from the audit log.
    Deleted branches and repositories stay deleted. It asks before it takes what another copy of the lake's folder, or
    the lost KV, held outside of it; if you decline, `refstore kv reconcile` takes it later.

    \b
    Example: refstore kv rebuild --dry-run
             refstore kv rebuild --kv sqlite:///srv/new.sqlite --objects s3://bucket/lake
    """
    with open_lake(ctx, check_identity=False) as lake:
        reconciliation.check_empty(lake)
        if not dry_run:
            confirm(ctx, "the KV will be made from the object store; what was staged is lost", yes=yes)
        with progress("reading the manifest") as bar:
            made = reconciliation.rebuild_kv(lake, dry_run=dry_run, progress=bar)
        if not dry_run:
            _confirm_stores(ctx, lake, yes=yes)  # only now does the KV name them
            lake.take_stores()
    counts = made.count_kinds()
    if invocation_of(ctx).json:
        emit(
            ctx,
            {
                **counts,
                "not_restored": [item._asdict() for item in made.not_restored],
                "missing_metaranges": [str(item) for item in made.missing_trees],
                "settled_records": [item._asdict() for item in made.settled_records],
                "not_rebuilt": list(reconciliation.NOT_REBUILT),
            },
        )
    else:
        emit(ctx, counts)
        _lines("left", [_restored_text(item) for item in made.not_restored])
        _lines("from the audit log", [_restored_text(item) for item in made.settled_records])
        _lines(KvFindingKind.METARANGE.value, [str(item) for item in made.missing_trees])
        typer.echo("Not in the manifest, so not made again:", err=True)
        for line in reconciliation.NOT_REBUILT:
            typer.echo(f"  {line}", err=True)
        if dry_run:
            typer.echo("This was a dry run: nothing was changed.", err=True)
    if made.not_restored or made.missing_trees:
        raise typer.Exit(exit_code(KVWentBack))


@app.command("copy")
def copy(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="FROM", help="URL of the KV that the lake has.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="URL of the KV that it gets, which is empty.")],
    *,
    clients_stopped: Annotated[
        bool, typer.Option("--clients-stopped", help="No process uses the lake any more: do not wait for operations.")
    ] = False,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Open the lake in FROM again, where a copy did not end.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Copy a lake's KV to another one, of any kind, and go on there. Objects stay where they are.

    Stop every process that uses the lake first. The settings name its object store, with --objects or --data. FROM is
    closed before the first record is copied: whoever opens it ends with 6, and hears where the lake went. Then it waits
    for what a process that was not stopped may still write, unless you say --clients-stopped. Both KVs are read and
    compared at the end, then TO is opened. It may be interrupted, and run again. Set kv to TO then.

    \b
    Example: refstore kv copy sqlite:///srv/lake/kv.sqlite redis://kv.example/0 --data /srv/lake --clients-stopped
    """
    settings, shown = settings_of(ctx), (redact_url(source), redact_url(target))
    if not give_up:
        confirm(ctx, f"the lake in {shown[0]} will be closed, and go on in {shown[1]}", yes=yes)
    with (
        act_as(local_actor("cli", ctx.command_path)),
        configured_lake.make_lake(settings, source) as old,
        configured_lake.make_lake(settings, target) as new,
    ):
        if give_up:
            kv_copy.give_up(old)
            emit(ctx, {"kv": shown[0]})
            return
        with progress("copying") as bar:
            copied = kv_copy.copy_kv(old, new, shown=shown, clients_stopped=clients_stopped, progress=bar)
    emit(ctx, {"kv": shown[1], **copied._asdict()})
    typer.echo(f"The lake is open in {shown[1]} only: set kv to it in every process, and start them.", err=True)


def _as_json(found: KvVerification) -> dict[str, object]:
    return {
        "has_losses": found.has_losses,
        "findings": [item._asdict() | {"kind": item.kind.value} for item in found.findings],
        "has_settled_servers": found.has_settled_servers,
        "reconcile_began": format_when(found.reconcile_began_ms or None),
    }


def _show(found: KvVerification, *, advise: bool = True) -> None:
    """Print what was found, for people."""
    for kind in KvFindingKind:
        _lines(kind.value, [str(item) for item in found.of_kind(kind)])
    if not found.has_losses:
        typer.echo("Nothing is missing.")
    if advise:
        for line in _advice(found):
            typer.echo(line, err=True)


def _advice(found: KvVerification) -> list[str]:
    lines: list[str] = []
    if found.reconcile_began_ms:
        lines.append(
            f"`refstore kv reconcile` began at {format_when(found.reconcile_began_ms)} and has not ended; nothing is "
            "deleted meanwhile. If it is not running any more, run it again."
        )
    elif found.of_kind(KvFindingKind.OBJECT, KvFindingKind.METARANGE, KvFindingKind.WITNESS):
        lines.append(
            "Next: bring missing objects back from a backup of the object store under the same keys, then run "
            "`refstore kv reconcile`; or give them up with `refstore kv reconcile --accept`."
        )
    elif not found.is_settled or found.of_kind(KvFindingKind.GAP):
        lines.append("Next: see what would be put back with `refstore kv reconcile --dry-run`, then run it without.")
    if found.of_kind(KvFindingKind.REAPPEARED):
        lines.append("A deleted repository that is there again stays until `refstore repo delete`.")
    return lines


def _tell(
    found: KvVerification, left: KvVerification, done: list[RestoredRecord], answer: dict[str, object], *, dry_run: bool
) -> None:
    if answer["id_written"]:
        typer.echo("The KV and the object store hold the same lake's id now.", err=True)
    if answer["moved"]:
        typer.echo("What another copy of the lake's folder held is this one's now.", err=True)
    would, gaps = "would be: " if dry_run else "", found.of_kind(KvFindingKind.GAP)
    if dry_run or answer["recorded"]:
        _lines(f"{would}recorded in the manifest", [str(gap) for gap in gaps])
    if found.is_settled:
        if not gaps:
            typer.echo("There is nothing to reconcile.")
        if found.has_losses:
            _show(found, advise=False)
        return
    for item in done:
        typer.echo(f"{would}{_restored_text(item)}")
    settled = answer["settled"]
    if dry_run:
        typer.echo("This was a dry run: nothing was changed.", err=True)
    elif isinstance(settled, dict):
        typer.echo("The KV is settled, and deletion goes on.")
        typer.echo(
            "Staged changes of before may be there again: look with `refstore diff REPO BRANCH`, and discard with "
            "`refstore reset` what was committed since.",
            err=True,
        )
    else:
        _show(left, advise=False)
        missing = left.of_kind(KvFindingKind.OBJECT, KvFindingKind.METARANGE)
        bring_back = (
            "bring missing objects back from a backup of the object store under the same keys, and run this again"
        )
        typer.echo(
            f"Deletion is stopped. Next: {f'{bring_back}; or ' if missing else ''}give up what is named above with "
            "`refstore kv reconcile --accept`.",
            err=True,
        )


def _restored_text(item: RestoredRecord) -> str:
    where = f"{item.repository}: " * bool(item.repository)
    return f"{where}{item.kind}{f' {item.name}' * bool(item.name)}: {item.outcome}"


def _lines(title: str, lines: list[str]) -> None:
    for line in lines[:SHOWN_MAX]:
        typer.echo(f"{title}: {line}")
    if len(lines) > SHOWN_MAX:
        typer.echo(f"{title}: and {len(lines) - SHOWN_MAX} more; --json has all")
