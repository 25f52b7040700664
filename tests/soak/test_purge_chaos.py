"""A bounded run of the purge among clients, reapers and the offline job; `make soak` runs it for long."""

from __future__ import annotations

import pytest

from tests.servers.s3_base import S3Server
from tests.soak import purge_chaos
from tests.soak.result import SECONDS

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(int(3 * SECONDS) + 1200),
    pytest.mark.xdist_group("purge-chaos"),
]


@pytest.mark.parametrize("mode", sorted(purge_chaos.STEPS))
def test_on_redis_and_s3_among_clients_and_the_offline_job_with_a_purge_killed(real_s3: S3Server, mode: str) -> None:
    purge_chaos.run(real_s3, mode=mode).check()


@pytest.mark.soak
@pytest.mark.parametrize("on_cluster", [False, True])
@pytest.mark.parametrize("mode", sorted(purge_chaos.STEPS))
def test_long(real_s3: S3Server, on_cluster: bool, mode: str) -> None:
    purge_chaos.run(real_s3, mode=mode, on_cluster=on_cluster).check()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("fault", "told"), [("row", "which is not what is to stay of"), ("over", "is to hold what stays of")]
)
def test_a_purge_that_takes_more_than_it_should_is_found_out(real_s3: S3Server, fault: str, told: str) -> None:
    """The audit of this run can fail. "row": of JSON, one row too many goes; "over": a run publishes over what others
    have changed meanwhile.
    """
    findings = purge_chaos.run(real_s3, 60, fault=fault).findings
    print("\n".join(findings))
    assert any(told in finding for finding in findings)
