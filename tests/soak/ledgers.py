"""What the ledgers say must be there, and what is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refstore.repository import Repository

DEFINITE = {"object_not_found", "invalid_path", "nothing_to_commit", "not_found", "branch_not_found", "already_linked"}
"""Answers that say that nothing was done. After any other error, what was asked may have been done."""


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


@dataclass
class Told:
    expected: dict[str, Expected]
    outcomes: Counter[tuple[str, str]]
    corrupt: list[str]


def read(ledgers: Iterable[Path]) -> Told:
    told = Told({}, Counter(), [])
    for ledger in ledgers:
        lines = [json.loads(line) for line in ledger.read_bytes().split(b"\n")[:-1]] if ledger.exists() else []
        mine = told.expected.setdefault(ledger.stem, Expected())
        pending: dict[str, Any] | None = None
        for line in lines:
            if line["state"] == "try":
                if pending is not None:
                    mine.apply(pending, sure=False)
                    told.outcomes[pending["op"], "killed"] += 1
                pending = line
                continue
            pending = None
            told.outcomes[line["op"], line["state"] if line["state"] != "error" else line["code"]] += 1
            if line["state"] == "ok":
                mine.apply(line, sure=True)
            elif line["state"] == "corrupt":
                told.corrupt.append(line["error"])
            elif line["code"] not in DEFINITE:
                mine.apply(line, sure=False)
        if pending is not None:
            mine.apply(pending, sure=False)
            told.outcomes[pending["op"], "killed"] += 1
    return told


def differences(repo: Repository, told: Told) -> list[str]:
    """Where the store does not hold what was acknowledged."""
    found: list[str] = []
    for client, expected in told.expected.items():
        there = {item.path: repo.read(client, item.path).decode() for item in repo.list(client)}
        for path in sorted({*there, *expected.paths}):
            if there.get(path) not in expected.at(path):
                may = [str(value)[:60] for value in expected.at(path)]
                found.append(f"{client} {path}: holds {str(there.get(path))[:60]!r}, may hold {may}")
        log = {commit for commit, _ in repo.log(client)}
        found += [
            f"{client}: acknowledged commit {commit} is not in its log" for commit in sorted(expected.commits - log)
        ]
    return found
