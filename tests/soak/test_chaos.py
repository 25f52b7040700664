"""A bounded run of the chaos in the suite; `make soak` runs it for long."""

from __future__ import annotations

import pytest

from refstore.core.ids import branch_name, new_address, object_path
from refstore.lake import Lake
from refstore.operations import multipart
from refstore.records.reference_records import Reference
from tests.servers.s3_servers import CephRgw
from tests.soak import chaos
from tests.soak.client import NEVER_COMMITTED
from tests.soak.result import SECONDS
from tests.soak.storm import ARRANGEMENTS, REPOSITORY

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(int(3 * SECONDS) + 300),
    pytest.mark.xdist_group("chaos"),
]


def test_on_redis_and_s3_with_clients_reapers_and_redis_killed_and_s3_failing() -> None:
    chaos.run("redis+rclone" if CephRgw.missing() else "redis+rgw").check()


def test_through_the_s3_gateway_which_is_killed_too() -> None:
    chaos.run("redis+rclone" if CephRgw.missing() else "redis+rgw", through_gateway=True).check()


@pytest.mark.soak
@pytest.mark.parametrize("through_gateway", [False, True], ids=["by the SDK", "through the gateway"])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_long(arrangement: str, through_gateway: bool) -> None:
    chaos.run(arrangement, through_gateway=through_gateway).check()


def test_what_is_taken_away_or_left_over_by_hand_is_found() -> None:
    """The audit and the ledgers can fail: one run with faults planted at its end."""

    def plant(lake: Lake) -> None:
        repo = lake.repository(REPOSITORY)
        objects = repo.context.objects
        # after a short storm the clients may have left nothing that is named
        objects.delete_many([repo.upload("main", "by hand", b"named").address])
        objects.put("data/2020010100/00000000000000000000000000", b"nobody names this")
        # what a client leaves that died between a reference and its entry, on a branch that nobody commits
        ctx = repo.context
        (branch,) = [record for name, record in repo.context.branches.scan_open() if name == NEVER_COMMITTED[0]]
        ctx.references.create([(new_address(ctx.ids, ctx.clock.now_ms()), Reference(branch.token, object_path("x")))])
        multipart.begin(repo.context, branch_name("main"), "never/completed", seconds=60)

    result = chaos.run("sqlite+file", 4, through_gateway=True, break_it=plant)
    assert any(finding.startswith("lost: data/") for finding in result.findings)
    assert any(finding.startswith("leaked: data/2020010100/") for finding in result.findings)
    assert "leaked: the upload of 'never/completed' on 'main'" in result.findings
    assert any(finding.startswith("left on a live branch: data/") for finding in result.findings)
