"""A bounded run of the chaos in the suite; `make soak` runs it for long. The seed is printed, and may be given
again.
"""

from __future__ import annotations

import os
import random

import pytest

from refstore.lake import Lake
from tests.soak import chaos
from tests.soak.chaos import CephRgw

SECONDS = float(os.environ.get("REFSTORE_CHAOS_SECONDS", "10"))
SEED = int(os.environ.get("REFSTORE_CHAOS_SEED", "0")) or random.SystemRandom().randrange(10**9)

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(int(3 * SECONDS) + 240),
    pytest.mark.xdist_group("chaos"),
]


def check(arrangement: str) -> None:
    result = chaos.run(arrangement, SECONDS, SEED)
    print(result.table())
    assert result.findings == []


def test_on_redis_and_s3_with_clients_reapers_and_redis_killed_and_s3_failing() -> None:
    check("redis+rclone" if CephRgw.missing() else "redis+rgw")


@pytest.mark.soak
@pytest.mark.parametrize("arrangement", chaos.ARRANGEMENTS)
def test_long(arrangement: str) -> None:
    check(arrangement)


def test_a_blob_that_is_taken_away_by_hand_is_found() -> None:
    """The audit and the ledgers can fail: one run with a fault planted at its end, and with something left over."""

    def plant(lake: Lake) -> None:
        repo = lake.repository("soak")
        objects = repo.context.objects
        named = next(
            item.entry.address for branch, _ in repo.branches() for item in repo.list(branch) if item.entry is not None
        )
        objects.delete_many([named])
        objects.put("data/2020010100/00000000000000000000000000", b"nobody names this")

    result = chaos.run("sqlite+file", 4, SEED, break_it=plant)
    assert any(finding.startswith("lost: data/") for finding in result.findings)
    assert any(finding.startswith("leaked: data/2020010100/") for finding in result.findings)
