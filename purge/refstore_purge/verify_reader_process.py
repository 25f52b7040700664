"""Read an object for `verify` in a process of its own, so that a crash of a library costs only this object."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, cast

from refstore.context import Context
from refstore.core.ids import Address, is_own
from refstore.errors import ObjectNotFound, ObjectsRefused, RefstoreError, Unavailable
from refstore.purge_document.document import FileFormat
from refstore_purge.file_allowance import NO_MEMORY, raise_if_memory
from refstore_purge.formats.base import PurgeError
from refstore_purge.reader_process import read_in_process
from refstore_purge.verify_avro import search_avro
from refstore_purge.verify_columns import search_orc
from refstore_purge.verify_ids import MetadataEntry, ObjectFindings, RowSearch, VerifyReadError
from refstore_purge.verify_parquet import list_summary_entries, search_parquet
from refstore_purge.verify_text import search_csv, search_json

READERS: Final[Mapping[FileFormat, Callable[[BinaryIO, RowSearch], Sequence[MetadataEntry]]]] = {
    "parquet": search_parquet,
    "orc": search_orc,
    "avro": search_avro,
    "json": search_json,
    "csv": search_csv,
}
"""What counts the rows of a file that have ids, and returns what stands beside them."""


def read_content(
    ctx: Context, address: Address, size_bytes: int, search: RowSearch, *, describes_others: bool = False
) -> ObjectFindings:
    """Return what was found in a content. `describes_others`: it is a summary file of Parquet. Raises Unavailable."""
    read, seconds = partial(search_content, search, describes_others=describes_others), ctx.safety.objects_io_seconds
    try:
        if is_own(address):
            return read_in_process(ctx.objects.url, seconds, address, size_bytes, read)
        with tempfile.NamedTemporaryFile(dir=search.ids.folder) as copy:  # only this process knows what may be read
            copy.writelines(ctx.foreign.get(address, size_bytes, 0, size_bytes))
            copy.flush()
            return read_in_process(search.ids.folder.as_uri(), seconds, Path(copy.name).name, size_bytes, read)
    except (RefstoreError, PurgeError) as error:
        return _describe_error(error, ObjectFindings())


def search_content(search: RowSearch, source: BinaryIO, *, describes_others: bool) -> ObjectFindings:
    """Return what was found in a file that is open in this process. Raises Unavailable."""
    try:
        search_object(source, search, describes_others=describes_others)
    except (RefstoreError, PurgeError, MemoryError) as error:
        return _describe_error(error, search.findings)
    return search.findings


def search_object(source: BinaryIO, search: RowSearch, *, describes_others: bool = False) -> None:
    """Count the rows that have ids, and note where ids stand beside them. Raises PurgeError, RefstoreError,
    MemoryError.
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
