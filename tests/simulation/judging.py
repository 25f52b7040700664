"""Explore a plan and judge it: by its promises, by how its calls ended, and by a judge of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from tests.kit.explore import Plan as Explored
from tests.kit.explore import explore, row, told
from tests.kit.explorer import Explorer, Found, Scenario
from tests.kit.steps import Interned
from tests.simulation.plans import Plan
from tests.simulation.planting import Mutant

Outcomes = Mapping[str, tuple[Hashable, ...]]
Judge = Callable[[Outcomes, Mapping[int, int], Interned], str | None]
"""Return what is wrong with how the tasks of a plan ended, and with what the stores have then."""


class JudgedPlan:
    """A plan with a judge besides its promises. `remembers`: further labels of which the judge sees the outcomes."""

    def __init__(self, plan: Plan, judge: Judge, *, remembers: str = "") -> None:
        self._plan = plan
        self._judge = judge
        self._remembers = remembers
        self.name = plan.name

    def scenario(self) -> Scenario:
        made = self._plan.scenario()
        promised = made.ends

        def ends(said: Outcomes, store: Mapping[int, int], names: Interned) -> str | None:
            broken = promised(said, store, names) if promised is not None else None
            return broken or self._judge(said, store, names)

        return replace(made, ends=ends, remembers=made.remembers | frozenset(self._remembers))


def explore_safe(plan: Explored, *, states_max: int, walks: int) -> tuple[Found, Explorer]:
    """Explore a plan in which nothing may be violated."""
    found, explorer = explore(plan, states_max=states_max, walks=walks)
    print(row(found))
    assert found.violation is None, told(found.violation, explorer)
    return found, explorer


def idle_calls(explorer: Explorer) -> set[tuple[str, str]]:
    """Return the calls that never ended well: a scenario in which a call never gets anywhere shows nothing."""
    return {key for key, said in explorer.program.ended.items() if "ok" not in said and not key[0].startswith("Z")}


def check_holds(plan: Explored, *, states_max: int, walks: int) -> None:
    """Check that a plan is safe, comes to an end, and that each of its calls ended well somewhere."""
    found, explorer = explore_safe(plan, states_max=states_max, walks=walks)
    idle = idle_calls(explorer)
    assert found.ends
    assert not idle, f"never ended well: {sorted(idle)}"


def check_is_caught(mutant: Mutant, plan: Explored, *, states_max: int, walks: int) -> None:
    """Check that a plan is violated while a fault is in the code."""
    with mutant.planted():
        found, _ = explore(plan, states_max=states_max, walks=walks)
    print(f"{plan.name}: {found.seconds:.1f} s: {found.verdict}")
    assert found.violation is not None, f"{plan.name!r} holds without rule {mutant.rule!r}: {mutant.name}"
