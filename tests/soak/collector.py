"""The processes of the soak with an offline job: a client, and a collector that runs the job when it is told to.

    python -m tests.soak.collector client KV OBJECTS REPO NAME SEED LEDGER
    python -m tests.soak.collector collect KV OBJECTS REPO [BLIND]

A collector starts its Spark once and says "ready"; then each line of its standard input is a run: "run" among others,
"alone" when nobody else is at work any more, and so nobody is waited for. It tells each step as it begins, and what a
run came to, a line of JSON each. `BLIND` plants a fault: the look does not see commits.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from refstore.errors import RefstoreError
from tests.durations import AT_ONCE_WITHOUT_GRACE, COLLECTOR, unchecked_lake
from tests.soak.client import Client, run_client

PAUSE_SECONDS = 0.1
"""Clients that never rest leave the collector no processor, and it never comes to the step in which it is killed."""


def client(*arguments: str) -> None:
    run_client(arguments, partial(Client, pause_seconds=PAUSE_SECONDS), COLLECTOR)


def collect(kv: str, objects: str, repo: str, blind: str = "") -> None:
    from refstore_gc.engines.choice import open_engines
    from refstore_gc.gc_run import GcOptions
    from refstore_gc.run_context import BreakerLimits
    from tests.engines import SPARK
    from tests.offline.purge_runs import run_nightly

    options = GcOptions(grace_days=0, min_age_seconds=0, limits=BreakerLimits(share_max=1), take_over=True)
    with open_engines(SPARK) as engines, _blind() if blind else nullcontext():
        engines.for_objects(0)
        tell(state="ready")
        for line in sys.stdin:
            alone = line.strip() == "alone"
            safety = AT_ONCE_WITHOUT_GRACE if alone else COLLECTOR
            try:
                with unchecked_lake(kv, objects, safety=safety) as lake:
                    ctx = lake.repository(repo).context
                    done = run_nightly(
                        ctx, engines, replace(options, is_full=alone), lambda now: tell(step=now.step)
                    ).latest_summary
            except RefstoreError as error:
                tell(state="failed", code=error.code, error=str(error)[:500])
                continue
            outcomes = (
                {} if done.sweep is None else {name: count.objects for name, count in done.sweep.outcomes.items()}
            )
            tell(
                state=done.state,
                marked=done.marked.objects,
                by_reason={name: count.objects for name, count in done.by_reason.items()},
                commits=done.commits,
                **outcomes,
            )


def _blind() -> AbstractContextManager[None]:
    """Let no commit name anything, neither a head nor another."""
    from tests.simulation.planting import Edit, Mutant

    scans = "    yield from _scan_heads(ctx, page)\n    yield from _scan_commits(ctx, run, page)\n"
    edits = (Edit("refstore.gc_marks.live_set:scan_live_set", scans, ""),)
    return Mutant(name="commits keep nothing", rule="13", edits=edits, caught_by="the audit").planted()


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    {"client": client, "collect": collect}[sys.argv[1]](*sys.argv[2:])
