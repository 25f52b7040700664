"""Delete and tag many objects: several batches at once, with an answer for every key. Keys that fail for the moment
are tried again, in a bounded number of rounds with jittered pauses. The keys that still fail are returned with the
store's reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from refstore.core.clock import Clock
from refstore.errors import ObjectNotFound, RefstoreError
from refstore.objects.base import OWN_FILES, DeleteResult
from refstore.objects.s3 import errors
from refstore.objects.s3.client import CONCURRENT_REQUESTS, Bucket
from refstore.objects.s3.errors import KeyRefusal, ServerError, refusal_of
from refstore.objects.s3.versions import BucketVersions

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef, TagTypeDef

DELETE_KEYS_MAX: Final = 1000
"""S3's limit for one bulk delete."""
_SINGLE_KEYS: Final = 50
"""Keys of one batch where each takes a request of its own: a tagging, or a listing of its versions."""
ROUNDS_MAX: Final = 4
_PAUSE_SECONDS: Final = 0.25
"""The first pause lasts at most this long, each next one at most twice as long as the one before."""
_PERMANENT: Final = frozenset(
    {"AccessDenied", "MethodNotAllowed", "InvalidArgument", "NoSuchBucket", "NoSuchVersion", "KeyTooLongError"}
)
"""Error codes of single keys for which another round would fail in the same way."""
_NO_ETAGS: Final[Mapping[str, str]] = {}


class BulkOutcome(NamedTuple):
    done_keys: tuple[str, ...]
    missing_keys: tuple[str, ...]
    failed_keys: tuple[tuple[str, str], ...]
    changed_keys: tuple[str, ...] = ()


BulkAttempt = Callable[[Sequence[str]], Mapping[str, KeyRefusal]]
"""One attempt for some keys. It returns the refused keys; all others were done."""


class BulkRequests:
    def __init__(self, bucket: Bucket, versions: BucketVersions, *, clock: Clock, rng: random.Random) -> None:
        self._bucket = bucket
        self._versions = versions
        self._clock = clock
        self._rng = rng

    def delete(self, keys: Sequence[str], etags: Mapping[str, str] | None = None) -> DeleteResult:
        """`etags`: of the keys that are deleted only while they have these, if the server knows such a condition."""
        if self._versions.needs_version_deletion:
            return self._delete_with_versions(keys, etags or {})
        hidden: set[str] = set()
        are_kept = self._versions.are_kept()

        def once(batch: Sequence[str]) -> dict[str, KeyRefusal]:
            return self._delete_once(batch, None if are_kept is not None else hidden, etags or {})

        done, missing, failed, changed = self._run_batches(keys, DELETE_KEYS_MAX, once)
        reason = f"bucket {self._bucket.name!r} keeps it as a version"
        kept = tuple((key, reason) for key in done if are_kept or key in hidden)
        return DeleteResult(done, missing, failed, kept, changed)

    def _delete_with_versions(self, keys: Sequence[str], etags: Mapping[str, str]) -> DeleteResult:
        """Delete keys with all their versions. An own file of which a version is locked is hidden by a delete marker:
        what it says (that a run is on, that writes were lost) must not stand any longer.
        """
        once = partial(self._versions.delete_once, etags=etags)
        done, missing, failed, changed = self._run_batches(keys, _SINGLE_KEYS, once)
        locked = {key: reason for key, reason in failed if key.startswith(OWN_FILES)}
        if not locked:
            return DeleteResult(done, missing, failed, changed_keys=changed)
        hidden = self._run_batches([*locked], DELETE_KEYS_MAX, self._delete_once).done_keys
        return DeleteResult(
            (*done, *hidden),
            missing,
            tuple((key, reason) for key, reason in failed if key not in hidden),
            tuple((key, locked[key]) for key in hidden),
            changed,
        )

    def tag(self, keys: Sequence[str], tags: Mapping[str, str]) -> BulkOutcome:
        def once(batch: Sequence[str]) -> dict[str, KeyRefusal]:
            return {key: refusal for key in batch if (refusal := self._tag_once(key, tags)) is not None}

        return self._run_batches(keys, _SINGLE_KEYS, once)

    def _run_batches(self, keys: Sequence[str], size: int, once: BulkAttempt) -> BulkOutcome:
        unique = tuple(dict.fromkeys(keys))
        batches = [unique[at : at + size] for at in range(0, len(unique), size)]
        failures: list[RefstoreError] = []

        def run(batch: Sequence[str]) -> dict[str, KeyRefusal]:
            if failures:  # the store failed for a whole batch: trying all the others would take hours
                return {key: KeyRefusal(str(failures[0]), is_retryable=False, cause=failures[0]) for key in batch}
            refused = _retry_in_rounds(batch, once, self._clock, self._rng)
            causes = [refusal.cause for refusal in refused.values() if refusal.cause is not None]
            if len(causes) == len(batch):
                failures.append(causes[0])
            return refused

        refused: dict[str, KeyRefusal] = {}
        with ThreadPoolExecutor(CONCURRENT_REQUESTS, thread_name_prefix="refstore-s3") as workers:
            for batch_refused in workers.map(run, batches) if len(batches) > 1 else map(run, batches):
                refused.update(batch_refused)
        return _sort_outcomes(unique, refused)

    def _delete_once(
        self, keys: Sequence[str], hidden: set[str] | None = None, etags: Mapping[str, str] = _NO_ETAGS
    ) -> dict[str, KeyRefusal]:
        """Delete keys. `hidden` gets those that the server hid by a delete marker; None: they are not asked for."""
        bucket = self._bucket
        full = {bucket.full_key(key): key for key in keys}
        objects: list[ObjectIdentifierTypeDef] = [
            {"Key": at, "ETag": etags[key]} if etags.get(key) else {"Key": at} for at, key in full.items()
        ]
        try:
            with bucket.translate_errors(f"deleting {len(keys)} objects"):
                answer = bucket.client.delete_objects(
                    Bucket=bucket.name, Delete={"Objects": objects, "Quiet": hidden is None}
                )
        except RefstoreError as error:
            return {key: refusal_of(error) for key in keys}
        bucket.seen = True
        if hidden is not None:
            marked = (entry.get("Key", "") for entry in answer.get("Deleted", ()) if entry.get("DeleteMarker"))
            hidden.update(full[key] for key in marked if key in full)
        refused: dict[str, KeyRefusal] = {}
        for entry in answer.get("Errors", ()):
            key_error = ServerError(entry.get("Code", "unknown"), 0, entry.get("Message", ""))
            key = full.get(entry.get("Key", ""))
            if key is None:  # some key was not deleted, and it is not clear which: nothing of this batch is confirmed
                return {
                    key: KeyRefusal(f"{key_error}, for a key that was not requested", is_retryable=False)
                    for key in keys
                }
            missing = key_error.code in errors.MISSING
            changed = key in etags and key_error.code in errors.PRECONDITION
            retry = not (missing or changed or key_error.code in _PERMANENT)
            refused[key] = KeyRefusal(str(key_error), retry, missing, is_changed=changed)
        return refused

    def _tag_once(self, key: str, tags: Mapping[str, str]) -> KeyRefusal | None:
        bucket = self._bucket
        tag_set: list[TagTypeDef] = [{"Key": name, "Value": value} for name, value in tags.items()]
        try:
            with bucket.translate_errors(f"tagging {key!r}", errors.TAGGING_RIGHTS):
                if not tags:  # an empty set of tags is valid, but not every server accepts it
                    bucket.client.delete_object_tagging(Bucket=bucket.name, Key=bucket.full_key(key))
                    return None
                bucket.client.put_object_tagging(
                    Bucket=bucket.name, Key=bucket.full_key(key), Tagging={"TagSet": tag_set}
                )
        except ObjectNotFound as error:
            return KeyRefusal(str(error), is_retryable=False, is_missing=True)
        except RefstoreError as error:
            return refusal_of(error)
        return None


def _retry_in_rounds(keys: Sequence[str], once: BulkAttempt, clock: Clock, rng: random.Random) -> dict[str, KeyRefusal]:
    """Return the keys that are still refused after the last round."""
    refused: dict[str, KeyRefusal] = {}
    pending = keys
    for number in range(ROUNDS_MAX):
        if number:
            clock.sleep(rng.uniform(0, _PAUSE_SECONDS * 2 ** (number - 1)))
        answer = once(pending)
        for key in pending:
            refused.pop(key, None)
        refused.update(answer)
        pending = [key for key, refusal in answer.items() if refusal.is_retryable]
        if not pending:
            break
    return refused


def _sort_outcomes(keys: Sequence[str], refused: Mapping[str, KeyRefusal]) -> BulkOutcome:
    """Sort `keys` by their outcome. Raises the store's error if the store answered for none of them."""
    missing = tuple(key for key, refusal in refused.items() if refusal.is_missing)
    changed = tuple(key for key, refusal in refused.items() if refusal.is_changed)
    failed = tuple((key, each.reason) for key, each in refused.items() if not (each.is_missing or each.is_changed))
    causes = [refusal.cause for refusal in refused.values() if refusal.cause is not None]
    if causes and len(causes) == len(keys):
        raise causes[0]
    return BulkOutcome(tuple(key for key in keys if key not in refused), missing, failed, changed)
