"""The keys that sign the tokens of issued addresses and of API sessions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from refstore.errors import InvalidSettings

_SECRET_BYTES_MIN: Final = 32
"""RFC 7518, 3.2: a key of HS256 has at least the hash's size."""
_SETTING: Final = re.compile(r"([A-Za-z0-9_.-]{1,64}):(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SigningKey:
    kid: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < _SECRET_BYTES_MIN:
            raise InvalidSettings(
                f"signing_keys: the secret of {self.kid!r} has {len(self.secret)} bytes; it needs at least "
                f"{_SECRET_BYTES_MIN}: make one with python3 -c 'import secrets; print(secrets.token_hex(32))'"
            )


def parse_signing_key(number: int, text: str) -> SigningKey:
    """Read a setting's `kid:secret`, the `number`th of its list. Raises InvalidSettings."""
    match = _SETTING.fullmatch(text)
    if match is None:
        raise InvalidSettings(
            f"signing_keys: number {number} is not kid:secret, with an id of up to 64 letters, digits and '_ . -'"
        )
    return SigningKey(match[1], match[2].encode())
