"""The simulation of a large cluster agrees with the formula for one line, and finds the master that breaks first."""

from __future__ import annotations

from random import Random
from statistics import mean

import pytest

from bench.scale import ROUND_TRIP_SECONDS, CallSeconds, Load, simulate

CALL = 20e-6
READINGS = CallSeconds(CALL, 0.0, 0.0)
"""Only the two readings of the branch take time."""


def one_line(busy: float) -> Load:
    """Return a load of one master that works so much of its time."""
    return Load(uploads_per_second=round(busy / 2 / CALL), repositories=1, branches=10, masters=1)


@pytest.mark.parametrize("busy", [0.2, 0.5, 0.8])
def test_calls_wait_as_long_as_the_formula_for_one_line_says(busy: float) -> None:
    """Pollaczek and Khinchine's: each of the four calls of an upload waits in the line, whatever it takes itself.

    A little longer than strangers: who waited behind an upload meets it again at its next call.
    """
    done = simulate(one_line(busy), READINGS, 100_000, Random(3))
    waited = mean(done.latencies_seconds) - 4 * ROUND_TRIP_SECONDS - 2 * CALL
    formula = 4 * busy * CALL / (2 * (1 - busy))
    assert formula < waited < 1.3 * formula
    assert done.busy == pytest.approx([busy], rel=0.05)


def test_the_master_of_the_branches_is_the_busiest_of_many() -> None:
    load = Load(uploads_per_second=20_000, repositories=1, branches=10_000, masters=16)
    done = simulate(load, CallSeconds(CALL, CALL, CALL), 50_000, Random(3))
    busiest, *others = sorted(done.busy, reverse=True)
    assert busiest > 3 * others[0]
    assert busiest == pytest.approx(2 * 20_000 * CALL, rel=0.25)


def test_more_than_a_master_can_do_makes_the_line_longer_and_longer() -> None:
    short, long = (
        simulate(one_line(2.0), READINGS, uploads, Random(3)).quantile_ms(0.99) for uploads in (10_000, 40_000)
    )
    assert long > 3 * short
