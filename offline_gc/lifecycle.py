"""The bucket's lifecycle rule for the sweep's mode `tag`: objects with the tag are deleted by the store itself. Needs no Spark.

A bucket has one lifecycle configuration, which belongs to everybody who uses it. So by default the rule is printed, for the bucket's
owner to merge.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from offline_gc.places import TAG
from refstore.errors import Conflict, Invalid
from refstore.objects.base import ObjectStore

RULE_ID: Final = "refstore-expire"
WARNING: Final = (
    "A bucket has one lifecycle configuration for all who use it. The rule below deletes every object of the prefix that has the tag"
    f" {TAG}, whoever set it; applying it replaces nothing else, but a bucket that others share is theirs to decide on, too."
)


def rule(prefix: str) -> dict[str, Any]:
    """As S3's PutBucketLifecycleConfiguration has it. A day is the least that it knows."""
    return {
        "ID": _id(prefix),
        "Status": "Enabled",
        "Filter": {"And": {"Prefix": prefix, "Tags": [{"Key": TAG, "Value": "true"}]}},
        "Expiration": {"Days": 1},
    }


def _id(prefix: str) -> str:
    """The prefix as it can be read, cut off, and what no other prefix has."""
    if not prefix:
        return RULE_ID
    return f"{RULE_ID}-{prefix.strip('/').replace('/', '-')}"[:200] + f"-{hashlib.sha256(prefix.encode()).hexdigest()[:16]}"


def configuration(store: ObjectStore) -> dict[str, Any]:
    """Raises Invalid: the store has no such thing."""
    return {"Rules": [rule(_prefix(store))]}


def apply(store: ObjectStore) -> dict[str, Any]:
    """Put the rule into the bucket's configuration, beside what is there. Raises Invalid, Conflict (somebody changed it meanwhile)."""
    own = rule(_prefix(store))
    rules = [each for each in store.lifecycle_rules() if each.get("ID") != own["ID"]]
    store.set_lifecycle_rules([*rules, own])
    if own["ID"] not in {each.get("ID") for each in store.lifecycle_rules()}:
        raise Conflict("the bucket's lifecycle configuration was changed by others meanwhile; apply the rule again")
    return {"Rules": [*rules, own]}


def _prefix(store: ObjectStore) -> str:
    if not store.url.startswith("s3://"):
        raise Invalid(f"{store.url} has no lifecycle rules; the mode 'tag' is for s3:// stores")
    path = store.url.partition("?")[0].removeprefix("s3://").partition("/")[2].strip("/")
    return f"{path}/" if path else ""
