"""The check of the examples and the README refuses each kind of internal, and excuses only what has a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_public_names import ROOT, check, find_faults, read_exceptions, read_programs

PUBLIC = """
import refstore
import refstore.errors
import refstore_gc
from refstore import Lake, errors
from refstore.errors import NotFound
from refstore_reaper import reap
with refstore.open("./lake") as lake:
    print(refstore.__version__, refstore_gc.collect(lake), lake.__class__, reap(lake))
"""


def test_public_names_pass() -> None:
    assert list(find_faults(PUBLIC, "a.py")) == []


@pytest.mark.parametrize(
    ("program", "subject"),
    [
        ("import refstore.core.ids", "a.py: refstore.core.ids"),
        ("from refstore.core import ids", "a.py: refstore.core"),
        ("def read():\n    from refstore_gc.gc_run import run_nightly", "a.py: refstore_gc.gc_run"),
        ("from refstore_gc import gc_run", "a.py: refstore_gc.gc_run"),
        ("from refstore import lake", "a.py: refstore.lake"),
        ("from refstore.errors import _codes", "a.py: refstore.errors._codes"),
        ("import refstore_api", "a.py: refstore_api"),
        ("import refstore\nrefstore.lake.Lake.open('a', 'b')", "a.py: refstore.lake"),
        ("repo.context.objects.put('a', b'')", "a.py: .context"),
        ("lake._close_stores()", "a.py: ._close_stores"),
    ],
)
def test_an_internal_is_refused(program: str, subject: str) -> None:
    assert [fault.subject for fault in find_faults(program, "a.py")] == [subject]


def test_the_readme_and_every_example_are_looked_at(tmp_path: Path) -> None:
    places = [place for place, _ in read_programs(ROOT)]
    assert places.count("README.md") == (ROOT / "README.md").read_text().count("```python")
    assert "examples/git_history/collecting.py" in places
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "a.py").write_text("from refstore.core import ids")
    (tmp_path / "README.md").write_text("```python\nimport refstore\n\nrefstore.lake\n```\n")
    faults = list(check(tmp_path, {}))
    assert [fault.partition(" is ")[0] for fault in faults] == [
        "examples/a.py: refstore.core",
        "README.md: refstore.lake",
    ]
    excused = read_exceptions(
        "# a comment\nexamples/a.py: refstore.core # for this test\nREADME.md: refstore.lake\nb.py: x # y"
    )
    assert list(check(tmp_path, excused)) == [
        "b.py: x: is an exception, and no fault; take it off scripts/public_name_exceptions.txt",
        "README.md: refstore.lake: is an exception without a reason",
    ]
