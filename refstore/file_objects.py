"""Objects as Python's files: what `Repository.open` returns.

A file that is read is the one object that its path had when it was opened; a later upload there is another one. A file
that is written is one upload, made when it is closed. Where an error came in between, nothing is uploaded.

Those who take files know the errors of the operating system only. So here, and in the fsspec filesystem, refstore's
errors become FileNotFoundError, FileExistsError and PermissionError; the others stay what they are.
"""

from __future__ import annotations

import errno
import io
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, Final, cast

from refstore.context import Context
from refstore.core import deadline
from refstore.core.ids import Path
from refstore.errors import (
    AlreadyExists,
    ForeignNotAllowed,
    Gone,
    KVRefused,
    LakeReadOnly,
    NotFound,
    ObjectsRefused,
)
from refstore.objects.stored_file import ReadAheadFile
from refstore.operations import read, refs

BUFFER_BYTES: Final = 64 * 1024
"""Small against the column of a row group, as about that much is read at each place in vain."""
SPOOL_BYTES: Final = 8 * 1024 * 1024
"""What is larger waits for its upload in a file of the temporary directory."""


@contextmanager
def translate_errors(name: str) -> Generator[None, None, None]:
    """Raise the error of the operating system that says the same as refstore's. `name`: of the file."""
    try:
        yield
    except (NotFound, Gone) as error:
        raise FileNotFoundError(errno.ENOENT, str(error), name) from error
    except AlreadyExists as error:
        raise FileExistsError(errno.EEXIST, str(error), name) from error
    except (ForeignNotAllowed, KVRefused, LakeReadOnly, ObjectsRefused) as error:
        raise PermissionError(errno.EACCES, str(error), name) from error


def open_raw(ctx: Context, ref: str, path: Path) -> ReadAheadFile:
    """Return the object that a ref has at a path now, as a file without a buffer. Nothing of it is requested yet."""
    with translate_errors(path), _operation(ctx):
        try:
            pinned = read.pin_object(ctx, ref, path)
        except NotFound as error:
            refs.suggest_name(ctx, error)
            raise

    def read_range(start: int, end: int) -> Iterator[bytes]:
        with translate_errors(path):
            try:
                with _operation(ctx):
                    chunks = read.open_pinned(ctx, pinned, start, end)
                yield from chunks
            except NotFound as error:
                raise Gone(
                    f"{path!r} on {ref!r} was deleted or replaced after it was opened, and its data is gone; open it "
                    "again"
                ) from error

    return ReadAheadFile(read_range, pinned.stored_content.size_bytes, ahead_bytes=BUFFER_BYTES)


def open_reader(ctx: Context, ref: str, path: Path) -> io.BufferedReader:
    """Return the object that a ref has at a path now, as a file."""
    return io.BufferedReader(open_raw(ctx, ref, path), BUFFER_BYTES)


@contextmanager
def _operation(ctx: Context) -> Generator[None, None, None]:
    with deadline.limit_operation(ctx.clock, ctx.safety.operation_deadline_seconds):
        yield


class UploadFile(io.BufferedIOBase):
    """Keeps what is written to it, and uploads that once, when it is closed.

    It uploads nothing if a write failed, if nobody closed it, or if it is closed while an error is handled that came
    after its opening: that of its `with` block, or that of a block around it.
    """

    def __init__(self, upload: Callable[[BinaryIO], object], name: str) -> None:
        super().__init__()
        self.name = name
        self._upload = upload
        self._opening_error = sys.exception()
        self._is_discarded = False
        self._spool = SpooledTemporaryFile[bytes](SPOOL_BYTES)

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # any buffer
        try:
            return self._spool.write(data)
        except BaseException:
            self._is_discarded = True
            raise

    def tell(self) -> int:
        return self._spool.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._spool.seek(offset, whence)

    def close(self) -> None:
        """Upload what was written. Raises FileNotFoundError (no such branch), FileExistsError, PermissionError."""
        if self.closed:
            return
        try:
            error = sys.exception()
            if error is not None and error is not self._opening_error and not self._is_discarded:
                self.refuse()
                warnings.warn(
                    f"{self.name!r} was closed while {type(error).__name__} was handled, so nothing was uploaded",
                    RuntimeWarning,
                    stacklevel=2,
                )
            if not self._is_discarded:
                self._spool.seek(0)
                with translate_errors(self.name):
                    self._upload(cast(BinaryIO, self._spool))
        finally:
            self._spool.close()
            super().close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.refuse()
        self.close()

    def refuse(self) -> None:
        """Let `close` upload nothing."""
        self._is_discarded = True

    def discard(self) -> None:
        """Close the file without an upload."""
        self.refuse()
        self.close()

    def abandon(self) -> None:
        """Do the same where nobody closed the file, and warn of it."""
        if not self.closed:
            self.discard()
            warnings.warn(f"{self.name!r} was not closed, so nothing was uploaded", ResourceWarning, stacklevel=2)

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was not made to the end
            self.abandon()


def open_text_writer(file: UploadFile, encoding: str, errors: str | None, newline: str | None) -> TextUploadFile:
    """Return the file as one that takes texts. Raises LookupError for an encoding that Python does not know."""
    try:
        return TextUploadFile(file, encoding, errors, newline)
    except BaseException:
        file.discard()
        raise


class TextUploadFile(io.TextIOWrapper):
    """The same for text. Python's own would upload what nobody closed, or what an error ended."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            cast(UploadFile, self.buffer).refuse()
        self.close()

    def __del__(self) -> None:
        with suppress(ValueError):  # it was not made to the end
            if not self.closed:
                cast(UploadFile, self.buffer).abandon()
