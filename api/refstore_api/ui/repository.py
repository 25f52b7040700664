"""A repository's page: its figures, its branches with what is staged on them and uploaded to them in parts, and its
tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Query
from starlette.responses import Response

from refstore.core.ids import BranchName
from refstore.core.units import sum_sizes
from refstore.errors import BranchNotFound
from refstore.monitoring import figures, run_control
from refstore.operations import multipart
from refstore.operations import tag as tag_operation
from refstore.operations.multipart import list_uploads
from refstore.records.branch_records import StoredBranch
from refstore.records.figure_records import Amount
from refstore.records.multipart_records import MultipartUpload
from refstore.records.staging_records import StoredEntry, decode_staged_many
from refstore.repository import Repository
from refstore.versioning.multipart_uploads import RegisteredUpload, UploadName
from refstore_api.encoded_slashes import EncodedNameRoute
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.pages import durations_text, settlement_text
from refstore_api.ui.sessions import ReaderSession
from refstore_reaper.status import read_status

router = APIRouter(prefix=f"{PATH}/repositories/{{repository}}", route_class=EncodedNameRoute)

BRANCHES: Final = 50
TAGS: Final = 50
STAGED_MAX: Final = 2_000
"""How many staged objects of a branch are counted."""
UPLOADS: Final = 50
PARTS_MAX: Final = 1_000
"""How many parts of an upload are counted."""


class BranchRow(NamedTuple):
    name: BranchName
    record: StoredBranch
    staged_amount: Amount
    has_more: bool
    """Whether at least so much is staged."""
    oldest_ms: int
    """When the oldest of what was counted was written. 0: nothing is staged."""


class OpenUploadRow(NamedTuple):
    """An upload in parts that is open."""

    name: UploadName
    record: MultipartUpload
    part_amount: Amount
    has_more: bool
    """Whether at least so much is uploaded."""


@router.get("")
async def show(
    session: ReaderSession,
    after: Annotated[str, Query(max_length=255)] = "",
    after_tag: Annotated[str, Query(max_length=255)] = "",
) -> Response:
    lake = session.service.lake

    def work(repo: Repository) -> Response:
        branches = list(islice(repo.context.branches.scan_open(after=after), BRANCHES + 1))
        tags = list(islice(tag_operation.scan_tags(repo.context, prefix="", after=after_tag), TAGS + 1))
        uploads = _upload_rows(repo, [name for name, _ in branches[:BRANCHES]])
        known = figures.read_figures(repo.context.kv, repo.context.repo)
        known = known._replace(gc=figures.measure_marks(repo.context, known.gc))
        return session.render(
            "repository.html",
            settling=settlement_text(lake),
            trying=durations_text(lake),
            is_any_reaper_alive=any(each.is_alive for each in read_status(lake, repository="").reapers),
            default_branch=repo.default_branch,
            created_ms=repo.record.created_ms,
            grace_seconds=repo.context.grace_seconds,
            figures=known,
            warnings=figures.find_warnings(known, repo.record.created_ms, repo.context.clock.now_ms()),
            branches=_rows(repo, branches[:BRANCHES]),
            next_branch=branches[BRANCHES - 1][0] if len(branches) > BRANCHES else "",
            uploads=uploads[:UPLOADS],
            has_more_uploads=len(uploads) > UPLOADS,
            tags=tags[:TAGS],
            next_tag=tags[TAGS - 1][0] if len(tags) > TAGS else "",
            runs=[each for each in run_control.active_runs(repo.context) if each.is_alive],
        )

    return await session.read(work)


def _rows(repo: Repository, branches: Sequence[tuple[BranchName, StoredBranch]]) -> list[BranchRow]:
    rows: list[BranchRow] = []
    for name, record in branches:
        staged = list(islice(repo.context.staging.scan_merged(record.live_tokens), STAGED_MAX + 1))
        changes = decode_staged_many([value for _, value, _ in staged[:STAGED_MAX]])
        entries = [change for change in changes if isinstance(change, StoredEntry)]
        amount = Amount(len(changes), sum_sizes(entry.size_bytes for entry in entries))
        oldest_ms = min((entry.mtime_ms for entry in entries), default=0)
        rows.append(BranchRow(name, record, amount, len(staged) > STAGED_MAX, oldest_ms))
    return rows


def _upload_rows(repo: Repository, branches: Sequence[BranchName]) -> list[OpenUploadRow]:
    """Return the open uploads to these branches: `UPLOADS`, and one more if there are more."""
    rows: list[OpenUploadRow] = []
    for branch in branches:
        with suppress(BranchNotFound):  # it was deleted meanwhile
            page = list_uploads(repo.context, branch, amount=UPLOADS + 1 - len(rows))
            rows += [_upload_row(repo, upload) for upload in page.uploads]
        if len(rows) > UPLOADS:
            break
    return rows


def _upload_row(repo: Repository, upload: RegisteredUpload) -> OpenUploadRow:
    written = list(islice(repo.context.uploads.scan_parts(upload.name.upload_id), PARTS_MAX + 1))
    parts = multipart.newest_parts(written[:PARTS_MAX]).values()
    amount = Amount(len(parts), sum_sizes(item.part.size_bytes for item in parts))
    return OpenUploadRow(upload.name, upload.record, amount, len(written) > PARTS_MAX)
