"""`python -m bench`: measure, print, and say by the exit code whether a bar was missed."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from bench import (
    api,
    bookkeeping,
    branches,
    commits,
    file_objects,
    growth,
    imports,
    large,
    listing,
    machine,
    manifest,
    memory,
    reaping,
    reaping_default,
    reaping_s3,
    rebuild,
    report,
    retention,
    s3,
    scale,
    start,
    transactions,
)
from bench.measure import Row
from bench.workshop import FULL, QUICK, Workshop


def _offline(module: str) -> Callable[[Workshop], Iterator[Row]]:
    """Imported when it runs: it needs Spark's extra."""

    def run(shop: Workshop) -> Iterator[Row]:
        yield from importlib.import_module(f"bench.{module}").run(shop)

    return run


BENCHMARKS: Final[dict[str, Callable[[Workshop], Iterator[Row]]]] = {
    "start": start.run,
    "listing": listing.run,
    "branches": branches.run,
    "bookkeeping": bookkeeping.run,
    "memory": memory.run,
    "file-objects": file_objects.run,
    "api": api.run,
    "s3": s3.run,
    "reaping-s3": reaping_s3.run,
    "commits": commits.run,
    "transactions": transactions.run,
    "imports": imports.run,
    "manifest": manifest.run,
    "rebuild": rebuild.run,
    "retention": retention.run,
    "reaping": reaping.run,
    "reaping-default": reaping_default.run,
    "offline-mark": _offline("offline_mark"),
    "offline-again": _offline("offline_again"),
    "offline-sweep": _offline("offline_sweep"),
    "why": _offline("why"),
    "prune-scale": _offline("prune_scale"),
    "purge": _offline("purge"),
    "locations": _offline("locations"),
    "large": large.run,
    "scale": scale.run,
    "growth": growth.run,  # last: it uses up the lakes of `reaping`
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure refstore against its bars; see bench/results.md."
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs; nothing is judged")
    parser.add_argument(
        "--only",
        action="append",
        choices=BENCHMARKS,
        metavar="NAME",
        help=f"one of {', '.join(BENCHMARKS)}; repeatable",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every turn of every row here as well ('-': to standard output)"
    )
    parser.add_argument(
        "--disk", type=Path, default=_place("BENCH_DISK"), help="where to make folders (BENCH_DISK; default: temporary)"
    )
    parser.add_argument(
        "--tmpfs", type=Path, default=_place("BENCH_TMPFS"), help="the same on tmpfs (BENCH_TMPFS; default: /dev/shm)"
    )
    chosen = parser.parse_args(arguments)
    interrupted = False

    # what the product warns of (a Redis without persistence, say) is meant here
    logging.basicConfig(level=logging.ERROR)
    where = machine.describe()
    load, began = machine.load(), time.monotonic()
    rows: list[tuple[str, Row]] = []
    with Workshop(QUICK if chosen.quick else FULL, disk=chosen.disk, memory=chosen.tmpfs) as shop:
        try:
            for name in chosen.only or BENCHMARKS:
                rows += [(name, row) for row in BENCHMARKS[name](shop)]
        except KeyboardInterrupt:
            print("interrupted; these are the benchmarks that had ended:", file=sys.stderr)
            interrupted = True
        where["folders"] = (
            "tmpfs and disk"
            if shop.has_memory
            else "disk only: there is no tmpfs here, so rows that ask for it say little"
        )
    where["load"] = f"{load} before, {machine.load()} after (1, 5 and 15 minutes)"
    where["took"] = f"{(time.monotonic() - began) / 60:.1f} minutes"
    judge = not chosen.quick
    if str(chosen.json) != "-":
        report.table(rows, where, judge=judge)
    if chosen.json:
        document = report.document(rows, where, judge=judge)
        print(document) if str(chosen.json) == "-" else chosen.json.write_text(document + "\n")
    missed = report.missed(rows) if judge else []
    for each in missed:
        print(f"missed: {each}", file=sys.stderr)
    return 130 if interrupted else 1 if missed else 0


def _place(variable: str) -> Path | None:
    return Path(os.environ[variable]) if os.environ.get(variable) else None


if __name__ == "__main__":
    sys.exit(main())
