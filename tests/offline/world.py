"""A lake for the offline job: local files whose age can be set, and a clock that skips what it is asked to sleep."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from refstore.configuration.settings import embedded_urls
from refstore.context import Context
from refstore.core.clock import to_datetime
from refstore.core.ids import CommitId
from refstore.objects.base import ObjectInfo
from refstore.objects.local import LocalObjects
from refstore.records import keys
from refstore.repository import Repository
from tests.durations import unchecked_lake
from tests.reaping import release_all

if TYPE_CHECKING:
    from refstore_gc.run_summary import GcSummary

DAY_MS = 86_400_000


@dataclass(slots=True)
class SkippingClock:
    """Goes as the machine's does (so it agrees with the store's), but for what was slept, which is over at once."""

    skipped_seconds: float = 0.0
    off_seconds: float = 0.0
    """What this machine's clock is ahead of the store's."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + int((self.skipped_seconds + self.off_seconds) * 1000)

    def monotonic_seconds(self) -> float:
        return time.monotonic() + self.skipped_seconds

    def sleep(self, seconds: float) -> None:
        self.skipped_seconds += seconds


class InTime(LocalObjects):
    """The store's clock has skipped as much, as far as this process sees it: so what is there has grown older by
    that.
    """

    def __init__(self, url: str, clock: SkippingClock) -> None:
        super().__init__(unquote(urlsplit(url).path), fsync=False)
        self._skipping = clock

    def head(self, key: str) -> ObjectInfo:
        found = super().head(key)
        return found._replace(mtime_ms=found.mtime_ms + int(self._skipping.skipped_seconds * 1000))


class World:
    """One repository, `sales`, with rules that let everything but heads expire at once, unless a test sets others."""

    def __init__(
        self,
        folder: Path,
        *,
        rules: str = '{"default_retention_days": 0, "grace_days": 0}',
        grace_seconds: float = 0,
    ) -> None:
        self.folder = folder
        self.clock = SkippingClock()
        kv, objects = embedded_urls(folder)
        self.lake = unchecked_lake(kv, f"{objects}?fsync=0", clock=self.clock, import_from=[f"file://{folder}/landing"])
        self.lake.open_store = lambda url: InTime(url, self.clock)
        self.repo = self.lake.create_repository("sales", grace_seconds=grace_seconds)
        self._stamped: set[Path] = set()
        if rules:
            self.repo.set_retention(rules)

    @property
    def ctx(self) -> Context:
        return self.repo.context

    @property
    def blobs(self) -> Path:
        return folder_of(self.repo)

    def commit(self, branch: str = "main", *, days_ago: float = 0, **files: bytes | None) -> CommitId:
        """Upload (None: delete) files, whose paths have `__` for a slash, and commit them."""
        for name, body in files.items():
            path = name.replace("__", "/")
            if body is None:
                self.repo.delete(branch, path)
            else:
                self.repo.upload(branch, path, body)
        return self.repo.commit(
            branch, "change", date=to_datetime(self.clock.now_ms() - int(days_ago * DAY_MS)), allow_empty=True
        ).id

    def commit_files(self, files: Mapping[str, bytes], branch: str = "main") -> CommitId:
        """Upload files by their paths, and commit them."""
        for path, body in files.items():
            self.repo.upload(branch, path, body)
        return self.repo.commit(branch, "change").id

    def set_rules(self, *, grace_days: float = 0, **fields: Any) -> None:
        """Set these rules beside the least: nothing is kept by age."""
        self.repo.set_retention(json.dumps({"default_retention_days": 0, "grace_days": grace_days} | fields))

    def let_one_expire(self) -> None:
        """Commit a file, then other contents of it; the first ones have expired, and nothing else names them."""
        self.commit(days_ago=9, a=b"old")
        self.commit(days_ago=8, a=b"new")
        self.settle()

    def settle(self) -> None:
        """Do whatever the online path has to do, and let all objects be old enough."""
        release_all(self.repo)
        self.age()

    def address(self, ref: str, path: str) -> str:
        return self.repo.stat(ref, path).address

    def age(self, *, days: float = 30, keys: Iterable[str] | None = None) -> None:
        """Make objects as old as that by the store's clock; all of them, or these."""
        then = time.time() - days * 86_400
        for file in (self.blobs / key for key in keys) if keys is not None else self.blobs.rglob("*"):
            if file.is_file():
                os.utime(file, (then, then))

    def stamp(self) -> None:
        """Give what was written since the last time the age that it has: as the clock goes that skips."""
        now = time.time() + self.clock.skipped_seconds
        for file in self.blobs.rglob("*"):
            if file.is_file() and file not in self._stamped:
                os.utime(file, (now, now))
                self._stamped.add(file)

    def data(self) -> set[str]:
        """The blobs that are there."""
        return {str(file.relative_to(self.blobs)) for file in (self.blobs / "data").rglob("*") if file.is_file()}

    def plant(self, key: str, body: bytes = b"planted") -> str:
        """Put an object there that the KV knows nothing of."""
        self.ctx.objects.put(key, body)
        return key

    def close(self) -> None:
        self.lake.close()


def folder_of(repo: Repository) -> Path:
    return Path(unquote(urlsplit(repo.context.objects.url).path))


def marked_in(world: World, mark_id: str) -> dict[str, str]:
    """What a mark holds: address -> reason."""
    import pyarrow.parquet as pq

    found: dict[str, str] = {}
    for file in sorted((world.blobs / "_refstore" / "gc" / mark_id / "mark").glob("*.parquet")):
        table = pq.read_table(file)
        found.update(zip(table.column("address").to_pylist(), table.column("reason").to_pylist(), strict=True))
    return found


def everything_in(world: World) -> tuple[set[str], dict[object, bytes]]:
    """(files, KV) as they are."""
    files = {
        str(file.relative_to(world.blobs))
        for file in world.blobs.rglob("*")
        if file.is_file() and ".tmp" not in file.parts
    }
    kv = world.lake.kv
    found: dict[object, bytes] = {}
    for partition in (
        keys.branches(world.ctx.repo),
        keys.commits(world.ctx.repo),
        keys.marks(world.ctx.repo),
        keys.gc_runs(world.ctx.repo),
        keys.gc_pins(world.ctx.repo),
        keys.gc_flag(world.ctx.repo).partition,
        keys.tokens(world.ctx.repo),
    ):
        found |= {(partition, name): value for name, value in kv.scan_all(partition)}
    return files, found


def outcomes(summary: GcSummary) -> dict[str, int]:
    """Return how many objects a sweep came to, by what became of them."""
    assert summary.sweep is not None
    return {name: count.objects for name, count in summary.sweep.outcomes.items()}
