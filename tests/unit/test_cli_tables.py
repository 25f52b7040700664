"""Tables for people: streamed, aligned by their first page, and never cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refstore.cli import tables
from refstore.cli.tables import Row, print_rows


def rows(count: int) -> Iterator[Row]:
    return ({"path": f"a/{number}", "size_bytes": number} for number in range(count))


def test_columns_are_aligned_numbers_to_the_right_and_titles_have_no_underscore(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_rows(
        [{"path": "a", "size_bytes": 5, "staged": True}, {"path": "bcdefg", "size_bytes": None, "staged": False}]
    )
    assert capsys.readouterr().out == "path    size bytes  staged\na                5  yes\nbcdefg              no\n"


def test_nothing_is_printed_for_no_rows_not_even_titles(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([])
    assert capsys.readouterr().out == ""


def test_what_is_wider_than_the_first_page_is_neither_cut_nor_broken(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([*rows(1000), {"path": "x" * 500, "size_bytes": 1}])
    *_, before, last = capsys.readouterr().out.splitlines()
    assert before == "a/999         999"
    assert last == "x" * 500 + "           1"


def test_only_the_first_page_is_held(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_PAGE_SECONDS", 3600)
    written: list[int] = []

    def watched() -> Iterator[Row]:
        for row in rows(3000):
            written.append(capsys.readouterr().out.count("\n"))
            yield row

    print_rows(watched())
    assert written == [0] * 1000 + [1001] + [1] * 1999


def test_the_first_row_does_not_wait_for_a_slow_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_PAGE_SECONDS", 0)

    def slow() -> Iterator[Row]:
        yield {"path": "first"}
        yield {"path": "second"}
        assert "first" in capsys.readouterr().out
        yield {"path": "third"}

    print_rows(slow())
    assert capsys.readouterr().out == "third\n"


def test_a_column_that_only_a_later_row_has_comes_last(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([*rows(1000), {"path": "b", "more": "told"}])
    assert capsys.readouterr().out.splitlines()[-1].split() == ["b", "told"]


def test_a_path_cannot_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"path": "a\x1b[2J\nb"}])
    assert capsys.readouterr().out == "path\na\\x1b[2J\\nb\n"


def test_wide_characters_are_counted_as_a_terminal_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"a": "数据", "b": "x"}, {"a": "data", "b": "x"}])
    assert capsys.readouterr().out == "a     b\n数据  x\ndata  x\n"


@pytest.mark.parametrize(("terminal", "bold"), [(True, True), (False, False)])
def test_titles_are_bold_on_a_terminal_only(
    terminal: bool, bold: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(tables.sys.stdout, "isatty", lambda: terminal, raising=False)
    print_rows(rows(1))
    assert capsys.readouterr().out.startswith("\x1b[1mpath") is bold
