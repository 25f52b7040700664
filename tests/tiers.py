"""Which tests belong to which tier: the one place that says it.

- First tier (`make test`): every test that is not named below. It plants every fault of the mutant tables, and runs the
  state machine.
- Second tier (`make test-all` runs both): what `SECOND_TIER` names, for one of these reasons.
  - It tests no code of the product.
  - It is one scenario on a further store, or with another seed; the first tier has the scenario whole.
  - It is a storm: processes killed at random. The first tier kills the same processes at chosen places.
- `@pytest.mark.soak` (`make soak`, and shortly `make test-release`): runs that are as long as one likes.

A test that sees a planted fault stays in the first tier, unless another test there sees the same fault.
`tests/unit/test_tiers.py` checks the table.
"""

from __future__ import annotations

from typing import Final

import pytest

SECOND_TIER: Final = {
    "tests/unit/test_protocol_model.py": "it tests the model in docs/protocol_model, and no code of the product",
    "tests/unit/test_deletion_index.py::test_why_among_100_million_deletions_takes_20_requests_and_8_mib[1000]": (
        "728 runs, in the first tier, give more segments, and so more requests"
    ),
    "tests/soak/test_chaos.py::test_a_blob_that_is_taken_away_by_hand_is_found": (
        "tests/integration/test_two_processes.py takes one away, too"
    ),
    "tests/soak/test_purge_chaos.py::test_on_redis_and_s3_among_clients_and_the_offline_job_with_a_purge_killed": (
        "a storm; tests/spark/test_purge_cluster.py kills purges"
    ),
}
"""How the ids of its tests begin, and why they may be left to the second tier: what tests the same in the first."""

MATCHED: Final = pytest.StashKey[set[str]]()
"""The lines of `SECOND_TIER` that name a test which was collected."""
COLLECTED: Final = pytest.StashKey[set[str]]()
"""The files of which a test was collected."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the marker `second_tier`, before `-m` chooses."""
    matched: set[str] = set()
    for item in items:
        lines = [line for line in SECOND_TIER if item.nodeid.startswith(line)]
        if lines:
            item.add_marker(pytest.mark.second_tier)
            matched.update(lines)
    config.stash[MATCHED] = matched
    config.stash[COLLECTED] = {item.nodeid.partition("::")[0] for item in items}
