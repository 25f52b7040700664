"""What a run found and did, counted from what the tasks and the store answered. It is the JSON file of the run, too."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from refstore_gc.run_summary import ObjectCount
from refstore_prune.sources.base import SourceFacts

RunState = Literal["simulated", "running", "marked", "done", "incomplete", "failed"]
"""`marked`: nothing was due. `done`: all that was due is gone. `incomplete`: the store did not delete all of it."""

Verdict = Literal["named", "young", "protected", "never taken", "own", "unnamed"]
"""What a run decided about a listed object. `own`: refstore's own files, which are left alone."""
VERDICT_WORDS: Final[dict[Verdict, str]] = {
    "named": "named",
    "young": "too young to say",
    "protected": "protected",
    "never taken": "never taken",
    "own": "refstore's own",
    "unnamed": "unnamed",
}
"""What people read for each verdict, in this order."""


class AgeRow(msgspec.Struct, frozen=True):
    """Unnamed objects of an age."""

    days_from: int
    days_to: int | None
    """None: and older."""
    unnamed: ObjectCount

    @property
    def words(self) -> str:
        return f"{self.days_from} days and more" if self.days_to is None else f"{self.days_from} to {self.days_to} days"


class PrefixRow(msgspec.Struct, frozen=True):
    prefix: str
    """'./' has the keys without a folder, and '', in the last row, all other prefixes."""
    listed: ObjectCount
    unnamed: ObjectCount


class UnnamedObject(msgspec.Struct, frozen=True):
    key: str
    size_bytes: int
    written_ms: int
    marked_ms: int
    """When a run first found it unnamed."""


class NamesCount(msgspec.Struct, frozen=True, kw_only=True):
    """How the names and the listing met."""

    names: int = 0
    """Distinct names in the store, in the spelling of the source."""
    found: int = 0
    """Listed objects that a name keeps."""
    found_by_other_spelling: int = 0
    """Of these, the objects that only another spelling of a name keeps."""
    outside: int = 0
    """Names of objects that lie elsewhere, each as often as it was read."""
    examples_not_found: list[str] = []
    """Names of which no object was listed."""


class PruneReport(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    store: str
    state: RunState
    began_ms: int
    ended_ms: int = 0
    engine: str = ""
    sources: list[SourceFacts] = []
    names: NamesCount = NamesCount()
    listed: ObjectCount = ObjectCount()
    verdicts: dict[str, ObjectCount] = {}
    """By `Verdict`; together these are what was listed."""
    waiting: ObjectCount = ObjectCount()
    """Unnamed, and its grace period is not over."""
    newly_marked: ObjectCount = ObjectCount()
    """The part of `waiting` that no earlier run had found unnamed, or that changed since."""
    named_again: ObjectCount = ObjectCount()
    """What an earlier run had marked, and is named now."""
    due: ObjectCount = ObjectCount()
    """Unnamed, and its grace period is over: what this run is to delete; of a simulation, what it would."""
    outcomes: dict[str, ObjectCount] = {}
    """What became of what was due, as the store confirmed it."""
    failures: list[str] = []
    """Examples of what the store did not delete, with its reasons."""
    by_age: list[AgeRow] = []
    by_prefix: list[PrefixRow] = []
    largest: list[UnnamedObject] = []
    """At most 100."""
    not_looked_at: list[str] = []
    """What the run did not see, a sentence each."""
    failed_checks: list[str] = []
    """Of a simulation: the checks that would stop a run before it marks, with the word of consent."""
    next_due_ms: int = 0
    """When the next of `waiting` is due; 0: nothing waits."""
    seconds: dict[str, float] = {}
    is_unmarked: bool = False
    """Whether somebody took back what it was the first to mark. `waiting` and `next_due_ms` are as they were before."""
    error: str = ""
    """What ended a run that failed."""

    def count_deleted(self) -> ObjectCount:
        """Return what the run deleted. The bytes are those that became free."""
        objects = sum(count.objects for outcome, count in self.outcomes.items() if outcome.startswith("deleted"))
        return ObjectCount(objects, self.outcomes.get("deleted", ObjectCount()).bytes)

    def describe_names(self) -> dict[str, str]:
        """Return what was read of each source, and how the names and the listing met."""
        names = self.names
        rows: dict[str, str] = {}
        for number, source in enumerate(self.sources, 1):
            read = ", ".join(f"{what.replace('_', ' ')} {count:,}" for what, count in source.read.items() if count)
            rows["source" if number == 1 else f"source {number}"] = f"{source.source}: {read}"
        rows["names"] = f"{names.names:,} in the store, {names.outside:,} outside; they keep {names.found:,} objects"
        if names.found_by_other_spelling:
            rows["by other spelling"] = f"{names.found_by_other_spelling:,} of these objects"
        if names.examples_not_found:
            rows["named, not listed"] = ", ".join(names.examples_not_found[:3])
        return rows
