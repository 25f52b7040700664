"""Find and rewrite in tasks of the engine: each task has some objects, and knows nothing of the KV.

The driver chose the new address. The first attempt that finishes writing there wins, and what it wrote never changes:
an engine may run a task twice, and all attempts write the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, BinaryIO, Final, cast

import msgspec

from refstore.context import Context
from refstore.core.batches import split_sized
from refstore.errors import AlreadyExists, Corrupt, ObjectNotFound, RefstoreError
from refstore.objects.base import BodyDigest, ObjectStore, StoredObject, chunks_of
from refstore.objects.stored_file import StoredFile, open_object
from refstore.purge_document.document import Dataset, FileFormat
from refstore_gc.engines import worker_processes
from refstore_gc.engines.base import Engine, SharedFolder
from refstore_purge.file_allowance import NO_MEMORY, limit_memory
from refstore_purge.formats.base import FormatTask, MissingColumnError, find_column_type, unknown_failure
from refstore_purge.formats.registry import MODULES, load_format
from refstore_purge.ledger import AnyIds, open_ids
from refstore_purge.outcomes import ObjectResult
from refstore_purge.purge_error import PurgeError
from refstore_purge.reader_process import crash_reason, open_store, read_in_process
from refstore_purge.untyped_pandas import pa

TASKS_PER_CORE: Final = 16
TASK_BYTES: Final = 128 * 1024 * 1024
TASK_OBJECTS: Final = 200
LONG_BYTES: Final = 64 * 1024 * 1024
"""As much surely takes longer than starting the engine's workers."""


class TaskSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What every task of a run needs to know."""

    url: str
    """Of the namespace."""
    io_timeout_seconds: float
    ids: SharedFolder
    """The sets of ids (`dataset_ids.py`)."""
    hash_key: bytes = b""
    """For the index; empty: there is none."""


class ObjectTask(msgspec.Struct, frozen=True, kw_only=True):
    """One object."""

    address: str
    size_bytes: int
    format: FileFormat
    ids: str
    """The name of the set of ids that its data set has."""
    format_task: FormatTask
    target_address: str = ""
    """The address of what is written; '': only look for the ids."""
    index_key: str = ""
    """The key of the object's index."""
    index_bytes: int = 0
    """Its size; 0: it is not there yet."""
    may_be_gone: bool = False
    """Whether nobody may name the object any more by now."""


def run_tasks(engine: Engine, task_settings: TaskSettings, object_tasks: list[ObjectTask]) -> list[ObjectResult]:
    """Do the tasks of all objects; return what became of each, in their order. A failure of one fails only that."""
    if not object_tasks:
        return []
    groups = group_tasks(object_tasks, engine.parallelism)
    is_long = sum(object_task.size_bytes for object_task in object_tasks) >= LONG_BYTES
    done = dict(engine.map(partial(run_group, task_settings), groups, is_long=is_long))
    return [done[number] for number in range(len(object_tasks))]


def modules_for(datasets: Iterable[Dataset], *, has_index: bool) -> list[str]:
    """Return the modules that tasks on these data sets import."""
    formats = {MODULES[dataset.format] for dataset in datasets if dataset.format is not None}
    return [__name__, *sorted(formats), *(["refstore_purge.id_index", "pandas.util"] if has_index else [])]


def group_tasks(object_tasks: list[ObjectTask], cores: int) -> list[list[tuple[int, ObjectTask]]]:
    """Return the numbered tasks of objects in groups, a task of the engine each: one costs Spark as much as a small
    object costs. There are enough groups for all cores, and for progress that moves.
    """
    tasks = cores * TASKS_PER_CORE
    bytes_max = min(TASK_BYTES, sum(object_task.size_bytes for object_task in object_tasks) // tasks)
    objects_max = min(TASK_OBJECTS, -(-len(object_tasks) // tasks))
    numbered = enumerate(object_tasks)
    return list(split_sized(numbered, lambda item: item[1].size_bytes, size_max=bytes_max, items_max=objects_max))


def run_group(
    task_settings: TaskSettings, numbered: list[tuple[int, ObjectTask]]
) -> Iterator[tuple[int, ObjectResult]]:
    """Do the tasks of the objects of one group."""
    for number, object_task in numbered:
        yield number, run_task(task_settings, object_task)


def run_task(task_settings: TaskSettings, object_task: ObjectTask) -> ObjectResult:
    """Do one object's task in a process of its own: a library that crashes at a file does so for that file only."""
    task_settings = msgspec.structs.replace(task_settings, ids=task_settings.ids.as_local())
    try:
        return worker_processes.call(partial(run_in_process, task_settings, object_task))
    except worker_processes.CrashedError as error:
        if object_task.index_bytes:  # it may have been the index that is damaged
            return run_task(task_settings, msgspec.structs.replace(object_task, index_bytes=0))
        return ObjectResult(address=object_task.address, failure=crash_reason(error))


def run_in_process(task_settings: TaskSettings, object_task: ObjectTask) -> ObjectResult:
    """Do one object's task in this process."""
    store = open_store(task_settings.url, task_settings.io_timeout_seconds)
    ids = _open_ids(task_settings.ids, object_task.ids)
    source = open_object(store, object_task.address, object_task.size_bytes)
    lacks_identifier = False
    try:
        if object_task.target_address:
            return _rewrite_object(object_task, store, source, ids)
        with limit_memory(object_task.size_bytes):
            return _search_object(task_settings, object_task, store, source, ids)
    except ObjectNotFound:
        if not object_task.may_be_gone:
            raise
        return ObjectResult(address=object_task.address, is_gone=True)
    except (PurgeError, Corrupt) as error:
        failure, lacks_identifier = str(error), isinstance(error, MissingColumnError)
    except RefstoreError:
        raise
    except MemoryError:
        failure = NO_MEMORY
    except Exception as error:  # noqa: BLE001  # a file that a library fails at in a new way fails alone
        failure = unknown_failure(error)
    return ObjectResult(
        address=object_task.address,
        failure=failure,
        lacks_identifier=lacks_identifier,
        read_bytes=source.requested_bytes,
    )


def _rewrite_object(object_task: ObjectTask, store: ObjectStore, source: StoredFile, ids: AnyIds) -> ObjectResult:
    with tempfile.TemporaryFile(prefix="refstore-purge-") as target:
        with limit_memory(object_task.size_bytes):
            format_ = load_format(object_task.format)
            written = format_.rewrite(cast(BinaryIO, source), target, object_task.format_task, ids)
        stored = put_result(store, object_task.target_address, target)
    return ObjectResult(
        address=object_task.address,
        rows=written.rows,
        matched_rows=written.matched_rows,
        matched_entries=written.matched_entries,
        read_bytes=source.requested_bytes,
        target_address=object_task.target_address,
        size_bytes=stored.size_bytes,
        checksum=stored.checksum,
        md5=stored.md5,
    )


def _search_object(
    task_settings: TaskSettings, object_task: ObjectTask, store: ObjectStore, source: StoredFile, ids: AnyIds
) -> ObjectResult:
    """Look for the ids in the index, and if that does not rule them out, in the object."""
    from refstore_purge import id_index

    index_read, is_indexed = 0, False
    if task_settings.hash_key and object_task.index_bytes and ids.index_hashes is not None:
        with suppress(Exception):  # an index that cannot be read is written again
            answer = id_index.look_up(store, object_task.index_key, object_task.index_bytes, ids.index_hashes)
            index_read = answer.read_bytes
            is_indexed = True
            if not answer.may_match:
                return ObjectResult(
                    address=object_task.address, rows=answer.rows, decided_by="index", read_bytes=index_read
                )
    collector = (
        id_index.HashCollector(ids, task_settings.hash_key) if task_settings.hash_key and not is_indexed else None
    )
    found = load_format(object_task.format).find(cast(BinaryIO, source), object_task.format_task, collector or ids)
    written = 0
    is_told = collector is not None and found.decided_by == "column" and found.has_identifier
    body = collector.to_bytes(found.rows) if collector is not None and is_told else None
    if body is not None:
        with suppress(RefstoreError):  # a later run writes it
            store.put(object_task.index_key, body)
            written = len(body)
    return ObjectResult(
        address=object_task.address,
        rows=found.rows,
        matched_rows=found.matched_rows,
        matched_entries=found.matched_entries,
        decided_by=found.decided_by,
        read_bytes=source.requested_bytes + index_read,
        index_bytes=written,
        lacks_identifier=None if found.has_identifier is None else not found.has_identifier,
    )


def identifier_type(ctx: Context, object_task: ObjectTask) -> Any:
    """Return the type that the identifier's column of an object has in Arrow; None: its file does not say, as one that
    has only nulls.
    """
    schema_of = load_format(object_task.format).schema_of
    if schema_of is None:
        return None
    try:
        url, seconds = ctx.objects.url, ctx.safety.objects_io_seconds
        schema = read_in_process(url, seconds, object_task.address, object_task.size_bytes, schema_of)
    except Exception:  # noqa: BLE001  # the object's own task says what is wrong with it
        return None
    type_ = find_column_type(schema, object_task.format_task.identifier, object_task.format_task.map_part)
    return None if type_ is None or pa.types.is_null(type_) else type_


def put_result(store: ObjectStore, address: str, target: Any) -> StoredObject:
    """Write the object, unless another attempt has; return its size and checksums."""
    target.seek(0)
    try:
        return store.put(address, target, if_absent=True)
    except AlreadyExists:
        there = store.head(address).size_bytes
        target.seek(0)
        ours = BodyDigest(address)
        for chunk in chunks_of(target):
            ours.add(chunk)
        if there != ours.stored_object.size_bytes:
            raise Corrupt(
                f"another attempt wrote {there} bytes to {address}, and this one {ours.stored_object.size_bytes}; run "
                "the purge again"
            ) from None
        return ours.stored_object


@lru_cache(maxsize=8)
def _open_ids(shared: SharedFolder, name: str) -> AnyIds:
    return open_ids(shared.path, prefix=f"{shared.prefix}{name}")
