"""Read what a form sent, after its sender was authenticated."""

from __future__ import annotations

import hmac
import re
from typing import Final

from fastapi import Request

from refstore.errors import Invalid
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
