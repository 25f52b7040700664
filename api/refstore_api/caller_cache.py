"""Cache the callers that were authenticated lately, so that not every request hashes a secret or reads a key.

The cache compares the parsed content of credentials, never the header's spelling, and bounds the entries of each key.
Otherwise the holder of one good token could spell it in thousands of ways, and push out everybody else.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from hashlib import blake2b
from typing import Final, NamedTuple

from refstore_http.principals import Principal

OWNERS_MAX: Final = 4096
"""Keys that sent secrets, plus keys that sent tokens."""
SECRETS_MAX: Final = 2
TOKENS_MAX: Final = 64
"""Cached tokens of one key. Beyond that, the oldest token is verified again when it comes."""


class SecretCredential(NamedTuple):
    """The credential of Basic auth, and of a login."""

    key_id: str
    secret: str


class TokenCredential(NamedTuple):
    text: str


Credential = SecretCredential | TokenCredential


class CachedCaller(NamedTuple):
    principal: Principal
    valid_until: float
    """By the monotonic clock: after that the key is read again."""


class _CacheOwner(NamedTuple):
    """One key's secrets, or its tokens. They are cached apart, so that tokens never push out the secret."""

    key_id: str
    kind: type[Credential]


class CallerCache:
    """Cache authenticated callers; used by one thread only. It keeps a keyed hash of each secret, never the secret."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._own = secrets.token_bytes(32)
        self._known: OrderedDict[_CacheOwner, OrderedDict[bytes, CachedCaller]] = OrderedDict()
        """The least recently used first."""
        self._owners: dict[bytes, _CacheOwner] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def count_owners(self) -> int:
        """Return how many keys have secrets here, plus how many have tokens."""
        return len(self._known)

    def get(self, credential: Credential) -> tuple[Principal | None, bool]:
        """Return the caller if the entry is still fresh, and whether the credential was right at its last check."""
        digest = self._digest(credential)
        owner = self._owners.get(digest)
        if owner is None:
            return None, False
        cached = self._known[owner][digest]
        return cached.principal if time.monotonic() < cached.valid_until else None, True

    def add(self, credential: Credential, principal: Principal) -> None:
        digest = self._digest(credential)
        owner = _CacheOwner(principal.key_id, type(credential))
        cached_callers = self._known.setdefault(owner, OrderedDict())
        cached_callers[digest] = CachedCaller(principal, time.monotonic() + self._seconds)
        self._owners[digest] = owner
        cached_callers.move_to_end(digest)
        self._known.move_to_end(owner)
        while len(cached_callers) > (SECRETS_MAX if owner.kind is SecretCredential else TOKENS_MAX):
            del self._owners[cached_callers.popitem(last=False)[0]]
        while len(self._known) > OWNERS_MAX:
            for digest in self._known.popitem(last=False)[1]:
                del self._owners[digest]

    def remove(self, credential: Credential) -> None:
        """Drop a credential that is no longer valid."""
        digest = self._digest(credential)
        owner = self._owners.pop(digest, None)
        if owner is not None:
            del self._known[owner][digest]
            if not self._known[owner]:
                del self._known[owner]

    def _digest(self, credential: Credential) -> bytes:
        text = (
            f"{len(credential.key_id)}:{credential.key_id}{credential.secret}"
            if isinstance(credential, SecretCredential)
            else credential.text
        )
        kind = b"secret" if isinstance(credential, SecretCredential) else b"token"
        return blake2b(text.encode(errors="surrogatepass"), key=self._own, person=kind).digest()
