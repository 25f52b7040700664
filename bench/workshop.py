"""What a run needs and gives back: sizes, folders on disk and in memory, servers, and lakes that several benchmarks
share.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from bench import lakes
from refstore.lake import Lake, open_lake_at
from tests.servers.redis_servers import RedisServer
from tests.servers.s3_base import S3Server, environment
from tests.servers.s3_ceph import CephRgw
from tests.servers.s3_servers import RcloneS3

TMPFS: Final = Path("/dev/shm")  # noqa: S108  # a file system in memory is what the bars ask for
LIVE: Final = "live"
"""The branch of a shared lake that holds its objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    staged: int = 240_000
    """The seed's own number: objects on the branch that is listed, reset, deleted."""
    listed: int = 20_000
    """Objects that the S3 server lists."""
    booked: int = 50_000
    """Uploads per turn."""
    frame_bytes: int = 1 << 30
    """Of a Parquet file of which one row group is read."""
    remembered: int = 100_000
    """Objects whose memory is measured."""
    reaped: int = 100_000
    reaped_beside: int = 400_000
    """Objects that are reaped while the API is asked: a p99 of few calls is a handful of them."""
    live: tuple[int, ...] = (0, 100_000, 1_000_000)
    """Objects that stay, beside those that are reaped."""
    reaped_s3: int = 10_000
    pruned_names: int = 200_000
    """Names of a lakeFS repository by which a prune marks."""
    committed: int = 1_000_000
    history: int = 1_000_000
    """Commits that retention rules are applied to."""
    rebuilt: int = 20_000
    """Commits that a KV is made anew with."""
    growth: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    branches: int = 100_000
    staged_counts: tuple[int, int] = (100_000, 10_000_000)
    marked: tuple[int, ...] = (1_000_000, 10_000_000, 30_000_000)
    """Listed addresses that a mark compares."""
    marked_judged: int = 10_000_000
    marked_commits: int = 1000
    marked_again: int = 1_000_000
    """Objects with their files, of a run that goes on from the last one."""
    simulated_calls: int = 20_000
    """Calls of each kind whose processor time is measured for a simulation, and uploads that it simulates."""
    simulated_uploads: int = 300_000
    swept: int = 100_000
    swept_runs: int = 1_000
    """Runs of 100,000 deletions each that `why` searches."""
    purged: int = 100
    """Parquet files that ids are looked for in, and how many rows each has."""
    purged_rows: int = 400_000
    purged_ids: tuple[int, int] = (10_000, 10_000_000)
    purged_whole: tuple[int, int] = (30, 150_000)
    """Files that one command purges, each with a match, and how many rows each has: 10 MB."""
    verified_ids: int = 1_000_000
    purged_growth: tuple[int, int] = (100, 1000)
    """Small files, and how many rows each has."""
    purged_growth_rows: int = 100_000
    purged_bytes: int = 2 << 30
    """Of a file whose purge takes memory."""
    served: int = 50_000
    """Objects that the HTTP API is asked for."""
    asked: int = 8_000
    """Calls of the API per turn."""
    logged: int = 300
    """Commits whose log is filtered."""
    started: int = 11
    """Turns of programs that start."""
    expensive: int = 400
    """Expensive reads per turn."""
    uploaded: int = 400
    """Objects of 1 MiB per turn."""
    s3_bodies: int = 24
    """Objects of 8 MiB that an S3 client sends per turn."""
    s3_small: int = 4_000
    """Objects of 1 KiB, likewise."""
    s3_parts: int = 96
    """Of 64 MiB each, of one object."""
    pages: int = 50
    turns: int = 5
    long_turns: int = 3
    """Of what takes minutes to make."""
    p99_turns: int = 5
    steps: int = 30
    """Turns of what takes milliseconds."""
    calls: int = 200
    """Turns of what takes milliseconds and waits for a disk."""


FULL: Final = Scale()
QUICK: Final = Scale(
    started=2,
    staged=3_000,
    listed=500,
    frame_bytes=32 << 20,
    booked=2_000,
    remembered=5_000,
    reaped=3_000,
    reaped_beside=3_000,
    live=(0, 2_000, 5_000),
    pruned_names=5_000,
    reaped_s3=300,
    committed=10_000,
    history=10_000,
    rebuilt=200,
    growth=(500, 2_000, 5_000),
    branches=50,
    staged_counts=(500, 3_000),
    marked=(2_000, 20_000),
    marked_judged=20_000,
    marked_commits=5,
    marked_again=3_000,
    simulated_calls=200,
    swept_runs=10,
    simulated_uploads=2_000,
    swept=2_000,
    purged=10,
    purged_rows=5_000,
    purged_ids=(1_000, 20_000),
    purged_whole=(4, 5_000),
    verified_ids=2_000,
    purged_growth=(10, 30),
    purged_growth_rows=1_000,
    purged_bytes=32 << 20,
    served=2_000,
    asked=500,
    logged=30,
    expensive=40,
    uploaded=20,
    s3_bodies=3,
    s3_small=160,
    s3_parts=3,
    pages=3,
    turns=2,
    long_turns=1,
    p99_turns=1,
    steps=3,
    calls=5,
)


class Workshop:
    """Use as a context manager: at its end no server runs and no folder is left."""

    def __init__(self, scale: Scale, *, disk: Path | None = None, memory: Path | None = None) -> None:
        """`disk`, `memory`: where to make folders; the system's temporary directory and /dev/shm, if not given."""
        self.scale = scale
        self._disk_root = disk
        self._memory_root = memory or (TMPFS if TMPFS.is_dir() else None)
        self._stack = ExitStack()
        self._s3: S3Server | None = None
        self._live: dict[int, Path] = {}

    def __enter__(self) -> Self:
        self._disk = self._root(self._disk_root)
        self._memory = self._root(self._memory_root) if self._memory_root else self._disk
        os.environ.update(environment())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def has_memory(self) -> bool:
        """Whether `in_memory` is on a file system of its own."""
        return self._memory != self._disk

    def on_disk(self, name: str) -> Path:
        """A new folder."""
        return self._new(self._disk, name)

    def in_memory(self, name: str) -> Path:
        """A new folder on tmpfs."""
        return self._new(self._memory, name)

    def redis(self) -> RedisServer:
        """A new server without persistence: a disk would slow both sides of a turn alike, and hide what is measured."""
        return self._stack.enter_context(RedisServer(self.on_disk("redis"), aof=False))

    def s3(self) -> S3Server:
        """The S3 server that benchmarks share: Ceph RGW where it is installed, rclone where it is not."""
        if self._s3 is None:
            self._s3 = self._stack.enter_context(self.own_s3())
        return self._s3

    def own_s3(self) -> S3Server:
        """A new server of this kind, which starts and stops as a context manager. For what writes gigabytes: they would
        fill the shared one, which holds 4 GiB in memory and frees what is deleted only hours later.
        """
        self.say("starting an S3 server")
        folder = self.on_disk("s3")
        return RcloneS3(folder / "data") if CephRgw.missing() else CephRgw(folder)

    def s3_name(self) -> str:
        return "rclone" if CephRgw.missing() else "Ceph RGW"

    def live_lake(self, count: int) -> Path:
        """The folder of an embedded lake on tmpfs whose branch LIVE holds so many staged objects, their blobs included.

        Several benchmarks use it, each on branches of its own; what uses it up calls `drop`.
        """
        if count not in self._live:
            self.say(f"making a lake of {count:,} staged objects")
            folder = self.in_memory(f"live-{count}")
            make_lake(folder)
            with filling(folder) as lake:
                repo = lake.repository(lakes.REPOSITORY)
                repo.create_branch(LIVE, source="main")
                lakes.upload(repo, LIVE, range(count))
            self._live[count] = folder
        return self._live[count]

    def drop(self, folder: Path) -> None:
        """Give a folder back before the end: memory is short."""
        self._live = {count: kept for count, kept in self._live.items() if kept != folder}
        shutil.rmtree(folder)

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)

    def _root(self, parent: Path | None) -> Path:
        return Path(
            self._stack.enter_context(
                tempfile.TemporaryDirectory(prefix="refstore-bench-", dir=parent, ignore_cleanup_errors=True)
            )
        )

    def _new(self, root: Path, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))


def make_lake(folder: Path, objects: str = "") -> None:
    """The embedded default under a folder, with the repository that all benchmarks use. `objects`: another store."""
    kv_url, objects_url = lakes.stores_in(folder)
    with open_lake_at(kv_url, objects or objects_url) as lake:  # it has an id then, as lakes have
        lake.create_repository(lakes.REPOSITORY)


def filling(folder: Path) -> Lake:
    """The lake, opened so that uploads leave bare files as blobs and the KV does not wait for a disk."""
    kv_url, objects_url = lakes.stores_in(folder)
    with lakes.open_lake(kv_url, objects_url) as lake:
        blobs = lakes.blobs_of(folder, lake.repository(lakes.REPOSITORY))
    return lakes.open_lake(f"{kv_url}?fsync=0", objects_url, lakes.files_under(blobs))
