"""A file that pyarrow and others who are given it do not close."""

from __future__ import annotations

from typing import Any, BinaryIO


class UnclosedFile:
    """Passes everything on to a file, but `close`."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None: ...
