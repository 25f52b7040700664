"""`python docs/protocol_model.py [--seed | --mutants] [-v] [words of a scenario's name ...]`; docs/protocol.md says
what it shows.
"""

from __future__ import annotations

import sys

from .explorer import HOLDS, Found, explore
from .losses import protocol_of
from .mutants import MUTANTS, SeedProto
from .scenarios import FIRST, every, unsafe


def main(arguments: list[str]) -> int:
    """The number of verdicts that are not as they should be; for `--seed`, of scenarios violated."""
    words = [word for word in arguments if not word.startswith("-")]
    verbose = "-v" in arguments
    if "--mutants" in arguments:
        return mutants(words, verbose=verbose)
    seed = "--seed" in arguments
    chosen = [scenario for scenario in every() if not seed or scenario.group == FIRST]
    violated = states = 0
    group = ""
    for scenario in chosen:
        if words and not any(word in scenario.name for word in words):
            continue
        if scenario.group != group:
            group = scenario.group
            say(f"# {group}")
        kind = SeedProto if seed else protocol_of(scenario)
        found = explore(scenario, kind, strict=not seed and not scenario.loses, seek="UNSAFE" if seed else "")
        if seed and found.verdict == HOLDS:
            found = explore(scenario, kind, strict=False)
        tell(found, scenario.name, verbose=verbose)
        states += found.states
        violated += found.verdict != HOLDS
    say(f"{violated} scenario(s) violated; {states} states")
    for scenario in () if seed else unsafe():
        if not words or any(word in scenario.name for word in words):
            found = explore(scenario, protocol_of(scenario))
            tell(found, scenario.name, verbose=verbose)
            violated += not found.verdict.startswith(scenario.verdict)
    return violated


def mutants(words: list[str], *, verbose: bool) -> int:
    scenarios = {scenario.name: scenario for scenario in every()}
    wrong = 0
    for mutant in MUTANTS:
        if words and not any(word in mutant.scenario or word in mutant.kind.__name__ for word in words):
            continue
        say(f"# {mutant.kind.__name__}: {' '.join((mutant.kind.__doc__ or '').split())}")
        found = mutant.show(scenarios[mutant.scenario])
        tell(found, mutant.scenario, verbose=verbose)
        if not found.verdict.startswith(mutant.verdict):
            wrong += 1
            say(f"  NOT AS EXPECTED: {mutant.verdict}")
    say(f"{wrong} mutant(s) not as expected")
    return wrong


def tell(found: Found, name: str, *, verbose: bool) -> None:
    cut = "" if found.whole else " (cut off: not every state was visited)"
    say(f"{name:70s} {found.states:8d} states {found.seconds:6.1f}s  {found.verdict}{cut}")
    if verbose:
        for label, op, reply in found.trace:
            say(f"      {label} {op} -> {reply}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
