"""A bucket's lifecycle rules, and whether it keeps what was deleted. All users of the bucket share one
configuration, and it cannot be changed conditionally.
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
        raise bucket.failed(error, "reading the lifecycle rules", LIFECYCLE_RIGHTS) from error
    except FAILURES as error:
        raise bucket.failed(error, "reading the lifecycle rules", LIFECYCLE_RIGHTS) from error
    return cast("list[dict[str, Any]]", answer.get("Rules", []))


def write_rules(bucket: Bucket, rules: Sequence[Mapping[str, Any]]) -> None:
    configuration = cast("Any", {"Rules": [dict(rule) for rule in rules]})
    with bucket.translated("setting the lifecycle rules", LIFECYCLE_RIGHTS):
        bucket.client.put_bucket_lifecycle_configuration(Bucket=bucket.name, LifecycleConfiguration=configuration)


def why_deleted_stays(bucket: Bucket) -> str:
    """Return why objects that were deleted may stay in the bucket; '': they do not, or the server knows no versions."""
    try:
        status = bucket.client.get_bucket_versioning(Bucket=bucket.name).get("Status", "")
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in ("NotImplemented", "MethodNotAllowed"):
            return ""
        return f"whether bucket {bucket.name!r} keeps versions cannot be asked ({code}); allow s3:GetBucketVersioning"
    except FAILURES as error:
        raise bucket.failed(error, "reading whether the bucket keeps versions", "s3:GetBucketVersioning") from error
    if status not in ("Enabled", "Suspended"):
        return ""
    return (
        f"bucket {bucket.name!r} keeps versions of deleted objects; give it a lifecycle rule with "
        "NoncurrentVersionExpiration, or delete the versions"
    )
