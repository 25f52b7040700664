"""`refstore serve`: the HTTP service and a reaper, together, on the embedded default or on any stores."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from refstore.cli.common import open_lake, override_settings, settings_of, stopping, warn_of_open_folders
from refstore.cli.errors import exit_code
from refstore.configuration.settings import Settings
from refstore.core import event_log
from refstore.core.child_processes import PythonProcess, when_parent_ends
from refstore.core.file_modes import make_folder
from refstore.core.user_folders import state_folder
from refstore.errors import Conflict, InvalidSettings, MissingExtra, RefstoreError
from refstore.lake import Lake
from refstore.service import access_keys

if TYPE_CHECKING:
    from refstore_api.server import GatewayApplication

app = typer.Typer()

CHECK_SECONDS = 0.5
"""How often the service checks that its processes still run."""
RESTART_SECONDS = 5.0
"""Before a reaper that ended is replaced: what ended it may take a moment, or end the service too."""
BATCH_SECONDS = 60.0
"""How long a reaper that is to end may take over the batch in hand. If it is killed then, nothing is lost: another
reaper finishes the batch.
"""

KEY_ID: Final = "REFSTORE_ACCESS_KEY_ID"
SECRET: Final = "REFSTORE_SECRET_ACCESS_KEY"  # noqa: S105  # a variable's name

CreateBuckets = Annotated[
    bool, typer.Option("--s3-create-buckets", help="Let operators' S3 clients make and delete buckets.")
]
PruneStates = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL", help="Show the runs of `refstore prune` in this store, or its --state; may be repeated."
    ),
]

_log = event_log.get_logger(__name__)


@app.command("serve")
def serve(
    ctx: typer.Context,
    *,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Listen at this address; default: loopback.")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, metavar="PORT", help="Default: 8000. 0: any port that is free."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=256, metavar="N", help="Processes that answer; each counts wrong secrets for itself."),
    ] = None,
    tls_certificate: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Speak HTTPS with this certificate chain (PEM); SIGHUP reads it again."),
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="The key (PEM), without a password, if it is in another file.")
    ] = None,
    s3_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, metavar="PORT", help="Answer S3 clients at this port, too. 0: any free one."),
    ] = None,
    s3_create_buckets: CreateBuckets = False,
    prune_state: PruneStates = None,
    reaper: Annotated[bool, typer.Option("--reaper/--no-reaper", help="Run a reaper here as well.")] = True,
) -> None:
    """Serve the HTTP API, and run a reaper, until SIGTERM. Clients of lakeFS work with it.

    The first operator's access key comes from REFSTORE_ACCESS_KEY_ID and REFSTORE_SECRET_ACCESS_KEY in the environment.
    If the lake has no key at all, the command makes one and writes it to a file that only its owner can read; it prints
    the path. The file is in the data folder; if the stores are named by URL, in the user's state folder
    (XDG_STATE_HOME). `refstore keys` makes more keys.

    \b
    Example: refstore serve --data ./lake
             refstore serve --kv redis://127.0.0.1:6379/0 --objects s3://bucket/lake --workers 4 --no-reaper
             refstore serve --data ./lake --s3-port 9000      # s3://REPOSITORY/BRANCH/PATH: docs/s3.md
             refstore serve --tls-certificate chain.pem --tls-key key.pem      # after a renewal: kill -HUP
    """
    try:
        from refstore_api import server
        from refstore_http.tls import Certificate
    except ModuleNotFoundError as error:
        raise MissingExtra("api", "refstore serve") from error
    own = {"host": host, "port": port, "workers": workers, "tls_certificate": _pair_of(tls_certificate, tls_key)}
    others = {"s3.port": s3_port, "s3.create_buckets": s3_create_buckets or None, "api.prune_states": prune_state}
    override_settings(ctx, {**{f"api.{name}": value for name, value in own.items()}, **others})
    settings = settings_of(ctx, service=True)
    check_stores(settings)
    _check_public_url(settings)
    has_tls = Certificate.from_settings(settings.api) is not None
    with open_lake(ctx, create=True) as lake:
        _settle_keys(lake)
        key_id, secret = _see_to_first_key(lake, settings.data, os.environ)
    _check_s3(settings)
    warn_of_open_folders(settings)
    sockets = _listen(settings, server.bind_socket)
    _run(settings, sockets, lambda: _say_where(settings, sockets, key_id, secret, has_tls=has_tls), reaps=reaper)


def _settle_keys(lake: Lake) -> None:
    """Revoke again what a restore of the KV may have brought back."""
    from refstore.kv_recovery.kv_verification import have_servers_changed
    from refstore.kv_recovery.superseded_records import settle_superseded_keys

    if have_servers_changed(lake):
        settle_superseded_keys(lake)


def _pair_of(certificate: str | None, key: str | None) -> tuple[str, ...] | None:
    """Return the files of the setting `api.tls_certificate`; None: not given. Raises InvalidSettings."""
    if key is not None and certificate is None:
        raise InvalidSettings("--tls-key is given without --tls-certificate; give both")
    return tuple(file for file in (certificate, key) if file) or None


def _see_to_first_key(lake: Lake, data: Path | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the id of an access key that can be named to people, and where its secret is; '' where nothing is known.

    Make the operator's key of the environment. Without one, and if the lake has no key, write a new key into a file: a
    secret printed to standard error would stay in the system's journal, where others may read it.

    `data`: the embedded default's folder, which takes the file; None: the user's state folder. Raises InvalidSettings,
    Invalid.
    """
    key_id, secret = environ.get(KEY_ID, ""), environ.get(SECRET, "")
    if bool(key_id) != bool(secret):
        raise InvalidSettings(f"{KEY_ID} and {SECRET} must be given together; give both, or neither")
    if key_id:
        try:
            access_keys.ensure_key(lake, key_id, secret)
        except Conflict as error:  # the service goes on with its other keys; the old secret of a rotation stays ended
            typer.echo(f"refstore: warning: {KEY_ID} and {SECRET} open nothing: {error}", err=True)
        return key_id, f"${SECRET}"
    if not access_keys.has_any_key(lake.kv):
        place = _make_in_file(lake, data if data is not None else state_folder())
        typer.echo(f"The first access key, an operator's, is in {place}; keep it, and remove the file", err=True)
        return place.stem.removeprefix("first-access-key-"), f"the secret in {place}"
    return "", ""


def _make_in_file(lake: Lake, folder: Path) -> Path:
    """Make a key and return the file that holds it. The file is written first, because a lost secret would leave the
    lake with a useless key.
    """
    key_id, secret = access_keys.new_id(), access_keys.new_secret()
    place = folder / f"first-access-key-{key_id}.env"
    try:
        make_folder(folder)
        _write_private(place, f"{KEY_ID}={key_id}\n{SECRET}={secret}\n")
    except OSError as error:
        _remove(place)
        raise InvalidSettings(
            f"the first access key cannot be written to {place} ({error.strerror}); give it with {KEY_ID} and "
            f"{SECRET}, or name another folder with XDG_STATE_HOME"
        ) from error
    try:
        access_keys.create_key(
            lake, access_keys.Role.OPERATOR, id=key_id, secret=secret, description="made by the first refstore serve"
        )
    except BaseException:
        if access_keys.find_key(lake.kv, key_id) is None:
            _remove(place)
        raise
    return place


def _write_private(place: Path, text: str) -> None:
    """Write a new file with mode 0600, even in a folder that is shared by a group. Raises OSError, also if the file
    exists.
    """
    with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _remove(place: Path) -> None:
    with contextlib.suppress(
        OSError
    ):  # it is not there, or the folder is not; the name is random, so it is nobody else's
        place.unlink()


def _run(settings: Settings, sockets: _Sockets, on_started: Callable[[], None], *, reaps: bool) -> None:
    """Answer until SIGTERM, with a reaper beside the service if it is asked for."""
    from refstore_api import server

    answering = threading.Event()

    def report_start() -> None:
        answering.set()
        on_started()

    with contextlib.closing(sockets.api), _reaper_folder(settings, answering, reaps=reaps) as folder:
        if settings.api.workers > 1:
            _many(settings, sockets, folder, report_start)
            return
        server.serve_requests(settings, sockets.api, report_start, folder, _gateway(settings, sockets))


class _Sockets(NamedTuple):
    """What the processes of the service listen at."""

    api: socket.socket
    s3: socket.socket | None


def _listen(settings: Settings, bind: Callable[..., socket.socket]) -> _Sockets:
    bound, s3 = bind(settings.api.host, settings.api.port), settings.s3
    return _Sockets(bound, bind(settings.api.host, s3.port, "--s3-port") if s3.port >= 0 else None)


def _check_s3(settings: Settings) -> None:
    """Raises MissingExtra, InvalidSettings where the gateway is asked for and cannot work."""
    if settings.s3.port < 0:
        return
    try:
        from refstore_s3.s3_application import read_server_key
    except ModuleNotFoundError as error:
        raise MissingExtra("s3-gateway", "refstore serve --s3-port") from error
    read_server_key(settings)


def _gateway(settings: Settings, sockets: _Sockets) -> GatewayApplication | None:
    """Return the S3 gateway, if it is asked for."""
    from refstore_api.server import GatewayApplication

    if sockets.s3 is None:
        return None
    from refstore_s3.s3_application import make_application

    return GatewayApplication(sockets.s3, partial(make_application, settings))


@contextlib.contextmanager
def _reaper_folder(settings: Settings, answering: threading.Event, *, reaps: bool) -> Generator[Path | None]:
    """Run a reaper during the block, if it is asked for, and yield the folder to which it writes its metrics."""
    if not reaps:
        yield None
        return
    with (
        tempfile.TemporaryDirectory(prefix="refstore-serve-", ignore_cleanup_errors=True) as folder,
        _reaping(settings, Path(folder), answering),
    ):
        yield Path(folder)


def _address_of(listening: socket.socket, *, has_tls: bool) -> str:
    host, port = listening.getsockname()[:2]
    return f"http{'s' if has_tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"


def _say_where(settings: Settings, sockets: _Sockets, key_id: str, secret: str, *, has_tls: bool) -> None:
    """Say where the service answers, and what its clients need."""
    address = _address_of(sockets.api, has_tls=has_tls)
    typer.echo(f"refstore serves {address} (pages at /ui, API under /api/v1, documents at /docs)", err=True)
    typer.echo(
        "lakeFS's clients need:\n"
        f"  LAKECTL_SERVER_ENDPOINT_URL={settings.api.public_url or address}\n"
        f"  LAKECTL_CREDENTIALS_ACCESS_KEY_ID={key_id or '(an access key: refstore keys create)'}\n"
        f"  LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY={f'({secret})' if secret else '(its secret)'}",
        err=True,
    )
    if sockets.s3 is not None:
        typer.echo(f"S3 clients: {_address_of(sockets.s3, has_tls=has_tls)} (docs/s3.md)", err=True)


def check_stores(settings: Settings) -> None:
    """Raise InvalidSettings for stores that this service cannot serve, or other stores than the lake's."""
    if settings.kv.startswith("memory:") and settings.api.workers > 1:
        raise InvalidSettings("several workers cannot share a memory: KV; use one worker, or another KV")
    scheme = settings.objects.partition("://")[0]
    for url in settings.api.namespaces:
        if not url.startswith(f"{scheme}://"):
            raise InvalidSettings(
                f"api.namespaces has {url[:200]!r}, and the lake's objects are in {scheme}://; name folders of that "
                "store"
            )


def _check_public_url(settings: Settings) -> None:
    """Raise InvalidSettings where signed URLs would name whatever host a request's headers name: beyond loopback."""
    if not settings.api.public_url and not _is_loopback(settings.api.host):
        raise InvalidSettings(
            f"api.public_url is not set, and the service listens on {settings.api.host}, beyond loopback; say how "
            "clients reach it, for the URLs that it hands out: REFSTORE_API_PUBLIC_URL=https://lake.example.org"
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def _reaping(settings: Settings, folder: Path, answering: threading.Event) -> Generator[None, None, None]:
    """Run a reaper beside the service from when that is `answering`, and stop it after its current batch.

    It writes its metrics to `folder`, where every process that answers finds them.

    The reaper is a process of its own: as a thread it would hold Python's lock for milliseconds at a time, and each
    request would wait for it. Only with a KV that no other process sees it is a thread.
    """
    over = threading.Event()
    work = _reap if settings.kv.startswith("memory:") else keep_reaping

    def wait_and_work() -> None:
        answering.wait()  # both would start more slowly together
        if not over.is_set():
            work(settings, folder, over)

    thread = threading.Thread(target=wait_and_work, name="refstore-reaper")
    thread.start()
    try:
        yield
    finally:
        over.set()
        answering.set()
        thread.join()


def _reap(settings: Settings, folder: Path, over: threading.Event) -> None:
    from refstore.configuration import configured_lake
    from refstore_reaper.daemon import Reaper
    from refstore_reaper.reaper_metrics import FileMetrics

    with (
        configured_lake.open_lake(settings) as lake,  # the service has made it
        Reaper(lake, settings.reaper, metrics=FileMetrics(folder), reserve_bytes=settings.reaper.reserve) as reaper,
    ):
        reaper.run(over.is_set)


def keep_reaping(settings: Settings, folder: Path, over: threading.Event) -> None:
    """Keep a reaper running in a process of its own: if it ends, start another."""
    while not over.is_set():
        try:
            process = PythonProcess(_reaper, settings, folder)
        except OSError as error:  # no memory, or too many processes, for a moment: the service still needs a reaper
            _log.error("reaper_process_not_started", error=repr(error), restart_seconds=RESTART_SECONDS)
            over.wait(RESTART_SECONDS)
            continue
        while process.is_alive() and not over.wait(CHECK_SECONDS):
            pass
        if not over.is_set():
            _log.error("reaper_process_ended", exit_code=process.returncode, restart_seconds=RESTART_SECONDS)
            over.wait(RESTART_SECONDS)
        process.terminate()
        process.join(BATCH_SECONDS)
        process.kill()
        process.join()


def _reaper(settings: Settings, folder: Path) -> None:
    """Reap in a process of its own, at a low priority. It ends with the process that started it."""
    from refstore.configuration import logs
    from refstore_reaper.process_priority import NICE, lowered_priority

    over = threading.Event()

    def end(_number: int, _frame: object) -> None:
        over.set()

    signal.signal(signal.SIGTERM, end)
    # an interrupt typed at the terminal comes here too: the service says when to end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.configure_logs(settings.log, sys.stderr, service=True)
    when_parent_ends(over.set)
    with lowered_priority(NICE):
        try:
            _reap(settings, folder, over)
        except RefstoreError as error:  # the KV does not answer, or may lose records
            _log.error("reaper_could_not_begin", code=error.code, error=str(error))
            sys.exit(exit_code(type(error)))


def _worker(settings: Settings, sockets: _Sockets, folder: Path | None) -> None:
    """Answer requests, as one process of several. It ends with the process that started it, however that ended: nothing
    else would replace or stop it.
    """
    from refstore.configuration import logs
    from refstore_api import server

    logs.configure_logs(settings.log, sys.stderr, service=True)
    if settings.api.tls_certificate:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server runs: the certificate that it reads then is new
    when_parent_ends(partial(os.kill, os.getpid(), signal.SIGTERM))
    server.serve_requests(
        settings,
        sockets.api,
        reaper_metrics=folder,
        gateway=_gateway(settings, sockets),
    )


def _many(settings: Settings, sockets: _Sockets, folder: Path | None, started: Any) -> None:
    """Answer with several processes over one socket. One that dies is replaced; all end when this one is to end."""
    from refstore_api import server

    start = partial(PythonProcess, _worker, settings, sockets, folder)
    processes: list[PythonProcess] = []

    def reload(_number: int, _frame: object) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGHUP)

    with stopping() as over:
        # before the processes start: without a handler SIGHUP would end this one
        before = signal.signal(signal.SIGHUP, reload) if settings.api.tls_certificate else None
        processes.extend(start() for _ in range(settings.api.workers))
        started()
        try:
            while not over.wait(CHECK_SECONDS):
                processes = [process if process.is_alive() else start() for process in processes]
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.join(server.GRACE_SECONDS + 10)
            if before is not None:
                signal.signal(signal.SIGHUP, before)
