"""Publish at the heads of the branches, by one commit for each (mode `keep-history`).

write      write the objects again, at addresses of hidden branches (`BranchPublication`); tasks do
summaries  write the summary files of Parquet that describe them again, in the same commit
publish    merge each hidden branch into its branch
again      plan the heads that have moved meanwhile, or whose publication was refused
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import BinaryIO, Final, cast

import msgspec

from refstore.core import deadline, ids
from refstore.core.batches import split_batches
from refstore.core.ids import BranchName, CommitId
from refstore.errors import BranchNotFound, Conflict, NothingToCommit
from refstore.operations import branch as branch_operation
from refstore.operations import commit as commit_operation
from refstore.operations import transaction
from refstore.operations.commit import CommitOptions
from refstore.operations.copy import Copy
from refstore.operations.purge_roles import HIDDEN_BRANCHES
from refstore.operations.transaction import LEASE_MS
from refstore.operations.upload import Link, Upload
from refstore.purge_document.document import Dataset
from refstore.repository import Repository
from refstore_purge.outcomes import SUMMARY, ObjectResult
from refstore_purge.purge_attempts import Publisher, PurgeAttempt
from refstore_purge.purge_context import PurgeRun
from refstore_purge.purge_error import PurgeError
from refstore_purge.purge_plan import BranchPath, PurgeObject, PurgePlan, plan_heads
from refstore_purge.purge_report import PURGE_NOTE, PublishedCommit
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
        self._heads = {each.name: each.head for each in repo.branches() if not each.is_hidden} | plan.heads
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
            account.report.heads = heads
            run.announce(written)
            with run.steps.step("publishing"):
                published, refused = publication.publish(
                    f"Purge {account.report.ids} ids (run {account.report.run})",
                    {name.branch for each in attempt.summaries for name in each.names},
                    partial(self._write_summaries, attempt.summaries, written),
                    partial(self.count_published, written),
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
            before = head if commit is None else repo.get_commit(commit).parents[0]
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

    def _write_summaries(
        self, summaries: Sequence[PurgeObject], written: list[WrittenObject], branch: str, hidden: str
    ) -> int:
        """Write the summary files of a branch again as they shall be there, on its hidden branch, which has the files
        that they describe; return how many. Announce each; leave those that fail.
        """
        run, count = self.run, 0
        addresses = {result.target_address for _, result in written if result.decided_by != SUMMARY}
        for each, name in ((one, name) for one in summaries for name in one.names if name.branch == branch):
            with tempfile.TemporaryFile(prefix="refstore-purge-") as file:
                target = cast(BinaryIO, file)
                try:
                    rewrite_summary(run, each, [BranchPath(hidden, name.path)], addresses.__contains__, target)
                except PurgeError as error:
                    run.record("left", each, reason=str(error))
                    continue
                on_branch = msgspec.structs.replace(each, names=[name])
                result = ObjectResult(address=each.content_address, target_address=name.path, decided_by=SUMMARY)
                written.append((on_branch, result))
                run.announce(written)
                item = Upload(
                    path=name.path,
                    body=target,
                    metadata=each.metadata,
                    content_type=each.content_type,
                    s3=lambda each=each: each.s3,
                )
                run.repo.upload_many(hidden, [item])
                count += 1
        return count


class BranchPublication:
    """The hidden branches of one attempt, from which each branch gets one commit.

        open      a hidden branch at each head that was looked at
        issue     an address for each object, on the hidden branch of its first name; tasks write there
        stage     link it there, and copy it to its other names
        again     write the summary files that describe what is linked now (`summary_files.py`)
        publish   commit the hidden branch, and merge that into the branch as one commit

    What is staged on the branch stays staged, and then the merge is refused. If the branch changed one of the paths
    meanwhile, it conflicts. The next attempt looks at the new head. The branches have leases, as that of a transaction
    has (rule 24): the reaper ends those that a killed run left, and what they staged goes as with any other branch.
    """

    def __init__(self, repo: Repository, run: str, attempt: int, heads: dict[str, str]) -> None:
        self._repo = repo
        self._run = run
        self._heads = heads
        self._hidden = {
            branch: BranchName(f"{HIDDEN_BRANCHES}{run}-{attempt}-{number}")
            for number, branch in enumerate(sorted(heads))
        }
        self._leases: dict[BranchName, int] = {}
        """Until when the lease of each hidden branch holds that was opened, in ms."""
        self._copies: dict[str, list[tuple[BranchPath, str]]] = {}
        """By branch: other names of what is staged on the branch of a first name."""
        self._paths: dict[str, int] = {}

    def issue(self, purge_objects: Sequence[PurgeObject]) -> dict[str, tuple[str, str]]:
        """Return an address and its token for each object, by its present address."""
        self._hold_leases()
        issued: dict[str, tuple[str, str]] = {}
        for branch in sorted({purge_object.names[0].branch for purge_object in purge_objects}):
            mine = [purge_object for purge_object in purge_objects if purge_object.names[0].branch == branch]
            for page in split_batches(mine):
                made = self._repo.issue_many(
                    self._open_hidden_branch(branch), [purge_object.names[0].path for purge_object in page]
                )
                issued.update(
                    {
                        purge_object.address: (each.address, each.token)
                        for purge_object, each in zip(page, made, strict=True)
                    }
                )
        return issued

    def stage(self, rewritten: Iterable[tuple[PurgeObject, str, ObjectResult]]) -> list[str]:
        """Link what was written, by the tokens of `issue`; return the address of each, which may be that of a copy
        (`safety.copy_linked`). Other names follow when the branch of the first one is committed.
        """
        self._hold_leases()
        addresses: list[str] = []
        for purge_object, token, done in rewritten:
            first, *others = purge_object.names
            link = Link(
                path=first.path,
                token=token,
                size_bytes=done.size_bytes,
                checksum=done.checksum,
                md5=done.md5,
                metadata=purge_object.metadata,
                content_type=purge_object.content_type,
                s3=purge_object.s3,
            )
            addresses += [
                entry.address for entry in self._repo.link_many(self._open_hidden_branch(first.branch), [link])
            ]
            self._paths[first.branch] = self._paths.get(first.branch, 0) + 1
            for other in others:
                self._copies.setdefault(other.branch, []).append((first, other.path))
        return addresses

    def publish(
        self,
        message: str,
        branches: Collection[str],
        write_summaries: Callable[[str, str], int],
        note: Callable[[PublishedCommit], None],
    ) -> tuple[list[PublishedCommit], dict[str, str]]:
        """Commit each hidden branch, and merge it into its branch. Return the commits; by branch, why there is none.
        `write_summaries` writes the summary files of a branch, which `branches` have, when all else is on the hidden
        one, and returns how many; `note` is told of each commit as soon as it is there.

        Raises Unavailable, TransactionEnded (the run was paused for longer than a lease); then some branches may have
        their commits, and the next run finds nothing to do there.
        """
        published: list[PublishedCommit] = []
        refused: dict[str, str] = {}
        commits: dict[str, CommitId] = {}
        # in order, because a first name is on the first of its branches
        for branch in sorted({*self._paths, *self._copies, *branches}):
            hidden = self._open_hidden_branch(branch)
            self._hold_leases()
            copies = self._copies.get(branch, [])
            for source in sorted({first.branch for first, _ in copies}):
                ref = hidden if source == branch else commits[source]
                mine = [Copy(first.path, path) for first, path in copies if first.branch == source]
                self._repo.copy_many(ref, mine, to_branch=hidden)
            paths = self._paths.get(branch, 0) + len(copies) + write_summaries(branch, hidden)
            if not paths:
                continue
            options = CommitOptions(message=message).with_notes({PURGE_NOTE: self._run})
            ctx = self._repo.context
            with self._limit_operation():
                commits[branch] = commit_operation.commit(ctx, hidden, options).id
            try:
                with self._limit_operation():
                    self._leases[hidden] = transaction.renew(ctx, hidden, LEASE_MS)  # before the merge: rule 24
                    landed = transaction.merge_when_clean(ctx, commits[branch], ids.branch_name(branch), options)
            except NothingToCommit:
                continue
            except (Conflict, BranchNotFound) as error:
                refused[branch] = str(error)
                continue
            published.append(PublishedCommit(branch, landed.id, paths))
            note(published[-1])
        return published, refused

    def _limit_operation(self) -> AbstractContextManager[None]:
        context = self._repo.context
        return deadline.limit_operation(context.clock, context.safety.operation_deadline_seconds)

    def close(self) -> None:
        """Delete the hidden branches; what they committed stays where it was merged."""
        for name in sorted(self._leases):
            with suppress(BranchNotFound):
                self._repo.delete_branch(name)

    def _open_hidden_branch(self, branch: str) -> BranchName:
        name, ctx = self._hidden[branch], self._repo.context
        if name not in self._leases:
            until_ms = ctx.clock.now_ms() + LEASE_MS
            with self._limit_operation():
                branch_operation.create_branch(ctx, name, self._heads[branch], hidden=True, lease_until_ms=until_ms)
            self._leases[name] = until_ms
        return name

    def _hold_leases(self) -> None:
        """Renew the leases of which half is over; those of branches that nothing was written to, too."""
        for name, until_ms in self._leases.items():
            self._leases[name] = transaction.hold(self._repo.context, name, until_ms, LEASE_MS)
