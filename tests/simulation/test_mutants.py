"""A rule that is dropped from the real code is missed by the explorer in no case."""

from __future__ import annotations

import pytest

from tests.simulation.judging import check_is_caught
from tests.simulation.mutants import mutants
from tests.simulation.planting import Mutant
from tests.simulation.scenarios import every

STATES = 50_000
WALKS = 1000

PLANS = {plan.name: plan for plan in every()}
MUTANTS = list(mutants())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.rule}: {mutant.name}")
def test_is_caught(mutant: Mutant) -> None:
    check_is_caught(mutant, PLANS[mutant.caught_by], states_max=STATES, walks=WALKS)


def test_every_rule_has_one() -> None:
    assert {str(number) for number in (*range(1, 15), 21, 22, 23)} <= {mutant.rule for mutant in MUTANTS}
