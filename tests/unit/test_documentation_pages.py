"""The pages about the code name what exists: docs/architecture.md, docs/glossary.md,
docs/protocol.md, CONTRIBUTING.md, the decisions.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from scripts import decision_index, protocol_page

ROOT = Path(__file__).resolve().parents[2]
DECISIONS = ROOT / "docs" / "decisions"
SOURCES = {
    "refstore": ROOT,
    "refstore_api": ROOT / "api",
    "refstore_http": ROOT / "api",
    "refstore_reaper": ROOT / "reaper",
    "refstore_gc": ROOT / "offline_gc",
    "refstore_prune": ROOT / "prune",
    "refstore_purge": ROOT / "purge",
    "refstore_s3": ROOT / "s3_gateway",
}
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PLACE = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*(?:/|\.py)")
NAME = re.compile(r"refstore\w*(?:\.\w+)+")


def names_in(text: str) -> tuple[list[str], list[str]]:
    """Return the files and folders, and the dotted names, that a page has in code spans."""
    spans = CODE.findall(text)
    return [span for span in spans if PLACE.fullmatch(span)], [span for span in spans if NAME.fullmatch(span)]


def defines(body: list[ast.stmt], parts: list[str]) -> bool:
    """Say whether the statements define the name, a method of a class included."""
    if not parts:
        return True
    for statement in body:
        match statement:
            case ast.ClassDef() if statement.name == parts[0]:
                return defines(statement.body, parts[1:])
            case ast.FunctionDef() if statement.name == parts[0]:
                return len(parts) == 1
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if name == parts[0]:
                return len(parts) == 1
            case _:
                pass
    return False


def exists(name: str) -> bool:
    """Say whether a dotted name stands for a module of this project, or for something that a module defines."""
    parts = name.split(".")
    place = SOURCES[parts[0]] / parts[0]
    for used, part in enumerate(parts[1:], start=1):
        if (place / part).is_dir():
            place /= part
        elif (module := place / f"{part}.py").is_file():
            return defines(ast.parse(module.read_text()).body, parts[used + 1 :])
        else:
            return defines(ast.parse((place / "__init__.py").read_text()).body, parts[used:])
    return True


@pytest.mark.parametrize(
    ("page", "at_least"), [("docs/architecture.md", 50), ("docs/glossary.md", 30), ("CONTRIBUTING.md", 15)]
)
def test_every_file_and_function_that_a_page_names_exists(page: str, at_least: int) -> None:
    places, names = names_in((ROOT / page).read_text())
    assert len(places) + len(names) >= at_least
    assert [place for place in places if not any(ROOT.glob(place))] == []
    assert [name for name in names if not exists(name)] == []


@pytest.mark.parametrize(
    "name",
    [
        "refstore.operations.upload.upload_nothing",
        "refstore.operations.nowhere",
        "refstore.repository.Repository.uploads",
        "refstore_reaper.reaper_pass.ReaperPass.fly",
        "refstore.opens",
    ],
)
def test_a_name_that_does_not_exist_is_noticed(name: str) -> None:
    assert names_in(f"call `{name}` in `refstore/nowhere.py`") == (["refstore/nowhere.py"], [name])
    assert not exists(name)


def test_the_index_of_decisions_names_each_page(tmp_path: Path) -> None:
    """A page without a date, a new one that is too long, and too many words in all are each noticed."""
    assert (DECISIONS / "README.md").read_text() == decision_index.index(), "run: python scripts/decision_index.py"
    date = "Date: 2026-11-28\n\n"
    for number, text, said in (
        (999, "None.", "must begin with"),
        (999, date + "word " * 300, "has 305 words; say it in 250"),
        (202, date + "word " * 25_000, "shorten or remove some"),
    ):
        (tmp_path / f"{number:04}-new.md").write_text(f"# {number:04}: New\n\n{text}")
        with pytest.raises(ValueError, match=said):
            decision_index.index(tmp_path)
        (tmp_path / f"{number:04}-new.md").unlink()


def test_the_protocol_tells_each_rule_with_mutants_that_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every mutant of the model is told, and every rule has one."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    from protocol_model import mutants, scenarios

    page = " ".join((ROOT / "docs" / "protocol.md").read_text().split())
    rules = re.split(r" ### (\d+)\. ", page.split(" ## How the model is read ")[0])
    assert rules[1::2] == [str(number) for number in range(1, 26)]
    kinds = {mutant.kind.__name__ for mutant in mutants.MUTANTS}
    assert [n for n, rule in zip(rules[1::2], rules[2::2], strict=True) if kinds.isdisjoint(CODE.findall(rule))] == []
    assert kinds - set(re.findall(r"`(\w+)`", page)) == set()
    assert f"no violation in {len(scenarios.every())} scenarios" in page


def test_the_protocol_shows_the_rules_of_the_model() -> None:
    """A rule that changed, one without a place in the page, and a place without a rule are each noticed."""
    page = (ROOT / "docs" / "protocol.md").read_text()
    rules = protocol_page.read_rules(ROOT / "docs" / "protocol_model")
    assert protocol_page.write_page(page, rules) == page, "run: python scripts/protocol_page.py"
    assert protocol_page.write_page(page, rules | {"store.Retry": "more"}) != page
    for wrong_page, wrong_rules in ((page, rules | {"flows.copy": ""}), (page + "\n<!--flows.copy-->\n", rules)):
        with pytest.raises(ValueError, match=r"see flows\.copy"):
            protocol_page.write_page(wrong_page, wrong_rules)


def test_what_make_check_leaves_out_exists() -> None:
    """A file that was renamed would be run after all, and a misspelt one never noticed."""
    left_out = re.search(r"^LEFT_OUT := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert left_out is not None
    assert [name for name in left_out[1].split() if not (ROOT / "tests" / "unit" / f"test_{name}.py").is_file()] == []
