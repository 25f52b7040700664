"""The reaper: passes over every repository of a lake, once or for ever.

Any number of reapers run at once, on any machines. What fails is left alone for a while, longer each time, per repository; what
fails in one repository stops no other. A request to stop is seen between batches: the batch in hand is finished.
"""

from __future__ import annotations

import gc
import os
import re
import secrets
import socket
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import count
from random import Random, SystemRandom
from typing import Final

import structlog

from reaper import backlog, breaker, cycle
from reaper.erasing import Beside
from reaper.journal import JournalWriter
from reaper.metrics import Metrics, NoMetrics
from reaper.pace import Backoff, Pace, nap
from reaper.summary import Summary, Tally
from refstore import ids, keys
from refstore.context import Context
from refstore.errors import CorruptRecord, KVUnavailable, RefstoreError, StoreMisconfigured
from refstore.ids import RepositoryId, RepositoryName
from refstore.lake import Lake
from refstore.records import Heartbeat, RepositoryRecord, decode, encode
from refstore.settings import ReaperSettings

BEAT_SECONDS: Final = 5.0
BACKLOG_SECONDS: Final = 30.0
"""How often the backlog is measured for the metrics, and a stopped deletion is said again in the log."""
BACKLOG_MAX: Final = 100_000
"""How far it is counted."""
FORGET_SECONDS: Final = 86_400
GC_ALLOCATIONS: Final = 200_000
"""A batch makes tens of thousands of small tuples, which die with it and hold no cycles; to look for some every 700 of them, as
Python does by default, takes a quarter of the time of a pass."""
ROUNDS_MAX: Final = 100_000
"""Rounds of `--once`, should there be more and more to do."""

_log = structlog.stdlib.get_logger(__name__)


def new_id() -> str:
    """Says where the reaper runs; in the journal's names, in leases, and in `refstore reaper status`."""
    host = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower()).strip("-")[:40] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


class Reaper:
    """Not for several threads; close it."""

    def __init__(
        self,
        lake: Lake,
        settings: ReaperSettings,
        *,
        repositories: Collection[str] = (),
        scrub_now: bool = False,
        metrics: Metrics | None = None,
        random: Random | None = None,
        reaper: str | None = None,
        beside: bool = True,
    ) -> None:
        """`repositories`: only these, if any are given. `beside`: whether blobs are deleted beside the KV's work."""
        self.id = reaper or new_id()
        self._lake = lake
        self._clock = lake.clock
        self._settings = settings
        self._only = frozenset(repositories)
        self._metrics = metrics or NoMetrics()
        self._random = random or SystemRandom()
        self._pace = Pace(settings.rate_per_second, lake.clock)
        self._numbers = count(1)
        self._beside = Beside() if beside else None
        self._backoffs: dict[RepositoryId, Backoff] = {}
        self._told: dict[RepositoryId, float] = {}
        self._started_ms = lake.clock.now_ms()
        self._scrub_asked_ms = self._started_ms if scrub_now else None
        self._beaten: float | None = None
        self._cycles = 0
        self._total = Tally()

    def close(self) -> None:
        if self._beside is not None:
            self._beside.close()

    def __enter__(self) -> Reaper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, should_stop: Callable[[], bool]) -> Summary:
        """Until it is asked to stop."""
        backoff = Backoff(self._clock, self._random)
        with self._living():
            stop = self._beating(should_stop)
            while not stop():
                try:
                    done = self.round(stop)
                except (KVUnavailable, StoreMisconfigured) as error:  # a KV that may lose records by now, until it is set right
                    seconds = backoff.failed()
                    _log.error(error.code, error=str(error), pause_seconds=round(seconds, 1))
                else:
                    backoff.succeeded()
                    if done.more and not done.error_count:
                        continue
                    seconds = self._settings.cycle_seconds * (0.75 + self._random.random() / 2)
                nap(self._clock, seconds, stop)
        return self._total.summary()

    def run_once(self, should_stop: Callable[[], bool]) -> Summary:
        """Until there is nothing due. Raises KVUnavailable."""
        with self._living():
            stop = self._beating(should_stop)
            for _ in range(ROUNDS_MAX):
                done = self.round(stop)
                if stop() or (done.idle and (done.error_count or not done.more)):
                    break
        return self._total.summary()

    def round(self, should_stop: Callable[[], bool]) -> Summary:
        """One pass over each repository. Raises KVUnavailable."""
        tally = Tally()
        try:
            self._passes(should_stop, tally)
        finally:  # what was done before the KV failed stands, and counts
            self._total.follow(tally.summary())
        return tally.summary()

    def _passes(self, should_stop: Callable[[], bool], tally: Tally) -> None:
        seen: set[RepositoryId] = set()
        for name, raw in self._lake.kv.scan_all(keys.REPOSITORIES):
            if self._only and name not in self._only:
                continue
            if should_stop():
                break
            try:
                record = decode(raw, RepositoryRecord)
                seen.add(record.id)
                self._pass(ids.repository_name(name), record, should_stop, tally)
            except RefstoreError as error:
                if isinstance(error, KVUnavailable):
                    raise
                tally.add(self._failed(name, error))
        else:
            self._backoffs = {repo: backoff for repo, backoff in self._backoffs.items() if repo in seen}
            self._told = {repo: at for repo, at in self._told.items() if repo in seen}
            self._cycles += 1

    def _pass(self, name: RepositoryName, record: RepositoryRecord, should_stop: Callable[[], bool], tally: Tally) -> None:
        """What it did is added to the tally, whatever becomes of it. Raises KVUnavailable."""
        backoff = self._backoffs.setdefault(record.id, Backoff(self._clock, self._random))
        if backoff.waiting:
            return
        try:
            ctx = self._lake.context(name, record)
            tools = cycle.Tools(
                settings=self._settings,
                reaper=self.id,
                journal=JournalWriter(ctx.objects, self.id, self._clock, self._numbers),
                pace=self._pace,
                random=self._random,
                should_stop=should_stop,
                beside=self._beside,
                scrub_asked_ms=self._scrub_asked_ms,
            )
            try:
                cycle.run(ctx, record, tools)
            finally:
                summary = tools.tally.summary()
                tally.add(summary)
                self._count(name, summary)
            self._tell(ctx, name)
        except RefstoreError as error:
            if isinstance(error, KVUnavailable):
                raise
            summary = self._failed(name, error)
            tally.add(summary)
        except Exception as error:  # noqa: BLE001  # a fault of ours must not keep the other repositories from being reaped
            _log.exception("pass_failed", repository=name)
            summary = self._failed(name, RefstoreError(f"unexpected {type(error).__name__}: {error}; see the log, and report it"))
            tally.add(summary)
        if summary.unavailable:
            seconds = backoff.failed()
            _log.warning("repository_left_alone", repository=name, errors=summary.error_count, pause_seconds=round(seconds, 1))
        else:
            backoff.succeeded()

    def _count(self, name: RepositoryName, summary: Summary) -> None:
        """What was done, to the log and the metrics."""
        if not summary.idle:
            _log.info("pass", repository=name, **{field: value for field, value in asdict(summary).items() if value and field != "errors"})
        self._metrics.passed(name, summary)

    def _tell(self, ctx: Context, name: RepositoryName) -> None:
        """What waits, to the metrics; and again and again that hard deletion stands still."""
        now = self._clock.monotonic_seconds()
        if now - self._told.get(ctx.repo, -BACKLOG_SECONDS) < BACKLOG_SECONDS:
            return
        self._told[ctx.repo] = now
        stopped = breaker.explain(breaker.read(ctx.kv, ctx.repo))
        if stopped:
            _log.error("hard_deletion_stands_still", repository=name, reason=stopped, what_to_do=breaker.advice(name))
        self._metrics.breaker(name, bool(stopped))
        if self._metrics.wanted:
            self._metrics.backlog(name, backlog.measure(ctx, limit=BACKLOG_MAX), self._clock.now_ms())

    def _failed(self, name: str, error: RefstoreError) -> Summary:
        _log.error("repository_stopped", repository=name, code=error.code, error=str(error))
        tally = Tally()
        tally.fail(name, "pass", error)
        done = tally.summary()
        self._metrics.passed(name, done)
        return done

    # ---- signs of life

    @contextmanager
    def _living(self) -> Generator[None, None, None]:
        """The heartbeat is there while the block runs; one that was killed is seen to be old."""
        self._forget_the_dead()
        _log.info("reaper_started", reaper=self.id, repositories=sorted(self._only) or "all")
        thresholds = gc.get_threshold()
        gc.set_threshold(GC_ALLOCATIONS, *thresholds[1:])
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)
            _log.info("reaper_ended", reaper=self.id, cycles=self._cycles)
            with suppress(KVUnavailable, StoreMisconfigured):
                self._lake.kv.delete(keys.heartbeat(self.id))

    def _beating(self, should_stop: Callable[[], bool]) -> Callable[[], bool]:
        """`should_stop`, which is asked often, with a heartbeat now and then."""

        def stop() -> bool:
            now = self._clock.monotonic_seconds()
            if self._beaten is None or now - self._beaten >= BEAT_SECONDS:
                self._beaten = now
                self._beat()
            return should_stop()

        return stop

    def _beat(self) -> None:
        now = self._clock.now_ms()
        done = self._total.summary()
        beat = Heartbeat(
            socket.gethostname(),
            os.getpid(),
            self._started_ms,
            now,
            BEAT_SECONDS,
            self._cycles,
            done.released,
            done.deleted,
            done.bytes,
            done.error_count,
        )
        with suppress(KVUnavailable, StoreMisconfigured):
            self._lake.kv.set(keys.heartbeat(self.id), encode(beat))
        self._metrics.beat(now)

    def _forget_the_dead(self) -> None:
        """Heartbeats of reapers that were killed long ago."""
        before = self._clock.now_ms() - FORGET_SECONDS * 1000
        for name, raw in self._lake.kv.scan(keys.REAPERS):
            try:
                old = decode(raw, Heartbeat).beat_ms < before
            except CorruptRecord:
                old = True
            if old:
                self._lake.kv.delete(keys.heartbeat(name))
