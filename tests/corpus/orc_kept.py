"""Compare what two ORC files say of themselves: what a purge has to keep beside the rows."""

from __future__ import annotations

import io
from collections.abc import Iterator
from importlib import import_module
from typing import Any

pyorc: Any = import_module("pyorc")


def kept(old_body: bytes, new_body: bytes) -> Iterator[str]:
    old, new = _told(old_body), _told(new_body)
    for name, value in old.items():
        if new[name] != value and not (name == "time zone" and not new[name]):  # without stripes
            yield f"{name}: {new[name]} instead of {value}"


def _told(body: bytes) -> dict[str, Any]:
    reader: Any = pyorc.Reader(io.BytesIO(body))
    stripes = [reader.read_stripe(number) for number in range(reader.num_of_stripes)]
    return {
        "schema": str(reader.schema),
        "attributes": list(_attributes(reader.schema)),
        "codec": str(reader.compression),
        # where nothing is compressed there are no blocks, and the number means nothing
        "block size": reader.compression_block_size if reader.compression != pyorc.CompressionKind.NONE else None,
        "stride": reader.row_index_stride,
        "metadata": reader.user_metadata,
        "format version": reader.format_version,
        "time zone": {stripe.writer_timezone for stripe in stripes} if "timestamp" in str(reader.schema) else None,
        "Bloom filters": sorted({column for stripe in stripes for column in stripe.bloom_filter_columns}),
    }


def _attributes(type_: Any) -> Iterator[Any]:
    """Yield the attributes of a type and of those within it."""
    yield type_.attributes
    for child in getattr(type_, "fields", {}).values():
        yield from _attributes(child)
