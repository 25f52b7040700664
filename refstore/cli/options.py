"""Add the options that every command takes, before or after its name: where the stores are, how to answer, what to
log.

They are declared once, on a Typer command that never runs, and its parameters are added to each command as it is
loaded. Their values go into the invocation (`ctx.obj`), not to the command's function; the last value wins.
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
"""The setting of each option (`refstore/configuration/settings_table.py`)."""
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


def _store_flag(ctx: typer.Context, param: typer.CallbackParam, value: str | None) -> None:
    if value is not None and not ctx.resilient_parsing:
        ctx.obj.flags[OPTION_SETTINGS[str(param.name)]] = value


def _json(ctx: typer.Context, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.obj.output = "json"


def _output(ctx: typer.Context, value: str | None) -> None:
    if value is not None and not ctx.resilient_parsing:
        if value not in OUTPUTS:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(OUTPUTS)}")
        ctx.obj.output = value


def _debug(ctx: typer.Context, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.obj.debug = True


def _option(name: str, metavar: str, help_: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help_, callback=_store_flag, expose_value=False, show_default=False)


def _switch(name: str, help_: str, callback: Any) -> Any:
    return typer.Option(name, help=help_, callback=callback, expose_value=False)


def _declare(
    *,
    data: Annotated[
        str | None, _option("--data", "DIR", "The embedded default: SQLite and local objects under DIR.")
    ] = None,
    kv: Annotated[str | None, _option("--kv", "URL", "The key-value store; with --objects.")] = None,
    objects: Annotated[str | None, _option("--objects", "URL", "The object store; with --kv.")] = None,
    config: Annotated[str | None, _option("--config", "FILE", "A TOML file of settings.")] = None,
    log_level: Annotated[str | None, _option("--log-level", "LEVEL", "debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, _option("--log-format", "FORMAT", "auto, console or json.")] = None,
    json: Annotated[bool, _switch("--json", "Answer in JSON.", _json)] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="FORMAT",
            help="table, json or csv.",
            callback=_output,
            expose_value=False,
            show_default=False,
        ),
    ] = None,
    debug: Annotated[bool, _switch("--debug", "Show the traceback of an error.", _debug)] = False,
) -> None:
    """Declare the options; never run."""


@cache
def _make_parameters() -> tuple[Any, ...]:
    """Make the parameters once: typer takes a millisecond for each, and a group has up to thirteen commands."""
    app = typer.Typer(add_completion=False)
    app.command()(_declare)
    return tuple(parameter for parameter in typer.main.get_command(app).params if parameter.name != "help")


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
    take_plain_values(command)
    if isinstance(command, TyperGroup):
        for inner in command.commands.values():
            add_to(cast(TyperCommand | TyperGroup, inner))
