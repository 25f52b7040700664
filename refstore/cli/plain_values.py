"""Take texts, and defaults of the right type, as they are, where Typer would build a pydantic validator.

Typer builds one for each parameter of the command that runs, and importing pydantic for that takes as long as opening
a lake and reading from it. What needs parsing or may be wrong (numbers, paths, choices) still goes to Typer, so errors
read the same. A Typer without `get_runtime_param` ignores this module, and takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, cast, get_args, get_origin

from typer.core import TyperCommand, TyperGroup

_SCALARS: Final = (str, int, float, bool)


def take_plain_values(command: TyperCommand | TyperGroup) -> None:
    """Let the parameters of a command, `--help` among them, convert plain values without Typer."""
    for parameter in command.params:
        _take(parameter)
    help_option = command.get_help_option

    def plain_help_option(ctx: Any) -> Any:
        option = help_option(ctx)  # made when the command runs
        _take(option)
        return option

    instance: Any = command
    instance.get_help_option = plain_help_option


def _take(parameter: Any) -> None:
    described = getattr(parameter, "type_descriptor", None)
    by_typer = getattr(parameter, "get_runtime_param", None)
    if described is None or by_typer is None or described.parameter_info.parser is not None:
        return
    annotation = described.annotation
    item = get_args(annotation)[0] if get_origin(annotation) is list else annotation
    if item in _SCALARS and "get_runtime_param" not in parameter.__dict__:
        values = _PlainValues(item, is_list=item is not annotation, by_typer=by_typer)
        parameter.get_runtime_param = values.get


class _PlainValues:
    def __init__(self, item: type, *, is_list: bool, by_typer: Callable[[], Any]) -> None:
        self._item = item
        self._is_list = is_list
        self._by_typer = by_typer

    def get(self) -> _PlainValues:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert what the command line, or the parameter's default, gives."""
        if value is None:
            return () if self._is_list else None
        if not self._is_list and self._is_plain(value):
            return value
        if self._is_list and isinstance(value, (list, tuple)):
            values = list(cast(Iterable[object], value))
            if all(map(self._is_plain, values)):
                return values
        return self._by_typer().coerce(value, param=param, ctx=ctx)

    def _is_plain(self, value: object) -> bool:
        return type(value) is self._item
