"""Recognise tables whose own metadata lists their files, with their sizes: Delta, Iceberg, Hudi, Paimon, DuckLake.

A run refuses a data set that holds such a table, is one, or is a part of one: rewritten files would break its readers.
Each format is one line of `_FORMATS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from refstore.errors import Invalid
from refstore.purge_document.document import Dataset


class _TableFormat(NamedTuple):
    name: str
    folders: tuple[str, ...]
    """Of the table's own metadata, below its root. None: its metadata lies elsewhere."""
    files: re.Pattern[str]
    """Of whose names one there, or without such folders anywhere, shows that it is a table."""
    purge_advice: str
    """How rows are purged by the table's own means."""


_FORMATS: Final = (
    _TableFormat(
        "Delta",
        ("_delta_log/",),
        re.compile(r".+"),
        "`DELETE FROM`, then `REORG TABLE ... APPLY (PURGE)` (with deletion vectors the rows stay in the files until "
        "then), then `VACUUM`",
    ),
    _TableFormat(
        "Iceberg",
        ("metadata/",),
        # compressed: `.gz.metadata.json` by its specification, `.metadata.json.gz` by Spark's 1.x
        re.compile(r"[^/]+\.metadata\.json(\.gz)?"),
        "a row-level `DELETE`, then `rewrite_data_files` with `delete-file-threshold` 1 (with delete files the rows "
        "stay in the files until then), then `expire_snapshots`",
    ),
    _TableFormat(
        "Hudi",
        (".hoodie/",),
        re.compile(r".+"),
        "`DELETE FROM`, then a compaction (of a merge-on-read table), then its cleaning of old file versions",
    ),
    _TableFormat(
        "Paimon",
        ("snapshot/", "schema/"),
        re.compile(r"(snapshot|schema)-[0-9]+"),
        "`DELETE FROM`, a full compaction, then `expire_snapshots`",
    ),
    _TableFormat(
        "DuckLake",
        (),
        re.compile(r"ducklake-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(-[a-z]+)?\.(parquet|puffin)"),
        "`DELETE FROM`, then `ducklake_rewrite_data_files` with `delete_threshold` 0, `ducklake_expire_snapshots` and "
        "`ducklake_cleanup_old_files`",
    ),
)


def refuse_table_path(dataset: Dataset, path: str) -> None:
    """Raise Invalid if a path below a data set's prefix shows that a table lies there."""
    for format_ in _FORMATS:
        is_file = not format_.folders and format_.files.fullmatch(path.rpartition("/")[2])
        if is_file or _find_table_root(format_, path, from_=len(dataset.prefix)) is not None:
            raise _refusal(dataset, format_, f"holds a table of {format_.name}")


def metadata_folders(datasets: Iterable[Dataset]) -> list[str]:
    """Return the folders that would show that a data set is a part of a table."""
    return sorted(
        {
            outer + folder
            for dataset in datasets
            for outer in _outer_folders(dataset.prefix)
            for format_ in _FORMATS
            for folder in format_.folders
        }
    )


def refuse_table_parts(datasets: Sequence[Dataset], paths: Iterable[str]) -> None:
    """Raise Invalid if a path in one of `metadata_folders` shows that a data set is a part of a table."""
    for path in paths:
        for format_ in _FORMATS:
            root = _find_table_root(format_, path)
            for dataset in datasets:
                if root is not None and dataset.prefix.startswith(root):
                    where = f"at {root!r}" if root else "at the root of the repository"
                    raise _refusal(dataset, format_, f"is a part of the table of {format_.name} {where}")


def _outer_folders(prefix: str) -> Iterator[str]:
    """Yield '' and the folders that a folder lies in: '' and `a/` of `a/b/`."""
    parts = prefix.split("/")[:-2]
    for number in range(len(parts) + 1):
        yield "".join(f"{part}/" for part in parts[:number])


def _find_table_root(format_: _TableFormat, path: str, *, from_: int = 0) -> str | None:
    """Return the root of the table that a path is metadata of; None: it is none of this format. `from_`: where to begin
    to look for the folder.
    """
    below = f"/{path[from_:]}"
    for folder in format_.folders:
        before, found, file = below.rpartition(f"/{folder}")
        if found and format_.files.fullmatch(file):
            return path[: from_ + len(before)]
    return None


def _refusal(dataset: Dataset, format_: _TableFormat, what: str) -> Invalid:
    return Invalid(
        f"data set {dataset.name!r} {what}, which records its files and their sizes: rewritten files would break its "
        f"readers. Purge it with {format_.name}'s own means: {format_.purge_advice}. Then commit: older commits here "
        "still name the files with the rows, until they expire"
    )
