"""The memory store holds the suite."""

from __future__ import annotations

import uuid

import pytest

from refstore.conformance.objects_suite import ObjectStoreSuite
from refstore.errors import InvalidSettings
from refstore.objects import open_objects


class TestMemory(ObjectStoreSuite):
    streams = False

    @pytest.fixture
    def url(self) -> str:
        return f"memory://{uuid.uuid4().hex}"

    def test_it_needs_a_name(self):
        with pytest.raises(InvalidSettings, match="needs a name"):
            open_objects("memory://")
