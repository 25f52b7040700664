r"""Show callers' text without letting it steer a terminal or turn a page's text round.

Paths, messages, metadata and names may hold control characters: ESC and U+009B begin commands of a terminal, and U+202E
shows what follows from right to left. Here, and nowhere else, each such character becomes `\uXXXX`. In JSON that is the
same character, so `--json` loses nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, Final, TextIO, cast

_STEERING: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]+"
    "|\r(?!\n)"
)
"""Control characters but for tabs and ends of lines, and what changes the direction of text, or is never seen."""


def make_visible(text: str) -> str:
    """Return the text, which may have several lines, with its control and direction characters made visible."""
    return _STEERING.sub(_escape, text)


def make_visible_line(text: str) -> str:
    """Return the text in one line, with everything that cannot be printed made visible."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in make_visible(text))


def make_visible_json(encoded: bytes) -> bytes:
    """Return the same JSON with such characters escaped."""
    return encoded if encoded.isascii() else make_visible(encoded.decode()).encode()


@contextmanager
def make_streams_visible() -> Generator[None, None, None]:
    """Make text visible that is written to standard output and standard error during the block.

    Bytes (`sys.stdout.buffer`) stay as they are, and so does what is written to `own_stream`.
    """
    before = sys.stdout, sys.stderr
    # a process whose parent closed one has none
    sys.stdout, sys.stderr = (stream and cast(TextIO, _VisibleStream(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def own_stream(stream: TextIO) -> TextIO:
    """Return the stream to which this program writes its own colours, beside text that is visible already."""
    return stream.inner if isinstance(stream, _VisibleStream) else stream


class _VisibleStream:
    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def write(self, text: str) -> int:
        self.inner.write(make_visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _escape(match: re.Match[str]) -> str:
    r"""Escape a run of characters at once: `bytes.hex` puts the `\u` between its UTF-16 units."""
    return "\\u" + match[0].encode("utf-16-be").hex("u", 2).replace("u", "\\u")
