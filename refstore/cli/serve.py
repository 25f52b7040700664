"""`refstore serve`: the HTTP service and a reaper, together, on the embedded default or on any stores."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import structlog
import typer

from refstore.cli.common import open_lake, settings_of
from refstore.errors import InvalidSettings, MissingExtra
from refstore.settings import Settings

if TYPE_CHECKING:
    from refstore.context import Context
    from refstore.flows.viewing import AddressView
    from refstore.lake import Lake
    from refstore.repository import Repository

app = typer.Typer()

KEY_ID = "REFSTORE_ACCESS_KEY_ID"
SECRET = "REFSTORE_SECRET_ACCESS_KEY"  # noqa: S105  # a variable's name
RESUME_SECONDS = 3600.0
LOOK_SECONDS = 0.5
"""Between two looks whether a process that should run does."""
RESTART_SECONDS = 5.0
"""Before a reaper that ended is replaced: what ended it may need a moment, or end the service too."""
BATCH_SECONDS = 60.0
"""How long a reaper that is asked to end may take over the batch in hand. One that is killed then loses nothing: others finish it."""

_log = structlog.stdlib.get_logger(__name__)


@app.command("serve")
def serve(
    ctx: typer.Context,
    *,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Where to listen; left out: loopback.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, metavar="PORT", help="Left out: 8000. 0: any that is free.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, metavar="N", help="Processes that answer; each counts wrong secrets for itself.")
    ] = None,
    reaper: Annotated[bool, typer.Option("--reaper/--no-reaper", help="Whether to reap here as well.")] = True,
) -> None:
    """Serve the HTTP API, and reap, until SIGTERM. Clients of lakeFS work with it.

    The first operator's access key is REFSTORE_ACCESS_KEY_ID and REFSTORE_SECRET_ACCESS_KEY from the environment; where there is no key
    at all, one is made and printed, once. Others are made with `refstore keys`.

    \b
    Example: refstore serve --data ./lake
             refstore serve --kv redis://127.0.0.1:6379/0 --objects s3://bucket/lake --workers 4 --no-reaper
    """
    try:
        from api import serving
    except ModuleNotFoundError as error:
        raise MissingExtra("api", "refstore serve") from error
    settings = settings_of(ctx)
    given = {name: value for name, value in (("host", host), ("port", port), ("workers", workers)) if value is not None}
    settings = replace(settings, api=replace(settings.api, **given))
    _check_stores(settings)
    with open_lake(ctx, create=True) as lake:
        _first_key(lake, os.environ)
    listening = serving.bind(settings)
    where = listening.getsockname()
    address = f"http://{'[' + where[0] + ']' if ':' in where[0] else where[0]}:{where[1]}"

    def started() -> None:
        typer.echo(f"refstore serves {address} (API under /api/v1, documents at /docs)", err=True)

    with contextlib.ExitStack() as stack:
        stack.callback(listening.close)
        if reaper:
            stack.enter_context(_reaping(settings))
        if settings.api.workers == 1:
            serving.answer(settings, listening, _Operations(), started)
        else:
            _many(settings, listening, started)


class _Operations:
    """What the reaper knows, for the API."""

    def reaper_status(self, lake: Lake, repository: str | None) -> dict[str, object]:
        from reaper.status import status

        found = status(lake, repository=repository)
        return {
            "reapers": [item._asdict() for item in found.reapers],
            "repositories": [item._asdict() for item in found.repositories],
        }

    def why(self, repository: Repository, address: str) -> tuple[AddressView, Sequence[Any]]:
        from reaper.why import why

        found = why(repository.context, address)
        return found.view, [
            _Event(event.at_ms, event.outcome, event.doomed.path, event.doomed.cause, event.doomed.size_bytes, event.reaper, event.reason)
            for event in found.events
        ]

    def resume(self, ctx: Context, seconds: float | None, objects: int | None) -> str:
        from reaper import breaker

        reason = breaker.explain(breaker.read(ctx.kv, ctx.repo))
        if not reason:
            return f"hard deletion of {ctx.name} goes on already"
        for_seconds = RESUME_SECONDS if seconds is None and objects is None else seconds
        breaker.resume(ctx, seconds=for_seconds, objects=objects)
        return f"hard deletion of {ctx.name} goes on; it stood still because {reason}"


class _Event(NamedTuple):
    at_ms: int
    outcome: str
    path: str
    cause: str
    size_bytes: int
    reaper: str
    reason: str


def _check_stores(settings: Settings) -> None:
    if settings.kv.startswith("memory:") and settings.api.workers > 1:
        raise InvalidSettings("a memory: KV is one process's own; use one worker, or another KV")


def _first_key(lake: Lake, environ: Mapping[str, str]) -> None:
    """See that somebody can log in. Raises InvalidSettings, Invalid."""
    from refstore import access

    key_id, secret = environ.get(KEY_ID, ""), environ.get(SECRET, "")
    if bool(key_id) != bool(secret):
        raise InvalidSettings(f"{KEY_ID} and {SECRET} must be given together; give both, or neither")
    if key_id:
        access.ensure(lake.kv, lake.clock, key_id, secret)
    elif not access.any_there(lake.kv):
        made = access.create(lake.kv, lake.clock, access.Role.OPERATOR, description="made by the first refstore serve")
        typer.echo(
            f"The first access key, an operator's; its secret is shown this once:\n  {KEY_ID}={made.key.id}\n  {SECRET}={made.secret}",
            err=True,
        )


@contextlib.contextmanager
def _reaping(settings: Settings) -> Generator[None, None, None]:
    """A reaper beside the service, stopped after the batch in hand: a process, but for a KV that only this one sees.

    As a thread it would hold Python's lock for milliseconds at a time, and each request would wait for it.
    """
    over = threading.Event()
    work = _reap if settings.kv.startswith("memory:") else _keep_reaping
    thread = threading.Thread(target=work, args=(settings, over), name="refstore-reaper")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _reap(settings: Settings, over: threading.Event) -> None:
    from reaper.daemon import Reaper
    from refstore.issuance import SigningKey
    from refstore.lake import Lake

    keys = [SigningKey(kid, secret) for kid, secret in settings.signing_pairs]
    with (
        Lake.open(settings.kv, settings.objects, safety=settings.safety, signing_keys=keys) as lake,
        Reaper(lake, settings.reaper) as daemon,
    ):
        daemon.run(over.is_set)


def _keep_reaping(settings: Settings, over: threading.Event) -> None:
    """In a process, and in another one should that end, until it is over."""
    context = multiprocessing.get_context("spawn")
    while not over.is_set():
        process = context.Process(target=_reaper, args=(settings,), name="refstore-reaper")
        try:
            process.start()
        except OSError as error:  # no memory, or too many processes, for a moment: a service must not be left without a reaper
            _log.error("reaper_process_not_started", error=repr(error), restart_seconds=RESTART_SECONDS)
            over.wait(RESTART_SECONDS)
            continue
        while process.is_alive() and not over.wait(LOOK_SECONDS):
            pass
        if not over.is_set():
            _log.error("reaper_process_ended", exit_code=process.exitcode, restart_seconds=RESTART_SECONDS)
            over.wait(RESTART_SECONDS)
        process.terminate()
        process.join(BATCH_SECONDS)
        process.kill()
        process.join()


def _reaper(settings: Settings) -> None:
    """The reaper's process. It ends with the one that started it, and lets it go first."""
    from reaper.priority import NICE, giving_way
    from refstore import logs

    over = threading.Event()

    def end(_number: int, _frame: object) -> None:
        over.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # typed at a terminal it comes here too: the service says when to end
    logs.configure(settings.log, sys.stderr)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            over.set()

    threading.Thread(target=follow, name="refstore-parent", daemon=True).start()
    with giving_way(NICE):
        _reap(settings, over)


def _worker(settings: Settings, listening: socket.socket) -> None:
    """One process of several. It ends with the one that started it, however that ended: nobody else would replace it or stop it."""
    from api import serving
    from refstore import logs

    logs.configure(settings.log, sys.stderr)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, name="refstore-parent", daemon=True).start()
    serving.answer(settings, listening, _Operations())


def _many(settings: Settings, listening: socket.socket, started: Any) -> None:
    """Several processes over one socket; one that dies is replaced, and all end when this one is asked to."""
    from api import serving

    context = multiprocessing.get_context("spawn")
    over = threading.Event()

    def end(_number: int, _frame: object) -> None:
        over.set()

    asked = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}

    def start() -> Any:
        process = context.Process(target=_worker, args=(settings, listening), name="refstore-api")
        process.start()
        return process

    processes = [start() for _ in range(settings.api.workers)]
    started()
    try:
        while not over.wait(LOOK_SECONDS):
            processes = [process if process.is_alive() else start() for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(serving.GRACE_SECONDS + 10)
        for number, handler in asked.items():
            signal.signal(number, handler)
