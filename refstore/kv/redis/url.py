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

from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from refstore.errors import InvalidSettings

SCHEMES: Final = ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
_TLS_TEXTS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_OPTIONS: Final = (
    "socket_timeout", "socket_connect_timeout", "wait", "wait_timeout", "prefix", "sentinel_username",
    "sentinel_password",
    *_TLS_TEXTS, "ssl_check_hostname", "ssl_cert_reqs",
)  # fmt: skip
_SECONDS_MAX: Final = 3600.0


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
    master: str = ""
    """The name by which the Sentinels know the master."""
    db: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    tls: bool = False
    tls_options: tuple[tuple[str, str | bool], ...] = ()
    socket_timeout_seconds: float = 10.0
    socket_connect_timeout_seconds: float = 5.0
    wait_replicas: int = 0
    wait_timeout_seconds: float = 5.0
    prefix: str = "refstore"

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
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown:
        raise InvalidSettings(
            f"the {scheme}:// URL has unknown options: {', '.join(unknown)}; known are {', '.join(_OPTIONS)}"
        )
    settings = RedisSettings(
        kind=kind,
        addresses=addresses,
        master=master,
        db=db,
        username=unquote(user) or None,
        password=unquote(password) or None,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        tls=tls,
        tls_options=_parse_tls_options(scheme, options),
        socket_timeout_seconds=_parse_seconds(options, "socket_timeout", 10.0),
        socket_connect_timeout_seconds=_parse_seconds(options, "socket_connect_timeout", 5.0),
        wait_replicas=_parse_count(options, "wait"),
        wait_timeout_seconds=_parse_seconds(options, "wait_timeout", 5.0),
        prefix=options.get("prefix", "refstore"),
    )
    if not tls and settings.tls_options:
        raise InvalidSettings(f"ssl_… options need a rediss:// URL; this one is {scheme}://")
    if any(character in settings.prefix for character in "{}\0"):
        raise InvalidSettings("prefix must not contain '{', '}' or NUL: braces mark the part that decides a key's slot")
    if settings.wait_replicas and settings.wait_timeout_seconds >= settings.socket_timeout_seconds:
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


def _parse_seconds(options: dict[str, str], name: str, default: float) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = -1.0
    if not 0 < value <= _SECONDS_MAX:
        raise InvalidSettings(f"{name} must be a number of seconds, more than 0 and at most {_SECONDS_MAX:g}")
    return value


def _parse_count(options: dict[str, str], name: str) -> int:
    text = options.get(name, "0")
    if not (text.isascii() and text.isdigit() and int(text) < 100):
        raise InvalidSettings(f"{name} must be a number of replicas from 0 to 99")
    return int(text)


def _parse_tls_options(scheme: str, options: dict[str, str]) -> tuple[tuple[str, str | bool], ...]:
    tls_options: list[tuple[str, str | bool]] = [(name, options[name]) for name in _TLS_TEXTS if name in options]
    if "ssl_cert_reqs" in options:
        if options["ssl_cert_reqs"] not in ("required", "optional", "none"):
            raise InvalidSettings(f"ssl_cert_reqs in the {scheme}:// URL must be required, optional or none")
        tls_options.append(("ssl_cert_reqs", options["ssl_cert_reqs"]))
    if "ssl_check_hostname" in options:
        if options["ssl_check_hostname"].lower() not in ("true", "false"):
            raise InvalidSettings(f"ssl_check_hostname in the {scheme}:// URL must be true or false")
        tls_options.append(("ssl_check_hostname", options["ssl_check_hostname"].lower() == "true"))
    return tuple(tls_options)
