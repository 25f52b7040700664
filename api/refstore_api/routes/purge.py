"""Routes of the purge: which data sets of a repository are onboarded."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from starlette.responses import Response

from refstore.operations.onboard import OnboardedDocument
from refstore_api.auth import Operator, Reader
from refstore_api.json_bodies import BodyBound, BoundedBodyRoute
from refstore_api.models import PurgeDataset, PurgeDocumentModel, PurgeDocumentText
from refstore_api.routes import COMMON, failures

router = APIRouter(
    prefix="/repositories/{repository}/purge", tags=["refstore"], route_class=BoundedBodyRoute, responses=COMMON
)
DOCUMENT_BODY = BodyBound(2 << 20)
"""A document of `CHARACTERS_MAX`, as text in JSON."""


@router.get("/document", operation_id="getPurgeDocument", response_model=PurgeDocumentModel)
async def get_document(call: Reader) -> Response:
    """Return the purge document that is set, and what it means. 404: nothing is onboarded."""
    return await call.answer(lambda repo: _document_model(repo.purge_document()))


@router.put("/document", operation_id="setPurgeDocument", response_model=PurgeDocumentModel, responses=failures(409))
async def set_document(call: Operator, body: Annotated[PurgeDocumentText, DOCUMENT_BODY]) -> Response:
    """Onboard data sets: replace the whole document. Nothing is purged by this.

    400: the document has a mistake; the message names its field.
    """
    by = call.principal.key_id
    return await call.answer(lambda repo: _document_model(repo.onboard_purge(body.document, by=by)))


def _document_model(onboarded: OnboardedDocument) -> PurgeDocumentModel:
    return PurgeDocumentModel(
        document=onboarded.text,
        set_at=int(onboarded.set_at.timestamp()),
        set_by=onboarded.set_by,
        datasets=[
            PurgeDataset(
                name=each.name,
                prefix=each.prefix,
                mode=each.mode,
                is_whitelisted=onboarded.document.is_whitelisted(each),
            )
            for each in onboarded.document.datasets
        ],
        warnings=list(onboarded.warnings),
    )
