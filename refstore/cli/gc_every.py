"""`refstore gc run --every 6h`: run the offline job again and again, until SIGTERM.

    pass    a process of its own: opens the stores and an engine, runs each repository, reports through a pipe, and ends
    loop    starts a pass, prints and counts its reports, and waits for the next

A pass has its own process, and so its own Java. Between two passes no memory is held, and a pass that the system kills
for its memory is one failed pass. On SIGTERM the loop ends the process, and abandons the run that it had begun in the
KV. The next pass continues an interrupted sweep.

What fails in a pass is logged and counted, and tried again in the next. Only an error that no later pass can avoid ends
the loop, with the exit code of the same call without --every: a wrong setting, an optional dependency that is missing,
and the one repository that was named and is not there. These are found before the job begins in a repository. What a
store refuses the job there, its operator may allow before the next pass.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import typer

from refstore import configured_lake
from refstore.cli.common import invocation_of, open_lake, settings_of, stopping
from refstore.cli.errors import exit_code
from refstore.cli.gc_job import EngineRequest, Job, clear_deleted, run_all, show_progress
from refstore.cli.gc_tables import emit_summaries
from refstore.cli.nightly_purge import row_of
from refstore.core import event_log
from refstore.core.redaction import redact_text
from refstore.core.settings import OfflineSettings, Settings
from refstore.errors import Invalid, MissingExtra, NotFound, RefstoreError, RunUnderWay
from refstore.gc_marks import STANDING, Marks, Run
from refstore.lake import Lake

if TYPE_CHECKING:
    from refstore_gc.gc_metrics import GcMetrics
    from refstore_gc.run_summary import Summary
    from refstore_purge.report import Report

LOOK_SECONDS: Final = 0.2
"""How often the loop checks whether to stop."""
END_SECONDS: Final = 20.0
"""How long a terminated process may take before it is killed. Its run is abandoned either way."""
_DELETED: Final = "(deleted repositories)"
"""Their one label in the metrics: each has an id of its own, and would have series of its own for ever."""

_log = event_log.get_logger(__name__)


class Trouble(NamedTuple):
    """An error, as it comes out of the process of a pass."""

    code: str
    message: str
    exit_code: int
    another_run: bool
    permanent: bool
    """Whether no later pass can avoid it, if the pass failed as a whole."""

    @classmethod
    def of(cls, error: RefstoreError) -> Trouble:
        permanent = isinstance(error, Invalid | NotFound | MissingExtra)
        return cls(
            error.code, redact_text(str(error)), exit_code(type(error)), isinstance(error, RunUnderWay), permanent
        )


class RepositoryReport(NamedTuple):
    """What a pass reports of one repository; or of itself, or of deleted repositories (then `repository` is '')."""

    repository: str
    summaries: Sequence[Summary] = ()
    """Of marks that were swept, and of the mark that was made, which is the last, where `marked` says so."""
    marked: bool = False
    standing: Sequence[Run] = ()
    troubles: Sequence[Trouble] = ()
    cleared: Sequence[dict[str, Any]] = ()
    seconds: float = 0.0
    purge: Report | None = None
    """What came of the look for the ids of the purge's ledger."""


class PassRequest(NamedTuple):
    """What a pass has to do. The loop sends it to the process."""

    settings: Settings
    repository: str | None
    """None: all."""
    job: Job
    engine: EngineRequest


def run_every(ctx: typer.Context, seconds: float, request: PassRequest) -> None:
    """Run passes until SIGTERM or SIGINT, then return. Raises what no later pass can avoid, and typer.Exit with
    its code.
    """
    settings_of(ctx, service=True)
    request.job.options()  # wrong options fail before anything begins
    request.engine.check(request.settings.offline)
    with open_lake(ctx) as lake:
        if request.repository is not None:
            lake.repository(request.repository)
    with stopping() as stop, _serving_metrics(request.settings.offline) as metrics:
        while not stop.is_set():
            began, began_ms = time.monotonic(), time.time_ns() // 1_000_000
            _log.info("gc_pass_began", repository=request.repository or "all")
            reports = _pass(request, stop, metrics)
            if stop.is_set():
                break
            _print(ctx, reports)
            _end_if_permanent(reports)
            at_ms = max(time.time_ns() // 1_000_000, began_ms + seconds * 1000)
            if metrics is not None:
                metrics.next_pass(at_ms)
            _log.info(
                "gc_pass_ended",
                seconds=round(time.monotonic() - began, 1),
                next_in_seconds=round(max(0.0, at_ms / 1000 - time.time()), 1),
            )
            stop.wait(max(0.0, began + seconds - time.monotonic()))
    _log.info("gc_stopped")


def _pass(request: PassRequest, stop: threading.Event, metrics: GcMetrics | None) -> list[RepositoryReport]:
    """Run one pass in a process, and return its reports. On `stop`, end it and abandon the run that it had begun."""
    context = multiprocessing.get_context("spawn")
    reports: list[RepositoryReport] = []
    with tempfile.TemporaryDirectory(prefix="refstore-gc-", ignore_cleanup_errors=True) as folder:
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(request, sending, folder), name="refstore-gc")
        process.start()
        sending.close()
        while not stop.is_set():
            try:
                if receiving.poll(LOOK_SECONDS):
                    reports.append(receiving.recv())
                    _count(reports[-1], metrics)
            except (EOFError, OSError):
                break
        process.join(0 if stop.is_set() else END_SECONDS)
        if process.is_alive():
            process.terminate()
            process.join(END_SECONDS)
            process.kill()
            process.join()
        receiving.close()
    if process.exitcode:
        _abandon(request, f"{socket.gethostname()}:{process.pid}")
        if not stop.is_set():
            words = (
                f"the process of the pass ended with {process.exitcode}, killed for its memory perhaps; the next pass "
                "begins anew"
            )
            trouble = Trouble("pass_ended", words, 1, another_run=False, permanent=False)
            reports.append(RepositoryReport("", troubles=[trouble]))
            _count(reports[-1], metrics)
    return reports


def _abandon(request: PassRequest, owner: str) -> None:
    """Abandon the run that a dead process left, so that nobody waits until it is stale."""
    from refstore_gc.run_layout import remove

    try:
        with _lake(request.settings) as lake:
            for name, _ in list(lake.repositories()):
                if request.repository in (None, name):
                    repo = lake.repository(name)
                    if mark_id := Marks(repo.context).abandon_of(owner):
                        remove(repo.context.objects, mark_id)
                        _log.info("run_abandoned", repository=name, mark=mark_id)
    except RefstoreError as error:
        _log.warning("run_not_abandoned", error=str(error), what_to_do="none: the next run takes over when it is stale")


def _count(report: RepositoryReport, metrics: GcMetrics | None) -> None:
    """Log and count what a pass reported of a repository."""
    name, now_ms = report.repository, time.time_ns() // 1_000_000
    for trouble in report.troubles:
        if trouble.another_run:
            _log.info("another_run_is_on", repository=name, said=trouble.message, what_now="waiting for the next pass")
        else:
            _log.error("run_failed", repository=name or "all", code=trouble.code, error=trouble.message)
        if metrics is not None and not trouble.another_run:
            metrics.error(name, trouble.code)
    if report.purge is not None and not report.purge.is_done:
        _log.warning("purge_left_something", repository=name, run=report.purge.run, left=report.purge.not_purged_count)
    if metrics is None:
        return
    for row in report.cleared:
        from refstore_gc.run_summary import Count

        metrics.deleted(_DELETED, Count(row["deleted"], row["bytes"]), by="refstore")
    if not name:
        return
    failed = any(not trouble.another_run for trouble in report.troubles)
    metrics.ended(name, "failed" if failed else "another run" if report.troubles else "done")
    metrics.standing(name, report.standing, now_ms)
    metrics.swept(name, report.summaries)
    if report.marked:
        metrics.marked(name, report.summaries[-1])
        metrics.finished(name, now_ms, report.seconds)


def _print(ctx: typer.Context, reports: Sequence[RepositoryReport]) -> None:
    summaries = [summary for each in reports for summary in each.summaries]
    cleared = [row for each in reports for row in each.cleared]
    purges = [(each.repository, each.purge) for each in reports if each.purge is not None]
    if not invocation_of(ctx).json:
        emit_summaries(ctx, summaries, cleared, purges)
        return
    errors = [{"repository": each.repository, **trouble._asdict()} for each in reports for trouble in each.troubles]
    rows = [row_of(*each) for each in purges]
    line = msgspec.json.encode({"runs": summaries, "deleted_repositories": cleared, "purges": rows, "errors": errors})
    print(line.decode(), flush=True)


def _end_if_permanent(reports: Sequence[RepositoryReport]) -> None:
    """Raise typer.Exit where no later pass can avoid an error. One repository's errors are none of these."""
    for each in reports:
        for trouble in each.troubles:
            if trouble.permanent and not each.repository:
                typer.echo(f"refstore: {trouble.message}", err=True)
                raise typer.Exit(trouble.exit_code)


@contextmanager
def _serving_metrics(settings: OfflineSettings) -> Generator[GcMetrics | None, None, None]:
    if not settings.metrics_port:
        yield None
        return
    from refstore_gc.gc_metrics import GcMetrics

    metrics = GcMetrics(settings.metrics_host, settings.metrics_port)
    try:
        yield metrics
    finally:
        metrics.close()


@contextmanager
def _lake(settings: Settings) -> Generator[Lake, None, None]:
    from refstore.audit import acting_as, local_actor

    with (
        acting_as(local_actor("gc", "refstore gc run --every")),
        configured_lake.open_lake(settings) as lake,
    ):
        yield lake


# ---- in the process of a pass


def work(request: PassRequest, sending: Connection, folder: str) -> None:
    """Run one pass. The process ends with the one that started it, however that ended; `folder` is removed by that
    one.
    """
    from refstore.core import logs

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # typed at a terminal it comes here too: the loop says when to end
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, name="refstore-parent", daemon=True).start()
    tempfile.tempdir = folder
    logs.configure(request.settings.log, sys.stderr, service=True)
    with suppress(BrokenPipeError):
        try:
            _work(request, sending.send)
        except RefstoreError as error:
            sending.send(RepositoryReport("", troubles=[Trouble.of(error)]))
    sending.close()


def _work(request: PassRequest, send: Callable[[RepositoryReport], None]) -> None:
    with _lake(request.settings) as lake:
        names = [request.repository] if request.repository is not None else [name for name, _ in lake.repositories()]
        with request.engine.open(request.settings.offline) as engines, show_progress(is_service=True) as step:
            for name in names:
                began = time.monotonic()
                found = run_all(lake, [name], request.job, engines, step)
                troubles = [Trouble.of(error) for _, error in found.troubles]
                if not found.done and not troubles:  # it was deleted since it was listed
                    if request.repository is not None:
                        lake.repository(name)
                    continue
                send(
                    RepositoryReport(
                        name,
                        found.done,
                        found.marked,
                        _standing(lake, name),
                        troubles,
                        seconds=time.monotonic() - began,
                        purge=found.purges[-1][1] if found.purges else None,
                    )
                )
            if request.repository is None and request.job.what == "run":
                lost: list[tuple[str, RefstoreError]] = []
                cleared = clear_deleted(lake, request.job, engines, step, lost)
                if cleared or lost:
                    send(
                        RepositoryReport("", cleared=cleared, troubles=[_alone(Trouble.of(error)) for _, error in lost])
                    )


def _standing(lake: Lake, name: str) -> list[Run]:
    with suppress(RefstoreError):
        return [run for run in Marks(lake.repository(name).context).runs() if run.state in STANDING]
    return []


def _alone(trouble: Trouble) -> Trouble:
    """Return an error of one deleted repository, which ends nothing else."""
    return trouble._replace(permanent=False)
