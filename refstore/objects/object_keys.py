"""The rules for keys of an object store, the same for every driver. Keys are checked on the way in and on the way out.

A key is `/`-separated text that stays inside its namespace on every store. It has no empty segment (so no leading or
trailing slash), no `.` or `..`, and at most 1024 UTF-8 bytes (the limit of S3). It has no character that XML cannot
carry (NUL and the other controls): bulk deletes and listings are XML on S3, and some servers fail on such characters. A
segment named `.tmp` is refused everywhere, because the local store stages its files there.

On the way out (`key_fault`), a key that refstore could not have written is foreign. It is never passed on, because a
caller may use it as a path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from refstore.errors import InvalidPath

KEY_BYTES_MAX: Final = 1024
STAGING_SEGMENT: Final = ".tmp"

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*").fullmatch
"""Matches every key that refstore generates, in one step (the reaper checks every key): no segment can be empty, or
start with a dot.
"""
_NOT_XML: Final = re.compile("[\x00-\x1f\ufffe\uffff]")


def check_key(key: str) -> str:
    """Return `key` if it is valid. Raises InvalidPath."""
    if _PLAIN(key) and len(key) <= KEY_BYTES_MAX:
        return key
    fault = key_fault(key)
    if fault:
        raise InvalidPath(
            f"{key[:80]!r} is not an object key: {fault}; use a relative path without '.' and '..' segments"
        )
    return key


def check_keys(keys: Sequence[str]) -> None:
    """Check many keys, before anything is done with any of them. Raises InvalidPath."""
    for key in keys:
        check_key(key)


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it may be listed: it is empty, or the beginning of a valid key. Raises InvalidPath."""
    directory, slash, _ = prefix.rpartition("/")
    if slash:
        check_key(directory)
    fault = _encoding_fault(prefix)
    if fault:
        raise InvalidPath(
            f"{prefix[:80]!r} cannot begin an object key: {fault}; list with a prefix of keys that can exist"
        )
    return prefix


def key_fault(key: str) -> str | None:
    """Return why `key` is not a valid key, or None if it is."""
    fault = _encoding_fault(key)
    if fault:
        return fault
    for segment in key.split("/"):
        if segment in ("", ".", ".."):
            return f"it has a segment {segment!r}"
        if segment == STAGING_SEGMENT:
            return f"the segment {STAGING_SEGMENT!r} is the store's own"
    return None


def _encoding_fault(text: str) -> str | None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if size > KEY_BYTES_MAX:
        return f"it has {size} bytes; the limit is {KEY_BYTES_MAX}"
    if _NOT_XML.search(text):
        return "it has a control character"
    return None
