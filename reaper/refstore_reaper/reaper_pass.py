"""One bounded pass over one repository.

    publish     retired tokens whose operation died before publishing -> markers (rule 3); entries of the manifest that
                the object store did not take -> there (rule 21); branches whose lease ran out -> deleted (rule 24)
    committed   committed markers: delete the references of added addresses, hand their tokens over (rule 7)
    deleted     deleted markers: release every reference under the token
    due         empty lists and expired issued addresses, when due: `deleting`, then the blob, then the key (rule 8)
    manifest    entries of commits, branches and tags that a witness covers now -> confirmed (rule 21)
    scrub       remove the remains of crashed operations, each shard once per interval (rule 9)
    remove      if nothing is left of a deleted repository: remove its KV partitions, and free its name

Every step works unit by unit (a marker, a shard), under leases, and has a bounded time. A step fails closed: an error
stops its unit, nothing that depended on the unit is deleted, and the summary names it. A request to stop is seen
between batches; the current batch is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Final

from refstore.configuration.settings import ReaperSettings
from refstore.context import Context
from refstore.core import event_log
from refstore.core.ids import CommitId, Token, commit_id, staging_token
from refstore.errors import CorruptRecord, KVSettling, KVUnavailable, KVWentBack, ObjectsUnavailable, RefstoreError
from refstore.kv.base import ABSENT, Key
from refstore.kv_recovery.fence import DeletionFence
from refstore.kv_recovery.manifest_check import check_repository
from refstore.operations import branch
from refstore.operations.commit_references import delete_added_references, process_committed
from refstore.operations.delete_contents import Journal
from refstore.records import keys
from refstore.records.branch_records import CommittedTokens, DeletedToken
from refstore.records.encoding import decode
from refstore.records.repository_records import RepositoryRecord
from refstore.versioning import due_hints
from refstore.versioning.due_hints import DueHint
from refstore.versioning.manifest import AnyEntry, CommitLanded
from refstore.versioning.markers import REPOSITORY_DELETED_CAUSE
from refstore_reaper import backlog, reference_release, repository_removal, scrub
from refstore_reaper.breaker import Breaker, Reason
from refstore_reaper.deletion import AsyncDeleter, BatchDeleter, DueAddress, Pipeline, count_deletable, due_addresses
from refstore_reaper.leases import Leases
from refstore_reaper.pass_summary import PassSummary, Tally
from refstore_reaper.scrub import TEMPORARY, TOKENS, UPLOADS, ScrubSchedule
from refstore_reaper.throttle import Throttle

BATCH_KEYS: Final = 4000
"""Keys in one batch to a store: one S3 request for each of four connections. Larger batches need more memory, and
repeat more work after a crash.
"""
STEP_SECONDS: Final = 30.0
"""How long each step of a pass may take, before the next one and the next repository get their turn."""
GROUP: Final = 8
"""Units that are leased together: few enough to leave some for other reapers, many enough to save round trips."""

MARKERS_PAGE: Final = 1000

BATCHES_MAX: Final = 10_000
"""The most batches of one step of a pass, even if there is time for more."""

TEMPORARY_SECONDS_MIN: Final = 3600.0
"""The least age that stores accept for an unfinished upload to be called abandoned."""

_log = event_log.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTools:
    """What a reaper passes to each of its passes."""

    settings: ReaperSettings
    reaper: str
    """The reaper's id."""
    journal: Journal
    throttle: Throttle
    random: Random
    should_stop: Callable[[], bool]
    fence: DeletionFence
    """What the pass asks before it acts: whether the KV lost writes (rule 21)."""
    async_deleter: AsyncDeleter | None = None
    """Deletes blobs while the pass works on the KV. None: the pass deletes them itself, batch by batch."""
    leases: Leases | None = None
    """None: the pass makes its own, in the repository's KV."""
    batch_keys: int = BATCH_KEYS
    step_seconds: float = STEP_SECONDS
    grace_seconds: float | None = None
    """Replaces the grace window of every repository. None: each repository's own."""
    scrub_requested_ms: int | None = None
    """Scrub everything that was not scrubbed since then, whatever the interval says. One pass may not finish it."""
    tally: Tally = field(default_factory=Tally)
    """What the pass did, also if an error interrupted it."""


def run_pass(ctx: Context, record: RepositoryRecord, tools: PassTools) -> PassSummary:
    """Make one pass. Raises KVUnavailable; then `tools.tally` has what was done, and the next pass continues."""
    return ReaperPass(ctx, record, tools).run()


class ReaperPass:
    def __init__(self, ctx: Context, record: RepositoryRecord, tools: PassTools) -> None:
        settings = tools.settings
        self._ctx = ctx
        self._record = record
        self._tools = tools
        self._settings = settings
        self._delays = ctx.deletion_delays
        """What this pass waits for; hints are written for the repository's own delays."""
        if tools.grace_seconds is not None:
            self._delays = self._delays._replace(grace_seconds=tools.grace_seconds)
        self._leases = tools.leases or Leases(
            ctx.kv, ctx.repo, tools.reaper, ctx.clock, ctx.ids, seconds=settings.lease_seconds
        )
        # deleting a repository means to delete all its uncommitted objects; the hourly limit still holds
        limits = replace(settings, breaker_share=1.0) if record.closed_ms else settings
        self._breaker = Breaker(ctx, limits, tools.reaper)
        self._tally = tools.tally
        self._deleter = BatchDeleter(
            ctx,
            self._breaker,
            tools.tally,
            tools.journal,
            delays=self._delays,
            async_deleter=tools.async_deleter,
            fence=tools.fence,
            on_corrupt=lambda address, error: self._record_failure(f"reference/{address}", error),
        )
        self._step_ends = 0.0
        self._step_batches = 0
        self._store_down = False
        self._waiting: list[AnyEntry] | None = None
        """The manifest's entries that wait; None: nobody has looked."""
        self._forgotten: set[CommitId] = set()
        """Commits whose additions this pass put beyond the reaper."""

    def run(self) -> PassSummary:
        try:
            for step in (
                self._publish_markers,
                self._process_committed_markers,
                self._process_deleted_markers,
                self._delete_due,
                self._confirm_manifest,
                self._scrub,
                self._remove_repository,
            ):
                self._step_ends = self._ctx.clock.monotonic_seconds() + self._tools.step_seconds
                self._step_batches = 0
                if self._tools.should_stop():
                    self._tally.more = True
                    break
                step()
        finally:
            self._leases.release()
        return self._tally.summary()

    # ---- retired tokens -> markers

    def _publish_markers(self) -> None:
        def on_corrupt(name: str, error: CorruptRecord) -> None:
            self._record_failure(f"branch/{name}", error)

        with self._unit("publish"):
            if self._record.closed_ms:
                self._tally.count(
                    published=branch.close_all(self._ctx, REPOSITORY_DELETED_CAUSE, on_corrupt=on_corrupt)
                )
            else:
                left = reference_release.find_left_branches(self._ctx, on_corrupt=on_corrupt)
                self._tally.count(published=reference_release.publish_markers(self._ctx, left.retired))
                self._ctx.manifest.write_unwritten()
                if left.run_out and self._is_whole():
                    self._tally.count(ended=reference_release.end_transactions(self._ctx, left.run_out))

    # ---- markers -> released references

    def _process_committed_markers(self) -> None:
        for unit, raw in self._leased_markers(keys.committed_tokens(self._ctx.repo), "committed"):
            with self._unit(f"committed/{unit}"):
                marker = decode(raw, CommittedTokens)
                if self._ctx.branches.has_live(marker.tokens):
                    continue  # the KV lost the decision that the marker stands for
                finished = process_committed(
                    self._ctx, commit_id(unit), marker, go_on=self._is_not_stopped, page=self._tools.batch_keys
                )
                self._tally.count(committed=int(finished))
                self._tally.more |= not finished
                if finished:
                    self._forgotten.add(commit_id(unit))

    def _process_deleted_markers(self) -> None:
        for unit, raw in self._leased_markers(keys.deleted_tokens(self._ctx.repo), "deleted"):
            with self._unit(f"deleted/{unit}"):
                token = staging_token(unit)
                if not self._ctx.branches.has_live([token]):  # else the KV lost the decision that the marker stands for
                    self._process_deleted_token(token, decode(raw, DeletedToken))

    def _process_deleted_token(self, token: Token, marker: DeletedToken) -> None:
        for page in reference_release.process_deleted(self._ctx, token, marker, page=self._tools.batch_keys):
            self._tally.count(released=page.removed_references, emptied=page.emptied)
            if not self._may_go_on():
                self._tally.more = True
                return
        self._tally.count(tokens=1)

    # ---- the manifest

    def _is_whole(self) -> bool:
        """Return whether the KV knows what the manifest says. The first step that has something to do asks.

        If not, hard deletion of the repository is stopped.
        """
        if self._waiting is None and not self._record.closed_ms and not self._store_down:
            with self._unit("manifest"):
                try:
                    self._waiting = check_repository(self._ctx)
                except KVWentBack:
                    self._breaker.stop(Reason.KV_WENT_BACK)
                    self._tally.count(blocked=1)
                    raise
        return self._waiting is not None or bool(self._record.closed_ms)

    def _confirm_manifest(self) -> None:
        """Confirm the entries that wait, once what each commit added is beyond the reaper, and a witness says so.

        Another reaper may have processed a commit's marker, or it may be lost: then it is done again.
        """
        if not self._waiting:
            return
        with self._unit("manifest"):
            commits = [entry.commit for entry in self._waiting if isinstance(entry, CommitLanded)]
            markers = self._ctx.kv.get_many([keys.committed_marker(self._ctx.repo, commit) for commit in commits])
            unfinished = {commit for commit, marker in zip(commits, markers, strict=True) if marker is not ABSENT}
            for commit in commits:
                if commit not in unfinished and commit not in self._forgotten:
                    unfinished.add(commit)
                    with self._unit(f"manifest/{commit}"):  # else one listing that cannot be read keeps all entries
                        delete_added_references(self._ctx, commit)
                        unfinished.remove(commit)
            done = [
                entry for entry in self._waiting if not (isinstance(entry, CommitLanded) and entry.commit in unfinished)
            ]
            if done:
                self._tools.fence.pass_through()
                self._ctx.manifest.confirm(done, self._ctx.ids.new_id(self._ctx.clock.now_ms()))
                self._ctx.manifest.merge_confirmed(self._ctx.ids.new_id(self._ctx.clock.now_ms()))

    def _leased_markers(self, partition: str, kind: str) -> Generator[tuple[str, bytes], None, None]:
        """Yield the markers whose leases this reaper got, one at a time, while there is time."""
        after = ""
        while page := self._ctx.kv.scan(partition, after=after, limit=MARKERS_PAGE):
            if not self._is_whole():
                return
            after = page[-1][0]
            self._tools.random.shuffle(page)  # reapers begin at different markers
            for start in range(0, len(page), GROUP):
                units = self._lease([f"{kind}/{name}" for name, _ in page[start : start + GROUP]])
                self._tools.fence.check_servers()
                # the page is older than the leases: another reaper may have done them meanwhile
                names = [unit.removeprefix(f"{kind}/") for unit in units]
                values = self._ctx.kv.get_many([Key(partition, name) for name in names]) if names else []
                for name, raw in zip(names, values, strict=True):
                    if raw is ABSENT:
                        continue
                    if not self._may_go_on():
                        self._tally.more = True
                        return
                    yield name, raw
                self._leases.release(units)

    # ---- due hints -> deleted blobs

    def _delete_due(self) -> None:
        """Delete due objects, in full batches over all leased shards: a small request costs the store as much as a
        large one.
        """
        # with a shorter window than the hints were written for, later hints may be due, too
        now_ms = None if self._delays.grace_seconds < self._ctx.grace_seconds else self._ctx.clock.now_ms()
        if self._store_down:
            return
        shards = [shard for shard in self._rotated_shards() if self._hints(shard, now_ms, "", 1)]
        if not shards or not self._is_whole():
            return
        with self._unit("due"):
            if not self._breaker.check_share(
                partial(backlog.count_due, self._ctx, now_ms),
                partial(self._count_deletable, now_ms),
                self._count_objects,
            ):
                self._tally.count(blocked=1)
                return
            size = self._tools.throttle.batch_size(self._tools.batch_keys)
            gathered: list[DueAddress] = []
            try:
                with Pipeline() as pipeline:
                    for hints in self._leased_hints(shards, now_ms):
                        gathered += due_addresses(hints)
                        while len(gathered) >= size:
                            if not self._start_batch(pipeline, gathered[:size]):
                                return
                            del gathered[:size]
                    if gathered:
                        self._start_batch(pipeline, gathered)
            finally:
                self._deleter.shorten_hints()

    def _count_deletable(self, now_ms: int | None, limit: int) -> int:
        return count_deletable(self._ctx, now_ms=now_ms, delays=self._delays, limit=limit)

    def _leased_hints(self, shards: Sequence[int], now_ms: int | None) -> Generator[list[DueHint], None, None]:
        """Yield pages of hints of the shards whose leases this reaper got. It keeps them until the pass ends."""
        for start in range(0, len(shards), GROUP):
            for unit in self._lease([f"due/{shard:02x}" for shard in shards[start : start + GROUP]]):
                shard, after = int(unit.removeprefix("due/"), 16), ""
                while page := self._hints(shard, now_ms, after, due_hints.PAGE):
                    after = page[-1].key.name  # a hint that stays is read again in the next pass, not in this one
                    yield page

    def _hints(self, shard: int, now_ms: int | None, after: str, limit: int) -> list[DueHint]:
        with self._unit(f"due/{shard:02x}"):
            return due_hints.scan_due(self._ctx.kv, self._ctx.repo, shard, now_ms=now_ms, limit=limit, after=after)
        return []  # a damaged shard: the hints after the bad key are unknown

    def _start_batch(self, pipeline: Pipeline, due: Sequence[DueAddress]) -> bool:
        """Start to delete due addresses, as far as the breaker permits. Return whether to continue."""
        permit = self._breaker.request_permit(len(due))
        if not permit.count or not self._tools.throttle.wait_for(permit.count, self._tools.should_stop):
            self._breaker.report_deleted(permit, 0)
            self._tally.more = True
            self._tally.count(blocked=int(bool(self._breaker.state().tripped_ms)))
            return False
        pipeline.start(self._deleter.delete_batch(permit, due[: permit.count]))
        if not self._may_go_on():
            self._tally.more = True
            return False
        return True

    # ---- remains of crashed operations

    def _scrub(self) -> None:
        schedule = ScrubSchedule(
            self._ctx, self._settings.scrub_every_seconds, self._tools.scrub_requested_ms, self._tools.random
        )
        units = schedule.find_due_units()
        if not units or not self._is_whole():
            return
        for start in range(0, len(units), GROUP):
            leased = self._lease(units[start : start + GROUP])
            self._tools.fence.check_servers()
            for unit in leased:
                if not self._may_go_on():
                    self._tally.more = True
                    return
                with self._unit(unit):
                    if self._scrub_unit(unit.removeprefix("scrub/")):
                        schedule.record_scrubbed(unit)
            self._leases.release(leased)

    def _scrub_unit(self, what: str) -> bool:
        """Scrub one unit. Return whether it was finished."""

        def on_error(name: str, error: CorruptRecord | ObjectsUnavailable) -> None:
            self._record_failure(f"scrub/{what}/{name}", error)

        if what == TEMPORARY:
            older_than = max(self._ctx.waits.scrub_after_seconds, TEMPORARY_SECONDS_MIN)
            swept = self._ctx.objects.sweep_temporary(
                older_than_seconds=older_than, clock=self._ctx.clock, spared_keys=scrub.open_upload_keys(self._ctx)
            )
            self._tally.count(temporary=swept)
            return True
        if what == TOKENS:
            done = scrub.scrub_tokens(self._ctx, on_corrupt=on_error)
        elif what == UPLOADS:
            done = scrub.scrub_uploads(self._ctx, on_error=on_error, go_on=self._is_not_stopped)
        else:
            done = scrub.scrub_references(self._ctx, int(what, 16), on_corrupt=on_error, go_on=self._is_not_stopped)
            if done.finished:
                self._tally.count(scrubbed=done.references, hints=done.hints)
                done = scrub.release_unnamed(
                    self._ctx,
                    int(what, 16),
                    check_servers=self._tools.fence.check_servers,
                    on_corrupt=on_error,
                    go_on=self._is_not_stopped,
                )
        self._tally.count(scrubbed=done.references, hints=done.hints, dead_tokens=done.tokens)
        self._tally.more |= not done.finished
        return done.finished and not done.failed

    # ---- the end of a deleted repository

    def _remove_repository(self) -> None:
        with self._unit("retire"):
            if repository_removal.is_drained(self._ctx, self._record) and self._lease(["retire"]):
                self._tally.count(drained=int(repository_removal.remove(self._ctx, self._record)))

    # ---- shared by all steps

    @contextmanager
    def _unit(self, unit: str) -> Generator[None, None, None]:
        """Run the block for one unit. An error stops this unit only; a KV that does not answer stops the pass."""
        try:
            yield
        except KVUnavailable:
            raise
        except RefstoreError as error:
            self._store_down |= isinstance(error, ObjectsUnavailable | KVWentBack | KVSettling)
            self._record_failure(unit, error)

    def _record_failure(self, unit: str, error: RefstoreError) -> None:
        self._tally.fail(self._ctx.name, unit, error)
        _log.error("unit_stopped", repository=self._ctx.name, unit=unit, code=error.code, error=str(error))

    def _lease(self, units: Sequence[str]) -> list[str]:
        acquired = self._leases.acquire(units)
        self._tally.count(busy=len(units) - len(acquired))
        return acquired

    def _is_not_stopped(self) -> bool:
        self._leases.renew()
        return not self._tools.should_stop()

    def _may_go_on(self) -> bool:
        """Return whether the next batch may begin: there is time, no stop was requested, and the store answers."""
        self._step_batches += 1
        in_time = self._ctx.clock.monotonic_seconds() < self._step_ends and self._step_batches < BATCHES_MAX
        return self._is_not_stopped() and in_time and not self._store_down

    def _count_objects(self, limit: int) -> int:
        return backlog.count_objects(self._ctx, self._record.default_branch, limit)

    def _rotated_shards(self) -> list[int]:
        """Return all shards, from another one on in each pass, so that reapers begin at different shards."""
        first = self._tools.random.randrange(keys.SHARDS)
        return [*range(first, keys.SHARDS), *range(first)]
