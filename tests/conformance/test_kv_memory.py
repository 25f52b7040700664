"""The memory driver."""

from __future__ import annotations

import uuid

import pytest

from refstore.conformance.kv_suite import KVSuite
from refstore.kv import open_kv
from refstore.kv.base import ABSENT, KV, Key


@pytest.fixture(scope="module")
def kv() -> KV:
    return open_kv("memory:")


class TestMemory(KVSuite):
    pass


def test_a_name_is_one_store_and_no_name_is_a_new_one() -> None:
    name = f"memory://{uuid.uuid4().hex}"
    key = Key("p", "k")
    open_kv(name).set(key, b"1")
    assert open_kv(name).get(key) == b"1"
    open_kv("memory://").set(key, b"1")
    assert open_kv("memory://").get(key) is ABSENT
