"""What an application gets with the library: none of the command's packages, and any Typer that it wants itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAM: Final = """
import sys
from datetime import timedelta

import refstore, refstore_gc, refstore_purge, refstore_reaper
from refstore import fsspec_filesystem

with refstore.create({folder!r}) as lake:
    repo = lake.create_repository("sales")
    with repo.transaction("main", "load") as tx:
        tx.upload("a", b"1")
    with repo.branch("main").open("b", "w") as file:
        file.write("2")
    repo.commit("main", "more")
    assert [item.path for item in repo.ref("main").list()] == ["a", "b"]
    repo.delete("main", "a")
    refstore_reaper.reap(lake, grace=timedelta(0))
    refstore_gc.collect(repo, dry_run=True)
    assert repo.why_path("main", "a")
with refstore.open({folder!r}, read_only=True) as lake:
    assert [repo.name for repo in lake.repositories()] == ["sales"]
print(*sorted({{"typer", "click", "rich", "pygments", "structlog"}} & {{*sys.modules}}))
"""


def test_a_program_that_uses_all_of_it_imports_nothing_of_the_command(tmp_path: Path) -> None:
    program = PROGRAM.format(folder=str(tmp_path / "lake"))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (ran.stdout, ran.returncode) == ("\n", 0), ran.stderr


def test_what_the_command_takes_from_inside_typer_stands_in_one_place() -> None:
    inside = re.compile(r"typer\._\w|from typer import _")
    found = {
        str(path.relative_to(ROOT)) for path in (ROOT / "refstore").rglob("*.py") if inside.search(path.read_text())
    }
    assert found == {"refstore/cli/typer_internals.py"}


def test_the_library_asks_for_no_typer_of_one_version() -> None:
    bounds = re.search(r'"typer(.*?)"', (ROOT / "pyproject.toml").read_text())
    assert bounds is not None
    assert bounds[1] == ">=0.29,<1"


OTHER_TYPER = """
import sys
import typer.completion, typer.core, typer.main
sys.modules["typer._completion_classes"] = sys.modules["typer._completion_shared"] = None
from refstore.cli import main
main()
"""


def test_a_typer_that_keeps_it_elsewhere_only_does_not_complete(tmp_path: Path) -> None:
    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", OTHER_TYPER, *words],
            env=os.environ | {"REFSTORE_DATA": str(tmp_path / "lake")} | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    assert "makes no such scripts" in run("completion", "bash").stderr
    assert run("repo", "create", "sales").returncode == 0
    asked = run("repo", "list", _REFSTORE_COMPLETE="complete_bash")
    assert (asked.returncode, asked.stdout) == (1, ""), "Typer finds no such shell"
