"""Agree on the durations that safety rests on, with all processes that share the KV.

One record in the KV has them from the lake's creation on. A process reads it when it opens the lake, refuses to start
with explicit settings that differ, and takes what it has no explicit setting for. It reads the record again before it
uses a duration that it read more than `REREAD_SECONDS` ago.

`change` writes other durations, and keeps the former ones in the record until every operation that began under them
has ended. Until then an operation ends within the shortest of all these durations, and whoever waits for the operations
of others waits for the longest. Each change is one write of one record, so there is nothing to repair after a crash.

With it the process reads whether the lake has moved to another KV: then it does nothing more.

docs/decisions/0130-durations-are-agreed.md says why this is safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from refstore.audit import AuditLog
from refstore.core import deadline, event_log
from refstore.core.clock import Clock, format_utc
from refstore.core.durations import write_duration
from refstore.core.ids import Ids
from refstore.core.safety import SHARED, SHORTEST, Safety, is_for_trying
from refstore.errors import Contention, DurationsDiffer, InvalidSettings, WrongStore
from refstore.kv.base import ABSENT, KV, Absent
from refstore.records import keys
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.lake_records import DurationsRecord, FormerDurations, KvCopy, SharedDurations

REREAD_SECONDS: Final = 60.0
"""A process knows of a change after this time at the latest. All processes have to use the same value."""
_ATTEMPTS: Final = 16

_log = event_log.get_logger(__name__)


class AgreedDurations:
    """The durations of this process, as the KV has them. Threads may share it."""

    def __init__(
        self,
        kv: KV,
        clock: Clock,
        ids: Ids,
        own: Safety,
        *,
        explicit: Mapping[str, str],
        read_only: bool = False,
    ) -> None:
        """Read the durations; if the KV has none, make this process's own the agreed ones.

        `explicit`: the durations of `own` that this process was started with, by name, and where each came from ("" if
        that is unknown). `read_only`: write nothing. Raises DurationsDiffer, KVUnavailable.
        """
        self._kv = kv
        self._clock = clock
        self._ids = ids
        self._own = own
        self._explicit = {name: origin for name, origin in explicit.items() if name in SHARED}
        self._read_only = read_only
        self._lock = threading.Lock()
        self._raw: bytes | None = None
        self._record = DurationsRecord(shared_seconds(own), "", 0)
        self._read_at = 0.0
        self._read()
        if differing := _find_differences(self._in_force(), own, self._explicit):
            raise DurationsDiffer(_describe_refusal(differing))
        self._opened_with = shortest_durations(self._in_force(), own).objects_io_seconds

    @property
    def safety(self) -> Safety:
        return shortest_durations(self._read_recent(), self._own)

    @property
    def waits(self) -> Safety:
        return longest_durations(self._read_recent(), self._own)

    def refresh(self) -> None:
        with self._lock:
            self._read()
        self._read_recent()

    def _read_recent(self) -> tuple[SharedDurations, ...]:
        """Return the durations that count, read recently. Raises DurationsDiffer, KVUnavailable."""
        if self._is_stale():
            with self._lock:  # one thread reads for all that wait here
                if self._is_stale():
                    self._read()
        counting = self._in_force()
        waits = longest_durations(counting, self._own)
        if waits.objects_io_seconds < self._opened_with:
            raise DurationsDiffer(
                "io_timeout was shortened while this process ran, and its connections to the object store "
                f"still wait for up to {self._opened_with:g} s instead of {waits.objects_io_seconds:g} s; start the "
                "process again"
            )
        return counting

    def _is_stale(self) -> bool:
        return self._clock.monotonic_seconds() - self._read_at >= REREAD_SECONDS

    def _in_force(self) -> tuple[SharedDurations, ...]:
        return durations_in_force(self._record, self._clock.now_ms())

    def _read(self) -> None:
        """Read the record. Where there is none, write what this process knows."""
        began_at = self._clock.monotonic_seconds()
        raw, copied = self._kv.get_many((keys.DURATIONS, keys.KV_COPY))
        check_copy_state(copied)
        if raw is ABSENT and not self._read_only:
            raw = self._write_first()
        if isinstance(raw, bytes) and raw != self._raw:
            is_first = self._raw is None
            self._record, self._raw = decode(raw, DurationsRecord), raw
            if not is_first:
                self._report_change()
        self._read_at = began_at

    def _write_first(self) -> bytes:
        first = self._raw
        if first is None:
            now = self._clock.now_ms()
            first = encode(DurationsRecord(shared_seconds(self._own), self._ids.new_id(now), now))
        self._kv.set_if(keys.DURATIONS, ABSENT, first)
        raw = self._kv.get(keys.DURATIONS)
        if isinstance(raw, Absent):
            raise InvalidSettings(
                "the KV did not keep the durations that were written to it; check the KV's eviction and persistence"
            )
        return raw

    def _report_change(self) -> None:
        agreed = self._record.current._asdict()
        former = former_in_force(self._record, self._clock.now_ms())
        _log.info("durations_changed", until=format_utc(former[-1].until_ms) if former else "", **agreed)
        if differing := _find_differences((self._record.current,), self._own, self._explicit):
            _log.warning(
                "durations_differ",
                settings={each.name: each.origin for each in differing},
                hint="the process goes on with the agreed ones, and will not start again with these settings: "
                + _WHAT_NEXT,
            )


class DurationChange(NamedTuple):
    """What `change` did, or would do."""

    before: SharedDurations
    after: SharedDurations
    until_ms: int
    """Until then both count. 0: nothing was changed."""


def change_durations(
    kv: KV, clock: Clock, ids: Ids, audit: AuditLog, new_seconds: Mapping[str, float], *, dry_run: bool = False
) -> DurationChange:
    """Change agreed durations. Those that are not in `new_seconds` stay.

    The KV must have durations. Raises InvalidSettings (an unknown name, durations that are shorter than `SHORTEST` or
    contradict each other, a lake that was made for trying), AuditUnavailable, Contention.
    """
    if unknown := sorted(set(new_seconds) - set(SHARED)):
        raise InvalidSettings(
            f"{', '.join(map(_public_name, unknown))}: not a duration that processes agree on; these are "
            f"{', '.join(map(_public_name, SHARED))}"
        )
    record = _decode_record(kv.get(keys.DURATIONS))
    planned = _plan_record(record, clock, ids, new_seconds)
    if dry_run or planned is record:
        return _change_between(record, planned)
    with audit.change("durations.set", before=record.current._asdict(), after=planned.current._asdict()) as draft:
        for _ in range(_ATTEMPTS):
            with deadline.limit_operation(clock, REREAD_SECONDS):  # a write that came later would outlast `until_ms`
                raw = kv.get(keys.DURATIONS)
                record = _decode_record(raw)
                planned = _plan_record(record, clock, ids, new_seconds)
                draft.before = record.current._asdict()
                draft.after = planned.current._asdict()
                if kv.set_if(keys.DURATIONS, raw, encode(planned)):
                    return _change_between(record, planned)
        raise Contention("others kept changing the durations; make the same call again")


def read_record(kv: KV) -> DurationsRecord | None:
    """Return the agreed durations; None if the lake has none yet."""
    raw = kv.get(keys.DURATIONS)
    return None if isinstance(raw, Absent) else decode(raw, DurationsRecord)


def shared_seconds(safety: Safety) -> SharedDurations:
    return SharedDurations(*(float(getattr(safety, name)) for name in SHARED))


def former_in_force(record: DurationsRecord, now_ms: int) -> tuple[FormerDurations, ...]:
    """Return the former durations that still count, by whichever clock: this one may be ahead of the writer's."""
    skew = max(record.current.clock_skew_seconds, *(each.durations.clock_skew_seconds for each in record.former), 0.0)
    return tuple(each for each in record.former if now_ms < each.until_ms + int(skew * 1000))


def durations_in_force(record: DurationsRecord, now_ms: int) -> tuple[SharedDurations, ...]:
    """Return the agreed durations, then the former ones that still count."""
    return (record.current, *(each.durations for each in former_in_force(record, now_ms)))


def shortest_durations(counting: Iterable[SharedDurations], own: Safety) -> Safety:
    """Return what a process's operations keep to, while other processes may wait by any of these durations."""
    return _combine_durations(tuple(counting), own, min)


def longest_durations(counting: Iterable[SharedDurations], own: Safety) -> Safety:
    """Return how long a process waits for others, while they may run with any of these durations."""
    return _combine_durations(tuple(counting), own, max)


def _combine_durations(counting: tuple[SharedDurations, ...], own: Safety, pick: Callable[..., float]) -> Safety:
    """Combine the durations: `pick` those that bound an operation; what only makes others wait is always the longest.

    The process's own re-check comes early enough for every age of scrubbing that counts.
    """

    def all_of(name: str) -> tuple[float, ...]:
        return tuple(getattr(each, name) for each in counting)

    deadlines, io_timeouts = all_of("operation_deadline_seconds"), all_of("io_timeout_seconds")
    skew = max(all_of("clock_skew_seconds"))
    recheck = min(replace(own, **each._asdict()).scrub_after_seconds for each in counting) - max(io_timeouts) - skew
    return replace(
        own,
        operation_deadline_seconds=pick(deadlines),
        io_timeout_seconds=pick(io_timeouts),
        clock_skew_seconds=skew,
        issue_seconds=pick(all_of("issue_seconds")),
        recheck_after_seconds=max(0.0, min(own.recheck_after_seconds, recheck)),
    )


def _plan_record(record: DurationsRecord, clock: Clock, ids: Ids, new_seconds: Mapping[str, float]) -> DurationsRecord:
    """Return the record after the change. Raises InvalidSettings."""
    agreed = record.current._replace(**{name: float(value) for name, value in new_seconds.items()})
    Safety(**agreed._asdict())  # raises for what is no duration
    if agreed == record.current:
        return record
    if is_for_trying(record.current):
        raise InvalidSettings(
            "this lake was made with durations for trying, and keeps them; make another lake for data that must last"
        )
    shortest = {name: min(seconds, getattr(record.current, name)) for name, seconds in SHORTEST.items()}
    if short := [name for name, seconds in shortest.items() if getattr(agreed, name) < seconds]:
        raise InvalidSettings(
            "; ".join(
                f"{_public_name(name)} is {write_duration(new_seconds[name])}, and {write_duration(shortest[name])} is "
                "the shortest"
                for name in short
            )
            + ". For trying refstore out, make a new lake with: refstore repo create NAME --for-trying --data DIR"
        )
    now = clock.now_ms()
    former = former_in_force(record, now)
    old = longest_durations(durations_in_force(record, now), Safety())
    # The last operation under the old durations begins when its process has not read the record again yet, and the
    # write of the record itself may take as long as that. Each may land a request later, and an operation's once more.
    seconds = (
        2 * REREAD_SECONDS
        + max(old.operation_deadline_seconds, old.issue_seconds)
        + 3 * max(old.io_timeout_seconds, agreed.io_timeout_seconds)
    )
    until_ms = max(now + int(seconds * 1000), *(each.until_ms for each in former), 0)
    return DurationsRecord(agreed, ids.new_id(now), now, (*former, FormerDurations(record.current, until_ms)))


def _change_between(before: DurationsRecord, after: DurationsRecord) -> DurationChange:
    return DurationChange(before.current, after.current, after.former[-1].until_ms if after is not before else 0)


def _decode_record(raw: bytes | Absent) -> DurationsRecord:
    if isinstance(raw, Absent):
        raise InvalidSettings("the lake has no agreed durations yet; make a repository in it first")
    return decode(raw, DurationsRecord)


class _Difference(NamedTuple):
    name: str
    value: float
    origin: str
    agreed_value: float


def _find_differences(
    counting: tuple[SharedDurations, ...], own: Safety, explicit: Mapping[str, str]
) -> list[_Difference]:
    """Return the explicit durations that are none of those that count. The first that count are the agreed ones."""
    return [
        _Difference(name, getattr(own, name), explicit[name], getattr(counting[0], name))
        for name in SHARED
        if name in explicit and getattr(own, name) not in {getattr(each, name) for each in counting}
    ]


_WHAT_NEXT: Final = (
    "leave them out, because a process without them takes what was agreed; or change it for all processes with: "
    "refstore config --set"
)


def _public_name(field: str) -> str:
    """Return the name of a duration for people."""
    return field.removesuffix("_seconds")


def _describe_refusal(differing: Iterable[_Difference]) -> str:
    each = "; ".join(
        f"{_public_name(name)} is {write_duration(value)}{f' ({origin})' if origin else ''}, and the lake's processes "
        f"have agreed on {write_duration(agreed)}"
        for name, value, origin, agreed in differing
    )
    return f"this process may not use the lake with durations of its own: {each}; {_WHAT_NEXT}"


def check_copy_state(raw: bytes | Absent) -> None:
    """Raise WrongStore if this value of `configuration/copy` says that the lake is not open in the KV."""
    copy = decode_optional(raw, KvCopy)
    if copy is None:
        return
    if copy.state == "gone":
        raise WrongStore(
            f"the lake has moved to the KV {copy.other}; set kv to that one, and start this process again "
            "(`refstore config` shows what is set)"
        )
    to = "to" if copy.state == "leaving" else "from"
    raise WrongStore(
        f"this KV is being copied {to} {copy.other}, and is closed meanwhile; wait until `refstore kv copy` has ended. "
        "If it was interrupted, run it again; or open the old KV again with its option --give-up"
    )
