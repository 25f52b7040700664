"""The executable specification holds, and would notice if a rule were dropped.

Each scenario is explored up to a bound; `python docs/protocol_model.py` explores all of them whole.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))

from protocol_model import mutants, scenarios  # noqa: E402  # the model stands in docs/, not in a package
from protocol_model.explorer import HOLDS, explore  # noqa: E402  # likewise
from protocol_model.losses import protocol_of  # noqa: E402  # likewise
from protocol_model.offline import Proto  # noqa: E402  # likewise

sys.path.remove(str(DOCS))

STATES_MAX = 6_000
"""Two in five scenarios end below it; each takes about a tenth of a second."""
EVERY = scenarios.every()
BY_NAME = {scenario.name: scenario for scenario in EVERY}


@pytest.mark.parametrize("scenario", EVERY, ids=lambda scenario: scenario.name)
def test_no_interleaving_breaks_the_protocol(scenario: scenarios.Scenario) -> None:
    found = explore(scenario, protocol_of(scenario), strict=not scenario.loses, states_max=STATES_MAX)
    assert found.verdict == HOLDS, "\n".join(map(str, found.trace))


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: f"{mutant.kind.__name__}: {mutant.scenario}")
def test_a_dropped_rule_is_noticed(mutant: mutants.Mutant) -> None:
    found = mutant.show(BY_NAME[mutant.scenario])
    assert found.verdict.startswith(mutant.verdict)
    assert found.whole


@pytest.mark.parametrize("scenario", scenarios.unsafe(), ids=lambda scenario: scenario.name)
def test_what_is_not_promised_is_shown(scenario: scenarios.Scenario) -> None:
    assert explore(scenario, protocol_of(scenario)).verdict.startswith(scenario.verdict)


def test_the_seeds_protocol_loses_data_and_leaks() -> None:
    first = [scenario for scenario in EVERY if scenario.group == scenarios.FIRST]
    assert len(first) == 28
    for verdict, count in (("UNSAFE", 2), ("LEAK", 13)):
        shown = [
            explore(scenario, mutants.SeedProto, strict=False, seek=verdict, states_max=8_000).verdict
            for scenario in first
        ]
        assert sum(each.startswith(verdict) for each in shown) == count


def test_small_scenarios_are_visited_whole() -> None:
    """The bound cuts long explorations off; it must not silently cut off everything."""
    found = explore(BY_NAME["copy main->feat | reset main | reap"], Proto, states_max=STATES_MAX)
    assert found.whole
    assert 1_000 < found.states < STATES_MAX


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(EVERY)
    assert not BY_NAME.keys() & {scenario.name for scenario in scenarios.unsafe()}
    assert {mutant.scenario for mutant in mutants.MUTANTS} <= BY_NAME.keys()
