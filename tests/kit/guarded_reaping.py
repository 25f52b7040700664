"""A reaper's pass with the fence of rule 21, as tasks of a scenario, in stages as a pass goes through them.

What a pass carries from one stage to the next is what its fence knows: that is an argument of each stage. A pass whose
look finds a loss, or that has to wait, ends there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from refstore.core.ids import CommitId, Token
from refstore.kv.base import ABSENT
from refstore.kv_recovery import settlement
from refstore.kv_recovery.fence import PositionFence
from refstore.kv_recovery.manifest_check import check_repository
from refstore.operations.commit_references import delete_added_references, process_committed
from refstore.records import keys
from refstore.records.branch_records import CommittedTokens, DeletedToken
from refstore.records.encoding import decode
from refstore.versioning import due_hints
from refstore.versioning.manifest import AnyEntry, CommitLanded
from refstore_reaper import deletion, reference_release, scrub
from tests.kit.reaping import HINTS, publish
from tests.kit.replay import Stage, Then
from tests.reaping import delete_batch

if TYPE_CHECKING:
    from tests.kit.domain import Tools


class Known(NamedTuple):
    """What a fence knows, between two stages of a pass."""

    deleter: str
    servers: tuple[tuple[str, str], ...]
    written: tuple[tuple[str, bytes], ...]


SCRUB: Final = "scrub"


def reap(number: int = 1) -> tuple[Stage, ...]:
    """`number`: tells the passes of one task apart."""
    return (Stage(f"begin-{number}", _begin, (number, False)),)


def scrub_all(number: int = 1) -> tuple[Stage, ...]:
    return (Stage(f"begin-scrub-{number}", _begin, (number, True)),)


def settle() -> tuple[Stage, ...]:
    return (*reap(1), *scrub_all(2), *reap(3))


def _begin(tools: Tools, number: int, scrubs: bool) -> Then:  # a stage's arguments are positional
    ctx = tools.ctx
    deleter = f"{ctx.ids.new_id(0)}-{number}{SCRUB if scrubs else ''}"
    fence = _fence(tools, deleter)

    def settle_all() -> None:
        tools.stores.wait_for_others()
        check_repository(ctx, servers_changed=True)
        settlement.settle_repository(ctx)

    fence.begin(settle_all)
    waiting = tuple(check_repository(ctx))
    written = tuple(fence._written.items())  # pyright: ignore[reportPrivateUsage]  # as a pass would keep it
    known = Known(deleter, tuple(fence.servers.items()), written)
    finish = Stage("finish", _finish, (known, waiting))
    if scrubs:
        return Then((Stage("scrub-all", _scrub, (known,)), finish))
    committed, deleted = Stage("committed", _committed, (known,)), Stage("deleted", _deleted, (known,))
    return Then((*publish(), committed, deleted, finish))


def _committed(tools: Tools, known: Known) -> Then:
    found = [commit for commit, _ in tools.ctx.markers.scan_committed()]
    return Then(tuple(Stage("process-committed", _process_committed, (known, commit)) for commit in found))


def _process_committed(tools: Tools, known: Known, commit: CommitId) -> None:
    ctx = tools.ctx
    _fence_of(tools, known).check_servers()
    raw = ctx.kv.get(keys.committed_marker(ctx.repo, commit))
    if raw is not ABSENT:
        marker = decode(raw, CommittedTokens)
        if not ctx.branches.has_live(marker.tokens):
            process_committed(ctx, commit, marker)


def _deleted(tools: Tools, known: Known) -> Then:
    found = [token for token, _ in tools.ctx.markers.scan_deleted()]
    return Then(tuple(Stage("process-deleted", _process_deleted, (known, token)) for token in found))


def _process_deleted(tools: Tools, known: Known, token: Token) -> None:
    ctx = tools.ctx
    _fence_of(tools, known).check_servers()
    raw = ctx.kv.get(keys.deleted_token(ctx.repo, token))
    if raw is not ABSENT and not ctx.branches.has_live([token]):
        marker = decode(raw, DeletedToken)
        list(reference_release.process_deleted(ctx, token, marker))


def _scrub(tools: Tools, known: Known) -> None:
    ctx = tools.ctx
    _fence_of(tools, known).check_servers()
    scrub.scrub_references(ctx, 0)
    scrub.scrub_tokens(ctx)


def _finish(tools: Tools, known: Known, waiting: tuple[AnyEntry, ...]) -> None:
    ctx = tools.ctx
    fence = _fence_of(tools, known)
    hints = due_hints.scan_due(ctx.kv, ctx.repo, 0, now_ms=ctx.clock.now_ms(), limit=HINTS)
    delete_batch(ctx, deletion.due_addresses(hints), fence)
    _confirm(tools, fence, waiting)


def _confirm(tools: Tools, fence: PositionFence, waiting: tuple[AnyEntry, ...]) -> None:
    ctx = tools.ctx
    commits = [entry.commit for entry in waiting if isinstance(entry, CommitLanded)]
    markers = ctx.kv.get_many([keys.committed_marker(ctx.repo, commit) for commit in commits]) if commits else []
    unfinished = {commit for commit, marker in zip(commits, markers, strict=True) if marker is not ABSENT}
    for commit in commits:
        if commit not in unfinished:
            delete_added_references(ctx, commit)
    done = [entry for entry in waiting if not (isinstance(entry, CommitLanded) and entry.commit in unfinished)]
    if done:
        fence.pass_through()
        ctx.manifest.confirm(done, ctx.ids.new_id(0))


def _fence(tools: Tools, deleter: str) -> PositionFence:
    ctx = tools.ctx
    return PositionFence(ctx.kv, ctx.lake_objects, ctx.clock, ctx.durations, deleter)


def _fence_of(tools: Tools, known: Known) -> PositionFence:
    fence = _fence(tools, known.deleter)
    # as if it were the object with which the pass began
    fence._servers = dict(known.servers)  # pyright: ignore[reportPrivateUsage]  # what it has seen
    fence._written = dict(known.written)  # pyright: ignore[reportPrivateUsage]  # likewise
    return fence
