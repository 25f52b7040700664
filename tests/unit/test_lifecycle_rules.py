"""The lifecycle rules of repositories that share a bucket."""

from __future__ import annotations

from typing import Any, cast

import pytest

from offline_gc import lifecycle
from refstore.objects.base import ObjectStore


class Bucket:
    def __init__(self) -> None:
        self.rules: list[dict[str, Any]] = []
        self.url = ""

    def at(self, url: str) -> ObjectStore:
        self.url = url
        return cast(ObjectStore, self)

    def lifecycle_rules(self) -> list[dict[str, Any]]:
        return list(self.rules)

    def set_lifecycle_rules(self, rules: list[dict[str, Any]]) -> None:
        self.rules = rules


@pytest.mark.parametrize(("one", "other"), [("lake/sales", "lake-sales"), ("a" * 300 + "/one", "a" * 300 + "/two")])
def test_a_namespaces_rule_does_not_take_the_place_of_anothers(one: str, other: str) -> None:
    bucket = Bucket()
    lifecycle.apply(bucket.at(f"s3://bucket/{one}"))
    lifecycle.apply(bucket.at(f"s3://bucket/{other}"))
    lifecycle.apply(bucket.at(f"s3://bucket/{other}"))
    assert [each["Filter"]["And"]["Prefix"] for each in bucket.rules] == [f"{one}/", f"{other}/"]
