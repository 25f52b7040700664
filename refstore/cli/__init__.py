"""Run the `refstore` command: the table of its commands, and the one place where it starts and ends.

A command is a line in `GROUPS` below, and stands in the module that `MODULES` says, or in the one that is called like
it. If the module's `app` has a command or a group of that name, it runs; otherwise the app is the group. A module is
imported only when a command of it runs, so `refstore --help` reads these tables only.

The options of every command (`--data`, `--json`, ...) are added here; they may stand before or after the command's
name. `refstore.cli.common` has their values. A command returns None or its exit code, and raises every error.
"""

from __future__ import annotations

import importlib
import io
import os
import select
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, NoReturn, cast

import typer
from typer.core import TyperCommand, TyperGroup

from refstore import __version__
from refstore.cli import errors, options
from refstore.core import python_gc
from refstore.core.visible_text import make_streams_visible

GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "Data": {
        "repo": "Create, list, show and delete repositories.",
        "status": "Show what a repository holds, what waits, and what needs attention.",
        "branch": "Create, list and delete branches.",
        "tag": "Create, list and delete tags.",
        "upload": "Upload a file, standard input or a folder to a branch.",
        "ls": "List objects, or sum them up by folder.",
        "stat": "Show one object.",
        "cat": "Write one object to standard output.",
        "download": "Download an object, or all below a prefix.",
        "cp": "Copy an object, across branches too, without reading its data.",
        "mv": "Rename or move an object.",
        "rm": "Delete objects on a branch.",
        "import": "Import a foreign folder or S3 prefix in one commit, without reading its data.",
        "issue": "Get a physical address to write to by other means.",
        "link": "Stage what was written to an issued address.",
    },
    "History": {
        "commit": "Commit what is staged on a branch.",
        "log": "List a ref's commits.",
        "show": "Show a commit, its state, and what it changed.",
        "diff": "List what differs between refs, or what is staged on a branch.",
        "merge": "Merge a ref into a branch.",
        "cherry-pick": "Apply a commit's changes again on a branch.",
    },
    "Undo": {
        "reset": "Discard what is staged on a branch.",
        "revert": "Undo a commit by a new one.",
        "trash": "List lost objects that can still be restored.",
        "restore": "Restore lost objects: an address, a path, a prefix, a branch.",
    },
    "Deletion": {
        "retention": "Set and explain how long committed data is kept.",
        "reaper": "Delete what nothing references any more; its subcommands: status, resume.",
        "gc": "Delete committed data that has expired, and orphans: run, status, confirm.",
        "expire": "The nightly job: short for gc run.",
        "prune": "Delete what nothing names from a store that refstore does not own; its first quarter of an hour.",
        "purge": "Remove the rows of given ids from onboarded data sets.",
        "why": "Explain why an object is still there, or why it was deleted.",
    },
    "Service": {
        "serve": "Serve the HTTP API, which lakeFS's clients know, and reap.",
        "keys": "Create, list and revoke the access keys of the service.",
        "config": "Show every setting in force, and where it came from; or the durations of the lake.",
        "completion": "Print the script by which a shell completes commands.",
    },
    "Repair": {
        "doctor": "Look at stores, settings, clocks, reapers and Java; say what to do.",
        "audit": "Show who changed what, when, from where; verify that log.",
        "kv": "Look into a KV that went back in time; settle it, or make it anew; copy it to another one.",
    },
}
"""The line of each command in `refstore --help`, by group; its own docstring says more."""

COMMANDS: Final[Mapping[str, str]] = {name: line for group in GROUPS.values() for name, line in group.items()}

MODULES: Final[Mapping[str, str]] = {
    command: module
    for module, commands in {
        "branches": ("branch", "reset", "tag"),
        "gc": ("expire",),
        "history": ("cherry-pick", "commit", "diff", "log", "merge", "revert", "show"),
        "objects": ("cat", "cp", "ls", "mv", "rm", "stat"),
        "outside_objects": ("import", "issue", "link"),
        "trash": ("restore",),
    }.items()
    for command in commands
}
"""Where a command stands that shares a module with others."""

COMPLETE: Final = "_REFSTORE_COMPLETE"
"""A shell sets it when it asks how a line may go on (`refstore completion`)."""


class _LazyGroup(TyperGroup):
    """Know each command by its name and one line; import only the one that runs."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        options.add_to(self)
        self.epilog = "`refstore COMMAND --help` has examples. docs/commands.md lists all commands and options."
        unloaded: dict[str, Any] = {name: TyperCommand(name=name, help=line) for name, line in COMMANDS.items()}
        self.commands = unloaded

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  # Typer passes it
        for group, lines in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(list(lines.items()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name in COMMANDS:
            self.commands[name] = import_command(name)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # Typer takes any broken pipe for the output's and ends silently; it may be a store's connection.
            if _reader_went_away():
                raise typer.Exit(errors.READER_WENT_AWAY) from None
            raise ConnectionError("a store closed the connection") from error


def _reader_went_away() -> bool:
    """Return whether the reader of standard output has gone, as in `refstore ... | head`."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def module_of(name: str) -> str:
    """Return the module of a command."""
    return f"{__name__}.{MODULES.get(name, name)}"


def import_command(name: str) -> TyperCommand | TyperGroup:
    """Import the command's module, and return the command."""
    with python_gc.collect_seldom():  # an import makes many objects, and next to no garbage
        return _make_command(importlib.import_module(module_of(name)).app, name)


@cache
def _make_command(app: typer.Typer, name: str) -> TyperCommand | TyperGroup:
    """Make a command once: typer takes up to 30 ms for it, and a process of tests runs hundreds of lines."""
    only = typer.Typer()  # not the others of the module, which take as long
    only.registered_commands = [each for each in app.registered_commands if each.name == name]
    only.registered_groups = [each for each in app.registered_groups if each.name == name]
    is_part = bool(only.registered_commands or only.registered_groups)
    group = typer.main.get_group(only if is_part else app)
    command = cast(TyperCommand | TyperGroup, group.commands[name] if is_part else group)
    command.name = name
    options.add_to(command)
    return command


app = typer.Typer(
    name="refstore", cls=_LazyGroup, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]}
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(f"refstore {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Deletes what a versioned data lake no longer needs, and never what is still named.

    Every command takes the options below, before or after its name.
    """


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code (`refstore/cli/errors.py` lists the codes)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape a path that the terminal's encoding lacks, instead of failing
            stream.reconfigure(errors="backslashreplace")
    with make_streams_visible():
        return _run(args)


def _run(args: Sequence[str]) -> int:
    invocation = options.Invocation()
    if COMPLETE in os.environ:
        from refstore.cli.typer_internals import prepare_completion

        prepare_completion()
    try:
        code = typer.main.get_command(app).main(
            list(args) or ["--help"], prog_name="refstore", standalone_mode=False, obj=invocation
        )
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes the rest as it ends
        return errors.READER_WENT_AWAY
    except Exception as error:  # noqa: BLE001  # every error of a command ends here
        # A usage error may come before the options were read.
        return errors.report(
            error, json=invocation.json or "--json" in args, debug=invocation.debug or "--debug" in args
        )
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    # nothing here multiplies matrices, and starting the threads for it takes as long as the rest of NumPy's import
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code = run(sys.argv[1:])
    python_gc.end_without_collecting()
    sys.exit(code)
