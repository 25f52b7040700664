"""Checksums of S3: the check values of each algorithm, and those of parts as S3 makes them of the parts' own."""

from __future__ import annotations

import base64
import hashlib
import zlib

import pytest

from refstore_s3.checksums import (
    ALGORITHMS,
    COMPOSITE,
    FULL_OBJECT,
    Checksums,
    combine,
    compose,
    encode,
    multipart_etag,
    parse,
)
from refstore_s3.s3_errors import S3Error

# The check values of the catalogue of CRCs, and of FIPS 180 and RFC 1321, over the nine digits.
CHECK_VALUES = {
    "crc32": "cbf43926",
    "crc32c": "e3069283",
    "crc64nvme": "ae8b14860a799888",
    "sha1": "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
    "sha256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
    "md5": "25f9e794323b453885f5181f1b624d0b",
}
PARTS = [b"first" * 1000, b"", b"second", bytes(range(256)) * 40]


@pytest.mark.parametrize("algorithm", CHECK_VALUES)
def test_the_check_value_is_computed_in_pieces(algorithm: str) -> None:
    checksums = Checksums(CHECK_VALUES)
    for piece in (b"1234", b"", b"56789"):
        checksums.update(piece)
    digest = checksums.digest(algorithm)
    assert digest.hex() == CHECK_VALUES[algorithm]
    assert parse(algorithm, checksums.base64(algorithm)) == digest
    checksums.check({algorithm: digest})
    with pytest.raises(S3Error, match="Send it again") as raised:
        checksums.check({algorithm: bytes(len(digest))})
    assert raised.value.code == "BadDigest"


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "md5"])
@pytest.mark.parametrize("text", ["", "AAAA", "=", "AAAAAA==\n", " AAAAAA==", "AAAAAB==", "A" * 44, "é", "AAAAAA"])
def test_what_is_no_checksum_is_refused(algorithm: str, text: str) -> None:
    with pytest.raises(S3Error) as raised:
        parse(algorithm, text)
    assert raised.value.code == ("InvalidDigest" if algorithm == "md5" else "InvalidRequest")


@pytest.mark.parametrize("algorithm", sorted(FULL_OBJECT))
def test_the_crc_of_the_whole_follows_from_those_of_its_parts(algorithm: str) -> None:
    def digest(data: bytes) -> bytes:
        checksums = Checksums([algorithm])
        checksums.update(data)
        return checksums.digest(algorithm)

    assert combine(algorithm, [(digest(part), len(part)) for part in PARTS]) == digest(b"".join(PARTS))
    assert combine(algorithm, []) == digest(b"")


def test_a_composite_checksum_is_that_of_the_parts_checksums() -> None:
    crcs = [zlib.crc32(part).to_bytes(4, "big") for part in PARTS]
    assert compose("crc32", crcs) == f"{encode(zlib.crc32(b''.join(crcs)).to_bytes(4, 'big'))}-4"
    hashes = [hashlib.sha256(part).digest() for part in PARTS]
    assert compose("sha256", hashes) == base64.b64encode(hashlib.sha256(b"".join(hashes)).digest()).decode() + "-4"
    assert {"crc64nvme"} == FULL_OBJECT - COMPOSITE


def test_the_etag_of_parts_is_that_of_s3() -> None:
    checksums = Checksums(["md5"])
    checksums.update(bytes.fromhex(CHECK_VALUES["md5"]) * 2)
    assert multipart_etag([bytes.fromhex(CHECK_VALUES["md5"])] * 2) == checksums.digest("md5").hex() + "-2"
