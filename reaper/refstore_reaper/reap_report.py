"""What a call of `refstore_reaper.reap` tells its caller."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from refstore.core.units import format_bytes
from refstore_reaper.pass_summary import PassSummary


@dataclass(frozen=True, slots=True)
class DueObject:
    """An object that a run without `dry_run` would delete now."""

    repository: str
    address: str
    path: str
    """Where it was last staged."""
    cause: str
    """Why nothing names it any more, such as `deleted`."""
    size_bytes: int | None
    """None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapReport(PassSummary):
    """What a run did, as the stores confirmed it; of a dry run, what it would do."""

    is_dry_run: bool
    began: datetime
    """In UTC."""
    duration: timedelta
    would_delete: tuple[DueObject, ...] = ()
    """Of a dry run: the objects, in the order in which they would be deleted."""

    @property
    def is_done(self) -> bool:
        """Whether no error came, the store deleted all that it was told to, and nothing is held back."""
        return not (self.error_count or self.failed or self.blocked)

    def __str__(self) -> str:
        what = "would delete" if self.is_dry_run else "deleted"
        parts = [f"{what} {self.deleted:,} objects, {format_bytes(self.bytes)}"]
        parts += [f"{self.kept:,} of them stay in the bucket as versions"] if self.kept else []
        parts += [f"{self.failed:,} were not deleted by the store"] if self.failed else []
        parts += [f"deletion is stopped in {self.blocked:,} repositories"] if self.blocked else []
        parts += [f"{self.error_count:,} errors, such as: {self.errors[0].message}"] if self.errors else []
        return "; ".join(parts)
