"""What a client of a storm may not be told is found in its ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from tests.soak import ledgers
from tests.soak.ledgers import COUNTED, COUNTED_PATH

PUT = {"op": "put if absent", "to": {"p": "two"}, "if_absent": "p"}
FREE = {"op": "delete", "gone": ["p"], "state": "ok"}
TAKEN = {"op": "upload", "to": {"p": "one"}, "state": "ok"}
IN_DOUBT = {**TAKEN, "state": "error", "code": "outcome_unknown"}
REFUSED = {"state": "error", "code": "PreconditionFailed"}


@pytest.mark.parametrize(
    ("before", "answer", "is_contradiction"),
    [
        pytest.param(FREE, {"state": "ok"}, False, id="free, and written"),
        pytest.param(TAKEN, {"state": "ok"}, True, id="taken, and written"),
        pytest.param(IN_DOUBT, {"state": "ok"}, False, id="in doubt, and written"),
        pytest.param(FREE, REFUSED, True, id="free, and refused"),
        pytest.param(TAKEN, REFUSED, False, id="taken, and refused"),
        pytest.param(IN_DOUBT, REFUSED, False, id="in doubt, and refused"),
    ],
)
def test_an_answer_to_a_conditional_write(
    before: dict[str, Any], answer: dict[str, Any], is_contradiction: bool, tmp_path: Path
) -> None:
    told = ledgers.read([write_ledger(tmp_path / "c0.ledger", before, {**PUT, **answer})])
    assert bool(told.corrupt) == is_contradiction


def test_a_number_that_two_wrote_or_that_is_gone(tmp_path: Path) -> None:
    lines = [{"op": "increment", "state": "ok", "answer": numbers} for numbers in ("1", "2 3", "5")]
    files = [
        write_ledger(tmp_path / "c0.ledger", *lines),
        write_ledger(tmp_path / "c1.ledger", lines[1]),
    ]
    with Lake(MemoryKV(), "memory://ledgers") as lake:
        repo = lake.create_repository("counts")
        repo.create_branch(COUNTED, source="main")
        repo.upload(COUNTED, COUNTED_PATH, b"4 of c0")
        assert ledgers.find_lost_increments(repo, ledgers.read(files)) == [
            "2 clients were told that they wrote 2",
            "2 clients were told that they wrote 3",
            "5 was acknowledged, and 4 is there",
        ]


def write_ledger(file: Path, *lines: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file
