"""Parse a Redis URL: servers, user and password, timeouts. Pure: nothing is opened here.

    redis://user:password@host:6379/0?options                       rediss:// is the same over TLS
    redis+sentinel://user:password@s1:26379,s2:26379/master/0       the hosts are Sentinels; user and password are the
                                                                    server's
    redis+cluster://user:password@n1:7000,n2:7000                   some of the nodes, which name the others

User and password are percent-encoded where they contain `@ : / ? # %`. The options:

    timeout=10s                     for one reply; a call that takes longer has an unknown outcome. Half of it, at most
                                    5 s, to connect; half of it for the replicas of `wait`
    wait=0                          replicas that must confirm each write (WAIT) before it counts as done
    prefix=refstore                 the prefix of every key: `refstore:{partition}`
    sentinel_credentials=user:password    of the Sentinels, where they ask for them; `:password` without a user
    certificates=FILE               of rediss://: a PEM file with the authorities to trust instead of the system's; if
                                    it has a private key, first the certificate that this client shows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec

from refstore.core.durations import parse_duration
from refstore.errors import InvalidSettings

SCHEMES: Final = ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
_TIMEOUT_MOST: Final = 3600.0
_CONNECT_SECONDS_MOST: Final = 5.0


class _Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a URL, as the module says them."""

    timeout: str = "10s"
    wait: Annotated[int, msgspec.Meta(ge=0, le=99)] = 0
    prefix: str = "refstore"
    sentinel_credentials: str = ""
    certificates: str = ""


OPTIONS: Final = _Options.__struct_fields__


class ServerAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    kind: str
    """single, sentinel or cluster."""
    addresses: tuple[ServerAddress, ...]
    master: str
    """The name by which the Sentinels know the master."""
    db: int
    username: str | None
    password: str | None
    sentinel_username: str | None
    sentinel_password: str | None
    tls: bool
    certificates: str
    timeout_seconds: float
    wait_replicas: int
    prefix: str

    @property
    def connect_seconds(self) -> float:
        """How long connecting may take."""
        return min(self.timeout_seconds / 2, _CONNECT_SECONDS_MOST)

    @property
    def wait_seconds(self) -> float:
        """How long replicas may take to confirm: less than a reply may, or the connection would time out first."""
        return self.timeout_seconds / 2

    def __str__(self) -> str:
        """Return the URL for messages, without secrets."""
        scheme = "rediss" if self.tls else "redis"
        kind = "" if self.kind == "single" else f"+{self.kind}"
        master = f"/{self.master}" if self.master else ""
        return f"{scheme}{kind}://{','.join(map(str, self.addresses))}{master}" + (f"/{self.db}" if self.db else "")


def parse_redis_url(url: str) -> RedisSettings:
    """Parse a Redis URL. Raises InvalidSettings; no message contains a password."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    if scheme not in SCHEMES:
        raise InvalidSettings(f"a Redis URL starts with one of: {', '.join(f'{known}://' for known in SCHEMES)}")
    tls = scheme.startswith("rediss")
    kind = scheme.partition("+")[2] or "single"
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    userinfo, _, hosts = authority.rpartition("@")
    if "@" in path or "@" in query:
        raise InvalidSettings(
            f"the {scheme}:// URL has an '@' after its hosts; in a password write '/' as %2F, '?' as %3F, '@' as %40"
        )
    user, _, password = userinfo.partition(":")
    addresses = tuple(_parse_address(scheme, text, 26379 if kind == "sentinel" else 6379) for text in hosts.split(","))
    if kind == "single" and len(addresses) != 1:
        raise InvalidSettings(
            f"{scheme}:// names one host; for several use {scheme}+sentinel:// or {scheme}+cluster://"
        )
    master, db = _parse_path(scheme, kind, unquote(path).strip("/"))
    try:
        options = msgspec.convert(dict(parse_qsl(query, keep_blank_values=True)), _Options, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidSettings(
            f"the {scheme}:// URL has an option that is wrong ({error}); known are {', '.join(OPTIONS)}"
        ) from None
    sentinel_user, _, sentinel_password = options.sentinel_credentials.partition(":")
    settings = RedisSettings(
        kind=kind,
        addresses=addresses,
        master=master,
        db=db,
        username=unquote(user) or None,
        password=unquote(password) or None,
        sentinel_username=sentinel_user or None,
        sentinel_password=sentinel_password or None,
        tls=tls,
        certificates=options.certificates,
        timeout_seconds=parse_duration(
            f"timeout of the {scheme}:// URL", options.timeout, least=0.1, most=_TIMEOUT_MOST
        ),
        wait_replicas=options.wait,
        prefix=options.prefix,
    )
    if settings.certificates and not tls:
        raise InvalidSettings(f"certificates need a rediss:// URL; this one is {scheme}://")
    if options.sentinel_credentials and (kind != "sentinel" or not sentinel_password):
        raise InvalidSettings(
            "sentinel_credentials are user:password, or :password, of the Sentinels in a redis+sentinel:// URL"
        )
    if any(character in settings.prefix for character in "{}\0"):
        raise InvalidSettings("prefix must not contain '{', '}' or NUL: braces mark the part that decides a key's slot")
    return settings


def _parse_address(scheme: str, text: str, default_port: int) -> ServerAddress:
    """Parse `host`, `host:port`, `[v6]` or `[v6]:port`."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise InvalidSettings(
            f"the {scheme}:// URL names no host and port; write {scheme}://user:password@host:{default_port}"
        )
    return ServerAddress(unquote(host), int(port) if port else default_port)


def _parse_path(scheme: str, kind: str, path: str) -> tuple[str, int]:
    """Return (master name, database) from the path of the URL."""
    master, db = "", path
    if kind == "sentinel":
        master, _, db = path.partition("/")
        if not master:
            raise InvalidSettings(f"the {scheme}:// URL names no master; write {scheme}://host:26379/master-name")
    if db and not (db.isascii() and db.isdigit() and int(db) < 1_000_000):
        raise InvalidSettings(f"the {scheme}:// URL ends in {db[:40]!r}, which is not the number of a database")
    if kind == "cluster" and int(db or 0):
        raise InvalidSettings(f"a cluster has only database 0; use ?prefix=NAME to separate lakes in {scheme}://")
    return master, int(db or 0)
