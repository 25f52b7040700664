"""The command: upload, purge, verify, compare, revert, compare. It exits with 1 if a single row is not as expected."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import refstore
from examples.command_line import make_parser
from examples.purge_events import events

DESCRIPTION = """\
Make about a gigabyte of events by day and tenant in an embedded lake, purge the rows of 1,000 guests with the commands
that it prints, and compare every row of every file with what the seed says. Then revert the purge, and compare again.
The exit code is 1 if a row is lost, left over, or changed.
"""
EPILOG = """\
examples:
  python -m examples.purge_events                              in a temporary folder, which goes afterwards
  python -m examples.purge_events --size-mb 50 --data ./lake   then: refstore purge report events --data ./lake
"""
DOCUMENT = refstore.PurgeDocument(
    whitelist=("events",),
    datasets=(refstore.Dataset("events", events.PREFIX, "user.guestid", "keep-history", "parquet"),),
)
REPOSITORY = "events"
IDS = 1_000
LEFT = 4
"""The exit code if rows are left."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("examples.purge_events", DESCRIPTION, EPILOG)
    parser.add_argument("--size-mb", type=int, default=1024, metavar="N", help="how much data to make; default: 1024")
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep the lake in this new folder")
    options = parser.parse_args(arguments)
    if options.size_mb < 1:
        parser.error("--size-mb is at least 1")
    if options.data is not None and options.data.exists():
        parser.error(f"{options.data} exists; give a new folder")
    with ExitStack() as stack:
        data = (
            options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refstore-events-"))) / "lake"
        )
        return prove(data, events.rows_for(options.size_mb * 1_000_000))


def prove(data: Path, rows: int) -> int:
    ids = [f"guest-{number:06d}" for number in range(0, events.GUESTS, events.GUESTS // IDS)]
    with refstore.open(data=data) as lake:
        lake.create_repository(REPOSITORY)
    _each("made and uploaded", lambda path: _upload(data, path, rows))
    with refstore.open(data=data) as lake:
        lake.repository(REPOSITORY).commit("main", "events")
    file, document = data / "forget.parquet", data / "purge.json"
    events.pq.write_table(events.pa.table({"id": ids}), file)
    document.write_text(json.dumps(DOCUMENT, indent=2))

    _refstore(data, "purge", "onboard", REPOSITORY, str(document))
    _refstore(data, "purge", "run", REPOSITORY, "--ids", str(file), "--dry-run")
    if _refstore(data, "purge", "verify", REPOSITORY, "--ids", str(file), quiet=True) != LEFT:
        return _failed("verify did not find the rows before the run")
    _refstore(data, "purge", "run", REPOSITORY, "--ids", str(file), "--yes")
    if _refstore(data, "purge", "verify", REPOSITORY, "--ids", str(file)) != 0:
        return _failed("verify found rows after the run")
    removed = sum(_each("compared", lambda path: _compare(data, path, rows, ids)))
    with refstore.open(data=data) as lake:
        told = _report(lake.repository(REPOSITORY))
    if removed != told:
        return _failed(f"{removed} rows are gone, and the report says {told}")
    print(f"{removed:,} rows of {IDS:,} guests are gone, all others are there, in order; the report says the same.")

    _refstore(data, "revert", REPOSITORY, "main", "main")
    _each("compared", lambda path: _compare(data, path, rows, []))
    print("Reverted: all rows are there again.")
    return 0


def _upload(data: Path, path: str, rows: int) -> int:
    with refstore.open(data=data) as lake:
        lake.repository(REPOSITORY).upload("main", path, events.parquet(events.table(path, rows)))
    return rows


def _compare(data: Path, path: str, rows: int, ids: Sequence[str]) -> int:
    """Return how many rows went. Raises SystemExit if others did, or if one changed."""
    made = events.table(path, rows)
    with refstore.open(data=data) as lake:
        there = events.read(lake.repository(REPOSITORY).read("main", path))
    expected = events.without(made, ids)
    if not there.equals(expected):
        raise SystemExit(_failed(f"{path} has {len(there)} rows, and is not the {len(expected)} that it should be"))
    return len(made) - len(there)


def _report(repo: Any) -> int:
    from refstore_purge import purge_report

    return sum(row.rows_changed for row in purge_report.read_report(repo).rows)


def _each(what: str, do: Callable[[str], int]) -> list[int]:
    """Do something with every path, and tell how far it is."""
    began, every, done = time.monotonic(), events.paths(), list[int]()
    for number, path in enumerate(every, 1):
        done.append(do(path))
        if number % 10 == 0:
            seconds = time.monotonic() - began
            left = seconds * (len(every) - number) / number
            print(f"{number} of {len(every)} files {what}, {seconds:.0f} s, about {left:.0f} s left", flush=True)
    return done


def _refstore(data: Path, *words: str, quiet: bool = False) -> int:
    print(f"\n$ refstore {shlex.join(words)}", flush=True)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "refstore", *words, "--data", str(data)],
        check=False,
        stdout=subprocess.DEVNULL if quiet else None,
    )
    print(f"(exit code {done.returncode}, {time.monotonic() - began:.1f} s)", flush=True)
    if done.returncode not in (0, LEFT):
        raise SystemExit(_failed(f"refstore {words[0]} failed"))
    return done.returncode


def _failed(why: str) -> int:
    print(f"FAILED: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
