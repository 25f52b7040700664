"""`s3://bucket/prefix`: objects in S3, or in a compatible store (Ceph RGW, MinIO, R2, rclone, ...), through boto3.

Options of the URL: `endpoint` (any server; then path-style addresses), `conditional_put=0` for servers that ignore
`If-None-Match`, and `delete_versions=1` to delete objects with their versions in a bucket that keeps versions. Region,
style of addresses and credentials come from the usual AWS configuration, never from the URL: from its default profile,
or, by the settings of a named store, from another one (`profile`).

One module per concern: `client.py` (limits, errors), `object_writer.py`, `multipart.py`, `object_reader.py`,
`object_lister.py`, `bulk_requests.py`, `versions.py`.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from botocore.exceptions import ClientError

from refstore.core.clock import Clock
from refstore.core.units import DAY_SECONDS
from refstore.errors import Invalid, InvalidPath, InvalidSettings, ObjectsRefused
from refstore.objects.base import (
    Body,
    DeleteResult,
    ObjectInfo,
    ObjectPage,
    ObjectStore,
    SkippedKeys,
    StoredObject,
    TagResult,
    VersioningStatus,
    list_objects,
)
from refstore.objects.object_keys import KEY_BYTES_MAX, check_key, check_keys, check_prefix
from refstore.objects.object_look import look_at
from refstore.objects.s3.bulk_requests import BulkRequests
from refstore.objects.s3.client import Bucket, make_client, parse_server_error
from refstore.objects.s3.errors import LIFECYCLE_RIGHTS
from refstore.objects.s3.multipart import S3Multipart
from refstore.objects.s3.object_lister import list_pages
from refstore.objects.s3.object_reader import head_object, head_page, read_object
from refstore.objects.s3.object_writer import ObjectWriter, sweep_uploads
from refstore.objects.s3.versions import BucketVersions
from refstore.objects.store_urls import DELETE_VERSIONS

if TYPE_CHECKING:
    from refstore.objects import OpenOptions
    from refstore.objects.store_urls import StoreURL

OPTIONS: Final = ("endpoint", "conditional_put", DELETE_VERSIONS)
PROFILE: Final = "profile"
"""What the URL of a named store has beside, once it is resolved (`refstore/objects/named_stores.py`)."""
PART_BYTES: Final = 8 << 20
"""Of multipart uploads, which may have 10,000 parts: the largest object has 80 GB."""
PRESIGN_SECONDS_MAX: Final = 7 * DAY_SECONDS
"""S3's limit for a signature of version 4."""


class S3Objects(S3Multipart):
    def __init__(
        self,
        bucket: Bucket,
        *,
        conditional_put: bool,
        delete_versions: bool,
        part_bytes: int,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        super().__init__(bucket)
        self._conditional = conditional_put
        self._writer = ObjectWriter(bucket, part_bytes=part_bytes, conditional=conditional_put, clock=clock, rng=rng)
        self._versions = BucketVersions(bucket, delete=delete_versions, clock=clock)
        self._bulk = BulkRequests(bucket, self._versions, clock=clock, rng=rng)

    @property
    def url(self) -> str:
        return self._bucket.url

    @property
    def conditional_put(self) -> bool:
        return self._conditional

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        return self._writer.put(key, body, if_absent=if_absent)

    def copy(self, source: str, key: str) -> ObjectInfo:
        return self._writer.copy(source, key)

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        chunks = read_object(self._bucket, key, start, end, size_bytes)
        # Run it until the response is open: this call raises its errors, and closing the iterator closes the response.
        next(chunks)
        return chunks

    def head(self, key: str) -> ObjectInfo:
        return head_object(self._bucket, key)

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        skipped = SkippedKeys()
        pages = self.list_pages(prefix, skipped=skipped, after=after, before=before)
        return list_objects(pages, skipped, self.url, prefix)

    def list_pages(
        self, prefix: str = "", *, skipped: SkippedKeys, after: str = "", before: str = ""
    ) -> Iterator[ObjectPage]:
        check_prefix(prefix)
        if len(self._bucket.prefix + after) > KEY_BYTES_MAX:
            raise InvalidPath(
                f"a key to list after has at most {KEY_BYTES_MAX} bytes with the store's prefix; this one has more"
            )
        return list_pages(self._bucket, prefix, skipped, after=after, before=before)

    def delete_many(self, keys: Sequence[str]) -> DeleteResult:
        check_keys(keys)
        return self._bulk.delete(keys)

    def delete_unchanged(self, objects: ObjectPage) -> DeleteResult:
        """Let the server compare ETags as well, if it can: then what is written after the look stays, too. Servers that
        do not know such a condition ignore it. With `conditional_put=0` none is sent.
        """
        check_keys(objects.keys)
        look = look_at(objects, self._list_after, self._head_page)
        if not look.unchanged.keys:
            return look.merge(DeleteResult((), (), ()))
        etags = dict(zip(look.unchanged.keys, look.unchanged.etags, strict=True)) if self._conditional else {}
        try:
            deletion = self._bulk.delete(look.unchanged.keys, etags)
        except ObjectsRefused as error:
            if etags and isinstance(error.__cause__, ClientError) and parse_server_error(error.__cause__).status == 400:
                raise ObjectsRefused(
                    f"{error}; if it takes no ETags, set conditional_put=0 in the store's URL"
                ) from error
            raise
        if deletion.changed_keys:
            refused = {*deletion.changed_keys}
            again = look_at(
                look.unchanged.select([key in refused for key in look.unchanged.keys]),
                self._list_after,
                self._head_page,
            )
            same = (
                (key, "the server says that it has another ETag, and lists this one") for key in again.unchanged.keys
            )
            failed = (*deletion.failed_keys, *same)
            deletion = again.merge(deletion._replace(failed_keys=failed, changed_keys=()))
        return look.merge(deletion)

    def _head_page(self, keys: Sequence[str]) -> ObjectPage:
        return head_page(self._bucket, keys)

    def tag_many(self, keys: Sequence[str], tags: Mapping[str, str]) -> TagResult:
        check_keys(keys)
        return TagResult(*self._bulk.tag(keys, tags)[:3])

    def versioning_status(self) -> VersioningStatus:
        return self._versions.query_status()

    def is_stored(self, key: str) -> bool:
        return (
            self._versions.has_content_version(key) if self._versions.needs_version_deletion else super().is_stored(key)
        )

    def lifecycle_rules(self) -> list[dict[str, Any]]:
        bucket = self._bucket
        with bucket.translate_errors("reading the lifecycle rules", LIFECYCLE_RIGHTS):
            try:
                answer = bucket.client.get_bucket_lifecycle_configuration(Bucket=bucket.name)
            except ClientError as error:
                if parse_server_error(error).code == "NoSuchLifecycleConfiguration":
                    return []
                raise
        return cast("list[dict[str, Any]]", answer.get("Rules", []))

    def set_lifecycle_rules(self, rules: Sequence[Mapping[str, Any]]) -> None:
        """Replace all rules. All users of the bucket share them, and they cannot be changed conditionally."""
        bucket, configuration = self._bucket, cast("Any", {"Rules": [dict(rule) for rule in rules]})
        with bucket.translate_errors("setting the lifecycle rules", LIFECYCLE_RIGHTS):
            bucket.client.put_bucket_lifecycle_configuration(Bucket=bucket.name, LifecycleConfiguration=configuration)

    def sweep_temporary(self, *, older_than_seconds: float, clock: Clock, spared_keys: Container[str] = ()) -> int:
        """Abort old multipart uploads below the prefix. Their clients were killed, and their parts still cost money."""
        return sweep_uploads(self._bucket, clock.now_ms() - older_than_seconds * 1000, spared_keys)

    def presign_get(self, key: str, *, expires_seconds: int) -> str:
        return self._presign("get_object", key, expires_seconds)

    def presign_put(self, key: str, *, expires_seconds: int, if_absent: bool = False) -> str:
        if if_absent and not self._conditional:
            raise Invalid(f"{self.url} ignores If-None-Match (conditional_put=0), so its URLs replace what is there")
        return self._presign("put_object", key, expires_seconds, **({"IfNoneMatch": "*"} if if_absent else {}))

    def _presign(self, operation: str, key: str, expires_seconds: int, **more: str) -> str:
        full = self._bucket.full_key(key)
        if not 1 <= expires_seconds <= PRESIGN_SECONDS_MAX:
            raise Invalid(f"a presigned URL cannot last {expires_seconds} seconds; use 1 to {PRESIGN_SECONDS_MAX}")
        parameters = {"Bucket": self._bucket.name, "Key": full, **more}
        with self._bucket.translate_errors(f"signing a URL of {key!r}"):
            return self._bucket.client.generate_presigned_url(operation, Params=parameters, ExpiresIn=expires_seconds)

    def close(self) -> None:
        self._bucket.client.close()


def open_s3(url: StoreURL, options: OpenOptions) -> ObjectStore:
    url.check_options(*OPTIONS, unnamed=PROFILE)
    if not url.host or ":" in url.host:
        raise InvalidSettings(
            "an s3:// URL names a bucket; write s3://bucket/prefix, and ?endpoint=http://host:port for the server"
        )
    prefix = url.path.strip("/")
    if prefix:
        check_key(prefix)
    canonical = url._replace(path=f"/{prefix}" if prefix else "")
    return S3Objects(
        Bucket(partial(make_client, url, options.io_timeout_seconds), url.host, prefix, canonical.text()),
        conditional_put=url.boolean_option("conditional_put", default=True),
        part_bytes=PART_BYTES,
        delete_versions=url.boolean_option(DELETE_VERSIONS, default=False),
        clock=options.clock,
        rng=options.rng,
    )
