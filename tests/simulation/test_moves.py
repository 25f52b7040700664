"""Of several moves of one path one moves it, and the others take their copies back (rule 6)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.kit.steps import Interned
from tests.simulation import calls as do
from tests.simulation.calls import HARD_DELETE, MOVE
from tests.simulation.judging import JudgedPlan, Outcomes, check_is_caught, explore_safe
from tests.simulation.plans import Plan
from tests.simulation.planting import Edit, Mutant
from tests.simulation.worlds import Start

STATES = 4000
WALKS = 100
MOVE_TO_R = do.move("main", "p", "r")


def staged() -> Start:
    return Start().staged("main", "p", "P0")


def committed() -> Start:
    return Start().committed("main", "c0", p="P0")


PLANS = {
    plan.name: plan
    for plan in (
        Plan(name="M | N", world=staged, tasks=lambda _: {"M": [MOVE], "N": [MOVE_TO_R]}, lossy="MN", keeps="MN"),
        Plan(name="M | N over a commit", world=committed, tasks=lambda _: {"M": [MOVE], "N": [MOVE_TO_R]}, keeps="MN"),
        Plan(
            name="M | N | hard delete",
            world=staged,
            tasks=lambda _: {"M": [MOVE], "N": [MOVE_TO_R], "H": [HARD_DELETE]},
            crash="M",
            keeps="MN",
        ),
        Plan(
            name="M | N | commit",
            world=staged,
            tasks=lambda _: {"M": [MOVE], "N": [MOVE_TO_R], "C": [do.commit("main", "c1")]},
            keeps="MN",
            safety_only=True,
        ),
    )
}


def one_at_most(said: Outcomes, _store: Mapping[int, int], _names: Interned) -> str | None:
    winners = [name for name in said if "ok" in said[name] and name in "MN"]
    return None if len(winners) < 2 else f"they ended so: {said}"


@pytest.mark.parametrize("plan", PLANS.values(), ids=lambda plan: plan.name)
def test_one_move_of_a_path_wins(plan: Plan) -> None:
    explore_safe(JudgedPlan(plan, one_at_most), states_max=STATES, walks=WALKS)


MUTANTS = [
    Mutant(
        name="a move that did not delete its source answers ok",
        rule="6",
        edits=(Edit("refstore.operations.move:move_many", "if path in errors:", "if False:"),),
        caught_by="M | N",
    ),
    Mutant(
        name="tombstones of moves are alike",
        rule="6",
        edits=(
            Edit(
                "refstore.operations.move:delete_sources",
                "Tombstone(ctx.ids.new_id(ctx.clock.now_ms()))",
                "Tombstone()",
            ),
        ),
        caught_by="M | N",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_in_it_is_caught(mutant: Mutant) -> None:
    check_is_caught(mutant, JudgedPlan(PLANS[mutant.caught_by], one_at_most), states_max=STATES, walks=WALKS)
