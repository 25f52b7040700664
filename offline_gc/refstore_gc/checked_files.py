"""Files of a run that begin with their own hash. A file that is damaged or missing raises Corrupt: one key too few
would be a lost object.
"""

from __future__ import annotations

import hashlib
from typing import Final, TypeVar

import msgspec
import numpy as np

from refstore.errors import Corrupt, ObjectNotFound
from refstore.objects.base import ObjectStore
from refstore_gc.address_codec import AddressKeys

_HASH_BYTES: Final = 16

T = TypeVar("T")


def write_value(store: ObjectStore, key: str, value: object) -> None:
    body = msgspec.msgpack.encode(value)
    store.put(key, _hash(body) + body)


def read_value(store: ObjectStore, key: str, kind: type[T]) -> T:
    """Raises ObjectNotFound, Corrupt."""
    body = memoryview(store.read(key))
    if _hash(body[_HASH_BYTES:]) != bytes(body[:_HASH_BYTES]):
        raise _corrupt_file(store, key, "its hash is another one")
    try:
        return msgspec.msgpack.decode(body[_HASH_BYTES:], type=kind)
    except msgspec.DecodeError as error:
        raise _corrupt_file(store, key, str(error)) from error


def read_required(store: ObjectStore, key: str, kind: type[T]) -> T:
    """Raises Corrupt, also where the file is missing."""
    try:
        return read_value(store, key, kind)
    except ObjectNotFound as error:
        raise _corrupt_file(store, key, "it is not there") from error


def write_keys(store: ObjectStore, key: str, keys: AddressKeys) -> None:
    write_value(store, key, keys.tobytes())


def read_keys(store: ObjectStore, key: str) -> AddressKeys:
    """Raises Corrupt."""
    return decode_keys(read_required(store, key, bytes))


def decode_keys(body: bytes) -> AddressKeys:
    return np.frombuffer(body, np.uint64) if body else np.empty(0, np.uint64)


def _hash(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_HASH_BYTES).digest()


def _corrupt_file(store: ObjectStore, key: str, why: str) -> Corrupt:
    return Corrupt(f"{key} in {store.url} is not what an earlier run wrote ({why}); mark again with --full")
