"""Show how far runs of the offline job and of purges are, and ask them to stop.

A run writes its progress every few seconds while it lasts, and looks whether it is to stop. A run that stops ends as if
it had been killed, which the protocol allows everywhere: a mark that is not finished marks nothing; a sweep goes on
with the next run; a purge that is run again does what is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.errors import CorruptRecord, NotFound, RefstoreError, RunStopped
from refstore.kv.base import ABSENT
from refstore.records import keys
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.figure_records import RunProgress, StopRequest

BEAT_SECONDS: Final = 2.0
"""How often a run writes its progress and looks whether it is to stop."""
DEAD_MS: Final = 60_000
"""A run whose last sign of life is older than this and the clocks' difference is taken for dead."""


class ActiveRun(NamedTuple):
    run_id: str
    """The mark id, or the id of the purge."""
    progress: RunProgress
    stop_request: StopRequest | None
    is_alive: bool


class RunControl:
    """The progress of one run, and the requests to stop it. What the KV does not take is lost, and stops nothing."""

    def __init__(self, ctx: Context, run: str, kind: str, owner: str) -> None:
        self._ctx = ctx
        self._run = run
        self._kind = kind
        self._owner = owner
        self._began_ms = ctx.clock.now_ms()
        self._stop: StopRequest | None = None

    def beat(self, step: str, done: int, total: int, left_ms: int, *, waits: bool = False) -> bool:
        """Write how far the run is; `waits`: the step ends when `left_ms` are over. Return whether it is to stop."""
        with suppress(RefstoreError):
            now_ms = self._ctx.clock.now_ms()
            until_ms = now_ms + left_ms if waits else 0
            progress = RunProgress(
                self._kind, self._owner, self._began_ms, now_ms, step, done, total, left_ms, until_ms
            )
            self._ctx.kv.set(keys.run_progress(self._ctx.repo, self._run), encode(progress))
            self._stop = decode_optional(self._ctx.kv.get(keys.stop_request(self._ctx.repo, self._run)), StopRequest)
        return self._stop is not None

    def check(self) -> None:
        """Raise RunStopped if the last beat found a request to stop."""
        if self._stop is not None:
            raise RunStopped(
                f"{self._stop.by} stopped the run {self._run}; run the same command again to go on where it can"
            )

    def close(self) -> None:
        """Remove the progress, because the run has ended; and what runs left that were killed long ago."""
        with suppress(RefstoreError):
            ended = [each.run_id for each in active_runs(self._ctx) if not each.is_alive]
            for run in (self._run, *ended):
                self._ctx.kv.delete_many(
                    [keys.run_progress(self._ctx.repo, run), keys.stop_request(self._ctx.repo, run)]
                )


def active_runs(ctx: Context) -> Iterator[ActiveRun]:
    """Yield the runs of a repository that have not ended, also those that were killed a while ago."""
    now_ms = ctx.clock.now_ms()
    dead_ms = DEAD_MS + int(ctx.waits.clock_skew_seconds * 1000)
    pairs = dict(ctx.kv.scan_all(keys.progress(ctx.repo)))
    for run, raw in pairs.items():
        if run.endswith(keys.STOP):
            continue
        with suppress(CorruptRecord):
            progress = decode(raw, RunProgress)
            stop = decode_optional(pairs.get(f"{run}{keys.STOP}", ABSENT), StopRequest)
            yield ActiveRun(run, progress, stop, now_ms - progress.beat_ms < dead_ms)


def request_stop(ctx: Context, run: str, by: str) -> None:
    """Ask a run to stop. It does so within seconds. Raises NotFound: no such run is under way."""
    if ctx.kv.get(keys.run_progress(ctx.repo, run)) is ABSENT:
        raise NotFound(f"no run {run[:80]!r} is under way in {ctx.name!r}; it may have ended just now")
    with ctx.audit.act("run.stop", repository=ctx.name, target=run, after={"by": by}):
        ctx.kv.set(keys.stop_request(ctx.repo, run), encode(StopRequest(by, ctx.clock.now_ms())))
