"""Imports: data of others named on a branch, in the background."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.answers import answer, nothing
from api.auth import Reader, Writer
from api.errors import WORDS
from api.history import new_commit_model
from api.models import Error, ImportCreation, ImportCreationResponse, ImportStatus
from api.naming import NamedRoute
from api.routes import failures
from api.service import ServiceOf
from refstore import ids, imports
from refstore.flows.committing import CommitOptions
from refstore.records import ImportSource
from refstore.repository import Repository

router = APIRouter(prefix="/repositories/{repository}/branches/{branch}/import", tags=["import"], route_class=NamedRoute)

ImportId = Annotated[str, Query(description="What importStart answered.", min_length=1, max_length=128)]


@router.post("", operation_id="importStart", status_code=202, responses={202: {"model": ImportCreationResponse}, **failures(409)})
async def import_start(service: ServiceOf, who: Writer, repository: str, branch: str, body: ImportCreation) -> Response:
    """Begin to name objects that lie below `api.import_from`, in one commit that replaces what is at their destinations."""
    sources = [ImportSource(each.path, each.destination, each.type == "object") for each in body.paths]
    options = CommitOptions(
        message=body.commit.message, committer=who.key_id, metadata=body.commit.metadata or {}, allow_empty=body.commit.allow_empty
    )

    def start(repo: Repository) -> ImportCreationResponse:
        return ImportCreationResponse(id=service.imports.start(repo.context, ids.branch_name(branch), sources, options))

    return answer(await service.repository(repository, start), 202)


@router.get("", operation_id="importStatus", responses={200: {"model": ImportStatus}, **failures()})
async def import_status(service: ServiceOf, who: Reader, repository: str, branch: str, id: ImportId) -> Response:  # noqa: A002  # lakeFS's name
    """How far it is. One whose process died is taken up by the service that is asked."""
    del who

    def read(repo: Repository) -> ImportStatus:
        record = service.imports.status(repo.context, ids.branch_name(branch), id)
        landed = imports.landed_commit(repo.context, record)
        return ImportStatus(
            completed=record.state == imports.COMPLETED,
            update_time=datetime.fromtimestamp((record.updated_ms or repo.context.clock.now_ms()) / 1000, UTC),
            ingested_objects=record.objects,
            skipped_objects=record.skipped,
            metarange_id=landed[1].metarange if landed else None,
            commit=new_commit_model(*landed) if landed else None,
            error=Error(message=_in_lakefs_words(record.error_code) + record.error, code=record.error_code) if record.error else None,
        )

    return answer(await service.repository(repository, read))


@router.delete("", operation_id="importCancel", status_code=204, responses=failures(409))
async def import_cancel(service: ServiceOf, who: Writer, repository: str, branch: str, id: ImportId) -> Response:  # noqa: A002  # likewise
    """End it before its next page; nothing is committed then."""
    del who
    await service.repository(repository, lambda repo: service.imports.cancel(repo.context, ids.branch_name(branch), id))
    return nothing()


def _in_lakefs_words(code: str) -> str:
    return next((f"{words}: " for kind, words in WORDS if kind.code == code), "")
