"""The check of names refuses each kind of name that it says it refuses, and excuses only what has a reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.check_names import faults, read_exceptions, read_names

ROOT = Path(__file__).resolve().parents[2]
FIELD_WORDS = {"size", "bytes", "refstore", "path"}
USES_ALL_WORDS = "row = {'size_bytes': 1, 'refstore_path': 2}"
PLAN = {"b.py": "class Plan:\n    size: int", "c.py": "from b import Plan\nclass Short(Plan): ..."}
LONG = "def read():\n" + "    pass\n" * 60


def faults_of(tmp_path: Path, files: dict[str, str], exceptions: str = "") -> list[str]:
    for name, text in {"cli/words.py": USES_ALL_WORDS, **files}.items():
        file = tmp_path / "house" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return list(faults(read_names(tmp_path, ["house"]), FIELD_WORDS, read_exceptions(exceptions)))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.py": "class Entry: ...", "b.py": "class _Entry: ..."}, "classes share the name Entry"),
        ({"a/plan.py": "", "b/plan.py": ""}, "modules share the name plan"),
        ({"uploading.py": ""}, "uploading.py: a module is named by a noun"),
        ({"known.py": ""}, "known.py: a module is named by a noun"),
        ({"verify_beside.py": ""}, "verify_beside.py: a module is named by a noun"),
        ({"a.py": "def of(): ..."}, "a.py: of does not say"),
        ({"a.py": "class A:\n    def _held(self): ..."}, "a.py: _held does not say"),
        ({"a.py": "async def decoded(): ..."}, "a.py: decoded does not say"),
        ({"a.py": "class Found: ..."}, "a.py: Found does not say"),
        ({"a.py": LONG}, "a.py: read has 61 lines"),
        ({"__init__.py": '"""Two modules: a.py, and b.py."""', "a.py": ""}, "its docstring names b.py, and"),
        ({"a.py": '"""Ends as `Gone` says."""'}, "a.py: a docstring names `Gone`"),
        ({"a.py": 'def read():\n    """Call `_fill` first."""', "b.py": "def _fill(): ..."}, "names `_fill`"),
        ({"a.py": 'LINES = 1\n"""Of `Plan.keeps`."""', "b.py": "class Plan:\n    size = 1\nkeeps = 2"}, "`Plan.keeps`"),
        ({"a.py": '"""See `b.fill`."""', "b.py": ""}, "names `b.fill`"),
        ({"a.py": '"""A bit `1 << Reason`."""', "b.py": "class Reason: ..."}, "names `1 << Reason`"),
        ({"a.py": 'def read():\n    """Read. Raises Gone, KeyError."""'}, "says that Gone is raised"),
        ({"models.py": "class A:\n    stretch: int"}, "'stretch' is no word"),
        ({"a.py": "class A(BaseSettings):\n    other: int"}, "'other' is no word"),
        ({"cli/a.py": "row = {'size_bytes': 1, 'goes_on': 2}"}, "'goes' is no word"),
        ({"a.py": "Metric('refstore_rounds', 'counter')"}, "'rounds' is no word"),
        ({"cli/words.py": "row = {'size_bytes': 1, 'path': 2}"}, "no field, setting or metric has the word 'refstore'"),
    ],
)
def test_refuses(tmp_path: Path, files: dict[str, str], said: str) -> None:
    assert said in "\n".join(faults_of(tmp_path, files))


@pytest.mark.parametrize(
    "files",
    [
        {"kv/redis/url.py": "", "objects/url.py": "", "base.py": "", "a/base.py": ""},
        {"cli/commit.py": "", "commit.py": ""},
        {"staging.py": "", "ring.py": ""},
        {"a.py": "def embed(): ...\ndef _read_from(): ...\nclass Seed: ..."},
        {"a.py": LONG.removesuffix("    pass\n")},
        {"models.py": "class A:\n    size_bytes: int"},
        {"a.py": '"""See `tests/world.py` and `b.py`."""', "b.py": ""},
        {"a.py": '"""Like `Plan.size`, `Short.size`, `os.path`, `Plan` and `b.py`. Raises KeyError, Plan."""', **PLAN},
        {"a.py": "row = {'stretch': 1}\nclass A:\n    stretch: int"},
        {"cli/a.py": "row = {'Size of it': 1, **other}"},
    ],
)
def test_accepts(tmp_path: Path, files: dict[str, str]) -> None:
    assert faults_of(tmp_path, files) == []


def test_an_exception_needs_a_reason_and_a_fault(tmp_path: Path) -> None:
    listed = "# comment\nhouse/a.py: of # the protocol's word\n"
    assert faults_of(tmp_path, {"a.py": "def of(): ..."}, listed) == []
    unused = "house/a.py: of: is an exception, and breaks no rule; take it off the list"
    assert faults_of(tmp_path, {"a.py": "def get(): ..."}, listed) == [unused]
    with pytest.raises(ValueError, match="without a reason"):
        read_exceptions("house/a.py: of\n")


def test_all_names_of_this_house_pass() -> None:
    command = [sys.executable, ROOT / "scripts" / "check_names.py"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert checked.returncode == 0, checked.stdout
