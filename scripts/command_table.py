"""Write the tables of docs/commands.md from the commands themselves.

    .venv/bin/python scripts/command_table.py           write them into the page
    .venv/bin/python scripts/command_table.py --check   return 1 if the page has others

They are all that follows the line `<!--scripts/command_table.py-->` in the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer

from refstore import cli

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
MARK: Final = "<!--scripts/command_table.py-->\n"
SAME_OPTIONS: Final = {"expire": "gc run"}
"""Short names, whose options are those of the command that they stand for."""


class Leaf(NamedTuple):
    """A command that runs, as opposed to a group of commands."""

    words: str
    command: Any


def leaves(group: str) -> Iterator[Leaf]:
    """Yield the commands of a group in `refstore --help`, in its order."""
    for name in cli.GROUPS[group]:
        yield from _leaves_below(name, cli.import_command(name))


def _leaves_below(words: str, command: Any) -> Iterator[Leaf]:
    inner: dict[str, Any] = getattr(command, "commands", {})
    if not inner or command.invoke_without_command:
        yield Leaf(words, command)
    for name, each in inner.items():
        yield from _leaves_below(f"{words} {name}", each)


def own_options(leaf: Leaf) -> list[Any]:
    """Return the options of a command that not every command takes."""
    shared = {parameter.name for parameter in typer.main.get_command(cli.app).params} | {"help"}
    return [each for each in leaf.command.params if each.param_type_name == "option" and each.name not in shared]


def _show_option(option: Any) -> str:
    """Write an option as one types it, such as `--limit N`."""
    names = "/".join((*option.opts, *option.secondary_opts))
    return f"`{names}`" if option.is_flag else f"`{names} {option.metavar or 'TEXT'}`"


def _show_argument(argument: Any) -> str:
    """Write an argument as a line of usage has it, such as `[REF]` where it may be left out."""
    name = argument.metavar if argument.required else f"[{argument.metavar}]"
    return name if argument.nargs == 1 else f"{name}..."


def _row(leaf: Leaf) -> str:
    arguments = " ".join(_show_argument(each) for each in leaf.command.params if each.param_type_name == "argument")
    options = ", ".join(_show_option(each) for each in own_options(leaf))
    if leaf.words in SAME_OPTIONS:
        options = f"as `{SAME_OPTIONS[leaf.words]}`"
    call = f"{leaf.words} {arguments}".strip().replace("|", "\\|")
    return f"| `{call}` | {options.replace('|', chr(92) + '|')} |\n"


def write_tables() -> str:
    root: Any = typer.main.get_command(cli.app)
    shared = "".join(
        f"| {_show_option(each)} | {each.help} |\n" for each in root.params if each.name not in ("help", "version")
    )
    text = f"\n## Options of every command\n\n| option | meaning |\n|---|---|\n{shared}"
    for group in cli.GROUPS:
        text += f"\n## {group}\n\n| command | options |\n|---|---|\n" + "".join(map(_row, leaves(group)))
    return text


def main(args: list[str]) -> int:
    page = PAGE.read_text("utf-8")
    written = page.partition(MARK)[0] + MARK + write_tables()
    if "--check" in args:
        if page != written:
            print("docs/commands.md does not have the commands as they are; run scripts/command_table.py")
        return int(page != written)
    PAGE.write_text(written, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
