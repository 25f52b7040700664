"""The account of a run: it folds outcomes into the report, and keeps what later steps ask of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress

import msgspec

from refstore.errors import ObjectsUnavailable
from refstore.objects.base import ObjectStore
from refstore_purge.outcomes import SUMMARY, ObjectOutcome, ObjectResult, RunContent
from refstore_purge.purge_plan import PurgeObject, PurgePlan, SkippedObject
from refstore_purge.purge_report import (
    LISTED_MAX,
    REWRITTEN_OFTEN_BYTES,
    REWRITTEN_SELDOM_SECONDS,
    PartitionRow,
    PurgeReport,
    RemainingPlace,
    write_report,
)


class PurgeAccount:
    """What a run has done so far. Only `record` counts."""

    def __init__(self, report: PurgeReport) -> None:
        self.report = report
        self.attempt = 0
        self.results: dict[tuple[str, str], ObjectResult] = {}
        """By data set and address of the content, which never changes; so it is looked at once."""
        self.examined: set[tuple[str, str]] = set()
        """Data set and address of the contents that were looked into, or written."""
        self.left: dict[str, ObjectOutcome] = {}
        """By identity, why an object was not purged; the first reason counts."""
        self.contents: dict[str, RunContent] = {}
        """By address, what has rows of the ids, or could not be looked into."""
        self.unpublished_objects: set[str] = set()
        """Objects at heads whose branches did not take the run's commit."""
        self.present_datasets: set[str] = set()
        """The data sets below whose prefix anything lies."""
        self.identified_datasets: set[str] = set()
        """The data sets of which any object has the identifier: as a column, in a name, or in its metadata."""
        self.datasets_without_identifier: set[str] = set()
        """The data sets of which an object has rows, and no identifier in any of them."""
        self._skipped: dict[str, list[SkippedObject]] = {}
        """What the latest plan of each branch, or of every version (''), leaves alone."""
        self.unusable_datasets: list[SkippedObject] = []
        """The data sets for which the ids cannot be used."""
        self.places: list[RemainingPlace] = []
        """Places that cannot be looked up later, as the run saw them."""
        self._rows: dict[str, PartitionRow] = {}
        """By the watermark of each partition."""
        self._replaced: set[tuple[str, str]] = set()
        """Data set and address of each content that was replaced and is counted."""
        self._saved_at_seconds = 0.0
        self._saved_bytes = 0

    def record(self, outcome: ObjectOutcome) -> None:
        """Fold an outcome into the report."""
        result, key = outcome.result, (outcome.dataset, outcome.address)
        if outcome.kind == "searched":
            self.results[key] = result
            if result.is_gone:
                return
            self.examined.add(key)
            if result.has_ids or result.failure:
                self._note_content(outcome, reason=result.failure, has_rows=not result.failure)
            self._note_identifier(outcome.dataset, result)
            self._row_of(outcome).add(outcome)
            self._row_of(outcome).attempts = self.attempt
        elif outcome.kind == "written":
            self._row_of(outcome).add(outcome)
            if result.has_ids and result.decided_by != SUMMARY:  # in which `unplanned_contents.py` looks for ids
                self._note_content(outcome, new_address=result.target_address)
                if result.target_address:  # it need not be looked at again
                    written = ObjectResult(address=result.target_address, rows=result.rows, decided_by="column")
                    self.results[outcome.dataset, written.address] = written
                    self.examined.add((outcome.dataset, written.address))
        elif outcome.kind == "replaced":
            self.left.pop(outcome.identity, None)  # why an earlier attempt failed is void
            if key not in self._replaced:
                self._replaced.add(key)
                self._row_of(outcome).add(outcome)
        if outcome.kind == "found":
            self._note_content(outcome, reason=result.failure or outcome.reason, has_rows=result.has_ids)
        elif outcome.reason or result.failure:
            self._row_of(outcome)
            self.left.setdefault(outcome.identity, outcome)

    def result_of(self, purge_object: PurgeObject) -> ObjectResult:
        """Return what the search said of an object's content."""
        return self.results[purge_object.dataset.name, purge_object.content_address]

    def select_uncounted(self, outcomes: Iterable[ObjectOutcome]) -> list[ObjectOutcome]:
        """Return the outcomes whose contents do not count as replaced yet."""
        return [each for each in outcomes if (each.dataset, each.address) not in self._replaced]

    def skip_branch(self, branch: str, reason: str) -> None:
        """Note a branch to which nothing could be published."""
        self._skipped.setdefault(branch, []).append(SkippedObject(branch, "", reason))

    def note_plan(self, plan: PurgePlan, branches: Collection[str] | None = None) -> None:
        """Keep what a plan saw and leaves alone, which takes the place of what an earlier one said of the same.
        `branches`: those that were looked at, and may be gone; None: every version was.
        """
        self.present_datasets |= plan.present_datasets
        self.identified_datasets |= plan.identified_datasets
        if branches is None:
            self._skipped[""] = plan.skipped_objects
        for branch in branches or ():
            self._skipped[branch] = [each for each in plan.skipped_objects if each.branch == branch]

    def update_report(self) -> None:
        """Bring the report to what is known by now."""
        report, failed = self.report, Counter(each.watermark for each in self.left.values())
        for watermark, row in self._rows.items():
            row.failed_objects = failed[watermark]
        report.rows = [self._rows[watermark] for watermark in sorted(self._rows)]
        skipped = [*self.unusable_datasets, *(each for part in self._skipped.values() for each in part)]
        skipped += [
            SkippedObject(each.branch, each.path, each.reason or each.result.failure) for each in self.left.values()
        ]
        report.skipped_objects, report.skipped_count = skipped[:LISTED_MAX], len(skipped)

    def save(self, store: ObjectStore) -> None:
        """Write what the run has done so far, for the case that it is killed. A store that refuses it stops nothing."""
        seconds = time.monotonic()
        if self._saved_bytes > REWRITTEN_OFTEN_BYTES and seconds - self._saved_at_seconds < REWRITTEN_SELDOM_SECONDS:
            return
        self.update_report()
        with suppress(ObjectsUnavailable):
            self._saved_bytes = write_report(store, self.report)
        self._saved_at_seconds = seconds

    def remaining_contents(self) -> list[RunContent]:
        """Return what was noted, with the reasons why the run has left it."""
        left = dict.fromkeys(self.unpublished_objects, "its branch did not take the run's commit")
        left |= {identity: each.reason or each.result.failure for identity, each in self.left.items()}
        return [
            msgspec.structs.replace(each, reason=each.reason or left.get(each.identity, ""))
            for _, each in sorted(self.contents.items())
        ]

    def _row_of(self, outcome: ObjectOutcome) -> PartitionRow:
        """Return the row of the report for an outcome's partition."""
        return self._rows.setdefault(
            outcome.watermark, PartitionRow(dataset=outcome.dataset, partition=outcome.partition)
        )

    def _note_content(
        self, outcome: ObjectOutcome, *, reason: str = "", has_rows: bool = True, new_address: str = ""
    ) -> None:
        """Note what has rows of the ids, or was not looked into. What was seen to have rows has some."""
        content = RunContent(
            outcome.address,
            outcome.identity,
            outcome.dataset,
            outcome.prefix,
            outcome.size_bytes,
            has_rows,
            reason,
            new_address,
        )
        before = self.contents.get(content.address)
        if before is None or has_rows or not before.has_rows:
            self.contents[content.address] = content

    def _note_identifier(self, dataset: str, result: ObjectResult) -> None:
        """Note whether an object has the identifier; one that cannot be read, or has no lines, does not tell."""
        if result.decided_by == "name":
            return  # the plan tells
        if result.lacks_identifier:
            if result.failure or result.rows:
                self.datasets_without_identifier.add(dataset)
        elif result.lacks_identifier is not None and not result.failure:
            self.identified_datasets.add(dataset)
