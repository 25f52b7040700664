"""Count wrong secrets, and make a caller wait who sends too many. Each process counts in memory, in a bounded table.

The count is per access key and client address together. So guesses at a key, or a job with an old secret, delay neither
other keys nor that key's other users. A caller whose same credentials were right before does not wait (`auth.py`).
Behind a proxy all requests come from one address, so the count there is per key.

An address that sends wrong secrets for ever more keys is refused, too, but only when its secret is wrong. It may be a
proxy's, and other clients' right secrets come from there.
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

from refstore.core.clock import Clock
from refstore_http.http_errors import TooManyWrongSecrets

WINDOW_SECONDS: Final = 60.0
WRONG_SECRETS_MAX: Final = 10
"""How many wrong secrets for one access key one address may send in a minute before further ones must wait. People
mistype a few; guesses of a secret need more by far.
"""
ADDRESS_TIMES: Final = 10
"""How many more wrong secrets an address may send than one key from it, because it may serve many callers."""
KNOWN_MAX: Final = 8192
"""Some 2 MB. The entry that was quiet for longest is dropped first. Whoever fills the table to be forgotten sends that
many wrong secrets, and is slowed down by their number.
"""
_OWN_BYTES: Final = 32
_PREFIX_BYTES: Final = 8
"""An IPv6 site has 2**64 addresses, and could use each once."""


class LoginCaller(NamedTuple):
    """Who presents a secret, as far as that is known before the secret is verified."""

    key_id: str
    address: str


class LoginThrottle:
    """Count wrong secrets; safe for several threads."""

    def __init__(self, clock: Clock, wrong_max: int) -> None:
        """`wrong_max`: how many wrong secrets are allowed; 0: any number."""
        self._clock = clock
        self._wrong_max = wrong_max
        self._own = secrets.token_bytes(_OWN_BYTES)
        self._lock = threading.Lock()
        self._wrong: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        """When the minute began, and the wrong secrets since. The key is a digest, so that long names take no
        memory.
        """

    def check(self, caller: LoginCaller) -> None:
        """Check that the caller may try a secret now. Raises TooManyWrongSecrets."""
        with self._lock:
            left = self._wait_seconds(self._pair(caller), self._wrong_max)
        if left:
            raise _too_many_error(f"too many wrong secrets for access key {caller.key_id[:80]!r} came from here", left)

    def record_wrong_secret(self, caller: LoginCaller) -> None:
        """Count a wrong secret. Raises TooManyWrongSecrets if the address has sent too many."""
        if not self._wrong_max:
            return
        with self._lock:
            self._count(self._pair(caller))
            address = self._site(caller)
            left = self._wait_seconds(address, self._wrong_max * ADDRESS_TIMES)
            self._count(address)
        if left:
            raise _too_many_error(
                "no such access key, or not its secret; and too many wrong secrets came from here", left
            )

    def __len__(self) -> int:
        return len(self._wrong)

    def _wait_seconds(self, name: bytes, wrong_max: int) -> float:
        """Return how many seconds the caller must wait; 0: none."""
        since, count = self._wrong.get(name, (0.0, 0))
        return max(0.0, since + WINDOW_SECONDS - self._clock.monotonic_seconds()) if 0 < wrong_max <= count else 0.0

    def _count(self, name: bytes) -> None:
        now = self._clock.monotonic_seconds()
        since, count = self._wrong.get(name, (now, 0))
        self._wrong[name] = (now, 1) if now >= since + WINDOW_SECONDS else (since, count + 1)
        self._wrong.move_to_end(name)
        if len(self._wrong) > KNOWN_MAX:
            self._wrong.popitem(last=False)

    def _pair(self, caller: LoginCaller) -> bytes:
        return self._digest(b"key", site_of(caller.address) + b"\0" + caller.key_id.encode(errors="surrogatepass"))

    def _site(self, caller: LoginCaller) -> bytes:
        return self._digest(b"address", site_of(caller.address))

    def _digest(self, kind: bytes, name: bytes) -> bytes:
        return blake2b(name, key=self._own, person=kind, digest_size=16).digest()


@lru_cache(maxsize=4096)
def site_of(address: str) -> bytes:
    """Return what counts as one address: an IPv4 address, however written, or an IPv6 network of 64 bits."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:  # a Unix socket, or a test
        return address.encode(errors="surrogatepass")
    if isinstance(parsed, IPv6Address):
        return parsed.ipv4_mapped.packed if parsed.ipv4_mapped is not None else parsed.packed[:_PREFIX_BYTES]
    return parsed.packed


def _too_many_error(what: str, left_seconds: float) -> TooManyWrongSecrets:
    seconds = math.ceil(left_seconds)
    return TooManyWrongSecrets(f"{what}; correct the secret, and try again after {seconds} s", seconds)
