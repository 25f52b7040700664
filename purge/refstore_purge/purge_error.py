"""Why an object cannot be purged."""

from __future__ import annotations


class PurgeError(Exception):
    """An object that cannot be purged: its message names column and types, never a value. The object stays as it is."""


class OtherMeansError(PurgeError):
    """An object to which somebody must see by other means."""

    def __str__(self) -> str:
        return f"{super().__str__()}; see to it by other means"
