"""Every regular expression that may meet a caller's text takes time in proportion to its length.

The patterns are found in the source, with the calls that use them, so a new one is tested without being listed here. A
text of 100 KB may take `FACTOR` times as long as one of an eighth; that of a quadratic pattern takes 64 times as long.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import refstore
import refstore_api
import refstore_http
from refstore.core.redaction import redact_text, redact_url
from refstore_api import json_bodies

BYTES: Final = 100_000
STEP: Final = 8
FACTOR: Final = 30
METHODS: Final = ("match", "fullmatch", "search", "sub", "split", "findall", "finditer")
NOT_CALLERS: Final = ("refstore.cli", "refstore.conformance")
"""What reads only what its own user typed, or its own files."""


class Use(NamedTuple):
    module: str
    name: str
    """Of the pattern's variable; or the pattern, where it has none."""
    method: str
    pattern: re.Pattern[Any]

    def __str__(self) -> str:
        return f"{self.module}:{self.name}.{self.method}"


def sources() -> Iterator[tuple[str, ast.Module]]:
    for package in (refstore, refstore_api, refstore_http):
        assert package.__file__ is not None
        root = Path(package.__file__).parent
        for path in sorted(root.rglob("*.py")):
            name = ".".join((package.__name__, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
            if not name.startswith(NOT_CALLERS):
                yield name, ast.parse(path.read_text())


def uses() -> Iterator[Use]:
    for module, tree in sources():
        compiled = {
            target.id: tree_of
            for node in ast.walk(tree)
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name) and "re.compile" in (tree_of := ast.unparse(node.value))
        }
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=method), args=[first, *_]) if (
                    method in METHODS
                ):
                    assert isinstance(first, ast.Constant), f"{module}: give this pattern a name"
                    assert isinstance(first.value, str), f"{module}: give this pattern a name"
                    yield Use(module, repr(first.value), method, re.compile(first.value))
                case ast.Attribute(value=ast.Name(id=name), attr=method) if name in compiled and method in METHODS:
                    yield Use(module, name, method, getattr(importlib.import_module(module), name))
                case ast.Name(id=name, ctx=ast.Load()) if name in compiled and ").fullmatch" in compiled[name]:
                    bound = getattr(importlib.import_module(module), name)
                    yield Use(module, name, "fullmatch", bound.__self__)
                case _:
                    pass


USES: Final = list(dict.fromkeys(uses()))


def pieces_of(pattern: re.Pattern[Any]) -> list[str]:
    """Return what hostile texts are made of: what the pattern says itself, and what most patterns stumble over."""
    text = re.sub(r"\\(.)", r"\1", pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode())
    own = [piece for piece in re.split(r"[()\[\]*+?|^]+", text) if piece]
    common = [
        "a",
        "A",
        "0",
        " ",
        "\n",
        "/",
        "//",
        ".",
        "-",
        "_",
        "=",
        "&",
        "?",
        "#",
        "@",
        ":",
        "%",
        "\\",
        '"',
        "{",
        "[",
    ]
    return list(
        dict.fromkeys([*own, *common, "://", "a://", "%2F", "%40", "?key", "&key=", "~1", "^", "{}", "\\\\", '\\"'])
    )


def texts(pattern: re.Pattern[Any]) -> list[str]:
    """Return texts of some hundred bytes, to be repeated: each piece, and each with what may begin or break a match."""
    pieces = pieces_of(pattern)
    return [*pieces, *(one + other for one in pieces[:5] for other in pieces[:5] if one != other)]


def called(use: Use, text: str) -> Callable[[], object]:
    subject: Any = text.encode() if isinstance(use.pattern.pattern, bytes) else text
    match use.method:
        case "sub":
            return partial(use.pattern.sub, subject[:0], subject)
        case "finditer":
            return lambda: use.pattern.findall(subject)
        case method:
            call = getattr(use.pattern, method)
            return lambda: call(subject)


def seconds(call: Callable[[], object], attempts: int) -> float:
    """Return the processor's time of the fastest of some calls."""
    fastest = float("inf")
    for _ in range(attempts):
        began = time.thread_time()
        call()
        fastest = min(fastest, time.thread_time() - began)
    return fastest


def assert_linear(call_of: Callable[[str], Callable[[], object]], piece: str, head: str = "", tail: str = "") -> None:
    def text(length: int) -> str:
        return head + piece * (length // len(piece)) + tail

    # a slow pattern is seen at the first step, before the whole size, which could take minutes
    for length in (BYTES // STEP, BYTES):
        short, long = call_of(text(length // STEP)), call_of(text(length))
        if seconds(long, 1) < 20 * seconds(call_of_reading(text(length)), 3):
            continue  # it cannot have read the text much more often than once
        growth = 0.0
        for attempts in (1, 3, 10):
            growth = seconds(long, attempts) / max(seconds(short, attempts), 1e-6)
            if growth < FACTOR:
                break
        else:
            raise AssertionError(
                f"{STEP} times the text takes {growth:.0f} times as long: {head[:20]!r} {piece!r} {tail[:20]!r}"
            )


def call_of_reading(text: str) -> Callable[[], object]:
    """Return a call that looks at each character once."""
    pattern = re.compile(r"[^\x00-\U0010ffff]")
    return lambda: pattern.search(text)


def test_the_patterns_are_found() -> None:
    found = {f"{use.module}:{use.name}" for use in USES}
    assert {
        "refstore.core.redaction:_URL",
        "refstore_http.headers:_RANGE",
        "refstore.operations.refs:_EXPRESSION",
    } <= found
    assert len(found) > 30


@pytest.mark.parametrize("use", USES, ids=str)
def test_a_pattern_is_linear(use: Use) -> None:
    for piece in texts(use.pattern):
        for tail in ("", "\x01"):
            assert_linear(lambda text: called(use, text), piece, tail=tail)


@pytest.mark.parametrize("call", [redact_url, redact_text], ids=["url", "text"])
@pytest.mark.parametrize("head", ["", "s3://", "s3://h/?", "s3://h/?key", "s3://h/?x=%2F%2F"])
def test_redaction_is_linear(call: Callable[[str], str], head: str) -> None:
    pieces = ["a-", "?", "?key", "&key", "=", "%2F%2F", "%40", "@", "a:@", "://", "a://", "a://b ", "?a=", "?key=a?"]
    for piece in pieces:
        for tail in ("", "="):
            assert_linear(lambda text: lambda: call(text), piece, head, tail)


def test_counting_what_a_body_holds_is_linear() -> None:
    def call_of(text: str) -> Callable[[], object]:
        def check() -> None:
            with pytest.raises(json_bodies.Invalid):
                json_bodies.check_shape(text.encode(), 0)

        return check

    for piece in ('"', '\\"', '"\\', '"a",', "[", "[]", '{"', ",", '"\\\\"'):
        assert_linear(call_of, piece, tail=",")


def test_a_cubic_and_a_quadratic_pattern_are_seen() -> None:
    slow = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://\S+")
    with pytest.raises(AssertionError, match="times as long"):
        assert_linear(lambda text: lambda: slow.search(text), "a-")
