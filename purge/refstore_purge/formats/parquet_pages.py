"""The pages of a Parquet column chunk, as their headers tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

from refstore_purge.formats.base import OtherMeansError
from refstore_purge.formats.parquet_footer import ThriftStruct, read_struct_at
from refstore_purge.formats.parquet_structs import PAGE_HEADER

# fields of PageHeader, and of the header of each kind of page
PAGE_TYPE, PAGE_BYTES, PAGE_COMPRESSED_BYTES, PAGE_CHECKSUM = 1, 2, 3, 4
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
OWN_HEADERS: Final = {DATA_PAGE: (5, 2), DATA_PAGE_V2: (8, 4)}
"""By type of page: the field with its own header, and there the field with the encoding of its values."""
VALUES: Final = 1
"""The field of such a header with the number of its values, nulls included."""


class ColumnPage(NamedTuple):
    header: ThriftStruct
    start: int
    """Where its header begins."""
    end: int


def pages_of(file: BinaryIO, start: int, size: int) -> Iterator[ColumnPage]:
    """Yield the pages of a column chunk. Raises PurgeError."""
    at = start
    while at < start + size:
        header, length = read_struct_at(file, at, PAGE_HEADER)
        end = at + length + header[PAGE_COMPRESSED_BYTES]
        if end < at + length:
            raise OtherMeansError("a page of the file has a negative size; it is damaged")
        yield ColumnPage(header, at, end)
        at = end


def check_pages(file: BinaryIO, start: int, size: int, values: int, name: str) -> None:
    """Raise PurgeError unless a column chunk has these values, and ends with its last page. Else a copy of it would
    lack some, or have something that no reader shows.
    """
    there, end = 0, start
    for page in pages_of(file, start, size):
        end = page.end
        if page.header[PAGE_TYPE] in OWN_HEADERS:
            there += page.header[OWN_HEADERS[page.header[PAGE_TYPE]][0]][VALUES]
    if (there, end) != (values, start + size):
        raise OtherMeansError(
            f"the pages of column {name!r} have {there} values in {end - start} bytes, and the footer says {values} in "
            f"{size}; the file is damaged"
        )
