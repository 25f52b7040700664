"""Publish at the heads of the branches, by one commit for each (mode `keep-history`).

write      write the objects again, at addresses of hidden branches (`publish.py`); tasks do
summaries  write the summary files of Parquet that describe them again, in the same commit
publish    merge each hidden branch into its branch
again      plan the heads that have moved meanwhile, or whose publication was refused
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import BinaryIO, Final

import msgspec

from refstore.errors import BranchNotFound
from refstore.purge_document.document import Dataset
from refstore_purge.outcomes import SUMMARY, ObjectResult
from refstore_purge.publish import BranchPublication
from refstore_purge.purge_attempts import Publisher, PurgeAttempt
from refstore_purge.purge_context import PurgeRun
from refstore_purge.purge_error import PurgeError
from refstore_purge.purge_plan import BranchPath, PurgeObject, PurgePlan, plan_heads
from refstore_purge.purge_report import PublishedCommit
from refstore_purge.summary_files import find_affected_summaries, rewrite_summary

WrittenObject = tuple[PurgeObject, ObjectResult]
"""An object, and what was written for it."""
REWRITES_PER_CORE: Final = 32
"""How many objects each core writes in one call of the engine: their addresses are issued before, and expire."""


class HeadPublisher(Publisher):
    def __init__(self, run: PurgeRun, datasets: Sequence[Dataset]) -> None:
        super().__init__(run, datasets)
        self._heads: dict[str, str] = {}
        """The heads of all branches, as the latest attempt saw them."""
        self._unsettled: set[str] = set()
        """The branches that another attempt must look at."""

    def find_outside_names(self, plan: PurgePlan, addresses: Mapping[str, PurgeObject]) -> dict[str, list[BranchPath]]:
        repo, outside = self.run.repo, dict[str, list[BranchPath]]()
        self._heads = {branch: each.head for branch, each in repo.branches() if not each.is_hidden} | plan.heads
        for branch, head in self._heads.items():
            for path, entry in repo.list(head):
                if entry is not None and entry.address in addresses and not path.startswith(self.prefixes):
                    outside.setdefault(entry.address, []).append(BranchPath(branch, path))
        return outside

    def include_names(self, plan: PurgePlan, purge_object: PurgeObject, names: Sequence[BranchPath]) -> None:
        for name in names:
            plan.heads.setdefault(name.branch, self._heads[name.branch])
        purge_object.names = sorted([*purge_object.names, *names])

    def find_summaries(self, plan: PurgePlan, objects: Sequence[PurgeObject]) -> list[PurgeObject]:
        """Return the summary files that have an id, or describe what is rewritten."""
        if not plan.summaries:
            return []
        run, names = self.run, {name for each in objects for name in each.names}
        with run.steps.step("looking at summary files"):
            summaries = self.exclude_copies(plan, find_affected_summaries(run, plan.summaries, names))
        if run.options.dry_run:
            for each in summaries:
                run.record("replaced", each, ObjectResult(address=each.content_address, decided_by=SUMMARY))
        return summaries

    def publish(self, attempt: PurgeAttempt) -> None:
        run, account, heads = self.run, self.run.account, attempt.plan.heads
        publication = BranchPublication(run.repo, account.report.run, attempt.number, heads)
        try:
            with run.steps.step("rewriting"):
                written = self._rewrite_objects(attempt.objects, publication)
            for each in attempt.summaries:
                publication.add_summary(each, partial(self._write_summary, each, written))
            account.report.heads = heads
            run.announce(written)
            with run.steps.step("publishing"):
                published, refused = publication.publish(
                    f"Purge {account.report.ids} ids (run {account.report.run})", partial(self.count_published, written)
                )
            run.end_publishing()
            run.delete_indexes(attempt.objects)
        finally:
            publication.close()
        self._unsettled = {*refused, *self._find_moved(heads, published)}
        if attempt.is_last:
            for branch, reason in refused.items():
                account.skip_branch(branch, f"not published: {reason}")
            account.unpublished_objects |= {
                each.address for each in attempt.objects if any(name.branch in refused for name in each.names)
            }

    def plan_again(self) -> PurgePlan:
        run, branches = self.run, self._unsettled
        with run.steps.step("listing the heads"):
            plan = plan_heads(run.repo, self.datasets, run.ids.planned_sets, branches=branches)
        run.account.note_plan(plan, {*plan.heads, *branches})
        return plan

    def _find_moved(self, heads: dict[str, str], published: Sequence[PublishedCommit]) -> set[str]:
        """Return the branches that others have moved since they were looked at. One that is gone has not moved."""
        repo, landed = self.run.repo, {each.branch: each.commit for each in published}
        moved: set[str] = set()
        for name, head in heads.items():
            commit = landed.get(name)
            # what landed is one commit upon the branch as it was then
            before = head if commit is None else repo.get_commit(commit).record.parents[0]
            with suppress(BranchNotFound):
                if before != head or repo.get_branch(name).head != (commit or head):
                    moved.add(name)
        return moved

    def count_published(self, written: Sequence[WrittenObject], published: PublishedCommit) -> None:
        """Count what a commit has brought to a branch; what another branch got before is counted already."""
        self.run.account.report.published_commits.append(published)
        for purge_object, result in written:
            if any(name.branch == published.branch for name in purge_object.names):
                self.run.record("replaced", purge_object, result)
        self.run.announce(written)

    def _rewrite_objects(self, objects: Sequence[PurgeObject], publication: BranchPublication) -> list[WrittenObject]:
        """Write the objects again, and stage them on hidden branches; return what was written."""
        run, written = self.run, list[WrittenObject]()
        for batch in run.batch_objects(objects, REWRITES_PER_CORE):
            issued = publication.issue(batch)
            results = run.run_tasks([run.make_task(each, to=issued[each.address][0]) for each in batch])
            for purge_object, result in zip(batch, results, strict=True):
                if result.failure:
                    run.record("written", purge_object, result)
            rewritten = [(each, result) for each, result in zip(batch, results, strict=True) if not result.failure]
            addresses = publication.stage((each, issued[each.address][1], result) for each, result in rewritten)
            for (purge_object, result), address in zip(rewritten, addresses, strict=True):
                written.append((purge_object, msgspec.structs.replace(result, target_address=address)))
                run.record("written", *written[-1])
        return written

    def _write_summary(
        self,
        purge_object: PurgeObject,
        written: list[WrittenObject],
        branch: str,
        hidden: BranchPath,
        target: BinaryIO,
    ) -> bool:
        """Write a summary file again as it shall be on a branch, and announce it; leave it if that fails. `hidden`: its
        name on the hidden branch, which has the files that it describes.
        """
        addresses = {result.target_address for _, result in written if result.decided_by != SUMMARY}
        try:
            rewrite_summary(self.run, purge_object, [hidden], addresses.__contains__, target)
        except PurgeError as error:
            self.run.record("left", purge_object, reason=str(error))
            return False
        on_branch = msgspec.structs.replace(purge_object, names=[BranchPath(branch, hidden.path)])
        result = ObjectResult(address=purge_object.content_address, target_address=hidden.path, decided_by=SUMMARY)
        written.append((on_branch, result))
        self.run.announce(written)
        return True
