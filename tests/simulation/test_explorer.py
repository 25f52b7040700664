"""The explorer itself: that it visits what there is, that its reductions hide nothing, and that what it finds is found
again.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.kit import trace
from tests.kit.domain import simulated
from tests.kit.explore import explore, told
from tests.kit.explorer import Explorer, Violation
from tests.kit.ids import CountingIds, short
from tests.simulation.mutants import mutants
from tests.simulation.scenarios import every

PLANS = {plan.name: plan for plan in every()}
MUTANTS = {mutant.name: mutant for mutant in mutants()}

SMALL = [
    "delete p | delete p | reap",
    "move p->q | delete p | reap",
    "reset path | overwrite | hard delete",
    "restore | restore elsewhere | hard delete",
    "markers: commit | reset",
    "gc | copy from an unmarked commit | delete its branch",
    "gc | commit of a reference-less copy; reap",
    "clock past expiry: issue; link | hard delete",
]


@pytest.mark.parametrize("name", SMALL)
def test_reduction_reaches_every_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the reduction, the stores end in the same contents, in no more states."""
    reduced, explorer = explore(PLANS[name], states_max=300_000)
    monkeypatch.setattr(Explorer, "find_alone", lambda *_: None)
    whole, plain = explore(PLANS[name], states_max=300_000)
    assert reduced.exhausted
    assert whole.exhausted
    assert reduced.states <= whole.states
    assert _ends(explorer) == _ends(plain)


def _ends(explorer: Explorer) -> set[frozenset[tuple[object, object]]]:
    names = explorer.names
    return {
        frozenset((names.keys[key], names.values[value]) for key, value in store.items())
        for store in explorer.end_stores()
    }


def test_what_is_found_replays() -> None:
    mutant = MUTANTS["a commit's tokens are only deleted"]
    with mutant.planted():
        found, explorer = explore(PLANS[mutant.caught_by], states_max=50_000)
        assert found.violation is not None
        schedule = trace.schedule(found.violation.events)
        with simulated():
            again = Explorer(PLANS[mutant.caught_by].scenario()).follow(trace.parsed(schedule))
    assert isinstance(again, Violation)
    assert (again.kind, again.message) == (found.violation.kind, found.violation.message)
    assert schedule in told(found.violation, explorer)
    with simulated():
        assert not isinstance(Explorer(PLANS[mutant.caught_by].scenario()).follow(trace.parsed("G")), Violation)


@pytest.mark.parametrize("seed", ["0", "1"])
def test_hash_seed_makes_no_difference(seed: str) -> None:
    """The same states, in the same order, whatever Python's hashes are."""
    program = (
        "from tests.kit.explore import explore\n"
        "from tests.simulation.scenarios import every\n"
        "plan = next(p for p in every() if p.name == 'overwrite | commit | reap')\n"
        "found, _ = explore(plan, states_max=3000, walks=20)\n"
        "print(found.states, found.transitions, found.ends, found.runs)\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    told_ = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    found, _ = explore(PLANS["overwrite | commit | reap"], states_max=3000, walks=20)
    assert told_.stdout.split() == [str(found.states), str(found.transitions), str(found.ends), str(found.runs)]


def test_schedules_are_read_as_they_are_written() -> None:
    assert trace.parsed("U*2 G#1 U~ K!") == [("U", 0, ""), ("U", 0, ""), ("G", 1, ""), ("U", 0, "~"), ("K", 0, "!")]


def test_labels_of_ids_cannot_collide() -> None:
    with pytest.raises(ValueError, match="letter last"):
        CountingIds("u0")
    assert short(CountingIds("u").new_id(0)) == "u.1"
