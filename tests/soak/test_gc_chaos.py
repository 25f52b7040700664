"""A bounded run of the offline job among clients and reapers; `make soak` runs it for long."""

from __future__ import annotations

import pytest

from tests.servers.s3_base import S3Server
from tests.soak import gc_chaos
from tests.soak.result import SECONDS

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(int(3 * SECONDS) + 600),
    pytest.mark.xdist_group("gc-chaos"),
]


def test_on_redis_and_s3_with_clients_and_reapers_at_work_and_a_collector_killed(real_s3: S3Server) -> None:
    gc_chaos.run(real_s3).check()


@pytest.mark.soak
def test_long(real_s3: S3Server) -> None:
    gc_chaos.run(real_s3).check()


@pytest.mark.soak
def test_a_collector_that_does_not_see_commits_is_found_out(real_s3: S3Server) -> None:
    """The audit of this run can fail."""
    findings = gc_chaos.run(real_s3, 15, blind=True).findings
    print("\n".join(findings))
    assert any(finding.startswith("lost: ") for finding in findings), (
        "by then its trees are gone, too, and tell no addresses"
    )
