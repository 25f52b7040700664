"""Make a KV anew with `refstore kv rebuild`: commits a minute, and beside the listing of a commit of many objects.

Ours is the whole command, its start included, into a new SQLite file on a disk that it syncs to; the objects are files
on tmpfs. The commits are made by the product, on several branches in turn. Their entries are rebuilt from as commits
leave them, each waiting in an object of its own; and again after a reaper's pass has confirmed them, which puts them
together. The floor reads the same objects and writes as many rows into SQLite, and knows nothing of what they say.

The commit of many objects is listed by `Repository.list`, from the KV in which it was made, and from the one made anew.
Rebuilding reads no tree, so the row with both says more than the one without the listing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import lakes
from bench.measure import Row, Series, at_least, at_most, in_fresh_process, in_turns, seconds_of
from bench.workshop import Workshop, make_lake
from refstore.context import Context
from refstore.lake import Lake
from refstore.operations.upload import Upload
from refstore.records import keys

COMMITS_A_MINUTE = 20_000
LISTING_FACTOR = 2
BRANCHES = 20
PATHS = 50
"""How many paths the commits of a branch change in turn, so that no tree grows."""
PASSES_MAX = 3

Records = dict[str, list[tuple[str, object]]]


def run(shop: Workshop) -> Iterator[Row]:
    yield from many_commits(shop)
    yield from many_objects(shop)


def many_commits(shop: Workshop) -> Iterator[Row]:
    folder, count = shop.in_memory("rebuild"), shop.scale.rebuilt
    shop.say(f"rebuild: making {count:,} commits")
    make_lake(folder)
    make_commits(folder, count)
    own, kept = folder / "objects" / "_refstore", folder / "kept"
    shutil.copytree(own, kept)
    for state in ("waiting", "confirmed"):
        if state == "confirmed":
            shop.say(f"rebuild: confirming {count:,} commits")
            shutil.rmtree(own)  # or the reaper would find that its KV does not have what the new ones have witnessed
            shutil.copytree(kept, own)
            confirm(folder)
        shop.say(f"rebuild: {count:,} commits, {state}")
        with open_in(folder) as lake:
            expected = records_of(lake)

        def ours(_turn: int, expected: Records = expected) -> float:
            kv_url, objects_url = lakes.stores_in(shop.on_disk("rebuilt"))[0], lakes.stores_in(folder)[1]
            seconds = rebuild(kv_url, objects_url)
            with lakes.open_lake(kv_url, objects_url) as lake:
                assert records_of(lake) == expected, "the KV made anew differs"
            return seconds

        def floor(_turn: int) -> float:
            with open_in(folder) as lake:
                namespace = lakes.blobs_of(folder, lake.repository(lakes.REPOSITORY))
            to = shop.on_disk("copied") / "copied.sqlite"
            done = in_fresh_process("copy_manifest", namespace=str(namespace), to=str(to))
            assert done["copied"] >= count, f"{done['copied']} of {count} entries were copied"
            return done["seconds"]

        anew, copied = in_turns(shop.scale.long_turns, ours, floor)
        what = f"refstore kv rebuild of {count:,} commits whose entries are {state}, SQLite on disk"
        yield Row(what=what, ours=per_minute(count, anew), bar=at_least(COMMITS_A_MINUTE))
        yield Row(
            what=what,
            ours=per_minute(count, anew),
            other=per_minute(count, copied),
            other_name="reading the same objects and writing two rows for each entry",
        )
    shop.drop(folder)


def many_objects(shop: Workshop) -> Iterator[Row]:
    folder, count = shop.in_memory("rebuild"), shop.scale.committed
    kv_url, objects_url = lakes.stores_in(folder)
    shop.say(f"rebuild: committing {count:,} objects")
    make_lake(folder)
    with lakes.open_lake(f"{kv_url}?fsync=0", objects_url, lakes.nowhere) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        lakes.upload(repo, "main", range(count))
        commit = repo.commit("main", "everything").id
    listed_anew: list[float] = []

    def listed(kv_url: str) -> float:
        done = in_fresh_process("list_ref", kv=kv_url, objects=objects_url, repository=lakes.REPOSITORY, ref=commit)
        assert done["listed"] == count, f"{done['listed']} of {count} objects were listed"
        return done["seconds"]

    def ours(_turn: int) -> float:
        new_url = lakes.stores_in(shop.on_disk("rebuilt"))[0]
        seconds = rebuild(new_url, objects_url)
        listed_anew.append(listed(new_url))
        return seconds

    shop.say(f"rebuild: a commit of {count:,} objects")
    anew, floor = in_turns(shop.scale.long_turns, ours, lambda _turn: listed(kv_url))
    both = tuple(map(sum, zip(anew, listed_anew, strict=True)))
    for what, seconds in (("", anew), (", and the listing of it from the new KV", both)):
        yield Row(
            what=f"refstore kv rebuild of a commit of {count:,} objects, SQLite on disk{what}",
            ours=Series(tuple(seconds), "s"),
            other=Series(floor, "s"),
            other_name="listing the commit",
            bar=at_most(LISTING_FACTOR),
        )
    shop.drop(folder)


def rebuild(kv_url: str, objects_url: str) -> float:
    command = [sys.executable, "-m", "refstore", "--kv", kv_url, "--objects", objects_url, "kv", "rebuild", "--yes"]
    return seconds_of(lambda: subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True))


def make_commits(folder: Path, count: int) -> None:
    """Commit one object each time, on all branches in turn; while the first half is made, more of them branch off."""
    kv_url, objects_url = lakes.stores_in(folder)
    with lakes.open_lake(f"{kv_url}?fsync=0", objects_url, lakes.nowhere) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        branches = ["main"]
        for number in range(count):
            if number * 2 * BRANCHES > len(branches) * count and len(branches) < BRANCHES:
                branches.append(f"work-{len(branches):02d}")
                repo.create_branch(branches[-1], source="main")
            branch, path = branches[number % len(branches)], lakes.path_of(number // BRANCHES % PATHS)
            repo.upload_many(branch, [Upload(path=path, body=lakes.body_of(number))])
            repo.commit(branch, f"commit {number}")


def confirm(folder: Path) -> None:
    """Let a reaper witness the commits."""
    for _ in range(PASSES_MAX):
        in_fresh_process("reap", data=str(folder), grace_seconds=86_400.0)
        with open_in(folder) as lake:
            if not lake.repository(lakes.REPOSITORY).context.manifest.read_waiting():
                return
    raise RuntimeError(f"entries still wait after {PASSES_MAX} passes of a reaper")


def open_in(folder: Path) -> Lake:
    return lakes.open_lake(*lakes.stores_in(folder))


def records_of(lake: Lake) -> Records:
    """Return what must be the same in a KV that was made anew."""
    ctx: Context = lake.repository(lakes.REPOSITORY).context
    found: Records = {
        partition: list(ctx.kv.scan_all(partition))
        for partition in (keys.commits(ctx.repo), keys.landed_commits(ctx.repo))
    }
    found["heads"] = [(name, (branch.head, branch.id)) for name, branch in ctx.branches.scan_open()]
    return found


def per_minute(count: int, seconds: tuple[float, ...]) -> Series:
    return Series(tuple(60 * count / each for each in seconds), "commits/min")
