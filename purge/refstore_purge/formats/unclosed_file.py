"""Files that pyarrow and others who are given them do not close; and a part of a file as a file."""

from __future__ import annotations

import os
from typing import Any, BinaryIO


class UnclosedFile:
    """Passes everything on to a file, but `close`."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None: ...


class FileEnd(UnclosedFile):
    """A file that begins where another one ended when this was made, and is that one from there on."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._start = file.seek(0, os.SEEK_END)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset + self._start if whence == os.SEEK_SET else offset, whence) - self._start

    def tell(self) -> int:
        return self._file.tell() - self._start
