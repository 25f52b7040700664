"""`python -m tests.kit.explore`: explore scenarios, and replay what they found.

    --states N           as many states per scenario (default: a million); what is cut off is sampled by random walks
    --scenario TEXT      only those whose name contains it; may be given again
    --replay SCHEDULE    run one schedule of one scenario, as a violation prints it, and show every step
    --mutant NAME        with a fault planted, to look at what it breaks

Ends with 1 if anything was violated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from tests.kit import trace
from tests.kit.domain import simulated
from tests.kit.explorer import Explorer, Found, Scenario, Violation

STATES: Final = 1_000_000
WALKS: Final = 1000
SHOWN: Final = 30
"""Steps of settling that are shown: the last ones."""


class Plan(Protocol):
    @property
    def name(self) -> str: ...

    def scenario(self) -> Scenario: ...


def explore(plan: Plan, *, states_max: int, walks: int = WALKS, seed: int = 0) -> tuple[Found, Explorer]:
    """Build a scenario's world and search it."""
    with simulated():
        explorer = Explorer(plan.scenario())
        return explorer.search(states_max=states_max, walks=walks, seed=seed), explorer


def told(violation: Violation, explorer: Explorer) -> str:
    """A violation with its trace, and how to see it again."""
    names = explorer.names
    return "\n".join(
        [
            f"{explorer.scenario.name}: {violation.kind}: {violation.message}",
            *(f"    {line}" for line in trace.lines(violation.events, names)),
            *(f"    {line}" for line in trace.lines(violation.settling[-SHOWN:], names)),
            f"replay: --scenario {explorer.scenario.name!r} --replay {trace.schedule(violation.events)!r}",
        ]
    )


def row(found: Found) -> str:
    """A line of the table."""
    how = "all" if found.exhausted else f"cut, {found.walks} walks"
    return (
        f"{found.scenario:72.72s} {found.states:9d} states, {how:16s} {found.ends:6d} ends {found.seconds:7.1f} s  "
        f"{found.verdict[:90]}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kit.explore", description="Explore every interleaving of real code."
    )
    parser.add_argument("--states", type=int, default=STATES, help="states per scenario")
    parser.add_argument("--walks", type=int, default=WALKS, help="random walks that sample what is cut off")
    parser.add_argument("--seed", type=int, default=0, help="of the random walks")
    parser.add_argument("--scenario", action="append", default=[], help="only scenarios whose name contains this")
    parser.add_argument("--replay", help="a schedule to run, as a violation prints it")
    parser.add_argument("--mutant", help="plant this fault first")
    chosen = parser.parse_args(arguments)
    plans = _chosen(chosen.scenario)
    if not plans:
        parser.error("no scenario has such a name")
    with _planted(chosen.mutant):
        if chosen.replay is not None:
            if len(plans) > 1:
                exact = [plan for plan in plans if plan.name in chosen.scenario]
                if len(exact) != 1:
                    parser.error("a schedule belongs to one scenario; give its whole name with --scenario")
                plans = exact
            return _replay(plans[0], chosen.replay)
        return _explore_all(plans, chosen.states, chosen.walks, chosen.seed)


def _explore_all(plans: Sequence[Plan], states: int, walks: int, seed: int) -> int:
    violated = total = exhausted = 0
    seconds = 0.0
    for plan in plans:
        found, explorer = explore(plan, states_max=states, walks=walks, seed=seed)
        print(row(found), flush=True)
        total += found.states
        seconds += found.seconds
        exhausted += found.exhausted
        if found.violation is not None:
            violated += 1
            print(told(found.violation, explorer))
    print(
        f"{len(plans)} scenarios, {exhausted} of them visited whole, {total} states, {seconds:.0f} s: {violated} "
        "violated"
    )
    return 1 if violated else 0


def _replay(plan: Plan, schedule: str) -> int:
    with simulated():
        explorer = Explorer(plan.scenario())
        end = explorer.follow(trace.parsed(schedule))
    if isinstance(end, Violation):
        print(told(end, explorer))
        return 1
    print("\n".join(trace.lines(end, explorer.names)))
    print("nothing is violated")
    return 0


def _chosen(names: Sequence[str]) -> list[Plan]:
    from tests.simulation.scenarios import every

    return [plan for plan in every() if not names or any(name in plan.name for name in names)]


def _planted(name: str | None) -> AbstractContextManager[None]:
    from tests.simulation.mutants import mutants

    if name is None:
        return nullcontext()
    for mutant in mutants():
        if mutant.name == name:
            return mutant.planted()
    raise SystemExit(f"there is no mutant {name!r}; there are: {', '.join(mutant.name for mutant in mutants())}")


if __name__ == "__main__":
    sys.exit(main())
