"""Routes of refs: log, differences, merges; and single commits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from refstore.errors import CommitNotFound, Contention
from refstore.operations import log_and_diff
from refstore.repository import Repository
from refstore_api.auth import Reader, Writer
from refstore_api.commit_responses import (
    DiffEntry,
    commit_model,
    commit_models,
    diff_page,
    differences,
    filter_log,
    merge_differences,
    size_of,
)
from refstore_api.json_bodies import BoundedBodyRoute
from refstore_api.models import (
    CommitList,
    CommitModel,
    DiffList,
    FindMergeBaseResult,
    MergeConflictResult,
    MergeModel,
    MergeResult,
    PathText,
)
from refstore_api.page_responses import PageOf
from refstore_api.routes import COMMON, failures
from refstore_api.shared_parameters import COMMIT_BODY, Delimiter, Prefix
from refstore_http.http_errors import BranchContention

router = APIRouter(prefix="/repositories/{repository}", tags=["refs"], route_class=BoundedBodyRoute, responses=COMMON)
FILTERS_MAX = 100


@router.get("/commits/{commit_id}", operation_id="getCommit", tags=["commits"], response_model=CommitModel)
async def get_commit(call: Reader, commit_id: str) -> Response:
    """Return the commit of any ref."""
    return await call.answer(lambda repo: commit_model(repo, repo.get_commit(commit_id)))


@dataclass(frozen=True, slots=True)
class LogFilters:
    """Which commits a log has."""

    objects: Annotated[
        list[PathText] | None, Query(max_length=FILTERS_MAX, description="Only commits that changed one of these.")
    ] = None
    prefixes: Annotated[
        list[PathText] | None,
        Query(max_length=FILTERS_MAX, description="Only commits that changed something below one of these."),
    ] = None
    first_parent: bool = False
    since: Annotated[
        datetime | None, Query(description="Only commits from this time on; the log ends at the first older one.")
    ] = None
    stop_at: Annotated[str | None, Query(max_length=512, description="The last commit to show.")] = None

    @property
    def since_utc(self) -> datetime | None:
        return self.since if self.since is None or self.since.tzinfo else self.since.replace(tzinfo=UTC)


@router.get("/refs/{ref}/commits", operation_id="logCommits", response_model=CommitList)
async def log_commits(
    call: Reader,
    ref: str,
    filters: Annotated[LogFilters, Depends()],
    page: PageOf,
    limit: Annotated[bool, Query(description="Do not say whether there is more.")] = False,
) -> Response:
    def read(repo: Repository) -> CommitList:
        commits = filter_log(
            repo,
            ref,
            after=page.after,
            first_parent=filters.first_parent,
            objects=filters.objects or [],
            prefixes=filters.prefixes or [],
            since=filters.since_utc,
            stop_at=filters.stop_at,
        )
        results, pagination = page.take(commits, lambda commit: commit.id, size_of)
        if limit:
            pagination.has_more = False
        return CommitList(pagination=pagination, results=commit_models(repo, results))

    return await call.read(read)


@router.get(
    "/refs/{left_ref}/diff/{right_ref}", operation_id="diffRefs", response_model=DiffList, responses=failures(410)
)
async def diff_refs(
    call: Reader,
    left_ref: str,
    right_ref: str,
    page: PageOf,
    prefix: Prefix = "",
    delimiter: Delimiter = "",
    type: Annotated[  # noqa: A002  # lakeFS's word
        Literal["two_dot", "three_dot"],
        Query(description="three_dot: what merging the right one into the left one would do."),
    ] = "three_dot",
) -> Response:
    def read(repo: Repository) -> DiffList:
        left, right = (log_and_diff.resolve_shown(repo.context, ref) for ref in (left_ref, right_ref))
        base = repo.merge_base(left, other=right) if type == "three_dot" else left
        if base is None:
            raise CommitNotFound(f"{left_ref!r} and {right_ref!r} have no common history; use type=two_dot")

        def read_changes(start: str) -> Iterator[DiffEntry]:
            if type == "two_dot":
                return differences(log_and_diff.diff_commits(repo.context, left, right, prefix=prefix, after=start))
            return merge_differences(repo, left, base, right, prefix=prefix, after=start)

        return diff_page(read_changes, page, prefix, delimiter)

    return await call.read(read)


@router.get(
    "/refs/{source_ref}/merge/{destination_branch}", operation_id="findMergeBase", response_model=FindMergeBaseResult
)
async def find_merge_base(call: Reader, source_ref: str, destination_branch: str) -> Response:
    def read(repo: Repository) -> FindMergeBaseResult:
        return FindMergeBaseResult(
            source_commit_id=repo.get_commit(source_ref).id,
            destination_commit_id=repo.get_commit(destination_branch).id,
            base_commit_id=repo.merge_base(source_ref, other=destination_branch) or "",
        )

    return await call.read(read)


@router.post(
    "/refs/{source_ref}/merge/{destination_branch}",
    operation_id="mergeIntoBranch",
    response_model=MergeResult,
    responses={**failures(410, 412), 409: {"model": MergeConflictResult}},
)
async def merge(
    call: Writer, source_ref: str, destination_branch: str, body: Annotated[MergeModel | None, COMMIT_BODY] = None
) -> Response:
    options = body or MergeModel()

    def make(repo: Repository) -> MergeResult:
        try:
            merged = repo.merge(
                source_ref,
                into=destination_branch,
                message=options.message or "",
                strategy=options.strategy or "",
                squash=options.squash_merge,
                committer=call.principal.key_id,
                metadata=options.metadata or {},
                allow_empty=options.allow_empty,
            )
        except Contention as error:
            raise BranchContention(str(error)) from error
        return MergeResult(reference=merged.id)

    return await call.answer(make)
