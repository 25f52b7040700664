"""The offline job for `spark-submit`: the nightly run, with Spark as the submission says. `refstore gc` does the same,
and more.

    spark-submit --master yarn .../offline_gc/refstore_gc/__main__.py sales returns --config /etc/refstore.toml

The stores are found as every command finds them: the options below, REFSTORE_*, one TOML file. Prints each run's
summary as a line of JSON. Ends with 0; 4 if a mark waits for an operator; 5 if the store did not delete everything; 1
and the cause for all else. What is wrong in one repository, or with one mark, keeps no other waiting.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from refstore.audit import acting_as, local_actor
from refstore.configured_lake import open_lake
from refstore.core import logs
from refstore.core.redaction import redact_text
from refstore.core.settings import load
from refstore.core.visible_text import visible_streams
from refstore.errors import RefstoreError, RepositoryNotFound
from refstore.gc_marks import RunState
from refstore_gc import run
from refstore_gc.bucket_lifecycle import overdue
from refstore_gc.engines.choice import EngineOptions, open_engines
from refstore_gc.run import Options

ASKING = 4
FAILED = 5


def main(arguments: Sequence[str] | None = None) -> int:
    with visible_streams():
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="offline_gc", description="Sweep what is due, then mark; for spark-submit.")
    parser.add_argument("repository", nargs="*", help="left out: every repository")
    for name in ("data", "kv", "objects", "config"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--grace-days", type=float)
    parser.add_argument("--min-age-seconds", type=float)
    parser.add_argument("--full", action="store_true", help="list and read everything, also what the last run did")
    parsed = parser.parse_args(arguments)
    troubles: list[RefstoreError] = []

    def note_error(name: str, _mark_id: str, error: RefstoreError) -> None:
        troubles.append(error)
        sys.stderr.write(f"refstore: {name}: {redact_text(str(error))}\n")

    flags = {name: getattr(parsed, name) for name in ("data", "kv", "objects", "config")}
    try:
        settings = load(flags, os.environ, default_data=Path("lake")).settings
        logs.configure(settings.log, sys.stderr)
        options = Options(
            grace_days=parsed.grace_days,
            min_age_seconds=parsed.min_age_seconds,
            full=parsed.full,
        )
        code = 0
        with (
            acting_as(local_actor("gc", "python -m refstore_gc")),
            open_lake(settings) as lake,
        ):
            names = parsed.repository or [name for name, _ in lake.repositories()]
            with open_engines(EngineOptions(choice="spark", master="")) as engines:
                for name in names:
                    try:
                        repository = lake.repository(name)
                        ran = run.run(repository.context, engines, options, on_unswept=partial(note_error, name))
                    except RefstoreError as error:  # the others do not answer for it
                        if parsed.repository or not isinstance(
                            error, RepositoryNotFound
                        ):  # else it was deleted since it was listed
                            note_error(name, "", error)
                        continue
                    for summary in (*(each for each in ran.swept if each.mark_id != ran.marked.mark_id), ran.latest):
                        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
                    for line in overdue(ran.waiting, lake.clock.now_ms()):
                        sys.stderr.write(f"refstore: warning: {name}: {line}\n")
                    code = max(
                        code,
                        FAILED
                        if ran.failed
                        else ASKING
                        if any(each.state is RunState.NEEDS_CONFIRMATION for each in ran.waiting)
                        else 0,
                    )
    except RefstoreError as error:
        sys.stderr.write(f"refstore: {redact_text(str(error))}\n")
        return 1
    return 1 if troubles else code


if __name__ == "__main__":
    sys.exit(main())
