"""What a run did, counted from what the tasks and the store answered. These are its JSON files; they need no Spark.

summary.json    Summary: what was listed, kept and marked, and why; after a sweep, what became of it
mark.json       Manifest: what a sweep needs to know of a mark
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec

from refstore.core.units import sum_of_sizes
from refstore.errors import Corrupt, NotFound, ObjectNotFound
from refstore.gc_marks import Run, RunState
from refstore.objects.base import ObjectStore
from refstore_gc.run_layout import ROOT, ObjectKind, read_json, write_json

Mode = Literal["delete", "tag"]
"""Whether a sweep deletes, or tags for the bucket to delete."""

SUMMARY: Final = "summary.json"
MANIFEST: Final = "mark.json"

FAILURES_SHOWN: Final = 20
"""Of how many objects that the store did not delete a summary has the reasons."""

# ---- what becomes of garbage

DELETED: Final = "deleted"
TAGGED: Final = "tagged"
"""And not yet deleted by the bucket, as far as is known."""
BUCKET: Final = "deleted by the bucket"
MISSING: Final = "already gone"
KEPT: Final = "deleted, kept as a version"
"""No key has it any more, but the bucket keeps its bytes."""
FAILED: Final = "failed"
EXCLUDED: Final = "dropped out"
"""Named again since it was marked."""


class Count(msgspec.Struct, frozen=True):
    objects: int = 0
    bytes: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.objects + other.objects, sum_of_sizes((self.bytes, other.bytes)))

    def __sub__(self, other: Count) -> Count:
        return Count(self.objects - other.objects, self.bytes - other.bytes)


Counts = dict[str, Count]


class CleaningSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What purges left behind and a cleaning deleted, as the store confirmed it; of a dry run, what would go."""

    backups: Count = Count()
    trash: Count = Count()
    """What restores had replaced."""
    attempts: Count = Count()
    """What runs wrote and did not publish."""
    going: Count = Count()
    """What an earlier cleaning had begun to delete."""
    branches: int = 0
    """Hidden branches of runs that were killed."""
    held: int = 0
    """Objects of which a legal hold keeps the backups."""
    waiting: Count = Count()
    """Backups and trash that stay for now."""
    kept: Count = Count()
    """What was deleted, and is in none of the counts above because the bucket keeps it as a version."""
    failed: int = 0
    """Objects that the store did not delete; the next cleaning tries again."""
    failures: list[str] = []
    """Examples of these, with the store's reasons."""

    def lines(self) -> Counts:
        """Return what a report says, by the words for it."""
        return {
            "backups past their days": self.backups,
            "trash of restores past its days": self.trash,
            "left by attempts of runs": self.attempts,
            "left by an earlier cleaning": self.going,
            "hidden branches of runs that were killed": Count(self.branches),
            KEPT: self.kept,
            "not deleted: backups that stay for now": self.waiting,
            "not deleted: objects whose backups a legal hold keeps": Count(self.held),
            "not deleted by the store": Count(self.failed),
        }


class UnitRow(msgspec.Struct, frozen=True, array_like=True):
    """A file of the mark."""

    key: str
    first: str
    objects: int
    bytes: int


class Manifest(msgspec.Struct, frozen=True):
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
    failed: int = 0
    """What the store did not delete; the mark's next sweep tries again."""
    failures: list[str] = []
    """Examples of these, with the store's reasons."""

    def __add__(self, other: PurgedObjects) -> PurgedObjects:
        return PurgedObjects(
            objects=self.objects + other.objects,
            contents=self.contents + other.contents,
            failed=self.failed + other.failed,
            failures=[*self.failures, *other.failures][:FAILURES_SHOWN],
        )


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What became of what was marked, as the store confirmed it."""

    mode: str
    engine: str = ""
    """What the last call of the sweep ran on: `local` or `spark`."""
    at_ms: int
    outcomes: Counts
    """deleted, tagged (and not deleted by the bucket yet), deleted by the bucket, already gone, failed, dropped out; or
    deleted, but kept as a version.
    """
    by_reason: dict[str, Counts]
    """By why it was marked."""
    by_prefix: dict[str, Counts] = {}
    """By the first folder of the key, and below `_refstore/` by the second."""
    commits_dropped_out: int = 0
    """Commits that were unmarked since, or are marked by another run: what they name was excluded."""
    dropped_out_by_rules: int = 0
    """Of these, the ones that are active by the rules as they were when the sweep began."""
    rules_changed: bool = False
    """Whether these were other rules than those of the mark. What they keep of expired commits, by a legal hold,
    was excluded, too.
    """
    purged: PurgedObjects = PurgedObjects()
    failures: list[str] = []
    """Examples of what the store did not delete, or kept as a version, with its reasons."""
    seconds: float = 0.0
    newly: Counts = {}
    """Of `outcomes`: what the last call of the sweep added to those before it."""
    tagged_ms: int = 0
    """Since when everything is tagged. 0: it is not, or the mode is another."""

    @property
    def tagged(self) -> Count:
        """What waits for the bucket, at most."""
        return self.outcomes.get(TAGGED, Count())

    @property
    def failed(self) -> int:
        return self.outcomes.get(FAILED, Count()).objects + self.purged.failed

    def with_purged(self, purged: PurgedObjects) -> Swept:
        """Return it with what became of purged objects."""
        failures = [*self.failures, *purged.failures][:FAILURES_SHOWN]
        return msgspec.structs.replace(self, purged=purged, failures=failures)


DRIFT_NOTE: Final = (
    "Orphans may be counted too high: what the reaper deleted between the listing and the live scan is among them,"
    " and S3 says 'deleted' of what was gone already."
)
"""A note for readers of the figures. Nothing is lost by it, because what is counted too much is not there any more."""


class Online(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules took from branches before anything was marked, or would take: the online path deletes it, or its
    history expires.
    """

    staged: Count = Count()
    """Staged objects that were reset by `uncommitted`, or `all`."""
    latest_view: Count = Count()
    """Entries that were removed from branches by commits (`allow_deletion_from_latest_view`)."""
    commits: int = 0
    left: list[str] = []
    """Branches that were not looked through to their ends, each with the reason."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
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
    goes_on_from: str = ""
    """The run before, where only what is newer was listed and read; '': everything was."""
    why_complete: str = ""
    """Why everything was."""
    there_before: Count = Count()
    """What the last complete listing had, where this run goes on from one."""
    listed: Count
    listed_by_kind: Counts
    young: Count
    """Not looked at: younger than the minimum age."""
    foreign: Count
    """Nothing that refstore can name: left alone unless asked for."""
    kept: Count
    pending: Count
    """In an earlier mark already."""
    marked: Count
    by_reason: Counts
    by_kind: Counts
    by_day: dict[str, Counts]
    """day of making -> reason -> count; of blobs."""
    held_by_branch: Counts
    """What each branch's head names: from the trees' own totals, so what two branches share counts for both."""
    named_in_kv: int
    """Addresses that references, staging areas and pins named."""
    sources: dict[str, int]
    """What was read of commits: trees, and listings of added addresses."""
    question: str = ""
    """What an operator has to confirm before the sweep."""
    online: Online = Online()
    versions: str = ""
    """That the bucket keeps versions of what is deleted, or that this is not known; '' if it does not."""
    by_prefix: Counts = {}
    """Of what was marked: by the first folder of the key, and below `_refstore/` by the second."""
    seconds: dict[str, float] = {}
    """By step."""
    swept: Swept | None = None
    cleaned: CleaningSummary | None = None
    """What was deleted of what purges left behind."""

    @property
    def drift(self) -> Counts:
        """What the online path had missed: what goes although no marked commit named it."""
        return {reason: count for reason, count in self.by_reason.items() if reason != "expired"}


def totals(rows: Iterable[tuple[str, Count]]) -> Counts:
    """Add up counts by name."""
    found: Counts = {}
    for name, count in rows:
        found[name] = found.get(name, Count()) + count
    return found


def kind_name(kind: int) -> str:
    return ObjectKind(kind).name.lower()


def write_summary(store: ObjectStore, summary: Summary) -> None:
    write_json(store, f"{ROOT}{summary.mark_id}/{SUMMARY}", summary)


def read_summary(store: ObjectStore, mark_id: str) -> Summary:
    """Raises NotFound, Corrupt."""
    try:
        return _convert(read_json(store, f"{ROOT}{mark_id}/{SUMMARY}"), Summary, mark_id)
    except ObjectNotFound as error:
        raise NotFound(f"mark {mark_id} has no summary; it was not finished: run the marking again") from error


def read_summaries(store: ObjectStore, runs: Iterable[Run]) -> list[Summary]:
    """Return the summaries of the runs that left one. Their states are what the KV says now. Raises Corrupt."""
    summaries: list[Summary] = []
    for run in runs:
        if run.state not in (RunState.MARKING, RunState.ABANDONED):
            with suppress(NotFound):
                summaries.append(msgspec.structs.replace(read_summary(store, run.mark_id), state=run.shown))
    return summaries


def write_manifest(store: ObjectStore, manifest: Manifest) -> None:
    write_json(store, f"{ROOT}{manifest.mark_id}/{MANIFEST}", manifest)


def read_manifest(store: ObjectStore, mark_id: str) -> Manifest:
    """Raises Corrupt: a mark that stands must have it."""
    try:
        return _convert(read_json(store, f"{ROOT}{mark_id}/{MANIFEST}"), Manifest, mark_id)
    except ObjectNotFound as error:
        raise Corrupt(f"mark {mark_id} has lost its files in {store.url}; unmark it, then mark again") from error


def read_units(store: ObjectStore, mark_id: str) -> list[UnitRow]:
    """What a mark is going to sweep. Raises Corrupt: its list, or a part of it, is lost."""
    units = read_manifest(store, mark_id).units
    if {unit.key for unit in units} - {info.key for info in store.list(f"{ROOT}{mark_id}/mark/")}:
        raise Corrupt(f"mark {mark_id} has lost a part of its files in {store.url}; unmark it, then mark again")
    return units


def _convert(value: Any, kind: type[Any], mark_id: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Corrupt(
            f"the files of mark {mark_id} are not as they were written ({error}); unmark it, then mark again"
        ) from error
