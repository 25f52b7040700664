"""What the documentation shows works as shown: README's blocks are run, every command line anywhere is one that exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from refstore import cli
from refstore.cli.options import Invocation

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
RUN = re.compile(r"<!-- run -->\n```(sh|python)\n(.*?)```", re.DOTALL)


def commands(group: TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], TyperCommand | TyperGroup]]:
    """Every command, by its words."""
    for name in group.commands:
        context = typer.Context(group, info_name="refstore")
        _, command, _ = group.resolve_command(context, [name])
        assert isinstance(command, TyperCommand | TyperGroup)
        if isinstance(command, TyperGroup):
            yield from commands(command, (*path, name))
        if not isinstance(command, TyperGroup) or command.invoke_without_command:
            yield (*path, name), command


def root() -> TyperGroup:
    found = typer.main.get_command(cli._app)
    assert isinstance(found, TyperGroup)
    return found


def lines(text: str) -> list[str]:
    """Command lines in a text: what stands in code, or behind "Example:", from `refstore` on."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith(("    ", "refstore ")) or "Example:" in line or "| refstore" in line:
            match = re.search(r"(?:^|Example:|\|)\s+(refstore [a-z].*)|^(refstore [a-z].*)", line)
            if match:
                found.append(match[1] or match[2])
    return found


def words(line: str) -> list[str]:
    """The arguments of the `refstore` in a command line, without what the shell takes."""
    taken: list[str] = []
    for word in shlex.split(line, comments=True)[1:]:
        if word in ("|", ">"):
            break
        taken.append(word)
    return taken


def parse(args: list[str]) -> None:
    """Take the words apart as the command would, and stop before anything is done."""
    group, context = root(), typer.Context(root(), info_name="refstore", obj=Invocation())
    while args:
        name, command, rest = group.resolve_command(context, args)
        assert isinstance(command, TyperCommand | TyperGroup)
        context = command.make_context(name, rest, parent=context, obj=Invocation())
        if not isinstance(command, TyperGroup):
            return
        group, args = command, [*context._protected_args, *context.args]
    assert group.invoke_without_command


HELP = {" ".join(path): command.help or "" for path, command in commands(root())}


@pytest.mark.parametrize("path", HELP)
def test_help_teaches_by_example(path: str) -> None:
    examples = lines(HELP[path])
    assert examples
    for example in examples:
        assert example.startswith("refstore ")
        parse(words(example))


@pytest.mark.parametrize(
    ("page", "at_least"),
    [
        ("README.md", 9),
        ("docs/usage.md", 9),
        ("docs/retention.md", 6),
        ("docs/api.md", 6),
        ("docs/security.md", 3),
        ("docs/operating.md", 2),
    ],
)
def test_every_command_line_exists(page: str, at_least: int) -> None:
    found = lines((ROOT / page).read_text())
    assert len(found) >= at_least
    for line in found:
        parse(words(line))


def test_a_command_line_that_does_not_exist_is_noticed() -> None:
    """What the tests above rest on."""
    assert lines("    refstore upload -r sales main x | head\nrefstore frobnicate\n    x | refstore link a b c") == [
        "refstore upload -r sales main x | head",
        "refstore frobnicate",
        "refstore link a b c",
    ]
    for line in ("refstore frobnicate", "refstore ls sales main --nonsense", "refstore repo make x"):
        with pytest.raises(typer.TyperException):
            parse(words(line))


def test_every_command_is_mentioned_where_commands_are_explained() -> None:
    listed = set(cli.COMMANDS)
    assert listed == {path.split(" ")[0] for path in HELP}


def test_the_blocks_of_the_readme_run(tmp_path: Path) -> None:
    blocks = RUN.findall(README)
    assert [kind for kind, _ in blocks].count("sh") >= 2
    assert [kind for kind, _ in blocks].count("python") == 1
    script = "\n".join(body if kind == "sh" else f"python - <<'END'\n{body}END" for kind, body in blocks)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REFSTORE_")}
    environment |= {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "2026-11-21,42" in ran.stdout.splitlines()
    assert "['2026/11/21.json', '2026/11/22.json', 'latest.json']" in ran.stdout.splitlines()


def test_the_readme_says_how_to_begin_in_two_commands() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    begin = re.search(r"## Try it\n\n((?:    .*\n)+)", README)
    assert begin is not None
    assert begin[1].split("\n")[:-1] == ["    make demo", "    make test"]
    assert {"demo", "test"} <= targets
    for target in re.findall(r"make ([a-z-]+)", README):
        assert target in targets
