"""The commands `refstore purge`: describe data sets, and remove the rows of given ids from them."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from refstore.cli.common import emit, invocation_of, repository_of, warn_of, who
from refstore.cli.confirmation import confirm
from refstore.cli.files import read_document
from refstore.cli.parameters import LAST, By, Name, Yes
from refstore.cli.purge_backups import backups, clean, restore
from refstore.cli.purge_report import emit_report, summary_of
from refstore.cli.purge_run import run, verify
from refstore.cli.rows import format_when
from refstore.core.clock import to_ms
from refstore.errors import Invalid

app = typer.Typer(no_args_is_help=True)


@app.callback()
def purge() -> None:
    """Describe data sets, and remove the rows of given ids from them."""


@app.command("onboard")
def onboard(
    ctx: typer.Context,
    repo_name: Name,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="The purge document, in JSON; '-': standard input; with --dry-run: the one set."
        ),
    ] = "",
    by: By = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the document, and set nothing.")] = False,
) -> None:
    """Set the purge document: the whitelist and the data sets, all at once. Nothing is purged by this.

    It warns of a data set below whose prefix nothing lies at the heads.

    \b
    Example: refstore purge onboard sales purge.json --dry-run
             refstore purge onboard sales purge.json
    """
    import refstore_purge

    if not file and not dry_run:
        ctx.fail("give the FILE of a purge document, or --dry-run to check the one that is set")
    text = read_document(file) if file else None
    with repository_of(ctx, repo_name, read_only=dry_run) as repo:
        by = who() if by is None else by
        document = repo.purge_document().text if text is None else text
        onboarded = refstore_purge.onboard(repo, document, by=by, dry_run=dry_run)
    document = onboarded.document
    warn_of(onboarded.warnings)
    emit(
        ctx,
        [
            {
                "dataset": dataset.name,
                "prefix": dataset.prefix,
                "format": dataset.format,
                "identifier": dataset.identifier,
                "mode": dataset.mode,
                "purged": document.is_whitelisted(dataset),
            }
            for dataset in document.datasets
        ],
    )


@app.command("show")
def show(ctx: typer.Context, repo_name: Name) -> None:
    """Print the purge document as it was set; --json adds who set it, and when.

    \b
    Example: refstore purge show sales > purge.json
    """
    with repository_of(ctx, repo_name, read_only=True) as repo:
        onboarded = repo.purge_document()
        if invocation_of(ctx).json:
            when = {"set": format_when(to_ms(onboarded.set_at)), "by": onboarded.set_by}
            emit(ctx, {"repository": repo.name, **when, "document": msgspec.json.decode(onboarded.text)})
        else:
            print(onboarded.text, end="" if onboarded.text.endswith("\n") else "\n")


@app.command("ledger")
def ledger_(
    ctx: typer.Context,
    repo_name: Name,
    forget: Annotated[str, typer.Option("--forget", metavar="RUN", help="Drop the ids of this run.")] = "",
    yes: Yes = False,
) -> None:
    """List the runs whose ids the ledger has, and the data sets from which they were purged; the ids as keyed hashes,
    for `refstore purge run --ledger`.

    Only the holder of the purge key can compare ids with it. Destroying the key ends the ledger.

    \b
    Example: refstore purge ledger sales
             refstore purge ledger sales --forget 01M7XA5R3E9ZQ4 --yes
    """
    from refstore_purge import id_index, ledger

    with repository_of(ctx, repo_name, read_only=not forget) as repo:
        secret = repo.context.read_purge_key()
        if secret is None:
            raise Invalid("there is no ledger without a key; set purge_key")
        key, store = id_index.IndexKey.derive(secret), repo.context.objects
        if forget:
            confirm(ctx, f"later runs will not look for the ids of the run {forget!r}", yes=yes)
            with repo.context.audit.change("purge.forget", repository=repo.name, after={"run": forget}):
                ledger.forget_run(store, key, forget)
        emit(
            ctx,
            [
                {
                    "run": each.run,
                    "at": format_when(each.at_ms),
                    "datasets": list(each.datasets),
                    "type": each.kind,
                    "ids": each.ids,
                }
                for each in ledger.scan_ledger(store, key)
            ],
        )


@app.command("status")
def status(
    ctx: typer.Context,
    repo_name: Name,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The report on this run; last: on the latest one.")] = "",
) -> None:
    """List the runs of the purge, the newest first, with how many places still have rows of their ids. Or report on
    one: what it did, by data set and partition, what it left, and every place that still has rows of its ids, with the
    date on which each goes; --json has all of it.

    One whose process is gone is `killed`, with what it had done.

    \b
    Example: refstore purge status sales
             refstore purge status sales last
    """
    from refstore_purge import purge_report, remaining_places

    with repository_of(ctx, repo_name, read_only=True) as repo:
        runs = (
            [purge_report.read_report(repo, "" if run_id == LAST else run_id)]
            if run_id
            else list(purge_report.scan_reports(repo))
        )
        remaining_places.refresh_places(repo, runs)
        if run_id:
            emit_report(ctx, runs[0])
        else:
            emit(ctx, [summary_of(each) for each in runs])


# ---- of other modules

app.command("run")(run)
app.command("verify")(verify)
app.command("backups")(backups)
app.command("restore")(restore)
app.command("clean")(clean)
