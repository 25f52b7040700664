"""Metadata of users: its bound on a repository or a commit, because it is read whenever they are; and which names of an
object's metadata describe its content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from refstore.core import argument_types
from refstore.errors import Invalid

METADATA_BYTES_MAX: Final = 64 << 10
"""Bytes of all keys and values of one repository or commit, in UTF-8."""

CONTENT_ETAG: Final = "s3:etag"
CONTENT_CHECKSUM: Final = "s3:checksum-"
CONTENT_PARTS: Final = "s3:parts"
"""What S3 clients are told of an object's bytes. No HTTP header has such a name, so no user gives one by mistake."""


def without_content_names(metadata: dict[str, str]) -> dict[str, str]:
    """Return the metadata without what describes the content: for an object whose content was replaced."""
    if not any(describes_content(name) for name in metadata):
        return metadata
    return {name: value for name, value in metadata.items() if not describes_content(name)}


def describes_content(name: str) -> bool:
    """Return whether the name is one of what S3 clients are told of the bytes."""
    return name in (CONTENT_ETAG, CONTENT_PARTS) or name.startswith(CONTENT_CHECKSUM)


def metadata_bytes(metadata: Mapping[str, str]) -> int:
    """Return the bytes of all keys and values in UTF-8."""
    if not metadata:  # nearly every object of a listing has none
        return 0
    return sum(len(text.encode(errors="replace")) for pair in metadata.items() for text in pair)


def check_user_metadata(metadata: Mapping[str, str], owner: str) -> None:
    """Raise Invalid where the metadata is too large, or is not all text. `owner` names its owner in the message."""
    argument_types.check_metadata(metadata, "metadata")
    size_bytes = metadata_bytes(metadata)
    if size_bytes > METADATA_BYTES_MAX:
        raise Invalid(
            f"the metadata of {owner} has {size_bytes} bytes, and may have {METADATA_BYTES_MAX} (keys and values "
            "together); keep large things in an object"
        )
