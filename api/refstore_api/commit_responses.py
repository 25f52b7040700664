"""Turn commits and differences into the API's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

from refstore.core import user_metadata
from refstore.core.ids import CommitId
from refstore.gc_marks import Marks, MarkStatus
from refstore.operations import log_and_diff, refs
from refstore.operations.content_comparison import ContentComparison
from refstore.operations.read import PAGE_BYTES_MAX
from refstore.public_types import Commit, PathChange, stored_commit
from refstore.records import keys
from refstore.repository import Repository
from refstore.versioning.commits.path_filter import PathFilter
from refstore.versioning.commits.tree_diff import EntryChange, PathChangeKind
from refstore.versioning.commits.tree_merge import compare_sides
from refstore_api import models
from refstore_api.models import Diff, DiffList, DiffType
from refstore_api.page_responses import PageBounds

_BATCH: Final = 100
"""Paths of one side that are looked up on the other side in one call: about a page."""
_TYPES: Final[dict[PathChangeKind, DiffType]] = {
    PathChangeKind.ADDED: "added",
    PathChangeKind.REMOVED: "removed",
    PathChangeKind.CHANGED: "changed",
}


class DiffEntry(NamedTuple):
    """One path that differs, in lakeFS's terms."""

    path: str
    type: DiffType
    size_bytes: int


def commit_model(repo: Repository, commit: Commit) -> models.CommitModel:
    return commit_models(repo, [commit])[0]


def new_commit_model(commit: Commit) -> models.CommitModel:
    """Return a commit that was made just now: it has no mark, so nothing is read that could fail."""
    return _commit(commit, MarkStatus())


def commit_models(repo: Repository, commits: Sequence[Commit]) -> list[models.CommitModel]:
    """Return the commits, with what the offline job has decided about them."""
    marks = Marks(repo.context).statuses.read([each.id for each in commits]) if commits else []
    return [_commit(commit, status) for commit, status in zip(commits, marks, strict=True)]


def _commit(shown: Commit, status: MarkStatus) -> models.CommitModel:
    commit = stored_commit(shown)
    model = models.CommitModel(
        id=shown.id,
        parents=list(commit.parents),
        committer=commit.committer,
        message=commit.message,
        creation_date=commit.created_ms // 1000,
        meta_range_id=commit.metarange,
        metadata=commit.metadata,
        notes=commit.notes or None,
        generation=commit.generation,
    )
    mark = status.mark
    if any(status):
        model.state = log_and_diff.lifetime_of(status).value
    if mark is not None:
        model.expired_prefixes = list(mark.prefixes) or None
        model.marked_since, model.deletes_at, model.mark_id = (
            mark.since_ms // 1000,
            mark.deletes_at_ms // 1000,
            mark.mark_id,
        )
    return model


def filter_log(
    repo: Repository,
    ref: str,
    *,
    after: str,
    first_parent: bool,
    objects: list[str],
    prefixes: list[str],
    since: datetime | None,
    stop_at: str | None,
) -> Iterator[Commit]:
    """Yield commits from the newest on. With `objects` or `prefixes`, yield only those that changed one of them."""
    last_id = repo.get_commit(stop_at).id if stop_at else None
    changed_paths = PathFilter(objects, prefixes) if objects or prefixes else None
    skipping = bool(after)
    for commit in repo.log(ref, first_parent=first_parent, since=since):
        if not skipping and (
            changed_paths is None or log_and_diff.has_changed_paths(repo.context, stored_commit(commit), changed_paths)
        ):
            yield commit
        if commit.id == after:
            skipping = False
        if commit.id == last_id:
            return


def size_of(commit: Commit) -> int:
    """Return the size in bytes of the message and metadata."""
    return len(commit.message.encode(errors="replace")) + user_metadata.metadata_bytes(commit.metadata)


def differences(changes: Iterator[EntryChange | PathChange]) -> Iterator[DiffEntry]:
    """Yield the differences of two trees."""
    for change in changes:
        yield DiffEntry(change.path, _TYPES[change.kind], change.right.size_bytes if change.right is not None else 0)


def merge_differences(
    repo: Repository, left: CommitId, base: CommitId, right: CommitId, *, prefix: str, after: str
) -> Iterator[DiffEntry]:
    """Yield what a merge of the right commit into the left one would do to each path, conflicts included."""
    ctx = repo.context
    left_entries = None if left == base else partial(ctx.trees.get_many, refs.get_commit(ctx, left).metarange)
    changes = log_and_diff.diff_commits(ctx, base, right, prefix=prefix, after=after)
    for step in compare_sides(changes, left_entries, ContentComparison(ctx).are_equal, batch=_BATCH):
        kind: DiffType = "removed" if step.theirs is None else "added" if step.ours is None else "changed"
        size_bytes = step.theirs.size_bytes if step.theirs is not None else 0
        yield DiffEntry(step.path, "conflict" if step.is_conflict else kind, size_bytes)


def diff_page(read: Callable[[str], Iterator[DiffEntry]], page: PageBounds, prefix: str, delimiter: str) -> DiffList:
    """Return one page of differences. With a delimiter, paths that continue after it are folded into their common
    prefix.
    """
    results: list[Diff] = []
    size_bytes = 0
    inside = _common_prefix(page.after, prefix, delimiter) if delimiter else ""
    folded, cursor = (inside, inside + keys.LAST_CODE_POINT) if inside else ("", page.after)
    has_more, more = False, True
    while more and not has_more:
        for change in read(cursor):
            common = _common_prefix(change.path, prefix, delimiter) if delimiter else ""
            if common and common == folded:
                continue
            if len(results) == page.most or size_bytes >= PAGE_BYTES_MAX:
                has_more = True
                break
            size_bytes += len((common or change.path).encode(errors="replace"))
            if common:
                results.append(Diff(type="prefix_changed", path=common, path_type="common_prefix"))
                folded, cursor = common, common + keys.LAST_CODE_POINT
                break  # continue after the prefix instead of reading through it
            results.append(Diff(type=change.type, path=change.path, path_type="object", size_bytes=change.size_bytes))
        else:
            more = False
    last = results[-1].path if results else ""
    return DiffList(pagination=page.describe(len(results), last, has_more=has_more), results=results)


def _common_prefix(path: str, prefix: str, delimiter: str) -> str:
    if not path.startswith(prefix):
        return ""
    at = path.find(delimiter, len(prefix))
    return "" if at < 0 else path[: at + len(delimiter)]
