"""Bring rewritten objects to the branches: stage them on hidden branches, then land each by one commit.

    open      a hidden branch at each head that was looked at
    issue     an address for each object, on the hidden branch of its first name; tasks write there
    stage     link it there, and copy it to its other names
    again     write the summary files that describe what is linked now (`summary_files.py`)
    publish   commit the hidden branch, and merge that into the branch as one commit

What is staged on the branch stays staged, and then the merge is refused. If the branch changed one of the paths
meanwhile, it conflicts. The next attempt looks at the new head. A run that is killed leaves hidden branches, which the
next run deletes; what they staged goes as with any other branch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import BinaryIO, Final, cast

from refstore.core import deadline, ids
from refstore.core.batches import split_batches
from refstore.errors import BranchNotFound, Conflict, DirtyBranch, NothingToCommit
from refstore.operations import commit as commit_operation
from refstore.operations.commit import CommitInfo, CommitOptions
from refstore.operations.copy import Copy
from refstore.operations.purge_roles import HIDDEN_BRANCHES
from refstore.operations.upload import Link, Upload
from refstore.repository import Repository
from refstore_purge.outcomes import ObjectResult
from refstore_purge.purge_plan import BranchPath, PurgeObject
from refstore_purge.purge_report import PURGE_NOTE, PublishedCommit

WAITS_SECONDS: Final = (0.5, 1, 2, 4, 8)
"""How long to wait between tries while a branch has staged changes."""


WriteSummary = Callable[[str, BranchPath, BinaryIO], bool]
"""Writes a summary file when all else is on the hidden branch: it is given the file's branch, and its name on the
hidden one. Returns whether it wrote the file.
"""


class BranchPublication:
    """The hidden branches of one attempt."""

    def __init__(self, repo: Repository, run: str, attempt: int, heads: dict[str, str]) -> None:
        self._repo = repo
        self._run = run
        self._heads = heads
        self._hidden = {
            branch: f"{HIDDEN_BRANCHES}{run}-{attempt}-{number}" for number, branch in enumerate(sorted(heads))
        }
        self._opened: set[str] = set()
        self._copies: dict[str, list[tuple[BranchPath, str]]] = {}
        """By branch: other names of what is staged on the branch of a first name."""
        self._paths: dict[str, int] = {}
        self._summaries: dict[str, list[tuple[str, PurgeObject, WriteSummary]]] = {}
        """By branch: the paths of summary files."""

    def issue(self, purge_objects: Sequence[PurgeObject]) -> dict[str, tuple[str, str]]:
        """Return an address and its token for each object, by its present address."""
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

    def add_summary(self, purge_object: PurgeObject, write: WriteSummary) -> None:
        """Let `publish` write a summary file under each of its names."""
        for branch, path in purge_object.names:
            self._summaries.setdefault(branch, []).append((path, purge_object, write))

    def publish(
        self, message: str, note: Callable[[PublishedCommit], None]
    ) -> tuple[list[PublishedCommit], dict[str, str]]:
        """Commit each hidden branch, and merge it into its branch. Return the commits; by branch, why there is none.
        `note` is told of each commit as soon as it is there.

        Raises Unavailable; then some branches may have their commits, and the next attempt finds nothing to do there.
        """
        published: list[PublishedCommit] = []
        refused: dict[str, str] = {}
        commits: dict[str, str] = {}
        # in order, because a first name is on the first of its branches
        for branch in sorted({*self._paths, *self._copies, *self._summaries}):
            hidden = self._open_hidden_branch(branch)
            copies = self._copies.get(branch, [])
            for source in sorted({first.branch for first, _ in copies}):
                ref = hidden if source == branch else commits[source]
                mine = [Copy(first.path, path) for first, path in copies if first.branch == source]
                self._repo.copy_many(ref, hidden, mine)
            paths = self._paths.get(branch, 0) + len(copies) + self._write_summaries(branch)
            if not paths:
                continue
            options = CommitOptions(message=message).with_notes({PURGE_NOTE: self._run})
            with self._limit_operation():
                commits[branch] = commit_operation.commit(self._repo.context, ids.branch_name(hidden), options).id
            try:
                landed = self.merge_commit(commits[branch], branch, options)
            except NothingToCommit:
                continue
            except (Conflict, BranchNotFound) as error:
                refused[branch] = str(error)
                continue
            published.append(PublishedCommit(branch, landed.id, paths))
            note(published[-1])
        return published, refused

    def _write_summaries(self, branch: str) -> int:
        """Write the summary files on a hidden branch; return how many."""
        written = 0
        for path, purge_object, write in self._summaries.get(branch, []):
            with tempfile.TemporaryFile(prefix="refstore-purge-") as target:
                if write(branch, BranchPath(self._hidden[branch], path), cast(BinaryIO, target)):
                    item = Upload(
                        path=path,
                        body=cast(BinaryIO, target),
                        metadata=purge_object.metadata,
                        content_type=purge_object.content_type,
                        s3=lambda purge_object=purge_object: purge_object.s3,
                    )
                    self._repo.upload_many(self._hidden[branch], [item])
                    written += 1
        return written

    def merge_commit(self, commit: str, branch: str, options: CommitOptions) -> CommitInfo:
        """Merge a commit into a branch; while that has staged changes, wait for whoever made them, but not for long."""
        context, name = self._repo.context, ids.branch_name(branch)

        def merge() -> CommitInfo:
            with self._limit_operation():
                return commit_operation.merge(context, name, commit, options, squash=True)

        for seconds in WAITS_SECONDS:
            with suppress(DirtyBranch):
                return merge()
            context.clock.sleep(seconds)
        return merge()

    def _limit_operation(self) -> AbstractContextManager[None]:
        context = self._repo.context
        return deadline.limit_operation(context.clock, context.safety.operation_deadline_seconds)

    def close(self) -> None:
        """Delete the hidden branches; what they committed stays where it was merged."""
        for name in sorted(self._opened):
            with suppress(BranchNotFound):
                self._repo.delete_branch(name)

    def _open_hidden_branch(self, branch: str) -> str:
        name = self._hidden[branch]
        if name not in self._opened:
            self._repo.create_branch(name, self._heads[branch], hidden=True)
            self._opened.add(name)
        return name
