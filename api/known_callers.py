"""Who was let in lately, by what they proved it with: so that not every request hashes a secret or reads a key.

Credentials are known by their parsed content, never by how a header spells it, and no key has more than its share of the table: else
whoever holds one good token could spell it in thousands of ways, and push out everybody else.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from api.auth import Principal

OWNERS_MAX: Final = 4096
"""Keys that sent their secrets, and keys that sent tokens, together."""
SECRETS_MAX: Final = 2
TOKENS_MAX: Final = 64
"""Of one key: those of as many logins. With more, the oldest are looked at anew, and are no worse off."""


class Secret(NamedTuple):
    """What Basic auth sends, and a login."""

    key_id: str
    secret: str


class Token(NamedTuple):
    text: str


Credential = Secret | Token


class Known(NamedTuple):
    principal: Principal
    until: float
    """By the monotonic clock: then its key is read again."""


class _Owner(NamedTuple):
    """A key's secrets, or its tokens: apart, so that tokens never push out the secret."""

    key_id: str
    kind: type[Credential]


class KnownCallers:
    """Not for several threads. No secret is kept, only a keyed hash of it, with a key of this process."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._own = secrets.token_bytes(32)
        self._known: OrderedDict[_Owner, OrderedDict[bytes, Known]] = OrderedDict()
        """The ones that were quiet for longest first."""
        self._owners: dict[bytes, _Owner] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def get(self, credential: Credential) -> tuple[Principal | None, bool]:
        """Who it is, if that was looked up lately enough to be believed; and whether it was right when it was looked up last."""
        digest = self._digest(credential)
        owner = self._owners.get(digest)
        if owner is None:
            return None, False
        found = self._known[owner][digest]
        return found.principal if time.monotonic() < found.until else None, True

    def add(self, credential: Credential, principal: Principal) -> None:
        digest = self._digest(credential)
        owner = _Owner(principal.key_id, type(credential))
        known = self._known.setdefault(owner, OrderedDict())
        known[digest] = Known(principal, time.monotonic() + self._seconds)
        self._owners[digest] = owner
        known.move_to_end(digest)
        self._known.move_to_end(owner)
        while len(known) > (SECRETS_MAX if owner.kind is Secret else TOKENS_MAX):
            del self._owners[known.popitem(last=False)[0]]
        while len(self._known) > OWNERS_MAX:
            for digest in self._known.popitem(last=False)[1]:
                del self._owners[digest]

    def forget(self, credential: Credential) -> None:
        """It is not right any more."""
        digest = self._digest(credential)
        owner = self._owners.pop(digest, None)
        if owner is not None:
            del self._known[owner][digest]
            if not self._known[owner]:
                del self._known[owner]

    def _digest(self, credential: Credential) -> bytes:
        text = f"{len(credential.key_id)}:{credential.key_id}{credential.secret}" if isinstance(credential, Secret) else credential.text
        kind = b"secret" if isinstance(credential, Secret) else b"token"
        return blake2b(text.encode(errors="surrogatepass"), key=self._own, person=kind).digest()
