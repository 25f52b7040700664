"""The check of how many lines each room may have (`scripts/line_budget.py`)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from scripts.line_budget import SLACK, compare, count_lines, read_budget


def test_every_room_is_counted_and_the_whole(tmp_path: Path) -> None:
    for name, lines in {"refstore/lake.py": 2, "refstore/kv/base.py": 3, "purge/refstore_purge/a.py": 5}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n" * lines)
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_a.py").write_text("x = 1\n" * 7)
    assert count_lines(tmp_path) == {"refstore": 2, "refstore/kv": 3, "purge": 5, "product": 10, "tests": 7}


def test_what_differs_from_the_budget_is_told() -> None:
    budget = read_budget("purge 100\napi 900\ngone 3\n")
    assert compare(Counter(purge=101, api=899 - SLACK, new=1), budget) == [
        "gone is in scripts/line_budget.txt, and there is no such room",
        "api has 699 lines: lower its figure of 900 in scripts/line_budget.txt",
        "new has 1 lines and no figure in scripts/line_budget.txt",
        "purge has 101 lines, 1 more than scripts/line_budget.txt allows",
    ]
    assert compare(Counter(purge=100, api=900 - SLACK, gone=3), budget) == []
