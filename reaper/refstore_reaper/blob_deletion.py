"""Delete the blobs of a batch: write the batch to the journal, then delete its blobs.

`AsyncDeleter` does this while the caller works on the KV.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from refstore.errors import ObjectsUnavailable
from refstore.objects.base import DeleteResult, ObjectStore
from refstore.operations.delete_contents import Journal
from refstore.records.pending_deletes import PendingDelete
from refstore.versioning.address_state import UPLOAD_CAUSES


def delete_blobs(objects: ObjectStore, batch: Sequence[PendingDelete], journal: Journal) -> DeleteResult:
    """Write the batch to the journal, then delete its blobs. Raises ObjectsUnavailable: then nothing is confirmed.

    At the address of a multipart upload the store is asked for uploads that are pending there: who began it may have
    died before it recorded what the store knows (rule 23).
    """
    journal.record_start(batch)
    pending = _abort_uploads(objects, batch)
    deleted = objects.delete_many([item.address for item in batch if item.address not in pending])
    return deleted._replace(failed_keys=(*deleted.failed_keys, *pending.items())) if pending else deleted


def _abort_uploads(objects: ObjectStore, batch: Sequence[PendingDelete]) -> dict[str, str]:
    """Abort what is pending at the addresses of multipart uploads. Return those of which an upload is left, and why."""
    left: dict[str, str] = {}
    for item in batch:
        if item.cause in UPLOAD_CAUSES:
            try:
                objects.abort_uploads(item.address)
            except ObjectsUnavailable as error:  # or the store refuses it, for lack of a right perhaps
                left[item.address] = str(error)
    return left


class AsyncDeleter:
    """Deletes blobs batch by batch in a thread of its own. Close it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="refstore-delete")

    def submit(self, objects: ObjectStore, batch: Sequence[PendingDelete], journal: Journal) -> Future[DeleteResult]:
        """Begin `delete_blobs`."""
        return self._thread.submit(delete_blobs, objects, batch, journal)

    def close(self) -> None:
        """Close after the batches that were submitted."""
        self._thread.shutdown()
