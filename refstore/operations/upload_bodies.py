"""What the body of an upload may be, and how it is read: bytes, a binary file, chunks of bytes, or a file's path."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from io import TextIOBase
from pathlib import Path
from typing import cast

from refstore.errors import Invalid
from refstore.objects.base import Body

UploadBody = Body | os.PathLike[str]
"""What an upload takes."""


def check_body(body: object, path: str) -> None:
    """Refuse what is no body before anything is written. Raises Invalid."""
    if isinstance(body, bytes):
        return
    if isinstance(body, str):
        raise Invalid(
            f"the body of {path!r} is a text; give its bytes, text.encode(), or for the file of that name "
            "pathlib.Path(text)"
        )
    if isinstance(body, TextIOBase):
        raise Invalid(f"the body of {path!r} is a file in text mode; open it with mode 'rb'")
    if isinstance(body, os.PathLike):
        with open_body(cast("os.PathLike[str]", body)):
            return
    if not (hasattr(body, "read") or isinstance(body, Iterable | bytearray | memoryview) or _is_buffer(body)):
        raise Invalid(
            f"the body of {path!r} is of type {type(body).__name__}; give bytes, a file opened with mode 'rb', chunks "
            "of bytes, or a pathlib.Path"
        )


@contextmanager
def open_body(body: UploadBody) -> Generator[Body, None, None]:
    """Yield the body, and the opened file for a path. Raises Invalid."""
    if not isinstance(body, os.PathLike):
        yield body
        return
    place = Path(body)
    try:
        file = place.open("rb")
    except IsADirectoryError as error:
        raise Invalid(f"{str(place)!r} is a folder; upload the files in it, one by one") from error
    except OSError as error:
        raise Invalid(f"{str(place)!r} cannot be read ({error.strerror}); give the path of a file that can") from error
    with file:
        yield file


def _is_buffer(body: object) -> bool:
    try:
        memoryview(body)  # type: ignore[arg-type]  # what it is, is the question
    except TypeError:
        return False
    return True
