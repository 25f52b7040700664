"""One bounded pass over one repository.

    publish     tokens that operations retired and did not live to publish -> markers (rule 3)
    committed   committed markers: forget the references of what they added, hand their tokens over (rule 7)
    deleted     deleted markers: release every reference under the token
    due         what is empty, or issued and expired, and due: `deleting`, then the blob, then the key (rule 8)
    scrub       what crashes left behind, each shard once per interval (rule 9)
    retire      a deleted repository of which nothing is left: its KV partitions go, and its name is free

Every step works unit by unit (a marker, a shard), under leases, and has a bounded time. It fails closed: an error stops its
unit, nothing that depended on it is deleted, and the summary names it. Between batches it is asked whether to stop; the batch in
hand is finished.

With no grace, no rate limit, and a quiet breaker, blobs go while their tokens are processed, without a detour over due hints.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Final

import structlog

from reaper import backlog, processing, retiring, scrub
from reaper.breaker import Breaker
from reaper.deletion import EXPIRED, Deleted, Hint, Journal, condemn, count_condemnable, drop_hints, due_hints
from reaper.erasing import Beside, Eraser
from reaper.leases import Leases
from reaper.pace import Pace
from reaper.processing import Doomed
from reaper.summary import Summary, Tally
from refstore import keys
from refstore.context import Context
from refstore.errors import CorruptRecord, KVUnavailable, ObjectsUnavailable, RefstoreError
from refstore.flows import branching
from refstore.ids import Address, Token, commit_id, staging_token
from refstore.kv.base import ABSENT, Key
from refstore.markers import COMMITTED, REPOSITORY_DELETED
from refstore.records import CommittedTokens, DeletedToken, RepositoryRecord, Stamp, decode, encode
from refstore.settings import ReaperSettings

GROUP: Final = 8
"""Units that are leased together: few enough that other reapers find some, many enough to save round trips."""

MARKERS_PAGE: Final = 1000

BATCHES_MAX: Final = 10_000
"""Batches of one step of a pass, should its time never be over."""

TOKENS: Final = "tokens"
TEMPORARY: Final = "temporary"
"""What is scrubbed beside the shards of the references."""

TEMPORARY_SECONDS_MIN: Final = 3600.0
"""What stores ask for at least, before they call an unfinished upload abandoned."""

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a reaper brings along to each of its passes."""

    settings: ReaperSettings
    reaper: str
    """The reaper's id."""
    journal: Journal
    pace: Pace
    random: Random
    should_stop: Callable[[], bool]
    beside: Beside | None = None
    """Where blobs are deleted beside the KV's work; None: in turn with it."""
    leases: Leases | None = None
    """None: its own, in the repository's KV."""
    scrub_asked_ms: int | None = None
    """What was not scrubbed since then is scrubbed whatever the interval says: a pass may end before it came to all of it."""
    tally: Tally = field(default_factory=Tally)
    """What the pass did: also there for whoever looks when it was broken off by what it raised."""


def run(ctx: Context, record: RepositoryRecord, tools: Tools) -> Summary:
    """One pass. Raises KVUnavailable: then what was done until then stands in `tools.tally`, and the next pass goes on."""
    return Pass(ctx, record, tools).run()


class Pass:
    def __init__(self, ctx: Context, record: RepositoryRecord, tools: Tools) -> None:
        settings = tools.settings
        self._ctx = ctx
        self._record = record
        self._tools = tools
        self._settings = settings
        self._grace_seconds = ctx.grace_seconds if settings.grace_override_seconds is None else settings.grace_override_seconds
        self._leases = tools.leases or Leases(ctx.kv, ctx.repo, tools.reaper, ctx.clock, ctx.ids, seconds=settings.lease_seconds)
        # that all which was never committed goes is what the deletion of a repository means; how fast is still watched
        watched = replace(settings, breaker_share=1.0) if record.closed_ms else settings
        self._breaker = Breaker(ctx, watched, tools.reaper)
        self._eraser = Eraser(ctx, tools.journal, tools.beside)
        self._tally = tools.tally
        self._step_ends = 0.0
        self._step_batches = 0
        self._store_down = False

    def run(self) -> Summary:
        try:
            for step in (self._publish, self._committed, self._deleted, self._due, self._scrub, self._retire):
                self._step_ends = self._ctx.clock.monotonic_seconds() + self._settings.budget_seconds
                self._step_batches = 0
                if self._tools.should_stop():
                    self._tally.more = True
                    break
                step()
        finally:
            self._leases.release()
        return self._tally.summary()

    # ---- retired tokens -> markers

    def _publish(self) -> None:
        def told(name: str, error: CorruptRecord) -> None:
            self._failed(f"branch/{name}", error)

        with self._unit("publish"):
            if self._record.closed_ms:
                self._tally.count(published=branching.close_all(self._ctx, REPOSITORY_DELETED, on_corrupt=told))
            else:
                self._tally.count(published=processing.publish(self._ctx, on_corrupt=told))

    # ---- markers -> released references

    def _committed(self) -> None:
        for unit, raw in self._leased_markers(keys.committed_tokens(self._ctx.repo), "committed"):
            with self._unit(f"committed/{unit}"):
                marker = decode(raw, CommittedTokens)
                added = processing.process_committed(
                    self._ctx, commit_id(unit), marker, go_on=self._not_stopped, page=self._settings.batch_keys
                )
                if added is None:
                    self._tally.more = True
                else:
                    self._tally.count(committed=1)

    def _deleted(self) -> None:
        for unit, raw in self._leased_markers(keys.deleted_tokens(self._ctx.repo), "deleted"):
            with self._unit(f"deleted/{unit}"):
                self._process_deleted(staging_token(unit), decode(raw, DeletedToken))

    def _process_deleted(self, token: Token, marker: DeletedToken) -> None:
        # what a commit took is mostly committed: how much of it would go is only known when it is due
        at_once = self._grace_seconds == 0 and not self._tools.pace.limited and not marker.cause.startswith(COMMITTED)

        def delete_now(doomed: list[Doomed]) -> Callable[[], None]:
            permit = self._breaker.covered(len(doomed))

            def gone(done: Deleted) -> None:
                self._gone(done)
                self._breaker.went(permit, done.objects)

            return self._eraser.begin(doomed, gone, otherwise=partial(self._breaker.went, permit, 0), unhinted=True).settle

        def released(references: int, emptied: int) -> None:
            self._tally.count(released=references, emptied=emptied)

        try:
            done = processing.process_deleted(
                self._ctx,
                token,
                marker,
                grace_seconds=self._grace_seconds,
                delete_now=delete_now if at_once else None,
                may_delete_now=self._may_delete_now,
                on_released=released,
                go_on=self._going_on,
                page=self._settings.batch_keys,
            )
        finally:
            self._eraser.settle()
        self._tally.count(tokens=int(done.finished))
        self._tally.more |= not done.finished

    def _may_delete_now(self, count: int) -> bool:
        return not self._store_down and self._breaker.covers(count, self._count_objects)

    def _leased_markers(self, partition: str, kind: str) -> Generator[tuple[str, bytes], None, None]:
        """The markers that this reaper got the leases of, one at a time, while there is time."""
        after = ""
        while page := self._ctx.kv.scan(partition, after=after, limit=MARKERS_PAGE):
            after = page[-1][0]
            self._tools.random.shuffle(page)  # several reapers begin at different ends
            for start in range(0, len(page), GROUP):
                units = self._lease([f"{kind}/{name}" for name, _ in page[start : start + GROUP]])
                # the page is older than the leases: another reaper may have done them meanwhile
                found = self._ctx.kv.get_many([Key(partition, unit.removeprefix(f"{kind}/")) for unit in units]) if units else []
                for unit, raw in zip(units, found, strict=True):
                    if raw is ABSENT:
                        continue
                    if not self._going_on():
                        self._tally.more = True
                        return
                    yield unit.removeprefix(f"{kind}/"), raw
                self._leases.release(units)

    # ---- due hints -> deleted blobs

    def _due(self) -> None:
        """Full batches, gathered over the shards that are held: a request for few keys costs the store as much as one for many."""
        # with a shorter window than the hints were written for, what is due stands behind later times, too
        now_ms = None if self._grace_seconds < self._ctx.grace_seconds else self._ctx.clock.now_ms()
        shards = [] if self._store_down else [shard for shard in self._rotated_shards() if self._hints(shard, now_ms, "", 1)]
        if not shards:
            return
        with self._unit("due"):
            if not self._breaker.weigh(
                partial(backlog.count_due, self._ctx, now_ms), partial(self._count_condemnable, now_ms), self._count_objects
            ):
                self._tally.count(held_back=1)
                return
            size = self._tools.pace.batch(self._settings.batch_keys)
            gathered: list[Hint] = []
            try:
                for hints in self._leased_hints(shards, now_ms):
                    gathered += hints
                    while len(gathered) >= size:
                        if not self._delete(gathered[:size]):
                            return
                        del gathered[:size]
                if gathered:
                    self._delete(gathered)
            finally:
                self._eraser.settle()

    def _count_condemnable(self, now_ms: int | None, limit: int) -> int:
        return count_condemnable(self._ctx, now_ms=now_ms, grace_seconds=self._grace_seconds, limit=limit)

    def _leased_hints(self, shards: Sequence[int], now_ms: int | None) -> Generator[list[Hint], None, None]:
        """Pages of hints of the shards that this reaper got the leases of. They are held until the pass ends."""
        for start in range(0, len(shards), GROUP):
            for unit in self._lease([f"due/{shard:02x}" for shard in shards[start : start + GROUP]]):
                shard, after = int(unit.removeprefix("due/"), 16), ""
                while page := self._hints(shard, now_ms, after, self._settings.batch_keys):
                    after = page[-1].key.name  # what stays behind is looked at again in the next pass, not in this one
                    yield page

    def _hints(self, shard: int, now_ms: int | None, after: str, limit: int) -> list[Hint]:
        with self._unit(f"due/{shard:02x}"):
            return due_hints(self._ctx, shard, now_ms=now_ms, limit=limit, after=after)
        return []  # a shard that cannot be read whole: nothing behind the bad key is known

    def _delete(self, hints: Sequence[Hint]) -> bool:
        """Delete what is due of a batch of hints; whether to go on."""

        def told(address: Address, error: CorruptRecord) -> None:
            self._failed(f"reference/{address}", error)

        def gone(done: Deleted) -> None:
            self._gone(done)
            left = set(done.failed)
            addresses = {item.address for item in doomed if item.address not in left}
            self._tally.count(expired=sum(item.cause == EXPIRED for item in doomed if item.address in addresses))
            self._breaker.went(permit, done.objects)
            drop_hints(self._ctx, [hint for hint in hints if hint.address in addresses])

        permit = self._breaker.permit(len(hints))
        hints = hints[: permit.count]
        if not hints or not self._tools.pace.wait_for(len(hints), self._tools.should_stop):
            self._breaker.went(permit, 0)
            self._tally.more = True
            self._tally.count(held_back=int(bool(self._breaker.state().tripped_ms)))
            return False
        doomed, stale = condemn(self._ctx, hints, grace_seconds=self._grace_seconds, on_corrupt=told)
        drop_hints(self._ctx, stale)
        if doomed:
            self._eraser.begin(doomed, gone, otherwise=partial(self._breaker.went, permit, 0))
            self._eraser.settle(most_open=1)
        else:
            self._breaker.went(permit, 0)
        return self._going_on()

    # ---- what crashes left behind

    def _scrub(self) -> None:
        units = self._units_to_scrub()
        for start in range(0, len(units), GROUP):
            leased = self._lease(units[start : start + GROUP])
            for unit in leased:
                if not self._going_on():
                    self._tally.more = True
                    return
                with self._unit(unit):
                    if self._scrub_unit(unit.removeprefix("scrub/")):
                        self._ctx.kv.set(self._stamp_of(unit), encode(Stamp(self._ctx.clock.now_ms())))
            self._leases.release(leased)

    def _scrub_unit(self, what: str) -> bool:
        """Whether it was gone through to its end."""

        def told(name: str, error: CorruptRecord) -> None:
            self._failed(f"scrub/{what}/{name}", error)

        if what == TEMPORARY:
            older_than = max(self._ctx.safety.scrub_after_seconds, TEMPORARY_SECONDS_MIN)
            self._tally.count(temporary=self._ctx.objects.sweep_temporary(older_than_seconds=older_than, clock=self._ctx.clock))
            return True
        if what == TOKENS:
            done = scrub.scrub_tokens(self._ctx, on_corrupt=told)
        else:
            done = scrub.scrub_references(
                self._ctx, int(what, 16), grace_seconds=self._grace_seconds, on_corrupt=told, go_on=self._not_stopped
            )
        self._tally.count(scrubbed=done.references, hints=done.hints, dead_tokens=done.tokens)
        self._tally.more |= not done.finished
        return done.finished

    def _units_to_scrub(self) -> list[str]:
        """Those whose interval is over. New ones are spread over it, so that a repository is never gone through all at once."""
        units = [f"scrub/{what}" for what in (*(f"{shard:02x}" for shard in range(keys.SHARDS)), TOKENS, TEMPORARY)]
        every_ms = int(self._settings.scrub_every_seconds * 1000)
        now = self._ctx.clock.now_ms()
        stamps = dict(self._ctx.kv.scan(keys.reaper_states(self._ctx.repo), prefix="scrubbed/", limit=len(units) * 2))
        due: list[str] = []
        new: list[tuple[Key, bytes]] = []
        for number, unit in enumerate(units, start=1):
            raw = stamps.get(self._stamp_of(unit).name)
            if raw is None and self._tools.scrub_asked_ms is None:
                new.append((self._stamp_of(unit), encode(Stamp(now - every_ms + every_ms * number // len(units)))))
            elif raw is None or not self._is_fresh(raw, now, every_ms):
                due.append(unit)
        if new:
            self._ctx.kv.set_many(new)
        self._tools.random.shuffle(due)
        return due

    def _is_fresh(self, raw: bytes, now: int, every_ms: int) -> bool:
        try:
            at_ms = decode(raw, Stamp).at_ms
        except CorruptRecord:
            return False
        asked_ms = self._tools.scrub_asked_ms
        return at_ms <= now < at_ms + every_ms and (asked_ms is None or asked_ms < at_ms)

    def _stamp_of(self, unit: str) -> Key:
        return keys.reaper_state(self._ctx.repo, f"scrubbed/{unit.removeprefix('scrub/')}")

    # ---- the end of a deleted repository

    def _retire(self) -> None:
        with self._unit("retire"):
            if retiring.is_drained(self._ctx, self._record) and self._lease(["retire"]):
                self._tally.count(drained=int(retiring.retire(self._ctx, self._record)))

    # ---- what all steps share

    @contextmanager
    def _unit(self, unit: str) -> Generator[None, None, None]:
        """What goes wrong in a unit stops that unit; a KV that does not answer stops the pass."""
        try:
            yield
        except KVUnavailable:
            raise
        except RefstoreError as error:
            self._store_down |= isinstance(error, ObjectsUnavailable)
            self._failed(unit, error)

    def _failed(self, unit: str, error: RefstoreError) -> None:
        self._tally.fail(self._ctx.name, unit, error)
        _log.error("unit_stopped", repository=self._ctx.name, unit=unit, code=error.code, error=str(error))

    def _gone(self, done: Deleted) -> None:
        self._tally.count(deleted=done.objects, bytes=done.bytes, missing=done.missing, failed=len(done.failed))

    def _lease(self, units: Sequence[str]) -> list[str]:
        got = self._leases.acquire(units)
        self._tally.count(busy=len(units) - len(got))
        return got

    def _not_stopped(self) -> bool:
        self._leases.keep()
        return not self._tools.should_stop()

    def _going_on(self) -> bool:
        """Asked between batches: there is time, nobody asked to stop, and the store answers."""
        self._step_batches += 1
        in_time = self._ctx.clock.monotonic_seconds() < self._step_ends and self._step_batches < BATCHES_MAX
        return self._not_stopped() and in_time and not self._store_down

    def _count_objects(self, limit: int) -> int:
        return backlog.count_objects(self._ctx, self._record.default_branch, limit)

    def _rotated_shards(self) -> list[int]:
        """All shards, from a different one on in each pass, so that several reapers begin apart."""
        first = self._tools.random.randrange(keys.SHARDS)
        return [*range(first, keys.SHARDS), *range(first)]
