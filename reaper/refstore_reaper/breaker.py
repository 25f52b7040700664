"""The breaker stops hard deletion when more is due than expected, until an operator resumes it.

The protocol deletes only objects that nothing names. The breaker protects from mistakes: a script that reset the wrong
branches, or a KV that was restored from last month. It trips when

- more than a set share of the repository's objects is due, and more than a floor, because half of a small repository is
  nothing unusual. This does not apply to a deleted repository, whose uncommitted objects are all due on purpose.
- all reapers together deleted more than a set number of objects within an hour.
- the KV lost writes that had consequences (rule 21). Resuming does not help then: `refstore kv reconcile` does.

It stays tripped: its state is in the KV, for every reaper. References are still released, so grace windows pass and
`restore` works, but blobs stay. A state that cannot be read counts as tripped.

The cost of counting depends on what is due, not on the size of the repository: objects are counted only until it is
certain that the due ones are a small enough share.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from refstore.audit import Actor
from refstore.configuration.settings import ReaperSettings
from refstore.context import Context
from refstore.core import event_log
from refstore.core.ids import RepositoryId
from refstore.core.units import DAY_SECONDS
from refstore.errors import Contention, CorruptRecord, Invalid
from refstore.kv.base import KV, Absent
from refstore.operations.breaker_states import KV_WENT_BACK_REASON, BreakerStates
from refstore.records import keys
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.reaper_records import BreakerState, DeletionCount

HOUR_MS: Final = 3_600_000
BUCKET_MS: Final = 300_000
"""The period of one counter. The last hour is the current counter and the twelve before it."""
ATTEMPTS: Final = 16
REPORTED_MAX: Final = 1_000_000
"""How far due objects are counted if the count is only reported."""
RESUME_SECONDS: Final = 3600.0
"""How long hard deletion resumes if nobody says otherwise."""
RESUME_SECONDS_MAX: Final = 30 * DAY_SECONDS
"""The breaker guards nothing until then, so nobody may forget it."""

KV_WENT_BACK: Final = "the KV went back in time, and does not know any more what had consequences"

_COUNTERS: Final = "deleted/"

_log = event_log.get_logger(__name__)


class Reason(Enum):
    SHARE = "share"
    HOURLY = "hourly"
    KV_WENT_BACK = KV_WENT_BACK_REASON


@dataclass(frozen=True, slots=True)
class Permit:
    count: int
    from_allowance: bool = False
    """Whether it counts against a number of objects that an operator allowed."""


class Breaker:
    """The breaker of one repository, as one reaper uses it in one pass."""

    def __init__(self, ctx: Context, settings: ReaperSettings, reaper: str) -> None:
        self._ctx = ctx
        self._settings = settings
        self._reaper = reaper
        self._states = BreakerStates(ctx)
        self._share_checked = False
        self.under_way = 0
        """How many deletions were permitted and not reported yet."""

    def state(self) -> BreakerState:
        """The state in the KV. Raises CorruptRecord."""
        return self._states.read()[1]

    def check_share(
        self, count_hints: Callable[[int], int], count_due: Callable[[int], int], count_objects: Callable[[int], int]
    ) -> bool:
        """Return whether what is due is a small enough share; trip if not. The functions count no further than their
        argument.

        There are at least as many hints as there is due, and counting them reads no records; what is due is counted
        only before the breaker trips.
        """
        raw, state = self._states.read()
        if state.tripped_ms:
            return False
        if self._is_allowed(state) or self._settings.breaker_share >= 1:
            # after an allowance is used up, the share is checked before more deletions
            self._share_checked = self._settings.breaker_share >= 1
            return True
        share = self._settings.breaker_share
        floor = bound = self._settings.breaker_floor_objects
        while count_hints(bound + 1) > bound:
            # perhaps more than `bound` is due: are there so many objects that four times as many would be few?
            bound = max(4 * bound, 1000)
            enough = math.ceil(bound / share) if share else REPORTED_MAX
            objects = count_objects(enough)
            if objects < enough or not share:
                bound = max(int(objects * share), floor)
                if count_hints(bound + 1) > bound and (due := count_due(max(bound + 1, REPORTED_MAX))) > bound:
                    self._trip(raw, Reason.SHARE, due, objects)
                    return False
                break
        self._share_checked = True
        return True

    def stop(self, reason: Reason) -> None:
        """Trip for a reason that nothing counts. If it has tripped already, that reason stays: somebody is to look."""
        raw, state = self._states.read()
        if not state.tripped_ms:
            self._trip(raw, reason, 0, 0)

    def request_permit(self, wanted_count: int) -> Permit:
        """Permit at most `wanted_count` deletions now; at the hourly limit, trip. Every permit is to be given back to
        `report_deleted`.
        """
        for _ in range(ATTEMPTS):
            raw, state = self._states.read()
            if state.tripped_ms:
                return Permit(0)
            if self._is_allowed_by_time(state):
                return self._grant(wanted_count)
            if state.allowed_objects:
                count = min(wanted_count, state.allowed_objects)
                if self._states.replace(
                    raw, msgspec.structs.replace(state, allowed_objects=state.allowed_objects - count)
                ):
                    return self._grant(count, from_allowance=True)
                continue
            if not self._share_checked:
                return Permit(0)  # the operator's allowance is used up: the next pass checks the share again
            limit = self._settings.breaker_per_hour
            if not limit:
                return self._grant(wanted_count)
            deleted = self._deleted_within_an_hour() + self.under_way
            if deleted < limit:
                return self._grant(min(wanted_count, limit - deleted))
            if not self.under_way:  # permitted deletions may turn out to be missing objects
                self._trip(raw, Reason.HOURLY, deleted, limit)
            return Permit(0)
        raise Contention(f"other reapers kept changing the breaker of {self._ctx.name!r}; the next pass tries again")

    def report_deleted(self, permit: Permit, count: int) -> None:
        """Report how many of the permitted objects were deleted."""
        self.under_way -= permit.count
        self._add_to_hour(count)
        unused = permit.count - count if permit.from_allowance else 0
        for _ in range(ATTEMPTS if unused > 0 else 0):
            raw, state = self._states.read()
            if state.tripped_ms or self._states.replace(
                raw, msgspec.structs.replace(state, allowed_objects=state.allowed_objects + unused)
            ):
                return

    def _add_to_hour(self, count: int) -> None:
        if count:
            bucket = self._ctx.clock.now_ms() // BUCKET_MS * BUCKET_MS
            key = keys.reaper_state(self._ctx.repo, f"{_COUNTERS}{keys.format_due_time(bucket)}/{self._reaper}")
            counter = decode_optional(self._ctx.kv.get(key), DeletionCount)
            self._ctx.kv.set(key, encode(DeletionCount(count + (counter.count if counter else 0))))

    def _grant(self, count: int, *, from_allowance: bool = False) -> Permit:
        self.under_way += count
        return Permit(count, from_allowance)

    def _is_allowed(self, state: BreakerState) -> bool:
        return bool(state.allowed_objects) or self._is_allowed_by_time(state)

    def _is_allowed_by_time(self, state: BreakerState) -> bool:
        return self._ctx.clock.now_ms() < state.allowed_until_ms

    def _deleted_within_an_hour(self) -> int:
        """Count what all reapers deleted within an hour. Remove older counters."""
        partition = keys.reaper_states(self._ctx.repo)
        first = self._ctx.clock.now_ms() - HOUR_MS
        count = 0
        old: list[str] = []
        for name, value in self._ctx.kv.scan_all(partition, prefix=_COUNTERS):
            if name[len(_COUNTERS) :] < keys.format_due_time(first - BUCKET_MS):
                old.append(name)
            else:
                count += decode(value, DeletionCount).count
        if old:
            self._ctx.kv.delete_range(partition, old[0], old[-1])
        return count

    def _trip(self, raw: bytes | Absent, reason: Reason, due: int, of: int) -> None:
        """Trip the breaker. Losing the race is no failure: another reaper tripped it, or an operator has just resumed
        deletion.
        """
        tripped = self._states.make_tripped(reason.value, due, of)
        actor = Actor("reaper", self._reaper, socket.gethostname())
        after = {"tripped": True, "reason": explain(tripped)}
        with self._ctx.audit.act(
            "breaker.trip", repository=self._ctx.name, after=after, actor=actor, bounded_wait=False
        ) as draft:
            draft.happened = self._states.replace(raw, tripped)
        if draft.happened:
            _log.error(
                "hard_deletion_stopped",
                repository=self._ctx.name,
                reason=explain(tripped),
                what_to_do=advice(self._ctx.name, explain(tripped)),
            )


def resume(ctx: Context, *, seconds: float | None = None, objects: int | None = None) -> BreakerState:
    """Resume hard deletion for a time, or for a number of objects; by default for an hour. Raises Invalid if both are
    given, or too much.

    After that, the next pass checks the share of due objects again.
    """
    if seconds is not None and objects is not None:
        raise Invalid("hard deletion resumes for a time or for a number of objects, not for both; give one of the two")
    if seconds is not None and not 0 < seconds <= RESUME_SECONDS_MAX:
        raise Invalid(
            f"hard deletion resumes for at most {RESUME_SECONDS_MAX // DAY_SECONDS} days; give a shorter time"
        )
    if seconds is None and objects is None:
        seconds = RESUME_SECONDS
    now = ctx.clock.now_ms()
    until_ms = now + int(seconds * 1000) if seconds is not None else 0
    before = {"tripped": True, "reason": explain(read_state(ctx.kv, ctx.repo))}
    before = before if before["reason"] else {"tripped": False}
    after = {"tripped": False, "until_ms": until_ms, "objects": objects or 0}
    with ctx.audit.act("breaker.resume", repository=ctx.name, before=before, after=after, bounded_wait=False):
        state = BreakerStates(ctx).allow(until_ms=until_ms, objects=objects or 0)
    _log.warning("hard_deletion_resumed", repository=ctx.name, seconds=seconds, objects=objects)
    return state


def resume_stopped(ctx: Context, *, seconds: float | None, objects: int | None) -> str:
    """Resume hard deletion if it is stopped, as `resume` does. Return in words what holds now."""
    reason = explain(read_state(ctx.kv, ctx.repo))
    if not reason:
        return f"hard deletion of {ctx.name} goes on already"
    resume(ctx, seconds=seconds, objects=objects)
    return f"hard deletion of {ctx.name} goes on; it was stopped because {reason}"


def read_state(kv: KV, repo: RepositoryId) -> BreakerState | None:
    """Return the state. None: it cannot be read, which counts as tripped."""
    try:
        return decode_optional(kv.get(keys.reaper_state(repo, "breaker")), BreakerState) or BreakerState("")
    except CorruptRecord:
        return None


def explain(state: BreakerState | None) -> str:
    """Return why hard deletion is stopped; '' if it is not."""
    if state is None:
        return "the breaker's state cannot be read"
    if not state.tripped_ms:
        return ""
    match state.reason:
        case Reason.SHARE.value:
            due = f"{state.due_objects} or more" if state.due_objects >= REPORTED_MAX else str(state.due_objects)
            return f"{due} objects are due for deletion, of {state.live_objects} in the repository"
        case Reason.HOURLY.value:
            return f"{state.due_objects} objects were deleted within an hour, of {state.live_objects} that are allowed"
        case Reason.KV_WENT_BACK.value:
            return KV_WENT_BACK
        case _:
            return f"{state.reason}: {state.due_objects} of {state.live_objects}"


def advice(repository: str, reason: str = "") -> str:
    """Say what an operator does; `reason`: as `explain` gave it."""
    if reason == KV_WENT_BACK:
        return "see what was lost with `refstore kv verify`, then settle it with `refstore kv reconcile`"
    return (
        f"see what is due with `refstore trash {repository}`; restore what should stay, or go on with `refstore "
        f"reaper resume {repository}`"
    )
