"""`refstore gc run --every 6h`: run the offline job again and again, until SIGTERM.

Each pass is a process of its own, with its own Java. It prints and logs what it did, repository by repository, and
sends the loop what to count. Between two passes no memory is held, and a pass that the system kills for its memory is
one failed pass. On SIGTERM the loop ends the process, and abandons the run that it had begun in the KV. The next pass
continues an interrupted sweep.

What fails in a pass is logged and counted, and tried again in the next. Only an error that no later pass can avoid ends
the loop, with the exit code of the same call without --every: a wrong setting, an optional dependency that is missing,
and the one repository that was named and is not there. These are found before the job begins in a repository. What a
store refuses the job there, its operator may allow before the next pass.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from refstore.cli.common import open_lake, settings_of, stopping
from refstore.cli.errors import exit_code
from refstore.cli.gc_job import EngineRequest, Job, clear_deleted, run_all, show_progress
from refstore.cli.gc_tables import emit_summaries
from refstore.configuration import configured_lake
from refstore.configuration.settings import OfflineSettings, Settings
from refstore.core import event_log
from refstore.core.child_processes import Connection, Pipe, PythonProcess, when_parent_ends
from refstore.core.redaction import redact_text
from refstore.errors import Invalid, MissingExtra, NotFound, RefstoreError, RunUnderWay
from refstore.gc_marks import OPEN_STATES, Marks
from refstore.lake import Lake

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines
    from refstore_gc.gc_metrics import GcMetrics

LOOK_SECONDS: Final = 0.2
"""How often the loop checks whether to stop."""
END_SECONDS: Final = 20.0
"""How long a terminated process may take before it is killed. Its run is abandoned either way."""
_PERMANENT: Final = (Invalid, NotFound, MissingExtra)
"""What no later pass can avoid, if a pass failed as a whole. Its process then ends with the error's exit code."""
_DELETED: Final = "(deleted repositories)"
"""Their one label in the metrics: each has an id of its own, and would have series of its own for ever."""

_log = event_log.get_logger(__name__)

CountMetric = Callable[..., None]
"""Calls a method of `GcMetrics` in the loop's process: its name, then its arguments."""


class PassRequest(NamedTuple):
    """What a pass has to do. The loop sends it to the process."""

    settings: Settings
    repository: str | None
    """None: all."""
    job: Job
    engine: EngineRequest
    output: str


def run_every(ctx: typer.Context, seconds: float, request: PassRequest) -> None:
    """Run passes until SIGTERM or SIGINT, then return. Raises what no later pass can avoid, and typer.Exit with
    its code.
    """
    settings_of(ctx, service=True)
    request.engine.check(request.settings.offline)
    with open_lake(ctx) as lake:
        if request.repository is not None:
            lake.repository(request.repository)
    with stopping() as stop, _serving_metrics(request.settings.offline) as metrics:
        while not stop.is_set():
            began = time.monotonic()
            _log.info("gc_pass_began", repository=request.repository or "all")
            code = _run_pass(request, stop, metrics)
            if stop.is_set():
                break
            if code in map(exit_code, _PERMANENT):
                raise typer.Exit(code)
            now = time.monotonic()
            left = max(0.0, began + seconds - now)
            if metrics is not None:
                metrics.set_next_run((time.time() + left) * 1000)
            _log.info("gc_pass_ended", seconds=round(now - began, 1), next_in_seconds=round(left, 1))
            stop.wait(left)
    _log.info("gc_stopped")


def _run_pass(request: PassRequest, stop: threading.Event, metrics: GcMetrics | None) -> int:
    """Run one pass in a process, and return its exit code. On `stop`, end it. Abandon the run of one that died."""
    with tempfile.TemporaryDirectory(prefix="refstore-gc-", ignore_cleanup_errors=True) as folder:
        receiving, sending = Pipe(duplex=False)
        with sending:
            process = PythonProcess(work, request, sending, folder)
        with suppress(EOFError, OSError):
            while not stop.is_set():
                if receiving.poll(LOOK_SECONDS):
                    name, arguments, options = receiving.recv()
                    if metrics is not None:
                        getattr(metrics, name)(*arguments, **options)
        process.join(0 if stop.is_set() else END_SECONDS)
        if process.is_alive():
            process.terminate()
            process.join(END_SECONDS)
            process.kill()
            process.join()
        receiving.close()
    if process.returncode not in (0, *map(exit_code, _PERMANENT)):
        _abandon(request, f"{socket.gethostname()}:{process.pid}")
        if not stop.is_set():
            words = f"the process of the pass ended with {process.returncode}, killed for its memory perhaps"
            _log.error("run_failed", repository="all", code="pass_ended", error=f"{words}; the next pass begins anew")
            if metrics is not None:
                metrics.count_error("", "pass_ended")
    return process.returncode or 0


def _abandon(request: PassRequest, owner: str) -> None:
    """Abandon the run that a dead process left, so that nobody waits until it is stale."""
    from refstore_gc.run_layout import remove_run_files

    try:
        with _lake(request.settings) as lake:
            for name, _ in list(lake.repositories()):
                if request.repository in (None, name):
                    repo = lake.repository(name)
                    if mark_id := Marks(repo.context).mark_run.abandon_of(owner):
                        remove_run_files(repo.context.objects, mark_id)
                        _log.info("run_abandoned", repository=name, mark=mark_id)
    except RefstoreError as error:
        _log.warning("run_not_abandoned", error=str(error), what_to_do="none: the next run takes over when it is stale")


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
    from refstore.audit import act_as, local_actor

    with act_as(local_actor("gc", "refstore gc run --every")), configured_lake.open_lake(settings) as lake:
        yield lake


# ---- in the process of a pass


def work(request: PassRequest, sending: Connection, folder: str) -> None:
    """Run one pass. The process ends with the one that started it, however that ended; `folder` is removed by that
    one.
    """
    from refstore.configuration import logs

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # typed at a terminal it comes here too: the loop says when to end
    when_parent_ends(partial(os._exit, 1))

    def count(name: str, *arguments: object, **options: object) -> None:
        sending.send((name, arguments, options))

    tempfile.tempdir = folder
    logs.configure_logs(request.settings.log, sys.stderr, service=True)
    try:
        _work(request, count)
    except RefstoreError as error:
        _report(error, "", count)
        if isinstance(error, _PERMANENT):
            typer.echo(f"refstore: {redact_text(str(error))}", err=True)
            sys.exit(exit_code(type(error)))


def _work(request: PassRequest, count: CountMetric) -> None:
    with _lake(request.settings) as lake:
        names = [request.repository] if request.repository is not None else [name for name, _ in lake.repositories()]
        with request.engine.open(request.settings.offline) as engines, show_progress(is_service=True) as step:
            for name in names:
                _run_repository(lake, name, request, engines, step, count)
            if request.repository is None and request.job.what == "run":
                troubles: list[tuple[str, RefstoreError]] = []
                cleared = clear_deleted(lake, request.job, engines, step, troubles)
                errors = [_report(error, "", count) for _, error in troubles]
                for row in cleared:
                    from refstore_gc.run_summary import ObjectCount

                    count("count_deleted", _DELETED, ObjectCount(row["deleted"], row["bytes"]), by="refstore")
                if cleared or errors:
                    emit_summaries(request.output, [], cleared, (), errors)


def _run_repository(
    lake: Lake, name: str, request: PassRequest, engines: Engines, step: Any, count: CountMetric
) -> None:
    """Run the job in one repository; print, log and count what it did."""
    began = time.monotonic()
    ran = run_all(lake, [name], request.job, engines, step)
    if not ran.done and not ran.troubles:  # it was deleted since it was listed
        if request.repository is not None:
            lake.repository(name)
        return
    errors = [_report(error, name, count) for _, error in ran.troubles]
    for _, purge in ran.purges:
        if not purge.is_done:
            _log.warning("purge_left_something", repository=name, run=purge.run, left=purge.skipped_count)
    now_ms = time.time_ns() // 1_000_000
    is_failed = any(not isinstance(error, RunUnderWay) for _, error in ran.troubles)
    count("count_run", name, "failed" if is_failed else "another run" if errors else "done")
    with suppress(RefstoreError):
        open_marks = [run for run in Marks(lake.repository(name).context).runs.scan() if run.state in OPEN_STATES]
        count("set_open_marks", name, open_marks, now_ms)
    count("count_swept", name, ran.done)
    if ran.marked:
        count("count_marked", name, ran.done[-1])
        count("set_last_run", name, now_ms, time.monotonic() - began)
    emit_summaries(request.output, ran.done, (), ran.purges, errors)


def _report(error: RefstoreError, repository: str, count: CountMetric) -> dict[str, str]:
    """Log and count an error; return its row. That another host runs the job is none."""
    message = redact_text(str(error))
    if isinstance(error, RunUnderWay):
        _log.info("another_run_is_on", repository=repository, said=message, what_now="waiting for the next pass")
    else:
        _log.error("run_failed", repository=repository or "all", code=error.code, error=message)
        count("count_error", repository, error.code)
    return {"repository": repository, "code": error.code, "message": message}
