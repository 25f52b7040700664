"""Purge what a plan has: find, decide, publish, and look at what came meanwhile, in up to three attempts.

find      look for the ids in each distinct content, of `erase` in its names (`row_search.py`)
copies    refuse objects that have a name outside the data sets
breaker   stop where more rows would go than anybody expects
publish   write the contents again, and bring them to readers
again     plan again what has moved, what others changed, and what came

The attempts are the same for all modes. What differs is how readers see a new content: by a commit (`HeadPublisher`),
or by the location record of the object (`LocationPublisher`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from refstore.purge_document.document import ERASE, Dataset
from refstore_purge import row_search
from refstore_purge.purge_context import PurgeRun
from refstore_purge.purge_plan import BranchPath, PurgeObject, PurgePlan, describe_names, legal_hold_prefixes

ATTEMPTS: Final = 3


class PurgeAttempt(NamedTuple):
    """What an attempt publishes."""

    number: int
    plan: PurgePlan
    objects: list[PurgeObject]
    summaries: list[PurgeObject]
    """The summary files of Parquet that are published with the objects."""
    missing: list[PurgeObject]
    """Objects whose contents are not there."""

    @property
    def is_last(self) -> bool:
        """Whether what could not be published is left, and not tried again."""
        return self.number == ATTEMPTS


class Publisher(ABC):
    """Purges the objects of some data sets."""

    def __init__(self, run: PurgeRun, datasets: Sequence[Dataset]) -> None:
        self.run, self.datasets = run, datasets
        self.prefixes = tuple(dataset.prefix for dataset in datasets)

    @abstractmethod
    def find_outside_names(self, plan: PurgePlan, addresses: Mapping[str, PurgeObject]) -> dict[str, list[BranchPath]]:
        """Return the names outside the data sets that objects have, by address."""

    @abstractmethod
    def publish(self, attempt: PurgeAttempt) -> None:
        """Write objects again, and publish them."""

    @abstractmethod
    def plan_again(self) -> PurgePlan:
        """Look at what may have rows now. Raises Invalid, CorruptRange, Unavailable."""

    def include_names(self, plan: PurgePlan, purge_object: PurgeObject, names: Sequence[BranchPath]) -> None:
        """Let the publication reach names outside the data sets, too. By default all names of an object have its
        content.
        """
        del plan, purge_object, names

    def find_summaries(self, plan: PurgePlan, objects: Sequence[PurgeObject]) -> list[PurgeObject]:
        """Return the summary files of Parquet that are published together with these objects."""
        del plan, objects
        return []

    def is_missed(self, purge_object: PurgeObject) -> bool:
        """Return whether somebody may read an object whose content is not there."""
        del purge_object
        return True

    def purge(self, plan: PurgePlan) -> PurgePlan:
        """Purge what was planned, then what came meanwhile; return the latest plan. Raises Conflict (the breaker),
        Unavailable.
        """
        run = self.run
        for number in range(1, ATTEMPTS + 1):
            run.account.attempt = number
            objects = run.select_objects(plan.objects)
            matched = row_search.find_matching_objects(run, objects)
            with run.steps.step("looking for copies"):
                chosen = self.exclude_copies(plan, matched)
            row_search.check_breaker(run, objects)
            of_rows = [each for each in objects if each.dataset.mode != ERASE]
            missing = [each for each in of_rows if run.account.result_of(each).is_gone and self.is_missed(each)]
            attempt = PurgeAttempt(number, plan, chosen, self.find_summaries(plan, chosen), missing)
            if run.options.dry_run or not (chosen or attempt.summaries or missing):
                break
            self.publish(attempt)
            if not attempt.is_last:
                plan = self.plan_again()
                run.save()
        return plan

    def exclude_copies(self, plan: PurgePlan, objects: Sequence[PurgeObject]) -> list[PurgeObject]:
        """Return which objects are to be replaced: those with a name outside the data sets only if the run includes
        copies, never those with a name there that a legal hold covers, and none that was left before.
        """
        run = self.run
        chosen = {each.address: each for each in objects if each.address not in run.account.left}
        held = legal_hold_prefixes(run.repo)
        outside = self.find_outside_names(plan, chosen) if chosen else {}
        for address, names in outside.items():
            covered = [name for name in names if name.path.startswith(held)]
            if covered:
                reason = f"a legal hold covers it as {describe_names(covered)}"
            elif run.options.includes_copies:
                self.include_names(plan, chosen[address], names)
                continue
            else:
                where = f"it is also named outside the data sets of this run ({describe_names(names)})"
                reason = f"{where}; run again with --including-copies"
            run.record("left", chosen.pop(address), reason=reason)
        return list(chosen.values())
