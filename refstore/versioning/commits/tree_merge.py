"""Three-way merge: what `theirs` changed since `base`, brought onto `ours`.

Path by path, in order: what theirs did not change stays as ours has it. What theirs changed is taken if ours still has
what base had. If ours has what theirs has, both came to the same and nothing is to do. Otherwise they conflict, and the
strategy decides.

**The log of a table** (`TableLog`) is decided as a whole. If both changed a file of it, a strategy takes the
folder as the winner has it: what the other side added there is left out, or goes. The data files of both stay; the log
does not name those of the other side.

Whether two entries are the same thing the caller tells (`equality`), because that needs to know where contents lie.
(`apply` and `Trees.diff` compare all fields: there a new address or time is a change.)

Only what theirs changed is looked up in ours: the cost is that of `diff(base, theirs)`, whatever else ours did. A
revert of a commit is a merge with that commit as base and its parent as theirs; a cherry-pick the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

from refstore.errors import MergeConflict
from refstore.records.staging_records import StoredEntry
from refstore.versioning.commits.equality import AreEqual
from refstore.versioning.commits.tree_diff import EntryChange
from refstore.versioning.commits.trees import Trees


class _LogFormat(NamedTuple):
    name: str
    folder: str
    path: re.Pattern[str]
    """Of the log's files. Delta and Hudi have folders in it, Iceberg has none."""
    decisive: re.Pattern[str]
    """Of the files that only a log has: one of them that both sides changed shows that both wrote the table."""


_FORMATS: Final = (
    _LogFormat(
        "Delta", "_delta_log/", re.compile(r"(?P<folder>(.*?/)?_delta_log/).+", re.DOTALL), re.compile(r".+", re.DOTALL)
    ),
    _LogFormat(
        "Hudi", ".hoodie/", re.compile(r"(?P<folder>(.*?/)?\.hoodie/).+", re.DOTALL), re.compile(r".+", re.DOTALL)
    ),
    _LogFormat(
        "Iceberg",
        "metadata/",
        re.compile(r"(?P<folder>(.*/)?metadata/)[^/]+", re.DOTALL),
        re.compile(r"([^/]*/)*([^/]+\.metadata\.json(\.gz)?|version-hint\.text)"),
    ),
)


class TableLog(NamedTuple):
    """The folder whose files say together which data files a table has. A log that is made of files of two histories
    tells of a table that never was.
    """

    format: _LogFormat
    folder: str

    @property
    def table(self) -> str:
        """The table as messages name it: its format and its root."""
        return f"{self.format.name} table {self.folder.removesuffix(self.format.folder) or '/'!r}"

    def has(self, path: str) -> bool:
        """Return whether a path below the folder is a file of the log."""
        return find_log(path) == self

    def is_decisive(self, path: str) -> bool:
        """Return whether a file of the log shows that it is one."""
        return self.format.decisive.fullmatch(path) is not None


def find_log(path: str) -> TableLog | None:
    """Return the log that a path may be a file of."""
    for format_ in _FORMATS:
        if format_.folder in path and (match := format_.path.fullmatch(path)) is not None:
            return TableLog(format_, match["folder"])
    return None


BATCH: Final = 1000
"""How many changes are looked up in ours together."""
CONFLICTS_MAX: Final = 100
"""How many paths MergeConflict carries."""


class MergeStrategy(Enum):
    NONE = "none"
    """Conflicts are reported."""
    OURS = "dest-wins"
    """In a conflict ours stays."""
    THEIRS = "source-wins"
    """In a conflict theirs is taken."""


class MergeSides(NamedTuple):
    """A path on which theirs has something that ours has not. None: it is not there."""

    path: str
    base: StoredEntry | None
    ours: StoredEntry | None
    theirs: StoredEntry | None
    is_conflict: bool
    """Whether ours has changed it, too."""


def compare_sides(
    changes: Iterator[EntryChange],
    ours: Callable[[list[str]], Mapping[str, StoredEntry]] | None,
    equal: AreEqual,
    *,
    batch: int = BATCH,
) -> Iterator[MergeSides]:
    """Yield the paths that theirs changed since base and that ours has otherwise, in path order.

    `ours` looks up a batch of paths; None: ours equals base, so no lookup is needed.
    """
    while some := list(islice(changes, batch)):
        present = ours([change.path for change in some]) if ours is not None else None
        mine = [change.left if present is None else present.get(change.path) for change in some]
        have_theirs = equal([(its, change.right) for its, change in zip(mine, some, strict=True)])
        others = [at for at, is_equal in enumerate(have_theirs) if not is_equal]
        have_base = equal([(mine[at], some[at].left) for at in others])
        for at, is_equal in zip(others, have_base, strict=True):
            yield MergeSides(some[at].path, some[at].left, mine[at], some[at].right, is_conflict=not is_equal)


def merge_changes(
    trees: Trees, base: str, ours: str, theirs: str, strategy: MergeStrategy, equal: AreEqual
) -> Iterator[tuple[str, StoredEntry | None]]:
    """Yield what to apply to `ours` to bring in the changes of `theirs` since `base`, in path order. Raises
    MergeConflict, as a rule before the first change, so that nothing is written in vain.
    """
    our_entries = None if ours == base else partial(trees.get_many, ours)
    if strategy is MergeStrategy.NONE:
        steps = compare_sides(trees.diff(base, theirs), our_entries, equal)
        conflicts = (step.path for step in steps if step.is_conflict)
        paths = tuple(islice(conflicts, CONFLICTS_MAX))
        if paths:
            raise _merge_conflict(paths, has_more=next(conflicts, None) is not None)
    steps = compare_sides(trees.diff(base, theirs), our_entries, equal)
    step = next(steps, None)
    while step is not None:
        log = find_log(step.path)
        some = [step]
        step = next(steps, None)
        while log is not None and step is not None and step.path.startswith(log.folder):
            some.append(step)
            step = next(steps, None)
        if log is None or not any(
            each.is_conflict and log.has(each.path) and log.is_decisive(each.path) for each in some
        ):
            yield from _decide(some, strategy)
            continue
        others = _decide([each for each in some if not log.has(each.path)], strategy)
        if strategy is MergeStrategy.THEIRS:
            changes = trees.diff(ours, theirs, prefix=log.folder)
            whole = ((change.path, change.right) for change in changes if log.has(change.path))
            yield from merge(others, whole, key=itemgetter(0))
        elif strategy is MergeStrategy.OURS:
            yield from others
        else:
            raise _merge_conflict(tuple(each.path for each in some if each.is_conflict), has_more=True)


def _decide(steps: Iterable[MergeSides], strategy: MergeStrategy) -> Iterator[tuple[str, StoredEntry | None]]:
    for step in steps:
        if not step.is_conflict or strategy is MergeStrategy.THEIRS:
            yield step.path, step.theirs
        elif strategy is MergeStrategy.NONE:  # a purge has replaced a content since: what was equal is not
            raise _merge_conflict((step.path,), has_more=True)


def _merge_conflict(paths: tuple[str, ...], *, has_more: bool) -> MergeConflict:
    if len(paths) == 1 and not has_more:
        what = f"1 path was changed on both sides, {paths[0]!r}"
    else:
        what = f"{len(paths)}{' or more' if has_more else ''} paths were changed on both sides, {paths[0]!r} among them"
    logs = (log for path in paths if (log := find_log(path)) is not None and log.is_decisive(path))
    tables = list(dict.fromkeys(log.table for log in logs))
    if tables:
        what += (
            f". Both sides wrote the {tables[0]}{f' and {len(tables) - 1} more' if len(tables) > 1 else ''}: a "
            "strategy takes the whole log of one side, and the rows that the other side wrote are not in the table then"
        )
    return MergeConflict(f"{what}; choose source-wins or dest-wins, or make both sides equal first", paths)
