"""Find the log of a table: the folder whose files say together which data files the table has.

A log that is made of files of two histories tells of a table that never was. So a merge decides a log as a whole.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class _LogFormat(NamedTuple):
    name: str
    folder: str
    path: re.Pattern[str]
    """Of the log's files. Delta and Hudi have folders in it, Iceberg has none."""
    decisive: re.Pattern[str]
    """Of the files that only a log has: one of them that both sides changed shows that both wrote the table."""


_FORMATS: Final = (
    _LogFormat(
        "Delta", "_delta_log/", re.compile(r"(?P<folder>(.*?/)?_delta_log/).+", re.DOTALL), re.compile(r".+", re.DOTALL)
    ),
    _LogFormat(
        "Hudi", ".hoodie/", re.compile(r"(?P<folder>(.*?/)?\.hoodie/).+", re.DOTALL), re.compile(r".+", re.DOTALL)
    ),
    _LogFormat(
        "Iceberg",
        "metadata/",
        re.compile(r"(?P<folder>(.*/)?metadata/)[^/]+", re.DOTALL),
        re.compile(r"([^/]*/)*([^/]+\.metadata\.json(\.gz)?|version-hint\.text)"),
    ),
)


class TableLog(NamedTuple):
    format: _LogFormat
    folder: str

    @property
    def table(self) -> str:
        """The table as messages name it: its format and its root."""
        return f"{self.format.name} table {self.folder.removesuffix(self.format.folder) or '/'!r}"

    def has(self, path: str) -> bool:
        """Return whether a path below the folder is a file of the log."""
        return find_log(path) == self

    def is_decisive(self, path: str) -> bool:
        """Return whether a file of the log shows that it is one."""
        return self.format.decisive.fullmatch(path) is not None


def find_log(path: str) -> TableLog | None:
    """Return the log that a path may be a file of."""
    for format_ in _FORMATS:
        if format_.folder in path and (match := format_.path.fullmatch(path)) is not None:
            return TableLog(format_, match["folder"])
    return None
