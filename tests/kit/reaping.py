"""The reaper's protocol core as tasks of a scenario, in stages as a pass goes through them.

A pass carries nothing from one of these pieces to the next but the lists that are their arguments here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from refstore.core.ids import Address, CommitId, Token
from refstore.errors import RepositoryNotFound
from refstore.kv.base import Key
from refstore.operations import branch
from refstore.operations.commit_references import process_committed
from refstore.records.branch_records import CommittedTokens, DeletedToken
from refstore.versioning import due_hints
from refstore.versioning.due_hints import DueHint
from refstore.versioning.markers import REPOSITORY_DELETED_CAUSE
from refstore_reaper import deletion, reference_release, scrub
from tests.kit.replay import Stage, Then
from tests.reaping import delete_batch

if TYPE_CHECKING:
    from tests.kit.domain import Tools

HINTS: Final = 100


def publish() -> tuple[Stage, ...]:
    return (Stage("publish", _publish),)


def process(*, page: int = reference_release.PAGE) -> tuple[Stage, ...]:
    """Markers to released references."""
    return (Stage("committed", _committed, (page,)), Stage("deleted", _deleted, (page,)))


def hard_delete(*, any_hint: bool = False) -> tuple[Stage, ...]:
    """`any_hint`: also of hints that are not due."""
    return (Stage("hints", _hints, (any_hint,)),)


def reap(*, page: int = reference_release.PAGE) -> tuple[Stage, ...]:
    return (*publish(), *process(page=page), *hard_delete())


def scrub_references() -> tuple[Stage, ...]:
    return (Stage("scrub-references", _scrub_references),)


def release_unnamed() -> tuple[Stage, ...]:
    """Only where the clock moves: without ages, the reference of every upload under way counts as old."""
    return (Stage("release-unnamed", _release_unnamed),)


def scrub_tokens() -> tuple[Stage, ...]:
    return (Stage("scrub-tokens", _scrub_tokens),)


def scrub_uploads() -> tuple[Stage, ...]:
    return (Stage("scrub-uploads", _scrub_uploads),)


def settle() -> tuple[Stage, ...]:
    return (
        Stage("close", _close),
        *reap(),
        *scrub_references(),
        *release_unnamed(),
        *scrub_tokens(),
        *scrub_uploads(),
        *hard_delete(),
        Stage("clean", _clean_up),
    )


def _clean_up(tools: Tools) -> Then:
    """End what purges left, where there were any."""
    from tests.kit import purging

    return Then((purging.clean(waits=False),) if tools.ctx.locations.are_announced() else ())


def _publish(tools: Tools) -> None:
    left = reference_release.find_left_branches(tools.ctx)
    reference_release.publish_markers(tools.ctx, left.retired)
    reference_release.end_transactions(tools.ctx, left.run_out)


def _committed(tools: Tools, page: int) -> Then:
    found = list(tools.ctx.markers.scan_committed())
    return Then(tuple(Stage("process-committed", _process_committed, (*item, page)) for item in found))


def _process_committed(tools: Tools, commit: CommitId, marker: CommittedTokens, page: int) -> None:
    process_committed(tools.ctx, commit, marker, page=page)


def _deleted(tools: Tools, page: int) -> Then:
    found = list(tools.ctx.markers.scan_deleted())
    return Then(tuple(Stage("process-deleted", _process_deleted, (*item, page)) for item in found))


def _process_deleted(tools: Tools, token: Token, marker: DeletedToken, page: int) -> None:
    list(reference_release.process_deleted(tools.ctx, token, marker, page=page))


def _hints(tools: Tools, any_hint: bool) -> Then:  # a stage's arguments are positional
    ctx = tools.ctx
    hints = due_hints.scan_due(ctx.kv, ctx.repo, 0, now_ms=None if any_hint else ctx.clock.now_ms(), limit=HINTS)
    read = tuple((hint.key, hint.due_ms, tuple(hint.addresses)) for hint in hints)
    return Then((Stage("delete-batch", _delete_batch, read),) if hints else ())


def _delete_batch(tools: Tools, *hints: tuple[Key, int, tuple[Address, ...]]) -> None:
    due = deletion.due_addresses([DueHint(*hint) for hint in hints])
    delete_batch(tools.ctx, due)


def _scrub_references(tools: Tools) -> None:
    scrub.scrub_references(tools.ctx, 0)


def _release_unnamed(tools: Tools) -> None:
    scrub.release_unnamed(tools.ctx, 0, check_servers=lambda: None)


def _scrub_tokens(tools: Tools) -> None:
    scrub.scrub_tokens(tools.ctx)


def _scrub_uploads(tools: Tools) -> None:
    scrub.scrub_uploads(tools.ctx)


def _close(tools: Tools) -> None:
    """What a reaper does first for a repository that was deleted: close what its deletion left open."""
    try:
        branch.open_record(tools.ctx)
    except RepositoryNotFound:
        branch.close_all(tools.ctx, REPOSITORY_DELETED_CAUSE)
