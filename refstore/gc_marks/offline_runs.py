"""The runs of marking: their records, and the flag of the active run. There is one at a time.

A run that lost the flag to another one notices when it next checks the flag, and marks nothing. A run never gets its
flag back, because a mark id is used once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from refstore.context import Context
from refstore.errors import AlreadyExists, Conflict, Contention, InvalidName, NotFound, RunUnderWay
from refstore.kv.base import ABSENT
from refstore.kv.unknown_outcomes import UnknownOutcomes
from refstore.records import keys
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.mark_records import GcFlag, GcRun

ATTEMPTS: Final = 16
"""How often a lost race over one record is run again."""
PREFIX_MIN: Final = 6
"""How much of a mark id must be given at least."""
OBJECTS_EXPIRED: Final = "objects_expired"
"""The count of a run: how many of its objects expired commits named. The others are orphans."""
TAKE_OVER_MS: Final = 900_000
"""A run that did not beat for so long counts as dead. A live run that is taken over notices it and marks nothing."""

_MARK_ID: Final = re.compile(r"[0-9a-z][0-9a-z-]{2,62}")


class RunState(StrEnum):
    MARKING = "marking"
    MARKED = "marked"
    NEEDS_CONFIRMATION = "needs confirmation"
    SWEEPING = "sweeping"
    SWEPT = "swept"
    ABANDONED = "abandoned"


TAGGED: Final = "tagged"
"""How a run is shown that has tagged everything and waits for the bucket. It is no state of its own: while the run is
sweeping, no other run marks what it holds, and nobody can unmark it.
"""
OPEN_STATES: Final = frozenset((RunState.MARKED, RunState.NEEDS_CONFIRMATION, RunState.SWEEPING))
"""The states of a run whose commits were marked, and whose wait was over."""


class OfflineRun(NamedTuple):
    mark_id: str
    record: GcRun
    marked_at_seconds: float | None = None
    """Monotonic time of the marks, if this process made them: a wall clock that is set forward must not shorten the
    wait.
    """

    @property
    def state(self) -> RunState:
        return RunState(self.record.state)

    @property
    def has_finished_marking(self) -> bool:
        """Return whether it says what goes. One that is marking has yet to find that; an abandoned one never does."""
        return self.state in OPEN_STATES or self.state is RunState.SWEPT

    @property
    def is_tagged(self) -> bool:
        """Return whether everything is tagged and the bucket has not deleted it all. The run is sweeping until then."""
        return self.state is RunState.SWEEPING and bool(self.record.tagged_ms)

    def is_due(self, now_ms: int) -> bool:
        """Whether its sweep is under way or may begin."""
        return self.state is RunState.SWEEPING or (
            self.state is RunState.MARKED and self.record.deletes_at_ms <= now_ms
        )

    @property
    def state_text(self) -> str:
        """Return the state in a word, for people and for JSON."""
        return TAGGED if self.is_tagged else self.state.value


class OfflineRuns:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._kv = ctx.kv
        self._repo = ctx.repo
        self._clock = ctx.clock

    def scan(self) -> Iterator[OfflineRun]:
        """Yield all runs in order of mark id: by time, where the ids are `new_mark_id`'s."""
        for mark_id, value in self._kv.scan_all(keys.gc_runs(self._repo)):
            yield OfflineRun(mark_id, decode(value, GcRun))

    def get(self, mark_id: str) -> OfflineRun:
        """Raises NotFound."""
        record = (
            decode_optional(self._kv.get(keys.gc_run(self._repo, mark_id)), GcRun)
            if _MARK_ID.fullmatch(mark_id)
            else None
        )
        if record is None:
            raise NotFound(f"there is no mark {mark_id[:80]!r}; list them to see which there are")
        return OfflineRun(mark_id, record)

    def read_states(self, mark_ids: Collection[str]) -> dict[str, RunState]:
        """Return the states of those that there are."""
        ordered = sorted(mark_ids)
        values = self._kv.get_many([keys.gc_run(self._repo, mark_id) for mark_id in ordered])
        records = {mark_id: decode_optional(value, GcRun) for mark_id, value in zip(ordered, values, strict=True)}
        return {mark_id: RunState(record.state) for mark_id, record in records.items() if record is not None}

    def exists(self, mark_id: str) -> bool:
        """Return whether there is such a mark."""
        return _MARK_ID.fullmatch(mark_id) is not None and self._kv.get(keys.gc_run(self._repo, mark_id)) is not ABSENT

    def full_id(self, text: str) -> str:
        """Return the id of the only mark that begins so; the text itself if none or several do."""
        matches = [run.mark_id for run in self.scan() if run.mark_id.startswith(text)]
        return matches[0] if len(text) >= PREFIX_MIN and len(matches) == 1 else text

    def check_new(self, mark_id: str) -> None:
        """Raises InvalidName, AlreadyExists."""
        if not _MARK_ID.fullmatch(mark_id):
            raise InvalidName(f"{mark_id[:80]!r} is not a mark id; use 3 to 63 of a-z, 0-9 and '-'")
        if self._kv.get(keys.gc_run(self._repo, mark_id)) is not ABSENT:
            raise _already_exists(mark_id)

    def create(self, mark_id: str, record: GcRun) -> OfflineRun:
        """Raises AlreadyExists, also where the run was taken over before it came so far."""
        key = keys.gc_run(self._repo, mark_id)
        unknown = UnknownOutcomes(self._clock)
        for _ in range(ATTEMPTS):
            with unknown.tolerate():  # its write id tells our own write apart
                if self._kv.set_if(key, ABSENT, encode(record)) or self._kv.get(key) == encode(record):
                    return OfflineRun(mark_id, record)
                break
        raise _already_exists(mark_id)

    def change(self, run: OfflineRun, **changes: object) -> OfflineRun:
        """Change the record by one `set_if` from what was read. Raises Conflict."""
        key = keys.gc_run(self._repo, run.mark_id)
        new = msgspec.structs.replace(run.record, **changes, write_id=self.write_id())
        if not self._kv.set_if(key, encode(run.record), encode(new)):
            raise Conflict(
                f"mark {run.mark_id} was changed by others meanwhile; look at it, then make the same call again"
            )
        return run._replace(record=new)

    def abandon(self, mark_id: str, why: str, *, unfinished_only: bool = False) -> bool:
        """Make a run mark nothing from here on. Return whether it does; a run whose sweep began goes on."""
        key = keys.gc_run(self._repo, mark_id)
        unknown = UnknownOutcomes(self._clock)
        for _ in range(ATTEMPTS):
            raw = self._kv.get(key)
            record = decode_optional(raw, GcRun)
            if record is None:  # it took the flag and came no further; so that it never will
                record = GcRun(self.write_id(), RunState.ABANDONED, self._clock.now_ms(), 0, 0, "", end_reason=why)
                with unknown.tolerate():
                    if self._kv.set_if(key, ABSENT, encode(record)):
                        return True
                continue
            if record.state == RunState.ABANDONED:
                return True
            if record.state in (RunState.SWEEPING, RunState.SWEPT) or (
                unfinished_only and record.state != RunState.MARKING
            ):
                return False
            new = msgspec.structs.replace(record, state=RunState.ABANDONED, end_reason=why, write_id=self.write_id())
            if self._kv.set_if(key, raw, encode(new)):
                return True
        raise Contention(f"others kept changing mark {mark_id}; make the same call again")

    # ---- the flag

    def read_flag(self) -> GcFlag | None:
        """Return the flag of the run that marks now."""
        return decode_optional(self._kv.get(keys.gc_flag(self._repo)), GcFlag)

    def check_flag(self, mark_id: str) -> GcFlag:
        """Return the flag of this run. Raises Conflict if it is not this run's any more."""
        flag = self.read_flag()
        if flag is None or flag.mark_id != mark_id:
            raise Conflict(
                f"mark {mark_id} was taken over by another run, or unmarked; nothing is marked, run the marking again"
            )
        return flag

    def take_flag(self, mark_id: str, owner: str, *, take_over: bool) -> None:
        """Take the flag. The run that had it can never finish then. Raises RunUnderWay: that run lives, and is not
        taken over.
        """
        now = self._clock.now_ms()
        new = encode(GcFlag(mark_id, now, now, owner))
        unknown = UnknownOutcomes(self._clock)
        for _ in range(ATTEMPTS):
            raw = self._kv.get(keys.gc_flag(self._repo))
            flag = decode_optional(raw, GcFlag)
            if flag is not None and flag.mark_id == mark_id:
                return  # our own write, its reply lost
            if flag is not None:
                other = decode_optional(self._kv.get(keys.gc_run(self._repo, flag.mark_id)), GcRun)
                begun = other is None or other.state == RunState.MARKING
                if begun and not take_over and now - flag.beat_ms < TAKE_OVER_MS:
                    whose = f" by {flag.owner}" if flag.owner else ""
                    raise RunUnderWay(
                        f"mark {flag.mark_id} is being made{whose}; wait for it, or if it is dead take it over: "
                        f"refstore gc run {self._ctx.name} --take-over"
                    )
                self.abandon(flag.mark_id, f"taken over by {mark_id}", unfinished_only=True)
            with unknown.tolerate():
                if self._kv.set_if(keys.gc_flag(self._repo), raw, new):
                    return
        raise Contention("other runs kept taking the repository's flag; make the same call again")

    def beat(self, mark_id: str) -> None:
        """Raises Conflict if the run was taken over."""
        flag = self.check_flag(mark_id)
        new = msgspec.structs.replace(flag, beat_ms=self._clock.now_ms())
        self._kv.set_if(keys.gc_flag(self._repo), encode(flag), encode(new))

    def clear_flag(self, mark_id: str) -> None:
        """Take the flag off if it is still this run's, then remove its pins."""
        flag = self.read_flag()
        if flag is not None and flag.mark_id == mark_id:
            self._kv.set_if(keys.gc_flag(self._repo), encode(flag), ABSENT)
        self._kv.delete_range(keys.gc_pins(self._repo), f"{mark_id}/", f"{mark_id}/{keys.LAST_CODE_POINT}")

    def drop_late_pins(self) -> None:
        """Remove pins that operations made for runs that are over. Other runs' pins stay: one may have taken over."""
        after = ""
        while pins := self._kv.scan(keys.gc_pins(self._repo), after=after, limit=1):
            mark_id = pins[0][0].partition("/")[0]
            after = f"{mark_id}/{keys.LAST_CODE_POINT}"
            record = decode_optional(self._kv.get(keys.gc_run(self._repo, mark_id)), GcRun)
            if record is not None and record.state != RunState.MARKING:
                self._kv.delete_range(keys.gc_pins(self._repo), f"{mark_id}/", after)

    def write_id(self) -> str:
        return self._ctx.ids.new_id(self._clock.now_ms())


def _already_exists(mark_id: str) -> AlreadyExists:
    return AlreadyExists(f"mark {mark_id} exists already, or was taken over; begin under a new mark id")
