"""Which tests belong to which tier: the one place that says it.

- First tier (`make test`): every test that is not named below. It plants every fault of the mutant tables, and runs the
  state machine.
- Second tier (`make test-all` runs both): what `SECOND_TIER` names, for one of these reasons.
  - It tests no code of the product.
  - It is one scenario on a further store, or with a larger number; the first tier has the scenario whole.
  - It is a storm: processes killed at random. The first tier kills the same processes at chosen steps.
  - It builds and installs what is shipped, which a change of the code seldom breaks.
- `@pytest.mark.soak` (`make soak`, and shortly `make test-release`): runs that are as long as one likes.

A test that sees a planted fault stays in the first tier, unless another test there sees the same fault.
`tests/unit/test_tiers.py` checks the table.
"""

from __future__ import annotations

from typing import Final

import pytest

SECOND_TIER: Final = {
    "tests/unit/test_protocol_model.py": "it tests the model in docs/protocol_model, and no code of the product",
    "tests/integration/test_demo.py::test_the_command_on_a_real_redis_and_a_real_s3": (
        "the demo on further stores; the first tier has it on SQLite and files"
    ),
    "tests/integration/test_kv_failovers.py": (
        "a storm; tests/conformance/test_kv_redis_failures.py and tests/unit/test_kv_losses.py choose the moments"
    ),
    "tests/soak/test_chaos.py::test_on_redis_and_s3_with_clients_reapers_and_redis_killed_and_s3_failing": (
        "a storm; tests/api/test_two_processes.py and tests/unit/test_reaper_crashes.py choose the moments"
    ),
    "tests/soak/test_chaos.py::test_through_the_s3_gateway_which_is_killed_too": (
        "a storm; tests/simulation/multipart_scenarios.py and tests/unit/test_reaper_crashes.py choose the moments"
    ),
    "tests/soak/test_chaos.py::test_what_is_taken_away_or_left_over_by_hand_is_found": (
        "tests/api/test_two_processes.py takes one away, too"
    ),
    "tests/soak/test_gc_chaos.py::test_on_redis_and_s3_with_clients_and_reapers_at_work_and_a_collector_killed": (
        "a storm; tests/offline/test_crashes.py ends runs at every step"
    ),
    "tests/soak/test_purge_chaos.py::test_on_redis_and_s3_among_clients_and_the_offline_job_with_a_purge_killed": (
        "a storm; tests/spark/test_purge_cluster.py kills a worker, and tests/offline/test_purge_counts.py a run"
    ),
    "tests/corpus/test_corpus_of_spark.py": (
        "another writer, and another reader of the same files; tests/corpus/test_corpus.py has the corpus whole"
    ),
    "tests/offline/test_purge_final.py::test_what_verify_finds_in_files_of_the_corpus": (
        "the scenario with many more files; the first tier has it with files whose statistics lie"
    ),
    "tests/deploy/test_container.py::test_the_images_steps_work_in_a_plain_folder": "it installs what is shipped",
    "tests/s3/test_public_suite.py::test_what_is_in_scope_passes": (
        "one scenario each with one client more; tests/s3/test_reference_objects.py and its neighbours test the same"
    ),
    "tests/s3/test_client_examples.py": "the clients of tests/s3/test_clients.py, shortly, as the page shows them",
    "tests/s3/test_clients.py": "one scenario on further clients; tests/s3/test_gateway_objects.py has it with boto3",
    "tests/integration/test_packaging.py::test_beside_an_application_with_an_api_of_its_own_everything_runs": (
        "it installs what is shipped"
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
