"""The `refstore` command: the table of its commands, and the one place where it starts and ends.

A command is a function in a module of this package, `app = typer.Typer()` and `@app.command("name")`, with a line in
`COMMANDS` below. A name that is a command of the module's app is that command (several may share a module); any other
name is the whole app as a group. Modules are imported when their command runs, so `refstore --help` reads this table only.

The options of every command (`--data`, `--json`, ...) are added here, before and after the command's name alike; what
they say is had from `refstore.cli.common`. A command returns None, or its exit code; it raises for everything else.
"""

from __future__ import annotations

import importlib
import io
import os
import select
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, NoReturn, cast

import typer
from typer.core import TyperCommand, TyperGroup

from refstore import __version__
from refstore.cli import errors, options


class Command(NamedTuple):
    module: str
    help: str
    """The line in `refstore --help`; the command's own docstring says more."""


COMMANDS: Final[Mapping[str, Command]] = {
    "repo": Command("refstore.cli.repo", "Create, list, show and delete repositories."),
    "branch": Command("refstore.cli.branch", "Create, list, delete and reset branches."),
    "tag": Command("refstore.cli.tag", "Create, list and delete tags."),
    "upload": Command("refstore.cli.adding", "Upload a file, standard input or a folder to a branch."),
    "ls": Command("refstore.cli.objects", "List objects."),
    "stat": Command("refstore.cli.objects", "Show one object."),
    "cat": Command("refstore.cli.objects", "Write one object to standard output."),
    "download": Command("refstore.cli.objects", "Download an object, or all below a prefix."),
    "cp": Command("refstore.cli.changing", "Copy an object, across branches too, without reading its data."),
    "mv": Command("refstore.cli.changing", "Rename or move an object."),
    "rm": Command("refstore.cli.changing", "Delete objects on a branch."),
    "stage": Command("refstore.cli.adding", "Name an object that lies outside, and is never deleted."),
    "import": Command("refstore.cli.importing", "Name a folder or an S3 prefix of others in one commit, without reading its data."),
    "issue": Command("refstore.cli.adding", "Get a physical address to write to by other means."),
    "link": Command("refstore.cli.adding", "Stage what was written to an issued address."),
    "commit": Command("refstore.cli.history", "Commit what is staged on a branch."),
    "log": Command("refstore.cli.history", "List a ref's commits."),
    "diff": Command("refstore.cli.history", "List what differs between refs, or what is staged on a branch."),
    "merge": Command("refstore.cli.history", "Merge a ref into a branch."),
    "revert": Command("refstore.cli.history", "Undo a commit by a new one."),
    "cherry-pick": Command("refstore.cli.history", "Do a commit's changes again on a branch."),
    "reset": Command("refstore.cli.branch", "Throw away what is staged on a branch."),
    "trash": Command("refstore.cli.trash", "List what lost its last name and can be taken back."),
    "restore": Command("refstore.cli.trash", "Take back what was lost: an address, a path, a prefix, a branch."),
    "address": Command("refstore.cli.address", "Show who names a physical address, and its state."),
    "retention": Command("refstore.cli.retention", "Set and explain how long what was committed stays."),
    "reaper": Command("refstore.cli.reaper", "Delete what nobody names any more; status and resume below it."),
    "gc": Command("refstore.cli.gc", "Delete committed data that has expired, and orphans: mark, sweep, run, report."),
    "expire": Command("refstore.cli.gc", "The nightly job: short for gc run."),
    "why": Command("refstore.cli.why", "Say what became of an address or a path, and why."),
    "serve": Command("refstore.cli.serve", "Serve the HTTP API, which lakeFS's clients know, and reap."),
    "keys": Command("refstore.cli.keys", "Create, list and revoke the access keys of the service."),
    "demo": Command("refstore.cli.demo", "Watch the main job on real files, with an audit at the end."),
    "config": Command("refstore.cli.config", "Show every setting in force, and where it came from."),
}


class _LazyGroup(TyperGroup):
    """Knows the commands by name and one line; imports the one that is run."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        options.add_to(self)
        unloaded: dict[str, Any] = {name: TyperCommand(name=name, help=command.help) for name, command in COMMANDS.items()}
        self.commands = unloaded

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name in COMMANDS:
            self.commands[name] = _import(name)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # Typer would take any broken pipe for the output's and end without a word; it may be a store's connection.
            if _reader_went_away():
                raise typer.Exit(errors.READER_WENT_AWAY) from None
            raise ConnectionError("a connection was closed from the other side") from error


def _reader_went_away() -> bool:
    """Whether nobody reads standard output any more: `refstore ... | head`."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _import(name: str) -> TyperCommand | TyperGroup:
    module = importlib.import_module(COMMANDS[name].module)
    group = typer.main.get_group(module.app)
    command = cast(TyperCommand | TyperGroup, group.commands.get(name, group))
    command.name = name
    options.add_to(command)
    return command


_app = typer.Typer(name="refstore", cls=_LazyGroup, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


def _print_version(asked: bool) -> None:
    if asked:
        print(f"refstore {__version__}")
        raise typer.Exit


@_app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Deletes what a versioned data lake no longer needs, and never what is still named."""


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code; the codes stand in `refstore/cli/errors.py`."""
    asked = options.Invocation()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path that the terminal's encoding lacks is shown escaped, not refused
            stream.reconfigure(errors="backslashreplace")
    try:
        code = typer.main.get_command(_app).main(list(args) or ["--help"], prog_name="refstore", standalone_mode=False, obj=asked)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left is flushed as Python ends
        return errors.READER_WENT_AWAY
    except Exception as error:  # noqa: BLE001  # the one place where everything ends
        # A usage error may come before the options were read.
        return errors.report(error, json=asked.json or "--json" in args, debug=asked.debug or "--debug" in args)
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    sys.exit(run(sys.argv[1:]))
