"""Every duration that safety rests on, in one frozen object, validated against each other.

The protocol's proofs know "the longest operation" and "the grace window"; these are the numbers behind the words. Other
processes rely on those in `SHARED`. All processes that share a KV run with the same ones, which stand in the KV
(`refstore/agreed_durations.py`). The others are each process's own matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, get_args

from refstore.core.durations import read_duration
from refstore.core.units import DAY_SECONDS
from refstore.errors import InvalidSettings

IO_SECONDS_MIN: Final = 15.0
"""The shortest time for a request to a store across a network; a smaller setting is for tests and demonstrations."""

LONGEST_SECONDS: Final = 10.0 * 366 * DAY_SECONDS
SIGNED_SECONDS: Final = 900
"""How long a signed URL of an object reads, as lakeFS has it by default. No setting, because other processes rely on
it: what a purge has replaced goes later.
"""


SHARED: Final = (
    "operation_deadline_seconds",
    "io_timeout_seconds",
    "clock_skew_seconds",
    "issue_seconds",
)
"""The fields of `Safety` that other processes rely on. They are no settings: the lake has them. The rest is a process's
own: `recheck_after_seconds` only has to be short enough for the derived `scrub_after_seconds`, and
`grace_seconds` protects a convenience, not data.
"""


NO_SETTINGS: Final = frozenset({*SHARED, "recheck_after_seconds"})
"""The fields of `Safety` that no file and no variable sets."""


SHORTEST: Final[Mapping[str, float]] = {
    "operation_deadline_seconds": 60.0,
    "io_timeout_seconds": IO_SECONDS_MIN,
    "clock_skew_seconds": 1.0,
}
"""The shortest durations that the processes of a lake can change to."""


WitnessMode = Literal["commits", "always"]
CopyMode = Literal["never", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Safety:
    operation_deadline_seconds: float = 3600.0
    """Every SDK operation ends, or fails, within this; the upload of a body included."""
    io_timeout_seconds: float = 60.0
    """How long one request to a store may be under way; a write sent before the deadline lands no later than this after
    it. An object store across a network is never given less than 15 seconds (`objects_io_seconds`): with less this
    bound does not hold.
    """
    clock_skew_seconds: float = 60.0
    """How far the clocks of two machines may be apart."""
    recheck_after_seconds: float = 60.0
    """An upload that took longer re-checks its reference before its entry is written (rule 11). It is never longer than
    what the scrubber leaves time for.
    """
    grace_seconds: float = float(DAY_SECONDS)
    """How long an address stays after it lost its last reference, so that `restore` can take it back (rule 8). For
    storage that is dear, or mistakes that are noticed late.
    """
    issue_seconds: float = 3600.0
    """How long an issued address may be linked (rule 10)."""
    witness: WitnessMode = "commits"
    """What a KV that goes back in time may not lose unnoticed (rule 21): commits, branches and tags; or always also
    what this process links and restores, for one more object in the store for each call. For a KV whose failover may
    lose writes.
    """

    copy_linked: CopyMode = "never"
    """Whether this process links a copy of what was written to an issued address. On S3 the URL of an issued address
    writes there until it expires, also after a link and a commit; nobody has a URL of the copy. For writers by
    issued addresses who are not trusted with what they have handed over.
    """

    @property
    def scrub_after_seconds(self) -> float:
        """The scrubber touches only keys unchanged for this long (rule 9): longer than the longest operation."""
        return self.operation_deadline_seconds + self.io_timeout_seconds + 2 * self.clock_skew_seconds

    @property
    def objects_io_seconds(self) -> float:
        """How long a request to the object store may take, from the service, the reaper and the offline job alike."""
        return max(self.io_timeout_seconds, IO_SECONDS_MIN)

    def operations_end_ms(self, seen_ms: int) -> int:
        """Return when the operations have ended that began before this time, by whatever clock."""
        return seen_ms + int(self.scrub_after_seconds * 1000)

    def __post_init__(self) -> None:
        if self.witness not in get_args(WitnessMode):
            raise InvalidSettings(f"witness is {self.witness!r}; it must be one of {', '.join(get_args(WitnessMode))}")
        if self.copy_linked not in get_args(CopyMode):
            raise InvalidSettings(
                f"copy_linked is {self.copy_linked!r}; it must be one of {', '.join(get_args(CopyMode))}"
            )
        for name in self.__slots__:
            value = getattr(self, name)
            if name in ("witness", "copy_linked"):
                continue
            if not 0 <= value <= LONGEST_SECONDS:
                raise InvalidSettings(f"{name} is {value!r}; it must be a number of seconds between 0 and ten years")
        longest = self.operation_deadline_seconds + self.clock_skew_seconds
        if self.recheck_after_seconds > longest:
            object.__setattr__(self, "recheck_after_seconds", longest)

    def with_given(self, given: Mapping[str, object]) -> Safety:
        """Return these durations with others, by names without their unit: `{"grace": timedelta(hours=2)}` or `"2h"`.

        Raises InvalidSettings.
        """
        fields = {name.removesuffix("_seconds"): name for name in self.__slots__ if name != "recheck_after_seconds"}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in fields:
                raise InvalidSettings(f"safety has no {name!r}; it has {', '.join(fields)}")
            field, seconds = fields[name], value
            if field.endswith("_seconds"):
                seconds = read_duration(f"safety.{name}", value, most=LONGEST_SECONDS)
            values[field] = seconds
        return replace(self, **values)


class Durations(Protocol):
    """The durations that hold now. They may change while the process runs."""

    @property
    def safety(self) -> Safety:
        """Return what this process keeps to: while others may run with other values, the shorter times for an
        operation.
        """
        ...

    @property
    def waits(self) -> Safety:
        """Return how long to wait for other processes: for the longest operation that any of them may run."""
        ...

    def refresh(self) -> None:
        """Read now what holds. Raises DurationsDiffer, KVUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class FixedDurations:
    """Durations that never change, and that nobody has checked against those of other processes."""

    safety: Safety

    @property
    def waits(self) -> Safety:
        return self.safety

    def refresh(self) -> None:
        """Do nothing."""


FOR_TRYING: Final = Safety(
    operation_deadline_seconds=20,
    io_timeout_seconds=5,
    clock_skew_seconds=1,
    recheck_after_seconds=0,
    issue_seconds=60,
)
"""The durations of a lake that is made for trying out refstore: a mark and its sweep take half a minute. Slower
operations fail in it, so a lake has these from its beginning, or never.
"""


def is_for_trying(durations: object) -> bool:
    """Return whether these durations, of `Safety` or as the KV has them, are those of a lake that is for trying."""
    return all(getattr(durations, name) == getattr(FOR_TRYING, name) for name in SHARED)
