"""What of a URL may be shown: in messages, logs and tables.

It hides too much rather than too little: a password may hold an unescaped `/`, `?` or `@`, and a message that names one
host less is better than one that shows half a password.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"

_URL: Final = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://\S+")
_SECRET_PARAMETER: Final = re.compile(
    r"([?&][^=&#]*(?:password|passwd|secret|token|credential|signature|key)[^=&#]*=)[^&#]*", re.IGNORECASE
)


def redact_url(url: str) -> str:
    """The URL without its password and without the values of parameters that sound secret."""
    scheme, separator, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    if separator and at and colon:
        rest = f"{user}:{HIDDEN}@{place}"
    return _SECRET_PARAMETER.sub(rf"\g<1>{HIDDEN}", scheme + separator + rest)


def redact_text(text: str) -> str:
    """Free text with every URL in it redacted."""
    return _URL.sub(lambda match: redact_url(match[0]), text) if "://" in text else text
