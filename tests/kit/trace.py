"""Schedules as text: a trace for people, and a short string that replays it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final, Union, cast

import msgspec

from refstore.errors import InvalidSettings
from refstore.records.encoding import Record
from tests.kit.explorer import CRASH, Event
from tests.kit.ids import short
from tests.kit.steps import GET, KINDS, LIST, LOST, OBJECTS, SET, SET_IF, WAIT, Interned, body_of

_TOKEN: Final = re.compile(r"([A-Z]+)(?:#(\d+))?([!~]?)(?:\*(\d+))?")
_HEX: Final = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{56}\b")


def lines(events: Iterable[Event], names: Interned) -> Iterator[str]:
    """A step each: who, what, on which key, and the reply."""
    for event in events:
        yield _plain(f"{event.label:3s} {_step(event, names)}")


def schedule(events: Sequence[Event]) -> str:
    """`U*3 G#1 U~ U!`: who did the next step; `#n` which of several, `~` its reply was lost, `!` died before it."""
    tokens: list[str] = []
    counts: list[int] = []
    for event in events:
        mark = "!" if event.reply == CRASH else "~" if event.reply == LOST else ""
        token = f"{event.label}{f'#{event.choice}' if event.choice else ''}{mark}"
        if tokens and tokens[-1] == token:
            counts[-1] += 1
        else:
            tokens.append(token)
            counts.append(1)
    return " ".join(token if count == 1 else f"{token}*{count}" for token, count in zip(tokens, counts, strict=True))


def parsed(text: str) -> list[tuple[str, int, str]]:
    """(label, which step, '' or '!' or '~') of each step. Raises InvalidSettings."""
    steps: list[tuple[str, int, str]] = []
    for token in text.split():
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise InvalidSettings(f"{token!r} is no step of a schedule; it looks like U, U#1, U~, U! or U*3")
        label, index, mark, count = match.groups()
        steps += [(label, int(index or 0), mark)] * int(count or 1)
    return steps


def _step(event: Event, names: Interned) -> str:
    step = event.step
    if step.kind == WAIT:
        return "waits for the others"
    if step.kind == LIST:
        listed = [names.keys[key].name for key in event.reply] if isinstance(event.reply, tuple) else []
        return f"list {names.partitions[step.key]} -> {listed}"
    key = names.keys[step.key]
    where = f"{key.partition} {key.name}" if key.partition != OBJECTS else f"object {key.name}"
    what = KINDS[step.kind]
    written = ""
    if step.kind != GET:
        written = f" := {_value(names, step.key, step.value)}"
        if step.kind == SET_IF:
            written += f" if {_value(names, step.key, step.expected)}"
    if event.reply == CRASH:
        return f"DIES before {what} {where}{written}"
    if event.reply == LOST:
        return f"{what} {where}{written} -> REPLY LOST"
    if step.kind == SET:
        return f"{what} {where}{written}"
    if step.kind == SET_IF:
        return f"{what} {where}{written} -> {'done' if event.reply else 'NOT DONE'}"
    assert isinstance(event.reply, int)
    return f"{what} {where}{written} -> {_value(names, step.key, event.reply)}"


def _value(names: Interned, key: int, number: int) -> str:
    if not number:
        return "ABSENT"
    value = names.values[number]
    if names.keys[key].partition == OBJECTS:
        return repr(body_of(value))
    try:
        return str(_record_decoder().decode(value))
    except msgspec.DecodeError:
        return repr(value)


@cache
def _record_decoder() -> msgspec.msgpack.Decoder[Any]:
    """Of every kind of record that the code under test has imported by now."""
    return msgspec.msgpack.Decoder(cast("Any", Union)[tuple(Record.__subclasses__())])


def _plain(text: str) -> str:
    """Without what only machines tell apart."""
    text = _HEX.sub(r"\1", short(text))
    text = re.sub(r"data/\d{10}/", "data/", text)
    text = re.sub(r"Reference\(token=('[^']*'), path=('[^']*'), id=('[^']*')\)", r"(\1, \2, \3)", text)
    return re.sub(
        r", (mtime_ms|created_ms|changed_ms|metadata|content_type|checksum|hidden)=(\d+|\{\}|'[0-9a-f]*'|False)",
        "",
        text,
    )
