"""What is needed of the process that reads files: the store that it opens once, and what is said if it ends."""

from __future__ import annotations

import signal
from functools import lru_cache

from refstore.objects import open_objects
from refstore.objects.base import ObjectStore
from refstore_gc.engines import worker_processes


@lru_cache(maxsize=4)
def open_store(url: str, io_timeout_seconds: float) -> ObjectStore:
    return open_objects(url, io_timeout_seconds=io_timeout_seconds)


def crash_reason(error: worker_processes.CrashedError) -> str:
    """Say why an object stays, or was not looked at, whose reader ended."""
    code = error.exit_code or 0
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    return (
        f"the process that read or wrote it {how}, twice: a library crashed at it, or there is too little memory; see "
        "to it by other means"
    )
