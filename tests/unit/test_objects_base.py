"""What a store computes of a body while it writes it."""

from __future__ import annotations

import hashlib

import pytest

from refstore.objects.base import BodyDigest


@pytest.mark.parametrize("key", ["data/2026112107/01kb0000000000000000000000", "data/x", "a/b", "_refstore"])
def test_an_object_has_an_md5_for_s3_clients(key: str) -> None:
    tally = BodyDigest(key)
    for chunk in (b"in", b"", b"chunks"):
        tally.add(chunk)
    digests = (hashlib.sha256(b"inchunks").hexdigest(), hashlib.md5(b"inchunks", usedforsecurity=False).hexdigest())
    assert tally.stored_object == (8, *digests)


@pytest.mark.parametrize("key", ["_refstore/ranges/x.parquet", "_refstore/gc/m/mark/1.parquet", "_refstore/namespace"])
def test_a_file_of_refstore_has_none(key: str) -> None:
    tally = BodyDigest(key)
    tally.add(b"x")
    assert tally.stored_object == (1, hashlib.sha256(b"x").hexdigest(), "")
