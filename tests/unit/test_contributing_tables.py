"""CONTRIBUTING says which files a new driver, command, route, format or setting touches. One of each is followed: the
files of the product that know it are those of the list, and every kind of file on the list does.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("refstore", "api", "reaper", "offline_gc", "purge", "prune", "s3_gateway")
CONFIGURATION = ("pyproject.toml", ".importlinter")
USED_BY = "refstore_reaper/reaper_pass.py"
"""The module that uses the setting which is followed."""


def listed(heading: str) -> list[list[str]]:
    """The patterns of files in each row of the section's table."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    return [re.findall(r"`([^`]+)`", row) for row in rows]


def files_with(pattern: str) -> set[str]:
    places = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")] + [ROOT / name for name in CONFIGURATION]
    return {str(file.relative_to(ROOT)) for file in places if re.search(pattern, file.read_text(), re.MULTILINE)}


@pytest.mark.parametrize(
    ("heading", "pattern", "own"),
    [
        ("A driver", r"refstore\.kv\.sqlite\b|\bapsw\b", ()),
        ("A command", r"\"completion\"|refstore completion\b", ()),
        ("A route", r"\btags\.router|[cC]reateTag|\bTagCreation\b", ()),
        ("A format of files", r"formats\.avro\b|\"avro\"|formats import .*\bavro\b", ()),
        ("A setting", r"\bscrub_every_seconds\b", (USED_BY,)),
    ],
)
def test_knows_it_where_the_list_says(heading: str, pattern: str, own: tuple[str, ...]) -> None:
    rows = listed(heading)
    found = files_with(pattern)
    patterns = [each for row in rows for each in row]
    assert {
        file for file in found if not any(fnmatch(file, each) for each in patterns) and not file.endswith(own)
    } == set()
    of_product = [row for row in rows if row[0].startswith((*(f"{room}/" for room in ROOMS), *CONFIGURATION))]
    assert len(of_product) >= (1 if heading == "A setting" else 2)
    for row in of_product:
        assert [file for file in found if any(fnmatch(file, each) for each in row)], f"{row} does not know it"


@pytest.mark.parametrize("heading", ["A driver", "A command", "A route", "A format of files", "A setting"])
def test_each_file_of_the_list_is_there(heading: str) -> None:
    assert [each for row in listed(heading) for each in row if not any(ROOT.glob(each))] == []
