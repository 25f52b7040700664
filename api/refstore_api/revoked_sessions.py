"""Keep the sessions that were ended before their token expired, so that no process accepts the token any more.

Each has one small key in the KV until then. Only tokens of logins are looked up there, together with their access key
and as seldom as that: a process knows a caller for `auth.KEY_SECONDS`. So a session ends in other processes within that
time, and in the one that ended it at once.
"""

from __future__ import annotations

from typing import Final

from refstore.core.clock import Clock
from refstore.kv.base import KV, Key
from refstore.records import keys

_DIGITS: Final = 12
"""Of a name's time, so that names sort by it."""


def revocation_key(token_id: str, expires_seconds: int) -> Key:
    """Return the key that says that the session with this token has ended."""
    return Key(keys.ENDED_SESSIONS, f"{expires_seconds:0{_DIGITS}d}/{token_id}")


def revoke_session(kv: KV, clock: Clock, token_id: str, expires_seconds: int) -> None:
    """End a session. Remove the keys of the sessions whose tokens have expired."""
    kv.set(revocation_key(token_id, expires_seconds), b"")
    now_seconds = clock.now_ms() // 1000
    kv.delete_range(keys.ENDED_SESSIONS, f"{0:0{_DIGITS}d}/", f"{now_seconds:0{_DIGITS}d}/")
