"""What a source of names gives: every name that must stay, or an error. A source that cannot be read to its end raises;
no name is ever left out in silence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import msgspec

NameBatch = Any
"""An Arrow array of strings: names, as the source has them. At most `BATCH_NAMES`."""
NameTask = Callable[[], Iterator[NameBatch]]
"""Reads a part of the names in a task of the engine, perhaps on another machine and more than once. It is pickled."""
NamePart = NameBatch | NameTask

BATCH_NAMES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a caller says about its sources. A source refuses what it does not know."""

    endpoint: str = ""
    """The URL of the server that has the names."""
    column: str = ""
    """Which column of a table has the names."""
    rules: bytes | None = None
    """A document of retention rules, which keeps more than the source's own rules."""
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the source's library is given, such as the properties of a catalog."""


class SourceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a source read, for the report."""

    source: str
    """The source as the caller named it; without secrets."""
    began_ms: int
    """When the reading began."""
    as_of_ms: int = 0
    """What was named at this time is among the names; 0: when the reading began. Of a file: when it was written. An age
    and a grace period are counted up to it: nothing goes by names that are older than its mark.
    """
    read: dict[str, int] = {}
    """What was read, such as {'commits': 12, 'ranges': 340}."""
    not_seen: list[str] = []
    """What the source cannot see, a sentence each."""


class MetadataPlace(msgspec.Struct, frozen=True):
    """A folder of the store that has the metadata of a table or repository."""

    kind: str
    """`_delta_log`, `iceberg`, `_lakefs` or `.git`."""
    folder: str
    """The key of the folder that holds it, below the store: the table's or repository's own; '': the store."""


class NameSource(ABC):
    """A source of names. It is opened for one reading: `check`, then `parts`, then `facts`."""

    text: str
    """How messages and reports call it; without secrets."""
    base_url: str = ""
    """What names without a scheme are relative to; '': the store that is pruned."""
    folders: tuple[str, ...] = ("",)
    """The folders of the store, with a slash at their end, of which the source knows all names; '': the whole store.
    They are known when `check` has returned. What lies outside of the folders of all sources stays.
    """
    min_age: timedelta = timedelta(days=7)
    """How long after it is written something may be named for the first time. What is younger stays."""
    never_taken: tuple[str, ...] = ()
    """Patterns of the last segment of keys that stay although nothing names them, such as `_SUCCESS`."""
    never_taken_folders: tuple[str, ...] = ()
    """Regular expressions: a key stays, although nothing names it, if one of them matches its beginning, such as that
    of a folder of the source's own. They are known when `check` has returned.
    """

    def check(self, store_url: str) -> None:
        """Raise Invalid if the source does not belong to this store, and what says that it cannot be read. It is called
        before anything is listed.
        """
        del store_url

    @abstractmethod
    def parts(self) -> Iterator[NamePart]:
        """Yield all names, as batches or as tasks that read them. It is called once, after the listing ended, and what
        was named when it was called is among the names.
        """

    @abstractmethod
    def facts(self) -> SourceFacts:
        """Return what was read. It is called when the parts have been read to their end."""

    def metadata_elsewhere(self) -> Sequence[MetadataPlace]:
        """Return the tables or repositories in the store that the source knows of, and does not read: some other source
        must. It is called after `check`.
        """
        return ()

    def reads_metadata(self, place: MetadataPlace, store_url: str) -> bool:
        """Return whether the source reads the names of this table or repository, which lies in the store."""
        del place, store_url
        return False
