"""The `refstore` command for tests: in this process, fast, on a lake of its own; or as a real process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from refstore import cli


class Ran(NamedTuple):
    code: int
    out_bytes: bytes
    err: str

    @property
    def out(self) -> str:
        return self.out_bytes.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out_bytes)

    @property
    def error(self) -> Any:
        """The error as `--json` prints it, on standard error."""
        return json.loads(self.err.splitlines()[-1])


class Command:
    """`refstore(...)` runs in this process, `refstore.process(...)` as a process; both on the same lake."""

    def __init__(self, capture: pytest.CaptureFixture[bytes], patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._capture = capture
        self._patch = patch
        self.folder = folder

    def __call__(self, *args: str | Path, stdin: bytes = b"") -> Ran:
        with self._patch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            self._capture.readouterr()
            code = cli.run([str(arg) for arg in args])
        out, err = self._capture.readouterr()
        return Ran(code, out, err.decode())

    def ok(self, *args: str | Path, stdin: bytes = b"") -> Ran:
        ran = self(*args, stdin=stdin)
        assert ran.code == 0, ran.err
        return ran

    def json(self, *args: str | Path, stdin: bytes = b"") -> Any:
        return self.ok(*args, "--json", stdin=stdin).json

    def process(self, *args: str | Path, stdin: bytes = b"") -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "refstore", *(str(arg) for arg in args)],
            input=stdin,
            capture_output=True,
            check=False,
            env=dict(os.environ),
            cwd=self.folder,
        )
        return Ran(done.returncode, done.stdout, done.stderr.decode())


def paths(answer: list[dict[str, object]]) -> list[object]:
    """Return the paths that a listing names."""
    return [row["path"] for row in answer]


@pytest.fixture
def refstore(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """The command, in an empty folder, on a lake below it that does not exist yet."""
    for name in [name for name in os.environ if name.startswith("REFSTORE_")]:
        monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("REFSTORE_DATA", str(tmp_path / "lake"))
    monkeypatch.setenv("REFSTORE_REAPER_RESERVE", "0")
    monkeypatch.chdir(tmp_path)
    return Command(capfdbinary, monkeypatch, tmp_path)


@pytest.fixture
def sales(refstore: Command) -> Command:
    """The command, with a repository `sales`."""
    refstore.ok("repo", "create", "sales")
    return refstore
