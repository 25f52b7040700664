"""Read what a form sent, after its sender was authenticated; make the page that asks before an act, and the page that
says what an act did.

The form of a page that asks has a proof that it was shown in this session, for these very inputs. Without it nothing is
done: whoever sends a form by hand has not seen what it would do.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec
from fastapi import Request
from starlette.responses import Response

from refstore.errors import Conflict, Invalid
from refstore_api.json_bodies import receive_body
from refstore_api.ui.sessions import UserSession
from refstore_http.http_errors import Forbidden
from refstore_http.request_bodies import parse_in_turn

PROOF: Final = "form_token"
FIELDS_MAX: Final = 2000
BYTES_MAX: Final = 64 << 10
"""The largest form, unless its page needs more."""
_TYPE: Final = "application/x-www-form-urlencoded"
_ENCODED: Final = re.compile(rb"(?:%[0-9A-Fa-f]{2})+")


class FormFields:
    """The fields of a form."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """Return a field, without spaces around it; '' if it was not sent."""
        return self.raw(name).strip()

    def raw(self, name: str) -> str:
        return self._fields.get(name, [""])[0]

    def texts(self, name: str) -> list[str]:
        """Return every value of a field."""
        return self._fields.get(name, [])

    def is_checked(self, name: str) -> bool:
        return name in self._fields

    def number(self, name: str) -> int:
        """Return a whole number. Raises Invalid."""
        try:
            return int(self.text(name).replace(",", ""))
        except ValueError:
            raise Invalid(f"{self.text(name)[:40]!r} is not a whole number; go back, and correct it") from None


async def read_form(session: UserSession, bytes_max: int = BYTES_MAX) -> FormFields:
    """Return the form of a session. Raises Forbidden (not a form of this session), Invalid, BodyTooLarge."""
    form = await read_fields(session.request, bytes_max)
    if not hmac.compare_digest(form.raw(PROOF).encode(), session.form_token.encode()):
        raise Forbidden("this form belongs to another session, or to none; load the page again, and send its own form")
    return form


async def read_fields(request: Request, bytes_max: int) -> FormFields:
    """Read a form that may not be larger. Raises Invalid, BodyTooLarge."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        raise Invalid(f"the form was not sent as {_TYPE}; use the page's own form")
    body = await receive_body(request, bytes_max)
    return await parse_in_turn(request, body, lambda: _parse(body))


def _parse(body: bytes) -> FormFields:
    fields: dict[str, list[str]] = {}
    try:
        if not body.isascii() or body.count(b"&") >= FIELDS_MAX:
            raise ValueError
        for pair in body.split(b"&"):
            if pair:
                name, _, value = pair.partition(b"=")
                fields.setdefault(_decode(name), []).append(_decode(value))
    except ValueError:  # not ASCII, not UTF-8 after decoding, or too many fields
        raise Invalid("the form cannot be read; use the page's own form, and choose less at a time") from None
    return FormFields(fields)


def _decode(text: bytes) -> str:
    """Decode a name or a value. (urllib makes several objects for each `%`, and so hundreds of bytes.)"""
    return _ENCODED.sub(
        lambda run: bytes.fromhex(run[0].replace(b"%", b"").decode()), text.replace(b"+", b" ")
    ).decode()


PROOF_FIELD = "confirmed"
"""The field that the form of the page that asks has, and no other form; `make_proof` makes its value."""
SHOWN_DIGEST: Final = "shown"
"""The field with the digest of what the page that asks showed."""
_PROOF_PREFIX: Final = b"refstore: shown in this session"


class ConfirmationField(NamedTuple):
    """What a person may choose on the page that asks."""

    kind: Literal["checkbox", "number", "text", "select"]
    name: str
    label: str
    help: str = ""
    value: str = ""
    options: Sequence[tuple[str, str]] = ()
    """Of a `select`: values and labels."""


class Confirmation(NamedTuple):
    """An act, the numbers of its dry run, and what may be chosen."""

    title: str
    lead: str
    """What the act will do."""
    button: str
    facts: Sequence[tuple[str, str]] = ()
    """Names and values."""
    columns: Sequence[str] = ()
    items: Sequence[Sequence[str]] = ()
    """What the act is about, each with a value for each of the columns."""
    warnings: Sequence[str] = ()
    fields: Sequence[ConfirmationField] = ()
    hidden_fields: Mapping[str, str | Sequence[str]] = {}
    """What the form sends besides."""
    is_danger: bool = True
    cancel: str = ""
    """Where to go instead, below `/ui`."""
    is_allowed: bool = True
    """False: the dry run says that the act would do nothing, so there is no button."""

    def ask(self, session: UserSession) -> Response:
        """Return the page that asks. Its form posts to the same address."""
        hidden = [
            (name, one) for name, of in self.hidden_fields.items() for one in ([of] if isinstance(of, str) else of)
        ]
        hidden.append((PROOF_FIELD, make_proof(session, self.hidden_fields)))
        return session.render("question.html", question=self, hidden=hidden)


async def read_answer(session: UserSession, inputs: Iterable[str] = ()) -> FormFields:
    """Return the form of the page that asks at this address. Raises Conflict if that page was not shown for these
    inputs, and what `read_form` raises.
    """
    form = await read_form(session)
    if not is_answer(session, form, inputs):
        raise Conflict("this form was sent without the page that shows what it does; open that page, and answer it")
    return form


def is_answer(session: UserSession, form: FormFields, inputs: Iterable[str]) -> bool:
    """Return whether the form is the answer to a page that was shown for these inputs."""
    proof = make_proof(session, {name: form.texts(name) for name in inputs})
    return hmac.compare_digest(form.raw(PROOF_FIELD).encode(), proof.encode())


def make_digest(shown: object) -> str:
    """Return a digest of what a page shows of an act. Its form sends it back (`SHOWN_DIGEST`), to be compared."""
    return hashlib.sha256(msgspec.json.encode(shown)).hexdigest()


def check_shown(form: FormFields, shown: object) -> None:
    """Raise Conflict if the act is not any more what the page showed."""
    if form.raw(SHOWN_DIGEST) != make_digest(shown):
        raise Conflict("what this page showed has changed since, and nothing was done; open it again, and look")


def make_proof(session: UserSession, inputs: Mapping[str, str | Sequence[str]]) -> str:
    """Return the proof that a page was shown for these inputs at this address."""
    shown = [session.request.url.path, sorted((name, _normalize_values(values)) for name, values in inputs.items())]
    return hmac.digest(session.form_token.encode(), _PROOF_PREFIX + msgspec.json.encode(shown), "sha256").hex()


def _normalize_values(values: str | Sequence[str]) -> list[str]:
    """Return the values as they come back: browsers send line ends as CRLF."""
    return [value.replace("\r\n", "\n") for value in ([values] if isinstance(values, str) else values)]


def show_result(
    session: UserSession,
    title: str,
    facts: Sequence[tuple[str, str]],
    *,
    back: str = "",
    failed: Sequence[str] = (),
    secret: tuple[str, str] | None = None,
) -> Response:
    """Return the page that says what an act did. `failed`: what it did not do, and why. `secret`: an access key's id
    and secret, which are shown once.
    """
    return session.render("done.html", title=title, facts=facts, back=back, failed=failed, secret=secret)
