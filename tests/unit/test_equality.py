"""What makes two entries equal, where a purge has replaced the content of none, one or both."""

from __future__ import annotations

from itertools import product

import pytest

from refstore.core.ids import Address, is_own
from refstore.records.location_records import Content
from refstore.records.staging_records import StoredEntry
from refstore.versioning.commits.equality import are_equal, needs_contents

OWN, OTHER, FOREIGN = (
    Address(text) for text in ("data/2026112107/" + "0" * 26, "data/2026112107/" + "1" * 26, "s3://b/k")
)
WHOLE = Content(OWN, 1, "c", "m")
ERASED = Content(Address(""), 0, "")


def entry(address: Address, content: Content = WHOLE, mtime_ms: int = 0, **fields: object) -> StoredEntry:
    # fields of several types
    return StoredEntry(address, content.size_bytes, content.checksum, mtime_ms, md5=content.md5, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", [OWN, FOREIGN])
def test_nothing_equals_nothing_only(address: Address) -> None:
    assert are_equal(None, None, {})
    assert not are_equal(entry(address), None, {})
    assert not are_equal(None, entry(address), {})


CONTENTS = [WHOLE, Content(OWN, 2, "c", "m"), Content(OWN, 1, "d", "m"), Content(OWN, 1, "c"), ERASED]


@pytest.mark.parametrize("left", [None, *CONTENTS])
@pytest.mark.parametrize("right", [None, *CONTENTS])
def test_contents_decide_between_identities_and_recorded_checksums_where_nothing_was_replaced(
    left: Content | None, right: Content | None
) -> None:
    """None: as it was uploaded."""
    contents = {address: each for address, each in ((OWN, left), (OTHER, right)) if each is not None}
    now = left or WHOLE, right or WHOLE
    expected = now[0] == now[1] and bool(now[0].md5)
    for one, other in product((entry(OWN), entry(OWN, mtime_ms=9)), (entry(OTHER), entry(OTHER, mtime_ms=7))):
        assert needs_contents(one, other)
        assert are_equal(one, other, contents) is expected
        assert are_equal(other, one, contents) is expected


@pytest.mark.parametrize("recorded", CONTENTS)
def test_an_identity_is_equal_to_itself_whatever_is_recorded_of_it(recorded: Content) -> None:
    for contents in ({}, {OWN: ERASED}):
        assert are_equal(entry(OWN), entry(OWN, recorded, mtime_ms=9), contents)
    assert not needs_contents(entry(OWN), entry(OWN, recorded))


@pytest.mark.parametrize("fields", [{"metadata": {"k": "v"}}, {"content_type": "text/plain"}])
@pytest.mark.parametrize("address", [OWN, OTHER, FOREIGN])
def test_another_description_is_a_change(address: Address, fields: dict[str, object]) -> None:
    assert not are_equal(entry(OWN), entry(address, **fields), {})
    assert not needs_contents(entry(OWN), entry(address, **fields))


def test_a_foreign_object_is_all_that_is_known_of_it() -> None:
    assert are_equal(entry(FOREIGN), entry(FOREIGN), {})
    assert not is_own(FOREIGN)
    for other in (entry(OWN), entry(Address("s3://b/l")), entry(FOREIGN, mtime_ms=9), entry(FOREIGN, CONTENTS[1])):
        assert not are_equal(entry(FOREIGN), other, {})
        assert not are_equal(other, entry(FOREIGN), {})
        assert not needs_contents(entry(FOREIGN), other)
