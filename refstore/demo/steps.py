"""The steps of a client, and its reports. Both are JSON, and validated when they are read.

A client performs a step batch by batch. It reports `Began` before a batch that writes blobs, and `Stored` after it. If
`Stored` is missing, the client was killed or the stores refused, and the batch may have landed or not.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

BATCH: Final = 50


class Item(NamedTuple):
    """One object to write: its path, and its source."""

    path: str
    source: int


class Way(NamedTuple):
    source: str
    destination: str


class Step(msgspec.Struct, frozen=True, tag=True):
    branch: str


class UploadStep(Step, frozen=True, tag="upload"):
    items: list[Item]
    batch: int = BATCH
    rounds: int = 1
    """How often all of it is uploaded."""


class LinkStep(Step, frozen=True, tag="link"):
    """Issue an address for each item. Write the first two lists without refstore. Link the first list only."""

    linked: list[Item]
    abandoned: list[Item]
    unused: list[Item]


class CopyStep(Step, frozen=True, tag="copy"):
    ref: str
    ways: list[Way]


class MoveStep(Step, frozen=True, tag="move"):
    """Move within the branch, or copy from another branch and delete there."""

    ways: list[Way]
    from_branch: str = ""


class DeleteStep(Step, frozen=True, tag="delete"):
    paths: list[str]


class CommitStep(Step, frozen=True, tag="commit"):
    message: str


class CommitOftenStep(Step, frozen=True, tag="commit-often"):
    """Commit until standard input ends, then once more."""

    every_seconds: float


class ResetStep(Step, frozen=True, tag="reset"):
    """Reset the branch."""


class DeleteBranchStep(Step, frozen=True, tag="delete-branch"):
    """Delete the branch."""


AnyStep = (
    UploadStep | LinkStep | CopyStep | MoveStep | DeleteStep | CommitStep | CommitOftenStep | ResetStep
    | DeleteBranchStep
)  # fmt: skip


class Job(msgspec.Struct, frozen=True):
    """All steps of a client, in a file."""

    repository: str
    files: list[str]
    """Where each source is, by its number."""
    steps: list[AnyStep]


# ---- reports


class Written(NamedTuple):
    """One blob that the store confirmed."""

    path: str
    source: int
    address: str
    size_bytes: int


class Event(msgspec.Struct, frozen=True, tag=True):
    """The base of what a client reports, a line each."""


class Began(Event, frozen=True, tag="began"):
    branch: str
    items: list[Item]


class Stored(Event, frozen=True, tag="stored"):
    """Written and named on the branch."""

    branch: str
    items: list[Written]
    how: Literal["upload", "link"]


class Abandoned(Event, frozen=True, tag="abandoned"):
    """Written to issued addresses, and named nowhere."""

    items: list[Written]


class Unused(Event, frozen=True, tag="unused"):
    """Issued, and never written to."""

    addresses: list[str]


class Named(Event, frozen=True, tag="named"):
    """Copied or moved there, by name."""

    branch: str
    items: list[tuple[str, str]]
    """(path, address)."""
    how: Literal["copy", "move"]


class Removed(Event, frozen=True, tag="removed"):
    branch: str
    paths: list[str]


class Committed(Event, frozen=True, tag="committed"):
    branch: str
    commit: str


class WasReset(Event, frozen=True, tag="reset"):
    branch: str


class BranchDeleted(Event, frozen=True, tag="branch-deleted"):
    branch: str


class Refused(Event, frozen=True, tag="refused"):
    """A call that had to be refused, and was."""

    what: str


class Retried(Event, frozen=True, tag="retried"):
    error: str


class Failed(Event, frozen=True, tag="failed"):
    error: str


AnyEvent = (
    Began | Stored | Abandoned | Unused | Named | Removed | Committed | WasReset | BranchDeleted | Refused | Retried
    | Failed
)  # fmt: skip

encode: Final = msgspec.json.Encoder().encode
_jobs: Final = msgspec.json.Decoder(Job)
_events: Final = msgspec.json.Decoder(AnyEvent)


def decode_job(text: bytes) -> Job:
    return _jobs.decode(text)


def decode_event(line: bytes) -> AnyEvent:
    return _events.decode(line)
