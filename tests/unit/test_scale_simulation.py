"""The simulation of a large cluster agrees with the formula for one line, and finds the master that breaks first."""

from __future__ import annotations

from random import Random
from statistics import mean

import pytest

from bench.scale import ROUND_TRIP_SECONDS, CallSeconds, Load, simulate

CALL = 20e-6


def of_one_line(busy: float, uploads: int = 100_000) -> Load:
    """One master, which works so much of its time: for both readings of the branch; the other calls take none."""
    return Load(
        uploads_per_second=busy / 2 / CALL, branches=10, masters=1, calls=CallSeconds(CALL, 0.0, 0.0), uploads=uploads
    )


@pytest.mark.parametrize("busy", [0.2, 0.5, 0.8])
def test_calls_wait_as_long_as_the_formula_for_one_line_says(busy: float) -> None:
    """Pollaczek and Khinchine's: each of the four calls of an upload waits in the line, whatever it takes itself.

    A little longer than strangers: who waited behind an upload meets it again at its next call.
    """
    done = simulate(of_one_line(busy), Random(3))
    waited = mean(done.latencies_seconds) - 4 * ROUND_TRIP_SECONDS - 2 * CALL
    formula = 4 * busy * CALL / (2 * (1 - busy))
    assert formula < waited < 1.3 * formula
    assert done.busy == pytest.approx([busy], rel=0.05)


def test_the_master_of_the_branches_is_the_busiest_of_many() -> None:
    calls = CallSeconds(CALL, CALL, CALL)
    done = simulate(
        Load(uploads_per_second=20_000, branches=10_000, masters=16, calls=calls, uploads=50_000), Random(3)
    )
    busiest, *others = sorted(done.busy, reverse=True)
    assert busiest > 3 * others[0]
    assert busiest == pytest.approx(2 * 20_000 * CALL, rel=0.25)


def test_more_than_a_master_can_do_makes_the_line_longer_and_longer() -> None:
    short, long = (simulate(of_one_line(2.0, uploads), Random(3)).quantile_ms(0.99) for uploads in (10_000, 40_000))
    assert long > 3 * short
