"""Run the `refstore` command: the table of its commands, and the one place where it starts and ends.

A command is a function in a module of this package, `app = typer.Typer()` and `@app.command("name")`, with a line in
`COMMANDS` below. If the module's app has a command of that name, that command runs (several may share a module). Any
other name runs the whole app as a group. A module is imported only when its command runs, so `refstore --help` reads
this table only.

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
from typing import Annotated, Any, Final, NamedTuple, NoReturn, cast

import typer
from typer.core import TyperCommand, TyperGroup

from refstore import __version__
from refstore.cli import errors, options
from refstore.core import python_gc
from refstore.core.visible_text import visible_streams


class Command(NamedTuple):
    module: str
    help: str
    """The command's line in `refstore --help`; the command's own docstring says more."""


COMMANDS: Final[Mapping[str, Command]] = {
    "repo": Command("refstore.cli.repo", "Create, list, show and delete repositories."),
    "status": Command("refstore.cli.status", "Show what a repository holds, what waits, and what needs attention."),
    "branch": Command("refstore.cli.branch", "Create, list, delete and reset branches."),
    "tag": Command("refstore.cli.tag", "Create, list and delete tags."),
    "upload": Command("refstore.cli.adding", "Upload a file, standard input or a folder to a branch."),
    "ls": Command("refstore.cli.objects", "List objects."),
    "stat": Command("refstore.cli.objects", "Show one object."),
    "du": Command("refstore.cli.objects", "Sum up objects and bytes by folder."),
    "cat": Command("refstore.cli.objects", "Write one object to standard output."),
    "download": Command("refstore.cli.objects", "Download an object, or all below a prefix."),
    "cp": Command("refstore.cli.changing", "Copy an object, across branches too, without reading its data."),
    "mv": Command("refstore.cli.changing", "Rename or move an object."),
    "rm": Command("refstore.cli.changing", "Delete objects on a branch."),
    "stage": Command("refstore.cli.adding", "Stage an object outside the repository; refstore never deletes it."),
    "import": Command(
        "refstore.cli.importing", "Import a foreign folder or S3 prefix in one commit, without reading its data."
    ),
    "issue": Command("refstore.cli.adding", "Get a physical address to write to by other means."),
    "link": Command("refstore.cli.adding", "Stage what was written to an issued address."),
    "commit": Command("refstore.cli.history", "Commit what is staged on a branch."),
    "log": Command("refstore.cli.history", "List a ref's commits."),
    "show": Command("refstore.cli.history", "Show a commit, its state, and what it changed."),
    "diff": Command("refstore.cli.history", "List what differs between refs, or what is staged on a branch."),
    "merge": Command("refstore.cli.history", "Merge a ref into a branch."),
    "revert": Command("refstore.cli.history", "Undo a commit by a new one."),
    "cherry-pick": Command("refstore.cli.history", "Apply a commit's changes again on a branch."),
    "reset": Command("refstore.cli.branch", "Discard what is staged on a branch."),
    "trash": Command("refstore.cli.trash", "List lost objects that can still be restored."),
    "restore": Command("refstore.cli.trash", "Restore lost objects: an address, a path, a prefix, a branch."),
    "retention": Command("refstore.cli.retention", "Set and explain how long committed data is kept."),
    "reaper": Command(
        "refstore.cli.reaper", "Delete what nothing references any more; its subcommands: status, resume."
    ),
    "gc": Command("refstore.cli.gc", "Delete committed data that has expired, and orphans: mark, sweep, run, report."),
    "expire": Command("refstore.cli.gc", "The nightly job: short for gc run."),
    "purge": Command("refstore.cli.purge", "Remove the rows of given ids from onboarded data sets."),
    "why": Command("refstore.cli.why", "Explain why an object is still there, or why it was deleted."),
    "serve": Command("refstore.cli.serve", "Serve the HTTP API, which lakeFS's clients know, and reap."),
    "keys": Command("refstore.cli.keys", "Create, list and revoke the access keys of the service."),
    "kv": Command("refstore.cli.kv", "Look into a KV that went back in time; settle it, or make it anew."),
    "audit": Command("refstore.cli.audit", "Show who changed what, when, from where; verify that log."),
    "durations": Command("refstore.cli.agreed", "Show and change the durations that all processes of a lake agree on."),
    "config": Command("refstore.cli.config", "Show every setting in force, and where it came from."),
    "doctor": Command("refstore.cli.doctor", "Look at stores, settings, clocks, reapers and Java; say what to do."),
    "completion": Command("refstore.cli.completion", "Print the script by which a shell completes commands."),
}


COMPLETE: Final = "_REFSTORE_COMPLETE"
"""A shell sets it when it asks how a line may go on (`refstore completion`)."""


class _LazyGroup(TyperGroup):
    """Know each command by its name and one line; import only the one that runs."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        options.add_to(self)
        unloaded: dict[str, Any] = {
            name: TyperCommand(name=name, help=command.help) for name, command in COMMANDS.items()
        }
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
            # Typer takes any broken pipe for the output's and ends silently; it may be a store's connection.
            if _reader_went_away():
                raise typer.Exit(errors.READER_WENT_AWAY) from None
            raise ConnectionError("a store closed the connection") from error


def _reader_went_away() -> bool:
    """Return whether the reader of standard output has gone, as in `refstore ... | head`."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _import(name: str) -> TyperCommand | TyperGroup:
    with python_gc.collect_seldom():  # an import makes many objects, and next to no garbage
        return _make_command(importlib.import_module(COMMANDS[name].module).app, name)


@cache
def _make_command(app: typer.Typer, name: str) -> TyperCommand | TyperGroup:
    """Make a command once: typer takes up to 30 ms for it, and a process of tests runs hundreds of lines."""
    group = typer.main.get_group(app)
    command = cast(TyperCommand | TyperGroup, group.commands.get(name, group))
    command.name = name
    options.add_to(command)
    return command


_app = typer.Typer(
    name="refstore", cls=_LazyGroup, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]}
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(f"refstore {__version__}")
        raise typer.Exit


@_app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Deletes what a versioned data lake no longer needs, and never what is still named."""


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code (`refstore/cli/errors.py` lists the codes)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape a path that the terminal's encoding lacks, instead of failing
            stream.reconfigure(errors="backslashreplace")
    with visible_streams():
        return _run(args)


def _run(args: Sequence[str]) -> int:
    invocation = options.Invocation()
    if COMPLETE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    try:
        code = typer.main.get_command(_app).main(
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
