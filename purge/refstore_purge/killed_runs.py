"""Find out what a run had done that was killed, or failed while it published.

Before a run publishes, it writes to its report what, with what that counts. Whoever reads the report of a killed run
looks up what came of it: the records of locations name the run, and so do the commits that landed on branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from refstore.core.batches import split_batches
from refstore.core.ids import Address, own_address
from refstore.errors import RefstoreError
from refstore.repository import Repository
from refstore_purge.publish import PURGE_NOTE
from refstore_purge.purge_report import PartitionRow, PublishedCommit, PurgeReport, Replacement


def complete_report(repo: Repository, report: PurgeReport) -> None:
    """Bring a run's report to what it had published. What cannot be looked up counts as not published."""
    with suppress(RefstoreError):
        landed = _find_landed_commits(repo, report)
        branches = {each.branch for each in landed}
        of_branches = [each for each in report.pending_replacements if branches.intersection(each.branches)]
        of_versions = _find_in_locations(
            repo, report.run, [each for each in report.pending_replacements if not each.branches]
        )
        for each in [*of_branches, *of_versions]:
            if not each.is_counted:
                _report_row(report, each).add(each)
        report.published_commits += landed
    report.pending_replacements = []


def _find_landed_commits(repo: Repository, report: PurgeReport) -> list[PublishedCommit]:
    """Return the commits of the run that its report does not have yet.

    A branch is followed to the head that the run had looked at. Dates do not tell how far: who commits upon the run's
    commit may give a date.
    """
    known = {each.commit for each in report.published_commits}
    found: list[PublishedCommit] = []
    for branch in sorted({branch for each in report.pending_replacements for branch in each.branches}):
        with suppress(RefstoreError):  # the branch is gone
            for commit in repo.log(branch, first_parent=True):
                if commit.id == report.heads.get(branch):
                    break
                if commit.record.notes.get(PURGE_NOTE) == report.run and commit.id not in known:
                    paths = sum(1 for _ in repo.diff(commit.record.parents[0], commit.id))
                    found.append(PublishedCommit(branch, commit.id, paths))
    return found


def _find_in_locations(repo: Repository, run: str, items: Sequence[Replacement]) -> list[Replacement]:
    """Return what the records of locations have as a content, or as a backup, of the run."""
    found: list[Replacement] = []
    for page in split_batches(items):
        records = repo.context.locations.get_many([own_address(each.identity) for each in page])
        for each, record in zip(page, records, strict=True):
            if record is not None and any(
                one.run == run and one.address == Address(each.new_address) for one in record.contents()
            ):
                found.append(each)
    return found


def _report_row(report: PurgeReport, each: Replacement) -> PartitionRow:
    for row in report.rows:
        if (row.dataset, row.partition) == (each.dataset, each.partition):
            return row
    report.rows.append(PartitionRow(dataset=each.dataset, partition=each.partition))
    return report.rows[-1]
