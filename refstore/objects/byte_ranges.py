"""The bounds of `get`, the same for all drivers: [start, end), clipped at the size; invalid bounds are refused. And the
length of the whole object, if the caller knows it.
"""

from __future__ import annotations

from refstore.errors import CorruptObject, Invalid


def check_range(key: str, start: int, end: int | None) -> None:
    """Check the bounds as far as possible without knowing the object's size. Raises Invalid."""
    if start < 0 or (end is not None and end < start):
        raise Invalid(
            f"the range [{start}, {'' if end is None else end}) of {key!r} is not valid; use 0 <= start <= end"
        )


def clip_range(key: str, start: int, end: int | None, size_bytes: int) -> tuple[int, int]:
    """Return (first, last + 1) of the bytes to read from an object of that size. Raises Invalid."""
    check_range(key, start, end)
    if start > size_bytes:
        raise Invalid(f"byte {start} is past the end of {key!r}, which has {size_bytes} bytes; ask for its size first")
    return start, size_bytes if end is None else min(end, size_bytes)


def check_length(key: str, expected_bytes: int | None, found_bytes: int) -> None:
    """Check that an object is as long as its caller knows it to be; None: it does not know. Raises CorruptObject."""
    if expected_bytes is not None and found_bytes != expected_bytes:
        raise CorruptObject(
            f"{key!r} has {found_bytes} bytes in the store, and had {expected_bytes} when it was recorded: something "
            "cut it off or changed it, which refstore never does; find out what, and put it back from a copy"
        )
