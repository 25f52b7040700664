"""What became of the objects of a run. Nothing changes an outcome; a run's report is the fold of all of its outcomes.

searched   a content was looked into, or ruled out
written    its new content was written, and nobody reads it yet
replaced   the new content was published
left       it was left as it is, and why
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

SUMMARY: Final = "summary"
"""What the result of writing a summary file of Parquet again says it was told by."""
PARTITION_LEFT_REASON: Final = "its partition was left out"
OPEN_UPLOAD_REASON: Final = "an upload in parts that is open"
"""Of the address where its parts will be joined, also if the store has nothing there."""
OutcomeKind = Literal["searched", "written", "replaced", "left", "found"]


class ObjectResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task says of one content."""

    address: str
    rows: int = 0
    matched_rows: int = 0
    matched_entries: int = 0
    """Entries of the file's key-value metadata that have an id."""
    decided_by: str = ""
    """What told how many match: the value of the `partition`, the `index`, `statistics`, the `column`, the `name`."""
    read_bytes: int = 0
    index_bytes: int = 0
    """Of the index that was written."""
    target_address: str = ""
    size_bytes: int = 0
    checksum: str = ""
    md5: str = ""
    lacks_identifier: bool | None = False
    """Whether it has no such column, or no line with this field; None: the object does not tell."""
    is_gone: bool = False
    """Whether the object is not there any more."""
    failure: str = ""
    """Why it is left as it was; names columns and types, and no value."""

    @property
    def has_ids(self) -> bool:
        """Whether rows or metadata of the object have an id."""
        return bool(self.matched_rows or self.matched_entries)


class ObjectOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one content of an object."""

    kind: OutcomeKind
    dataset: str
    prefix: str
    """Of the data set."""
    partition: str
    identity: str
    """The object, by the address that commits name."""
    address: str
    """Of the content."""
    size_bytes: int
    branch: str
    """And path: its first name."""
    path: str
    branches: list[str] = []
    """Of `keep-history`: the branch of each of its names. The first one that gets the new content makes it count."""
    keeps_rows: bool = False
    """Whether rows of the ids stay, with columns that are set to null."""
    result: ObjectResult
    reason: str = ""

    @property
    def watermark(self) -> str:
        """The place of its partition among all."""
        return f"{self.prefix}{self.partition}"


class RunContent(msgspec.Struct, frozen=True):
    """An object of the store that has rows of the run's ids, as the run saw it."""

    address: str
    identity: str
    """The object that commits name, whose content it is, or was."""
    dataset: str
    prefix: str
    """Of the data set."""
    size_bytes: int
    has_rows: bool = True
    """False: nobody has looked into it; `reason` says why."""
    reason: str = ""
    """Why the run left it; '': it did not."""
    new_address: str = ""
    """Where the run wrote it again; '': it did not."""
