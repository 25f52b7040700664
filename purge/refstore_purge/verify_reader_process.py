"""Read objects for `verify` in a process of its own, so that a crash of a library costs only the object it crashes at.

Foreign objects are read in this process: whether the settings allow it is asked at each read (`foreign_reads.py`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core.ids import Address, is_own
from refstore.errors import ForeignNotAllowed, Gone, ObjectNotFound, ObjectsRefused, RefstoreError, Unavailable
from refstore.objects.stored_file import StoredFile, open_object
from refstore.purge_document.document import Dataset
from refstore_gc.engines import worker_processes
from refstore_purge.file_allowance import NO_MEMORY, limit_memory
from refstore_purge.reader_process import crash_reason, open_store
from refstore_purge.verify_ids import BatchedLookup, RowCount, WantedIds
from refstore_purge.verify_rows import count_rows, refuse_other_types
from refstore_purge.verify_text import VerifyReadError

BUFFER_BYTES: Final = 1024 * 1024


class ContentToVerify(NamedTuple):
    """What is to be read of one object."""

    dataset: Dataset
    address: Address
    size_bytes: int
    is_of_id: bool
    describes_others: bool


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What came of reading an object."""

    count: RowCount
    reason: str = ""
    """Why it could not be looked at, or not to its end."""
    is_there: bool = True


OpenContent = Callable[[ContentToVerify], AbstractContextManager[io.BufferedReader]]


def read_contents(ctx: Context, contents: Sequence[ContentToVerify], ids: WantedIds) -> list[ReadResult]:
    """Return what came of each, in their order. Raises Unavailable."""
    own = [content for content in contents if is_own(content.address)]
    foreign = [content for content in contents if not is_own(content.address)]
    of_own = iter(_read_in_process(_opener_of_own(ctx), own, ids))
    of_foreign = iter(read_here(partial(_open_foreign, ctx), foreign, ids))
    return [next(of_own if is_own(content.address) else of_foreign) for content in contents]


def check_identifier_type(ctx: Context, content: ContentToVerify) -> bool:
    """Return whether an object shows that ids can be at its data set's identifier. Raises Invalid if they cannot."""
    with suppress(ObjectNotFound, Gone, ForeignNotAllowed, worker_processes.CrashedError):
        if is_own(content.address):
            worker_processes.call(partial(_check_type, _opener_of_own(ctx), content))
        else:
            _check_type(partial(_open_foreign, ctx), content)
        return True
    return False


def _read_in_process(open_: OpenContent, contents: Sequence[ContentToVerify], ids: WantedIds) -> list[ReadResult]:
    """Read in another process; if it crashes, each half again, until it is known at which object."""
    if not contents:
        return []
    try:
        return worker_processes.call(partial(read_here, open_, contents, ids))
    except worker_processes.CrashedError as error:
        if len(contents) == 1:
            return [ReadResult(RowCount(), crash_reason(error))]
    half = len(contents) // 2
    return [*_read_in_process(open_, contents[:half], ids), *_read_in_process(open_, contents[half:], ids)]


def read_here(open_: OpenContent, contents: Sequence[ContentToVerify], ids: WantedIds) -> list[ReadResult]:
    """Read in this process."""
    lookup = BatchedLookup(ids)
    results = [_read(open_, content, lookup) for content in contents]
    lookup.finish()  # completes the counts
    return results


def _read(open_: OpenContent, content: ContentToVerify, lookup: BatchedLookup) -> ReadResult:
    count, dataset = RowCount(), content.dataset
    try:
        with open_(content) as source:
            count_rows(
                source,
                dataset,
                lookup,
                count,
                is_of_id=content.is_of_id,
                describes_others=content.describes_others,
            )
        return ReadResult(count)
    except ObjectNotFound:
        return ReadResult(RowCount(), is_there=False)
    except Unavailable as error:
        if not isinstance(error, ObjectsRefused):
            raise
        return ReadResult(count, str(error))
    except (VerifyReadError, RefstoreError) as error:
        return ReadResult(count, str(error))
    except MemoryError:
        return ReadResult(count, NO_MEMORY)
    except Exception as error:  # noqa: BLE001  # whatever a damaged file does to a reader
        return ReadResult(count, f"it cannot be read as {dataset.format} ({type(error).__name__})")


def _check_type(open_: OpenContent, content: ContentToVerify) -> None:
    with open_(content) as source:
        refuse_other_types(source, content.dataset)


def _opener_of_own(ctx: Context) -> OpenContent:
    """Return what opens objects of the namespace, in whichever process."""
    return partial(_open_own, ctx.objects.url, ctx.safety.objects_io_seconds)


@contextmanager
def _open_own(
    url: str, io_timeout_seconds: float, content: ContentToVerify
) -> Generator[io.BufferedReader, None, None]:
    file = open_object(open_store(url, io_timeout_seconds), content.address, content.size_bytes, ahead_bytes=0)
    opened: io.BufferedReader = io.BufferedReader(file, BUFFER_BYTES)
    with limit_memory(content.size_bytes), opened:
        yield opened


def _open_foreign(ctx: Context, content: ContentToVerify) -> io.BufferedReader:
    read_range = partial(ctx.foreign.get, content.address, content.size_bytes)
    return io.BufferedReader(StoredFile(read_range, content.size_bytes, ahead_bytes=0), BUFFER_BYTES)
