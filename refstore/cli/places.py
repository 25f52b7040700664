"""Where a command works: a repository, a ref, a path, as words of the command line.

    sales main 2026/11/21.csv              three words
    sales/main/2026/11/21.csv              or one location in their place: it is told by its slash, which a repository's name
    lakefs://sales/main/2026/11/21.csv     cannot have; lakeFS's URIs (and refstore://) are locations, too

In a location the ref ends at the first slash, so a branch `team/x` is written `team%2Fx` there, or as a word of its own. Paths
are taken as they are. A command's form (`REPO REF [PATH]`) says which words it takes; it is the metavar that its help shows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand

_SCHEMES: Final = ("lakefs://", "refstore://")
_MANY: Final = re.compile(r"\{(.+)\}\.\.\.")
"""How click shows an argument of several words."""


class PlacedCommand(TyperCommand):
    """A command that takes a place: its usage line is the form, and its help says that a location will do."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.epilog = "One location may stand for the words in front, such as sales/main, sales/main/a.csv, lakefs://sales/main/a.csv."

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [_MANY.sub(r"\1", piece) for piece in super().collect_usage_pieces(ctx)]


def place(form: str) -> Any:
    """The argument that takes the words of a form."""
    return typer.Argument(metavar=form, show_default=False, hidden=True)


class Location(NamedTuple):
    repository: str
    ref: str
    """'' if the location ends before it."""
    path: str


def is_location(word: str) -> bool:
    return "/" in word


def without_scheme(word: str) -> str:
    for scheme in _SCHEMES:
        word = word.removeprefix(scheme)
    return word


def location(word: str) -> Location:
    repository, _, rest = without_scheme(word).partition("/")
    ref, _, path = rest.partition("/")
    return Location(repository, ref.replace("%2F", "/").replace("%2f", "/"), path)


def words(ctx: typer.Context, given: Sequence[str], form: str, *, whole: bool = False) -> list[str]:
    """The words of a form, a location in front spelt out; '' for each optional word that was left out.

    A form is `REPO REF [PREFIX]`: words, then optional ones; a last `PATH...` takes all that is left, and comes out as they are.
    `whole`: a location always stands for three words, its path being '' where it ends before.
    """
    required = [word for word in form.split() if not word.startswith("[")]
    optional = [word for word in form.split() if word.startswith("[")]
    spelt = [*_spelt(given[0], whole=whole), *given[1:]] if given else []
    if len(spelt) < len(required):
        fail(ctx, form, f"{required[len(spelt)].removesuffix('...')} is missing")
    if form.endswith("..."):
        return spelt
    if len(spelt) > len(required) + len(optional):
        fail(ctx, form, f"{spelt[len(required) + len(optional)]!r} is one word too many")
    return spelt + [""] * (len(required) + len(optional) - len(spelt))


def fail(ctx: typer.Context, form: str, what: str) -> NoReturn:
    ctx.fail(f"{what}; the form is: {ctx.command_path} {form}.")


def _spelt(word: str, *, whole: bool) -> list[str]:
    """A location's words, without the empty ones behind."""
    if not is_location(word):
        return [word]
    found = [*location(word)]
    while found and not found[-1] and not whole:
        found.pop()
    return found
