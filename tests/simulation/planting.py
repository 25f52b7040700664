"""Planting a fault: a function of the product is compiled again with a piece of its source replaced.

The piece must stand there exactly once; a fault that does not apply any more fails loudly and is written anew.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from refstore.core.event_log import ROOTS


@dataclass(frozen=True, slots=True)
class Edit:
    target: str
    """`module:function` or `module:Class.method`."""
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    rule: str
    """Of `docs/protocol.md`, or what else it breaks."""
    edits: tuple[Edit, ...]
    caught_by: str
    """The scenario that shows it."""

    @contextmanager
    def planted(self) -> Generator[None]:
        with ExitStack() as stack:
            for target in dict.fromkeys(edit.target for edit in self.edits):
                stack.enter_context(_planted(target, [edit for edit in self.edits if edit.target == target]))
            yield


@contextmanager
def _planted(target: str, edits: Sequence[Edit]) -> Generator[None]:
    module_name, _, path = target.partition(":")
    module = import_module(module_name)
    owner_name, _, name = path.rpartition(".")
    owner: Any = getattr(module, owner_name) if owner_name else module
    original = vars(owner)[name]
    faulty = _faulty(module, original, edits)
    places: list[Any] = [owner] if owner_name else _importers(name, original)
    for place in places:
        setattr(place, name, faulty)
    try:
        yield
    finally:
        for place in places:
            setattr(place, name, original)


def _faulty(module: ModuleType, original: FunctionType, edits: Sequence[Edit]) -> object:
    source = textwrap.dedent(inspect.getsource(original))
    for edit in edits:
        if source.count(edit.old) != 1:
            raise AssertionError(
                f"{edit.target} has {source.count(edit.old)} places that read {edit.old!r}; write the fault anew"
            )
        source = source.replace(edit.old, edit.new)
    made: dict[str, Any] = {}
    # the product's own source, with the fault in it
    exec(  # noqa: S102  # that is how
        compile(f"from __future__ import annotations\n{source}", f"<faulty {original.__name__}>", "exec"),
        vars(module),
        made,
    )
    return made[original.__name__]


def _importers(name: str, original: object) -> list[ModuleType]:
    """Every module of the product that knows the function by its name."""
    ours = [module for key, module in sorted(sys.modules.items()) if key.partition(".")[0] in (*ROOTS, "tests")]
    return [module for module in ours if vars(module).get(name) is original]
