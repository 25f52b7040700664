"""Compute the checksums of S3 as bytes pass, compare them, and combine those of parts.

A checksum of parts is composite (the checksum of the parts' checksums, and how many they are) or of the full object. A
CRC of the full object follows from the CRCs and lengths of its parts, without reading them again.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from awscrt import checksums  # pyright: ignore[reportMissingTypeStubs]  # it has none

from refstore_s3.s3_errors import S3Error

HEADER_PREFIX: Final = "x-amz-checksum-"
SDK_ALGORITHM_HEADER: Final = "x-amz-sdk-checksum-algorithm"


class _Crc(NamedTuple):
    compute: Callable[[bytes, int], int]
    combine: Callable[[int, int, int], int]
    size_bytes: int


class _RunningHash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


_CRCS: Final[Mapping[str, _Crc]] = {
    "crc32": _Crc(checksums.crc32, checksums.combine_crc32, 4),
    "crc32c": _Crc(checksums.crc32c, checksums.combine_crc32c, 4),
    "crc64nvme": _Crc(checksums.crc64nvme, checksums.combine_crc64nvme, 8),
}
_SIZES: Final[Mapping[str, int]] = {
    **{name: crc.size_bytes for name, crc in _CRCS.items()},
    "sha1": 20,
    "sha256": 32,
    "md5": 16,
}
ALGORITHMS: Final = ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")
"""Those that have a header `x-amz-checksum-NAME`; MD5 has Content-MD5."""
FULL_OBJECT: Final = frozenset(_CRCS)
"""Those of which parts can be combined to the checksum of the full object."""
COMPOSITE: Final = frozenset({"crc32", "crc32c", "sha1", "sha256"})
"""Those of which S3 has a checksum of checksums."""


class _RunningCrc:
    """A CRC with the interface of hashlib."""

    def __init__(self, crc: _Crc) -> None:
        self._crc = crc
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = self._crc.compute(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._crc.size_bytes, "big")


class Checksums:
    """The checksums of one body, by any number of algorithms."""

    def __init__(self, algorithms: Iterable[str]) -> None:
        """`algorithms`: of `ALGORITHMS`, and `md5`."""
        self._hashes = {name: _start(name) for name in algorithms}

    def add(self, algorithm: str) -> None:
        """Compute this one, too; called before the first bytes come."""
        self._hashes.setdefault(algorithm, _start(algorithm))

    def update(self, chunk: bytes) -> None:
        """Take the next bytes."""
        for running in self._hashes.values():
            running.update(chunk)

    def digest(self, algorithm: str) -> bytes:
        """Return the checksum of what came so far."""
        return self._hashes[algorithm].digest()

    def base64(self, algorithm: str) -> str:
        """Return the checksum as S3 writes it."""
        return encode(self.digest(algorithm))

    def check(self, expected: Mapping[str, bytes]) -> None:
        """Raise `BadDigest` if one of these checksums, by their algorithms, is not that of what came."""
        for algorithm, digest in expected.items():
            if not hmac.compare_digest(self.digest(algorithm), digest):
                raise S3Error(
                    "BadDigest",
                    f"The body does not have the {algorithm.upper()} that was sent with it. Send it again.",
                    fields={"CalculatedDigest": self.base64(algorithm), "ExpectedDigest": encode(digest)},
                )


def encode(digest: bytes) -> str:
    """Return a checksum as S3 writes it."""
    return base64.b64encode(digest).decode("ascii")


def parse(algorithm: str, text: str) -> bytes:
    """Read a checksum as clients send it; raise `InvalidDigest` (MD5) or `InvalidRequest` if it is none."""
    try:
        digest = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    if len(digest) != _SIZES[algorithm] or encode(digest) != text:
        if algorithm == "md5":
            raise S3Error("InvalidDigest", "Content-MD5 must be an MD5, base64-encoded.")
        raise S3Error("InvalidRequest", f"Value for {HEADER_PREFIX}{algorithm} header is invalid.")
    return digest


def compose(algorithm: str, digests: Sequence[bytes]) -> str:
    """Return the composite checksum of parts with these checksums: base64, `-` and the number of parts."""
    running = _start(algorithm)
    running.update(b"".join(digests))
    return f"{encode(running.digest())}-{len(digests)}"


def combine(algorithm: str, parts: Iterable[tuple[bytes, int]]) -> bytes:
    """Return the CRC of the full object whose parts have these CRCs and lengths in bytes."""
    crc = _CRCS[algorithm]
    value = 0
    for digest, size_bytes in parts:
        value = crc.combine(value, int.from_bytes(digest, "big"), size_bytes)
    return value.to_bytes(crc.size_bytes, "big")


def multipart_etag(md5s: Sequence[bytes]) -> str:
    """Return the ETag, without quotes, of an object whose parts have these MD5s."""
    return f"{hashlib.md5(b''.join(md5s), usedforsecurity=False).hexdigest()}-{len(md5s)}"


def _start(algorithm: str) -> _RunningHash:
    crc = _CRCS.get(algorithm)
    return _RunningCrc(crc) if crc is not None else hashlib.new(algorithm, usedforsecurity=False)
