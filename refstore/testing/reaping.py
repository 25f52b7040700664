"""The reaper's protocol core as tasks of a scenario, in stages as a cycle goes through them.

A cycle carries nothing from one of these pieces to the next but the lists that are their arguments here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from reaper import deletion, processing, scrub
from reaper.deletion import Hint
from reaper.processing import Doomed
from refstore.errors import RepositoryNotFound
from refstore.flows import branching
from refstore.ids import CommitId, Token
from refstore.markers import REPOSITORY_DELETED, Markers
from refstore.objects.base import Deletion
from refstore.records import CommittedTokens, DeletedToken
from refstore.testing.replay import Stage, Then

if TYPE_CHECKING:
    from refstore.testing.domain import Tools

HINTS: Final = 100


class NoJournal:
    """A journal's objects are written once under new names: they touch nothing of the protocol."""

    def began(self, doomed: Sequence[Doomed]) -> None: ...

    def ended(self, doomed: Sequence[Doomed], confirmed: Deletion) -> None: ...


def publish() -> tuple[Stage, ...]:
    return (Stage("publish", _publish),)


def process(*, direct: bool = False, page: int = processing.PAGE) -> tuple[Stage, ...]:
    """Markers to released references. `direct`: no grace, and what is released is deleted at once."""
    return (Stage("committed", _committed, (page,)), Stage("deleted", _deleted, (direct, page)))


def hard_delete() -> tuple[Stage, ...]:
    return (Stage("hints", _hints),)


def reap(*, direct: bool = False, page: int = processing.PAGE) -> tuple[Stage, ...]:
    return (*publish(), *process(direct=direct, page=page), *hard_delete())


def scrub_references() -> tuple[Stage, ...]:
    return (Stage("scrub-references", _scrub_references),)


def scrub_tokens() -> tuple[Stage, ...]:
    return (Stage("scrub-tokens", _scrub_tokens),)


def settle() -> tuple[Stage, ...]:
    return (Stage("close", _close), *reap(), *scrub_references(), *scrub_tokens(), *hard_delete())


def _publish(tools: Tools) -> None:
    processing.publish(tools.ctx)


def _committed(tools: Tools, page: int) -> Then:
    found = list(Markers(tools.ctx.kv, tools.ctx.repo, tools.ctx.clock).committed())
    return Then(tuple(Stage("process-committed", _process_committed, (*item, page)) for item in found))


def _process_committed(tools: Tools, commit: CommitId, marker: CommittedTokens, page: int) -> None:
    processing.process_committed(tools.ctx, commit, marker, page=page)


def _deleted(tools: Tools, direct: bool, page: int) -> Then:  # a stage's arguments are positional
    found = list(Markers(tools.ctx.kv, tools.ctx.repo, tools.ctx.clock).deleted())
    return Then(tuple(Stage("process-deleted", _process_deleted, (*item, direct, page)) for item in found))


def _process_deleted(tools: Tools, token: Token, marker: DeletedToken, direct: bool, page: int) -> None:
    ctx = tools.ctx

    def delete_now(doomed: list[Doomed]) -> None:
        deletion.destroy_unhinted(ctx, doomed, NoJournal())

    processing.process_deleted(ctx, token, marker, grace_seconds=ctx.grace_seconds, delete_now=delete_now if direct else None, page=page)


def _hints(tools: Tools) -> Then:
    found = deletion.due_hints(tools.ctx, 0, now_ms=tools.ctx.clock.now_ms(), limit=HINTS)
    return Then((Stage("condemn", _condemn, tuple(found)),) if found else ())


def _condemn(tools: Tools, *hints: Hint) -> Then:
    doomed, stale = deletion.condemn(tools.ctx, hints, grace_seconds=tools.ctx.grace_seconds)
    done = {item.address for item in doomed}
    followed = (*stale, *(hint for hint in hints if hint.address in done and hint not in stale))
    return Then((Stage("destroy", _destroy, (tuple(doomed), followed)),))


def _destroy(tools: Tools, doomed: tuple[Doomed, ...], hints: tuple[Hint, ...]) -> None:
    failed = deletion.destroy(tools.ctx, doomed, NoJournal()).failed
    deletion.drop_hints(tools.ctx, [hint for hint in hints if hint.address not in failed])


def _scrub_references(tools: Tools) -> None:
    scrub.scrub_references(tools.ctx, 0, grace_seconds=tools.ctx.grace_seconds)


def _scrub_tokens(tools: Tools) -> None:
    scrub.scrub_tokens(tools.ctx)


def _close(tools: Tools) -> None:
    """What a reaper does first for a repository that was deleted: close what its deletion left open."""
    try:
        branching.check_open(tools.ctx)
    except RepositoryNotFound:
        branching.close_all(tools.ctx, REPOSITORY_DELETED)
