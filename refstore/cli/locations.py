"""Parse the words of the command line that name a repository, a ref and a path.

    sales main 2026/11/21.csv              three words
    sales/main/2026/11/21.csv              or one location in their place. It has a slash, which a repository's name
                                           cannot have.
    lakefs://sales/main/2026/11/21.csv     lakeFS's URIs (and refstore://) are locations, too

In a location the ref ends at the first slash, so a branch `team/x` is written `team%2Fx` there, or as a word of its
own. Paths are taken as they are. A command's form (`REPO REF [PATH]`) says which words it takes; it is the metavar that
its help shows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand

from refstore.cli.options import explain_stray_word

SCHEMES: Final = ("lakefs://", "refstore://")
_MANY: Final = re.compile(r"\{(.+)\}\.\.\.")
"""How click shows an argument with several words."""


class PlacedCommand(TyperCommand):
    """A command with a location: its usage line shows the form, and its help mentions locations."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.epilog = (
            "One location may replace the leading words, such as sales/main, sales/main/a.csv, "
            "lakefs://sales/main/a.csv."
        )

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [_MANY.sub(r"\1", piece) for piece in super().collect_usage_pieces(ctx)]


def place(form: str) -> Any:
    """Make the argument that takes the words of a form."""
    return typer.Argument(metavar=form, show_default=False, hidden=True)


class PathLocation(NamedTuple):
    repository: str
    ref: str
    """'' if the location has none."""
    path: str


def is_location(word: str) -> bool:
    return "/" in word


def without_scheme(word: str) -> str:
    for scheme in SCHEMES:
        word = word.removeprefix(scheme)
    return word


def location(word: str) -> PathLocation:
    repository, _, rest = without_scheme(word).partition("/")
    ref, _, path = rest.partition("/")
    return PathLocation(repository, ref.replace("%2F", "/").replace("%2f", "/"), path)


def words(ctx: typer.Context, arguments: Sequence[str], form: str, *, whole: bool = False) -> list[str]:
    """Return the words of a form, with a leading location split; '' for each optional word that is missing.

    A form is `REPO REF [PREFIX]`: words, then optional ones. A last `PATH...` takes all remaining words unchanged.
    `whole`: a location always stands for three words, with the path '' if it has none.
    """
    required = [word for word in form.split() if not word.startswith("[")]
    optional = [word for word in form.split() if word.startswith("[")]
    parts = [*_location_words(arguments[0], whole=whole), *arguments[1:]] if arguments else []
    if len(parts) < len(required):
        fail(ctx, form, f"{required[len(parts)].removesuffix('...')} is missing")
    if form.endswith("..."):
        return parts
    if len(parts) > len(required) + len(optional):
        fail_of_stray_word(ctx, form, parts[len(required) + len(optional)])
    return parts + [""] * (len(required) + len(optional) - len(parts))


def words_with_target(ctx: typer.Context, arguments: list[str], form: str) -> list[str]:
    """Return the words of `REPO BRANCH SOURCE TARGET`. A location holds the target, and the source follows it."""
    target = location(arguments[0]).path if is_location(arguments[0]) else ""
    leading = [arguments[0].removesuffix(target), *arguments[1:]]
    return words(ctx, [*leading, target] if target and len(arguments) > 1 else leading, form)


def fail(ctx: typer.Context, form: str, what: str) -> NoReturn:
    ctx.fail(f"{what}; the form is: {ctx.command_path} {form}.")


def fail_of_stray_word(ctx: typer.Context, form: str, word: str) -> NoReturn:
    fail(ctx, form, f"{word!r} is one word too many{explain_stray_word(ctx)}")


def _location_words(word: str, *, whole: bool) -> list[str]:
    """Split a location into words, without empty ones at the end."""
    if not is_location(word):
        return [word]
    parts = [*location(word)]
    while parts and not parts[-1] and not whole:
        parts.pop()
    return parts
