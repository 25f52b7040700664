"""Settings as frozen values, each with its default and its bounds.

`SETTINGS` is the table of them, and `settings_loader.py` finds their values. The values are checked here,
whoever gives them. Secrets (URL passwords, signing keys) are in no `repr` and no error message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote

from refstore.configuration.object_store_settings import ObjectStoreSettings
from refstore.core.durations import write_duration
from refstore.core.pinned_buckets import parse_pinned_buckets
from refstore.core.redaction import HIDDEN, redact_url
from refstore.core.safety import NO_SETTINGS, Safety
from refstore.core.signing_keys import SigningKey, parse_signing_key
from refstore.core.units import DAY_SECONDS
from refstore.errors import Invalid, InvalidSettings
from refstore.purge_document.purge_key import PURGE_KEY_CHARACTERS

NO_SETTING: Final = "no setting"
"""Marks a field of the dataclasses below that no source may set."""
ONLY_OPTION: Final = "only an option"
"""Marks a field that says how one process runs: only an option of its command sets it, no variable and no file."""
DURATION: Final = "_seconds"
"""The end of the name of a field that is a duration."""
_BOUNDS: Final = "bounds"
"""The key of a number's least and most value in the metadata of its field."""
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://\S*")
S3_SECRETS_KEY_CHARACTERS: Final = 32
_DOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_FOREIGN: Final = re.compile(r"(s3://[^/?#]+|file://(localhost)?/)[^#]*")


def _number_setting(default: float, least: float, most: float, *, only_option: bool = False) -> Any:
    """Declare a number and its bounds."""
    return field(default=default, metadata={_BOUNDS: (least, most), ONLY_OPTION: only_option})


def _option(default: Any) -> Any:
    """Declare what only an option sets."""
    return field(default=default, metadata={ONLY_OPTION: True})


def _constant(default: Any) -> Any:
    """Declare what nobody would change. Only tests give another value, to the constructor."""
    return field(default=default, metadata={NO_SETTING: True})


def _check_bounds(section: str, settings: ReaperSettings | MetricsSettings | ApiSettings | S3Settings) -> None:
    """Raises InvalidSettings."""
    for entry in fields(settings):
        if _BOUNDS in entry.metadata:
            (least, most), value = entry.metadata[_BOUNDS], getattr(settings, entry.name)
            if not least <= value <= most:
                raise InvalidSettings(f"{section}.{entry.name} is {value!r}; it must be between {least:g} and {most:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaperSettings:
    """Limits of the reaper's time and resources. Safety durations are in `Safety`."""

    pause_seconds: float = _constant(10.0)
    """The pause between two passes, if the last one has nothing more to do."""
    rate_per_second: float = _number_setting(0.0, 0, 1e9)
    """How many objects one reaper deletes per second at most. 0: no limit. For a store that also serves readers, and
    slows down under many deletions.
    """
    lease_seconds: float = _constant(60.0)
    """How long the lease of a dead reaper keeps other reapers from its share of the work."""
    scrub_every_seconds: float = _constant(3600.0)
    breaker_share: float = _number_setting(0.5, 0, 1)
    """Hard deletion stops when more than this share of a repository's objects is due, unless the repository was
    deleted. 1: no limit. For repositories that are replaced as a whole, such as every night.
    """
    breaker_floor_objects: int = _constant(10_000)
    """The share is not checked below this number of due objects, because half of a small repository is
    nothing unusual.
    """
    breaker_per_hour: int = _number_setting(1_000_000, 0, 10**15)
    """Hard deletion stops when more than this is deleted in an hour. 0: no limit. For lakes that delete more than that
    as a rule.
    """
    reserve: int = _number_setting(32 << 20, 0, 1 << 40)
    """The bytes of the file that a reaper keeps on each disk of this machine that has the KV or the objects; on a
    small disk a twentieth of it. When others fill the disk it is given up, so that deletion has the room to begin with.
    0: none. For volumes with a quota.
    """

    def __post_init__(self) -> None:
        _check_bounds("reaper", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Where Prometheus reads the metrics of a reaper that runs by itself. The service has `/metrics` at its port."""

    host: str = _option("127.0.0.1")
    """The address to listen at. For a Prometheus on another machine."""
    port: int = _number_setting(0, 0, 65_535, only_option=True)
    """The port. 0: no metrics."""

    def __post_init__(self) -> None:
        _check_bounds("metrics", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """The HTTP service."""

    host: str = _option("127.0.0.1")
    """The address to listen at. For clients on other machines, without a proxy on this one."""
    port: int = _number_setting(8000, 0, 65_535)
    """The port of the API and the pages. Where another program has it."""
    workers: int = _number_setting(1, 1, 256, only_option=True)
    """Processes that serve requests. Each has its own connections, and its own count of wrong secrets. For a machine
    with several processors.
    """
    reads_at_once: int = _constant(4)
    """Expensive reads (listings, logs, diffs, merge bases, explanations of an address) that one process makes at the
    same time, half of them for one access key at most.
    """
    public_url: str = ""
    """The URL of the service for its clients, used in URLs that it returns. Empty: as in the request. For a service
    beyond loopback, or behind a proxy.
    """
    upload_bytes_max: int = _constant(5 << 40)
    """The largest object: S3's limit."""
    upload_idle_seconds: float = _constant(60.0)
    """An upload that sends nothing for this time is aborted."""
    idle_seconds: float = _constant(60.0)
    """A connection without traffic for this time is closed, unless it waits for the service."""
    connections_max: int = _constant(2048)
    """Connections of one process; fewer if it may not open two files for each (`ulimit -n`)."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks whose X-Forwarded-For and X-Forwarded-Proto are trusted. The client's address is the last
    one there that is not a trusted proxy. For a service behind proxies that set them.
    """
    tls_certificate: tuple[str, ...] = ()
    """PEM files: of the service's certificate with the intermediate ones, and of its key, without a password; or one
    file with both. Empty: plain HTTP. They are read again on SIGHUP. For HTTPS without a proxy.
    """
    namespaces: tuple[str, ...] = ()
    """URLs of folders, such as s3://bucket/team/, below which repositories may be created over HTTP. Empty: below the
    lake's own objects; if those are on S3, in any bucket that the service's credentials can access. For credentials
    that also reach buckets of others.
    """
    prune_states: tuple[str, ...] = _option(())
    """URLs of stores with the files of runs of `refstore prune`, which the pages show to operators. For stores that are
    pruned.
    """

    def __post_init__(self) -> None:
        _check_bounds("api", self)
        if self.public_url and not re.fullmatch(r"https?://[^\s?#]+", self.public_url):
            raise InvalidSettings(
                f"api.public_url is {self.public_url!r}; it must be a URL such as https://lake.example.org"
            )
        for network in self.trusted_proxies:
            try:
                ip_network(network)
            except ValueError as error:
                raise InvalidSettings(
                    f"api.trusted_proxies: {network[:80]!r} is not an address or network ({error}); write 192.0.2.7 or "
                    "10.1.0.0/16"
                ) from None
        if len(self.tls_certificate) > 2:
            raise InvalidSettings("api.tls_certificate names more than two files; name the certificate's and the key's")
        for url in self.namespaces:
            if not _URL.fullmatch(url) or "?" in url or "#" in url:
                raise InvalidSettings(
                    f"api.namespaces has {redact_url(url)!r}; it must be URLs such as s3://bucket/team/, without "
                    "options"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """The S3 gateway of the service."""

    port: int = _number_setting(-1, -1, 65_535)
    """The port where S3 clients are answered. -1: none. 0: any port that is free. For tools that speak S3."""
    domain: str = ""
    """The domain below which each bucket is a host, as in `bucket.s3.example.org`. Empty: buckets are in the path only.
    For clients that cannot put the bucket into the path.
    """
    buckets: tuple[str, ...] = ()
    """Buckets that are one branch of a repository each, as `NAME=REPOSITORY:BRANCH`: their keys begin without a ref.
    For tools that know buckets only, such as table formats.
    """
    create_buckets: bool = _option(False)
    """Whether S3 clients of operators create and delete buckets. For tools that insist on it: DeleteBucket also deletes
    what somebody uploads at that very moment.
    """
    multipart_seconds: float = _constant(float(7 * DAY_SECONDS))
    """How long an upload in parts may be completed after it was begun. After that its parts are deleted."""
    redirect_reads: bool = False
    """Whether a GET is answered with a redirection to a presigned URL of the object store, where it makes such URLs.
    For many bytes, and clients that reach the object store themselves.
    """
    secrets_key: str = field(default="", repr=False)
    """The key that encrypts the secrets of S3 clients in the KV, at least 32 characters. Empty: with `data`, one is
    generated and stored in that folder; else no key has such a secret. For stores that are named by URLs.
    """

    def __post_init__(self) -> None:
        _check_bounds("s3", self)
        if self.secrets_key and len(self.secrets_key) < S3_SECRETS_KEY_CHARACTERS:
            raise InvalidSettings(
                f"s3.secrets_key is too short; it must have at least {S3_SECRETS_KEY_CHARACTERS} characters"
            )
        if self.domain and not _DOMAIN.fullmatch(self.domain):
            raise InvalidSettings(f"s3.domain is {self.domain[:80]!r}; it must be a domain such as s3.example.org")
        try:
            parse_pinned_buckets(self.buckets)
        except Invalid as error:
            raise InvalidSettings(f"s3.buckets: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged. For a search for a fault, or for logs that are paid by the line."""
    format: Literal["auto", "console", "json"] = _option("auto")
    """auto: plain lines of a command; of a service, console lines on a terminal and JSON lines elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data: Path | None
    """The directory of the embedded default. None: the stores were given by URL. For a lake on one machine."""
    kv: str = field(repr=False)
    """The URL of the KV. For a lake that several machines share."""
    objects: str = field(repr=False)
    """The URL of the object store. For a lake on S3, or one that several machines share."""
    signing_keys: tuple[str, ...] = field(default=(), repr=False)
    """`kid:secret` each. The first one signs issued addresses; all of them verify. Empty: one is generated and stored
    in the KV. For keys that are changed from time to time, or must not stand in the KV.
    """
    purge_key: str = field(default="", repr=False)
    """The key of what the purge keeps about ids, at least 32 characters. It stands neither in the KV nor in the object
    store. Empty: with `data`, one is generated and stored in that folder; else the purge keeps nothing about ids. For
    purges in stores that are named by URLs.
    """
    import_from: tuple[str, ...] = ()
    """URLs of folders, such as s3://bucket/prefix/ or file:///directory/. Only below them foreign objects are read, and
    only from there clients of the service may import. An S3 URL may say how its bucket is reached (`?endpoint=...`).
    For data that lies elsewhere and is to be named without a copy.
    """
    safety: Safety = field(default_factory=Safety)
    reaper: ReaperSettings = field(default_factory=ReaperSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    s3: S3Settings = field(default_factory=S3Settings)
    log: LogSettings = field(default_factory=LogSettings)
    stores: Mapping[str, ObjectStoreSettings] = field(
        default_factory=dict[str, ObjectStoreSettings], metadata={NO_SETTING: True}
    )
    """How the stores are reached that namespaces name, by name. Their settings have names such as
    `stores.archive.endpoint`.
    """

    def __post_init__(self) -> None:
        kids = [key.kid for key in self.parsed_signing_keys]
        if len(set(kids)) != len(kids):
            raise InvalidSettings("signing_keys names one key id twice; give each key an id of its own")
        if self.purge_key and len(self.purge_key) < PURGE_KEY_CHARACTERS:
            raise InvalidSettings(f"purge_key is too short; it must have at least {PURGE_KEY_CHARACTERS} characters")
        for url in self.import_from:
            if not _FOREIGN.fullmatch(url):
                raise InvalidSettings(
                    f"import_from has {redact_url(url)!r}; it must be URLs such as s3://bucket/prefix/ or "
                    "file:///directory/"
                )

    @property
    def named_stores(self) -> dict[str, Mapping[str, str]]:
        """The options by which each named store is reached."""
        return {name: store.options for name, store in self.stores.items()}

    @property
    def parsed_signing_keys(self) -> tuple[SigningKey, ...]:
        return tuple(parse_signing_key(number, text) for number, text in enumerate(self.signing_keys, start=1))


KV_FILE: Final = "kv.sqlite"


def embedded_urls(data: Path) -> tuple[str, str]:
    """Return (kv URL, objects URL) of the embedded default in a directory. The path may be relative (`../lake`)."""
    root = quote(str(data.resolve() if ".." in data.parts else data.absolute()))
    return f"sqlite://{root}/{KV_FILE}", f"file://{root}/objects"


# ---- the table of all settings

ENVIRONMENT_PREFIX: Final = "REFSTORE_"
SECTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    name: kind for name, kind in get_type_hints(Settings).items() if isinstance(kind, type) and is_dataclass(kind)
}
"""What makes the settings of a section, by its name."""
_KEYS: Final = ("purge_key", "s3.secrets_key")
"""Secrets of one text each."""


class Setting(NamedTuple):
    """One row of the table of all settings."""

    name: str
    """The TOML key, such as `kv` or `safety.grace`: that of the field, without the unit of a duration."""
    kind: object
    """The type of its value."""
    default: object
    field: str
    """The name of the field in its dataclass."""

    @property
    def variable(self) -> str:
        """The environment variable, such as REFSTORE_SAFETY_GRACE."""
        return ENVIRONMENT_PREFIX + self.name.replace(".", "_").upper()

    @property
    def is_duration(self) -> bool:
        return self.field.endswith(DURATION)

    @property
    def is_secret(self) -> bool:
        return self.name == "signing_keys" or self.name in _KEYS

    @property
    def allowed_values(self) -> str:
        kinds = [kind for kind in get_args(self.kind) if kind is not type(None)]
        kind = kinds[0] if type(None) in get_args(self.kind) else self.kind
        if get_origin(kind) is Literal:
            return "one of " + ", ".join(get_args(kind))
        if get_origin(kind) is tuple:
            return "a list of kid:secret texts" if self.is_secret else "a list of texts"
        if self.is_secret:
            return f"a text of at least {PURGE_KEY_CHARACTERS} characters"
        if self.is_duration:
            return "a duration such as '30s', '15m', '36h' or '7d'"
        return {bool: "true or false", int: "a whole number", float: "a number", Path: "a directory", str: "a text"}[
            cast(type, kind)
        ]

    def display_value(self, value: object) -> str | int | float | list[str] | None:
        if self.name in _KEYS:
            return HIDDEN if value else ""
        if self.is_secret:
            return [f"{key.partition(':')[0]}:{HIDDEN}" for key in cast(tuple[str, ...], value)]
        if self.name in ("kv", "objects"):
            return redact_url(str(value))
        if self.is_duration:
            return write_duration(cast(float, value))
        if isinstance(value, tuple):
            return [redact_url(str(item)) for item in cast("tuple[object, ...]", value)]
        return value if isinstance(value, int | float | None) else str(value)


def _table(section: type, prefix: str = "", *, only_options: bool = False) -> Iterator[Setting]:
    hints = get_type_hints(section)
    for entry in cast(Iterable[Field[object]], fields(section)):
        if NO_SETTING in entry.metadata or (section is Safety and entry.name in NO_SETTINGS):
            continue
        if is_dataclass(hints[entry.name]):
            yield from _table(hints[entry.name], f"{entry.name}.", only_options=only_options)
        elif entry.metadata.get(ONLY_OPTION, False) == only_options:
            name = prefix + entry.name.removesuffix(DURATION)
            default = None if entry.default is MISSING else entry.default
            yield Setting(name, hints[entry.name], default, entry.name)


SETTINGS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in _table(Settings)}
"""Every setting by name, in the order of the dataclasses. A new setting is added there only."""
OPTIONS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in _table(Settings, only_options=True)}
"""What only an option of a command sets, likewise by name."""


def store_setting(name: str) -> Setting:
    return Setting(name, str, "", name.rpartition(".")[2])
