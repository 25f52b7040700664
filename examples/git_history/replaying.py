"""Replay git's commits as refstore's commits: the changes become uploads and deletions, on the commit's first parent.

Content is uploaded again each time it changes, so equal blobs of two commits are two objects. A merge is refstore's own
merge of the same two commits. If git's result differs (a resolved conflict), a second commit of the same date makes it
equal, and the merge itself is an intermediate commit, which was head for no time.

A line of first parents can be anywhere in git's graph, but refstore makes commits on branches only. So commits are made
on working branches, which are deleted at the end. The default branch cannot be deleted, so it gets its line directly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from examples.git_history.plumbing import DETACHED, Blobs, Git, GitCommit
from refstore import Lake, Repository, Upload

WORKING: Final = "replay-of-git/"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,254}")
_COMMIT: Final = re.compile(r"[0-9a-f]{64}")
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_./-]")

Told = Callable[[str, int, int], None]
"""A function that reports progress: (what, done, of)."""


@dataclass(frozen=True, slots=True)
class History:
    """The part of git's history to replay: the newest commits, and the names that reach them."""

    commits: Mapping[str, GitCommit]
    """The commits, every child before its parents."""
    heads: Mapping[str, str]
    tags: Mapping[str, str]
    default: str
    left_out: int
    """Names whose commits are older than the replayed ones."""

    def parent(self, commit: str) -> str | None:
        """The first parent, if it is replayed."""
        first = next(iter(self.commits[commit].parents), None)
        return first if first in self.commits else None


def chosen(git: Git, *, most: int, dangling: bool) -> History:
    """Return the newest commits. No commit is included without its children."""
    commits = {commit.id: commit for commit in git.commits(dangling=dangling)[:most]}
    heads, tags = git.heads(), git.tags()
    kept = {name: commit for name, commit in heads.items() if commit in commits}
    kept_tags = {name: commit for name, commit in tags.items() if commit in commits}
    default = git.default_branch() or DETACHED
    if default not in kept:
        default = next(iter(kept), "")
    return History(commits, kept, kept_tags, default, len(heads) + len(tags) - len(kept) - len(kept_tags))


class Made(NamedTuple):
    """A commit in refstore."""

    id: str
    stands_on: str | None
    """The commit whose tree `changes` changes; None: the empty tree."""
    changes: Mapping[str, str | None]


@dataclass(slots=True)
class Replayed:
    lake: Lake
    repo: Repository
    heads: dict[str, str]
    """Branch of refstore -> git commit."""
    tags: dict[str, str]
    commits: dict[str, str] = field(default_factory=dict[str, str])
    """Git's commit -> refstore's commit."""
    between: dict[str, str] = field(default_factory=dict[str, str])
    """For merges that git resolved differently: refstore's own merge, before the second commit."""
    blobs: dict[str, str] = field(default_factory=dict[str, str])
    """Address -> the uploaded blob."""
    made: list[Made] = field(default_factory=list[Made])
    """The commits in the order in which they were made."""

    def list_objects(self) -> set[str]:
        """Return the addresses of all objects that are in the store, whoever names them."""
        with closing(self.lake.open_url(self.repo.record.namespace)) as store:
            return {info.key for info in store.list("data/")}

    def trees(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield what each commit names, computed from the uploads and deletions. Read each one before the next."""
        waiting: dict[str | None, int] = {}
        for each in self.made:
            waiting[each.stands_on] = waiting.get(each.stands_on, 0) + 1
        trees: dict[str, dict[str, str]] = {}
        for each in self.made:
            tree: dict[str, str] = {}
            if each.stands_on is not None:
                waiting[each.stands_on] -= 1
                tree = trees[each.stands_on].copy() if waiting[each.stands_on] else trees.pop(each.stands_on)
            for path, address in each.changes.items():
                if address is None:
                    tree.pop(path, None)
                else:
                    tree[path] = address
            yield each.id, tree
            if waiting.get(each.id):
                trees[each.id] = tree


def replay(lake: Lake, name: str, git: Git, history: History, told: Told) -> Replayed:
    default = _named(history.default, history.heads[history.default])
    repo = lake.create_repository(name, default_branch=default)
    heads = {_named(branch, commit): commit for branch, commit in history.heads.items()}
    done = Replayed(lake, repo, heads, {_named(tag, commit): commit for tag, commit in history.tags.items()})
    with git.blobs() as blobs:
        _Replaying(git, history, done, blobs, default).run(told)
    for tag, commit in done.tags.items():
        repo.create_tag(tag, ref=done.commits[commit])
    return done


def _named(name: str, commit: str) -> str:
    """Return a name that refstore accepts, too: no commit id, and without `.` and `..` between slashes."""
    if _NAME.fullmatch(name) and not _COMMIT.fullmatch(name) and {".", ".."}.isdisjoint(name.split("/")):
        return name
    return f"_{_NOT_IN_A_NAME.sub('_', name).replace('..', '_')[:200]}-{commit[:8]}"


class _Replaying:
    def __init__(self, git: Git, history: History, done: Replayed, blobs: Blobs, default: str) -> None:
        self._git = git
        self._history = history
        self._done = done
        self._repo = done.repo
        self._blobs = blobs
        self._default = default
        self._root = done.repo.get_commit(default).id
        self._at: dict[str, str] = {}
        """Head -> the existing working branch."""
        self._working = 0

    def run(self, told: Told) -> None:
        line = set(self._git.first_parents(self._history.heads[self._history.default]))
        every = [*self._history.commits.values()][::-1]
        for number, commit in enumerate(every, start=1):
            self._one(commit, self._default if commit.id in line else None)
            told("commits replayed", number, len(every))
        for branch, commit in self._done.heads.items():
            if branch != self._default:
                self._repo.create_branch(branch, source=self._done.commits[commit])
        for number in range(self._working):
            self._repo.delete_branch(f"{WORKING}{number}")

    def _one(self, commit: GitCommit, branch: str | None) -> None:
        parent = self._history.parent(commit.id)
        below = self._done.commits[parent] if parent is not None else self._root
        if branch is None:
            branch = self._at.pop(below, None) or self._new_branch(below)
        second = next((self._done.commits[other] for other in commit.parents[1:] if other in self._done.commits), None)
        if parent is None or second is None:
            changes = self._apply(branch, self._git.changes(parent, commit.id))
            done = self._commit(branch, commit)
            self._done.made.append(Made(done, below if parent is not None else None, changes))
        else:
            done = self._merge(branch, commit, second)
        self._done.commits[commit.id] = done
        if branch != self._default:
            self._at[done] = branch

    def _new_branch(self, at: str) -> str:
        name = f"{WORKING}{self._working}"
        self._working += 1
        self._repo.create_branch(name, source=at)
        return name

    def _merge(self, branch: str, commit: GitCommit, second: str) -> str:
        merged = self._repo.merge(
            second,
            into=branch,
            message=commit.subject,
            strategy="dest-wins",
            metadata={"git": commit.id},
            date=commit.date,
            allow_empty=True,
        ).id
        there = {item.path: item.entry.address for item in self._repo.list(merged) if item.entry is not None}
        self._done.made.append(Made(merged, None, there))
        wanted = self._git.tree(commit.id)
        other: dict[str, str | None] = {
            path: blob for path, blob in wanted.items() if path not in there or self._done.blobs[there[path]] != blob
        }
        other |= dict.fromkeys(there.keys() - wanted.keys())
        if not other:
            return merged
        self._done.between[commit.id] = merged
        changes = self._apply(branch, other)
        done = self._commit(branch, commit)
        self._done.made.append(Made(done, merged, changes))
        return done

    def _apply(self, branch: str, changes: Mapping[str, str | None]) -> dict[str, str | None]:
        gone: list[str] = [path for path, blob in changes.items() if blob is None]
        new: Sequence[tuple[str, str]] = [(path, blob) for path, blob in changes.items() if blob is not None]
        uploads = (Upload(path=path, body=self._blobs.read(blob)) for path, blob in new)
        made: dict[str, str | None] = dict.fromkeys(gone)
        for (path, blob), entry in zip(new, self._repo.upload_many(branch, uploads), strict=True):
            made[path] = entry.address
            self._done.blobs[entry.address] = blob
        self._repo.delete_many(branch, gone)
        return made

    def _commit(self, branch: str, commit: GitCommit) -> str:
        return self._repo.commit(
            branch, commit.subject, metadata={"git": commit.id}, date=commit.date, allow_empty=True
        ).id
