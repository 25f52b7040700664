"""The suites that every driver passes: subclass `KVSuite` or `ObjectStoreSuite` in a pytest module of your own.

Install `refstore-lake[conformance]` to run them; docs/drivers.md shows how. Nothing else of refstore imports this
package, because it needs pytest and hypothesis.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("refstore.conformance.kv_suite", "refstore.conformance.objects_suite")

from refstore.conformance.kv_suite import KVSuite  # noqa: E402  # its asserts explain themselves only if rewritten
from refstore.conformance.objects_suite import ObjectStoreSuite  # noqa: E402  # likewise

__all__ = ["KVSuite", "ObjectStoreSuite"]
