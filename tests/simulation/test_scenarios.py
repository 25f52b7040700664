"""Every interleaving of the real code, as far as the budget goes: crashes, lost replies and the clock included."""

from __future__ import annotations

import os

import pytest

from tests.kit.explore import explore, row, told
from tests.simulation.plans import Plan
from tests.simulation.scenarios import every

STATES = int(os.environ.get("REFSTORE_EXPLORE_STATES", "4000"))
"""Per scenario; ten times as many in `make test-release`. Walks sample the rest; `make explore` goes on from there."""
STATES_MAX = max(STATES, 25_000)
"""Where an operation comes to its end only then, or every interleaving is to be visited."""
WALKS = 100

PLANS = list(every())


def test_names_are_given_once() -> None:
    names = [plan.name for plan in PLANS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_holds(plan: Plan) -> None:
    """It is safe, comes to an end, and each of its calls ends well somewhere: one that never does shows nothing."""
    for states in (STATES, STATES_MAX):
        found, explorer = explore(plan, states_max=states, walks=WALKS)
        print(row(found))
        assert found.violation is None, told(found.violation, explorer)
        idle = {key for key, said in explorer.program.ended.items() if "ok" not in said and not key[0].startswith("Z")}
        ends_well = found.ends and {label for label, _ in idle} <= set(plan.refused)
        if ends_well and (found.exhausted or not plan.visited_whole):
            return
    pytest.fail(f"never ended well: {sorted(idle)}; visited whole: {found.exhausted}")
