"""The table of `tests/tiers.py` leaves no fault of the mutant tables to the second tier, and has no stale line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from tests.simulation.planting import Mutant
from tests.tiers import COLLECTED, MATCHED, SECOND_TIER

ROOT = Path(__file__).resolve().parents[2]
USES_MUTANTS = re.compile(r"^from tests\.simulation\S* import .*\b(?:Mutant|mutants)\b", re.MULTILINE)

COLLECT = """
import sys
import pytest
from tests.simulation.planting import Mutant


class Planted:
    def pytest_collection_finish(self, session):
        for item in session.items:
            for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
                if isinstance(value, Mutant):
                    print(f"planted: {value}")


sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:tests.supervisor", *sys.argv[1:]], plugins=[Planted()]))
"""


def files_with_mutants() -> list[Path]:
    return [file for file in sorted((ROOT / "tests").rglob("*.py")) if USES_MUTANTS.search(file.read_text())]


def faults() -> set[str]:
    """Every fault of every table: a list of mutants, or a function that yields them."""
    found: set[str] = set()
    for file in files_with_mutants():
        module = import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
        found |= {str(mutant) for table in tables(module) for mutant in table}
    return found


def tables(module: ModuleType) -> Iterator[Iterable[Mutant]]:
    for value in vars(module).values():
        if isinstance(value, FunctionType) and value.__annotations__.get("return") == "Iterator[Mutant]":
            yield value()
        elif isinstance(value, list) and value and all(isinstance(each, Mutant) for each in value):
            yield value


def test_every_fault_of_the_mutant_tables_is_planted_in_the_first_tier() -> None:
    """Who plants it asserts that it is seen: `tests/simulation/test_mutants.py`, and whoever has a table of his own."""
    tests = [str(file.relative_to(ROOT)) for file in files_with_mutants() if file.name.startswith("test_")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    collected = subprocess.run(
        [sys.executable, "-c", COLLECT, *tests], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert collected.returncode == 0, collected.stdout + collected.stderr
    planted = {line.removeprefix("planted: ") for line in collected.stdout.splitlines() if line.startswith("planted: ")}
    assert len(faults()) >= 84
    assert faults() - planted == set()


def test_every_line_of_the_table_names_a_test_and_a_reason(request: pytest.FixtureRequest) -> None:
    """Where the whole file has been collected; in a run of all tests, every line is looked at."""
    for line, reason in SECOND_TIER.items():
        file = line.partition("::")[0]
        assert (ROOT / file).is_file(), line
        assert reason, line
        if file in request.config.stash[COLLECTED] and not any("::" in each for each in request.config.args):
            assert line in request.config.stash[MATCHED], f"no test is called {line}"


def test_the_state_machine_is_in_the_first_tier() -> None:
    assert not any("tests/properties/test_machine.py".startswith(line.partition("::")[0]) for line in SECOND_TIER)
