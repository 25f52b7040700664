"""A real standalone cluster on loopback: a master and two workers of one core each, from the pip package alone."""

from __future__ import annotations

# the URL is that of the master started here
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.servers.s3_base import free_port

READY_SECONDS_MAX = 90.0


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.page = free_port(), free_port()
        self.workers: list[subprocess.Popen[bytes]] = []
        self._master: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._master = self._class(
            "master",
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--webui-port",
            str(self.page),
        )
        for number in (1, 2):
            self.workers.append(
                self._class(
                    f"worker-{number}", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1",
                    "--memory", "1g",
                    "--webui-port", str(free_port()), "--work-dir", str(self.folder / f"work-{number}"), self.url,
                )
            )  # fmt: skip
        until = time.monotonic() + READY_SECONDS_MAX
        while self._alive() < 2:
            if time.monotonic() > until:
                raise RuntimeError(f"the cluster did not start: {(self.folder / 'master.log').read_text()[-2000:]}")
            time.sleep(0.1)

    def kill_worker(self, number: int) -> None:
        """The worker and its executors, at once."""
        _kill(self.workers[number].pid)
        self.workers[number].wait()

    def stop(self) -> None:
        for process in (*self.workers, self._master):
            if process is not None and process.poll() is None:
                _kill(process.pid)
                process.wait()

    def _alive(self) -> int:
        with (
            contextlib.suppress(URLError, OSError, ValueError),
            urlopen(f"http://127.0.0.1:{self.page}/json/", timeout=5) as answer,
        ):
            return int(json.load(answer)["aliveworkers"])
        return 0

    def _class(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "PYSPARK_PYTHON": sys.executable,
        }
        dies_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with (self.folder / f"{name}.log").open("wb") as out:
            return subprocess.Popen(
                [*dies_with_us, str(home / "bin" / "spark-class"), *command],
                env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    folder.mkdir(parents=True, exist_ok=True)
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def _kill(pid: int) -> None:
    """A process that was started here, and its children."""
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()
    ]
    for child in children:
        _kill(child)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
