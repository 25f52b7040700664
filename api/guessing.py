"""Wrong secrets are counted, and whoever sends too many of them waits: in memory, for each process, in a bounded table.

Counted is for the access key and the address that the secrets come from, together: so a key that somebody guesses at, or a job with an
old secret, holds up neither other keys nor that key's other users; and whoever was let in with the very same credentials before is
not asked to wait at all (`auth.py`). Behind a proxy all come from one address, so there it is for the key. An address that sends wrong
secrets for ever more keys hears the same, but only of secrets that are wrong: it may be a proxy's, and the right ones of others come
from there.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections import OrderedDict
from functools import lru_cache
from hashlib import blake2b
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

from api.errors import TooManyGuesses
from refstore.clock import Clock

WINDOW_SECONDS: Final = 60.0
ADDRESS_TIMES: Final = 10
"""How many more wrong secrets an address may send than one key from it: it may be many callers'."""
KNOWN_MAX: Final = 8192
"""Some 2 MB. The longest quiet are forgotten first: who fills the table with other keys to be forgotten sends as many wrong secrets, and is
slowed by their number."""
_OWN_BYTES: Final = 32
_PREFIX_BYTES: Final = 8
"""A site gets 2**64 addresses of IPv6, and may use each once."""


class Caller(NamedTuple):
    """Who presents a secret: as far as it can be told before the secret is known to be right."""

    key_id: str
    address: str


class Guesses:
    """May be asked from any thread."""

    def __init__(self, clock: Clock, wrong_max: int) -> None:
        """`wrong_max`: 0 counts nothing."""
        self._clock = clock
        self._wrong_max = wrong_max
        self._own = secrets.token_bytes(_OWN_BYTES)
        self._lock = threading.Lock()
        self._wrong: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        """When the minute began, and how many since. By digest, so that nobody makes the table large by long names."""

    def check(self, caller: Caller) -> None:
        """Before the secret is looked at. Raises TooManyGuesses."""
        with self._lock:
            left = self._left_seconds(self._pair(caller), self._wrong_max)
        if left:
            raise _too_many(f"too many wrong secrets for access key {caller.key_id[:80]!r} came from here", left)

    def wrong(self, caller: Caller) -> None:
        """The secret was wrong. Raises TooManyGuesses where so many were that the answer is not worth more than the next one's."""
        if not self._wrong_max:
            return
        with self._lock:
            self._count(self._pair(caller))
            address = self._site(caller)
            left = self._left_seconds(address, self._wrong_max * ADDRESS_TIMES)
            self._count(address)
        if left:
            raise _too_many("no such access key, or not its secret; and too many wrong ones came from here", left)

    def __len__(self) -> int:
        return len(self._wrong)

    def _left_seconds(self, name: bytes, wrong_max: int) -> float:
        """How long it is to wait; 0: not at all."""
        since, count = self._wrong.get(name, (0.0, 0))
        return max(0.0, since + WINDOW_SECONDS - self._clock.monotonic_seconds()) if 0 < wrong_max <= count else 0.0

    def _count(self, name: bytes) -> None:
        now = self._clock.monotonic_seconds()
        since, count = self._wrong.get(name, (now, 0))
        self._wrong[name] = (now, 1) if now >= since + WINDOW_SECONDS else (since, count + 1)
        self._wrong.move_to_end(name)
        if len(self._wrong) > KNOWN_MAX:
            self._wrong.popitem(last=False)

    def _pair(self, caller: Caller) -> bytes:
        return self._digest(b"key", site_of(caller.address) + b"\0" + caller.key_id.encode(errors="surrogatepass"))

    def _site(self, caller: Caller) -> bytes:
        return self._digest(b"address", site_of(caller.address))

    def _digest(self, kind: bytes, name: bytes) -> bytes:
        return blake2b(name, key=self._own, person=kind, digest_size=16).digest()


@lru_cache(maxsize=4096)
def site_of(address: str) -> bytes:
    """What counts as one address: an IPv4 one, however it is written, or an IPv6 network of 64 bits."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:  # a socket of this machine, or a test
        return address.encode(errors="surrogatepass")
    if isinstance(found, IPv6Address):
        return found.ipv4_mapped.packed if found.ipv4_mapped is not None else found.packed[:_PREFIX_BYTES]
    return found.packed


def _too_many(what: str, left_seconds: float) -> TooManyGuesses:
    seconds = math.ceil(left_seconds)
    return TooManyGuesses(f"{what}; correct the secret, and try again after {seconds} s", seconds)
