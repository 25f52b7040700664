"""What a document of rules adds, removes and changes, and which removals have to be named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refstore.errors import ConsentNeeded
from refstore.retention.rule_changes import check_consent, compare_rules
from refstore.retention.rules import read_rules

ONE, TWO = "1" * 64, "2" * 64
HELD = {"legal_holds": [{"prefix": "contracts/", "reason": "case 4711"}]}


def hold(prefix: str) -> dict[str, Any]:
    return {"legal_holds": [{"prefix": prefix}]}


@pytest.mark.parametrize(
    ("old", "new", "changes", "named"),
    [
        ({}, HELD, ["added: legal hold hold:contracts/ (case 4711)"], []),
        (HELD, {}, ["removed: legal hold hold:contracts/ (case 4711)"], ["hold:contracts/"]),
        (hold(""), {}, ["removed: legal hold hold:"], ["hold:"]),
        (hold("a/"), hold("a/b/"), ["removed: legal hold hold:a/", "added: legal hold hold:a/b/"], ["hold:a/"]),
        (hold("a/b/"), hold("a/"), ["removed: legal hold hold:a/b/", "added: legal hold hold:a/"], []),
        (HELD, hold("contracts/"), ["changed: legal hold hold:contracts/ (case 4711)"], []),
        (
            {"pins": {"commits": [ONE, TWO]}},
            {"pins": {"commits": [TWO]}},
            [f"removed: pin pin:{ONE}"],
            [f"pin:{ONE}"],
        ),
        ({}, {"pins": {"tags": False}}, ["removed: pin tag:*"], ["tag:*"]),
        ({}, {"pins": {"tags": ["v*"]}}, ["removed: pin tag:*", "added: pin tag:v*"], ["tag:*"]),
        ({"pins": {"tags": ["v*"]}}, {}, ["removed: pin tag:v*", "added: pin tag:*"], []),
        (
            {"default_retention_days": 30, "branches": [{"branch_id": "main", "retention_days": 90}]},
            {
                "default_retention_days": 7,
                "branches": [{"branch_id": "dev", "retention_days": 1}],
                "rules": [{"filter": {"prefix": "tmp/", "branch": "dev"}, "expiration": {"noncurrent": {"weeks": 1}}}],
            },
            [
                "removed: branch rule main (90 days)",
                "added: branch rule dev (1 days)",
                "added: path rule tmp/* on dev (noncurrent 7 days)",
                "changed: setting default_retention_days (30 -> 7)",
            ],
            [],
        ),
    ],
)
def test_changes(old: dict[str, Any], new: dict[str, Any], changes: list[str], named: list[str]) -> None:
    before, after = (read_rules(json.dumps(each)).rules for each in (old, new))
    assert [each.text for each in compare_rules(before, after)] == changes
    assert [each.name for each in compare_rules(before, after) if each.needs_consent] == named
    check_consent(before, after, named)
    if named:
        with pytest.raises(ConsentNeeded):
            check_consent(before, after, [])
