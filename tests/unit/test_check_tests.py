"""The check of tests refuses private names of the product and helpers that exist twice, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_tests import faults, read_private_names, read_test_files

PRODUCT = """
_PLANTED_MAX = 3

def _planted(): ...

class Store:
    def __init__(self):
        self._planted_root = "/"
"""
HELPER = "def {name}({given}):\n    '''{told}'''\n    return [item.path for item in {given}.list('main')]\n"


def faults_of(tmp_path: Path, files: dict[str, str], exceptions: dict[str, str] | None = None) -> list[str]:
    for name, text in {"refstore/store.py": PRODUCT, **files}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    private = read_private_names(tmp_path, ["refstore"])
    return list(faults(read_test_files(tmp_path, ["tests", "bench"]), private, exceptions or {}))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from refstore.store import _planted", "_planted"),
        ("from refstore.store import Store, _PLANTED_MAX", "_PLANTED_MAX"),
        ("from refstore import store\nstore._planted()", "_planted"),
        ("def test(store):\n    assert store._planted_root", "_planted_root"),
        ("class Mine(Store):\n    def root(self):\n        return self._planted_root", "_planted_root"),
        ("def test(monkeypatch):\n    monkeypatch.setattr(store, '_planted', None)", "_planted"),
        ("mock.patch('refstore.store._planted')", "_planted"),
        ("STEPS = [(store, '_planted')]", "_planted"),
    ],
)
@pytest.mark.parametrize("folder", ["tests", "bench"])
def test_a_private_name_of_the_product_is_refused(tmp_path: Path, folder: str, text: str, name: str) -> None:
    place = f"{folder}/test_a.py: {name}"
    (told,) = faults_of(tmp_path, {f"{folder}/test_a.py": text})
    assert told.startswith(place)
    assert faults_of(tmp_path, {}, {place: "why"}) == []


def test_two_copies_of_a_helper_are_refused_whatever_their_words_are(tmp_path: Path) -> None:
    files = {
        "tests/test_a.py": HELPER.format(name="paths", given="repo", told="Return the paths."),
        "tests/unit/test_b.py": HELPER.format(name="shown", given="lake", told="What is there."),
    }
    (told,) = faults_of(tmp_path, files)
    assert told.startswith("tests/test_a.py: paths, tests/unit/test_b.py: shown are one helper")
    assert faults_of(tmp_path, {}, {"tests/test_a.py: paths": "why"}) == []


@pytest.mark.parametrize(
    "files",
    [
        {"tests/a.py": "def test(other):\n    assert other._asdict() and other._unknown"},
        {"tests/a.py": "class World:\n    def _planted(self): ...\n\ndef test(world):\n    world._planted()"},
        {"tests/a.py": "Edit('refstore.store:_planted', 'old', 'new')"},
        {"tests/a.py": "'_planted_root'"},
        {"tests/a.py": "def a(): ...", "tests/b.py": "def a(): ..."},
        {
            name: "LIMIT = 3\n" + HELPER.format(name="paths", given="repo", told="").replace("'main'", "LIMIT")
            for name in ("tests/a.py", "tests/b.py")
        },
        {"tests/a.py": HELPER.format(name="test_a", given="repo", told="").replace("return", "assert")},
    ],
    ids=["of others", "of its own", "a planted fault", "a word", "empty", "of other constants", "a test"],
)
def test_the_rest_is_accepted(tmp_path: Path, files: dict[str, str]) -> None:
    assert faults_of(tmp_path, files) == []


def test_an_exception_that_excuses_nothing_is_told(tmp_path: Path) -> None:
    unused = "tests/a.py: _planted: is an exception, and breaks no rule; take it off the list"
    assert faults_of(tmp_path, {}, {"tests/a.py: _planted": "why"}) == [unused]
