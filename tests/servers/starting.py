"""What the servers of the tests have in common as they start."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from typing import Self

START_ATTEMPTS = 5
"""Between finding a free port and binding it, somebody else may take it."""


class ServerEndedError(RuntimeError):
    """A process of the server ended before it answered, as one does whose port another program took."""


class RestartedServer(ABC):
    """A server that is one process of ours, and keeps its port and its data when it is started again."""

    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def stop(self) -> None:
        """End it in an orderly way. Stopping what does not run is fine."""

    @abstractmethod
    def kill(self) -> None:
        """End it as a crash would."""

    def restart(self, *, kill: bool = False) -> None:
        self.kill() if kill else self.stop()
        self.start()
