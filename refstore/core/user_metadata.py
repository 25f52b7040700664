"""Metadata of users: its bounds, and the names that are ours. What we say ourselves of an object, a commit or a
repository stands in fields of its record, where no caller can write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from refstore.core import argument_types
from refstore.errors import Invalid, InvalidPath

METADATA_BYTES_MAX: Final = 64 << 10
"""Bytes of all keys and values of one repository or commit, in UTF-8: it is read whenever they are."""

OBJECT_METADATA_BYTES_MAX: Final = 8192
"""Of one object; S3 allows 2 KiB, lakeFS bounds it by its request size."""

TRANSACTION: Final = "refstore.transaction"
"""The one name of ours that callers give, to commits: by it a commit says its transaction type, whether it replaces
everything or adds to it.
"""
_OURS: Final = ("s3:", "refstore.")
"""What our names begin with, in any case."""


def metadata_bytes(metadata: Mapping[str, str]) -> int:
    """Return the bytes of all keys and values in UTF-8."""
    return sum(len(text.encode(errors="replace")) for pair in metadata.items() for text in pair)


def check_user_metadata(metadata: Mapping[str, str], owner: str, *, given: str = "") -> None:
    """Check the metadata of a repository or a commit. `owner` names it in the message, `given` is the name of ours that
    callers may give. Raises Invalid.
    """
    _check_names(metadata, given)
    size_bytes = metadata_bytes(metadata)
    if size_bytes > METADATA_BYTES_MAX:
        raise Invalid(
            f"the metadata of {owner} has {size_bytes} bytes, and may have {METADATA_BYTES_MAX} (keys and values "
            "together); keep large things in an object"
        )


def check_object_metadata(metadata: Mapping[str, str]) -> None:
    """Check the metadata of an object. Raises Invalid, InvalidPath."""
    if metadata == {}:
        return
    _check_names(metadata)
    size_bytes = metadata_bytes(metadata)
    if size_bytes > OBJECT_METADATA_BYTES_MAX:
        raise InvalidPath(
            f"metadata of {size_bytes} bytes is more than {OBJECT_METADATA_BYTES_MAX}; keep large things in an object"
        )


def _check_names(metadata: Mapping[str, str], given: str = "") -> None:
    """Refuse what is not text, and names of ours: a reader must not take them for what refstore wrote."""
    argument_types.check_metadata(metadata, "metadata")
    for name in metadata:
        if name.lower().startswith(_OURS) and name != given:
            raise Invalid(
                f"the metadata has the name {name[:80]!r}, and names that begin with {' or '.join(map(repr, _OURS))} "
                "are refstore's own; give it another name"
            )
