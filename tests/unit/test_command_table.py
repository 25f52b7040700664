"""docs/commands.md has every command and option, and the commands keep one grammar."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest

from refstore import cli
from refstore.configuration.settings import SETTINGS
from tests.commands import Command

ROOT = Path(__file__).resolve().parents[2]
COMMANDS_MAX = 77
NAMED = re.compile(r"(?:`|: )refstore (?!does |made |refuses )([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")
"""A command, in the text of a page, a docstring or a message; and not a sentence of which refstore is the subject."""
TEXTS = (
    "README.md",
    "api",
    "deploy",
    "docs",
    "examples",
    "offline_gc",
    "prune",
    "purge",
    "reaper",
    "refstore",
    "s3_gateway",
)
UNITS = re.compile(r"-(?:seconds|minutes|hours|days|ms|bytes|kib|mib|gib|mb|gb)$")


@pytest.fixture(scope="module")
def table() -> ModuleType:
    """The script that writes the page."""
    spec = importlib.util.spec_from_file_location("command_table", ROOT / "scripts" / "command_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_commands_as_they_are(table: ModuleType) -> None:
    assert table.main(["--check"]) == 0


def test_a_page_with_other_commands_is_noticed(
    table: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "commands.md"
    page.write_text((ROOT / "docs" / "commands.md").read_text().replace("`--limit N`", "`--amount N`"))
    monkeypatch.setattr(table, "PAGE", page)
    assert table.main(["--check"]) == 1
    assert table.main([]) == 0
    assert table.main(["--check"]) == 0


def unknown_commands(table: ModuleType, text: str) -> list[str]:
    """The commands that a text names and that do not exist; a group may stand for its commands."""
    inner: dict[str, set[str]] = defaultdict(set)
    for group in cli.GROUPS:
        for leaf in table.leaves(group):
            first, _, second = leaf.words.partition(" ")
            inner[first].add(second)
    found = [(match[1], match[2] or "", match[0]) for match in NAMED.finditer(text)]
    return [
        named
        for first, second, named in found
        if first not in inner or (second and "" not in inner[first] and second not in inner[first])
    ]


def test_pages_and_messages_name_commands_that_exist(table: ModuleType) -> None:
    roots = [ROOT / name for name in TEXTS]
    files = [file for root in roots for file in (root.rglob("*") if root.is_dir() else [root]) if file.is_file()]
    texts = {file: file.read_text("utf-8") for file in files if file.suffix in (".html", ".md", ".py", ".tpl", ".yaml")}
    texts = {file: text for file, text in texts.items() if "decisions" not in file.parts}
    assert len(texts) > 500
    assert {file: unknown for file, text in texts.items() if (unknown := unknown_commands(table, text))} == {}
    assert unknown_commands(table, "`refstore gc mark`; see: refstore du sales; `refstore gc`") == [
        "`refstore gc mark", ": refstore du sales"
    ]  # fmt: skip


def test_commands_are_few(table: ModuleType) -> None:
    found = [leaf.words for group in cli.GROUPS for leaf in table.leaves(group)]
    assert len(found) == len(set(found))
    assert len(found) <= COMMANDS_MAX


def test_an_option_carries_no_unit_and_takes_one_kind_of_value(table: ModuleType) -> None:
    metavars: dict[str, set[str]] = defaultdict(set)
    for group in cli.GROUPS:
        for leaf in table.leaves(group):
            for option in table.own_options(leaf):
                assert not UNITS.search(option.opts[0]), (leaf.words, option.opts)
                metavars[option.opts[0]].add(option.metavar if not option.is_flag else "")
    several = {name: found for name, found in metavars.items() if len(found) > 1}
    assert several == {"--after": {"PATH", "WATERMARK"}, "--from": {"REF", "BRANCH"}, "--to": {"REF", "BRANCH"}}


def test_a_setting_carries_no_unit() -> None:
    assert [name for name in SETTINGS if UNITS.search(name.replace("_", "-"))] == []


def test_a_prefix_narrows_listings_and_r_takes_all_below_a_path(table: ModuleType) -> None:
    takers: dict[str, set[str]] = defaultdict(set)
    for group in cli.GROUPS:
        for leaf in table.leaves(group):
            for option in table.own_options(leaf):
                takers[option.opts[0]].add(leaf.words)
    assert takers["--prefix"] == {"repo list", "branch list", "tag list", "diff", "trash"}
    assert takers["--recursive"] == {"upload", "download", "ls", "cp", "mv", "rm", "reset", "restore"}
    assert takers["--limit"] == {"ls", "log", "audit log"}
    assert takers["--all"] == {"gc run", "expire"}


def test_usage_brackets_arguments_once(table: ModuleType) -> None:
    for group in cli.GROUPS:
        for leaf in table.leaves(group):
            arguments = [each for each in leaf.command.params if each.param_type_name == "argument"]
            assert not [each.metavar for each in arguments if set("[].") & set(each.metavar)]


def test_help_describes_the_options_of_every_command_once(refstore: Command) -> None:
    assert "--log-format" in refstore.ok("--help").out
    for words in (("ls",), ("gc", "run"), ("reaper",), ("keys",)):
        shown = refstore.ok(*words, "--help").out
        assert "--log-format" not in shown
        assert "`refstore --help` lists the options of every command" in shown
    assert refstore.ok("ls", "--help", "--log-format", "json").out


def test_help_lists_the_commands_by_group(refstore: Command) -> None:
    shown = refstore.ok("--help").out
    places = [shown.index(f"\n{group}:\n") for group in cli.GROUPS]
    assert places == sorted(places)
    assert len(places) == 6
