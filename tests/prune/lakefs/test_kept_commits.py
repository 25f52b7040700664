"""Which commits refstore's rules keep on top of lakeFS's."""

from __future__ import annotations

import pytest

from refstore.core.units import DAY_MS
from refstore.errors import Invalid
from refstore.retention.rules import read_rules
from refstore_prune.sources.lakefs.client import CommitRecord
from refstore_prune.sources.lakefs.committed import RangeRef
from refstore_prune.sources.lakefs.kept_commits import keep_more, overlaps


def make_history(version: int | None) -> dict[str, CommitRecord]:
    """Return the merge of two commits, long ago."""
    rows = [
        CommitRecord(id="first", parents=[], creation_date=0, meta_range_id="", version=version),
        CommitRecord(id="main", parents=["first"], creation_date=1, meta_range_id="a", version=version),
        CommitRecord(id="other", parents=["first"], creation_date=1, meta_range_id="b", version=version),
        CommitRecord(id="merge", parents=["main", "other"], creation_date=2, meta_range_id="c", version=version),
    ]
    return {each.id: each for each in rows}


@pytest.mark.parametrize(("version", "kept"), [(1, {"merge", "main"}), (0, {"merge", "other"})])
def test_which_parent_a_branch_was_on_before_a_merge(version: int, kept: set[str]) -> None:
    """Old versions of lakeFS wrote the parent that was merged first."""
    rules = read_rules('{"default_retention_days": 0, "keep_last": 2}').rules
    assert keep_more(rules, make_history(version), {"main": "merge"}, {}, DAY_MS) == kept


def test_an_old_server_does_not_say_it() -> None:
    rules = read_rules('{"default_retention_days": 0, "keep_last": 2}').rules
    with pytest.raises(Invalid, match="update lakeFS"):
        keep_more(rules, make_history(None), {"main": "merge"}, {}, DAY_MS)


@pytest.mark.parametrize(
    ("first_key", "last_key", "expected"),
    [
        (b"a", b"b", False),
        (b"a", b"contracts/1", True),
        (b"contracts/5", b"contracts/6", True),
        (b"contracts/5", b"d", True),
        (b"contracts0", b"d", False),
        (b"a", b"z", True),
        (b"a", b"contracts", False),
    ],
)
def test_ranges_that_may_have_held_paths(first_key: bytes, last_key: bytes, expected: bool) -> None:
    assert overlaps(RangeRef("x", first_key, last_key, 1), [b"contracts/"]) == expected
