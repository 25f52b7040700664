"""Parse JSON with the position of every value, for errors that name line and column; no key may stand twice.

A rules document decides what is deleted, so nothing in it may be passed over in silence: the last of two equal keys
does not win, and text behind the document is an error. What is read here is only shaped as JSON; `rules.py` says what
it means.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple, NoReturn

from refstore.errors import InvalidRules

DEPTH_MAX: Final = 16
"""How deep arrays and objects may be nested; the format needs five levels."""
DIGITS_MAX: Final = 18
"""How many digits a number may have; more would not fit where numbers are stored."""

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD: Final = re.compile(r"true|false|null")
_WORDS: Final = {"true": True, "false": False, "null": None}

Step = str | int
Place = tuple[Step, ...]
"""The path to a value: names of fields, numbers of items."""


class JsonPositions(NamedTuple):
    text: str
    value: Any
    at: dict[Place, int]
    """Where each value begins; of a field, where its name begins."""

    def error(self, place: Place, reason: str) -> InvalidRules:
        """Make an error about the value at a place, or about the nearest one above it."""
        while place not in self.at:
            place = place[:-1]
        return error_at(self.text, self.at[place], reason)


def error_at(text: str, position: int, reason: str) -> InvalidRules:
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    return InvalidRules(f"retention rules, line {line}, column {column}: {reason}", line=line, column=column)


def parse(text: str) -> JsonPositions:
    """Parse a text. Raises InvalidRules."""
    reader = _Reader(text)
    return JsonPositions(text, reader.document(), reader.at)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self.at: dict[Place, int] = {}

    def document(self) -> Any:
        value = self._value(())
        self._skip()
        if self._position < len(self._text):
            self._fail("something stands behind the document; keep one JSON document")
        return value

    def _value(self, place: Place) -> Any:
        self._skip()
        self.at.setdefault(place, self._position)  # of a field, its name was there before
        if len(place) > DEPTH_MAX:
            self._fail(f"more than {DEPTH_MAX} levels; the format needs five")
        match self._next():
            case "{":
                return self._object(place)
            case "[":
                return self._array(place)
            case '"':
                return self._string()
            case _:
                return self._scalar()

    def _object(self, place: Place) -> dict[str, Any]:
        self._position += 1
        entries: dict[str, Any] = {}
        while True:
            self._skip()
            if self._next() == "}" and not entries:
                break
            began = self._position
            if self._next() != '"':
                self._fail("a field's name in double quotes is expected here")
            name = self._string()
            if name in entries:
                line = self._text.count("\n", 0, self.at[*place, name]) + 1
                self._fail(f"field {name!r} is there twice (first in line {line}); keep one of them", began)
            self.at[*place, name] = began
            self._take(":", f"':' is expected behind field {name!r}")
            entries[name] = self._value((*place, name))
            if not self._more("}"):
                break
        self._take("}", "'}' is expected here")
        return entries

    def _array(self, place: Place) -> list[Any]:
        self._position += 1
        items: list[Any] = []
        while True:
            self._skip()
            if self._next() == "]" and not items:
                break
            items.append(self._value((*place, len(items))))
            if not self._more("]"):
                break
        self._take("]", "']' is expected here")
        return items

    def _string(self) -> str:
        match = _STRING.match(self._text, self._position)
        if match is None:
            self._fail("a text that is not ended, or has a control character in it; write \\n for a line break")
        try:
            text: str = json.loads(match[0])
            text.encode()
        except ValueError:  # UnicodeEncodeError is one: a lone surrogate
            self._fail("a text with a bad escape in it")
        self._position = match.end()
        return text

    def _scalar(self) -> Any:
        if not self._next():
            self._fail("the document ends too early; complete it")
        word = _WORD.match(self._text, self._position)
        if word is not None:
            self._position = word.end()
            return _WORDS[word[0]]
        number = _NUMBER.match(self._text, self._position)
        if number is None:
            self._fail("this is not JSON; a value is expected here")
        if len(number[0]) > DIGITS_MAX:
            self._fail(f"a number of more than {DIGITS_MAX} digits")
        self._position = number.end()
        return json.loads(number[0])

    def _more(self, end: str) -> bool:
        self._skip()
        if self._next() != ",":
            if self._next() != end:
                self._fail(f"',' or '{end}' is expected here")
            return False
        comma = self._position
        self._position += 1
        self._skip()
        if self._next() == end:
            self._fail("a comma with nothing after it; leave it out", comma)
        return True

    def _take(self, what: str, reason: str) -> None:
        self._skip()
        if self._next() != what:
            self._fail(reason)
        self._position += 1

    def _skip(self) -> None:
        match = _SPACE.match(self._text, self._position)
        if match is not None:
            self._position = match.end()

    def _next(self) -> str:
        return self._text[self._position : self._position + 1]

    def _fail(self, reason: str, position: int | None = None) -> NoReturn:
        raise error_at(self._text, self._position if position is None else position, reason) from None
