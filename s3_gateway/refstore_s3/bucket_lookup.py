"""Find the repository, and for a pinned bucket the branch, that a bucket's name stands for.

Buckets are pinned by an access key, for those who use it; and for all by a setting: `s3.buckets` names their branches,
and with `s3.create_buckets` a bucket that an S3 client created is its repository's default branch. That is kept in the
repository's record, and counts only while the setting is on.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from refstore.configuration.settings import S3Settings
from refstore.core import ids
from refstore.core.pinned_buckets import parse_pinned_buckets
from refstore.errors import InvalidName
from refstore.records.repository_records import RepositoryRecord
from refstore_http.principals import Principal
from refstore_http.service import Service
from refstore_s3.s3_errors import S3Error
from refstore_s3.targets import S3Bucket

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
        self._is_created_pinned = settings.create_buckets
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
        if not self._is_created_pinned or parsed.branch:
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
        created = {str(name): record for name, record in self._service.lake.repositories()}
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
        is_pinned = self._is_created_pinned and record.is_bucket
        return S3Bucket(name, name, record.default_branch if is_pinned else "")
