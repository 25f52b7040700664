"""The bucket's lifecycle rule for the sweep's mode `tag`: the store itself deletes the objects that have the tag. Needs
no Spark.

A bucket has one lifecycle configuration, which belongs to everybody who uses it. So by default the rule is printed, for
the bucket's owner to merge; applied, it is put beside the rules that are there. A repository's rule is for its
namespace. The rule of a whole bucket, one for all repositories, is only for a bucket in which there is nothing but
namespaces of this lake (`check_bucket_is_ours`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from refstore.core.units import DAY_MS
from refstore.errors import Conflict, Invalid
from refstore.gc_marks import OfflineRun
from refstore.lake import Lake
from refstore.objects.base import OWN_FILES, ObjectStore
from refstore.objects.store_urls import DELETE_VERSIONS, parse_store_url
from refstore.records import keys
from refstore.records.encoding import decode
from refstore.records.repository_records import RepositoryRecord
from refstore_gc.run_layout import TAG

RULE_ID: Final = "refstore-expire"
TAG_WAIT_DAYS: Final = 3
"""A bucket deletes what is tagged within two days. What waits longer has no rule that is in force."""
FOREIGN_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class LifecycleRule:
    """One rule of S3's PutBucketLifecycleConfiguration."""

    prefix: str
    """Of the objects' keys; '' for the whole bucket."""
    deletes_versions: bool = False
    """Whether the bucket's versions go, too: without it an expired object stays as one."""

    @property
    def id(self) -> str:
        """The prefix as it can be read, cut off, and what no other prefix has."""
        if not self.prefix:
            return RULE_ID
        shown = f"{RULE_ID}-{self.prefix.strip('/').replace('/', '-')}".rstrip("-")
        return f"{shown[:200]}-{hashlib.sha256(self.prefix.encode()).hexdigest()[:16]}"

    def document(self) -> dict[str, Any]:
        """A day is the least that S3 knows."""
        tag = {"Key": TAG, "Value": "true"}
        which = {"And": {"Prefix": self.prefix, "Tags": [tag]}} if self.prefix else {"Tag": tag}
        rule: dict[str, Any] = {"ID": self.id, "Status": "Enabled", "Filter": which, "Expiration": {"Days": 1}}
        return rule | ({"NoncurrentVersionExpiration": {"NoncurrentDays": 1}} if self.deletes_versions else {})


def repository_rule(store: ObjectStore) -> LifecycleRule:
    """The rule of one repository's namespace. Raises Invalid: the store has no such thing."""
    _, path = _split_bucket_path(store.url)
    return LifecycleRule(f"{path}/" if path else "", deletes_versions(store))


def deletes_versions(store: ObjectStore) -> bool:
    return parse_store_url(store.url).boolean_option(DELETE_VERSIONS, default=False)


def rule_warning(rule: LifecycleRule) -> str:
    """What whoever applies the rule must know."""
    return (
        "A bucket has one lifecycle configuration for all who use it. The rule below deletes every object "
        f"{'below ' + rule.prefix if rule.prefix else 'of the bucket'} that has the tag {TAG}, whoever set it; "
        "applying it replaces nothing else, but a bucket that others share is theirs to decide on, too."
    )


def bucket_configuration(store: ObjectStore, rule: LifecycleRule) -> dict[str, Any]:
    """The bucket's configuration with the rule in it, as `apply_rule` would write it. Raises Invalid: the store has no
    such thing.
    """
    own = rule.document()
    return {"Rules": [*(each for each in store.lifecycle_rules() if each.get("ID") != own["ID"]), own]}


def apply_rule(store: ObjectStore, rule: LifecycleRule) -> dict[str, Any]:
    """Add the rule to the bucket's configuration, beside its other rules. Raises Invalid, and Conflict if another
    client changed the configuration meanwhile.
    """
    made = bucket_configuration(store, rule)
    store.set_lifecycle_rules(made["Rules"])
    if rule.id not in {each.get("ID") for each in store.lifecycle_rules()}:
        raise Conflict("the bucket's lifecycle configuration was changed by others meanwhile; apply the rule again")
    return made


# ---- a bucket that is refstore's alone


def bucket_store(lake: Lake) -> ObjectStore:
    """The bucket that the lake's objects are in, as a whole; the caller closes it. Raises Invalid: they are in none."""
    _split_bucket_path(lake.objects_url)
    return lake.open_url(parse_store_url(lake.objects_url)._replace(path="").text())


def check_bucket_is_ours(lake: Lake, store: ObjectStore) -> None:
    """Raise Conflict unless every object of the bucket lies in this lake's audit log or in a namespace of this lake, of
    a deleted repository's, too.

    Costs one request for each namespace: what lies inside one is skipped.
    """
    bucket, _ = _split_bucket_path(store.url)
    namespaces = [path for at, path in map(_split_s3_url, _namespaces(lake)) if at == bucket]
    if "" in namespaces:
        return
    of_the_lake = f"{_split_s3_url(lake.objects_url)[1]}/{OWN_FILES}".lstrip(
        "/"
    )  # the audit log, the manifest, the witnesses
    own = sorted([of_the_lake, *(f"{path}/" for path in namespaces)])
    found: list[str] = []
    after = ""
    while len(found) < FOREIGN_SHOWN:
        key = next((info.key for info in store.list(after=after)), None)
        if key is None:
            break
        inside = next((prefix for prefix in own if key.startswith(prefix)), None)
        if inside is None:
            found += [
                each.key
                for each in islice(store.list(after=after), FOREIGN_SHOWN)
                if not each.key.startswith(tuple(own))
            ]
            break
        after = inside + keys.LAST_CODE_POINT
    if found:
        raise Conflict(
            f"bucket {bucket} is not this lake's alone: {', '.join(found[:FOREIGN_SHOWN])} lies in no repository's "
            "namespace; apply one rule for each repository: refstore gc lifecycle REPO --apply"
        )


def _namespaces(lake: Lake) -> list[str]:
    closed = (decode(value, RepositoryRecord) for _, value in lake.kv.scan_all(keys.CLOSED_REPOSITORIES))
    return [lake.namespace_url(record) for record in (*(each for _, each in lake.all_repositories()), *closed)]


def _split_s3_url(url: str) -> tuple[str, str]:
    """(bucket, path); two empty texts for what is no bucket."""
    parsed = parse_store_url(url)
    return (parsed.host, parsed.path.strip("/")) if parsed.scheme == "s3" else ("", "")


def _split_bucket_path(url: str) -> tuple[str, str]:
    bucket, path = _split_s3_url(url)
    if not bucket:
        raise Invalid(f"{url.partition('?')[0]} has no lifecycle rules; the mode 'tag' is for s3:// stores")
    return bucket, path


# ---- what waits for the bucket


def find_overdue(waiting: Sequence[OfflineRun], now_ms: int) -> list[str]:
    """A line for each mark that has waited for the bucket for longer than it should."""
    return [
        f"mark {run.mark_id}: {describe_overdue(run.record.tagged_ms)}"
        for run in waiting
        if run.is_tagged and now_ms - run.record.tagged_ms > TAG_WAIT_DAYS * DAY_MS
    ]


def describe_overdue(tagged_ms: int) -> str:
    day = datetime.fromtimestamp(tagged_ms / 1000, UTC).strftime("%Y-%m-%d")
    return (
        f"objects that were tagged on {day} are still there; see that the bucket's lifecycle rule is in force: "
        "refstore gc lifecycle --help"
    )
