"""The commands `refstore purge backups`, `restore` and `clean`: what purges have replaced, back or away."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from refstore.cli.common import emit, invocation_of, open_lake, repository_of
from refstore.cli.confirmation import confirm
from refstore.cli.parameters import Name, Yes
from refstore.cli.rows import format_when
from refstore.core.redaction import redact_text

if TYPE_CHECKING:
    from refstore_gc.run_summary import CleanupSummary
    from refstore_purge.purge_cleanup import KeptBackup

LEFT: Final = 4
"""The exit code if something is left that the same command could do later."""
FAILED: Final = 5
"""The exit code if the store did not delete everything."""
SHOWN: Final = 20
"""How many objects that were left are shown without --json."""


def backups(
    ctx: typer.Context,
    repo_name: Name,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Only what this run replaced; default: all.")] = "",
) -> None:
    """List the contents that purges have replaced and that can be restored, and when each goes: with the first cleaning
    after that.

    What a restore replaced is trash. What a legal hold covers stays until the hold ends.

    \b
    Example: refstore purge backups sales
    """
    with repository_of(ctx, repo_name, read_only=True) as repo:
        from refstore_purge import purge_cleanup

        kept = purge_cleanup.scan_backups(repo.context)
        emit(ctx, [_backup_row(each) for each in kept if run_id in ("", each.run)])


def restore(
    ctx: typer.Context,
    repo_name: Name,
    run_id: Annotated[
        str, typer.Argument(metavar="RUN", help="Undo this run; default: the newest backup, the last known good.")
    ] = "",
    *,
    dataset: Annotated[str, typer.Option(metavar="NAME", help="Only objects of this data set.")] = "",
    partition: Annotated[str, typer.Option(metavar="KEY=VALUE/...", help="Only of this partition of it.")] = "",
    path: Annotated[str, typer.Option(metavar="PATH", help="Only the object at this path, in any version.")] = "",
    backup: Annotated[str, typer.Option(metavar="ADDRESS", help="This backup, whichever run replaced it.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be restored, and change nothing.")] = False,
    yes: Yes = False,
) -> int | None:
    """Bring back what purges have replaced, in every version, while the backups last.

    What a restore replaces becomes trash, which goes after the trash's days. Objects that a later run has replaced are
    left alone. The rows of the ids are there again; `refstore purge ledger --forget RUN` keeps later runs with --ledger
    from looking for them.

    \b
    Example: refstore purge restore sales 01M7XA5R3E9ZQ4 --dataset tracking.event --dry-run
             refstore purge restore sales --path tracking/event/part-0.parquet --yes
    Exit code 4: some objects were not restored; the output says why.
    """
    import refstore_purge

    with open_lake(ctx) as lake:
        repo = lake.repository(repo_name)
        run = partial(
            refstore_purge.restore, repo, run_id, dataset=dataset, partition=partition, path=path, backup=backup
        )
        if not dry_run:
            confirm(ctx, f"{run(dry_run=True).objects} objects of {repo.name!r} will get back what was purged", yes=yes)
        done = run(dry_run=dry_run)
    shown = msgspec.to_builtins(done)
    if not invocation_of(ctx).json:
        shown.pop("not_restored")
    emit(ctx, shown)
    if not invocation_of(ctx).json:
        for each in done.not_restored[:SHOWN]:
            print(f"not restored: {each.address}: {each.reason}")
    return LEFT if done.not_restored_count else None


def clean(
    ctx: typer.Context,
    repo_name: Name,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and delete nothing.")] = False,
    yes: Yes = False,
) -> int | None:
    """Delete backups and trash that are past their days, and what failed runs left. The nightly job does the same.

    \b
    Example: refstore purge clean sales --dry-run
    Exit code 5: the store did not delete some objects, and the output says why; the next cleaning tries again.
    """
    with open_lake(ctx) as lake:
        import refstore_purge

        repo = lake.repository(repo_name)
        if not dry_run:
            confirm(ctx, f"backups of {repo.name!r} that are past their days will be deleted", yes=yes)
        done = refstore_purge.clean_up(repo, dry_run=dry_run)
    if invocation_of(ctx).json:
        emit(ctx, msgspec.to_builtins(done))
    else:
        emit(ctx, _cleaned_rows(done))
        for each in done.failures:
            typer.echo(f"not freed: {redact_text(each)}", err=True)
    return FAILED if done.failed_objects else None


def _backup_row(each: KeptBackup) -> dict[str, Any]:
    return {
        "address": each.address or "(erased)",
        "of": each.identity,
        "size_bytes": each.size_bytes,
        "replaced": format_when(each.replaced_ms),
        "by": each.run,
        "kind": "trash" if each.is_trash else "backup",
        "goes": "held"
        if each.is_on_hold
        else "with the next cleaning"
        if each.is_due
        else format_when(each.deletes_at_ms),
    }


def _cleaned_rows(done: CleanupSummary) -> list[dict[str, Any]]:
    return [{"what": what, "objects": count.objects, "bytes": count.bytes} for what, count in done.lines().items()]
