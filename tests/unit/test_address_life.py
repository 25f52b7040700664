"""One life of an address: what follows on each state, and from when its object may be deleted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore.core.ids import Address, BranchName, Path, Token
from refstore.records.reference_records import Deleting, Emptied, Issued, Listed, Reference, ReferenceRecord
from refstore.records.staging_records import StoredEntry
from refstore.versioning import address_state
from refstore.versioning.address_state import AddOutcome, DeletionDelays, Unnamed

NOW_MS = 1_000_000
DELAYS = DeletionDelays(grace_seconds=600, clock_skew_seconds=60)
NO_DELAYS = DeletionDelays(0, 0)
FIRST, SECOND = (Reference(Token("main:1"), Path(path), "") for path in ("p", "q"))
ENTRY = StoredEntry(Address("data/a"), 7, "", 0)

LISTED = Listed((FIRST,), NOW_MS)
EMPTIED = Emptied(NOW_MS, FIRST, "deleted", ENTRY)
ISSUED = Issued("token", NOW_MS, BranchName("main"), Path("p"))
DELETING = Deleting(NOW_MS, FIRST, "deleted", 7)


@pytest.mark.parametrize(
    ("state", "delays", "at_ms"),
    [
        (EMPTIED, DELAYS, NOW_MS + 600_000),
        (EMPTIED, DELAYS._replace(clock_skew_seconds=0), NOW_MS + 600_000),
        (EMPTIED, DELAYS._replace(grace_seconds=0.5), NOW_MS + 500),
        (EMPTIED, NO_DELAYS, NOW_MS),
        (ISSUED, DELAYS, NOW_MS + 60_000),
        (ISSUED, DELAYS._replace(grace_seconds=0), NOW_MS + 60_000),
        (ISSUED, NO_DELAYS, NOW_MS),
        (DELETING, DELAYS, NOW_MS),
    ],
)
def test_from_when_an_object_may_be_deleted(state: Unnamed, delays: DeletionDelays, at_ms: int) -> None:
    assert address_state.may_delete_at_ms(state, delays) == at_ms
    assert not address_state.may_delete(state, at_ms - 1, delays)
    assert address_state.may_delete(state, at_ms, delays)


@pytest.mark.parametrize("state", [None, LISTED])
def test_what_is_named_or_committed_may_never_be_deleted(state: ReferenceRecord | None) -> None:
    assert not address_state.may_delete(state, 10**15, NO_DELAYS)


@pytest.mark.parametrize(
    ("state", "deleting"),
    [
        (EMPTIED, Deleting(NOW_MS + 600_000, FIRST, "deleted", 7)),
        (Emptied(NOW_MS, FIRST, "scrubbed"), Deleting(NOW_MS + 600_000, FIRST, "scrubbed", -1)),
        (ISSUED, Deleting(NOW_MS + 60_000, Reference(Token(""), Path("p")), address_state.NOT_LINKED, -1)),
    ],
)
def test_deletion_begins_when_the_time_has_come(state: Emptied | Issued, deleting: Deleting) -> None:
    assert address_state.begin_deletion(state, deleting.since_ms - 1, DELAYS) is None
    assert address_state.begin_deletion(state, deleting.since_ms, DELAYS) == deleting


@pytest.mark.parametrize(
    ("state", "on_empty", "after"),
    [
        (None, True, AddOutcome.NO_RECORD),
        (LISTED, False, Listed((FIRST, SECOND), NOW_MS + 1)),
        (Listed((SECOND, FIRST), NOW_MS), False, AddOutcome.LISTED),
        (EMPTIED, False, AddOutcome.EMPTY),
        (EMPTIED, True, Listed((SECOND,), NOW_MS + 1)),
        (ISSUED, True, AddOutcome.NOT_NAMEABLE),
        (DELETING, True, AddOutcome.NOT_NAMEABLE),
    ],
)
def test_adding_a_reference(state: ReferenceRecord | None, on_empty: bool, after: Listed | AddOutcome) -> None:
    assert address_state.add_reference(state, SECOND, NOW_MS + 1, on_empty=on_empty) == after


@pytest.mark.parametrize(
    ("state", "token_id", "now_ms", "is_linked"),
    [
        (ISSUED, "token", NOW_MS - 1, True),
        (ISSUED, "another", NOW_MS - 1, False),
        (ISSUED, "token", NOW_MS, False),
        (None, "token", NOW_MS - 1, False),
        (LISTED, "token", NOW_MS - 1, False),
        (EMPTIED, "token", NOW_MS - 1, False),
        (DELETING, "token", NOW_MS - 1, False),
    ],
)
def test_linking(state: ReferenceRecord | None, token_id: str, now_ms: int, is_linked: bool) -> None:
    expected = Listed((SECOND,), now_ms) if is_linked else None
    assert address_state.link(state, token_id, SECOND, now_ms) == expected


@pytest.mark.parametrize("state", [LISTED, EMPTIED, ISSUED, DELETING])
def test_recovery_lists_a_live_name_whatever_the_state_is(state: ReferenceRecord) -> None:
    others = state.references if isinstance(state, Listed) else ()
    assert address_state.list_again(state, SECOND, NOW_MS + 1) == Listed((*others, SECOND), NOW_MS + 1)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add on empty", "release", "link", "delete", "delete without grace"]),
        st.integers(min_value=0, max_value=400_000),
    ),
    max_size=12,
)


@settings(max_examples=200)
@given(STEPS, st.sampled_from([LISTED, EMPTIED, ISSUED]))
def test_an_address_is_deleted_once_and_never_before_its_time(
    steps: list[tuple[str, int]], state: ReferenceRecord
) -> None:
    """Whatever happens in whatever order, and whoever has a shorter window than the repository."""
    now_ms = NOW_MS
    for name, pause_ms in steps:
        now_ms += pause_ms
        before = state
        match name:
            case "add" | "add on empty":
                after = address_state.add_reference(state, SECOND, now_ms, on_empty=name == "add on empty")
                state = state if isinstance(after, AddOutcome) else after
            case "release" if isinstance(state, Listed):
                state = address_state.after_release(state.references[1:], state.references[0], "deleted", None, now_ms)
            case "link":
                state = address_state.link(state, "token", FIRST, now_ms) or state
            case _ if isinstance(state, Emptied | Issued):
                delays = DELAYS._replace(grace_seconds=0) if name == "delete without grace" else DELAYS
                state = address_state.begin_deletion(state, now_ms, delays) or state
                if isinstance(state, Deleting):
                    waited_ms = now_ms - address_state.changed_ms(before)
                    assert waited_ms >= (60_000 if isinstance(before, Issued) else delays.grace_seconds * 1000)
            case _:
                pass
        assert state == before or not isinstance(before, Deleting), "nothing leads back from there"
        assert not (isinstance(before, Listed) and isinstance(state, Deleting | Issued)), "a name keeps its address"
