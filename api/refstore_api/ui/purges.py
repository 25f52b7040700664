"""The pages of the purge: data sets, runs, backups, and the form that restores a run."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter
from starlette.responses import Response

from refstore.core.units import format_size
from refstore.errors import NotFound
from refstore.repository import Repository
from refstore_api.encoded_slashes import EncodedNameRoute
from refstore_api.ui.forms import (
    SHOWN_DIGEST,
    Confirmation,
    check_shown,
    make_digest,
    read_answer,
    show_result,
)
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.sessions import OperatorSession, ReaderSession
from refstore_purge import purge_cleanup

if TYPE_CHECKING:
    from refstore_purge.restore_backups import RestoreSummary
router = APIRouter(prefix=f"{PATH}/repositories/{{repository}}/purges", route_class=EncodedNameRoute)

RUNS: Final = 50
BACKUPS: Final = 100
SHOWN_MAX: Final = 20


@router.get("")
async def list_runs(session: ReaderSession) -> Response:
    def work(repo: Repository) -> Response:
        from refstore_purge import purge_report

        kept = purge_cleanup.scan_backups(repo.context)
        backups = list(islice(kept, BACKUPS + 1))
        return session.render(
            "purges.html",
            onboarded=_onboarded_or_none(repo),
            runs=list(islice(purge_report.scan_reports(repo), RUNS)),
            backups=backups[:BACKUPS],
            more_backups=len(backups) > BACKUPS,
        )

    return await session.read(work)


@router.get("/{run}")
async def show(session: ReaderSession, run: str) -> Response:
    def work(repo: Repository) -> Response:
        from refstore_purge import purge_report, remaining_places

        report = purge_report.read_report(repo, run)
        remaining_places.refresh_places(repo, [report])
        may_act = session.has_role("operator", repo.name)
        return session.render("purge.html", report=report, shown=SHOWN_MAX, may_act=may_act)

    return await session.read(work)


@router.get("/{run}/restore")
async def ask_restore(session: OperatorSession, run: str) -> Response:
    def work(repo: Repository) -> Response:
        would = _restore(repo, run, dry_run=True)
        return Confirmation(
            title="Restore what a purge replaced",
            lead="The rows of the ids are there again, in every version. What this replaces becomes trash.",
            button="Restore",
            facts=_facts(run, would),
            warnings=_failures(would),
            hidden_fields={SHOWN_DIGEST: make_digest(_facts(run, would))},
            cancel=f"{session.home}/purges/{run}",
            is_allowed=bool(would.objects),
        ).ask(session)

    return await session.read(work)


@router.post("/{run}/restore")
async def restore(session: OperatorSession, run: str) -> Response:
    form = await read_answer(session, (SHOWN_DIGEST,))

    def work(repo: Repository) -> RestoreSummary:
        check_shown(form, _facts(run, _restore(repo, run, dry_run=True)))
        return _restore(repo, run, dry_run=False)

    done = await session.run(work)
    back = f"{session.home}/purges/{run}"
    return show_result(session, "Restored", _facts(run, done), back=back, failed=_failures(done))


def _restore(repo: Repository, run: str, *, dry_run: bool) -> RestoreSummary:
    from refstore_purge import restore_backups

    return restore_backups.restore_backups(repo, restore_backups.RestoreScope(run), dry_run=dry_run)


def _onboarded_or_none(repo: Repository) -> Any:
    try:
        return repo.purge_document()
    except NotFound:
        return None


def _failures(summary: RestoreSummary) -> list[str]:
    return [f"{each.address}: {each.reason}" for each in summary.not_restored[:SHOWN_MAX]]


def _facts(run: str, summary: RestoreSummary) -> list[tuple[str, str]]:
    return [
        ("Run", run),
        ("Objects restored", f"{summary.objects:,}"),
        ("Their bytes", format_size(summary.bytes)),
        ("Restored before", f"{summary.already_restored:,}"),
        ("Not restored", f"{summary.not_restored_count:,}"),
    ]
