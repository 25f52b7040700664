"""The bounds of `get`, the same for all drivers: [start, end), clipped at the size; invalid bounds are refused."""

from __future__ import annotations

from refstore.errors import Invalid


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
