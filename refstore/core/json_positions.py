"""Parse JSON with the position of every value, for errors that name line and column; no key may stand twice.

Such a document decides what is deleted, so nothing in it may be passed over in silence: the last of two equal keys does
not win, text behind the document is an error, and so is an unknown field. `refstore/retention/rules.py` and
`refstore/purging/document.py` say what their documents mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import msgspec

from refstore.core.suggestions import nearest
from refstore.errors import InvalidDocument

Model = TypeVar("Model", bound=msgspec.Struct)

DEPTH_MAX: Final = 16
"""How deep arrays and objects may be nested; the format needs five levels."""
DIGITS_MAX: Final = 18
"""How many digits a number may have; more would not fit where numbers are stored."""

CHARACTERS_MAX: Final = 262_144

_STEPS: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_AT: Final = " - at `$"
"""Where a message of msgspec names the place, up to the message's end."""
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD: Final = re.compile(r"true|false|null")
_WORDS: Final = {"true": True, "false": False, "null": None}

Step = str | int
Place = tuple[Step, ...]
"""The path to a value: names of fields, numbers of items."""


class JsonPositions(NamedTuple):
    kind: type[InvalidDocument]
    """The error that is raised for this kind of document."""
    text: str
    value: Any
    at: dict[Place, int]
    """Where each value begins; of a field, where its name begins."""

    def error(self, place: Place, reason: str) -> InvalidDocument:
        """Make an error about the value at a place, or about the nearest one above it."""
        while place not in self.at:
            place = place[:-1]
        return _error_at(self.kind, self.text, self.at[place], reason)

    def line(self, *place: Step) -> int:
        """Return the line of a value, from 1."""
        return self.text.count("\n", 0, self.at[place]) + 1


def parse(text: str, kind: type[InvalidDocument]) -> JsonPositions:
    """Parse a text. Raises an error of the kind."""
    reader = _Reader(text, kind)
    return JsonPositions(kind, text, reader.document(), reader.at)


def read(
    text: str, model: type[Model], kind: type[InvalidDocument], fields: Sequence[str]
) -> tuple[Model, JsonPositions]:
    """Parse a document and give it its model's shape. `fields`: all names of fields, for hints. Raises an error of the
    kind.
    """
    if len(text) > CHARACTERS_MAX:
        raise _error_at(kind, text, 0, f"the document has {len(text)} characters; it may have {CHARACTERS_MAX}")
    positions = parse(text.removeprefix("\ufeff"), kind)
    try:
        return msgspec.convert(positions.value, model), positions
    except msgspec.ValidationError as error:
        raise _shape(positions, str(error), fields) from None


def _shape(positions: JsonPositions, message: str, fields: Sequence[str]) -> InvalidDocument:
    """Translate msgspec's message to an error with the position that it names."""
    reason, at, path = message.removesuffix("`").partition(_AT) if message.endswith("`") else (message, "", "")
    reason = reason if at else message
    place: Place = tuple(int(number) if number else name for name, number in _STEPS.findall(path))
    unknown = _UNKNOWN.fullmatch(reason)
    shown = f"{positions.kind.shown_in} shows the format"
    if unknown is None:
        where = next((f"field {step!r}: " for step in reversed(place) if isinstance(step, str)), "")
        return positions.error(place, f"{where}{reason[:1].lower()}{reason[1:]}; {shown}")
    close = nearest(unknown[1], fields)
    hint = f"did you mean {close!r}?" if close else shown
    return positions.error((*place, unknown[1]), f"unknown field {unknown[1][:80]!r}; {hint}")


def _error_at(kind: type[InvalidDocument], text: str, position: int, reason: str) -> InvalidDocument:
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    return kind(f"{kind.document}, line {line}, column {column}: {reason}", line=line, column=column)


class _Reader:
    def __init__(self, text: str, kind: type[InvalidDocument]) -> None:
        self._text = text
        self._kind = kind
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
        raise _error_at(self._kind, self._text, self._position if position is None else position, reason) from None
