"""Routes of imports: stage foreign objects on a branch in the background."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from refstore.core import ids
from refstore.operations.commit import CommitOptions
from refstore.public_types import Commit
from refstore.records.repository_records import ImportSource
from refstore.repository import Repository
from refstore.service import background_imports
from refstore_api.auth import Reader, Writer
from refstore_api.commit_responses import new_commit_model
from refstore_api.json_bodies import BodyBound, BoundedBodyRoute
from refstore_api.models import Error, ImportCreation, ImportCreationResponse, ImportStatus
from refstore_api.routes import COMMON, failures
from refstore_http.http_errors import message_of_stored

router = APIRouter(
    prefix="/repositories/{repository}/branches/{branch}/import",
    tags=["import"],
    route_class=BoundedBodyRoute,
    responses=COMMON,
)

IMPORT_BODY = BodyBound(8 << 20)
"""A thousand sources, each of two long texts, and a commit."""
ImportId = Annotated[str, Query(description="What importStart answered.", min_length=1, max_length=128)]


@router.post(
    "", operation_id="importStart", status_code=202, response_model=ImportCreationResponse, responses=failures(409)
)
async def import_start(call: Writer, branch: str, body: Annotated[ImportCreation, IMPORT_BODY]) -> Response:
    """Start to import objects below `import_from`, in one commit that replaces what is at their destinations."""
    sources = [ImportSource(each.path, each.destination, each.type == "object") for each in body.paths]
    options = CommitOptions(
        message=body.commit.message,
        committer=call.principal.key_id,
        metadata=body.commit.metadata or {},
        allow_empty=body.commit.allow_empty,
    )

    def start(repo: Repository) -> ImportCreationResponse:
        begun = call.service.imports.start(repo.context, ids.branch_name(branch), sources, options)
        return ImportCreationResponse(id=begun)

    return await call.answer(start, 202)


@router.get("", operation_id="importStatus", response_model=ImportStatus)
async def import_status(call: Reader, branch: str, id: ImportId) -> Response:  # noqa: A002  # lakeFS's name
    """Report the progress. If the process of an import died, the service that is asked continues it."""

    def read(repo: Repository) -> ImportStatus:
        record = call.service.imports.status(repo.context, ids.branch_name(branch), id)
        landed = background_imports.find_landed_commit(repo.context, record)
        return ImportStatus(
            completed=record.state == background_imports.COMPLETED,
            update_time=datetime.fromtimestamp((record.updated_ms or repo.context.clock.now_ms()) / 1000, UTC),
            ingested_objects=record.objects,
            skipped_objects=record.skipped_objects,
            metarange_id=landed[1].metarange if landed else None,
            commit=new_commit_model(Commit(*landed)) if landed else None,
            error=Error(message=message_of_stored(record.error_code, record.error), code=record.error_code)
            if record.error
            else None,
        )

    return await call.answer(read)


@router.delete("", operation_id="importCancel", status_code=204, responses=failures(409))
async def import_cancel(call: Writer, branch: str, id: ImportId) -> Response:  # noqa: A002  # lakeFS's name
    """Cancel the import before its next page; then nothing is committed."""
    return await call.act(lambda repo: call.service.imports.cancel(repo.context, ids.branch_name(branch), id))
