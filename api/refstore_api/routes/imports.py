"""Routes of imports: stage foreign objects on a branch in the background."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from refstore.core import ids
from refstore.operations.commit import CommitOptions
from refstore.records.repository_records import ImportSource
from refstore.repository import Repository
from refstore.service import background_imports
from refstore_api.auth import Reader, Writer
from refstore_api.commit_responses import new_commit_model
from refstore_api.json_bodies import BodyBound, BoundedBodyRoute
from refstore_api.models import Error, ImportCreation, ImportCreationResponse, ImportStatus
from refstore_api.routes import failures
from refstore_api.shared_parameters import ServiceOf
from refstore_http.http_errors import message_of_stored
from refstore_http.json_responses import make_empty_response, make_response

router = APIRouter(
    prefix="/repositories/{repository}/branches/{branch}/import", tags=["import"], route_class=BoundedBodyRoute
)

IMPORT_BODY = BodyBound(8 << 20)
"""A thousand sources, each of two long texts, and a commit."""
ImportId = Annotated[str, Query(description="What importStart answered.", min_length=1, max_length=128)]


@router.post(
    "", operation_id="importStart", status_code=202, responses={202: {"model": ImportCreationResponse}, **failures(409)}
)
async def import_start(
    service: ServiceOf, caller: Writer, repository: str, branch: str, body: Annotated[ImportCreation, IMPORT_BODY]
) -> Response:
    """Start to import objects below `import_from`, in one commit that replaces what is at their destinations."""
    sources = [ImportSource(each.path, each.destination, each.type == "object") for each in body.paths]
    options = CommitOptions(
        message=body.commit.message,
        committer=caller.key_id,
        metadata=body.commit.metadata or {},
        allow_empty=body.commit.allow_empty,
    )

    def start(repo: Repository) -> ImportCreationResponse:
        return ImportCreationResponse(id=service.imports.start(repo.context, ids.branch_name(branch), sources, options))

    return make_response(await service.repository(repository, start), 202)


@router.get("", operation_id="importStatus", responses={200: {"model": ImportStatus}, **failures()})
# lakeFS's name
async def import_status(service: ServiceOf, _caller: Reader, repository: str, branch: str, id: ImportId) -> Response:  # noqa: A002
    """Report the progress. If the process of an import died, the service that is asked continues it."""

    def read(repo: Repository) -> ImportStatus:
        record = service.imports.status(repo.context, ids.branch_name(branch), id)
        landed = background_imports.find_landed_commit(repo.context, record)
        return ImportStatus(
            completed=record.state == background_imports.COMPLETED,
            update_time=datetime.fromtimestamp((record.updated_ms or repo.context.clock.now_ms()) / 1000, UTC),
            ingested_objects=record.objects,
            skipped_objects=record.skipped_objects,
            metarange_id=landed[1].metarange if landed else None,
            commit=new_commit_model(*landed) if landed else None,
            error=Error(message=message_of_stored(record.error_code, record.error), code=record.error_code)
            if record.error
            else None,
        )

    return make_response(await service.repository(repository, read))


@router.delete("", operation_id="importCancel", status_code=204, responses=failures(409))
# lakeFS's name, too
async def import_cancel(service: ServiceOf, _caller: Writer, repository: str, branch: str, id: ImportId) -> Response:  # noqa: A002
    """Cancel the import before its next page; then nothing is committed."""
    await service.repository(repository, lambda repo: service.imports.cancel(repo.context, ids.branch_name(branch), id))
    return make_empty_response()
