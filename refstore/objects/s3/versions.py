"""Buckets that keep versions: whether a bucket is one, and how a key is deleted with all its versions.

In such a bucket a deletion only adds a delete marker: every byte stays, as a version that no listing shows. With
`delete_versions=1` in the store's URL a deletion removes the versions themselves, each by its id. Object lock (a
retention period, or a legal hold of S3) refuses that version by version; the reason then names what keeps it.

The newest version of a key goes last, and only if all others are gone. Otherwise an older content would show again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Final, NamedTuple

from botocore.exceptions import ClientError

from refstore.core.clock import Clock
from refstore.errors import RefstoreError
from refstore.objects.base import VersioningStatus
from refstore.objects.s3 import errors
from refstore.objects.s3.client import FAILURES, Bucket, parse_server_error
from refstore.objects.s3.errors import KeyRefusal, ServerError, refusal_of

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef

ASK_SECONDS: Final = 300.0
"""How long an answer of the bucket counts for deletions. Versioning may be switched on at any time."""
VERSIONS_MAX: Final = 1000
"""S3's limit for one bulk delete, and for one page of versions."""
_RIGHTS: Final = "s3:ListBucketVersions and s3:DeleteObjectVersion"
_NO_ETAGS: Final[Mapping[str, str]] = {}
_UNKNOWN_TO_SERVER: Final = ("NotImplemented", "MethodNotAllowed")
_GONE: Final = errors.MISSING | {"NoSuchVersion"}
_LOCKED: Final = frozenset({"AccessDenied", "ObjectLocked", "InvalidRequest", "MethodNotAllowed"})
"""What servers answer for a version that object lock keeps; also where a right is missing."""


class _ObjectVersion(NamedTuple):
    key: str
    """In the bucket."""
    version_id: str
    is_latest: bool
    is_marker: bool
    etag: str


class BucketVersions:
    def __init__(self, bucket: Bucket, *, delete: bool, clock: Clock) -> None:
        """`delete`: whether deletions include the versions."""
        self._bucket = bucket
        self._delete = delete
        self._clock = clock
        self._status: bool | None = None
        self._asked: float | None = None

    def query_status(self) -> VersioningStatus:
        """Ask whether the bucket keeps versions of what is deleted. Raises ObjectsUnavailable."""
        status = self._query_versioning()
        if self._delete or status is False:
            return VersioningStatus(False, "")
        name = self._bucket.name
        if status is None:
            return VersioningStatus(
                None,
                f"it is not known whether bucket {name!r} keeps versions of what is deleted; allow "
                "s3:GetBucketVersioning",
            )
        return VersioningStatus(
            True,
            f"bucket {name!r} keeps versions of what is deleted, so no space is freed; give it a lifecycle rule with "
            "NoncurrentVersionExpiration, or set delete_versions=1 in the store's URL",
        )

    def are_kept(self) -> bool | None:
        """Return whether the bucket keeps versions, as it was last known. None: not known."""
        now = self._clock.monotonic_seconds()
        if self._asked is None or now - self._asked >= ASK_SECONDS:
            try:
                self._query_versioning()
            except RefstoreError:  # who asked wants to delete; what ails the store is said by that request
                return self._status
        return self._status

    @property
    def needs_version_deletion(self) -> bool:
        """Whether a deletion has to look for versions."""
        return self._delete and self.are_kept() is not False

    def _query_versioning(self) -> bool | None:
        bucket = self._bucket
        try:
            # The server answers with no status where versioning was never switched on.
            answered = bucket.client.get_bucket_versioning(Bucket=bucket.name).get("Status", "")
            self._status = answered in ("Enabled", "Suspended")
        except ClientError as error:
            is_unknown = (
                parse_server_error(error).code in _UNKNOWN_TO_SERVER
            )  # with 501, which for other codes may pass
            if not is_unknown and errors.is_transient(parse_server_error(error)):
                raise bucket.translate_error(error, "asking whether the bucket keeps versions") from error
            self._status = False if is_unknown else None
        except FAILURES as error:
            raise bucket.translate_error(error, "asking whether the bucket keeps versions") from error
        self._asked = self._clock.monotonic_seconds()
        return self._status

    def has_content_version(self, key: str) -> bool:
        """Return whether the key has a version with content. Raises ObjectsUnavailable."""
        return any(not version.is_marker for version in self._versions_of(self._bucket.full_key(key)))

    def delete_once(self, keys: Sequence[str], etags: Mapping[str, str] = _NO_ETAGS) -> dict[str, KeyRefusal]:
        """Delete all versions and delete markers of the keys. One attempt (`BulkAttempt`). `etags`: of the keys that
        stay if their newest version has another one. What is written after this look is a version that stays.
        """
        refused: dict[str, KeyRefusal] = {}
        older: list[_ObjectVersion] = []
        latest: list[_ObjectVersion] = []
        by_full = {self._bucket.full_key(key): key for key in keys}
        for full, key in by_full.items():
            try:
                versions = list(self._versions_of(full))
            except RefstoreError as error:
                refused[key] = refusal_of(error)
                continue
            newest = [each.etag for each in versions if each.is_latest and each.etag]
            if etags.get(key) and newest not in ([], [etags[key]]):
                refused[key] = KeyRefusal("its newest version has another ETag", is_retryable=False, is_changed=True)
                continue
            older += [each for each in versions if not each.is_latest]
            latest += [each for each in versions if each.is_latest]
            if all(each.is_marker for each in versions):
                refused[key] = KeyRefusal("", is_retryable=False, is_missing=True)
        for batch in (older, latest):
            going = [
                each for each in batch if by_full[each.key] not in refused or refused[by_full[each.key]].is_missing
            ]
            for at in range(0, len(going), VERSIONS_MAX):
                kept = self._delete_batch(going[at : at + VERSIONS_MAX])
                refused.update((by_full[full], refusal) for full, refusal in kept.items())
        return refused

    def _versions_of(self, full: str) -> Iterator[_ObjectVersion]:
        """Yield the versions and delete markers of one key."""
        bucket, key_marker, version_marker = self._bucket, "", ""
        while True:
            with bucket.translate_errors(f"listing the versions of {full!r}", _RIGHTS):
                page = bucket.client.list_object_versions(
                    Bucket=bucket.name, Prefix=full, KeyMarker=key_marker, VersionIdMarker=version_marker
                )
            for kind, is_marker in ((page.get("Versions", ()), False), (page.get("DeleteMarkers", ()), True)):
                for each in kind:
                    if each.get("Key") == full and (version := each.get("VersionId")):
                        etag = str(each.get("ETag", "")).strip('"')
                        yield _ObjectVersion(full, version, bool(each.get("IsLatest")), is_marker, etag)
            key_marker, version_marker = page.get("NextKeyMarker", ""), page.get("NextVersionIdMarker", "")
            if not page.get("IsTruncated") or key_marker != full or not version_marker:
                return

    def _delete_batch(self, versions: Sequence[_ObjectVersion]) -> dict[str, KeyRefusal]:
        """Delete these versions. Return the refused keys of the bucket."""
        bucket = self._bucket
        objects: list[ObjectIdentifierTypeDef] = [{"Key": key, "VersionId": version} for key, version, *_ in versions]
        everything = dict.fromkeys(key for key, *_ in versions)
        try:
            with bucket.translate_errors(f"deleting {len(versions)} versions", _RIGHTS):
                answer = bucket.client.delete_objects(Bucket=bucket.name, Delete={"Objects": objects, "Quiet": True})
        except RefstoreError as error:
            return dict.fromkeys(everything, refusal_of(error))
        refused: dict[str, KeyRefusal] = {}
        for entry in answer.get("Errors", ()):
            key, version = entry.get("Key", ""), entry.get("VersionId", "")
            key_error = ServerError(entry.get("Code", "unknown"), 0, entry.get("Message", ""))
            if key not in everything:
                reason = f"{key_error}, for a key that was not requested"
                return {key: KeyRefusal(reason, is_retryable=False) for key in everything}
            if key_error.code in _GONE or (key in refused and not refused[key].is_retryable):
                continue
            locked = key_error.code in _LOCKED
            refused[key] = KeyRefusal(
                self._kept_reason(key, version, key_error) if locked else str(key_error), is_retryable=not locked
            )
        return refused

    def _kept_reason(self, full: str, version: str, key_error: ServerError) -> str:
        """Return what keeps a version that the server refuses to delete."""
        try:
            head = self._bucket.client.head_object(Bucket=self._bucket.name, Key=full, VersionId=version)
        except FAILURES:
            return f"{key_error}: a version of it is kept; allow {_RIGHTS}"
        if head.get("ObjectLockLegalHoldStatus") == "ON":
            return f"{key_error}: a legal hold of S3 keeps version {version}; take it off the version"
        if "ObjectLockRetainUntilDate" in head:
            until = head["ObjectLockRetainUntilDate"]
            mode = str(head.get("ObjectLockMode", "")).lower()
            until_text = until.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            return f"{key_error}: object lock ({mode} retention) keeps version {version} until {until_text}"
        return (
            f"{key_error}: version {version} is kept; allow {_RIGHTS}, or look for object lock and MFA delete (with "
            "s3:GetObjectRetention and s3:GetObjectLegalHold the reason stands here)"
        )
