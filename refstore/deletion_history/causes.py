"""Who wrote an entry of the journal, why, and the rule by which an object went, as texts for `refstore why`.

The reaper writes its own id there. The offline job writes `gc-<mark>-<random>` for what it deletes besides the files of
a sweep, and the cleaning of what purges left behind writes `purge-<id>`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from refstore.core.ids import Address
from refstore.operations.delete_contents import CONTENT_OF_DELETED
from refstore.versioning.address_state import ENDED_CAUSES, NOT_LINKED

if TYPE_CHECKING:
    from refstore.gc_marks.sweep_records import RunRules

UNNAMED_IDENTITY: Final = "a purged object that nothing names any more"

REAPER: Final = "reaper"
SWEEP: Final = "sweep"
CLEANING: Final = "cleaning"

DELETED_REPOSITORY: Final = "deleted repository"
EXPIRED: Final = "expired"

NO_REFERENCE: Final = "nothing named it any more when its grace window was over"
_NOT_LINKED_RULE: Final = "it was issued and not linked before it expired"
_UPLOAD_RULE: Final = "it was of an upload in parts, which was completed or aborted, or was not completed in time"
_UNNAMED_RULE: Final = "no commit and no branch named it; its contents and backups went with it"
_OF_DELETED_RULE: Final = "it went with its object, which nothing named any more"
_OWN_BACKUP_RULE: Final = (
    "only the content that was uploaded went, a backup since a purge had replaced it: the days or versions that the "
    "purge document keeps were over; the object stays"
)
BACKUP: Final = "a backup"
TRASH: Final = "trash of a restore"
ATTEMPT: Final = "an attempt of a purge"
LEFT_CONTENT: Final = "a content"
_CLEANING_RULES: Final = {
    BACKUP: "a purge had replaced it, and the days or versions that the purge document keeps were over",
    TRASH: "a restore had replaced it, and the days of trash of the purge document were over",
    ATTEMPT: "no run had published it",
    LEFT_CONTENT: "no reader needed it any more; an earlier cleaning or run had given it up",
}
_OF_PURGED: Final = " of the purged object "
_OFFLINE_RUN: Final = re.compile(r"gc-([0-9a-z]{26})-[0-9a-f]{8}")
_CLEANING_RUN: Final = re.compile(r"purge-[0-9a-z]{26}")


class Deleter(NamedTuple):
    """Who deleted an object."""

    by: str
    """`reaper`, `sweep` for a run of the offline job, or `cleaning` for that of what purges left behind."""
    run: str
    """The id of the reaper, of the mark, or of the cleaning."""


def deleter_of(name: str) -> Deleter:
    """Return who wrote an entry of the journal under this name."""
    offline_run = _OFFLINE_RUN.fullmatch(name)
    if offline_run is not None:
        return Deleter(SWEEP, offline_run[1])
    return Deleter(CLEANING if _CLEANING_RUN.fullmatch(name) else REAPER, name)


def cause_of_cleaning(what: str, identity: Address) -> str:
    """Return the cause under which a cleaning deletes what a purge left behind. `what`: `BACKUP`, `TRASH`, ..."""
    return f"{what}{_OF_PURGED}{identity}"


def rule_of(address: str, cause: str) -> str:
    """Return the rule by which the journal's entry of an address was deleted for this cause."""
    if cause == NOT_LINKED:
        return _NOT_LINKED_RULE
    if cause in ENDED_CAUSES:
        return _UPLOAD_RULE
    if cause == UNNAMED_IDENTITY:
        return _UNNAMED_RULE
    if cause.startswith(CONTENT_OF_DELETED):
        return _OF_DELETED_RULE
    what, purged, identity = cause.partition(_OF_PURGED)
    if purged:
        return _OWN_BACKUP_RULE if address == identity else _CLEANING_RULES.get(what, _CLEANING_RULES[LEFT_CONTENT])
    return NO_REFERENCE


def rule_of_run(facts: RunRules | None, cause: str) -> str:
    """Return the rule by which a run of the offline job deletes for this cause."""
    if facts is None:
        return DELETED_REPOSITORY if cause == DELETED_REPOSITORY else "the run's summary was removed"
    if cause == EXPIRED:
        ordered = sorted(facts.expired_by.items(), key=lambda item: (-item[1], item[0]))
        by = ", ".join(f"{rule} ({count} commits)" for rule, count in ordered)
        return (
            f"retention rules {facts.rules_digest[:12]}: {by or 'see the summary of the run'}; no active "
            "commit named it"
        )
    age_hours = facts.min_age_seconds / 3600
    return f"no commit and no branch named it, and it was older than {age_hours:g} hours"
