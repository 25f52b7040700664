"""Find what a bucket and a key name: a repository, a ref and a path.

A bucket is a repository, and its keys are `REF/PATH`. In the ref of a key, `%2F` stands for a slash. A pinned bucket is
one branch, and its keys are paths.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from refstore.core import ids
from refstore.errors import InvalidPath
from refstore_s3.s3_errors import S3Error

_SLASH = re.compile("%2f", re.IGNORECASE)


class S3Bucket(NamedTuple):
    name: str
    repository: str
    branch: str = ""
    """The branch that a pinned bucket is; '': the keys name a ref."""


class Target(NamedTuple):
    """What a key names."""

    bucket: S3Bucket
    key: str
    ref: str
    path: str

    @property
    def repository(self) -> str:
        return self.bucket.repository


def split_key(bucket: S3Bucket, key: str) -> Target:
    """Split a key into ref and path; either may be empty."""
    if bucket.branch:
        return Target(bucket, key, bucket.branch, key)
    segment, _, path = key.partition("/")
    return Target(bucket, key, decode_ref(segment), path)


def make_key(bucket: S3Bucket, ref: str, path: str) -> str:
    """Return the key of a path."""
    return path if bucket.branch else f"{encode_ref(ref)}/{path}"


def encode_ref(ref: str) -> str:
    """Write a ref as the first segment of a key."""
    return ref.replace("/", "%2F")


def decode_ref(segment: str) -> str:
    return _SLASH.sub("/", segment) if "%" in segment else segment


def check_path(target: Target) -> str:
    """Return the path of an object. Raises S3Error."""
    if len(target.path.encode(errors="replace")) > ids.PATH_BYTES_MAX:
        raise S3Error("KeyTooLongError", f"the path of a key has at most {ids.PATH_BYTES_MAX} bytes; shorten it")
    if not target.path and not target.bucket.branch:
        raise S3Error(
            "InvalidArgument",
            f"{target.key[:80]!r} names no object; a key of this bucket is REF/PATH, such as main/{target.ref[:40]}",
        )
    try:
        return ids.object_path(target.path)
    except InvalidPath as error:
        raise S3Error("InvalidArgument", str(error)) from None
