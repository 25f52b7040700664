"""A rule that is dropped from the real code is missed by the explorer in no case."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.kit.explore import explore
from tests.simulation.mutants import mutants
from tests.simulation.planting import Mutant
from tests.simulation.scenarios import every

STATES = 50_000
WALKS = 1000

PLANS = {plan.name: plan for plan in every()}
MUTANTS = list(mutants())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.rule}: {mutant.name}")
def test_is_caught(mutant: Mutant) -> None:
    plan = PLANS[mutant.caught_by]
    with mutant.planted():
        found, _ = explore(plan, states_max=STATES, walks=WALKS)
    print(f"{plan.name}: {found.seconds:.1f} s: {found.verdict}")
    assert found.violation is not None, f"{plan.name!r} holds without rule {mutant.rule!r}: {mutant.name}"


def test_every_rule_has_one_and_each_has_a_name_of_its_own() -> None:
    assert {str(number) for number in (*range(1, 15), *range(19, 25))} <= {mutant.rule for mutant in MUTANTS}
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
