"""The servers that are measured, each a process of its own: `refstore serve`, and the plainest Starlette that takes an
upload.

python -m bench.api_servers FOLDER     plain Starlette, writing bodies into the folder
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench import lakes
from bench.measure import on_processor
from bench.s3_requests import S3Target
from refstore.lake import open_lake_at
from refstore.service import s3_secrets

KEY_ID: Final = "bench"
STARTED: Final = "serves http://127.0.0.1:"
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 60.0


S3_STARTED: Final = "S3 clients: http://127.0.0.1:"
S3_SECRETS_KEY: Final = "the server key of this benchmark's own services"


class Server(NamedTuple):
    port: int
    authorization: str
    pid: int
    apart: bool
    """Whether it has a processor of its own, and so have its clients; else the kernel places them."""

    def cpu_seconds(self) -> float:
        """Of the process, so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def environ_of(settings: Mapping[str, object]) -> dict[str, str]:
    """As the environment names settings."""
    return {**os.environ, **{f"REFSTORE_{name.upper()}": str(value) for name, value in settings.items()}}


def reap(data: Path, *options: str, **settings: object) -> None:
    """`refstore reaper --once` on the embedded default. Raises CalledProcessError."""
    command = [sys.executable, "-m", "refstore", "reaper", "--once", *options, "--data", str(data)]
    subprocess.run(
        command, cwd=Path(__file__).parents[1], env=environ_of(settings), capture_output=True, timeout=600, check=True
    )


@contextmanager
def refstore(
    data: Path, logs: Path, *, reaper: bool = False, apart: bool = True, **settings: object
) -> Generator[Server, None, None]:
    """`refstore serve` with one worker on the embedded default, its log in a file. `settings`: as the environment names
    them.
    """
    options = ["--data", str(data), "--reaper" if reaper else "--no-reaper"]
    with _serving(options, logs, settings, apart=apart) as server:
        yield server


@contextmanager
def gateway(
    data: Path, logs: Path, *, apart: bool = True, objects: str = ""
) -> Generator[tuple[Server, S3Target], None, None]:
    """`refstore serve` with its S3 gateway: (the API, the gateway). `objects`: another object store than the folder."""
    secret = secrets.token_urlsafe(30)
    kv_url, objects_url = lakes.stores_in(data)
    options = ["--kv", kv_url, "--objects", objects, "--no-reaper"] if objects else ["--data", str(data), "--no-reaper"]
    with _serving(options, logs, {"s3_port": 0, "s3_secrets_key": S3_SECRETS_KEY}, apart=apart) as server:
        cipher = s3_secrets.read_cipher(S3_SECRETS_KEY, None)
        assert cipher is not None
        with open_lake_at(kv_url, objects or objects_url) as lake:
            s3_secrets.make_s3_secret(lake, cipher, KEY_ID, overlap_ms=0, secret=secret)
        yield server, S3Target(_said_port(logs, S3_STARTED), KEY_ID, secret, lakes.REPOSITORY, "main/")


@contextmanager
def _serving(
    options: list[str], logs: Path, settings: Mapping[str, object], *, apart: bool
) -> Generator[Server, None, None]:
    secret = secrets.token_urlsafe(30)
    environ = environ_of({**settings, "access_key_id": KEY_ID, "secret_access_key": secret})
    authorization = "Basic " + base64.b64encode(f"{KEY_ID}:{secret}".encode()).decode()
    command = [sys.executable, "-m", "refstore", "serve", "--port", "0", "--workers", "1", *options]
    with _running(command, environ, logs, apart) as (port, pid):
        yield Server(port, authorization, pid, apart)


@contextmanager
def limited(server_port: int, logs: Path, mib_per_second: float) -> Generator[int, None, None]:
    """The port of a proxy before a server; 0 MiB a second: without a limit."""
    command = [sys.executable, "-m", "bench.limited_proxy", str(server_port), str(mib_per_second)]
    with _running(command, dict(os.environ), logs, apart=False) as (port, _):
        yield port


@contextmanager
def plain(folder: Path, logs: Path) -> Generator[Server, None, None]:
    with _running([sys.executable, "-m", "bench.api_servers", str(folder)], dict(os.environ), logs, apart=True) as (
        port,
        pid,
    ):
        yield Server(port, "none", pid, apart=True)


@contextmanager
def prepared_pages(pages: Path, logs: Path) -> Generator[int, None, None]:
    """The port of a server that has a listing's pages in memory."""
    command = [sys.executable, "-m", "bench.prepared_pages", str(pages)]
    with _running(command, dict(os.environ), logs, apart=True) as (port, _):
        yield port


@contextmanager
def _running(
    command: list[str], environ: dict[str, str], logs: Path, apart: bool
) -> Generator[tuple[int, int], None, None]:
    """(port, process id) of a server that says on standard error where it listens."""
    with logs.open("wb") as log, on_processor(0 if apart else None):
        process = subprocess.Popen(
            command, cwd=Path(__file__).parents[1], env=environ, stdin=subprocess.DEVNULL, stderr=log
        )
    try:
        yield _port(process, logs), process.pid
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(process: subprocess.Popen[bytes], logs: Path) -> int:
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until and process.poll() is None:
        _, found, rest = logs.read_text(errors="replace").partition(STARTED)
        if found and "\n" in rest:
            return int(rest.split()[0])
        time.sleep(0.05)
    raise RuntimeError(f"the server {process.args!r} did not start: {logs.read_text(errors='replace')[-4000:]}")


def _said_port(logs: Path, said: str) -> int:
    """The port that the service says behind the one of its API."""
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until:
        _, found, rest = logs.read_text(errors="replace").partition(said)
        if found and "\n" in rest:
            return int(rest.split()[0])
        time.sleep(0.02)
    raise RuntimeError(f"the service has no S3 port: {logs.read_text(errors='replace')[-4000:]}")


def serve_plain(folder: Path) -> None:
    """What a tutorial shows: each chunk is written as it comes. On the same uvicorn, with the same event loop and
    parser.
    """
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import FileResponse, Response
    from starlette.routing import Route

    async def upload(request: Request) -> Response:
        with (folder / secrets.token_hex(16)).open("wb") as file:
            async for chunk in request.stream():
                file.write(chunk)
        return Response(status_code=201)

    async def hash_upload(request: Request) -> Response:
        """The same, with the two hashes that clients and merges compare."""
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        with (folder / secrets.token_hex(16)).open("wb") as file:
            async for chunk in request.stream():
                sha256.update(chunk)
                md5.update(chunk)
                file.write(chunk)
        return Response(sha256.hexdigest() + md5.hexdigest(), status_code=201)

    async def read(request: Request) -> FileResponse:
        return FileResponse(folder / request.path_params["name"])

    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"plain Starlette {STARTED}{listening.getsockname()[1]}", file=sys.stderr, flush=True)
    app = Starlette(
        routes=[
            Route("/upload", upload, methods=["POST"]),
            Route("/hashed", hash_upload, methods=["POST"]),
            Route("/files/{name}", read),
        ]
    )
    uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).run(sockets=[listening])


if __name__ == "__main__":
    serve_plain(Path(sys.argv[1]))
