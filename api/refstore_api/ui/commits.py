"""The pages of a repository's commits: their states, when each expires, and why it is kept (seed 003)."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Query
from starlette.responses import Response

from refstore.core.ids import CommitId
from refstore.errors import Gone
from refstore.operations import refs as refs_
from refstore.operations import rules_document
from refstore.operations.log_and_diff import CommitLifetime, LogEntry, changes_of
from refstore.public_types import stored_commit
from refstore.repository import Repository
from refstore.retention import rule_explanation
from refstore.retention.active_commits import FOREVER_MS, CommitExpiry, ExpiryState, Refs
from refstore.retention.path_rules import make_plan
from refstore.retention.rules import Rules
from refstore.versioning.commits.tree_diff import EntryChange
from refstore_api.encoded_slashes import EncodedNameRoute
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.pages import ms_of
from refstore_api.ui.sessions import ReaderSession

router = APIRouter(prefix=f"{PATH}/repositories/{{repository}}/commits", route_class=EncodedNameRoute)

PAGE: Final = 50
SKIP_MAX: Final = 10_000
"""How far a log is paged: each page reads the log from its beginning."""
CHANGES: Final = 100
REASONS: Final = 20


class CommitStateText(NamedTuple):
    """What a page says of a commit."""

    text: str
    kind: str
    """`good`, `warn` or `bad`."""
    at_ms: int
    """When its data goes, or went; when it expires. 0: not known, or never."""


class _RulesExpiry(NamedTuple):
    rules: Rules
    refs: Refs
    expiry: CommitExpiry


@router.get("")
async def log(
    session: ReaderSession,
    ref: Annotated[str, Query(max_length=255)] = "",
    skip: Annotated[int, Query(ge=0, le=SKIP_MAX)] = 0,
) -> Response:
    def work(repo: Repository) -> Response:
        name = ref or repo.default_branch
        entries = list(islice(repo.history(name), skip, skip + PAGE + 1))
        known = _compute_expiry(repo)
        return session.render(
            "commits.html",
            ref=name,
            rows=[(entry, describe_state(entry, known and known.expiry)) for entry in entries[:PAGE]],
            skip=skip,
            next_skip=skip + PAGE if len(entries) > PAGE and skip + PAGE <= SKIP_MAX else 0,
            page_size=PAGE,
            has_rules=known is not None,
        )

    return await session.read(work)


@router.get("/{commit}")
async def show(session: ReaderSession, commit: str) -> Response:
    def work(repo: Repository) -> Response:
        commit_id = refs_.resolve(repo.context, commit).commit
        entry = next(iter(repo.history(commit_id)))
        known = _compute_expiry(repo)
        reasons = (
            rule_explanation.hold_reasons(known.expiry, known.refs, known.rules, commit_id)
            if known is not None and commit_id in known.expiry.history.numbers
            else []
        )
        changes, hidden = list[EntryChange](), ""
        try:
            changes = list(islice(changes_of(repo.context, commit_id), CHANGES + 1))
        except Gone as error:
            hidden = str(error)
        return session.render(
            "commit.html",
            commit=commit_id,
            record=stored_commit(entry.commit),
            mark=entry.mark,
            state=describe_state(entry, known and known.expiry),
            reasons=reasons[:REASONS],
            forever_ms=FOREVER_MS,
            changes=changes[:CHANGES],
            more_changes=len(changes) > CHANGES,
            hidden=hidden,
            lifetime=entry.lifetime,
            lifetimes=CommitLifetime,
        )

    return await session.read(work)


def describe_state(entry: LogEntry, expiry: CommitExpiry | None) -> CommitStateText:
    """Return the state of a commit, as `refstore log` and the API name it, with what that means, and when."""
    mark = entry.mark
    match entry.lifetime:
        case CommitLifetime.ACTIVE:
            return _active_state(entry.commit.id, expiry)
        case CommitLifetime.NOTHING_TO_DELETE as state:
            return CommitStateText(f"{state.value}: other commits keep all of its data", "good", 0)
        case CommitLifetime.EXAMINED as state:
            return CommitStateText(f"{state.value}: a run is finding out whether anything of it goes", "warn", 0)
        case CommitLifetime.MARKED | CommitLifetime.PARTLY_MARKED | CommitLifetime.PARTLY_SWEPT_MARKED as state:
            return CommitStateText(f"{state.value}: scheduled for deletion", "warn", ms_of(mark and mark.deletes_at))
        case CommitLifetime.SWEPT | CommitLifetime.PARTLY_SWEPT as state:
            return CommitStateText(f"{state.value}: data has been deleted", "bad", ms_of(mark and mark.swept))
        case state:
            return CommitStateText(f"{state.value}: data is being deleted", "bad", ms_of(mark and mark.sweeping_since))


def _active_state(commit: CommitId, expiry: CommitExpiry | None) -> CommitStateText:
    number = expiry.history.numbers.get(commit) if expiry is not None else None
    if expiry is None or number is None:
        return CommitStateText("active", "good", 0)
    if expiry.state(number) is ExpiryState.EXPIRED:
        return CommitStateText("expired; the next run marks it", "warn", expiry.expires_ms[number])
    until_ms = expiry.expires_ms[number]
    return CommitStateText("active", "good", 0 if until_ms == FOREVER_MS else until_ms)


def _compute_expiry(repo: Repository) -> _RulesExpiry | None:
    """Return until when each commit is active; None: the repository has no rules."""
    retention = repo.retention()
    if retention is None:
        return None
    history, refs = rules_document.read_history(repo.context)
    current = make_plan(history, refs, retention.rules, repo.context.clock.now_ms())
    return _RulesExpiry(retention.rules, refs, current.expiry)
