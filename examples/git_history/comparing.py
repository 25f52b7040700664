"""Compare the lake after the offline job with git. Every difference is a finding.

1. Every branch of git exists in refstore, with the same head, line of first parents and merges.
2. Every file of git's tree of an active commit can be read from refstore's commit, with git's bytes, and there is no
  other file.
3. Every object in the store is named by an active commit, and every object that an active commit names is in the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from examples.git_history.plumbing import Blobs, Git
from examples.git_history.replaying import History, Replayed, Told
from refstore import RefstoreError, Repository
from refstore.errors import Gone, ObjectNotFound

SHOWN = 20


@dataclass(slots=True)
class Compared:
    files: int = 0
    """Files of active commits, each compared."""
    bytes_read: int = 0
    objects: int = 0
    """Objects left in the store."""
    expired: int = 0
    """Commits whose data may be deleted."""
    refused: int = 0
    """Deleted files of expired commits whose read answered so (410)."""
    findings: list[str] = field(default_factory=list[str])


def compare(git: Git, history: History, done: Replayed, active: Collection[str], told: Told) -> Compared:
    compared = Compared()
    wanted: set[str] = set()
    for made, tree in done.trees():
        if made in active:
            wanted.update(tree.values())
    there = done.list_objects()
    compared.objects = len(there)
    found = compared.findings
    found += _some("lost", (f"{address}, git's blob {done.blobs[address]}" for address in sorted(wanted - there)))
    found += _some(
        "left over", (f"{address}, git's blob {done.blobs.get(address, 'none')}" for address in sorted(there - wanted))
    )
    found += _some("history", _histories(git, history, done))
    found += _some("files", _files(git, history, done, active, compared, told))
    found += _some("expired", _expired(done, active, there, compared))
    return compared


def _histories(git: Git, history: History, done: Replayed) -> Iterator[str]:
    repo = done.repo
    is_between = set(done.between.values())
    git_of = {made: commit for commit, made in done.commits.items()}
    there: dict[str, str] = {branch.name: branch.head for branch in repo.branches()}
    for branch in sorted(there.keys() ^ done.heads.keys()):
        yield f"branch {branch!r} is {'only in refstore' if branch in there else 'not in refstore'}"
    for branch, head in done.heads.items():
        if branch not in there:
            continue
        if there[branch] != done.commits[head]:
            yield f"branch {branch!r} is at {there[branch]}, git's is at {head}"
        ours = [git_of[commit.id] for commit in repo.log(branch, first_parent=True) if commit.id in git_of]
        theirs = [commit for commit in git.first_parents(head) if commit in history.commits]
        if ours != _unbroken(theirs, history):
            yield (
                f"branch {branch!r} has another line of first parents than git's: {len(ours)} commits, git's has "
                f"{len(theirs)}"
            )
    for commit, known in history.commits.items():
        first, *others = known.parents or ("",)
        merged = [parent for parent in others if parent in history.commits][:1] if first in history.commits else []
        merge = done.between.get(commit, done.commits[commit])
        parents = repo.get_commit(merge).parents[1:]
        if [git_of.get(parent) for parent in parents] != merged:
            yield f"commit {commit} merged {merged or 'nothing'}, in refstore {list(parents) or 'nothing'}"
        if repo.get_commit(done.commits[commit]).created != known.date:
            yield f"commit {commit} has another date in refstore"
    if is_between & git_of.keys():
        yield "a commit stands for two of git's"


def _unbroken(line: list[str], history: History) -> list[str]:
    """Yield commits until the first one whose first parent was not replayed."""
    for number, commit in enumerate(line):
        if history.parent(commit) is None:
            return line[: number + 1]
    return line


def _files(
    git: Git, history: History, done: Replayed, active: Collection[str], compared: Compared, told: Told
) -> Iterator[str]:
    alive = [commit for commit in history.commits if done.commits[commit] in active]
    seen: dict[str, str] = {}
    """What was read: the blob whose bytes these are."""
    with git.blobs() as blobs:
        for number, commit in enumerate(alive, start=1):
            tree = git.tree(commit)
            made = done.commits[commit]
            there = {item.path: item.entry.address for item in done.repo.list(made) if item.entry is not None}
            for path in sorted(tree.keys() ^ there.keys()):
                yield f"{commit} {path!r} is {'missing' if path in tree else 'not of git'}"
            for path in sorted(tree.keys() & there.keys()):
                compared.files += 1
                address = there[path]
                if address not in seen:
                    seen[address] = _same(done.repo, made, path, tree[path], blobs, compared)
                if seen[address] != tree[path]:
                    yield f"{commit} {path!r}: {seen[address]}, git has blob {tree[path]}"
            told("active commits compared", number, len(alive))


def _same(repo: Repository, commit: str, path: str, blob: str, blobs: Blobs, compared: Compared) -> str:
    """Return the blob if refstore's bytes are git's; otherwise a text with the difference."""
    try:
        body = repo.read(commit, path)
    except RefstoreError as error:
        return f"{error.code}: {error}"
    compared.bytes_read += len(body)
    return blob if body == blobs.read(blob) else f"{len(body)} other bytes"


def _expired(done: Replayed, active: Collection[str], there: Collection[str], compared: Compared) -> Iterator[str]:
    """Check that reading a file that only an expired commit named reports its deletion, and not a missing object."""
    for made, tree in done.trees():
        if made in active:
            continue
        compared.expired += 1
        gone = next((path for path, address in tree.items() if address not in there), None)
        if gone is None:
            continue
        try:
            done.repo.read(made, gone)
        except Gone:
            compared.refused += 1
        except ObjectNotFound as error:
            yield f"{made} {gone!r}: {error}; it should have reported the deletion"
        else:
            yield f"{made} {gone!r} can be read, and is not in the store"


def _some(kind: str, findings: Iterable[str]) -> list[str]:
    found = [f"{kind}: {finding}" for finding in findings]
    return [*found[:SHOWN], f"{kind}: and {len(found) - SHOWN} more"] if len(found) > SHOWN else found
