"""Routes of garbage collection: its rules and its marks."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from refstore.core import event_log
from refstore.errors import NotFound, RefstoreError
from refstore.gc_marks import Marks, OfflineRun
from refstore.monitoring import figures
from refstore.operations import unmark as unmark_operation
from refstore.repository import Repository
from refstore.retention.rules import BranchRule, GcRules, gc_rules
from refstore.service.access_keys import Role
from refstore_api.auth import Operator, Reader
from refstore_api.json_bodies import BodyBound, BoundedBodyRoute
from refstore_api.models import (
    CollectionStatus,
    GarbageCollectionRule,
    GarbageCollectionRules,
    MarkedCommit,
    MarkedCommitList,
    MarkRunList,
    MarkRunModel,
    UnmarkResponse,
)
from refstore_api.page_responses import PageOf
from refstore_api.routes import COMMON, failures
from refstore_http.principals import Principal

router = APIRouter(
    prefix="/repositories/{repository}", tags=["collection"], route_class=BoundedBodyRoute, responses=COMMON
)
RUNS_MAX = 1000
RULES_BODY = BodyBound(4 << 20, values_max=25_000)
"""Rules of 10,000 branches."""
_log = event_log.get_logger(__name__)
Pin = Annotated[
    bool,
    Query(description="Whether to add the commits to the pins of the rules first, so that no run marks them again."),
]

_RULES = "/settings/gc_rules"
_INTERNAL_RULES = "/gc/rules"


@router.get(_RULES, operation_id="getGCRules", response_model=GarbageCollectionRules)
@router.get(_INTERNAL_RULES, operation_id="internalGetGarbageCollectionRules", response_model=GarbageCollectionRules)
async def get_rules(call: Reader) -> Response:
    """Return the rules as far as lakeFS's format can express them; `refstore retention get` returns all."""

    def read(repo: Repository) -> GarbageCollectionRules:
        retention = repo.retention()
        lakefs_rules = gc_rules(retention.rules) if retention is not None else None
        if lakefs_rules is None:
            raise NotFound(
                f"repository {repo.name!r} has no such rules; set some with setGCRules, or: refstore retention set"
            )
        rules = [
            GarbageCollectionRule(branch_id=rule.branch_id, retention_days=rule.retention_days)
            for rule in lakefs_rules.branches
        ]
        return GarbageCollectionRules(default_retention_days=lakefs_rules.default_retention_days, branches=rules)

    return await call.answer(read)


@router.put(_RULES, operation_id="setGCRules", status_code=204, responses=failures(409))
@router.post(
    _INTERNAL_RULES, operation_id="internalSetGarbageCollectionRules", status_code=204, responses=failures(409)
)
async def set_rules(call: Operator, body: Annotated[GarbageCollectionRules, RULES_BODY]) -> Response:
    """Set what lakeFS's format can express; pins, holds and the other rules stay as they are.

    The answer has no field for warnings, such as a mistyped branch, so the service logs them.
    """
    rules = GcRules(
        body.default_retention_days, tuple(BranchRule(rule.branch_id, rule.retention_days) for rule in body.branches)
    )

    by = call.principal.key_id

    def set_(repo: Repository) -> None:
        repo.set_gc_rules(rules, by=by)
        with suppress(RefstoreError):  # the rules are set already, even if their review fails
            for warning in repo.review_retention().warnings:
                _log.warning("retention_rules", repository=repo.name, by=by, warning=warning)

    return await call.act(set_)


@router.delete(_RULES, operation_id="deleteGCRules", status_code=204, responses=failures(409))
@router.delete(
    _INTERNAL_RULES, operation_id="internalDeleteGarbageCollectionRules", status_code=204, responses=failures(409)
)
async def delete_rules(call: Operator) -> Response:
    return await call.act(lambda repo: repo.set_gc_rules(None, by=call.principal.key_id))


@router.get("/gc/rules/set_allowed", operation_id="setGarbageCollectionRulesPreflight", status_code=204)
async def rules_preflight(call: Operator) -> Response:
    """Answer 204 if this key may set the rules."""
    return await call.act(lambda repo: repo.name)


@router.get("/gc/status", operation_id="collectionStatus", response_model=CollectionStatus)
async def status(call: Reader) -> Response:
    def read(repo: Repository) -> CollectionStatus:
        marks = Marks(repo.context)
        on = marks.runs.read_flag()
        runs = _run_models(marks, call.principal)
        return CollectionStatus(running=on.mark_id if on is not None else None, runs=runs)

    return await call.read(read)


@router.get("/gc/marks", operation_id="listMarks", response_model=MarkRunList)
async def list_marks(call: Reader) -> Response:
    """List the mark runs, newest first."""
    return await call.read(lambda repo: MarkRunList(results=_run_models(Marks(repo.context), call.principal)))


@router.get("/gc/marks/commits", operation_id="listMarkedCommits", response_model=MarkedCommitList)
async def list_marked_commits(call: Reader, page: PageOf) -> Response:
    """List the marked and swept commits: not those that the run under way has yet to examine."""

    def read(repo: Repository) -> MarkedCommitList:
        marks = Marks(repo.context)
        unfinished_marks = {run.mark_id for run in marks.runs.scan() if not run.has_finished_marking}
        marked_commits = (
            item for item in marks.commits.scan() if item[0] > page.after and item[1].mark_id not in unfinished_marks
        )
        results, pagination = page.take(marked_commits, lambda item: item[0])
        return MarkedCommitList(
            pagination=pagination,
            results=[
                MarkedCommit(
                    commit_id=commit,
                    mark_id=mark.mark_id,
                    since=mark.since_ms // 1000,
                    deletes_at=mark.deletes_at_ms // 1000,
                    tagged=_seconds(mark.tagged_ms),
                    swept=_seconds(mark.swept_ms),
                    expired_prefixes=list(mark.prefixes) or None,
                )
                for commit, mark in results
            ],
        )

    return await call.read(read)


@router.delete("/gc/marks/{mark}", operation_id="unmark", response_model=UnmarkResponse, responses=failures(409, 410))
async def unmark(call: Operator, mark: str, pin: Pin = False) -> Response:
    """Make a commit, or all commits of a mark, active again, until the sweep begins."""

    def work(repo: Repository) -> UnmarkResponse:
        result = unmark_operation.unmark(repo.context, mark, pin=pin, by=call.principal.key_id)
        figures.write_marks(repo.context)
        return UnmarkResponse(
            unmarked_commits=result.unmarked_commits,
            expired_commits=len(result.expired_commits),
            pinned_commits=len(result.commits) if pin else 0,
        )

    return await call.answer(work)


@router.post(
    "/gc/marks/{mark}/confirm", operation_id="confirmMark", response_model=MarkRunModel, responses=failures(409)
)
async def confirm(call: Operator, mark: str) -> Response:
    """Confirm the sweep of a mark that the breaker holds back."""

    def confirm_(repo: Repository) -> MarkRunModel:
        marks = Marks(repo.context)
        confirmed = marks.decisions.confirm(mark, call.principal.key_id)
        figures.write_marks(repo.context)
        return _run_model(marks, confirmed, call.principal)

    return await call.answer(confirm_)


def _run_models(marks: Marks, caller: Principal) -> list[MarkRunModel]:
    newest = sorted(marks.runs.scan(), key=lambda run: run.record.began_ms, reverse=True)[:RUNS_MAX]
    return [_run_model(marks, run, caller) for run in newest]


def _run_model(marks: Marks, run: OfflineRun, caller: Principal) -> MarkRunModel:
    """Return the run. Only operators learn which fault of a store ended it."""
    record = run.record
    return MarkRunModel(
        mark_id=run.mark_id,
        state=run.state_text,
        began=record.began_ms // 1000,
        deletes_at=_seconds(record.deletes_at_ms) if run.has_finished_marking else None,
        finished=_seconds(record.finished_ms),
        tagged=_seconds(record.tagged_ms),
        swept=_seconds(record.swept_ms),
        counts=marks.statuses.read_counts(run),
        swept_counts=record.sweep_counts,
        question=record.question,
        confirmed_by=record.confirmed_by,
        end_reason=record.end_reason if caller.role >= Role.OPERATOR else record.end_reason.partition(":")[0],
    )


def _seconds(at_ms: int) -> int | None:
    return at_ms // 1000 if at_ms else None
