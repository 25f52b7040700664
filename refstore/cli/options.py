"""Add the options that every command takes, before or after its name: where the stores are, how to answer, what to
log.

They are declared once, on a Typer command that never runs, and its parameters are added to each command as it is
loaded; `refstore --help` alone describes them. Their values go into the invocation (`ctx.obj`), not to the command's
function; the last value wins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup

from refstore.cli.plain_values import take_plain_values

OPTION_SETTINGS: Final = {
    "data": "data",
    "kv": "kv",
    "objects": "objects",
    "config": "config",
    "log_level": "log.level",
    "log_format": "log.format",
}
"""The setting of each option (`refstore/configuration/settings.py`)."""
OUTPUTS: Final = ("table", "json", "csv")


@dataclass(slots=True)
class Invocation:
    """The values of the shared options."""

    flags: dict[str, object] = field(default_factory=dict[str, object])
    """By setting name, as `settings_loader.load_settings` takes them."""
    output: str = "table"
    """`table`, `json` or `csv`."""
    debug: bool = False
    cache: dict[str, Any] = field(default_factory=dict[str, Any])
    """What was made from these values, such as the settings; `refstore.cli.common` keeps it here."""

    @property
    def json(self) -> bool:
        return self.output == "json"


def _store(ctx: typer.Context, param: typer.CallbackParam, value: str | bool | None) -> None:
    """Put an option's value into the invocation."""
    if value in (None, False) or ctx.resilient_parsing:
        return
    name = str(param.name)
    if name in OPTION_SETTINGS:
        ctx.obj.flags[OPTION_SETTINGS[name]] = value
    elif name == "output" and value not in OUTPUTS:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(OUTPUTS)}")
    elif name == "json":
        ctx.obj.output = "json"
    else:
        setattr(ctx.obj, name, value)


def _option(name: str, help_: str, metavar: str | None = None) -> Any:
    return typer.Option(name, metavar=metavar, help=help_, callback=_store, expose_value=False, show_default=False)


def _declare(
    *,
    data: Annotated[
        str | None, _option("--data", "The embedded default: SQLite and local objects under DIR.", "DIR")
    ] = None,
    kv: Annotated[str | None, _option("--kv", "The key-value store; with --objects.", "URL")] = None,
    objects: Annotated[str | None, _option("--objects", "The object store; with --kv.", "URL")] = None,
    config: Annotated[str | None, _option("--config", "A TOML file of settings.", "FILE")] = None,
    log_level: Annotated[str | None, _option("--log-level", "debug, info, warning or error.", "LEVEL")] = None,
    log_format: Annotated[str | None, _option("--log-format", "auto, console or json.", "FORMAT")] = None,
    json: Annotated[bool, _option("--json", "Answer in JSON.")] = False,
    output: Annotated[str | None, _option("--output", "table, json or csv.", "FORMAT")] = None,
    debug: Annotated[bool, _option("--debug", "Show the traceback of an error.")] = False,
) -> None:
    """Declare the options; never run."""


@cache
def _make_parameters() -> tuple[Any, ...]:
    """Make the parameters once: typer takes a millisecond for each, and a group has up to thirteen commands."""
    app = typer.Typer(add_completion=False)
    app.command()(_declare)
    made = [parameter for parameter in typer.main.get_command(app).params if parameter.name != "help"]
    for parameter in made:
        _describe_once(parameter)
    return tuple(made)


def _describe_once(parameter: Any) -> None:
    """Describe an option that every command takes in `refstore --help` only."""
    describe = parameter.get_help_record

    def describe_at_root(ctx: Any) -> Any:
        return describe(ctx) if ctx.parent is None else None

    parameter.get_help_record = describe_at_root


def explain_stray_word(ctx: Any) -> str:
    """Name the command's own options that take a value: a word too many is most often one without its name."""
    shared = {parameter.name for parameter in _make_parameters()}
    named = [
        f"{parameter.opts[0]} {parameter.metavar or str(parameter.name).upper()}"
        for parameter in ctx.command.params
        if parameter.param_type_name == "option"
        and parameter.name not in shared
        and not parameter.is_flag
        and not parameter.hidden
    ]
    return f"; if it is the value of an option, name that: {', '.join(named)}" if named else ""


def add_to(command: TyperCommand | TyperGroup) -> None:
    """Add the options to a command, or to a group and everything below it, and use plain help: rich's takes three times
    as long.
    """
    command.rich_markup_mode = None
    command.params.extend(_make_parameters())
    command.epilog = "`refstore --help` lists the options of every command, such as --data, --json and --config."
    take_plain_values(command)
    if isinstance(command, TyperGroup):
        for inner in command.commands.values():
            add_to(cast(TyperCommand | TyperGroup, inner))
