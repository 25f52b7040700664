"""The reaper: it passes over every repository of a lake, once or until it is stopped.

Any number of reapers run at once, on any machines. A repository that fails is skipped for a while, longer each time,
and stops no other. A request to stop is checked between batches: the current batch is finished.
"""

from __future__ import annotations

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

from refstore.configuration.settings import ReaperSettings
from refstore.context import Context
from refstore.core import event_log, ids, python_gc
from refstore.core.clock import to_ms
from refstore.core.ids import RepositoryId, RepositoryName
from refstore.core.redaction import redact_text
from refstore.core.units import DAY_SECONDS
from refstore.deletion_history.deletion_journal import JournalWriter
from refstore.disk_reserves import DiskReserves
from refstore.errors import (
    CorruptRecord,
    KVReconciling,
    KVSettling,
    KVUnavailable,
    KVWentBack,
    RefstoreError,
    StoreMisconfigured,
)
from refstore.kv_recovery.fence import PositionFence
from refstore.kv_recovery.manifest_check import check_lake, check_repository
from refstore.kv_recovery.settlement import settle_repository
from refstore.kv_recovery.superseded_records import settle_superseded_keys, settle_superseded_records
from refstore.lake import Lake
from refstore.objects import store_urls
from refstore.records import keys
from refstore.records.encoding import decode, encode
from refstore.records.reaper_records import Heartbeat
from refstore.records.repository_records import RepositoryRecord
from refstore_reaper import backlog, breaker, reaper_pass
from refstore_reaper.deletion import AsyncDeleter
from refstore_reaper.pass_summary import PassSummary, Tally
from refstore_reaper.reaper_metrics import ReaperMetrics
from refstore_reaper.survey import FiguresWriter
from refstore_reaper.throttle import Backoff, Throttle, nap

BEAT_SECONDS: Final = 5.0
BACKLOG_SECONDS: Final = 30.0
"""How often the backlog is measured for the metrics, and the log says again that deletion is stopped."""
BACKLOG_MAX: Final = 100_000
"""How far the backlog is counted."""
HEARTBEAT_KEPT_SECONDS: Final = DAY_SECONDS
FORGET_EVERY_PASSES: Final = 1000
PASSES_MAX: Final = 100_000
"""The most passes of `--once`, even if there is more to do."""

_log = event_log.get_logger(__name__)


def new_id() -> str:
    """Return an id that names the host: for the journal's names, leases, and `refstore reaper status`."""
    host = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower()).strip("-")[:40] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


class Reaper:
    """Runs passes over a lake. Not for several threads; close it."""

    def __init__(
        self,
        lake: Lake,
        settings: ReaperSettings,
        *,
        repositories: Collection[str] = (),
        scrub_now: bool = False,
        metrics: ReaperMetrics | None = None,
        random: Random | None = None,
        reaper: str | None = None,
        asynchronous: bool = True,
        reserve_bytes: int = 0,
        grace_seconds: float | None = None,
        batch_keys: int = reaper_pass.BATCH_KEYS,
    ) -> None:
        """`repositories`: only these, if any are given. `asynchronous`: delete blobs while working on the KV.
        `reserve_bytes`: of the reserve on each disk (`settings.reserve`); 0: none. `grace_seconds`: instead of the
        repositories' own.
        """
        self.id = reaper or new_id()
        self._lake = lake
        self._clock = lake.clock
        self._settings = settings
        self._grace_seconds = grace_seconds
        self._batch_keys = batch_keys
        self._only = frozenset(repositories)
        self._metrics = metrics or ReaperMetrics()
        self._random = random or SystemRandom()
        self._throttle = Throttle(settings.rate_per_second, lake.clock)
        self._numbers = count(1)
        self._figures = FiguresWriter()
        self._fence = PositionFence(lake.kv, lambda: lake.own_store, lake.clock, lake.durations, self.id)
        self._async_deleter = AsyncDeleter() if asynchronous else None
        self._reserves = DiskReserves(lake, reserve_bytes)
        self._backoffs: dict[RepositoryId, Backoff] = {}
        self._reported: dict[RepositoryId, float] = {}
        self._keys_settled_under: dict[str, str] | None = None
        """The servers of the KV under which revoked access keys were looked for."""
        self._warned_of_versions: set[tuple[str, str | None]] = set()
        self._started_ms = lake.clock.now_ms()
        self._scrub_requested_ms = self._started_ms if scrub_now else None
        self._beat_at: float | None = None
        self._passes = 0
        self._total = Tally()

    def close(self) -> None:
        if self._async_deleter is not None:
            self._async_deleter.close()

    def __enter__(self) -> Reaper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, should_stop: Callable[[], bool]) -> PassSummary:
        """Run until a stop is requested. Raises DurationsDiffer."""
        backoff = Backoff(self._clock, self._random)
        with self._heartbeat():
            stop = self._with_heartbeat(should_stop)
            while not stop():
                try:
                    done = self.run_passes(stop)
                except (KVUnavailable, StoreMisconfigured) as error:
                    # misconfigured: the KV may lose records until its settings are corrected
                    seconds = backoff.record_failure()
                    _log.error(error.code, error=str(error), pause_seconds=round(seconds, 1))
                else:
                    backoff.record_success()
                    if done.more and not done.error_count:
                        continue
                    seconds = self._settings.pause_seconds * (0.75 + self._random.random() / 2)
                nap(self._clock, seconds, stop)
            self._figures.write_all(lambda: False)
        return self._total.summary()

    def run_once(self, should_stop: Callable[[], bool]) -> PassSummary:
        """Run until nothing is due. Raises KVUnavailable, DurationsDiffer."""
        with self._heartbeat():
            stop = self._with_heartbeat(should_stop)
            for _ in range(PASSES_MAX):
                done = self.run_passes(stop)
                if stop() or (done.idle and (done.error_count or not done.more)):
                    break
            self._figures.write_all(lambda: not stop())
        return self._total.summary()

    def run_passes(self, should_stop: Callable[[], bool]) -> PassSummary:
        """Make one pass over each repository. Raises KVUnavailable, DurationsDiffer."""
        with self._reserves.release():
            return self._run_passes(should_stop)

    def _run_passes(self, should_stop: Callable[[], bool]) -> PassSummary:
        self._lake.durations.refresh()
        tally = Tally()
        self._lake.audit.write_waiting()
        try:
            if self._is_whole(tally):
                self._pass_over_each(should_stop, tally)
        finally:  # count what was done before the KV failed
            self._total.follow(tally.summary())
        return tally.summary()

    def _is_whole(self, tally: Tally) -> bool:
        """Return whether the KV holds what was witnessed; if not, nothing is deleted in this pass. Raises
        KVUnavailable.
        """
        lake = self._lake
        try:
            lake.manifest.write_unwritten()
            waiting = check_lake(lake.kv, lake.manifest)
            self._fence.begin(self._settle)
            if waiting:
                self._fence.pass_through()
                lake.manifest.confirm(waiting, lake.ids.new_id(self._clock.now_ms()))
            if self._passes % FORGET_EVERY_PASSES == 1:
                self._fence.forget_ended_deleters()
        except RefstoreError as error:
            if isinstance(error, KVUnavailable):
                raise
            if isinstance(error, KVSettling):
                left_ms = to_ms(error.until) - self._clock.now_ms() if error.until is not None else 0
                self._metrics.record_settling(max(1.0, left_ms / 1000))
            _log.error("nothing_is_deleted", code=error.code, error=str(error))
            tally.fail("", "kv", error)
            if isinstance(error, KVSettling | KVWentBack) and self._fence.servers != self._keys_settled_under:
                self._settle_keys(tally)
            if isinstance(error, KVWentBack) and not isinstance(error, KVReconciling):
                self._stop_all(tally)
            return False
        self._metrics.record_settling(0)
        return True

    def _settle_keys(self, tally: Tally) -> None:
        """Revoke access keys that an older copy of the KV brought back, without waiting for the settlement. If this
        fails, the next pass does it. Raises KVUnavailable.
        """
        try:
            for item in settle_superseded_keys(self._lake):
                _log.warning("access_key_settled", id=item.name, outcome=item.outcome)
        except RefstoreError as error:
            if isinstance(error, KVUnavailable):
                raise
            tally.fail("", "kv", error)
        else:
            self._keys_settled_under = self._fence.servers

    def _settle(self) -> None:
        """Settle every repository after other servers of the KV answer. Raises KVWentBack, Corrupt, Unavailable."""
        for item in settle_superseded_records(self._lake):
            _log.warning(
                "older_record_settled", repository=item.repository, kind=item.kind, name=item.name, outcome=item.outcome
            )
        for name, record in self._lake.all_repositories():
            ctx = self._lake.context(name, record)
            if not record.closed_ms:
                check_repository(ctx, servers_changed=True)
            settle_repository(ctx)

    def _stop_all(self, tally: Tally) -> None:
        """Stop hard deletion in every repository, so that `refstore reaper status` says so."""
        for name, raw in self._lake.kv.scan_all(keys.REPOSITORIES):
            try:
                ctx = self._lake.context(ids.repository_name(name), decode(raw, RepositoryRecord))
                breaker.Breaker(ctx, self._settings, self.id).stop(breaker.Reason.KV_WENT_BACK)
            except RefstoreError as error:
                if isinstance(error, KVUnavailable):
                    raise
                tally.add(self._fail_pass(name, error))
            else:
                self._metrics.record_breaker(name, True)
                tally.count(blocked=1)

    def _pass_over_each(self, should_stop: Callable[[], bool], tally: Tally) -> None:
        repository_ids: set[RepositoryId] = set()
        names: list[str] = []
        for name, raw in self._lake.kv.scan_all(keys.REPOSITORIES):
            if self._only and name not in self._only:
                continue
            if should_stop():
                break
            names.append(name)
            try:
                record = decode(raw, RepositoryRecord)
                repository_ids.add(record.id)
                self._run_pass(ids.repository_name(name), record, should_stop, tally)
            except RefstoreError as error:
                if isinstance(error, KVUnavailable):
                    raise
                tally.add(self._fail_pass(name, error))
        else:
            self._backoffs = {repo: backoff for repo, backoff in self._backoffs.items() if repo in repository_ids}
            self._reported = {repo: at for repo, at in self._reported.items() if repo in repository_ids}
            self._figures.forget_others(repository_ids)
            self._metrics.forget_others(names)
            self._passes += 1

    def _run_pass(
        self, name: RepositoryName, record: RepositoryRecord, should_stop: Callable[[], bool], tally: Tally
    ) -> None:
        """Make a pass, and add its results to the tally, also if it fails. Raises KVUnavailable."""
        backoff = self._backoffs.setdefault(record.id, Backoff(self._clock, self._random))
        if backoff.is_waiting:
            return
        try:
            ctx = self._lake.context(name, record)
            tools = reaper_pass.PassTools(
                settings=self._settings,
                reaper=self.id,
                journal=JournalWriter(ctx.objects, self.id, self._clock, self._numbers),
                throttle=self._throttle,
                random=self._random,
                should_stop=should_stop,
                fence=self._fence,
                async_deleter=self._async_deleter,
                batch_keys=self._batch_keys,
                grace_seconds=self._grace_seconds,
                scrub_requested_ms=self._scrub_requested_ms,
            )
            try:
                reaper_pass.run_pass(ctx, record, tools)
            finally:
                summary = tools.tally.summary()
                tally.add(summary)
                self._report_pass(name, summary)
                self._figures.record_pass(ctx, record, summary)
            self._report_backlog(ctx, name)
            self._warn_of_versions(ctx)
            self._figures.write(ctx.repo, lambda: not should_stop())
        except RefstoreError as error:
            if isinstance(error, KVUnavailable):
                raise
            summary = self._fail_pass(name, error)
            tally.add(summary)
        # a bug must not keep the other repositories from being reaped
        except Exception as error:  # noqa: BLE001
            _log.exception("pass_failed", repository=name)
            summary = self._fail_pass(
                name, RefstoreError(f"unexpected {type(error).__name__}: {error}; see the log, and report it")
            )
            tally.add(summary)
        if summary.unavailable:
            seconds = backoff.record_failure()
            _log.warning(
                "repository_left_alone", repository=name, errors=summary.error_count, pause_seconds=round(seconds, 1)
            )
        else:
            backoff.record_success()

    def _report_pass(self, name: RepositoryName, summary: PassSummary) -> None:
        """Report the results of the pass to the log and the metrics."""
        if not summary.idle:
            _log.info(
                "pass",
                repository=name,
                **{field: value for field, value in asdict(summary).items() if value and field != "errors"},
            )
        self._metrics.record_pass(name, summary)

    def _report_backlog(self, ctx: Context, name: RepositoryName) -> None:
        """Report the backlog to the metrics, and log now and then that hard deletion is stopped."""
        now = self._clock.monotonic_seconds()
        if now - self._reported.get(ctx.repo, -BACKLOG_SECONDS) < BACKLOG_SECONDS:
            return
        self._reported[ctx.repo] = now
        stopped = breaker.explain(breaker.read_state(ctx.kv, ctx.repo))
        if stopped:
            _log.error(
                "hard_deletion_stopped", repository=name, reason=stopped, what_to_do=breaker.advice(name, stopped)
            )
        self._metrics.record_breaker(name, bool(stopped))
        if self._metrics.is_read:
            self._metrics.record_backlog(name, backlog.measure(ctx, limit=BACKLOG_MAX), self._clock.now_ms())

    def _warn_of_versions(self, ctx: Context) -> None:
        """Log once for each bucket that it keeps versions of what is deleted, or that this is not known."""
        store = store_urls.parse_store_url(ctx.objects.url)
        bucket = store.host, store.options.get("endpoint")
        if bucket not in self._warned_of_versions:
            if warning := ctx.objects.versioning_status().warning:
                _log.warning("deleting_frees_no_space", repository=ctx.name, what=redact_text(warning))
            self._warned_of_versions.add(bucket)

    def _fail_pass(self, name: str, error: RefstoreError) -> PassSummary:
        _log.error("repository_stopped", repository=name, code=error.code, error=str(error))
        tally = Tally()
        tally.fail(name, "pass", error)
        done = tally.summary()
        self._metrics.record_pass(name, done)
        return done

    # ---- heartbeats

    @contextmanager
    def _heartbeat(self) -> Generator[None, None, None]:
        """Keep a heartbeat in the KV while the block runs. The heartbeat of a killed reaper stays and becomes old."""
        self._reserves.release_if_full()  # the heartbeat is a write, too
        self._remove_old_heartbeats()
        _log.info("reaper_started", reaper=self.id, repositories=sorted(self._only) or "all")
        try:
            with python_gc.collect_seldom():
                yield
        finally:
            _log.info("reaper_ended", reaper=self.id, passes=self._passes)
            with suppress(KVUnavailable, StoreMisconfigured):
                self._lake.kv.delete(keys.heartbeat(self.id))

    def _with_heartbeat(self, should_stop: Callable[[], bool]) -> Callable[[], bool]:
        """Return `should_stop`, which is called often, extended to write a heartbeat now and then."""

        def stop() -> bool:
            now = self._clock.monotonic_seconds()
            if self._beat_at is None or now - self._beat_at >= BEAT_SECONDS:
                self._beat_at = now
                self._write_heartbeat()
            return should_stop()

        return stop

    def _write_heartbeat(self) -> None:
        now = self._clock.now_ms()
        done = self._total.summary()
        beat = Heartbeat(
            socket.gethostname(),
            os.getpid(),
            self._started_ms,
            now,
            BEAT_SECONDS,
            self._passes,
            done.released,
            done.deleted,
            done.bytes,
            done.error_count,
        )
        with suppress(KVUnavailable, StoreMisconfigured):
            self._lake.kv.set(keys.heartbeat(self.id), encode(beat))
        self._metrics.record_beat(now)

    def _remove_old_heartbeats(self) -> None:
        """Remove the heartbeats of reapers that were killed long ago."""
        before = self._clock.now_ms() - HEARTBEAT_KEPT_SECONDS * 1000
        for name, raw in self._lake.kv.scan(keys.REAPERS):
            try:
                old = decode(raw, Heartbeat).beat_ms < before
            except CorruptRecord:
                old = True
            if old:
                self._lake.kv.delete(keys.heartbeat(name))
