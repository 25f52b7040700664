"""What the ledgers say must be there, and what is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from refstore.repository import Repository

DEFINITE = {
    "object_not_found", "invalid_path", "nothing_to_commit", "not_found", "branch_not_found", "already_linked",
    "NoSuchKey", "NoSuchUpload", "PreconditionFailed", "404",
}  # fmt: skip
"""Answers that say that nothing was done. After any other error, what was asked may have been done."""

TEXT_BYTES_MAX: Final = 1000

COUNTED: Final = "counted"
COUNTED_PATH: Final = "number"
"""The branch and the path at which clients replace a number by the next one, on condition that it is still there."""


def describe(body: bytes) -> str:
    """Return what a ledger says of a content: the text itself, or of a long one what tells it from others."""
    return (
        body.decode() if len(body) <= TEXT_BYTES_MAX else f"{len(body)} bytes with SHA-256 {sha256(body).hexdigest()}"
    )


@dataclass
class Expected:
    """Of one client's own branch: what each path may hold. One value, but for operations that are in doubt."""

    paths: dict[str, set[str | None]] = field(default_factory=dict)
    commits: set[str] = field(default_factory=set)

    def at(self, path: str) -> set[str | None]:
        return self.paths.setdefault(path, {None})

    def apply(self, line: dict[str, Any], *, sure: bool) -> None:
        changes: dict[str, set[str | None]] = {path: {body} for path, body in line.get("to", {}).items()}
        changes |= {path: {None} for path in line.get("gone", [])}
        if line["op"] == "link":
            sure = False  # the client leaves some unlinked on purpose, and is told ok
        if "copied" in line:
            source, path = line["copied"]
            changes[path] = self.at(source) - {None}
        if "moved" in line:
            source, path = line["moved"]
            changes |= {path: self.at(source) - {None}, source: {None}}
        for path, values in changes.items():
            self.paths[path] = values if sure else self.at(path) | values
        if sure and line["op"] == "commit" and line.get("answer"):
            self.commits.add(line["answer"])

    def contradiction(self, line: dict[str, Any]) -> str:
        """Return how the answer to a write that needs a free path is wrong; '': it is not."""
        path = line.get("if_absent")
        if path and line["state"] == "ok" and None not in self.at(path):
            return f"{path} was written as a free path, and held {self.at(path)}"
        if path and line.get("code") == "PreconditionFailed" and self.at(path) == {None}:
            return f"{path} was said not to be free, and nothing was there"
        return ""


@dataclass
class Told:
    expected: dict[str, Expected]
    outcomes: Counter[tuple[str, str]]
    corrupt: list[str]
    """What no client may be told."""
    numbers: Counter[int]
    """How many clients were told that they wrote a number at `COUNTED_PATH`."""


def read_operations(ledger: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield what a ledger says of each operation, and what it came to: "killed" is a client that has heard nothing."""
    pending: dict[str, Any] | None = None
    for line in [json.loads(line) for line in ledger.read_bytes().split(b"\n")[:-1]] if ledger.exists() else []:
        if line["state"] != "try":
            pending = None
            yield line, line.get("code", line["state"])
            continue
        if pending is not None:
            yield pending, "killed"
        pending = line
    if pending is not None:
        yield pending, "killed"


def read(ledgers: Iterable[Path]) -> Told:
    told = Told({}, Counter(), [], Counter())
    for ledger in ledgers:
        mine = told.expected.setdefault(ledger.stem, Expected())
        for line, outcome in read_operations(ledger):
            told.outcomes[line["op"], outcome] += 1
            if wrong := mine.contradiction(line):
                told.corrupt.append(f"{ledger.stem}: {wrong}")
            if line["op"] == "increment" and outcome == "ok":
                told.numbers.update(int(number) for number in line["answer"].split())
            if outcome == "corrupt":
                told.corrupt.append(line["error"])
            elif outcome not in DEFINITE:
                mine.apply(line, sure=outcome == "ok")
    return told


def differences(repo: Repository, told: Told) -> list[str]:
    """Where the store does not hold what was acknowledged."""
    found: list[str] = []
    for client, expected in told.expected.items():
        there = {item.path: describe(repo.read(client, item.path)) for item in repo.list(client)}
        for path in sorted({*there, *expected.paths}):
            if there.get(path) not in expected.at(path):
                may = [str(value)[:60] for value in expected.at(path)]
                found.append(f"{client} {path}: holds {str(there.get(path))[:60]!r}, may hold {may}")
        log = {commit.id for commit in repo.log(client)}
        found += [
            f"{client}: acknowledged commit {commit} is not in its log" for commit in sorted(expected.commits - log)
        ]
    return found


def find_lost_increments(repo: Repository, told: Told) -> list[str]:
    """Where a number was replaced although it was not there any more."""
    number = int(repo.read(COUNTED, COUNTED_PATH).split()[0]) if told.numbers else 0
    found = [f"{count} clients were told that they wrote {each}" for each, count in told.numbers.items() if count > 1]
    return found + [f"{each} was acknowledged, and {number} is there" for each in told.numbers if each > number]
