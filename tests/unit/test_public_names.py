"""What `import refstore` offers, when it imports it, and the reference and documents that describe it."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import refstore

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = {
    "open",
    "create",
    "Lake",
    "Repository",
    "Upload",
    "Link",
    "Copy",
    "Stage",
    "Move",
    "RefstoreError",
    "errors",
}


def seen_by_type_checkers() -> dict[str, str]:
    """Names that `refstore/__init__.py` imports, and from where."""
    tree = ast.parse((ROOT / "refstore" / "__init__.py").read_text())
    return {
        alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_users_find_what_they_need() -> None:
    assert set(refstore.__all__) >= EXPECTED
    assert {name for name in dir(refstore) if not name.startswith("__")} == {*refstore.__all__}
    assert "__version__" in dir(refstore)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = refstore.Nonsense


@pytest.mark.parametrize("name", sorted({*refstore.__all__} - {"open", "create", "errors"}))
def test_a_name_is_what_type_checkers_take_it_for(name: str) -> None:
    module = seen_by_type_checkers()[name]
    value = getattr(refstore, name)
    assert value is getattr(sys.modules[module], name)
    assert value.__doc__


def test_importing_refstore_imports_no_store_and_no_arrow() -> None:
    code = "import sys, refstore; print(*{'pyarrow', 'refstore.lake', 'refstore.records'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "\n"


def test_the_reference_describes_every_public_name(tmp_path: Path) -> None:
    """As `make docs` makes it."""
    recipe = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "-m pdoc" in line)
    words = recipe.partition("-m pdoc")[2].replace("build/docs", str(tmp_path)).split()
    done = subprocess.run(
        [sys.executable, "-W", "ignore:Error parsing type annotation", "-m", "pdoc", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "Warn" not in done.stderr
    page = (tmp_path / "refstore.html").read_text()
    assert [name for name in refstore.__all__ if name != "errors" and f'id="{name}"' not in page] == []
    methods = [name for name in vars(refstore.Repository) if not name.startswith("_")]
    assert [name for name in methods if f'id="Repository.{name}"' not in page] == []
    assert 'id="NothingToCommit"' in (tmp_path / "refstore" / "errors.html").read_text()


@pytest.mark.parametrize("of", [refstore.Lake, refstore.Repository])
def test_every_public_method_says_what_it_does(of: type) -> None:
    methods = {
        name: value for name, value in vars(of).items() if inspect.isroutine(value) or isinstance(value, property)
    }
    assert len(methods) > 10
    assert [name for name, value in methods.items() if not name.startswith("_") and not inspect.getdoc(value)] == []


def check_links(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "check_links.py", folder]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_every_link_of_the_documents_leads_somewhere() -> None:
    done = check_links(ROOT)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


def test_broken_links_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A title: `code`\n\n## Same\n\n## Same\n")
    (tmp_path / "page.md").write_text(
        "[a](there.md#a-title-code) [b](there.md#same-1) [c](https://example.com/x) ![d](there.md)\n\n"
        "```\n[in code](nowhere.md)\n```\n\n"
        "| table |\n|---|\n| [gone](nowhere.md) |\n\n[no title](there.md#no-such) [self](#same) [out](../x)\n"
    )
    done = check_links(tmp_path)
    assert done.returncode == 1
    assert [line.split(": ")[1] for line in done.stdout.splitlines()] == [
        "nowhere.md",
        "there.md#no-such",
        "#same",
        "../x",
    ]
