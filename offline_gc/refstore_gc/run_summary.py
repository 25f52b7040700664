"""What a run did, counted from what the tasks and the store answered. These are its JSON files; they need no Spark.

summary.json    Summary: what was listed, kept and marked, and why; after a sweep, what became of it
mark.json       Manifest: what a sweep needs to know of a mark
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Literal

import msgspec

from refstore.core.units import sum_sizes
from refstore.errors import Corrupt, NotFound, ObjectNotFound
from refstore.gc_marks import OfflineRun, RunState
from refstore.objects.base import ObjectStore
from refstore_gc.run_layout import ROOT, read_json, write_json

SweepMode = Literal["delete", "tag"]
"""Whether a sweep deletes, or tags for the bucket to delete."""

SUMMARY: Final = "summary.json"
MANIFEST: Final = "mark.json"
_ADVICE: Final = "unmark the mark, then mark again"

FAILURES_SHOWN: Final = 20
"""Of how many objects that the store did not delete a summary has the reasons."""

# ---- what becomes of garbage

DELETED_OUTCOME: Final = "deleted"
TAGGED_OUTCOME: Final = "tagged"
"""And not yet deleted by the bucket, as far as is known."""
DELETED_BY_BUCKET_OUTCOME: Final = "deleted by the bucket"
MISSING_OUTCOME: Final = "already gone"
KEPT_AS_VERSION_OUTCOME: Final = "deleted, kept as a version"
"""No key has it any more, but the bucket keeps its bytes."""
FAILED_OUTCOME: Final = "failed"
EXCLUDED_OUTCOME: Final = "excluded"
"""Named again since it was marked."""


class ObjectCount(msgspec.Struct, frozen=True):
    """How many objects, and their bytes as far as their sizes are known."""

    objects: int = 0
    bytes: int = 0

    def __add__(self, other: ObjectCount) -> ObjectCount:
        return ObjectCount(self.objects + other.objects, sum_sizes((self.bytes, other.bytes)))

    def __sub__(self, other: ObjectCount) -> ObjectCount:
        return ObjectCount(self.objects - other.objects, self.bytes - other.bytes)


ObjectCounts = dict[str, ObjectCount]


class CleanupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What purges left behind and a cleaning deleted, as the store confirmed it; of a dry run, what would go."""

    backups: ObjectCount = ObjectCount()
    trash: ObjectCount = ObjectCount()
    """What restores had replaced."""
    attempts: ObjectCount = ObjectCount()
    """What runs wrote and did not publish."""
    pending_deletions: ObjectCount = ObjectCount()
    """What an earlier cleaning had begun to delete."""
    held_contents: int = 0
    """Objects of which a legal hold keeps the backups."""
    waiting_contents: ObjectCount = ObjectCount()
    """Backups and trash that stay for now."""
    kept_contents: ObjectCount = ObjectCount()
    """What was deleted, and is in none of the counts above because the bucket keeps it as a version."""
    failed_objects: int = 0
    """Objects that the store did not delete; the next cleaning tries again."""
    failures: list[str] = []
    """Examples of these, with the store's reasons."""

    def lines(self) -> ObjectCounts:
        """Return what a report says, by the words for it."""
        return {
            "backups past their days": self.backups,
            "trash of restores past its days": self.trash,
            "left by attempts of runs": self.attempts,
            "left by an earlier cleaning": self.pending_deletions,
            KEPT_AS_VERSION_OUTCOME: self.kept_contents,
            "not deleted: backups that stay for now": self.waiting_contents,
            "not deleted: objects whose backups a legal hold keeps": ObjectCount(self.held_contents),
            "not deleted by the store": ObjectCount(self.failed_objects),
        }


class UnitRow(msgspec.Struct, frozen=True, array_like=True):
    """A file of the mark."""

    key: str
    first_address: str
    objects: int
    bytes: int


class SweepManifest(msgspec.Struct, frozen=True):
    mark_id: str
    seed: int
    mode: str
    units: list[UnitRow]
    servers: dict[str, str]
    """The identity of each server of the KV during the look, by partition."""
    dead_identities: list[str] = []
    """Files with identities of purged objects that nothing names."""


class PurgedObjects(msgspec.Struct, frozen=True, kw_only=True):
    """Purged objects that nothing named any more, and of which everything is deleted."""

    objects: int = 0
    contents: int = 0
    """What purges had written for them, and the store confirmed as deleted."""
    failed_objects: int = 0
    """What the store did not delete; the mark's next sweep tries again."""
    failures: list[str] = []
    """Examples of these, with the store's reasons."""

    def __add__(self, other: PurgedObjects) -> PurgedObjects:
        return PurgedObjects(
            objects=self.objects + other.objects,
            contents=self.contents + other.contents,
            failed_objects=self.failed_objects + other.failed_objects,
            failures=[*self.failures, *other.failures][:FAILURES_SHOWN],
        )


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of what was marked, as the store confirmed it."""

    mode: str
    engine: str = ""
    """What the last call of the sweep ran on: `local` or `spark`."""
    at_ms: int
    outcomes: ObjectCounts
    """deleted, tagged (and not deleted by the bucket yet), deleted by the bucket, already gone, failed, excluded; or
    deleted, but kept as a version.
    """
    by_reason: dict[str, ObjectCounts]
    """By why it was marked."""
    by_prefix: dict[str, ObjectCounts] = {}
    """By the first folder of the key, and below `_refstore/` by the second."""
    excluded_commits: int = 0
    """Commits that were unmarked since, or are marked by another run: what they name was excluded."""
    excluded_by_rules: int = 0
    """Of these, the ones that are active by the rules as they were when the sweep began."""
    have_rules_changed: bool = False
    """Whether these were other rules than those of the mark. What they keep of expired commits, by a legal hold,
    was excluded, too.
    """
    purged_objects: PurgedObjects = PurgedObjects()
    failures: list[str] = []
    """Examples of what the store did not delete, or kept as a version, with its reasons."""
    seconds: float = 0.0
    new_outcomes: ObjectCounts = {}
    """Of `outcomes`: what the last call of the sweep added to those before it."""
    tagged_ms: int = 0
    """Since when everything is tagged. 0: it is not, or the mode is another."""

    @property
    def tagged_count(self) -> ObjectCount:
        """What waits for the bucket, at most."""
        return self.outcomes.get(TAGGED_OUTCOME, ObjectCount())

    @property
    def deleted_count(self) -> ObjectCount:
        """What is gone, as the store confirmed it."""
        gone = (DELETED_OUTCOME, DELETED_BY_BUCKET_OUTCOME, KEPT_AS_VERSION_OUTCOME)
        return sum((self.outcomes.get(outcome, ObjectCount()) for outcome in gone), ObjectCount())

    @property
    def failed_objects(self) -> int:
        return self.outcomes.get(FAILED_OUTCOME, ObjectCount()).objects + self.purged_objects.failed_objects

    def add_purged(self, purged: PurgedObjects) -> SweepResult:
        """Return it with what became of purged objects."""
        failures = [*self.failures, *purged.failures][:FAILURES_SHOWN]
        return msgspec.structs.replace(self, purged_objects=purged, failures=failures)


DRIFT_NOTE: Final = (
    "Orphans may be counted too high: what the reaper deleted between the listing and the live scan is among them,"
    " and S3 says 'deleted' of what was gone already."
)
"""A note for readers of the figures. Nothing is lost by it, because what is counted too much is not there any more."""


class BranchRuleResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules took from branches before anything was marked, or would take: the online path deletes it, or its
    history expires.
    """

    staged: ObjectCount = ObjectCount()
    """Staged objects that were reset by `uncommitted`, or `all`."""
    latest_view: ObjectCount = ObjectCount()
    """Entries that were removed from branches by commits (`allow_deletion_from_latest_view`)."""
    commits: int = 0
    incomplete_branches: list[str] = []
    """Branches that were not looked through to their ends, each with the reason."""


class GcSummary(msgspec.Struct, frozen=True, kw_only=True):
    repository: str
    mark_id: str
    state: str
    engine: str = ""
    """What compared: `local` or `spark`."""
    began_ms: int
    deletes_at_ms: int
    min_age_seconds: float
    rules_digest: str
    commits: dict[str, int]
    """marked, marked in part, given up, kept, ..."""
    rules_document: str = ""
    """The retention rules that it went by: `refstore why` tells them years later."""
    expired_by: dict[str, int] = {}
    """How many commits expired by which rule."""
    baseline_mark_id: str = ""
    """The run before, where only what is newer was listed and read; '': everything was."""
    full_reason: str = ""
    """Why everything was."""
    previously_listed: ObjectCount = ObjectCount()
    """What the last full listing had, where this run goes on from one."""
    listed: ObjectCount
    young: ObjectCount
    """Not looked at: younger than the minimum age."""
    foreign: ObjectCount
    """Nothing that refstore can name: left alone unless asked for."""
    kept: ObjectCount
    pending: ObjectCount
    """In an earlier mark already."""
    marked: ObjectCount
    by_reason: ObjectCounts
    sources: dict[str, int]
    """What was read of commits: trees, and listings of added addresses."""
    question: str = ""
    """What an operator has to confirm before the sweep."""
    branch_rules: BranchRuleResult = BranchRuleResult()
    versions_warning: str = ""
    """That the bucket keeps versions of what is deleted, or that this is not known; '' if it does not."""
    by_prefix: ObjectCounts = {}
    """Of what was marked: by the first folder of the key, and below `_refstore/` by the second."""
    seconds: dict[str, float] = {}
    """By step."""
    sweep: SweepResult | None = None
    purge_cleanup: CleanupSummary | None = None
    """What was deleted of what purges left behind."""

    @property
    def drift(self) -> ObjectCounts:
        """What the online path had missed: what goes although no marked commit named it."""
        return {reason: count for reason, count in self.by_reason.items() if reason != "expired"}


def sum_counts(rows: Iterable[tuple[str, ObjectCount]]) -> ObjectCounts:
    """Add up counts by name."""
    found: ObjectCounts = {}
    for name, count in rows:
        found[name] = found.get(name, ObjectCount()) + count
    return found


def write_summary(store: ObjectStore, summary: GcSummary) -> None:
    write_json(store, f"{ROOT}{summary.mark_id}/{SUMMARY}", summary)


def read_summary(store: ObjectStore, mark_id: str) -> GcSummary:
    """Raises NotFound, Corrupt."""
    try:
        return read_json(store, f"{ROOT}{mark_id}/{SUMMARY}", GcSummary, _ADVICE)
    except ObjectNotFound as error:
        raise NotFound(f"mark {mark_id} has no summary; it was not finished: run the marking again") from error


def read_summaries(store: ObjectStore, runs: Iterable[OfflineRun]) -> list[GcSummary]:
    """Return the summaries of the runs that left one. Their states are what the KV says now. Raises Corrupt."""
    summaries: list[GcSummary] = []
    for run in runs:
        if run.state not in (RunState.MARKING, RunState.ABANDONED):
            with suppress(NotFound):
                summaries.append(msgspec.structs.replace(read_summary(store, run.mark_id), state=run.state_text))
    return summaries


def write_manifest(store: ObjectStore, manifest: SweepManifest) -> None:
    write_json(store, f"{ROOT}{manifest.mark_id}/{MANIFEST}", manifest)


def read_manifest(store: ObjectStore, mark_id: str) -> SweepManifest:
    """Raises Corrupt: a mark that stands must have it."""
    try:
        return read_json(store, f"{ROOT}{mark_id}/{MANIFEST}", SweepManifest, _ADVICE)
    except ObjectNotFound as error:
        raise Corrupt(f"mark {mark_id} has lost its files in {store.url}; unmark it, then mark again") from error


def read_units(store: ObjectStore, mark_id: str) -> list[UnitRow]:
    """What a mark is going to sweep. Raises Corrupt: its list, or a part of it, is lost."""
    units = read_manifest(store, mark_id).units
    if {unit.key for unit in units} - {info.key for info in store.list(f"{ROOT}{mark_id}/mark/")}:
        raise Corrupt(f"mark {mark_id} has lost a part of its files in {store.url}; unmark it, then mark again")
    return units
