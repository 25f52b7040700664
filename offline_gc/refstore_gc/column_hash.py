"""Hash whole columns: 64 bits for each value, under a seed."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from refstore_gc.untyped_arrow import pa

Hashes = NDArray[np.uint64]
ByteArray = NDArray[np.uint8]

WORD_BYTES: Final = 8
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_LAST: Final = np.uint64(0xD6E8FEB86659FD93)
_HALF: Final = np.uint64(32)
_BITS: Final = np.uint64(64)
_ALL_BITS: Final = ~np.uint64(0)


def hash_texts(values: Any, seed: int, *, words_max: int | None = None) -> Hashes:
    """Return the hash of each value of an Arrow array of strings or binaries; of null any.

    `words_max`: only so many words of eight bytes are looked at, and the length.
    """
    offsets, data = text_buffers(values)
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=0))
    words = -(-longest // WORD_BYTES) if words_max is None else min(words_max, -(-longest // WORD_BYTES))
    if bool((lengths == longest).all()):
        characters = data[int(offsets[0]) : int(offsets[-1])].reshape(len(lengths), longest)
        return hash_rows(pad_column(characters[:, : words * WORD_BYTES], WORD_BYTES), seed, longest)
    # eight bytes more, so that the last word of the last value can be read whole
    bounded = np.append(data[int(offsets[0]) : int(offsets[-1])], np.zeros(WORD_BYTES, np.uint8))
    at_any_byte = np.ndarray((len(bounded) - WORD_BYTES + 1,), "<u8", bounded, strides=(1,))
    starts = offsets[:-1].astype(np.int64) - int(offsets[0])
    state = np.uint64(seed) ^ lengths.astype(np.uint64)
    for number in range(words):
        rows = np.flatnonzero(lengths > WORD_BYTES * number)
        left = np.minimum(lengths[rows] - WORD_BYTES * number, WORD_BYTES).astype(np.uint64)
        # what follows a value's end is another value
        word = at_any_byte[starts[rows] + WORD_BYTES * number] & (_ALL_BITS >> (_BITS - left * np.uint64(8)))
        state[rows] = _mix(state[rows] ^ word, _ODD)
    return _mix(state, _LAST)


def hash_rows(rows: ByteArray, seed: int, length: int) -> Hashes:
    """Return the hash of each row of bytes; a row is a value of that length, padded to whole words.

    Each step can be undone, so values of one length that differ in one word only never meet; others do by chance, 1 of
    2^64.
    """
    words = rows.view("<u8")
    state = np.full(len(words), np.uint64(seed) ^ np.uint64(length), np.uint64)
    for column in range(words.shape[1]):
        state ^= words[:, column]
        _mix(state, _ODD)
    return _mix(state, _LAST)


def text_buffers(values: Any) -> tuple[NDArray[Any], ByteArray]:
    """Return the offsets of the values of an Arrow array, and the bytes that they lead into."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if not len(array):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    _, raw_offsets, raw = array.buffers()
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    offsets = np.frombuffer(raw_offsets, np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
    return offsets, np.frombuffer(raw, np.uint8) if raw is not None else np.empty(0, np.uint8)


def pad_column(rows: ByteArray, unit: int) -> ByteArray:
    """Append zeros to each row up to a multiple of `unit`."""
    count, width = rows.shape
    full = -(-width // unit) * unit
    if full == width:
        return np.ascontiguousarray(rows)
    found = np.zeros((count, full), np.uint8)
    found[:, :width] = rows
    return found


def _mix(state: Hashes, factor: np.uint64) -> Hashes:
    """Spread each state over all bits, in place."""
    state *= factor
    state ^= state >> _HALF
    return state
