"""The bound on metadata that users give a repository or a commit, because it is read whenever they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from refstore.core import argument_types
from refstore.errors import Invalid

METADATA_BYTES_MAX: Final = 64 << 10
"""Bytes of all keys and values of one repository or commit, in UTF-8."""


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
