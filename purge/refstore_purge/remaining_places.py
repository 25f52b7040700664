"""Places that still have rows of a run's ids: what the report lists, and what the run notes to find them again.

The account of a run notes each content that has rows of the ids, or that nobody could look into. Where each of them
stands is looked up whenever the report is shown (`place_lookup.py`), and what is gone is listed no more. What is no
object of its own, or cannot be looked up later, is shown as the run saw it.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

ADDRESSES_MAX: Final = 1000
"""How many addresses a place lists; it counts all."""
PARTITION_LEFT_REASON: Final = "its partition was left out"
OPEN_UPLOAD_REASON: Final = "an upload in parts that is open"
"""Of the address where its parts will be joined, also if the store has nothing there."""

PlaceKind = Literal[
    "branches",
    "tags and pins",
    "earlier commits",
    "hidden branches",
    "undo trash",
    "being deleted",
    "issued",
    "condemned by a sweep",
    "backups",
    "trash of restores",
    "attempts",
    "retired",
    "unnamed",
    "partitions left",
    "outside",
    "versions of the bucket",
    "run",
]
"""What a place is: in which part of the repository the objects stand.

    branches                at a branch's head, or staged there
    tags and pins           in the tree of a tag or a commit that the rules keep, and at no head
    earlier commits         in the tree of another commit
    hidden branches         of a run that was killed
    undo trash              `refstore restore` brings them back
    being deleted           the reaper, or a sweep, has begun to delete them
    issued                  uploaded to an issued address, and not linked; or an upload in parts that is open
    condemned by a sweep    named by commits alone whose sweep began
    backups                 what a run replaced
    trash of restores       what a restore replaced
    attempts                what a run wrote that was killed
    retired                 taken off their records, and not deleted by the store yet
    unnamed                 nothing names them any more
    partitions left         by `--max-partitions` or `--after`
    outside                 outside the repository
    versions of the bucket  which keeps what is deleted
    run                     the run has not ended, so nobody has looked
"""


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


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Objects that still have rows of the ids."""

    kind: PlaceKind
    dataset: str = ""
    """'': of several, or of none."""
    reason: str = ""
    """Why they are there, and what ends it where there is no date."""
    objects: int = 0
    bytes: int = 0
    first_deletes_at_ms: int = 0
    """The date of the object that goes first."""
    deletes_at_ms: int = 0
    """The date of the last one: the first cleaning at it or after deletes it, and none before. 0: there is no date."""
    has_rows: bool = True
    """False: nobody has looked into these objects."""
    restore_command: str = ""
    """The command that brings them back; '': they are live, or nothing does."""
    ending_command: str = ""
    """The command that ends it; '': there is none."""
    is_as_of_run: bool = False
    """Whether it is shown as the run saw it."""
    addresses: list[str] = []
    """The first `ADDRESSES_MAX`, in order."""

    @property
    def explanation(self) -> str:
        """Say why the objects are there, and whether anybody looked into them."""
        return self.reason if self.has_rows else "; ".join(filter(None, ["not looked into", self.reason]))


def unexamined_place(reason: str, ending_command: str = "", dataset: str = "") -> Place:
    """Return a place at which the run did not look, as the run saw it."""
    return Place(
        kind="run", dataset=dataset, reason=reason, has_rows=False, ending_command=ending_command, is_as_of_run=True
    )
