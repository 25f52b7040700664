"""Read the JSON documents that decide what is deleted.

Nothing in such a document may be passed over in silence: the last of two equal fields does not win, text behind the
document is an error, and so is an unknown field. A document that is not JSON is refused with line and column, all other
mistakes with the field's path: `rules[0].filter.prefix`. `refstore/retention/rules.py` and
`refstore/purge_document/document.py` say what their documents mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from refstore.core.suggestions import find_nearest
from refstore.errors import InvalidDocument

Model = TypeVar("Model", bound=msgspec.Struct)

CHARACTERS_MAX: Final = 262_144
_REASON_MAX: Final = 200
"""Characters of a message of msgspec that are shown: it repeats values of the document."""

_MESSAGE: Final = re.compile(r"(?P<reason>.*?)(?: - at `\$\.?(?P<place>[^`]*)`)?", re.DOTALL)
"""A message of msgspec."""
_UNKNOWN_FIELD: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def read(text: str, model: type[Model], kind: type[InvalidDocument], fields: Sequence[str]) -> Model:
    """Return a document as its model. `fields`: all names of fields, for hints. Raises an error of the kind."""
    if len(text) > CHARACTERS_MAX:
        raise kind(f"the document has {len(text)} characters; it may have {CHARACTERS_MAX}")
    bare = text.removeprefix("\ufeff")
    try:
        # msgspec knows no lines, and lets the last of two equal fields win
        json.loads(bare, object_pairs_hook=_object, parse_int=str)
        return msgspec.json.decode(bare.encode(), type=model)
    except json.JSONDecodeError as error:
        raise kind(f"{error.msg}; correct the JSON there", place=f"line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise kind(f"too many levels; {kind.shown_in} shows the format") from None
    except msgspec.DecodeError as error:
        raise _wrong_shape(str(error), kind, fields) from None
    except ValueError as error:  # a field twice; half a surrogate pair
        raise kind(str(error)) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of JSON. Raises ValueError for a field that is there twice."""
    entries: dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise ValueError(f"field {name[:80]!r} is there twice in one object; keep one of them")
        entries[name] = value
    return entries


def _wrong_shape(message: str, kind: type[InvalidDocument], fields: Sequence[str]) -> InvalidDocument:
    """Translate msgspec's message."""
    parts = _MESSAGE.fullmatch(message)
    reason, place = (parts["reason"], parts["place"] or "") if parts is not None else (message, "")
    unknown = _UNKNOWN_FIELD.fullmatch(reason)
    if unknown is None:
        return kind(f"{reason[:_REASON_MAX]}; {kind.shown_in} shows the format", place=place)
    close = find_nearest(unknown[1], fields)
    hint = f"did you mean {close!r}?" if close else f"{kind.shown_in} shows the format"
    return kind(f"unknown field {unknown[1][:80]!r}; {hint}", place=place)
