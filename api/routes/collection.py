"""The collection of committed history: its rules, its marks, and what lakeFS's own collector asks for."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import structlog
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.answers import answer, nothing, page_of
from api.auth import Operator, Reader
from api.models import (
    CollectionStatus,
    GarbageCollectionPrepareResponse,
    GarbageCollectionRule,
    GarbageCollectionRules,
    MarkedCommit,
    MarkedCommitList,
    MarkRun,
    MarkRunList,
    PrepareGCUncommittedRequest,
    PrepareGCUncommittedResponse,
    Unmarked,
)
from api.naming import NamedRoute
from api.params import AMOUNT, After, Amount, amount_of
from api.routes import failures
from api.service import ServiceOf
from api.stats import namespace_of
from refstore.errors import NotFound, RefstoreError
from refstore.flows import preparing, unmarking
from refstore.marks import Marks, Run
from refstore.repository import Repository
from refstore.retention.rules import BranchRule, GcRules, gc_rules

router = APIRouter(prefix="/repositories/{repository}", tags=["collection"], route_class=NamedRoute)
RUNS_MAX = 1000
_log = structlog.stdlib.get_logger(__name__)
Pin = Annotated[bool, Query(description="Whether to add the commits to the pins of the rules first, so that no run marks them again.")]

_RULES = "/settings/gc_rules"
_INTERNAL_RULES = "/gc/rules"


@router.get(_RULES, operation_id="getGCRules", responses={200: {"model": GarbageCollectionRules}, **failures()})
@router.get(
    _INTERNAL_RULES, operation_id="internalGetGarbageCollectionRules", responses={200: {"model": GarbageCollectionRules}, **failures()}
)
async def get_rules(service: ServiceOf, who: Reader, repository: str) -> Response:
    """What lakeFS's format can say of the rules; `refstore retention get` has all of them."""
    del who

    def read(repo: Repository) -> GarbageCollectionRules:
        found = repo.retention()
        shown = gc_rules(found.rules) if found is not None else None
        if shown is None:
            raise NotFound(f"repository {repository!r} has no such rules; set some with setGCRules, or: refstore retention set")
        rules = [GarbageCollectionRule(branch_id=rule.branch_id, retention_days=rule.retention_days) for rule in shown.branches]
        return GarbageCollectionRules(default_retention_days=shown.default_retention_days, branches=rules)

    return answer(await service.repository(repository, read))


@router.put(_RULES, operation_id="setGCRules", status_code=204, responses=failures(409))
@router.post(_INTERNAL_RULES, operation_id="internalSetGarbageCollectionRules", status_code=204, responses=failures(409))
async def set_rules(service: ServiceOf, who: Operator, repository: str, body: GarbageCollectionRules) -> Response:
    """Set what lakeFS's format can say; pins, holds and the rest stay as they are.

    The answer has no place for what may not have been meant (a branch that is mistyped), so the log tells it.
    """
    rules = GcRules(body.default_retention_days, tuple(BranchRule(rule.branch_id, rule.retention_days) for rule in body.branches))

    def set_(repo: Repository) -> None:
        repo.set_gc_rules(rules, by=who.key_id)
        with suppress(RefstoreError):  # the rules are set, whether they can be reviewed or not
            for warning in repo.review_retention().warnings:
                _log.warning("retention_rules", repository=repository, by=who.key_id, warning=warning)

    await service.repository(repository, set_)
    return nothing()


@router.delete(_RULES, operation_id="deleteGCRules", status_code=204, responses=failures(409))
@router.delete(_INTERNAL_RULES, operation_id="internalDeleteGarbageCollectionRules", status_code=204, responses=failures(409))
async def delete_rules(service: ServiceOf, who: Operator, repository: str) -> Response:
    await service.repository(repository, lambda repo: repo.set_gc_rules(None, by=who.key_id))
    return nothing()


@router.get("/gc/rules/set_allowed", operation_id="setGarbageCollectionRulesPreflight", status_code=204, responses=failures())
async def rules_preflight(service: ServiceOf, who: Operator, repository: str) -> Response:
    """204 if this key may set the rules."""
    del who
    await service.repository(repository, lambda repo: repo.name)
    return nothing()


@router.post(
    "/gc/prepare_commits",
    operation_id="prepareGarbageCollectionCommits",
    status_code=201,
    responses={201: {"model": GarbageCollectionPrepareResponse}, **failures(409)},
)
async def prepare_commits(service: ServiceOf, who: Operator, repository: str) -> Response:
    """Write down which commits are active and which have expired, for a collector that reads files."""
    del who

    def write(repo: Repository) -> GarbageCollectionPrepareResponse:
        run = preparing.commits(repo.context)
        base = namespace_of(repo.context)
        return GarbageCollectionPrepareResponse(
            run_id=run.run_id, gc_commits_location=f"{base}/{run.commits_key}", gc_addresses_location=f"{base}/{run.addresses_prefix}"
        )

    return answer(await service.repository(repository, write), 201)


@router.post(
    "/gc/prepare_uncommited",  # lakeFS's spelling
    operation_id="prepareGarbageCollectionUncommitted",
    status_code=201,
    responses={201: {"model": PrepareGCUncommittedResponse}, **failures(409)},
)
async def prepare_uncommitted(
    service: ServiceOf, who: Operator, repository: str, body: PrepareGCUncommittedRequest | None = None
) -> Response:
    """Write down what uncommitted entries name, a part at a time; an answer without a continuation token is the last."""
    del who
    token = body.continuation_token if body is not None else None

    def write(repo: Repository) -> PrepareGCUncommittedResponse:
        run = preparing.uncommitted(repo.context, token)
        return PrepareGCUncommittedResponse(
            run_id=run.run_id,
            gc_uncommitted_location=f"{namespace_of(repo.context)}/{run.prefix}",
            continuation_token=run.continuation_token,
        )

    return answer(await service.repository(repository, write), 201)


@router.get("/gc/status", operation_id="collectionStatus", responses={200: {"model": CollectionStatus}, **failures()})
async def status(request: Request, service: ServiceOf, who: Reader, repository: str) -> Response:
    def read(repo: Repository) -> CollectionStatus:
        marks = Marks(repo.context)
        on = marks.on()
        return CollectionStatus(running=on.mark_id if on is not None else None, runs=_runs(marks))

    return answer(await service.read(request, who.key_id, repository, read))


@router.get("/gc/marks", operation_id="listMarks", responses={200: {"model": MarkRunList}, **failures()})
async def list_marks(request: Request, service: ServiceOf, who: Reader, repository: str) -> Response:
    """The runs of marking, newest first."""
    return answer(await service.read(request, who.key_id, repository, lambda repo: MarkRunList(results=_runs(Marks(repo.context)))))


@router.get("/gc/marks/commits", operation_id="listMarkedCommits", responses={200: {"model": MarkedCommitList}, **failures()})
async def list_marked_commits(
    request: Request, service: ServiceOf, who: Reader, repository: str, after: After = "", amount: Amount = AMOUNT
) -> Response:
    """Commits that are marked, or swept."""

    def read(repo: Repository) -> MarkedCommitList:
        found = (item for item in Marks(repo.context).scan() if item[0] > after)
        results, pagination = page_of(found, amount_of(amount), lambda item: item[0])
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

    return answer(await service.read(request, who.key_id, repository, read))


@router.delete("/gc/marks/{mark}", operation_id="unmark", responses={200: {"model": Unmarked}, **failures(409, 410)})
async def unmark(service: ServiceOf, who: Operator, repository: str, mark: str, pin: Pin = False) -> Response:
    """Make a commit, or all that a mark marked, active again: until its sweep has begun."""

    def work(repo: Repository) -> Unmarked:
        found = unmarking.unmark(repo.context, mark, pin=pin, by=who.key_id)
        return Unmarked(unmarked=found.unmarked, still_expired=len(found.expired), pinned=len(found.commits) if pin else 0)

    return answer(await service.repository(repository, work))


@router.post("/gc/marks/{mark}/confirm", operation_id="confirmMark", responses={200: {"model": MarkRun}, **failures(409)})
async def confirm(service: ServiceOf, who: Operator, repository: str, mark: str) -> Response:
    """Let a mark be swept that the breaker holds back."""
    return answer(await service.repository(repository, lambda repo: _run(Marks(repo.context).confirm(mark, who.key_id))))


def _runs(marks: Marks) -> list[MarkRun]:
    return [_run(run) for run in sorted(marks.runs(), key=lambda run: run.record.began_ms, reverse=True)[:RUNS_MAX]]


def _run(run: Run) -> MarkRun:
    record = run.record
    return MarkRun(
        mark_id=run.mark_id,
        state=run.shown,
        began=record.began_ms // 1000,
        deletes_at=record.deletes_at_ms // 1000,
        finished=_seconds(record.finished_ms),
        tagged=_seconds(record.tagged_ms),
        swept=_seconds(record.swept_ms),
        counts=record.counts,
        swept_counts=record.swept,
        question=record.question,
        confirmed_by=record.confirmed_by,
        ended=record.ended,
    )


def _seconds(at_ms: int) -> int | None:
    return at_ms // 1000 if at_ms else None
