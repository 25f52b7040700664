"""The table of tests/corpus/README.md: how many files the corpus tries, and what is refused, by writer and format.

`python -m tests.corpus.table` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.corpus import by_spark
from tests.corpus.case import Case
from tests.corpus.expected import REFUSED
from tests.corpus.groups import GROUPS

HEAD = ("| writer | format | files | left as they are, and listed |", "|---|---|---|---|")


def every_case() -> list[Case]:
    """Return every case; none is written."""
    cases = [case for group in GROUPS.values() for case in group()]
    return [*cases, *by_spark.cases(None, Path())]


def table() -> Iterator[str]:
    cases = every_case()
    yield from HEAD
    for writer, format_ in dict.fromkeys((case.writer, case.format) for case in cases):
        mine = [case for case in cases if (case.writer, case.format) == (writer, format_)]
        left = [case.what for case in mine if case.name in REFUSED]
        parts = [name for name in REFUSED if any(name.startswith(f"{case.name} (") for case in mine)]
        left += [name.partition(": ")[2] for name in parts]
        yield f"| {writer} | {format_} | {len(mine)} | {_listed(left)} |"


def _listed(names: list[str]) -> str:
    return "; ".join(name.replace("|", "\\|") for name in names)


if __name__ == "__main__":
    print("\n".join(table()))
