"""Read an object for `verify` in a process of its own, so that a crash of a library costs only this object."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from refstore.context import Context
from refstore.core.ids import Address, is_own
from refstore.errors import ObjectNotFound, ObjectsRefused, RefstoreError, Unavailable
from refstore.objects.stored_file import open_object
from refstore.purge_document.document import Dataset, FileFormat
from refstore_gc.engines import worker_processes
from refstore_purge.file_allowance import NO_MEMORY, limit_memory, raise_if_memory
from refstore_purge.formats.base import PurgeError
from refstore_purge.reader_process import crash_reason, open_store
from refstore_purge.verify_avro import search_avro
from refstore_purge.verify_columns import search_orc
from refstore_purge.verify_ids import MetadataEntry, ObjectFindings, RowSearch, VerifyReadError, WantedIds
from refstore_purge.verify_parquet import list_summary_entries, search_parquet
from refstore_purge.verify_text import search_csv, search_json

BUFFER_BYTES: Final = 1024 * 1024


READERS: Final[Mapping[FileFormat, Callable[[BinaryIO, RowSearch], Sequence[MetadataEntry]]]] = {
    "parquet": search_parquet,
    "orc": search_orc,
    "avro": search_avro,
    "json": search_json,
    "csv": search_csv,
}
"""What counts the rows of a file that have ids, and returns what stands beside them."""


class ContentToVerify(NamedTuple):
    """What is to be read of one object."""

    dataset: Dataset
    ids: WantedIds
    address: Address
    size_bytes: int
    is_of_id: bool
    describes_others: bool


def read_content(ctx: Context, content: ContentToVerify) -> ObjectFindings:
    """Return what was found in an object. Raises Unavailable."""
    try:
        if is_own(content.address):
            open_ = partial(_open_own, ctx.objects.url, ctx.safety.objects_io_seconds)
            return worker_processes.call(partial(read_here, open_, content))
        with tempfile.NamedTemporaryFile(dir=content.ids.folder) as copy:  # only this process knows what may be read
            copy.writelines(ctx.foreign.get(content.address, content.size_bytes, 0, content.size_bytes))
            copy.flush()
            return worker_processes.call(partial(read_here, partial(_open_copy, copy.name), content))
    except worker_processes.CrashedError as error:
        return ObjectFindings(reason=crash_reason(error))
    except RefstoreError as error:
        return _describe_error(error, ObjectFindings())


def read_here(open_: Callable[[ContentToVerify], BinaryIO], content: ContentToVerify) -> ObjectFindings:
    """Read an object in this process. Raises Unavailable."""
    search = RowSearch(content.dataset, content.ids, content.is_of_id)
    try:
        with limit_memory(content.size_bytes), open_(content) as source:
            search_object(source, search, describes_others=content.describes_others)
    except (RefstoreError, PurgeError, MemoryError) as error:
        return _describe_error(error, search.findings)
    return search.findings


def search_object(source: BinaryIO, search: RowSearch, *, describes_others: bool = False) -> None:
    """Count the rows that have ids, and note where ids stand beside them. `describes_others`: it is a summary file of
    Parquet. Raises PurgeError, RefstoreError, MemoryError.
    """
    format_ = cast("FileFormat", search.dataset.format)  # the document's check says so
    try:
        entries = (list_summary_entries if describes_others else READERS[format_])(source, search)
        search.finish()
        search.findings.id_places = search.ids.describe_entries(entries, search.type)
    except (RefstoreError, PurgeError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  # whatever a damaged file does to a library
        raise_if_memory(error)
        is_encrypted = "crypt" in str(error).lower()
        told = "it is encrypted" if is_encrypted else f"it cannot be read: it is damaged, or no {format_}"
        raise VerifyReadError(told) from None


def _describe_error(error: Exception, findings: ObjectFindings) -> ObjectFindings:
    """Return what is known of an object that could not be read. Raises Unavailable."""
    if isinstance(error, Unavailable) and not isinstance(error, ObjectsRefused):
        raise error
    findings.is_there = not isinstance(error, ObjectNotFound)
    findings.reason = NO_MEMORY if isinstance(error, MemoryError) else str(error)
    return findings


def _open_own(url: str, io_timeout_seconds: float, content: ContentToVerify) -> BinaryIO:
    file = open_object(open_store(url, io_timeout_seconds), content.address, content.size_bytes, ahead_bytes=0)
    return cast("BinaryIO", io.BufferedReader(file, BUFFER_BYTES))


def _open_copy(name: str, _: ContentToVerify) -> BinaryIO:
    return Path(name).open("rb")
