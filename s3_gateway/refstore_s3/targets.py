"""Find what a bucket and a key name: a repository, a ref and a path.

A bucket is a repository, and its keys are `REF/PATH`. In the ref of a key, `%2F` stands for a slash. A pinned bucket is
one branch, and its keys are paths.

Buckets are pinned by an access key, for those who use it; and for all by a setting: `s3.buckets` names their branches,
and a bucket that an S3 client created is its repository's default branch, which is kept in the repository's record.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from refstore.configuration.settings import S3Settings
from refstore.core import ids
from refstore.core.ids import decode_ref, encode_ref
from refstore.core.pinned_buckets import parse_pinned_buckets
from refstore.errors import InvalidName, InvalidPath
from refstore.records.repository_records import RepositoryRecord
from refstore_http.principals import Principal
from refstore_http.service import Service
from refstore_s3.s3_errors import S3Error


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


LOOKUP_SECONDS: Final = 5.0
LOOKUPS_MAX: Final = 1024


class BucketRow(NamedTuple):
    """A bucket of a listing."""

    bucket: S3Bucket
    created_ms: int


class BucketLookup:
    """Find buckets; used by the event loop only, but for `scan`."""

    def __init__(self, service: Service, settings: S3Settings) -> None:
        self._service = service
        self._pinned = {name: S3Bucket(*each) for name, each in parse_pinned_buckets(settings.buckets).items()}
        self._found: OrderedDict[str, tuple[S3Bucket, float]] = OrderedDict()

    def parse(self, name: str, principal: Principal) -> S3Bucket:
        """Return what a name says by itself to a caller, which is enough to check rights: the repository. Raises
        S3Error.
        """
        if (of_key := parse_pinned_buckets(principal.buckets).get(name)) is not None:
            return S3Bucket(*of_key)
        if (pinned := self._pinned.get(name)) is not None:
            return pinned
        try:
            ids.repository_name(name)
        except InvalidName as error:
            raise S3Error("InvalidBucketName", str(error)) from None
        return S3Bucket(name, name)

    async def find(self, parsed: S3Bucket) -> S3Bucket:
        """Return the bucket. Whether its repository is there is checked by whoever reads or writes it. Raises
        RepositoryNotFound.
        """
        name = parsed.name
        if parsed.branch:
            return parsed
        found, until = self._found.get(name, (None, 0.0))
        if found is None or time.monotonic() >= until:
            found = await self._service.run(lambda: self._read(name))
            self._found[name] = found, time.monotonic() + LOOKUP_SECONDS
            self._found.move_to_end(name)
            while len(self._found) > LOOKUPS_MAX:
                self._found.popitem(last=False)
        return found

    def forget(self, name: str) -> None:
        """Look the bucket up again: this process created or deleted it."""
        self._found.pop(name, None)

    def is_set(self, name: str, principal: Principal) -> bool:
        """Return whether the name is one of `s3.buckets`, or of the caller's key."""
        return name in self._pinned or name in parse_pinned_buckets(principal.buckets)

    def scan(self, principal: Principal) -> Iterator[BucketRow]:
        """Yield all buckets, as they are for a caller, in order of name, in a thread."""
        pins = self._pinned | {name: S3Bucket(*each) for name, each in parse_pinned_buckets(principal.buckets).items()}
        created = {str(name): record for name, record in self._service.lake.repository_records()}
        rows = [
            BucketRow(bucket, created[bucket.repository].created_ms)
            for bucket in pins.values()
            if bucket.repository in created
        ]
        rows += [
            BucketRow(self._make(name, record), record.created_ms)
            for name, record in created.items()
            if name not in pins
        ]
        return iter(sorted(rows))

    def _read(self, name: str) -> S3Bucket:
        return self._make(name, self._service.lake.repository(name).record)

    def _make(self, name: str, record: RepositoryRecord) -> S3Bucket:
        return S3Bucket(name, name, record.default_branch if record.is_bucket else "")
