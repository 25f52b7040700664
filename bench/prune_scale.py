"""`refstore prune` at the size that lakeFS's collector is designed for: names of a lakeFS repository with many commits,
an inventory in place of a listing, and a sweep on a real S3 server.

    python -m bench.prune_scale mark --names 200000 --commits 300 --folder DIR
    python -m bench.prune_scale sweep --objects 10000 --folder DIR

What is measured is the command `refstore prune run`, from its start to its end. The metadata are made here: lakeFS's
own files, of the tests' own writer, in a bucket of rclone, and the tests' small server that speaks for them. A commit
replaces one range of the tree of the commit before, so commits share the others. The inventory has each named object,
and some that nothing names; the objects themselves are not there, because a mark does not read them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from bench.listing import fill
from bench.measure import Row, Series, at_least, on_processors, rates
from bench.reaping_s3 import DELETE_KEYS, delete_bare
from bench.workshop import Workshop
from refstore.objects import open_objects
from refstore.objects.s3.client import CONCURRENT_REQUESTS
from tests.prune.inventories import FORMATS, InventoryWriter, make_rows
from tests.prune.lakefs import lakefs_server, table_writer
from tests.prune.lakefs.lakefs_server import Commit, Lakefs, Repository, serve
from tests.servers.s3_base import BUCKET, S3Server, environment
from tests.servers.s3_servers import CephRgw, RcloneS3

DAY_MS: Final = 86_400_000
MASTER: Final = "local[2]"
CORES: Final = 2
SWEEP_SHARE: Final = 0.85
INVENTORY_ROWS: Final = 500_000
"""How many rows a file of the inventory has."""
SIZE_BYTES: Final = 1000
SAMPLE_SECONDS: Final = 0.2
ENVIRONMENT: Final = {
    **environment(),
    "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": lakefs_server.ACCESS_KEY,
    "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": lakefs_server.SECRET_KEY,
}
"""Of the command, for the servers that are started here."""


@dataclass(frozen=True, kw_only=True)
class MarkSize:
    names: int
    """Distinct."""
    commits: int
    tree_ranges: int = 10
    """How many ranges a commit has."""
    kept_share: float = 0.5
    """The part of a range that the range which replaces it has, too: so many names are read more than once."""
    unnamed_share: float = 0.1
    """Listed objects that nothing names, for each named one."""

    @property
    def new_of_commit(self) -> int:
        return self.names // self.commits

    @property
    def unnamed(self) -> int:
        return int(self.names * self.unnamed_share)


def address_of(number: int) -> str:
    """An address as lakeFS makes them; those of neighbours are far from each other."""
    text = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=20).hexdigest()
    return f"data/{text[:20]}/{text[20:]}"


# ---- what is made


@dataclass(frozen=True)
class WrittenRange:
    """A range, and what a metarange says of it."""

    id: str
    first: bytes
    last: bytes
    count: int


def write_chain(size: MarkSize, folder: Path, chain: int) -> list[WrittenRange]:
    """Write the ranges of one part of the tree: that of commit `chain`, and each that replaced it."""
    found: list[WrittenRange] = []
    kept: list[table_writer.Record] = []
    layout = table_writer.Layout(two_levels=True, partition_entries=64)
    for commit in range(chain, size.commits, size.tree_ranges):
        rows = [
            table_writer.entry_record(
                f"part-{chain:03d}/{number:012d}", table_writer.encode_entry(address_of(number), size=SIZE_BYTES)
            )
            for number in range(commit * size.new_of_commit, (commit + 1) * size.new_of_commit)
        ]
        records = [*kept, *rows]
        kept = records[-int(len(rows) * size.kept_share / (1 - size.kept_share)) :] if size.kept_share else []
        body = table_writer.write_range(records, layout)
        found.append(WrittenRange(table_writer.id_of(body), records[0][0], records[-1][0], len(records)))
        (folder / found[-1].id).write_bytes(body)
    return found


@dataclass
class MadeCommits:
    entries: int
    """Of all ranges."""
    metaranges: list[str]
    """Of each commit."""


def make_metadata(size: MarkSize, folder: Path) -> MadeCommits:
    """Write all ranges and metaranges into a folder."""
    folder.mkdir(parents=True)
    with get_context("spawn").Pool(2) as pool:
        chains = pool.starmap(write_chain, [(size, folder, chain) for chain in range(size.tree_ranges)])
    made = MadeCommits(sum(each.count for chain in chains for each in chain), [])
    tree: dict[int, WrittenRange] = {}
    for number in range(size.commits):
        tree[number % size.tree_ranges] = chains[number % size.tree_ranges][number // size.tree_ranges]
        body = table_writer.write_metarange(
            [(each.id, each.first, each.last, each.count) for _, each in sorted(tree.items())]
        )
        made.metaranges.append(table_writer.id_of(body))
        (folder / made.metaranges[-1]).write_bytes(body)
    return made


def make_repository(made: MadeCommits, store_url: str) -> Repository:
    repository = Repository("big", open_objects(store_url), f"s3://{BUCKET}/big", "big/")
    head = repository.branches["main"].head
    for number, metarange in enumerate(made.metaranges):
        id_ = hashlib.sha256(f"commit {number}".encode()).hexdigest()
        repository.commits[id_] = Commit(id_, (head,), repository.now + number, metarange, {})
        head = id_
    repository.branches["main"].head = head
    repository.now = int(time.time())
    repository.set_rules(100_000)
    return repository


def write_inventory_file(first: int, end: int, made_ms: int, file_format: str, folder: Path) -> dict[str, object]:
    """Write the objects of some numbers to a file of the inventory; return what the manifest says of it."""
    writer = _inventory_writer(folder, file_format, made_ms)
    written_ms = made_ms - 30 * DAY_MS
    writer.add_file(
        make_rows(
            [
                (f"big/{address_of(number)}", SIZE_BYTES, written_ms + number % DAY_MS, f"{number:032x}")
                for number in range(first, end)
            ]
        )
    )
    return writer.files[0]


def make_inventory(size: MarkSize, folder: Path, file_format: str) -> str:
    """Write the inventory, and return its URL."""
    made_ms = int(time.time() * 1000)
    count = size.new_of_commit * size.commits
    spans = [
        (first, min(first + INVENTORY_ROWS, count + size.unnamed), made_ms, file_format, folder)
        for first in range(0, count + size.unnamed, INVENTORY_ROWS)
    ]
    writer = _inventory_writer(folder, file_format, made_ms)
    with get_context("spawn").Pool(2) as pool:
        writer.files += pool.starmap(write_inventory_file, spans, chunksize=1)
    return f"file://{quote(str(folder / writer.finish()))}"


def _inventory_writer(folder: Path, file_format: str, made_ms: int) -> InventoryWriter:
    def put(key: str, body: bytes) -> None:
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(body)

    return InventoryWriter(put, bucket=BUCKET, file_format=file_format, made_ms=made_ms)


def move_in(made: Path, server: RcloneS3) -> None:
    """Move folders into the bucket of a server that has just started. Later would be too late: it remembers what a
    folder has.
    """
    for each in made.iterdir():
        each.rename(server.directory / BUCKET / each.name)


# ---- what is measured


@dataclass
class Taken:
    """What a command took, with all processes that it started."""

    seconds: float
    cpu_seconds: float
    peak_gib: float
    """The most that its processes had at one time; pages that several have count once."""
    report: dict[str, Any]


def measure_command(arguments: Sequence[str]) -> Taken:
    """Run `refstore prune`, and look at its processes while it runs. Raises RuntimeError: it ended otherwise than 0."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "refstore", "prune", *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
        )
        cpu: dict[int, float] = {}
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, _look_at(process.pid, cpu))
            time.sleep(SAMPLE_SECONDS)
        seconds = time.perf_counter() - began
        for file in (out, errors):
            file.seek(0)
        if process.returncode:
            raise RuntimeError(f"refstore prune ended with {process.returncode}: {errors.read()[-4000:].decode()}")
        return Taken(seconds, sum(cpu.values()), peak, json.loads(out.read()))


def _look_at(pid: int, cpu: dict[int, float]) -> float:
    """Note the processor time of a process and of those below it; return the memory of all, in GiB."""
    total, waiting = 0.0, [pid]
    while waiting:
        each = waiting.pop()
        with suppress(OSError, ValueError):  # it has just ended
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            cpu[each] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
            total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / (1 << 20)
            for task in Path(f"/proc/{each}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
    return total


def measure_mark(size: MarkSize, folder: Path, engine: Sequence[str], file_format: str) -> dict[str, Any]:
    """Make a store, and mark what nothing names in it."""
    with ExitStack() as stack:
        _say(f"making {size.names:,} names of {size.commits:,} commits")
        made = make_metadata(size, folder / "made" / "big" / "_lakefs")
        server = stack.enter_context(RcloneS3(folder / "s3"))
        metadata_bytes = sum(file.stat().st_size for file in (folder / "made").rglob("*") if file.is_file())
        move_in(folder / "made", server)
        url = f"s3://{BUCKET}?endpoint={server.endpoint}{server.options}"
        _say(f"making an inventory ({file_format}) of {size.names + size.unnamed:,} objects")
        inventory = make_inventory(size, folder / "inventory", file_format)
        lakefs = Lakefs(make_repository(made, url))
        stack.enter_context(serve(lakefs))
        _say("marking")
        taken = measure_command(
            [
                "run", url, "--names", "lakefs:big", "--endpoint", lakefs.url, "--inventory", inventory, "--state",
                f"file://{quote(str(folder / 'state'))}?fsync=0", *engine,
            ]
        )  # fmt: skip
    steps = taken.report["seconds"]
    assert taken.report["newly_marked"]["objects"] == size.unnamed, taken.report["newly_marked"]
    assert taken.report["names"]["names"] == size.new_of_commit * size.commits, taken.report["names"]
    return {
        **asdict(size),
        "engine": taken.report["engine"],
        "format": file_format,
        "entries_read": made.entries,
        "metadata_bytes": metadata_bytes,
        "inventory_bytes": sum(file.stat().st_size for file in (folder / "inventory").rglob("*") if file.is_file()),
        "seconds": taken.seconds,
        "cpu_seconds": taken.cpu_seconds,
        "peak_gib": taken.peak_gib,
        "step_seconds": steps,
        "listed_per_second": taken.report["listed"]["objects"] / steps["listing the store"],
        "entries_per_second": made.entries / steps["reading the names and comparing"],
    }


# ---- the sweep


SWEPT: Final = "prune-swept"
BARE: Final = "prune-bare"
NAMED: Final = [f"named/{number}" for number in range(100)]


FOLDERS: Final = 1000
BARE_MAX: Final = 100_000
"""Of how many bare deletions the rate is taken, at most: a server has no room for all objects twice."""


def unnamed_keys(count: int) -> list[str]:
    """Return keys in some folders, because each folder takes room on rclone's disk."""
    return [f"data/{number % FOLDERS:03d}/{address_of(number)[-20:]}" for number in range(count)]


def keys_to_sweep(count: int) -> list[str]:
    """Return the keys of what a prune sweeps, of what it keeps, and of what is deleted without it."""
    unnamed = unnamed_keys(count)
    return [*(f"{SWEPT}/{each}" for each in [*unnamed, *NAMED]), *bare_keys(count)]


def bare_keys(count: int) -> list[str]:
    return sorted(f"{BARE}/{each}" for each in unnamed_keys(min(count, BARE_MAX)))


def measure_sweep(count: int, server: S3Server, folder: Path, engine: Sequence[str]) -> dict[str, Any]:
    """Sweep objects of a server, and then delete others by bare bulk deletes. The server has `keys_to_sweep`."""
    names = folder / "names.txt"
    names.write_text("".join(f"{each}\n" for each in NAMED))
    command = [
        "run", server.url(SWEPT), "--names", f"list:{names}", "--min-age", "0s", "--consent", "min-age",
        "--grace", "0s", "--share-max", "1", "--state", f"file://{quote(str(folder / 'state'))}?fsync=0", *engine,
    ]  # fmt: skip
    marked = measure_command(command)
    assert marked.report["waiting"]["objects"] == count, marked.report["waiting"]
    names.touch()  # a list is as old as its file
    _say("sweeping")
    swept = measure_command(command)
    assert swept.report["outcomes"]["deleted"]["objects"] == count, swept.report["outcomes"]
    seconds = swept.report["seconds"]["deleting what is due"]
    _say("deleting others by bare bulk deletes")
    bare_seconds = delete_bare(server, bare_keys(count))
    return {
        "objects": count,
        "engine": swept.report["engine"],
        "server": type(server).__name__,
        "seconds": seconds,
        "bare_objects_per_second": min(count, BARE_MAX) / bare_seconds,
        "ratio": count / seconds / (min(count, BARE_MAX) / bare_seconds),
        "objects_per_second": count / seconds,
        "cpu_seconds": swept.cpu_seconds,
        "peak_gib": swept.peak_gib,
    }


def write_files(folder: Path, keys: Sequence[str]) -> None:
    for key in keys:
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(b"x")


# ---- beside the other benchmarks, and by hand


def run(shop: Workshop) -> Iterator[Row]:
    size = MarkSize(names=shop.scale.pruned_names, commits=shop.scale.pruned_names // 500)
    folder = shop.on_disk("prune-mark")
    os.environ.update(ENVIRONMENT)
    found = measure_mark(size, folder, ["--engine", "local"], "CSV")
    shop.drop(folder)
    yield Row(
        what=f"mark by {size.names:,} names of {size.commits:,} commits of lakeFS, with an inventory",
        ours=rates(found["entries_read"], (found["step_seconds"]["reading the names and comparing"],), "names/s"),
        note=f"{found['seconds']:.1f} s in all, at most {found['peak_gib']:.2f} GiB",
    )
    fill(shop.s3(), keys_to_sweep(shop.scale.reaped_s3))
    swept = measure_sweep(shop.scale.reaped_s3, shop.s3(), shop.on_disk("prune-sweep"), ["--engine", "local"])
    yield Row(
        what=f"prune {swept['objects']:,} objects on {shop.s3_name()}",
        ours=rates(swept["objects"], (swept["seconds"],), "objects/s"),
        other=Series((swept["bare_objects_per_second"],), "objects/s"),
        other_name=f"boto3 delete_objects by {DELETE_KEYS}, {CONCURRENT_REQUESTS} connections",
        bar=at_least(SWEEP_SHARE),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.prune_scale", description="Measure refstore prune.")
    parser.add_argument("what", choices=("mark", "sweep"))
    parser.add_argument("--names", type=int, default=20_000)
    parser.add_argument("--commits", type=int, default=40)
    parser.add_argument("--tree-ranges", type=int, default=10)
    parser.add_argument("--kept-share", type=float, default=0.5)
    parser.add_argument("--unnamed-share", type=float, default=0.1)
    parser.add_argument("--format", choices=FORMATS, default="CSV", help="of the inventory")
    parser.add_argument("--objects", type=int, default=1_000, help="to sweep")
    parser.add_argument("--server", choices=("rclone", "ceph"), default="rclone", help="to sweep on")
    parser.add_argument("--engine", choices=("local", "spark"), default="local")
    parser.add_argument("--folder", type=Path, help="where everything is written; default: a temporary folder")
    chosen = parser.parse_args(arguments)
    os.environ.update(ENVIRONMENT)
    engine = ["--engine", chosen.engine, *(["--master", MASTER] if chosen.engine == "spark" else [])]
    with tempfile.TemporaryDirectory(prefix="prune-scale-", dir=chosen.folder) as made, on_processors(CORES):
        folder = Path(made)
        if chosen.what == "mark":
            size = MarkSize(
                names=chosen.names,
                commits=chosen.commits,
                tree_ranges=chosen.tree_ranges,
                kept_share=chosen.kept_share,
                unnamed_share=chosen.unnamed_share,
            )
            found = measure_mark(size, folder, engine, chosen.format)
        else:
            _say("writing objects")
            keys = keys_to_sweep(chosen.objects)
            if chosen.server == "rclone":
                write_files(folder / "made", keys)
            with RcloneS3(folder / "s3") if chosen.server == "rclone" else CephRgw(folder / "s3") as server:
                if isinstance(server, RcloneS3):
                    move_in(folder / "made", server)
                else:
                    fill(server, keys)
                found = measure_sweep(chosen.objects, server, folder, engine)
    print(json.dumps(found, indent=1))
    return 0


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
