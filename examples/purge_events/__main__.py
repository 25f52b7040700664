"""The command: upload, purge, verify, compare, revert, compare. It exits with 1 if a single row is not as expected."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import refstore
import refstore_purge
from examples.command_line import make_parser
from examples.purge_events import events

DESCRIPTION = """\
Make about a gigabyte of events by day and tenant in an embedded lake, purge the rows of 1,000 guests by calls of
`refstore_purge`, and compare every row of every file with what the seed says. Then revert the purge, and compare again.
The exit code is 1 if a row is lost, left over, or changed.
"""
EPILOG = """\
examples:
  python -m examples.purge_events                           in a temporary folder, which goes afterwards
  python -m examples.purge_events --size 50_000_000 --data lake   then: refstore purge status events last --data lake
"""
DOCUMENT = refstore.PurgeDocument(
    whitelist=("events",),
    datasets=(refstore.Dataset("events", events.PREFIX, "user.guestid", "keep-history", "parquet"),),
)
REPOSITORY = "events"
IDS = 1_000
T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("examples.purge_events", DESCRIPTION, EPILOG)
    parser.add_argument(
        "--size", type=int, default=1_024_000_000, metavar="N", help="the bytes to make; default: 1_024_000_000"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep the lake in this new folder")
    options = parser.parse_args(arguments)
    if options.size < 1_000_000:
        parser.error("--size is at least 1_000_000")
    if options.data is not None and options.data.exists():
        parser.error(f"{options.data} exists; give a new folder")
    with ExitStack() as stack:
        data = (
            options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refstore-events-"))) / "lake"
        )
        return prove(data, events.rows_for(options.size))


def prove(data: Path, rows: int) -> int:
    ids = [f"guest-{number:06d}" for number in range(0, events.GUESTS, events.GUESTS // IDS)]
    with refstore.create(data) as lake:
        lake.create_repository(REPOSITORY)
    _each("made and uploaded", lambda path: _upload(data, path, rows))
    with refstore.open(data) as lake:
        repo = lake.repository(REPOSITORY)
        repo.commit("main", "events")
        refstore_purge.onboard(repo, DOCUMENT, by="examples")
        tried = _tell("purge, dry run", lambda: refstore_purge.purge(repo, ids, dry_run=True))
        before = _tell("verify", lambda: refstore_purge.verify(repo, ids))
        if not before.remaining_rows == _matched_rows(tried) > 0:
            return _failed("verify and the dry run did not find the same rows")
        report = _tell("purge", lambda: refstore_purge.purge(repo, ids))
        if not report.is_done or _tell("verify", lambda: refstore_purge.verify(repo, ids)).findings:
            return _failed("something was left by the run")
    removed = sum(_each("compared", lambda path: _compare(data, path, rows, ids)))
    if not removed == _matched_rows(tried) == sum(row.rows_changed for row in report.rows):
        return _failed(f"{removed} rows are gone, and the reports say something else")
    print(f"{removed:,} rows of {IDS:,} guests are gone, all others are there, in order; the report says the same.")

    with refstore.open(data) as lake:
        lake.repository(REPOSITORY).revert("main", on="main")
    _each("compared", lambda path: _compare(data, path, rows, []))
    print("Reverted: all rows are there again.")
    return 0


def _upload(data: Path, path: str, rows: int) -> int:
    with refstore.open(data) as lake:
        lake.repository(REPOSITORY).upload("main", path, events.parquet(events.table(path, rows)))
    return rows


def _compare(data: Path, path: str, rows: int, ids: Sequence[str]) -> int:
    """Return how many rows went. Raises SystemExit if others did, or if one changed."""
    made = events.table(path, rows)
    with refstore.open(data) as lake:
        there = events.read(lake.repository(REPOSITORY).read("main", path))
    expected = events.without(made, ids)
    if not there.equals(expected):
        raise SystemExit(_failed(f"{path} has {len(there)} rows, and is not the {len(expected)} that it should be"))
    return len(made) - len(there)


def _matched_rows(report: refstore_purge.PurgeReport) -> int:
    return sum(row.matched_rows for row in report.rows)


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


def _tell(what: str, do: Callable[[], T]) -> T:
    """Do a step, and print how long it took."""
    began = time.monotonic()
    result = do()
    print(f"{what}: {time.monotonic() - began:.1f} s", flush=True)
    return result


def _failed(why: str) -> int:
    print(f"FAILED: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
