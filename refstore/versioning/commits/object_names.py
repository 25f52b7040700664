"""The names of committed objects, and what two names tell about each other.

    _refstore/ranges/<id>.parquet       sorted entries
    _refstore/metaranges/<id>.parquet   the ranges of one tree
    _refstore/added/<id>.parquet        the addresses that one commit added

An id is `<hash>.<suffix>`. The hash (hex SHA-256) addresses the content and is verified on every read. The suffix makes
the name of every written object new: the offline job deletes objects that it has listed and found unnamed, so a name
that a later commit could arrive at again by content alone might be deleted under that commit. Commits share objects
only by inheriting them from a tree that is named itself.

Two ids with equal hashes have equal content. Different hashes say nothing: another version of the Parquet writer makes
other bytes of the same rows. '' is the id of the empty tree and of the empty listing; it has no object.
"""

from __future__ import annotations

import re
from typing import Final

from refstore.errors import CorruptRange

RANGES: Final = "_refstore/ranges/"
METARANGES: Final = "_refstore/metaranges/"
ADDED_ADDRESSES: Final = "_refstore/added/"

EXTENSION: Final = ".parquet"
ID: Final = r"[0-9a-f]{64}\.[0-9a-z]{26}"
"""What an id matches, as a whole."""
_ID: Final = re.compile(ID)
_WHAT: Final = {RANGES: "range", METARANGES: "metarange", ADDED_ADDRESSES: "listing of added addresses"}


def new_id(content_hash: str, suffix: str) -> str:
    return f"{content_hash}.{suffix}"


def hash_of(object_id: str) -> str:
    return object_id.partition(".")[0]


def have_same_content(left: str, right: str) -> bool:
    """Return whether the two surely have equal content; if False, only reading them tells."""
    return hash_of(left) == hash_of(right)


def key(folder: str, object_id: str) -> str:
    """Return the object's key. Raises CorruptRange for an invalid id: a stored name must not lead anywhere else."""
    if not _ID.fullmatch(object_id):
        raise CorruptRange(
            f"{object_id[:120]!r} is not the id of a {_WHAT[folder]}; the record that holds it is damaged: restore it "
            "from a backup"
        )
    return f"{folder}{object_id}{EXTENSION}"


def id_of_key(object_key: str) -> str:
    """Return the id in a listed key; '' if it is none of ours."""
    name = object_key.rpartition("/")[2].removesuffix(EXTENSION)
    return name if _ID.fullmatch(name) else ""


def corrupt_range(folder: str, object_id: str, reason: str) -> CorruptRange:
    return CorruptRange(
        f"{_WHAT[folder]} {object_id} cannot be trusted ({reason}); restore {key(folder, object_id)} from a backup or "
        "from a copy of the namespace. Nothing that depends on it will be deleted"
    )
