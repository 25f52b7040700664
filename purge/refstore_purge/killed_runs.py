"""Find out what a run had done that was killed, or failed while it published.

Before a run publishes, it writes to its report what, with what that counts. Whoever reads the report of a killed run
looks up what came of it: the records of locations name the run, and so do the commits that landed on branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from refstore.core.batches import batched
from refstore.core.ids import Address, own_address
from refstore.core.records import Content, Location
from refstore.errors import RefstoreError
from refstore.repository import Repository
from refstore_purge.publish import METADATA
from refstore_purge.report import Published, Replacement, Report, Row

PAGE: Final = 1000


def settle(repo: Repository, report: Report) -> None:
    """Bring a run's report to what it had published. What cannot be looked up counts as not published."""
    with suppress(RefstoreError):
        landed = _landed_commits(repo, report)
        branches = {each.branch for each in landed}
        of_branches = [each for each in report.publishing if branches.intersection(each.branches)]
        of_versions = _in_locations(repo, report.run, [each for each in report.publishing if not each.branches])
        for each in [*of_branches, *of_versions]:
            if not each.is_counted:
                _row_of(report, each).add(each)
        report.published += landed
    report.publishing = []


def _landed_commits(repo: Repository, report: Report) -> list[Published]:
    """Return the commits of the run that its report does not have yet."""
    known = {each.commit for each in report.published}
    found: list[Published] = []
    for branch in sorted({branch for each in report.publishing for branch in each.branches}):
        with suppress(RefstoreError):  # the branch is gone
            for commit in repo.log(branch, first_parent=True, since_ms=report.began_ms):
                if commit.record.metadata.get(METADATA) == report.run and commit.id not in known:
                    paths = sum(1 for _ in repo.diff(commit.record.parents[0], commit.id))
                    found.append(Published(branch, commit.id, paths))
    return found


def _in_locations(repo: Repository, run: str, items: Sequence[Replacement]) -> list[Replacement]:
    """Return what the records of locations have as a content, or as a backup, of the run."""
    found: list[Replacement] = []
    for page in batched(items, PAGE):
        records = repo.context.locations.get_many([own_address(each.identity) for each in page])
        for each, record in zip(page, records, strict=True):
            if record is not None and any(
                one.run == run and one.address == Address(each.to) for one in _contents(record)
            ):
                found.append(each)
    return found


def _contents(record: Location) -> list[Content]:
    return [*([record.current] if record.current else []), *(backup.content for backup in record.backups)]


def _row_of(report: Report, each: Replacement) -> Row:
    for row in report.rows:
        if (row.dataset, row.partition) == (each.dataset, each.partition):
            return row
    report.rows.append(Row(dataset=each.dataset, partition=each.partition))
    return report.rows[-1]
