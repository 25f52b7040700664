"""What S3 clients give to an object beside its metadata, what they are told of its content, and whose bytes it has.

It stands in a field of an entry, and never among the user's metadata: a caller cannot say it of bytes that are others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

SOURCES_MAX: Final = 64
"""How many sources of one object are kept; it may be joined of 10,000 parts, each copied from another object."""
ANY_SOURCE: Final = "*"
"""Stands in the place of more sources than that: bytes of any object may be among them."""


class ContentDescription(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What was known of the bytes when they came. It is gone where a purge replaced them."""

    algorithm: str = ""
    """Of the checksum; '': none."""
    checksum: str = ""
    is_composite: bool = False
    """Whether the checksum is that of the parts' checksums, and not of the full object."""
    etag: str = ""
    """Without quotes, of an object that came in parts; '': the MD5 is the ETag."""
    part_runs: tuple[tuple[int, int], ...] = ()
    """The sizes of the parts in their order, as (how many, bytes of each)."""
    part_checksums: tuple[str, ...] = ()
    """Of the same algorithm; (): not known."""
    sources: tuple[str, ...] = ()
    """The addresses from which the bytes, or some of them, were copied, and the sources of these. `refstore purge`
    follows by them what has rows (decision 0186).
    """


class S3Attributes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What S3 knows of an object beyond an entry's other fields."""

    content: ContentDescription | None = None
    headers: dict[str, str] = {}
    """Those that answers with the object repeat, by name in lower case."""
    tags: dict[str, str] = {}


_encoder: Final = msgspec.msgpack.Encoder()


def join_attributes(given: S3Attributes | None, content: ContentDescription | None) -> S3Attributes | None:
    """Return what a client gave, with this description of the content; None where neither says anything."""
    headers, tags = (given.headers, given.tags) if given is not None else ({}, {})
    return S3Attributes(content, headers, tags) if content is not None or headers or tags else None


def add_sources(attributes: S3Attributes | None, sources: Iterable[str]) -> S3Attributes | None:
    """Return the attributes of an object that has bytes of these addresses, too."""
    content = content_of(attributes) or ContentDescription()
    every = sorted({*content.sources, *sources})
    if not every:
        return attributes
    if len(every) > SOURCES_MAX:
        every = [ANY_SOURCE]
    return join_attributes(attributes, msgspec.structs.replace(content, sources=tuple(every)))


def content_of(attributes: S3Attributes | None) -> ContentDescription | None:
    return attributes.content if attributes is not None else None


def attributes_bytes(attributes: S3Attributes | None) -> int:
    """Return how many bytes an entry takes for its attributes."""
    return len(_encoder.encode(attributes)) if attributes is not None else 0
