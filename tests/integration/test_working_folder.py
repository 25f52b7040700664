"""No command runs code, or takes a setting, from the working folder: whatever was downloaded may lie there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from refstore import cli
from refstore.core.child_processes import PythonProcess
from refstore.core.event_log import ROOTS
from tests.durations import AT_ONCE, set_agreed

SECONDS = 300.0
REFSTORE = Path(sys.executable).with_name("refstore")
MODULES = {*sys.stdlib_module_names, *packages_distributions(), *ROOTS, "sitecustomize", "usercustomize"}
SCRIPTS = ("java", "spark-submit", "conf/spark-env.sh", "spark-env.sh")
FILES = {
    "refstore.toml": "no-such-setting = 1\n",
    "conf/spark-defaults.conf": "spark.master spark://nowhere:1\n",
    "spark-defaults.conf": "spark.master spark://nowhere:1\n",
}
ORPHANS = 600
"""As many as the reaper leaves to its worker."""

LINK = ("link", "sales", "dev", "issued", "--token", "none")
RESTORE = ("restore", "sales", "ids/ids.csv", "--to", "main")
MAY_REFUSE = (LINK, RESTORE, ("doctor",))


class WorkingFolder:
    """A folder with hostile files, in which commands are run on a lake elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "hostile"
        self.marks = folder / "marks"
        self.data = folder / "data"
        self.path.mkdir()
        self.marks.mkdir()
        self.data.mkdir()
        for module in MODULES:
            (self.path / f"{module}.py").write_text(f"open({str(self.marks / module)!r}, 'a').close()\n")
        (self.path / "conf").mkdir()
        for script in SCRIPTS:
            (self.path / script).write_text(f"#!/bin/sh\n: > {self.marks}/script\n")
            (self.path / script).chmod(0o755)
        for name, text in FILES.items():
            (self.path / name).write_text(text)
        self.lake = folder / "lake"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("REFSTORE_")} | {
            "REFSTORE_DATA": str(self.lake),
            "REFSTORE_REAPER_RESERVE": "0",
            "REFSTORE_IMPORT_FROM": self.data.as_uri() + "/",
            "HOME": str(folder / "home"),
        }

    def start(self, *arguments: str, output: Any = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [REFSTORE, *arguments],
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
        )

    def run(self, *arguments: str) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=SECONDS)
        self.check(arguments)
        assert process.returncode == 0 or arguments in MAY_REFUSE, err
        assert "Traceback" not in err
        return out

    def serve(self, until: Callable[[str], bool], *arguments: str) -> None:
        """Run the service until its log says what is waited for."""
        log = self.marks.with_name("service.log")
        with log.open("w") as output:
            process = self.start(*arguments, output=output)
        try:
            end = time.monotonic() + SECONDS
            while not until(log.read_text()):
                self.check(arguments)
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.05)  # for another process, which has no clock of ours
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()
        assert "Traceback" not in log.read_text()
        self.check(arguments)

    def wait_for_nobody(self) -> None:
        """Let the offline job begin at once."""
        set_agreed(f"sqlite://{self.lake}/kv.sqlite", AT_ONCE)

    def check(self, what: object) -> None:
        assert not (ran := sorted(mark.name for mark in self.marks.iterdir())), (
            f"{what} ran {ran} of the working folder"
        )


@pytest.fixture
def working_folder(tmp_path: Path) -> WorkingFolder:
    return WorkingFolder(tmp_path)


def says(*events: str) -> Callable[[str], bool]:
    """Return whether a log has each of these texts."""
    return lambda log: all(log.count(event) >= events.count(event) for event in events)


def test_a_process_of_the_product(working_folder: WorkingFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if this one looks in the working folder itself, as `python -c`, a shell and a notebook do."""
    monkeypatch.chdir(working_folder.path)
    monkeypatch.syspath_prepend("")
    assert PythonProcess(json.dumps, [1]).wait(SECONDS) == 0
    working_folder.check("a process")


@pytest.mark.slow
def test_every_command(working_folder: WorkingFolder) -> None:
    data, run = str(working_folder.data), working_folder.run
    for number in range(ORPHANS):
        (working_folder.data / f"{number:03}").write_text("x")
    (working_folder.data / "ids.csv").write_text("id\n1\n")
    (working_folder.data / "rules.json").write_text('{"default_retention_days": 30}')
    (working_folder.data / "purge.json").write_text(
        json.dumps(
            {
                "whitelist": ["*"],
                "datasets": [{"name": "ids", "prefix": "ids/", "format": "csv", "identifier": "id", "mode": "rewrite"}],
            }
        )
    )
    commands: list[tuple[str, ...]] = [
        ("repo", "create", "sales", "--grace", "0"),
        ("upload", "-r", "sales", "main", data, "d/"),
        ("reset", "sales", "main", "--yes"),
        ("reaper", "--once"),
        ("upload", "sales", "main", f"{data}/ids.csv", "ids/ids.csv"),
        ("commit", "sales", "main", "-m", "ids"),
        ("status", "sales"),
        ("branch", "create", "sales", "dev"),
        ("tag", "create", "sales", "v1", "--from", "main"),
        ("ls", "sales", "main"),
        ("stat", "sales", "main", "ids/ids.csv"),
        ("ls", "--summarize", "sales", "main"),
        ("cat", "sales", "main", "ids/ids.csv"),
        ("download", "-r", "sales", "main", "ids/"),
        ("cp", "sales", "main", "ids/ids.csv", "--to", "dev", "--as", "ids/copy.csv"),
        ("mv", "sales", "dev", "ids/copy.csv", "--as", "ids/moved.csv"),
        ("commit", "sales", "dev", "-m", "moved"),
        ("import", "sales", "dev", data, "raw/", "-m", "raw"),
        ("import", "--stage", "sales", "dev", f"{working_folder.data.as_uri()}/001", "one", "--size", "1"),
        ("rm", "sales", "dev", "one"),
        ("reset", "sales", "dev", "--yes"),
        ("issue", "sales", "dev", "issued", "--json"),
        LINK,
        ("log", "sales", "main"),
        ("show", "sales", "main"),
        ("diff", "sales", "main", "--to", "dev"),
        ("upload", "sales", "main", f"{data}/001", "b"),
        ("commit", "sales", "main", "-m", "b"),
        ("cherry-pick", "sales", "main", "--onto", "dev"),
        ("revert", "sales", "main", "--on", "main"),
        ("merge", "sales", "dev", "--into", "main"),
        ("trash", "sales"),
        RESTORE,
        ("retention", "set", "sales", f"{data}/rules.json"),
        ("purge", "onboard", "sales", f"{data}/purge.json"),
        ("purge", "run", "sales", "--ids", f"{data}/ids.csv", "--yes"),
        ("purge", "verify", "sales", "--ids", f"{data}/ids.csv"),
        ("why", "sales", "main/ids/ids.csv"),
        ("prune", "run", data, "--names", "exec:echo 001", "--dry-run"),
        ("keys", "list"),
        ("kv", "verify"),
        ("audit", "verify"),
        ("config", "--agreed"),
        ("config",),
        ("doctor",),
        ("completion", "bash"),
    ]
    services = {
        ("serve", "--port", "0"): says("refstore serves", '"reaper_started"'),
        ("serve", "--port", "0", "--workers", "2"): says("refstore serves", '"reaper_started"'),
    }
    nightly = [("expire", "--all"), ("gc", "run", "--all")]
    assert {command[0] for command in [*commands, *services, *nightly]} == {*cli.COMMANDS}
    for command in commands:
        run(*command)
    for command, until in services.items():
        working_folder.serve(until, *command)
    working_folder.wait_for_nobody()
    for command in nightly:
        run(*command)


@pytest.mark.slow
@pytest.mark.xdist_group("spark-processes")
def test_spark(working_folder: WorkingFolder) -> None:
    """Java starts Python by itself, and has files of its own to look for."""
    working_folder.run("repo", "create", "sales")
    working_folder.run("upload", "sales", "main", str(working_folder.data / "../hostile/refstore.toml"), "a")
    working_folder.run("commit", "sales", "main", "-m", "one")
    working_folder.wait_for_nobody()
    answer = working_folder.run("gc", "run", "--only", "mark", "--all", "--engine", "spark", "--json")
    assert len(json.loads(answer)["runs"]) == 1
