"""The key-value store: one interface (`base`), and a driver for each URL scheme, imported when its URL is first opened.

    sqlite:///absolute/path.db         sqlite:relative/path.db      one file, any number of processes on one machine
    redis://user:password@host:6379/0  rediss://…                   one Redis or Valkey; rediss is TLS
    redis+sentinel://user:password@sentinel1:26379,sentinel2:26379/master-name/0                 rediss+sentinel://…
    redis+cluster://user:password@node1:7000,node2:7000                                          rediss+cluster://…
    memory://name                                                   this process only; memory: is a new one each time

`open_kv` wraps every driver in `Retrying`: what a driver leaves undecided (`KVUnavailable`), that recognises or does again.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final, cast

from refstore.clock import Clock, SystemClock
from refstore.errors import InvalidSettings, MissingExtra
from refstore.kv.base import KV
from refstore.kv.retrying import ATTEMPTS, Retrying

Factory = Callable[[str, Clock], KV]
"""What a driver's module offers: (url, clock) -> KV. It connects at first use, not before."""

_DRIVERS: Final = {
    "memory": "refstore.kv.memory:open_memory",
    "sqlite": "refstore.kv.sqlite:open_sqlite",
    "redis": "refstore.kv.redis:open_redis",
    "rediss": "refstore.kv.redis:open_redis",
    "redis+sentinel": "refstore.kv.redis:open_redis",
    "rediss+sentinel": "refstore.kv.redis:open_redis",
    "redis+cluster": "refstore.kv.redis:open_redis",
    "rediss+cluster": "refstore.kv.redis:open_redis",
}

_EXTRAS: Final = {"redis": "redis"}
"""Imported package -> the extra that brings it."""


def open_kv(
    url: str,
    *,
    clock: Clock | None = None,
    check: Callable[[], None] | None = None,
    attempts: int = ATTEMPTS,
) -> KV:
    """The KV at `url`, retrying what is safe to retry. Raises InvalidSettings, MissingExtra.

    `check` is called before each attempt; the SDK passes one that raises DeadlineExceeded.
    """
    clock = clock or SystemClock()
    return Retrying(_factory(url)(url, clock), attempts=attempts, clock=clock, check=check)


def redact(url: str) -> str:
    """`url` as it may be shown and logged: without the user's password and without secrets in the query.

    When in doubt it hides too much: a password with an unescaped `/`, `?` or `@` in it is still a password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme in ("sqlite", "memory"):
        return url
    address, question, query = rest.partition("?")
    userinfo, at, hosts = address.rpartition("@")
    if not at and "@" in query:  # the password had a ? in it
        return f"{scheme}://***@{rest.rpartition('@')[2]}"
    if at:
        user, colon, _ = userinfo.partition(":")
        address = f"{user}:***@{hosts}" if colon else f"***@{hosts}"
    options = [
        f"{name}=***" if "password" in name.lower() or "secret" in name.lower() else option
        for option in query.split("&")
        for name in (option.partition("=")[0],)
    ]
    return f"{scheme}://{address}{question}{'&'.join(options)}"


def _factory(url: str) -> Factory:
    scheme = url.partition(":")[0].lower()
    if scheme not in _DRIVERS:
        raise InvalidSettings(
            f"{redact(url)[:200]!r} is not a KV URL; it starts with one of: {', '.join(f'{known}:' for known in _DRIVERS)}"
        )
    module, _, name = _DRIVERS[scheme].partition(":")
    try:
        return cast(Factory, getattr(import_module(module), name))
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise MissingExtra(extra, f"a {scheme}:// KV") from error
