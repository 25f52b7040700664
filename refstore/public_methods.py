"""What every public method of the SDK's classes does beside its own work: it checks the types of its arguments, and
says which name may be meant where a name is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import unwrap
from types import FunctionType
from typing import Any, Final, Protocol, TypeVar

from refstore.core.argument_types import find_check
from refstore.errors import NotFound

_SUGGEST: Final = "_suggest"

DecoratedClass = TypeVar("DecoratedClass", bound="type[NameSuggester]")


class NameSuggester(Protocol):
    def _suggest(self, error: NotFound) -> None:
        """Add to an error that names something unknown what may be meant."""
        ...


def wrap_public_methods(cls: DecoratedClass) -> DecoratedClass:
    """Wrap each public method of the class."""
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(cls, name, _wrap_method(method))
    return cls


def _wrap_method(method: FunctionType) -> Callable[..., Any]:
    inner = unwrap(method)
    code = inner.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    checks = {name: check for name in names if (check := find_check(inner.__annotations__.get(name, "")))}
    in_order = [(name, checks.get(name)) for name in names[: code.co_argcount - 1]]

    @wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        for (name, check), value in zip(in_order, args, strict=False):  # too many are Python's own error
            if check is not None:
                check(value, name)
        for name, value in kwargs.items():
            if name in checks:
                checks[name](value, name)
        try:
            return method(self, *args, **kwargs)
        except NotFound as error:
            getattr(self, _SUGGEST)(error)
            raise

    return run
