"""A forked child that shared a connection with its parent could read the answer to the parent's request."""

from __future__ import annotations

import os
from typing import Any

import pytest


def test_a_forked_child_makes_a_client_of_its_own() -> None:
    pytest.importorskip("boto3")
    from refstore.objects.s3.client import Bucket

    make: Any = object
    bucket = Bucket(make, "lake", "", "s3://lake")
    before = bucket.client
    assert bucket.client is before
    child = os.fork()
    if child == 0:
        os._exit(0 if bucket.client is not before and bucket.client is bucket.client else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bucket.client is before
