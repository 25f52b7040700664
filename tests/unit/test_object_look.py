"""Whether an object is as it was listed, by what a server answers just before its deletion."""

from __future__ import annotations

import pytest

from refstore.objects.base import ObjectPage
from refstore.objects.object_look import look_at

LISTED_MS = 1_700_000_001_004


@pytest.mark.parametrize(
    ("mtime_ms", "etag", "is_unchanged"),
    [
        pytest.param(LISTED_MS, "e", True, id="all is the same"),
        pytest.param(1_700_000_001_000, "e", True, id="whole seconds"),
        pytest.param(1_700_000_000_000, "e", True, id="the second before, and the same ETag"),
        pytest.param(1_699_999_999_000, "e", False, id="two seconds before"),
        pytest.param(1_700_000_000_004, "e", False, id="a second before, in milliseconds"),
        pytest.param(1_700_000_000_000, "", False, id="the second before, and no ETag"),
        pytest.param(LISTED_MS, "", True, id="no ETag"),
        pytest.param(LISTED_MS, "other", False, id="another ETag"),
    ],
)
def test_what_tells_that_an_object_changed(mtime_ms: int, etag: str, is_unchanged: bool) -> None:
    listed = ObjectPage(["a"], [1], [LISTED_MS], ["e"])
    look = look_at(listed, lambda _: iter(()), lambda keys: ObjectPage([*keys], [1], [mtime_ms], [etag]))
    assert (look.unchanged.keys, look.changed_keys) == ((["a"], ()) if is_unchanged else ([], ("a",)))
