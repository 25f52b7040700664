"""Commits and differences as the API shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from api import models
from api.models import Diff, DiffList, DiffType, Pagination
from refstore import user_metadata
from refstore.commits.diffing import Change, Kind
from refstore.commits.filters import PathFilter
from refstore.commits.merging import sides
from refstore.flows.comparing import Logged
from refstore.flows.reading import PAGE_BYTES_MAX
from refstore.ids import CommitId
from refstore.marks import Marks
from refstore.records import Commit, Complete, Mark
from refstore.repository import Repository

_BEHIND = "\U0010ffff"
"""Sorts behind whatever a path can go on with."""
_AT_ONCE: Final = 100
"""Paths of one side that are looked up on the other together: about a page."""
_TYPES: Final[dict[Kind, DiffType]] = {Kind.ADDED: "added", Kind.REMOVED: "removed", Kind.CHANGED: "changed"}


class Difference(NamedTuple):
    """One path that differs, as lakeFS says it."""

    path: str
    type: DiffType
    size_bytes: int


def commit_model(repo: Repository, found: CommitId, commit: Commit) -> models.Commit:
    return commit_models(repo, [(found, commit)])[0]


def new_commit_model(found: CommitId, commit: Commit) -> models.Commit:
    """One that was made just now: nothing has marked it, and nothing is read that could fail where the commit did not."""
    return _commit(found, commit, None, None)


def commit_models(repo: Repository, items: Sequence[tuple[CommitId, Commit]]) -> list[models.Commit]:
    """With what the offline job has decided about them."""
    shown = Marks(repo.context).shown([found for found, _ in items]) if items else []
    return [_commit(found, commit, *each) for (found, commit), each in zip(items, shown, strict=True)]


def _commit(found: CommitId, commit: Commit, mark: Mark | None, complete: Complete | None) -> models.Commit:
    model = models.Commit(
        id=found,
        parents=list(commit.parents),
        committer=commit.committer,
        message=commit.message,
        creation_date=commit.created_ms // 1000,
        meta_range_id=commit.metarange,
        metadata=commit.metadata,
        generation=commit.generation,
    )
    if mark is not None:
        model.state = Logged(found, commit, mark).lifetime.value
        model.expired_prefixes = list(mark.prefixes) or None
        model.marked_since, model.deletes_at, model.mark_id = mark.since_ms // 1000, mark.deletes_at_ms // 1000, mark.mark_id
    elif complete is not None:
        model.state = Logged(found, commit, None, complete).lifetime.value
    return model


def log(
    repo: Repository,
    ref: str,
    *,
    after: str,
    first_parent: bool,
    objects: list[str],
    prefixes: list[str],
    since_ms: int | None,
    stop_at: str | None,
) -> Iterator[tuple[CommitId, Commit]]:
    """Commits from the newest on; only those that changed one of the objects or something below one of the prefixes, if any are given."""
    last = repo.get_commit(stop_at)[0] if stop_at else None
    only = PathFilter(objects, prefixes) if objects or prefixes else None
    skipping = bool(after)
    for found, commit in repo.log(ref, first_parent=first_parent, since_ms=since_ms):
        if not skipping and (only is None or repo.changed(commit, only)):
            yield found, commit
        if found == after:
            skipping = False
        if found == last:
            return


def size_of(commit: Commit) -> int:
    """Bytes of what its users wrote."""
    return len(commit.message.encode(errors="replace")) + user_metadata.size_of(commit.metadata)


def differences(changes: Iterator[Change]) -> Iterator[Difference]:
    """Of two trees."""
    for change in changes:
        yield Difference(change.path, _TYPES[change.kind], change.right.size_bytes if change.right is not None else 0)


def to_merge(repo: Repository, left: CommitId, base: CommitId, right: CommitId, *, prefix: str, after: str) -> Iterator[Difference]:
    """What a merge of the right commit into the left one would do, path by path, and where it would conflict."""
    ours = None if left == base else partial(repo.stat_many, left)
    for step in sides(repo.diff(base, right, prefix=prefix, after=after), ours, batch=_AT_ONCE):
        kind: DiffType = "removed" if step.theirs is None else "added" if step.ours is None else "changed"
        size_bytes = step.theirs.size_bytes if step.theirs is not None else 0
        yield Difference(step.path, "conflict" if step.conflict else kind, size_bytes)


def diff_page(read: Callable[[str], Iterator[Difference]], prefix: str, after: str, amount: int, delimiter: str) -> DiffList:
    """One page of differences, read from a path on; with a delimiter, what goes on behind it is folded into its common prefix."""
    results: list[Diff] = []
    size_bytes = 0
    inside = _common(after, prefix, delimiter) if delimiter else ""
    folded, cursor = (inside, inside + _BEHIND) if inside else ("", after)
    more = True
    while more:
        for change in read(cursor):
            common = _common(change.path, prefix, delimiter) if delimiter else ""
            if common and common == folded:
                continue
            if len(results) == amount or size_bytes >= PAGE_BYTES_MAX:
                return _list(results, amount, has_more=True)
            size_bytes += len((common or change.path).encode(errors="replace"))
            if common:
                results.append(Diff(type="prefix_changed", path=common, path_type="common_prefix"))
                folded, cursor = common, common + _BEHIND
                break  # go on behind the whole prefix rather than through it
            results.append(Diff(type=change.type, path=change.path, path_type="object", size_bytes=change.size_bytes))
        else:
            more = False
    return _list(results, amount, has_more=False)


def _list(results: list[Diff], amount: int, *, has_more: bool) -> DiffList:
    offset = results[-1].path if has_more else ""
    return DiffList(
        pagination=Pagination(has_more=has_more, next_offset=offset, results=len(results), max_per_page=amount), results=results
    )


def _common(path: str, prefix: str, delimiter: str) -> str:
    if not path.startswith(prefix):
        return ""
    at = path.find(delimiter, len(prefix))
    return "" if at < 0 else path[: at + len(delimiter)]
