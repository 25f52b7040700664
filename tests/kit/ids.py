"""Ids that count, so that a run can be repeated to the letter."""

from __future__ import annotations

import re
from typing import Final

_LENGTH: Final = 26
_COUNTED = re.compile(r"\b([0-9a-z]{1,18}?)0{4,}([1-9]\d*)\b")


class CountingIds:
    """`<label>0…0<number>`: the 26 characters of an id. Two that are in use at once must not share a label."""

    def __init__(self, label: str) -> None:
        self._label = _checked(label)
        self.given = 0
        """How many ids were made."""

    def restart(self, label: str) -> None:
        """Count from one again, under another label."""
        self._label = _checked(label)
        self.given = 0

    @property
    def position(self) -> tuple[str, int]:
        """Where in which sequence the next id is."""
        return self._label, self.given

    def new_id(self, at_ms: int) -> str:
        """They sort as they were made, not by time."""
        del at_ms
        self.given += 1
        return f"{self._label}{self.given:0{_LENGTH - len(self._label)}d}"


def short(text: str) -> str:
    """`text` with the zeros of counted ids left out, for people."""
    return _COUNTED.sub(r"\1.\2", text)


def _checked(label: str) -> str:
    if not re.fullmatch(r"[0-9a-z]{0,17}[a-z]", label):  # one that ends in a digit could run into another one's numbers
        raise ValueError(f"{label!r} cannot label ids; use up to 18 of a-z and 0-9, a letter last")
    return label
