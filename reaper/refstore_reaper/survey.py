"""Measure a repository, and write what operators see of it (`refstore/monitoring/figures.py`).

A survey reads what is staged and every reference of the repository, so reapers share one: whoever finds the last one
old makes the next one. A survey takes at most a twentieth of a reaper's time. Figures never stop a reaper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from refstore.context import Context
from refstore.core import event_log
from refstore.core.batches import split_batches
from refstore.core.ids import BranchName, RepositoryId, is_own
from refstore.core.redaction import redact_text
from refstore.core.units import sum_sizes
from refstore.errors import CorruptRecord, NotFound, RefstoreError
from refstore.kv.base import ABSENT
from refstore.monitoring import figures
from refstore.operations import refs, trash
from refstore.records import keys
from refstore.records.branch_records import StoredBranch, decode_branch
from refstore.records.figure_records import Amount, ReaperFigures
from refstore.records.reference_records import Deleting, Emptied, decode_reference_many
from refstore.records.repository_records import RepositoryRecord
from refstore.records.staging_records import StoredEntry, decode_staged_many
from refstore.versioning.address_state import may_delete
from refstore_reaper import breaker
from refstore_reaper.pass_summary import PassSummary

SURVEY_SECONDS: Final = 60.0
"""The least time between two surveys of a repository."""
SURVEY_SHARE: Final = 20
"""A survey comes this many times its own duration after the one before."""
WRITE_SECONDS: Final = 5.0
"""How long what was reclaimed waits for being written, at most."""
PAGE: Final = 5000
ERROR_CHARACTERS: Final = 300
NOTHING: Final = Amount()

T = TypeVar("T")

_log = event_log.get_logger(__name__)


@dataclass(slots=True)
class _Unwritten:
    """What a repository's figures do not have yet."""

    ctx: Context
    record: RepositoryRecord
    has_changed: bool = False
    """Whether a pass did something since the last survey."""
    reclaimed: Amount = NOTHING
    since: float = 0.0
    """When the first of it came, by the monotonic clock."""
    write_id: str = ""
    """Of a write whose reply was lost, with what it wrote: the next write repeats it first."""
    in_doubt: Amount = NOTHING
    error: str | None = None
    """None: as the figures say."""
    last_error: str | None = None
    """Of the last pass. None: there was none."""
    refused: int = 0
    """Objects that the store did not delete in the last pass."""
    looked: float = -SURVEY_SECONDS
    """When the figures were last read, by the monotonic clock."""


@dataclass(slots=True)
class FiguresWriter:
    """Writes the figures of all repositories for one reaper."""

    _unwritten: dict[RepositoryId, _Unwritten] = field(default_factory=dict[RepositoryId, _Unwritten])

    def record_pass(self, ctx: Context, record: RepositoryRecord, summary: PassSummary) -> None:
        """Remember what a pass reclaimed, and why it failed. A deleted repository has no figures."""
        if record.closed_ms:
            self._unwritten.pop(ctx.repo, None)
            return
        own = self._unwritten.setdefault(ctx.repo, _Unwritten(ctx, record))
        own.ctx, own.record = ctx, record
        own.has_changed |= not summary.idle
        if summary.deleted:
            if not own.reclaimed.objects:
                own.since = ctx.clock.monotonic_seconds()
            freed = summary.deleted - summary.kept
            own.reclaimed = Amount(own.reclaimed.objects + freed, own.reclaimed.bytes + summary.bytes)
        first = summary.errors[0] if summary.errors else None
        error = redact_text(f"{first.unit}: {first.message}")[:ERROR_CHARACTERS] if first is not None else ""
        if error != own.last_error or summary.failed != own.refused:
            own.error = own.last_error = error
            own.refused = summary.failed

    def write(self, repo: RepositoryId, go_on: Callable[[], bool], *, is_last: bool = False) -> None:
        """Write what is not written yet, and survey the repository if its figures are old. What a store does not take
        is written later. `is_last`: the reaper ends, so write everything now.
        """
        own = self._unwritten.get(repo)
        if own is None:
            return
        try:
            self._write(own, go_on, is_last=is_last)
        except RefstoreError as error:
            _log.warning("figures_not_written", repository=own.ctx.name, code=error.code, error=str(error))

    def write_all(self, go_on: Callable[[], bool]) -> None:
        """Write everything, because the reaper ends."""
        for repo in list(self._unwritten):
            self.write(repo, go_on, is_last=True)

    def forget_others(self, repositories: Iterable[RepositoryId]) -> None:
        """Forget the repositories that are not there any more."""
        there = set(repositories)
        self._unwritten = {repo: own for repo, own in self._unwritten.items() if repo in there}

    def _write(self, own: _Unwritten, go_on: Callable[[], bool], *, is_last: bool) -> None:
        clock = own.ctx.clock
        now = clock.monotonic_seconds()
        measured: ReaperFigures | None = None
        if is_last or now - own.looked >= SURVEY_SECONDS:
            own.looked = now
            before = figures.read_figures(own.ctx.kv, own.ctx.repo).reaper
            pause_ms = max(SURVEY_SECONDS * 1000, SURVEY_SHARE * before.measuring_ms)
            if not 0 <= clock.now_ms() - before.measured_ms < pause_ms or (is_last and own.has_changed):
                measured = survey(own.ctx, own.record, go_on)
                own.has_changed &= measured is None
        is_waiting = bool(own.reclaimed.objects) and (is_last or now - own.since >= WRITE_SECONDS)
        if own.write_id:
            self._add(own, None)
        if is_waiting or own.error is not None or measured is not None:
            own.in_doubt, own.reclaimed = own.reclaimed, NOTHING
            own.write_id = own.ctx.ids.new_id(clock.now_ms())
            self._add(own, measured)

    def _add(self, own: _Unwritten, measured: ReaperFigures | None) -> None:
        now_ms, error, reclaimed = own.ctx.clock.now_ms(), own.error, own.in_doubt

        def change(before: ReaperFigures) -> ReaperFigures:
            after = (
                before
                if measured is None
                else msgspec.structs.replace(
                    measured, error=before.error, error_ms=before.error_ms, refused_objects=before.refused_objects
                )
            )
            if error is not None:
                after = msgspec.structs.replace(
                    after, error=error, error_ms=now_ms if error else 0, refused_objects=own.refused
                )
            days = figures.add_reclaimed(before.reclaimed, reclaimed, now_ms)
            return msgspec.structs.replace(after, reclaimed=days)

        figures.change_reaper_figures(own.ctx.kv, own.ctx.repo, own.write_id, change)
        own.write_id, own.error = "", None


def survey(ctx: Context, record: RepositoryRecord, go_on: Callable[[], bool]) -> ReaperFigures | None:
    """Measure a repository. Return None if it has to stop before the end. Raises Unavailable, Corrupt."""
    began = ctx.clock.monotonic_seconds()
    try:
        branches, staged = _measure_staged(ctx, go_on)
        released = _measure_released(ctx, go_on)  # before the references: an object moves from there to them
        in_grace, due = _measure_unnamed(ctx, go_on)
    except _SurveyInterruption:
        return None
    in_grace = Amount(in_grace.objects + released.objects, sum_sizes((in_grace.bytes, released.bytes)))
    state = breaker.read_state(ctx.kv, ctx.repo)
    return ReaperFigures(
        measured_ms=ctx.clock.now_ms(),
        measuring_ms=int((ctx.clock.monotonic_seconds() - began) * 1000),
        live=_measure_live(ctx, record.default_branch),
        staged=staged,
        in_grace=in_grace,
        due=due,
        branches=branches,
        versions_warning=_kept_versions(ctx),
        stop_reason=breaker.explain(state),
        kv_went_back=state is not None and bool(state.tripped_ms) and state.reason == breaker.Reason.KV_WENT_BACK.value,
    )


class _SurveyInterruption(Exception):
    """The survey has to stop."""


def _pages(items: Iterable[T], go_on: Callable[[], bool]) -> Iterator[Sequence[T]]:
    """Yield pages. Raises _SurveyInterruption."""
    for page in split_batches(items, PAGE):
        if not go_on():
            raise _SurveyInterruption
        yield page


def _measure_staged(ctx: Context, go_on: Callable[[], bool]) -> tuple[int, Amount]:
    """Return how many branches there are, and what is staged on them."""
    branches = objects = size_bytes = 0
    for _, branch in ctx.branches.scan_open():
        branches += 1
        for page in _pages(ctx.staging.scan_merged(branch.live_tokens, page=PAGE), go_on):
            for entry in decode_staged_many([value for _, value, _ in page]):
                if isinstance(entry, StoredEntry) and is_own(entry.address):
                    objects += 1
                    size_bytes += entry.size_bytes
    return branches, Amount(objects, sum_sizes((size_bytes,)))


def _measure_released(ctx: Context, go_on: Callable[[], bool]) -> Amount:
    """Return what can be restored of which no reaper has begun the grace window."""
    sizes = [(len(page), sum(page)) for page in _pages(trash.trash_sizes(ctx), go_on)]
    return Amount(sum(objects for objects, _ in sizes), sum_sizes(size_bytes for _, size_bytes in sizes))


def _measure_unnamed(ctx: Context, go_on: Callable[[], bool]) -> tuple[Amount, Amount]:
    """Return what is in its grace window, and what is due. Sizes are counted as far as they are known."""
    in_grace, due = [0, 0], [0, 0]
    delays = ctx.deletion_delays
    for shard in range(keys.SHARDS):
        for page in _pages(ctx.kv.scan_all(keys.references(ctx.repo, shard), page=PAGE), go_on):
            now_ms = ctx.clock.now_ms()
            for state in decode_reference_many([value for _, value in page]):
                if isinstance(state, Emptied):
                    size_bytes = state.entry.size_bytes if state.entry is not None else 0
                    count = due if may_delete(state, now_ms, delays) else in_grace
                elif isinstance(state, Deleting):
                    size_bytes, count = max(0, state.size_bytes), due
                else:
                    continue
                count[0] += 1
                count[1] += size_bytes
    return Amount(in_grace[0], sum_sizes(in_grace[1:])), Amount(due[0], sum_sizes(due[1:]))


def _kept_versions(ctx: Context) -> str:
    """Return what an operator must know of versions that the bucket keeps."""
    try:
        return redact_text(ctx.objects.versioning_status().warning)
    except RefstoreError as error:
        return redact_text(f"it is not known whether the store keeps versions: {error}")[:ERROR_CHARACTERS]


def _measure_live(ctx: Context, default_branch: BranchName) -> Amount:
    """Return what the default branch's head names; nothing if the head cannot be read."""
    raw = ctx.kv.get(keys.branch(ctx.repo, default_branch))
    try:
        branch = decode_branch(raw) if raw is not ABSENT else None
        if not isinstance(branch, StoredBranch):
            return Amount()
        metarange = refs.head_commit(ctx, branch.head).metarange
    except (CorruptRecord, NotFound):
        return Amount()
    return Amount(ctx.trees.count(metarange), ctx.trees.size_bytes(metarange))
