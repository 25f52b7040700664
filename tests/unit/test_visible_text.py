"""Callers' text steers no terminal, turns no page's text round, and is no formula of a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from urllib.parse import quote

import pytest

import refstore
from refstore import cli
from refstore.core.visible_text import make_visible, make_visible_json, make_visible_line
from tests.api.pages import pages_of
from tests.api.service import application
from tests.commands import Command
from tests.kit.unchecked_staging import stage_unchecked

HOSTILE = "\x1b[2J\x9b31m\u202etxt.exe\u2066\x07\x7f"
STEERING = "\x1b\x9b\u202e\u2066\x07\x7f"


def steers(text: str) -> bool:
    return any(character in text for character in STEERING)


def test_control_and_direction_characters_are_shown_as_escapes() -> None:
    assert make_visible(HOSTILE) == "\\u001b[2J\\u009b31m\\u202etxt.exe\\u2066\\u0007\\u007f"
    assert make_visible("two\nlines\tof text\r\nשלום ünï 名前") == "two\nlines\tof text\r\nשלום ünï 名前"
    assert make_visible("a\rb\U000e0041") == "a\\u000db\\udb40\\udc41"
    assert make_visible_line("a\nb\u202e") == "a\\nb\\u202e"
    encoded = json.dumps({HOSTILE: [HOSTILE]}, ensure_ascii=False).encode()
    assert not steers(make_visible_json(encoded).decode().replace("\x7f", ""))
    assert json.loads(make_visible_json(encoded)) == json.loads(encoded)


@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_no_command_prints_them(sales: Command, output: str) -> None:
    with refstore.open(sales.folder / "lake") as lake:
        repo = lake.repository("sales")
        repo.upload("main", f"in/{HOSTILE}", b"x", metadata={HOSTILE: HOSTILE})
        repo.commit("main", HOSTILE, committer=HOSTILE)
        stage_unchecked(repo, f"in/bad{HOSTILE}", f"s3://[bad/{HOSTILE}")
    path = f"in/{HOSTILE}"
    for words in (
        ["ls", "sales", "main", "in/"],
        ["stat", "sales", "main", path],
        ["stat", "sales", "main", "in/bad" + HOSTILE],
        ["log", "sales"],
        ["log", "sales", "--oneline"],
        ["show", "sales", "main"],
        ["diff", "sales", "main"],
        ["why", "sales", path],
        ["stat", "sales", "main", HOSTILE],
        ["stat", "sales", HOSTILE, "x"],
        ["upload", "sales", "main", HOSTILE],
        ["no-such-command" + HOSTILE],
        ["download", "-r", "sales", "main", "in/", "down"],
    ):
        ran = sales(*words, "--output", output)
        assert not steers(ran.out + ran.err), words
    if output == "json":
        assert sales.json("stat", "sales", "main", path)["metadata"] == {HOSTILE: HOSTILE}
    assert sales.ok("cat", "sales", "main", path).out_bytes == b"x"


def test_a_command_without_standard_error_works(sales: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    assert cli.run(["--data", str(sales.folder / "lake"), "ls", "sales", "none"]) == 3


@pytest.mark.parametrize("begins", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d"])
def test_text_in_csv_is_no_formula_and_numbers_stay_numbers(sales: Command, begins: str) -> None:
    hostile = begins + 'HYPERLINK("http://x.test","y")'
    with refstore.open(sales.folder / "lake") as lake:
        repo = lake.repository("sales")
        repo.upload("main", f"{hostile}.csv", b"12345")
        repo.upload("main", "-5", b"")
        repo.commit("main", hostile, committer=hostile)
    rows = list(csv.DictReader(io.StringIO(sales.ok("ls", "sales", "main", "--recursive", "--output", "csv").out)))
    assert [(row["path"][:1], row["size_bytes"]) for row in rows if "HYPERLINK" in row["path"]] == [("'", "5")]
    assert [row["size_bytes"] for row in rows if row["path"] == "-5"] == ["0"]
    (logged, _created) = csv.DictReader(io.StringIO(sales.ok("log", "sales", "--output", "csv").out, newline=""))
    assert (logged["message"][0], logged["committer"][0]) == ("'", "'")


def test_no_answer_of_the_service_has_them(sales: Command) -> None:
    del sales
    with application() as service:
        service.lake.create_repository("sales").upload("main", HOSTILE, b"x", metadata={"a": HOSTILE})
        listed = service("GET", "/repositories/sales/refs/main/objects/ls")
        refused = service("GET", "/repositories/sales/refs/main/objects", params={"path": "x\u202ey"})
        assert not steers((listed.text + refused.text).replace("\x7f", ""))
        assert listed.json()["results"][0]["metadata"] == {"a": HOSTILE}


def test_no_page_shows_them() -> None:
    with application() as service:
        repo = service.lake.create_repository("sales")
        for path in (HOSTILE, "lost" + HOSTILE):
            repo.upload("main", path, b"x", metadata={"a": HOSTILE})
        repo.delete("main", "lost" + HOSTILE)
        repo.commit("main", HOSTILE, committer=HOSTILE)
        home = "/repositories/sales"
        shown = pages_of(
            service.lake,
            f"{home}/objects?ref=main",
            f"{home}/object?ref=main&path={quote(HOSTILE, safe='')}",
            f"{home}/commits?ref=main",
            f"{home}/trash",
        )
        assert not any(map(steers, shown))
        assert all("\\u202etxt.exe" in page for page in shown)
