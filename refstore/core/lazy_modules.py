"""Import a module when it is first used, so that a process imports only what it uses.

    if TYPE_CHECKING:
        from refstore.operations import address_info
    else:
        address_info = LazyModule("refstore.operations.address_info")

The second form is what runs; the first one is what type checkers and `lint-imports` read.
"""

from __future__ import annotations

from importlib import import_module


class LazyModule:
    """Stands for a module. Each use of a name looks it up there, so what a test replaces in the module is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        return getattr(import_module(self._name), name)
