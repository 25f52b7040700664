"""The demo's processes are ended whenever the demo is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.demo.processes import Processes


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_process_is_ended_that_was_just_started_when_the_demo_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: signal.Signals
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, _command: object, **more: Any) -> None:
            super().__init__([sys.executable, "-c", "import time; time.sleep(120)"], **more)
            started.append(self)
            signal.raise_signal(by)

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(by, interrupt)
    try:
        monkeypatch.setattr(subprocess, "Popen", Interrupted)
        with pytest.raises(KeyboardInterrupt), Processes(tmp_path, dict(os.environ)) as processes:
            processes.start("reaper", "refstore", "reaper")
        assert signal.getsignal(by) is interrupt
    finally:
        signal.signal(by, before)
    (process,) = started
    try:
        assert process.returncode == -signal.SIGTERM, "it was ended, and waited for"
    finally:
        process.kill()
        process.wait()
