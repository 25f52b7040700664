"""A bucket's lifecycle rules. All users of the bucket share one configuration, and it cannot be changed
conditionally.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from botocore.exceptions import ClientError

from refstore.objects.s3.client import FAILURES, Bucket
from refstore.objects.s3.errors import LIFECYCLE_RIGHTS


def read_rules(bucket: Bucket) -> list[dict[str, Any]]:
    try:
        answer = bucket.client.get_bucket_lifecycle_configuration(Bucket=bucket.name)
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == "NoSuchLifecycleConfiguration":
            return []
        raise bucket.translate_error(error, "reading the lifecycle rules", LIFECYCLE_RIGHTS) from error
    except FAILURES as error:
        raise bucket.translate_error(error, "reading the lifecycle rules", LIFECYCLE_RIGHTS) from error
    return cast("list[dict[str, Any]]", answer.get("Rules", []))


def write_rules(bucket: Bucket, rules: Sequence[Mapping[str, Any]]) -> None:
    configuration = cast("Any", {"Rules": [dict(rule) for rule in rules]})
    with bucket.translate_errors("setting the lifecycle rules", LIFECYCLE_RIGHTS):
        bucket.client.put_bucket_lifecycle_configuration(Bucket=bucket.name, LifecycleConfiguration=configuration)
