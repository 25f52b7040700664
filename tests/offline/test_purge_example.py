"""`examples/purge_events`, small and with its commands in this process; and that its comparison can fail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples.purge_events import __main__ as example
from examples.purge_events import events
from refstore import cli

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


@pytest.fixture
def here(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(data: Path, *words: str, quiet: bool = False) -> int:
        return cli.run([*words, "--data", str(data)])

    monkeypatch.setattr(example, "_refstore", run)
    monkeypatch.setattr(events, "DAYS", events.DAYS[:2])


@pytest.mark.usefixtures("here")
def test_every_row_is_as_expected_after_the_purge_and_after_the_revert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example.prove(tmp_path / "lake", rows=2_000) == 0
    shown = capsys.readouterr().out
    assert "rows of 1,000 guests are gone, all others are there, in order; the report says the same" in shown
    assert "Reverted: all rows are there again." in shown


@pytest.mark.usefixtures("here")
def test_a_row_too_many_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = events.without

    def one_less(made: Any, ids: list[str]) -> Any:
        return without(made, ids)[1:]

    monkeypatch.setattr(events, "without", one_less)
    with pytest.raises(SystemExit):
        example.prove(tmp_path / "lake", rows=100)


def test_the_size_is_about_what_was_asked_for() -> None:
    rows = events.rows_for(100_000_000)
    size = len(events.parquet(events.table(events.paths()[0], rows))) * len(events.paths())
    assert 0.9 < size / 100_000_000 < 1.1
