"""Batches that wait for their bucket: in memory up to a bound, and beyond it in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

from refstore.errors import Unavailable
from refstore_gc.address_batches import Batch, BatchKind
from refstore_gc.private_folder import make_private_folder

FOLDER_PREFIX: Final = "refstore-gc-"


class SpilledBatch(NamedTuple):
    """A batch whose body is a part of a file."""

    bucket: int
    kind: BatchKind
    file: str
    start: int
    size_bytes: int


WaitingBatch = Batch | SpilledBatch


def load_batches(batches: list[WaitingBatch]) -> list[Batch]:
    """Return batches with their bodies."""
    stored = {each.file for each in batches if isinstance(each, SpilledBatch)}
    with ExitStack() as stack:
        files = {name: stack.enter_context(Path(name).open("rb")) for name in stored}
        return [_read(files[each.file], each) if isinstance(each, SpilledBatch) else each for each in batches]


def _read(file: IO[bytes], stored: SpilledBatch) -> Batch:
    file.seek(stored.start)
    return Batch(stored.bucket, stored.kind, file.read(stored.size_bytes))


@contextmanager
def translate_disk_errors(parent: Path | None) -> Generator[None, None, None]:
    """Raise what fails in a spill folder as Unavailable."""
    try:
        yield
    except OSError as error:
        folder = parent or Path(tempfile.gettempdir())
        raise Unavailable(
            f"the offline job could not write to its spill folder {folder} ({error.strerror or error}); make room "
            "there, or set TMPDIR, and run it again"
        ) from error


class BatchSpill:
    """Gathers batches by bucket. Its file goes when it is closed."""

    def __init__(self, parent: Path | None, memory_bytes: int) -> None:
        """`parent`: where a folder is made for what exceeds `memory_bytes`; None: in the system's folder for temporary
        files.
        """
        self._parent = parent
        self._memory_bytes = memory_bytes
        self._in_memory_bytes = 0
        self._buckets: dict[int, list[WaitingBatch]] = {}
        self._opened = ExitStack()
        self._file: IO[bytes] | None = None

    def add(self, batch: Batch) -> None:
        """Raises Unavailable: there is no room in the folder, or it cannot be written."""
        self._buckets.setdefault(batch.bucket, []).append(batch)
        self._in_memory_bytes += len(batch.body)
        if self._in_memory_bytes > self._memory_bytes:
            with translate_disk_errors(self._parent):
                self._write_out()

    def buckets(self) -> list[list[WaitingBatch]]:
        """Return the batches of each bucket that has some, in order of the buckets."""
        return [self._buckets[number] for number in sorted(self._buckets)]

    def close(self) -> None:
        self._opened.close()

    def _write_out(self) -> None:
        if self._file is None:
            folder = self._opened.enter_context(make_private_folder(FOLDER_PREFIX, self._parent))
            self._file = (folder / "batches").open("wb")
            self._opened.callback(_close, self._file)
        for batches in self._buckets.values():
            for place, batch in enumerate(batches):
                if isinstance(batch, Batch):
                    start = self._file.tell()
                    self._file.write(batch.body)
                    size_bytes = len(batch.body)
                    batches[place] = SpilledBatch(batch.bucket, batch.kind, self._file.name, start, size_bytes)
        self._file.flush()
        self._in_memory_bytes = 0


def _close(file: IO[bytes]) -> None:
    with suppress(OSError):  # on a full disk it cannot write the rest, which nobody needs any more
        file.close()
