"""A lake on SQLite whose KV can be copied and put back, as an operator does it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from refstore.configuration.settings import embedded_urls
from refstore.lake import Lake, open_lake_at
from refstore.records import keys
from tests.commands import Command
from tests.durations import set_constants

SHORT = {
    "operation_deadline_seconds": 3,
    "io_timeout_seconds": 0.1,
    "clock_skew_seconds": 0,
    "recheck_after_seconds": 0.1,
}


class Losing:
    """A lake on SQLite whose KV can be copied and put back."""

    def __init__(self, refstore: Command) -> None:
        self.run = refstore
        self.root = refstore.folder / "lake"
        self.copied = refstore.folder / "copy"

    def copy(self) -> None:
        shutil.rmtree(self.copied, ignore_errors=True)
        self.copied.mkdir()
        for file in self.root.glob("kv.sqlite*"):
            shutil.copy2(file, self.copied)

    def put_back(self) -> None:
        self.lose()
        for file in self.copied.iterdir():
            shutil.copy2(file, self.root)

    def lose(self) -> None:
        for file in self.root.glob("kv.sqlite*"):
            file.unlink()

    def lake(self) -> Lake:
        return open_lake_at(*embedded_urls(self.root))

    def commit(self, branch: str, path: str, body: bytes = b"x") -> str:
        self.run.ok("upload", "sales", branch, "-", path, stdin=body)
        made: str = self.run.json("commit", "sales", branch, "-m", path)["commit"]
        return made

    def head(self, branch: str) -> str:
        return next(row["commit"] for row in self.run.json("branch", "list", "sales") if row["branch"] == branch)

    def blobs(self) -> set[Path]:
        return set((self.root / "objects").glob("*/data/*/*"))

    def contents(self) -> dict[str, Any]:
        """What must be the same in a KV that was made anew: commits, landed marks, tags, and heads."""
        with self.lake() as lake:
            found: dict[str, Any] = {}
            for repo in lake.repositories():
                ctx = repo.context
                for partition in (keys.commits(ctx.repo), keys.landed_commits(ctx.repo), keys.tags(ctx.repo)):
                    found[partition] = list(ctx.kv.scan_all(partition))
                found[repo.name] = [(branch, each.head, each.id) for branch, each in ctx.branches.scan_open()]
            return found


def make_losing_lake(refstore: Command, monkeypatch: pytest.MonkeyPatch) -> Losing:
    """Make a lake with a repository `sales` and short waits."""
    set_constants(monkeypatch, Safety=SHORT)
    monkeypatch.setenv("REFSTORE_SAFETY_GRACE", "0")
    monkeypatch.setenv("REFSTORE_REAPER_BREAKER_SHARE", "1")
    refstore.ok("repo", "create", "sales")
    return Losing(refstore)
