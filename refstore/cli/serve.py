"""`refstore serve`: the HTTP service and a reaper, together, on the embedded default or on any stores."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Generator, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer

from refstore.cli.common import open_lake, settings_of, warn_of_open_folders
from refstore.cli.errors import exit_code
from refstore.errors import InvalidSettings, MissingExtra, RefstoreError
from refstore.settings import Settings

if TYPE_CHECKING:
    from refstore.context import Context
    from refstore.flows.viewing import AddressView
    from refstore.lake import Lake
    from refstore.repository import Repository

app = typer.Typer()

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
    tls_certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="Speak HTTPS with this certificate chain (PEM); SIGHUP reads it again.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="The certificate's key (PEM), without a password.")] = None,
    reaper: Annotated[bool, typer.Option("--reaper/--no-reaper", help="Whether to reap here as well.")] = True,
) -> None:
    """Serve the HTTP API, and reap, until SIGTERM. Clients of lakeFS work with it.

    The first operator's access key is REFSTORE_ACCESS_KEY_ID and REFSTORE_SECRET_ACCESS_KEY from the environment; where there is no key
    at all, one is made and written to a file that only its owner reads, whose path is printed: in the data folder, or where stores are
    named by URL in the state folder of the user (XDG_STATE_HOME). Others are made with `refstore keys`.

    \b
    Example: refstore serve --data ./lake
             refstore serve --kv redis://127.0.0.1:6379/0 --objects s3://bucket/lake --workers 4 --no-reaper
             refstore serve --tls-certificate chain.pem --tls-key key.pem      # after a renewal: kill -HUP
    """
    try:
        from api import serving
        from api.tls import Certificate
    except ModuleNotFoundError as error:
        raise MissingExtra("api", "refstore serve") from error
    from refstore.cli.first_key import see_to_first_key

    settings = settings_of(ctx)
    options = {"host": host, "port": port, "workers": workers, "tls_certificate": tls_certificate, "tls_key": tls_key}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    settings = replace(settings, api=replace(settings.api, **given))
    _check_stores(settings)
    _check_public_url(settings)
    has_tls = Certificate.of(settings.api) is not None
    with open_lake(ctx, create=True) as lake:
        see_to_first_key(lake, settings.data, os.environ)
    warn_of_open_folders(settings)
    listening = serving.bind(settings)
    where = listening.getsockname()
    address = f"http{'s' if has_tls else ''}://{'[' + where[0] + ']' if ':' in where[0] else where[0]}:{where[1]}"

    def started() -> None:
        typer.echo(f"refstore serves {address} (API under /api/v1, documents at /docs)", err=True)

    with contextlib.ExitStack() as stack:
        stack.callback(listening.close)
        folder: Path | None = None
        if reaper:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refstore-serve-", ignore_cleanup_errors=True)))
            stack.enter_context(_reaping(settings, folder))
        if settings.api.workers == 1:
            serving.answer(settings, listening, _Operations(folder), started)
        else:
            _many(settings, listening, folder, started)


class _Operations:
    """What the reaper knows, for the API."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: where a reaper beside the service writes its metrics."""
        self._folder = folder

    def reaper_metrics(self) -> bytes:
        from reaper.metrics import read_written

        return read_written(self._folder) if self._folder is not None else b""

    def reaper_status(self, lake: Lake, repository: str | None) -> dict[str, object]:
        from reaper.status import status

        found = status(lake, repository=repository)
        return {
            "reapers": [item._asdict() for item in found.reapers],
            "repositories": [item._asdict() for item in found.repositories],
        }

    def why(self, repository: Repository, address: str) -> tuple[AddressView, Sequence[Any]]:
        found = repository.why(address)
        return found.view, found.deletions

    def resume(self, ctx: Context, seconds: float | None, objects: int | None) -> str:
        from reaper import breaker

        reason = breaker.explain(breaker.read(ctx.kv, ctx.repo))
        if not reason:
            return f"hard deletion of {ctx.name} goes on already"
        for_seconds = RESUME_SECONDS if seconds is None and objects is None else seconds
        breaker.resume(ctx, seconds=for_seconds, objects=objects)
        return f"hard deletion of {ctx.name} goes on; it stood still because {reason}"


def _check_stores(settings: Settings) -> None:
    if settings.kv.startswith("memory:") and settings.api.workers > 1:
        raise InvalidSettings("a memory: KV is one process's own; use one worker, or another KV")
    scheme = settings.objects.partition("://")[0]
    for url in settings.api.namespaces:
        if not url.startswith(f"{scheme}://"):
            raise InvalidSettings(
                f"api.namespaces has {url[:200]!r}, and the lake's objects are in {scheme}://; name folders of that store"
            )


def _check_public_url(settings: Settings) -> None:
    """Raises InvalidSettings. Beyond loopback, signed URLs would name whatever host a request's headers name."""
    if not settings.api.public_url and not _is_loopback(settings.api.host):
        raise InvalidSettings(
            f"api.public_url is not set, and the service listens on {settings.api.host}, beyond loopback; say how clients reach it, for the"
            " URLs that it hands out: REFSTORE_API_PUBLIC_URL=https://lake.example.org"
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def _reaping(settings: Settings, folder: Path) -> Generator[None, None, None]:
    """A reaper beside the service, stopped after the batch in hand: a process, but for a KV that only this one sees. Its metrics go to
    `folder`, where every process that answers finds them.

    As a thread it would hold Python's lock for milliseconds at a time, and each request would wait for it.
    """
    over = threading.Event()
    work = _reap if settings.kv.startswith("memory:") else _keep_reaping
    thread = threading.Thread(target=work, args=(settings, folder, over), name="refstore-reaper")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _reap(settings: Settings, folder: Path, over: threading.Event) -> None:
    from reaper.daemon import Reaper
    from reaper.metrics import WrittenMetrics
    from refstore.issuance import SigningKey
    from refstore.lake import Lake

    keys = [SigningKey(kid, secret) for kid, secret in settings.signing_pairs]
    with (
        Lake.open(settings.kv, settings.objects, safety=settings.safety, signing_keys=keys) as lake,
        Reaper(lake, settings.reaper, metrics=WrittenMetrics(folder)) as daemon,
    ):
        daemon.run(over.is_set)


def _keep_reaping(settings: Settings, folder: Path, over: threading.Event) -> None:
    """In a process, and in another one should that end, until it is over."""
    context = multiprocessing.get_context("spawn")
    while not over.is_set():
        process = context.Process(target=_reaper, args=(settings, folder), name="refstore-reaper")
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


def _reaper(settings: Settings, folder: Path) -> None:
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
        try:
            _reap(settings, folder, over)
        except RefstoreError as error:  # it could not begin: a KV that does not answer, or that may lose records
            _log.error("reaper_could_not_begin", code=error.code, error=str(error))
            sys.exit(exit_code(type(error)))


def _worker(settings: Settings, listening: socket.socket, folder: Path | None) -> None:
    """One process of several. It ends with the one that started it, however that ended: nobody else would replace it or stop it."""
    from api import serving
    from refstore import logs

    logs.configure(settings.log, sys.stderr)
    if settings.api.tls_certificate:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server is there: what it reads then is new
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, name="refstore-parent", daemon=True).start()
    serving.answer(settings, listening, _Operations(folder))


def _many(settings: Settings, listening: socket.socket, folder: Path | None, started: Any) -> None:
    """Several processes over one socket; one that dies is replaced, and all end when this one is asked to."""
    from api import serving

    context = multiprocessing.get_context("spawn")
    over = threading.Event()

    def end(_number: int, _frame: object) -> None:
        over.set()

    asked = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}

    def start() -> Any:
        process = context.Process(target=_worker, args=(settings, listening, folder), name="refstore-api")
        process.start()
        return process

    processes = [start() for _ in range(settings.api.workers)]

    def reload(_number: int, _frame: object) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGHUP)

    if settings.api.tls_certificate:
        asked[signal.SIGHUP] = signal.signal(signal.SIGHUP, reload)
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
