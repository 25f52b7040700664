"""Refuse more lines of Python in a room than `scripts/line_budget.txt` allows.

    .venv/bin/python scripts/line_budget.py           compare
    .venv/bin/python scripts/line_budget.py --write   write the file anew from what there is

A change that needs more lines raises the figure in the same commit, whose message says what a user gets for them. A
figure that is far above what there is has to come down, so that what was won stays won.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BUDGET: Final = ROOT / "scripts" / "line_budget.txt"
PRODUCT: Final = ("refstore", "api", "reaper", "offline_gc", "purge", "prune", "s3_gateway")
SLACK: Final = 200
"""How far a figure may be above what there is."""


def count_lines(root: Path = ROOT) -> Counter[str]:
    """Return the lines of each room, of the whole product, and of the tests."""
    counts: Counter[str] = Counter()
    for top in (*PRODUCT, "tests"):
        for module in (root / top).rglob("*.py"):
            lines = len(module.read_bytes().splitlines())
            inside = module.relative_to(root).parts
            room = f"{top}/{inside[1]}" if top == "refstore" and len(inside) > 2 else top
            counts[room] += lines
            if top != "tests":
                counts["product"] += lines
    return counts


def read_budget(text: str) -> dict[str, int]:
    """Return what each room may have. Raises ValueError."""
    return {room: int(figure) for room, figure in (line.split() for line in text.splitlines() if line)}


def compare(counts: Counter[str], budget: dict[str, int]) -> list[str]:
    """Return what is wrong, a sentence each."""
    wrong = [f"{room} is in scripts/line_budget.txt, and there is no such room" for room in budget.keys() - counts]
    for room, lines in sorted(counts.items()):
        allowed = budget.get(room)
        if allowed is None:
            wrong.append(f"{room} has {lines} lines and no figure in scripts/line_budget.txt")
        elif lines > allowed:
            wrong.append(f"{room} has {lines} lines, {lines - allowed} more than scripts/line_budget.txt allows")
        elif lines < allowed - SLACK:
            wrong.append(f"{room} has {lines} lines: lower its figure of {allowed} in scripts/line_budget.txt")
    return wrong


def main(arguments: list[str]) -> int:
    counts = count_lines()
    if arguments == ["--write"]:
        BUDGET.write_text("".join(f"{room} {lines}\n" for room, lines in sorted(counts.items())), "utf-8")
        return 0
    wrong = compare(counts, read_budget(BUDGET.read_text("utf-8")))
    print("\n".join(wrong) or f"the product has {counts['product']} lines, the tests {counts['tests']}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
