"""Say what keeps an object, or what will happen to it, for `refstore why`, the page and the HTTP API."""

from __future__ import annotations

from refstore.operations.address_info import AddressInfo, AddressState, ReferenceState
from refstore.operations.purge_roles import HIDDEN_BRANCHES, AddressRole, PurgeRole, describe_role


def explain_state(view: AddressInfo, purged: PurgeRole | None, *, is_marked: bool = False) -> str:
    """Return a sentence without its end; '' where the state says it all. `is_marked`: a mark that is not swept yet
    takes it.
    """
    is_there = view.state is not AddressState.GONE
    if purged is not None and purged.role is not AddressRole.IDENTITY:
        return describe_role(purged, is_there=is_there)
    names = _names(view, is_purged=purged is not None, is_marked=is_marked)
    return "; ".join(filter(None, (names, describe_role(purged) if purged is not None else "")))


def _names(view: AddressInfo, *, is_purged: bool, is_marked: bool) -> str:
    """Say what names it."""
    match view.state, view.reference_state:
        case AddressState.REFERENCED, ReferenceState.STAGED if _is_of_purge(view):
            return "a run of the purge has staged it on a hidden branch, and commits it, or it goes with that branch"
        case AddressState.REFERENCED, ReferenceState.STAGED:
            return "it is staged, and nothing deletes it"
        case AddressState.REFERENCED, ReferenceState.UNNAMED:
            return (
                "no entry names it: its write is under way, or died; in the latter case its grace window begins when "
                "the reaper has scrubbed, or has processed the token"
            )
        case AddressState.REFERENCED, ReferenceState.COMMITTED:
            return "a commit keeps it; the reaper has not processed that commit yet"
        case AddressState.REFERENCED, ReferenceState.DELETED | ReferenceState.ORPHANED:
            return "nothing names it any more; its grace window begins when the reaper has run"
        case AddressState.COMMITTED, _ if is_marked:
            return "only commits that have expired and are marked name it; the sweep of the mark deletes it"
        case AddressState.TAGGED, _:
            return "only swept commits name it; it is tagged, and is there until the bucket deletes it"
        case AddressState.COMMITTED, _:
            return "commits keep it; `refstore retention explain REPO COMMIT` says until when, and by which rule"
        case AddressState.SWEPT | AddressState.ORPHAN, _ if is_purged:
            return "nothing names it any more; the next full run of the offline job deletes it, with its contents"
        case _:
            return ""


def _is_of_purge(view: AddressInfo) -> bool:
    return all(reference.branch.startswith(HIDDEN_BRANCHES) for reference in view.references)
