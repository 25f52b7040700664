"""URLs as messages, logs and tables may show them.

It hides too much rather than too little: a password may hold an unescaped `/`, `?` or `@`, and a message that names one
host less is better than one that shows half a password.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"

_URL: Final = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://\S+")
_ENCODED_LOGIN: Final = re.compile(r"%2F%2F[^/?#&]*%40", re.IGNORECASE)
"""The login of a URL that is a parameter of another one."""
_SECRET_PARAMETER: Final = re.compile(
    r"([?&][^=&#]*(?:password|passwd|secret|token|credential|signature|key)[^=&#]*=)[^&#]*", re.IGNORECASE
)


def redact_url(url: str) -> str:
    """Hide a URL's password, a login without a password, the key id of an S3 URL, and parameters that sound secret."""
    scheme, separator, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    if separator and at and (colon or "/" not in login):
        shown_user = f"{user}:" if colon and (scheme != "s3" or "/" in login) else ""
        rest = f"{shown_user}{HIDDEN}@{place}"
    shown = _ENCODED_LOGIN.sub(f"%2F%2F{HIDDEN}%40", scheme + separator + rest)
    return _SECRET_PARAMETER.sub(rf"\g<1>{HIDDEN}", shown)


def redact_text(text: str) -> str:
    """Redact every URL in a text."""
    return _URL.sub(lambda match: redact_url(match[0]), text) if "://" in text else text
