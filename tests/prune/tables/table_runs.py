"""Folders of tables, old enough to be pruned, and runs that prune them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import refstore_prune
from refstore_prune.sources import open_source
from refstore_prune.sources.base import NamePart, NameSource, SourceOptions
from tests.prune.folders import DAY, stored_keys


def age(folder: Path, *, days: float = 30) -> None:
    """Make all files of the folder older."""
    for file in folder.rglob("*"):
        if file.is_file():
            written = file.stat().st_mtime - days * DAY
            os.utime(file, (written, written))


def prune_twice(folder: Path, names: str | Iterable[str], properties: Mapping[str, str] | None = None) -> set[str]:
    """Mark and sweep what the sources do not name, and return which keys went. Everything is made old before."""
    age(folder)
    before = stored_keys(folder)
    sources = [names] if isinstance(names, str) else list(names)
    for _ in range(2):
        report = refstore_prune.prune(folder, sources, grace=timedelta(0), properties=properties, engine="local")
    assert report.outcomes.keys() <= {"deleted"}
    return before - stored_keys(folder)


def open_table(text: str, properties: Mapping[str, str] | None = None) -> NameSource:
    return open_source(text, SourceOptions(properties=properties or {}))


def read_parts(parts: Iterable[NamePart]) -> Iterator[str]:
    """Yield the names; tasks run as on another machine."""
    for part in parts:
        batches: Iterable[Any] = pickle.loads(pickle.dumps(part))() if callable(part) else [part]  # noqa: S301  # our own
        for batch in batches:
            yield from batch.to_pylist()


def names_of(text: str, properties: Mapping[str, str] | None = None) -> set[str]:
    return set(read_parts(open_table(text, properties).parts()))
