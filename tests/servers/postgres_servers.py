"""Real PostgreSQL servers on loopback, from Debian's package, started and stopped by the tests.

    with PostgresServer() as server:
        open_kv(server.url)

The server refuses to run as root, and pytest's folders are root's own. So where root runs the tests, each server runs
as the user that Debian's package made, in a temporary folder of that user. It listens on a free port of loopback
only, and ends with its `with` block. As a pytest plugin this gives `postgres_url`: one server for a session (each
worker of pytest-xdist has its own). Tests keep apart by partitions that are unique.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import psycopg
import psycopg.conninfo
import pytest

from tests.servers.redis_servers import free_port, until
from tests.servers.starting import START_ATTEMPTS, RestartedServer, ServerEndedError

USER = "postgres"
"""The superuser of the database, and the system's user that runs the server for root."""


def postgres_folder() -> Path:
    """Return the folder of the newest server's programs. Skips the test where there is none (`make setup-system`)."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        pytest.skip("PostgreSQL is not installed; run `make setup-system`")
    return found[-1].parent


def as_server_user() -> dict[str, Any]:
    """Return the arguments of `subprocess.run` that let a server run as a user without rights."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam(USER)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


class PostgresServer(RestartedServer):
    """One cluster of databases and its server.

    `options`: settings such as `fsync=off`, last.
    """

    def __init__(self, *, options: Sequence[str] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="refstore-postgres-"))
        self.programs = postgres_folder()
        self.options = tuple(options)
        self.port = free_port()
        self._port_is_given = False

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def url(self) -> str:
        return self.url_of(USER)

    def url_of(self, user: str, database: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def client(self) -> psycopg.Connection[Any]:
        """For tests and set-up only: an own connection."""
        return psycopg.connect(self.url, autocommit=True, connect_timeout=20)

    def run(self, *statements: str) -> list[Any]:
        """Run statements, and return the rows of the last one."""
        with contextlib.closing(self.client()) as client:
            for statement in statements:
                cursor = client.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def make(self) -> None:
        """Make the cluster. Every user of loopback may log in to it as anybody."""
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER, USER)
        self._run_program(
            "initdb", "-D", str(self.data), "-U", USER, "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"
        )

    @classmethod
    def standby_of(cls, server: PostgresServer) -> PostgresServer:
        """Return a new standby of the server, which is started by its `with` block."""
        standby = cls()
        standby.copy_from(server)
        return standby

    def call(self, program: str, *arguments: str) -> None:
        """Run one of the client programs against the server."""
        self._run_program(program, f"--dbname={self.url}", *arguments)

    def copy_from(self, server: Self) -> None:
        """Replace the data by a copy of the server's, which becomes its standby."""
        shutil.rmtree(self.data, ignore_errors=True)
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER, USER)
        self._run_program(
            "pg_basebackup",
            f"--dbname={server.url}",
            f"--pgdata={self.data}",
            "--write-recovery-conf",
            "--checkpoint=fast",
            "--no-sync",
        )

    def remove(self) -> None:
        """End it, and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self) -> list[str]:
        settings = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=32MB", *self.options)
        flags = [word for setting in settings for word in ("-c", setting)]
        return [str(self.programs / "postgres"), "-D", str(self.data), "-p", str(self.port), *flags]

    def start(self) -> Self:
        """Raises TimeoutError, or RuntimeError with the end of the log."""
        if not self.data.exists():
            self.make()
        for attempt in range(1, START_ATTEMPTS + 1):
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    self.command(),
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    cwd=self.folder,
                    **as_server_user(),
                )
            try:
                until(self._answers, f"the server on port {self.port}")
            except ServerEndedError:
                self._process.wait()
                self._process = None
                if self._port_is_given or attempt == START_ATTEMPTS:
                    raise RuntimeError(
                        f"PostgreSQL did not start; its log ends:\n{self.log.read_text(errors='replace')[-2000:]}"
                    ) from None
                self.port = free_port()
            except BaseException:
                self.kill()
                raise
            else:
                self._port_is_given = True  # a restart is found where the server was
                return self
        raise AssertionError("the last attempt returns or raises")

    def stop(self) -> None:
        """End it in an orderly way at once ("fast": connections are ended). Stopping what does not run is fine."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it as a crash would: the processes of its connections end without a last word ("immediate")."""
        self._end(signal.SIGQUIT)

    def backend_pids(self) -> list[int]:
        """Return the processes of the server, each of which may be stopped or killed."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def pause(self) -> None:
        """SIGSTOP to all its processes: connections stay open, nothing answers."""
        for pid in self.backend_pids():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in reversed(self.backend_pids()):
            os.kill(pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ServerEndedError
        try:
            self.client().close()
        except psycopg.OperationalError as error:
            raise ConnectionError(str(error)) from error
        return True

    def _run_program(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, check=False, **as_server_user())
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr.decode(errors='replace')[-2000:]}")

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.resume()
        self._process = None
        process.send_signal(how)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class PgBouncer:
    """A pooler in transaction mode in front of the server of a URL, with fewer connections than its clients have."""

    def __init__(self, url: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="refstore-pgbouncer-"))
        self.port = free_port()
        self._url = url
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Self:
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            pytest.skip("PgBouncer is not installed; run `make setup-system`")
        settings = self.folder / "pgbouncer.ini"
        self._write_settings(self._url)
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER, USER)
            shutil.chown(settings, USER, USER)
        with (self.folder / "log").open("ab") as log:
            command = [program, str(settings)]
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **as_server_user()
            )
        try:
            until(self._answers, f"PgBouncer on port {self.port}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def redirect(self, url: str) -> None:
        """Use another server from now on, as an operator lets it who has promoted that one."""
        self._write_settings(url)
        assert self._process is not None, "it is not running"
        self._process.send_signal(signal.SIGHUP)

    def _write_settings(self, url: str) -> None:
        server = psycopg.conninfo.conninfo_to_dict(url)
        (self.folder / "pgbouncer.ini").write_text(
            f"[databases]\npostgres = host={server['host']} port={server['port']} dbname={server['dbname']} "
            f"user={USER}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            "auth_type = any\npool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 200\n"
            "server_login_retry = 1\n"
        )

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError as error:
            raise ConnectionError(str(error)) from error
        return True


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with PostgresServer(options=("fsync=off", "max_connections=200")) as server:
        yield server.url
