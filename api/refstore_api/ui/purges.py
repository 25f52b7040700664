"""The pages of the purge: data sets, runs, backups, and the form that restores a run."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from refstore.core.units import format_size
from refstore.errors import NotFound
from refstore.repository import Repository
from refstore_api.encoded_slashes import EncodedNameRoute
from refstore_api.shared_parameters import ServiceOf
from refstore_api.ui.confirmation import (
    SHOWN_DIGEST,
    Confirmation,
    ask_confirmation,
    check_shown,
    make_digest,
    read_answer,
    show_result,
)
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.pages import render
from refstore_api.ui.sessions import OperatorSession, ReaderSession
from refstore_purge import purge_cleanup

if TYPE_CHECKING:
    from refstore_purge.restore_backups import RestoreSummary
router = APIRouter(prefix=f"{PATH}/repositories/{{repository}}/purges", route_class=EncodedNameRoute)

RUNS: Final = 50
BACKUPS: Final = 100
SHOWN_MAX: Final = 20


@router.get("")
async def list_runs(request: Request, service: ServiceOf, session: ReaderSession, repository: str) -> Response:
    def work(repo: Repository) -> Response:
        from refstore_purge import purge_report

        kept = purge_cleanup.scan_backups(repo.context)
        backups = list(islice(kept, BACKUPS + 1))
        return render(
            request,
            "purges.html",
            repository=repo.name,
            onboarded=_onboarded_or_none(repo),
            runs=list(islice(purge_report.scan_reports(repo), RUNS)),
            backups=backups[:BACKUPS],
            more_backups=len(backups) > BACKUPS,
        )

    return await service.read(request, session.principal.key_id, repository, work)


@router.get("/{run}")
async def show(request: Request, service: ServiceOf, session: ReaderSession, repository: str, run: str) -> Response:
    def work(repo: Repository) -> Response:
        from refstore_purge import purge_report, remaining_places

        report = purge_report.read_report(repo, run)
        remaining_places.refresh_places(repo, [report])
        return render(
            request,
            "purge.html",
            repository=repo.name,
            report=report,
            shown=SHOWN_MAX,
            may_act=session.has_role("operator", repo.name),
        )

    return await service.read(request, session.principal.key_id, repository, work)


@router.get("/{run}/restore")
async def ask_restore(
    request: Request, service: ServiceOf, session: OperatorSession, repository: str, run: str
) -> Response:
    def work(repo: Repository) -> Response:
        would = _restore(repo, run, dry_run=True)
        return ask_confirmation(
            request,
            Confirmation(
                title="Restore what a purge replaced",
                lead="The rows of the ids are there again, in every version. What this replaces becomes trash.",
                button="Restore",
                facts=_facts(run, would),
                warnings=_failures(would),
                hidden_fields={SHOWN_DIGEST: make_digest(_facts(run, would))},
                cancel=f"/repositories/{repository}/purges/{run}",
                is_allowed=bool(would.objects),
            ),
            repository=repo.name,
        )

    return await service.read(request, session.principal.key_id, repository, work)


@router.post("/{run}/restore")
async def restore(
    request: Request, service: ServiceOf, session: OperatorSession, repository: str, run: str
) -> Response:
    form = await read_answer(request, session, (SHOWN_DIGEST,))

    def work(repo: Repository) -> RestoreSummary:
        check_shown(form, _facts(run, _restore(repo, run, dry_run=True)))
        return _restore(repo, run, dry_run=False)

    done = await service.repository(repository, work)
    return show_result(
        request,
        "Restored",
        _facts(run, done),
        repository=repository,
        back=f"/repositories/{repository}/purges/{run}",
        failed=_failures(done),
    )


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
