"""The page that asks before an act, and the page that says what an act did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fastapi import Request
from starlette.responses import Response

from refstore_api.ui.rendering import render

CONFIRMED = "confirmed"
"""The field that the form of the page that asks has, and no other form."""


class Field(NamedTuple):
    """What a person may choose on the page that asks."""

    kind: Literal["checkbox", "number", "text", "select"]
    name: str
    label: str
    help: str = ""
    value: str = ""
    options: Sequence[tuple[str, str]] = ()
    """Of a `select`: values and labels."""


class Question(NamedTuple):
    """An act, the numbers of its dry run, and what may be chosen."""

    title: str
    lead: str
    """What the act will do."""
    button: str
    facts: Sequence[tuple[str, str]] = ()
    """Names and values."""
    warnings: Sequence[str] = ()
    fields: Sequence[Field] = ()
    hidden: Mapping[str, str | Sequence[str]] = {}
    """What the form sends besides."""
    is_danger: bool = True
    cancel: str = ""
    """Where to go instead, below `/ui`."""
    allowed: bool = True
    """False: the dry run says that the act would do nothing, so there is no button."""


def ask(request: Request, question: Question, *, repository: str | None = None, **values: Any) -> Response:
    """Return the page that asks. Its form posts to the same address."""
    hidden = [(name, one) for name, of in question.hidden.items() for one in ([of] if isinstance(of, str) else of)]
    return render(
        request, "question.html", question=question, hidden=hidden, repository=repository, confirmed=CONFIRMED, **values
    )


def say(
    request: Request,
    title: str,
    facts: Sequence[tuple[str, str]],
    *,
    repository: str | None = None,
    back: str = "",
    failed: Sequence[str] = (),
    secret: tuple[str, str] | None = None,
) -> Response:
    """Return the page that says what an act did. `failed`: what it did not do, and why. `secret`: an access key's id
    and secret, which are shown once.
    """
    return render(
        request, "done.html", title=title, facts=facts, repository=repository, back=back, failed=failed, secret=secret
    )
