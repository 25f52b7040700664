"""The summary of a pass. It counts what was confirmed, never what was requested."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple

from refstore.errors import (
    AuditRefused,
    Corrupt,
    InvalidSettings,
    KVRefused,
    MissingExtra,
    ObjectsRefused,
    RefstoreError,
    StoreMisconfigured,
    Unavailable,
    codes_of,
)

ERRORS_NAMED_MAX: Final = 100
"""How many errors a summary names; all are counted."""


class UnitError(NamedTuple):
    """One unit of work that was stopped; nothing that depended on it was deleted."""

    repository: str
    unit: str
    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSummary:
    published: int = 0
    """Retired tokens whose markers were published for their operations."""
    ended: int = 0
    """Transactions whose lease ran out, and whose branches were deleted."""
    committed: int = 0
    """Commits whose addresses' references were forgotten."""
    tokens: int = 0
    """Tokens that were processed completely."""
    released: int = 0
    """References that were taken off their lists."""
    emptied: int = 0
    """Addresses that lost their last reference."""
    expired: int = 0
    """Issued addresses that were not linked in time. Those that were deleted are also counted as objects below."""
    deleted: int = 0
    """Objects that the store confirmed as deleted."""
    bytes: int = 0
    """The bytes of those objects that the store has freed, as far as their sizes were known."""
    kept: int = 0
    """Those of these objects whose bytes the bucket keeps as a version."""
    kept_bytes: int = 0
    """The bytes of those."""
    missing: int = 0
    """Addresses that had no object any more, or never had one."""
    failed: int = 0
    """Objects that the store did not delete; they are tried again. Over several passes: those that failed in the last
    one.
    """
    scrubbed: int = 0
    """References of crashed operations that were dropped."""
    hints: int = 0
    """Due hints that were missing after a crash."""
    dead_tokens: int = 0
    """Staging areas of tokens that had been dead for long."""
    temporary: int = 0
    """Unfinished uploads that a killed client left in the store."""
    blocked: int = 0
    """Repositories whose hard deletion the breaker stopped."""
    busy: int = 0
    """Units whose leases other reapers had."""
    drained: int = 0
    """Deleted repositories that were drained; their names are free again."""
    error_count: int = 0
    errors: tuple[UnitError, ...] = ()
    """The first errors."""
    more: bool = False
    """Whether there was more to do than the pass had time for."""

    @property
    def idle(self) -> bool:
        """Whether nothing was done: a pass right after this one would do nothing either."""
        counts = (
            self.published,
            self.ended,
            self.committed,
            self.tokens,
            self.released,
            self.deleted,
            self.missing,
            self.scrubbed,
            self.hints,
        )
        return not any((*counts, self.dead_tokens, self.drained))

    @property
    def corrupt(self) -> bool:
        return any(error.code in _CORRUPT for error in self.errors)

    @property
    def is_misconfigured(self) -> bool:
        """Whether a store refuses, because of its settings or of ours: an operator must look."""
        return any(error.code in _MISCONFIGURED for error in self.errors)

    @property
    def unavailable(self) -> bool:
        return any(error.code in _UNAVAILABLE for error in self.errors)


@dataclass(slots=True)
class Tally:
    """Adds up a summary."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    errors: list[UnitError] = field(default_factory=list[UnitError])
    more: bool = False

    def count(self, **counts: int) -> None:
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count

    def fail(self, repository: str, unit: str, error: RefstoreError) -> None:
        self.count(error_count=1)
        if len(self.errors) < ERRORS_NAMED_MAX:
            self.errors.append(UnitError(repository, unit, error.code, str(error), error.retryable))

    def add(self, summary: PassSummary) -> None:
        """Add the summary of another repository."""
        self.count(**{name: getattr(summary, name) for name in _COUNTED})
        self.errors += summary.errors[: ERRORS_NAMED_MAX - len(self.errors)]
        self.more |= summary.more

    def follow(self, summary: PassSummary) -> None:
        """Add the summary of a later pass over the same repositories, but count what was blocked or failed once."""
        blocked = max(self.counts.get("blocked", 0), summary.blocked)
        self.counts["failed"] = 0
        self.add(summary)
        self.counts["blocked"] = blocked

    def summary(self) -> PassSummary:
        return PassSummary(**self.counts, errors=tuple(self.errors), more=self.more)


_COUNTED: Final = tuple(item.name for item in fields(PassSummary) if item.name not in ("errors", "more"))


_CORRUPT: Final = codes_of(Corrupt)
_MISCONFIGURED: Final = frozenset(
    code
    for kind in (StoreMisconfigured, InvalidSettings, MissingExtra, KVRefused, ObjectsRefused, AuditRefused)
    for code in codes_of(kind)
)
_UNAVAILABLE: Final = codes_of(Unavailable)
