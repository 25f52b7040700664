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
    assert capsys.readouterr().out == "path    size  staged\na        5 B  yes\nbcdefg        no\n"


def test_an_empty_list_says_so_beside_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([])
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "There is nothing to list.\n")


NOW_MS = 1_764_000_000_000
COMMIT = "0123456789abcdef" * 4
MARK = "01m85qe9er0hfs936jcs5zh5pk"


def test_sizes_have_units_times_are_ages_and_ids_are_short(capsys: pytest.CaptureFixture[str]) -> None:
    row: Row = {"commit": COMMIT, "date": "2025-11-24T12:00:00Z", "bytes": 1_500_000, "mark": MARK, "goes": None}
    print_rows([row, {**row, "date": "2025-12-01T15:00:00Z", "bytes": 7}], now_ms=NOW_MS)
    assert capsys.readouterr().out == (
        "commit        date      bytes  mark          goes\n"
        "0123456789ab  4 h ago  1.5 MB  01m85qe9er0h\n"
        "0123456789ab  in 6 d      7 B  01m85qe9er0h\n"
    )


def test_states_have_colours_on_a_terminal_that_has_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row: Row = {"state": "abandoned", "note": "abandoned long ago"}
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_rows([row])
    assert capsys.readouterr().out.splitlines()[1] == "\x1b[31mabandoned\x1b[0m  abandoned long ago"
    monkeypatch.setenv("NO_COLOR", "1")
    print_rows([row])
    assert capsys.readouterr().out.splitlines()[1] == "abandoned  abandoned long ago"


def test_one_object_is_shown_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"": "commit", " ": COMMIT}, {"": "date", " ": "2025-11-24T12:00:00Z"}], header=False)
    assert capsys.readouterr().out == f"commit  {COMMIT}\ndate    2025-11-24T12:00:00Z\n"


def test_a_table_fits_the_terminal_and_its_last_column_is_never_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_rows([{"path": "a", "committer": "b" * 40, "nothing": None, "message": "the last column stays whole"}])
    title, line = capsys.readouterr().out.splitlines()
    assert title.split() == ["path", "committer", "message"]
    assert line.endswith("…  the last column stays whole")
    assert len(line) == 60
    print_rows([{"path": "p" * 70, "message": "m" * 20}])
    assert capsys.readouterr().out.splitlines()[1] == "p" * 70 + "  " + "m" * 20


def test_what_is_wider_than_the_first_page_is_neither_cut_nor_broken(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([*rows(1000), {"path": "x" * 500, "size_bytes": 1}])
    *_, before, last = capsys.readouterr().out.splitlines()
    assert before == "a/999  999 B"
    assert last == "x" * 500 + "    1 B"


def test_only_the_first_page_is_held(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PAGE_SECONDS", 3600)
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
    monkeypatch.setattr(tables, "PAGE_SECONDS", 0)

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
    assert capsys.readouterr().out == "path\na\\u001b[2J\\nb\n"


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
