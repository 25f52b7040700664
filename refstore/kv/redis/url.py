"""Parse a Redis URL: servers, user and password, timeouts. Pure: nothing is opened here.

    redis://user:password@host:6379/0?options                       rediss:// is the same over TLS
    redis+sentinel://user:password@s1:26379,s2:26379/master/0       the hosts are Sentinels; user and password are the
                                                                    server's
    redis+cluster://user:password@n1:7000,n2:7000                   some of the nodes, which name the others

User and password are percent-encoded where they contain `@ : / ? # %`. Options have redis-py's names where it has the
option:

    socket_timeout=10               seconds for one reply; a call that takes longer has an unknown outcome
    socket_connect_timeout=5        seconds to connect
    wait=0                          replicas that must confirm each write (WAIT) before it counts as done
    wait_timeout=5                  seconds to wait for them; less than socket_timeout
    prefix=refstore                 the prefix of every key: `refstore:{partition}`
    sentinel_username, sentinel_password
    ssl_ca_certs, ssl_certfile, ssl_keyfile, ssl_check_hostname=true, ssl_cert_reqs=required
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec

from refstore.errors import InvalidSettings

SCHEMES: Final = ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class _Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a URL, as the module says them."""

    socket_timeout: _Seconds = 10.0
    socket_connect_timeout: _Seconds = 5.0
    wait: Annotated[int, msgspec.Meta(ge=0, le=99)] = 0
    wait_timeout: _Seconds = 5.0
    prefix: str = "refstore"
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    ssl_ca_certs: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_check_hostname: bool | None = None
    ssl_cert_reqs: Literal["required", "optional", "none"] | None = None


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
    tls_options: Mapping[str, str | bool]
    socket_timeout_seconds: float
    socket_connect_timeout_seconds: float
    wait_replicas: int
    wait_timeout_seconds: float
    prefix: str

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
            f"the {scheme}:// URL has an option that is wrong ({error}); known are "
            f"{', '.join(_Options.__struct_fields__)}"
        ) from None
    settings = RedisSettings(
        kind=kind,
        addresses=addresses,
        master=master,
        db=db,
        username=unquote(user) or None,
        password=unquote(password) or None,
        sentinel_username=options.sentinel_username,
        sentinel_password=options.sentinel_password,
        tls=tls,
        tls_options={
            name: value
            for name, value in msgspec.structs.asdict(options).items()
            if name.startswith("ssl_") and value is not None
        },
        socket_timeout_seconds=options.socket_timeout,
        socket_connect_timeout_seconds=options.socket_connect_timeout,
        wait_replicas=options.wait,
        wait_timeout_seconds=options.wait_timeout,
        prefix=options.prefix,
    )
    if not tls and settings.tls_options:
        raise InvalidSettings(f"ssl_… options need a rediss:// URL; this one is {scheme}://")
    if any(character in settings.prefix for character in "{}\0"):
        raise InvalidSettings("prefix must not contain '{', '}' or NUL: braces mark the part that decides a key's slot")
    if settings.wait_replicas and not settings.wait_timeout_seconds < settings.socket_timeout_seconds:
        raise InvalidSettings(
            "wait_timeout must be less than socket_timeout; otherwise the connection times out before the replicas do"
        )
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
