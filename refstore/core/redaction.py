"""URLs as messages, logs and tables may show them.

It hides too much rather than too little: a password may hold an unescaped `/`, `?` or `@`, and a message that names one
host less is better than one that shows half a password. Its time is linear: callers choose some of these texts.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"

# the look-behind and the possessive `*+` let each run of characters be read once
_URL: Final = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]++://\S+")
_PARTS: Final = re.compile(r"([/?#&])")
_PARAMETERS: Final = re.compile(r"([&#])")
_LOGIN_BEGINS: Final = re.compile(r"%2F%2F", re.IGNORECASE)
_SECRET_NAME: Final = re.compile(r"password|passwd|secret|token|credential|signature|key", re.IGNORECASE)


def redact_url(url: str) -> str:
    """Hide a URL's password, a login without a password, the key id of an S3 URL, and parameters that sound secret."""
    scheme, separator, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    if separator and at and (colon or "/" not in login):
        shown_user = f"{user}:" if colon and (scheme != "s3" or "/" in login) else ""
        rest = f"{shown_user}{HIDDEN}@{place}"
    shown = "".join(map(_hide_encoded_login, _PARTS.split(scheme + separator + rest)))
    pieces = _PARAMETERS.split(shown)
    return _hide_secret(pieces[0], is_parameter=False) + "".join(
        delimiter + _hide_secret(piece, is_parameter=delimiter == "&")
        for delimiter, piece in zip(pieces[1::2], pieces[2::2], strict=True)
    )


def redact_text(text: str) -> str:
    """Redact every URL in a text."""
    return _URL.sub(lambda match: redact_url(match[0]), text) if "://" in text else text


def _hide_encoded_login(part: str) -> str:
    """Hide the login of a URL that is a parameter of another one. `part`: without any of `/?#&`."""
    begins, end = _LOGIN_BEGINS.search(part), part.rfind("%40")
    if begins is None or end < begins.end():
        return part
    return f"{part[: begins.start()]}%2F%2F{HIDDEN}{part[end:]}"


def _hide_secret(piece: str, *, is_parameter: bool) -> str:
    """Hide the value of a parameter whose name sounds secret. `piece`: without any of `&#`; a parameter, or what may
    end with one after a `?`.
    """
    end = 0
    while (equals := piece.find("=", end)) >= 0:
        _, question, name = piece[end:equals].partition("?")
        if is_parameter and not end:
            question, name = "&", piece[:equals]
        if question and _SECRET_NAME.search(name):
            return f"{piece[: equals + 1]}{HIDDEN}"
        end = equals + 1
    return piece
