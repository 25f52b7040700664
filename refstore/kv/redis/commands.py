"""Turn operations into Redis commands, and replies into results. Pure: nothing is sent here.

A partition is one sorted set, `prefix:{partition}`, whose members are `name NUL value`, all with score 0. So Redis
keeps them in order of name, a page is read without reading anything else, and a name and its value share one
allocation. Names contain no NUL, and a name has at most one member. So members sort as names do, and `[name NUL, name
\\1)` contains exactly that one. The braces make the partition's name alone decide the slot in a Cluster.

Operations of one kind on one partition are sent together, as the arguments of one Lua script (`lua/*.lua`: one purpose
each). Calls are bounded, because a script blocks the whole server. Scripts are sent by their text (EVAL), not by their
hash: see docs/decisions/0012. A call includes its least and greatest name, for the script's first check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from itertools import groupby
from typing import Final, NamedTuple, cast

from refstore.core.batches import split_sized
from refstore.errors import InvalidName
from refstore.kv.base import ABSENT, Delete, Exchange, Get, Op, Result, Set, SetIf

CALL_OPS: Final = 500
"""Ops per call: at most about 3 ms of the server's time. Lua's `unpack` would take 4,000."""
CALL_BYTES: Final = 1 << 20
"""Bytes of arguments per call. A larger op is sent alone."""

Argument = bytes | str | int
Command = tuple[Argument, ...]
Reply = object
"""A reply as redis-py returns it: bytes, int, None, or a list of these."""


def _script(name: str) -> bytes:
    """Return the script without comments and blank lines, because it is sent with every call."""
    text = (files("refstore.kv") / "lua" / f"{name}.lua").read_text()
    return "\n".join(line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--")).encode()


_GET: Final = _script("get")
_SET: Final = _script("set")
_SET_IF: Final = _script("set_if")
_EXCHANGE: Final = _script("exchange")
_DELETE: Final = _script("delete")


Results = Callable[[Reply], Iterable[Result]]
"""Turns the reply into one result for each op."""


class RedisCall(NamedTuple):
    """One command on one partition."""

    key: bytes
    """The Redis key, which decides the node in a Cluster."""
    command: Command
    places: list[int]
    """The indexes of its results among the results of the whole batch."""
    results: Results
    writes: bool


def partition_key(prefix: str, partition: str) -> bytes:
    if "\0" in partition or not partition:
        raise InvalidName(f"{partition[:80]!r} cannot be a partition; it must not be empty, nor contain NUL")
    return f"{prefix}:{{{partition}}}".encode()


def group_calls(ops: Sequence[Op], prefix: str) -> list[list[RedisCall]]:
    """Return the calls of each run of neighbouring ops of one kind. Calls of one run may be made in any order, or at
    once.
    """
    runs: list[list[RedisCall]] = []
    for kind, run in groupby(range(len(ops)), key=lambda place: type(ops[place])):
        parts: dict[str, list[int]] = {}
        for place in run:
            parts.setdefault(ops[place].key.partition, []).append(place)
        calls: list[RedisCall] = []
        for part, places in parts.items():
            key = partition_key(prefix, part)
            # In order of name, so that Redis finds each one's place near the last one's. (UTF-8 has the same order.)
            places.sort(key=lambda place: ops[place].key.name)
            for some in split_sized(places, lambda place: _size(ops[place]), size_max=CALL_BYTES, items_max=CALL_OPS):
                here = [ops[place] for place in some]
                command, results = _MAKERS[kind](key, here, _encode_names(here))
                calls.append(RedisCall(key, command, some, results, kind is not Get))
        runs.append(calls)
    return runs


def scan_command(key: bytes, prefix: str, after: str, limit: int) -> Command:
    """Return the command for the members whose names have `prefix` and come after `after`. No UTF-8 text contains the
    byte 255.
    """
    low = max(after.encode() + b"\1" if after else b"", prefix.encode())
    high = b"(" + prefix.encode() + b"\xff" if prefix else b"+"
    return (b"ZRANGEBYLEX", key, b"[" + low, high, b"LIMIT", 0, limit)


def parse_pairs(reply: Reply) -> list[tuple[str, bytes]]:
    """Return the pairs in the reply to `scan_command`."""
    parts = (member.partition(b"\0") for member in cast("list[bytes]", reply))
    return [(name.decode(), value) for name, _, value in parts]


def list_command(prefix: str, cursor: int) -> Command:
    """Return the command for some of the partitions of one server."""
    return (b"SCAN", cursor, b"MATCH", re.sub(r"([\\*?\[\]^])", r"\\\1", prefix) + ":{*}", b"COUNT", 1000)


def parse_partitions(prefix: str, reply: Reply) -> tuple[int, list[str]]:
    """Return the cursor and the names in the reply to `list_command`."""
    cursor, keys = cast("tuple[bytes, list[bytes]]", reply)
    return int(cursor), [key.decode()[len(prefix) + 2 : -1] for key in keys]


def count_command(key: bytes) -> Command:
    return (b"ZCARD", key)


_Maker = Callable[[bytes, Sequence[Op], list[bytes]], tuple[Command, Results]]
"""(redis key, ops in order of name, their names) -> the command, and what turns its reply into results."""


def _size(op: Op) -> int:
    """Return about how many bytes of arguments an op has."""
    texts = (getattr(op, "value", ABSENT), getattr(op, "expected", ABSENT))
    return len(op.key.name) + sum(len(text) for text in texts if text is not ABSENT)


def _encode_names(ops: Sequence[Op]) -> list[bytes]:
    """Return the ops' names as they are stored. Raises InvalidName."""
    names = [op.key.name.encode() for op in ops]
    if b"\0" in b"".join(names) or not all(names):
        invalid = next(name for name in names if b"\0" in name or not name).decode()
        raise InvalidName(f"{invalid[:80]!r} cannot be a key; it must not be empty, nor contain NUL")
    return names


def _eval_command(script: bytes, key: bytes, arguments: Iterable[Argument]) -> Command:
    return (b"EVAL", script, 1, key, *arguments)


def _parse_values(names: list[bytes]) -> Results:
    """Turn members or nil into values or ABSENT."""

    def read(reply: Reply) -> list[Result]:
        members = cast("list[bytes | None]", reply or [None])  # a range that contains no member
        return [
            ABSENT if member is None else member[len(name) + 1 :] for name, member in zip(names, members, strict=True)
        ]

    return read


def _all_true(reply: Reply) -> list[Result]:
    return [digit == ord("1") for digit in cast(bytes, reply)]


def _make_get(key: bytes, _ops: Sequence[Op], names: list[bytes]) -> tuple[Command, Results]:
    if len(names) == 1:
        (name,) = names
        command = (b"ZRANGEBYLEX", key, b"[" + name + b"\0", b"(" + name + b"\1", b"LIMIT", 0, 1)
        return command, _parse_values(names)
    return _eval_command(_GET, key, (names[0], names[-1], *names)), _parse_values(names)


def _make_set(key: bytes, ops: Sequence[Op], names: list[bytes]) -> tuple[Command, Results]:
    return _eval_command(_SET, key, _name_value_arguments(ops, names)), lambda _: [None] * len(names)


def _make_exchange(key: bytes, ops: Sequence[Op], names: list[bytes]) -> tuple[Command, Results]:
    return _eval_command(_EXCHANGE, key, _name_value_arguments(ops, names)), _parse_values(names)


def _make_set_if(key: bytes, ops: Sequence[Op], names: list[bytes]) -> tuple[Command, Results]:
    shapes: list[str] = []
    arguments: list[Argument] = []
    for name, op in zip(names, cast("Sequence[SetIf]", ops), strict=True):
        given = [text for text in (op.expected, op.value) if text is not ABSENT]
        shapes.append(_SHAPES[op.expected is ABSENT, op.value is ABSENT])
        arguments += (name, *given)
    return _eval_command(_SET_IF, key, (names[0], names[-1], "".join(shapes), *arguments)), _all_true


def _make_delete(key: bytes, _ops: Sequence[Op], names: list[bytes]) -> tuple[Command, Results]:
    return _eval_command(_DELETE, key, names), lambda _: [None] * len(names)


def _name_value_arguments(ops: Sequence[Op], names: list[bytes]) -> list[Argument]:
    """Return the least name, the greatest name, then each name and its value."""
    arguments: list[Argument] = [names[0], names[-1]]
    for name, op in zip(names, cast("Sequence[Set | Exchange]", ops), strict=True):
        arguments += (name, op.value)
    return arguments


_SHAPES: Final = {(True, True): "a", (True, False): "c", (False, True): "r", (False, False): "s"}
"""The letter of a SetIf in the script, by whether what is expected and the value are ABSENT."""
_MAKERS: Final[dict[type[Op], _Maker]] = {
    Get: _make_get,
    Set: _make_set,
    SetIf: _make_set_if,
    Exchange: _make_exchange,
    Delete: _make_delete,
}
