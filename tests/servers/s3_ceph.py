"""Ceph RGW, the real S3 server: one monitor, one OSD and one gateway, started in a directory of their own.

    with CephRgw(Path("/tmp/rgw")) as server:
        print(server.endpoint)

The daemons run in the foreground as children, and the kernel kills them when the thread that started them is gone (so
start them from the main thread): a killed test run leaves nothing behind. `python -m tests.servers.s3_ceph DIR PID`
keeps a gateway for several test processes until the process PID ends.
"""

from __future__ import annotations

# ruff: noqa: S310  # the URLs are those of servers started here
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.servers.s3_base import ACCESS_KEY, SECRET_KEY, S3Server, free_port
from tests.servers.starting import ServerEndedError

PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "ceph-authtool", "monmaptool", "setpriv")
INSTALL = "apt-get install --no-install-recommends radosgw ceph-mon ceph-osd"
READY_SECONDS_MAX = 120.0

# a monitor would end by itself where less than `mon data avail crit` percent of the disk are free
_CONFIGURATION = """\
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{mon2},v1:127.0.0.1:{mon1}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
keyring = {root}/keyring
auth allow insecure global id reclaim = false
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd crush chooseleaf type = 0
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
mon max pg per osd = 1000
mon data avail crit = -1
mon data avail warn = -1
log file = {root}/log/$name.log
log to stderr = false
admin socket = {root}/run/$name.asok
pid file = {root}/run/$name.pid
run dir = {root}/run
crash dir = {root}/run
mon data = {root}/mon
osd data = {root}/osd
osd objectstore = {objectstore}
memstore device bytes = 4G
bluestore block size = 10G
bluestore fsck on mount = false
osd class load list = *
osd class default list = *
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw data = {root}/rgw
rgw lc debug interval = {lifecycle_day_seconds}
rgw enable usage log = false
rgw enable ops log = false
rgw thread pool size = 64
"""


class CephRgw(S3Server):
    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        objectstore: str = "memstore",
        lifecycle_day_seconds: int = -1,
    ) -> None:
        """`objectstore` is memstore, or bluestore, which survives a kill; `lifecycle_day_seconds` makes days short."""
        super().__init__(port)
        self._root = directory.absolute()
        self._objectstore = objectstore
        self._lifecycle_day_seconds = lifecycle_day_seconds
        self._daemons: list[subprocess.Popen[bytes]] = []

    @staticmethod
    def missing() -> list[str]:
        """The programs that are not installed; with none missing it can be started."""
        return [program for program in PROGRAMS if shutil.which(program) is None]

    def stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        shutil.rmtree(self._root, ignore_errors=True)

    def _launch(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
        for name in ("mon", "osd", "run", "log", "rgw"):
            (self._root / name).mkdir(parents=True)
        fsid, mon2, mon1 = str(uuid.uuid4()), free_port(), free_port()
        (self._root / "ceph.conf").write_text(
            _CONFIGURATION.format(
                root=self._root,
                fsid=fsid,
                mon1=mon1,
                mon2=mon2,
                port=self.port,
                objectstore=self._objectstore,
                lifecycle_day_seconds=self._lifecycle_day_seconds,
            )
        )
        keyring = str(self._root / "keyring")
        self._run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        for name, mon_caps in (("client.admin", "allow *"), ("client.rgw", "allow *"), ("osd.0", "allow profile osd")):
            self._run(
                "ceph-authtool", keyring, "--gen-key", "-n", name, "--cap", "mon", mon_caps, "--cap", "osd", "allow *"
            )
        monmap = str(self._root / "monmap")
        self._run(
            "monmaptool",
            "--create",
            "--fsid",
            fsid,
            "--addv",
            "a",
            f"[v2:127.0.0.1:{mon2},v1:127.0.0.1:{mon1}]",
            monmap,
        )
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
        self._spawn("ceph-mon", "-f", "-i", "a")
        self._run("ceph", "osd", "create")
        self._run("ceph-osd", "-i", "0", "--mkfs")
        self._run("ceph", "osd", "crush", "add-bucket", "h", "host")
        self._run("ceph", "osd", "crush", "move", "h", "root=default")
        self._run("ceph", "osd", "crush", "add", "osd.0", "1.0", "host=h")
        self._spawn("ceph-osd", "-f", "-i", "0")
        self._spawn("radosgw", "-f", "-n", "client.rgw")
        self._wait_until(self._answers, "Ceph RGW")
        self._run(
            "radosgw-admin", "-n", "client.rgw", "user", "create", "--uid=t", "--display-name=t",
            f"--access-key={ACCESS_KEY}", f"--secret-key={SECRET_KEY}",
        )  # fmt: skip

    def _run(self, *command: str) -> None:
        if command[0] not in ("ceph-authtool", "monmaptool"):
            command = (*command, "-c", str(self._root / "ceph.conf"))
        told = self._root / "log" / "command.out"
        with told.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
            try:
                self._wait_until(lambda: process.poll() is not None, f"{command[0]} {command[1]}")
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise RuntimeError(
                f"{' '.join(command)} ended with {process.returncode}: {told.read_text(errors='replace')[-2000:]}"
            )

    def _spawn(self, *command: str) -> None:
        with (self._root / "log" / f"{command[0]}.out").open("wb") as out:
            self._daemons.append(
                subprocess.Popen(
                    ("setpriv", "--pdeathsig", "KILL", *command, "-c", str(self._root / "ceph.conf")),
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                )
            )  # fmt: skip

    def _wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait while all daemons run: a command that asks one that has ended would wait for ever.

        Raises ServerEndedError, RuntimeError.
        """
        until = time.monotonic() + READY_SECONDS_MAX
        while True:
            ended = [daemon for daemon in self._daemons if daemon.poll() is not None]
            if ended:
                logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in (self._root / "log").iterdir())
                raise ServerEndedError(f"{ended[0].args} ended with {ended[0].returncode}:\n{logs}")
            if ready():
                return
            if time.monotonic() > until:
                raise RuntimeError(f"{what} was not ready after {READY_SECONDS_MAX:g} s; see {self._root}/log")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with urlopen(self.endpoint, timeout=5):
                return True
        except (URLError, OSError):
            return False


def keep(directory: Path, watched_pid: int) -> None:
    """Run a gateway until `watched_pid` ends or SIGTERM comes, telling `directory/state.json` how to reach it."""
    watched = os.pidfd_open(watched_pid)
    told_to_stop, stop = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(stop, b"."))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C at the terminal is for the test run, which then ends this
    state: dict[str, object] = {}
    server = CephRgw(directory / "ceph")
    try:
        try:
            server.start()
            state = {"port": server.port}
        except Exception as error:  # whoever waits for the state must hear of it, whatever it is
            state = {"error": repr(error)}
            raise
        finally:
            (directory / "state.new").write_text(json.dumps(state))
            (directory / "state.new").rename(directory / "state.json")
        select.select([watched, told_to_stop], [], [])
    finally:
        server.stop()
        if select.select([watched], [], [], 0)[0]:  # it was killed: nobody else is there to clean up
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]))
