"""The service's memory under attacks; each prints how long other callers waited (`make soak`)."""

from __future__ import annotations

import pytest

from tests.soak.memory_attacks import ATTACKS, measure

GROWTH_MIB_MAX = 300


@pytest.mark.soak
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_memory_attack(attack: str) -> None:
    figures = measure(attack)
    print(figures)
    assert figures.waits_ms
    assert figures.growth_mib < GROWTH_MIB_MAX
