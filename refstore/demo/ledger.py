"""The clients' reports, and the expected contents of the branches.

A branch is a mapping from path to source. If a client began a batch and did not report its end, the batch may have
landed or not. Both results are accepted for its paths, and its blobs are counted as possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from refstore.demo import steps
from refstore.demo.steps import Item, Written


class Differences(NamedTuple):
    """The differences between a branch and its expected contents."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    wrong: tuple[str, ...]
    """Paths that exist with another content."""


@dataclass(slots=True)
class Ledger:
    branches: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    source_of: dict[str, int] = field(default_factory=dict[str, int])
    """By physical address: the source that was written to it, as its client reported."""
    size_of: dict[str, int] = field(default_factory=dict[str, int])
    unused: set[str] = field(default_factory=set[str])
    """Issued addresses to which no client wrote."""
    maybe: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """(branch, path) of writes that were begun and not reported as stored, with their sources."""
    maybe_blobs: int = 0
    """Blobs that may have been written in addition to the reported ones."""
    counts: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    retries: list[str] = field(default_factory=list[str])
    _bases: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    _begun: dict[str, tuple[str, list[Item]]] = field(default_factory=dict[str, tuple[str, list[Item]]])

    def branch_created(self, name: str, source: str | None = None) -> None:
        """Record a new branch: at the commit of another one, all of whose changes are committed, or empty."""
        self._bases[name] = dict(self.branches[source]) if source is not None else {}
        self.branches[name] = dict(self._bases[name])

    def merged(self, source: str, branch: str) -> None:
        """Record a merge: all of `source` is committed, and its changes since its creation are now on `branch`."""
        base, theirs, ours = self._bases[source], self.branches[source], self.branches[branch]
        for path in base.keys() - theirs.keys():
            ours.pop(path, None)
        for path, content in theirs.items():
            if base.get(path) != content:
                ours[path] = content
        for (of, path), content in list(self.maybe.items()):
            if of == source:
                self.maybe[branch, path] = content

    def branch_deleted(self, name: str) -> None:
        self.branches.pop(name)

    def apply(self, client: str, event: steps.AnyEvent) -> None:
        match event:
            case steps.Began(branch, items):
                self.ended(client)  # an attempt that was given up, and is made again
                self._begun[client] = (branch, items)
            case steps.Stored(branch, items, how):
                self._begun.pop(client, None)
                self._wrote(items, "uploaded" if how == "upload" else "linked")
                self._put(branch, ((item.path, item.source) for item in items))
            case steps.Abandoned(items):
                self._begun.pop(client, None)
                self._wrote(items, "abandoned")
            case steps.Unused(addresses):
                self.unused.update(addresses)
            case steps.Named(branch, items, how):
                self._put(branch, ((path, self.source_of[address]) for path, address in items))
                self.counts["copied" if how == "copy" else "moved"] += len(items)
            case steps.Removed(branch, paths):
                for path in paths:
                    self.branches[branch].pop(path, None)
                    self.maybe.pop((branch, path), None)
                self.counts["removed"] += len(paths)
            case steps.Committed():
                self.counts["commits"] += 1
            case steps.WasReset(branch):
                self.branches[branch] = dict(self._bases[branch])
                self.counts["resets"] += 1
            case steps.BranchDeleted(branch):
                self.branch_deleted(branch)
                self.counts["branches deleted"] += 1
            case steps.Refused(what):
                self.refused[what] += 1
            case steps.Retried(error):
                self.retries.append(f"{client}: {error}")
            case steps.Failed():
                pass  # the process ends with it

    def ended(self, client: str) -> None:
        """Record the end or the restart of a client: the result of its unfinished batch stays unknown."""
        branch, items = self._begun.pop(client, ("", []))
        self.maybe_blobs += len(items)
        for item in items:
            self.maybe[branch, item.path] = item.source

    def compare(self, branch: str, there: dict[str, str], digests: Sequence[str]) -> Differences:
        """Compare a branch with its expected contents. `there`: the digest of each existing path. `digests`: of each
        source. Sources with equal content count as one.
        """
        expected, maybe = (
            self.branches[branch],
            {path: source for (of, path), source in self.maybe.items() if of == branch},
        )
        wrong: list[str] = []
        for path, digest in there.items():
            allowed = {digests[known[path]] for known in (expected, maybe) if path in known}
            if digest not in allowed:
                wrong.append(path)
        return Differences(
            missing=tuple(path for path in expected if path not in there),
            unexpected=tuple(path for path in wrong if path not in expected and path not in maybe),
            wrong=tuple(path for path in wrong if path in expected or path in maybe),
        )

    def _wrote(self, items: Iterable[Written], how: str) -> None:
        for item in items:
            self.source_of[item.address] = item.source
            self.size_of[item.address] = item.size_bytes
            self.counts[how] += 1
            self.counts[f"{how} bytes"] += item.size_bytes

    def _put(self, branch: str, items: Iterable[tuple[str, int]]) -> None:
        for path, source in items:
            self.branches[branch][path] = source
            self.maybe.pop((branch, path), None)
