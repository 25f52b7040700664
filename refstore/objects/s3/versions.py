"""Buckets that keep versions: whether a bucket is one, and how a key is deleted with all its versions.

In such a bucket a deletion only adds a delete marker: every byte stays, as a version that no listing shows. With
`delete_versions=1` in the store's URL a deletion removes the versions themselves, each by its id. Object lock (a
retention period, or a legal hold of S3) refuses that version by version; the reason then names what keeps it.

The newest version of a key goes last, and only if all others are gone. Otherwise an older content would show again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Final, NamedTuple

from botocore.exceptions import ClientError

from refstore.core.clock import Clock
from refstore.errors import RefstoreError
from refstore.objects.base import KeptVersions
from refstore.objects.s3 import errors
from refstore.objects.s3.client import FAILURES, Bucket, said
from refstore.objects.s3.errors import Said
from refstore.objects.s3.rounds import Refusal, refusal_of

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef

ASK_SECONDS: Final = 300.0
"""How long an answer of the bucket counts for deletions. Versioning may be switched on at any time."""
VERSIONS_MAX: Final = 1000
"""S3's limit for one bulk delete, and for one page of versions."""
_RIGHTS: Final = "s3:ListBucketVersions and s3:DeleteObjectVersion"
_UNKNOWN_TO_SERVER: Final = ("NotImplemented", "MethodNotAllowed")
_GONE: Final = errors.MISSING | {"NoSuchVersion"}
_LOCKED: Final = frozenset({"AccessDenied", "ObjectLocked", "InvalidRequest", "MethodNotAllowed"})
"""What servers answer for a version that object lock keeps; also where a right is missing."""


class _Version(NamedTuple):
    key: str
    """In the bucket."""
    version: str
    is_latest: bool
    is_marker: bool


class Versions:
    def __init__(self, bucket: Bucket, *, delete: bool, clock: Clock) -> None:
        """`delete`: whether deletions include the versions."""
        self._bucket = bucket
        self._delete = delete
        self._clock = clock
        self._status: bool | None = None
        self._asked: float | None = None

    def ask(self) -> KeptVersions:
        """Ask whether the bucket keeps versions of what is deleted. Raises ObjectsUnavailable."""
        status = self._ask()
        if self._delete or status is False:
            return KeptVersions(False, "")
        name = self._bucket.name
        if status is None:
            return KeptVersions(
                None,
                f"it is not known whether bucket {name!r} keeps versions of what is deleted; allow "
                "s3:GetBucketVersioning",
            )
        return KeptVersions(
            True,
            f"bucket {name!r} keeps versions of what is deleted, so no space is freed; give it a lifecycle rule with "
            "NoncurrentVersionExpiration, or set delete_versions=1 in the store's URL",
        )

    def are_kept(self) -> bool | None:
        """Return whether the bucket keeps versions, as it was last known. None: not known."""
        now = self._clock.monotonic_seconds()
        if self._asked is None or now - self._asked >= ASK_SECONDS:
            try:
                self._ask()
            except RefstoreError:  # who asked wants to delete; what ails the store is said by that request
                return self._status
        return self._status

    @property
    def go_with_keys(self) -> bool:
        """Whether a deletion has to look for versions."""
        return self._delete and self.are_kept() is not False

    def _ask(self) -> bool | None:
        bucket = self._bucket
        try:
            # The server answers with no status where versioning was never switched on.
            answered = bucket.client.get_bucket_versioning(Bucket=bucket.name).get("Status", "")
            self._status = answered in ("Enabled", "Suspended")
        except ClientError as error:
            is_unknown = said(error).code in _UNKNOWN_TO_SERVER  # with 501, which for other codes may pass
            if not is_unknown and errors.may_pass(said(error)):
                raise bucket.failed(error, "asking whether the bucket keeps versions") from error
            self._status = False if is_unknown else None
        except FAILURES as error:
            raise bucket.failed(error, "asking whether the bucket keeps versions") from error
        self._asked = self._clock.monotonic_seconds()
        return self._status

    def has_any(self, key: str) -> bool:
        """Return whether the key has a version with content. Raises ObjectsUnavailable."""
        return any(not version.is_marker for version in self._of(self._bucket.full(key)))

    def delete_once(self, keys: Sequence[str]) -> dict[str, Refusal]:
        """Delete all versions and delete markers of the keys. One attempt, as of `rounds.Once`."""
        refused: dict[str, Refusal] = {}
        older: list[_Version] = []
        latest: list[_Version] = []
        by_full = {self._bucket.full(key): key for key in keys}
        for full, key in by_full.items():
            try:
                versions = list(self._of(full))
            except RefstoreError as error:
                refused[key] = refusal_of(error)
                continue
            older += [each for each in versions if not each.is_latest]
            latest += [each for each in versions if each.is_latest]
            if all(each.is_marker for each in versions):
                refused[key] = Refusal("", again=False, missing=True)
        for batch in (older, latest):
            going = [each for each in batch if by_full[each.key] not in refused or refused[by_full[each.key]].missing]
            for at in range(0, len(going), VERSIONS_MAX):
                kept = self._delete_batch(going[at : at + VERSIONS_MAX])
                refused.update((by_full[full], refusal) for full, refusal in kept.items())
        return refused

    def _of(self, full: str) -> Iterator[_Version]:
        """Yield the versions and delete markers of one key."""
        bucket, key_marker, version_marker = self._bucket, "", ""
        while True:
            with bucket.translated(f"listing the versions of {full!r}", _RIGHTS):
                page = bucket.client.list_object_versions(
                    Bucket=bucket.name, Prefix=full, KeyMarker=key_marker, VersionIdMarker=version_marker
                )
            for kind, is_marker in ((page.get("Versions", ()), False), (page.get("DeleteMarkers", ()), True)):
                for each in kind:
                    if each.get("Key") == full and (version := each.get("VersionId")):
                        yield _Version(full, version, bool(each.get("IsLatest")), is_marker)
            key_marker, version_marker = page.get("NextKeyMarker", ""), page.get("NextVersionIdMarker", "")
            if not page.get("IsTruncated") or key_marker != full or not version_marker:
                return

    def _delete_batch(self, versions: Sequence[_Version]) -> dict[str, Refusal]:
        """Delete these versions. Return the refused keys of the bucket."""
        bucket = self._bucket
        objects: list[ObjectIdentifierTypeDef] = [{"Key": key, "VersionId": version} for key, version, *_ in versions]
        everything = dict.fromkeys(key for key, *_ in versions)
        try:
            with bucket.translated(f"deleting {len(versions)} versions", _RIGHTS):
                answer = bucket.client.delete_objects(Bucket=bucket.name, Delete={"Objects": objects, "Quiet": True})
        except RefstoreError as error:
            return dict.fromkeys(everything, refusal_of(error))
        refused: dict[str, Refusal] = {}
        for entry in answer.get("Errors", ()):
            key, version = entry.get("Key", ""), entry.get("VersionId", "")
            key_error = Said(entry.get("Code", "unknown"), 0, entry.get("Message", ""))
            if key not in everything:
                reason = f"{key_error}, for a key that was not requested"
                return {key: Refusal(reason, again=False) for key in everything}
            if key_error.code in _GONE or (key in refused and not refused[key].again):
                continue
            locked = key_error.code in _LOCKED
            refused[key] = Refusal(
                self._why_kept(key, version, key_error) if locked else str(key_error), again=not locked
            )
        return refused

    def _why_kept(self, full: str, version: str, key_error: Said) -> str:
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
