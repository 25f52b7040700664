"""What the offline job wrote of a mark, and can no longer read."""

from __future__ import annotations

import pytest

from refstore.errors import Corrupt
from refstore.objects.memory import MemoryObjects
from refstore_gc.run_layout import ROOT
from refstore_gc.run_summary import MANIFEST, SUMMARY, read_manifest, read_summary


@pytest.mark.parametrize("body", [b'{"mark_id": 7}', b'{"mark_id": "m', b'{"mark_id": "m\xff"}'])
def test_a_summary_that_cannot_be_read_is_corrupt(body: bytes) -> None:
    store = MemoryObjects()
    for name, read in ((SUMMARY, read_summary), (MANIFEST, read_manifest)):
        store.put(f"{ROOT}m1/{name}", body)
        with pytest.raises(Corrupt, match="mark"):
            read(store, "m1")
