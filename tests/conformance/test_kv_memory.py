"""The memory driver."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator

import pytest

from refstore.kv import open_kv
from refstore.kv.base import ABSENT, KV, Key
from tests.conformance.kv_suite import KVSuite


@pytest.fixture(scope="module")
def kv() -> KV:
    return open_kv("memory:")


class TestMemory(KVSuite):
    @pytest.fixture(autouse=True)
    def _switching_threads(self) -> Iterator[None]:
        """Between any two steps: at Python's own pace a whole operation is over before another thread has its turn, lock or no lock."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        yield
        sys.setswitchinterval(before)


def test_a_name_is_one_store_and_no_name_is_a_new_one() -> None:
    name = f"memory://{uuid.uuid4().hex}"
    key = Key("p", "k")
    open_kv(name).set(key, b"1")
    assert open_kv(name).get(key) == b"1"
    open_kv("memory://").set(key, b"1")
    assert open_kv("memory://").get(key) is ABSENT
