"""`refstore.Retention`: the rules document with periods of type `timedelta`."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import refstore
from refstore import Dataset, LegalHold, PathRetention, Pins, PurgeDocument, Repository, Retention
from refstore.core.clock import to_datetime, to_ms
from refstore.errors import Invalid, InvalidRules
from refstore.retention.rules import DAYS_MAX, read_rules
from tests.kit.clock import FakeClock

COMMIT = "6e40" * 16
DOCUMENT = f"""{{
  "default_retention_days": 30,
  "branches": [
    {{"branch_id": "main", "retention_days": 90}}, {{"branch_id": "release/*", "retention_days": {DAYS_MAX}}}
  ],
  "keep_last": 3,
  "keep_latest_view": true,
  "grace_days": 0,
  "pins": {{"tags": ["v*"], "commits": ["{COMMIT}"]}},
  "legal_holds": [{{"prefix": "contracts/", "reason": "case 4711"}}],
  "rules": [
    {{"filter": {{"prefix": "tmp/", "branch": "*"}}, "expiration": {{"noncurrent": {{"days": 1, "weeks": 1}}}}}},
    {{
      "expiration": {{"all": {{"days": 9}}, "uncommitted": {{"days": 2}}}},
      "status": "disabled", "description": "later"
    }}
  ],
  "allow_deletion_from_latest_view": true,
  "hide_marked": true,
  "description": "ours"
}}"""
RETENTION = Retention(
    default=timedelta(days=30),
    branches={"main": timedelta(days=90), "release/*": timedelta.max},
    keep_last=3,
    keep_latest_view=True,
    grace=timedelta(0),
    pins=Pins(("v*",), (COMMIT,)),
    legal_holds=[LegalHold("contracts/", "case 4711")],
    paths=[
        PathRetention(prefix="tmp/", branch="*", noncurrent=timedelta(days=8)),
        PathRetention(all=timedelta(days=9), uncommitted=timedelta(days=2), is_enabled=False, description="later"),
    ],
    allow_deletion_from_latest_view=True,
    hide_marked=True,
    description="ours",
)


def test_json_is_one_way_to_write_it() -> None:
    assert Retention.from_json(DOCUMENT) == RETENTION
    assert Retention.from_json(RETENTION.to_json()) == RETENTION
    assert pickle.loads(pickle.dumps(RETENTION)) == RETENTION  # noqa: S301  # its own


def test_every_field_of_the_document_has_its_own() -> None:
    default = read_rules(Retention().to_json()).rules
    changed = RETENTION.to_rules()
    assert [name for name in default.__struct_fields__ if getattr(default, name) == getattr(changed, name)] == []
    assert len(dataclasses.fields(Retention)) == len(default.__struct_fields__)
    assert Retention() == Retention.from_json("{}")


@pytest.mark.parametrize(
    ("fields", "place", "told"),
    [
        ({"default": timedelta(hours=36)}, "default_retention_days", "1 day, 12:00:00 is no whole number of days"),
        ({"default": 30}, "default_retention_days", "a int is no period; write timedelta"),
        ({"default": timedelta(days=-1)}, "default_retention_days", ">= 0"),
        ({"grace": timedelta(days=366)}, "grace_days", "<= 365"),
        ({"branches": {"a": timedelta(1), "b": timedelta(1.5)}}, "branches[1].retention_days", "whole number"),
        ({"branches": {"a b": timedelta(1)}}, "branches[0].branch_id", "a b"),
        ({"keep_last": -1}, "keep_last", ">= 0"),
        ({"pins": Pins(commits=("no",))}, "pins.commits[0]", "no"),
        ({"legal_holds": [LegalHold("/a")]}, "legal_holds[0].prefix", "/a"),
        ({"paths": [PathRetention(prefix="a/")]}, "rules[0].expiration", "at least one"),
        ({"paths": [PathRetention(all=timedelta(0))]}, "rules[0].expiration.all", "1 to"),
        ({"paths": [PathRetention(all=timedelta(seconds=1))]}, "rules[0].expiration.all", "whole number"),
    ],
)
def test_a_mistake_is_refused_when_it_is_made(fields: dict[str, Any], place: str, told: str) -> None:
    with pytest.raises(InvalidRules) as refused:
        Retention(**fields)
    assert place in str(refused.value)
    assert told in str(refused.value)


def test_json_is_refused_as_before() -> None:
    with pytest.raises(InvalidRules, match="unknown field 'legal_hold'; did you mean 'legal_holds'"):
        Retention.from_json('{"legal_hold": []}')


def test_a_repository_takes_it_and_returns_it_with_who_and_when(repo: Repository, clock: FakeClock) -> None:
    rules = Retention(default=timedelta(days=30), legal_holds=(LegalHold("contracts/"),))
    assert repo.review_retention(rules).expired_commits == 0
    repo.set_retention(rules, by="ann")
    in_force = repo.retention()
    assert in_force is not None
    assert (in_force.retention, in_force.document, in_force.set_by) == (rules, rules.to_json(), "ann")
    assert in_force.set_at == to_datetime(clock.now_ms())
    repo.set_retention(rules.to_json())
    assert (in_force := repo.retention()) is not None
    assert in_force.retention == rules


def test_what_is_no_document_is_refused(repo: Repository) -> None:
    calls: list[Any] = [repo.set_retention, repo.review_retention, repo.onboard_purge]
    for call in calls:
        with pytest.raises(Invalid, match="document is of type dict, and must be a JSON text or its typed form"):
            call({"default_retention_days": 30})


def test_a_purge_document_is_typed_as_well(repo: Repository) -> None:
    document = PurgeDocument(("a*",), (Dataset("a", "a/", "id", "erase"),), refstore.BackupPolicy(7, 1))
    assert PurgeDocument.from_json(document.to_json()) == document
    assert repo.onboard_purge(document, dry_run=True).document == document
    with pytest.raises(refstore.errors.NotFound):
        repo.purge_document()
    onboarded = repo.onboard_purge(document, by="ann")
    assert repo.purge_document() == onboarded
    assert (onboarded.text, onboarded.set_by) == (document.to_json(), "ann")


def test_times_beyond_the_calendar_are_its_ends() -> None:
    assert to_datetime(1_700_000_000_123) == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert to_ms(to_datetime(1_700_000_000_123)) == 1_700_000_000_123
    assert to_datetime(2**62) == datetime.max.replace(tzinfo=UTC)
    assert to_datetime(-(2**62)) == datetime.min.replace(tzinfo=UTC)
