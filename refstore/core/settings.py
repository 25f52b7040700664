"""Settings: frozen values, each of which knows where it came from.

Every command finds every value the same way; the first that names it wins:

    1. the command line       --data DIR, or --kv URL --objects URL, --log-level, ...
    2. the environment        REFSTORE_DATA, REFSTORE_KV, REFSTORE_GRACE_SECONDS, REFSTORE_REAPER_BATCH_KEYS, ...
    3. one TOML file          --config, REFSTORE_CONFIG, ./refstore.toml, the user's own; the first there is, never two
                              merged
    4. the default

The stores are one choice: `data`, or `kv` and `objects` together, all from the same place. The KV of one lake with the
objects of another would look like a lake whose blobs nothing names, so half a pair is an error, never filled in from
elsewhere.

Nothing here reads the environment by itself: entry points pass it in. Secrets (URL passwords, signing keys) are in no
`repr`, no error message and no row of `Loaded.rows`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Final, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote

import msgspec

from refstore.core.redaction import HIDDEN, redact_url
from refstore.core.safety import Safety
from refstore.core.signing_keys import SigningKey, parse_signing_key
from refstore.errors import InvalidSettings

ENVIRONMENT_PREFIX: Final = "REFSTORE_"
CONFIG: Final = "config"
FILE_NAME: Final = "refstore.toml"

_ORCHESTRATORS: Final = (f"{ENVIRONMENT_PREFIX}PORT", f"{ENVIRONMENT_PREFIX}SERVICE_")
"""What Kubernetes sets where a service is called refstore."""
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://\S*")
_TAG_KEY: Final = re.compile(r"[\w +\-=.:/@]{1,128}")
_FOREIGN: Final = re.compile(r"(s3://[^/?#]+|file://(localhost)?/)[^#]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaperSettings:
    """What the reaper does with the time and the room it has. Durations that safety rests on stand in `Safety`."""

    cycle_seconds: float = 10.0
    """The pause between two passes that found nothing more to do."""
    budget_seconds: float = 30.0
    """How long each step of a pass over one repository may take, before the next one and the next repository get their
    turn.
    """
    batch_keys: int = 5000
    """Keys in one batch to a store; what is held in memory, and done again after a crash, grows with it."""
    rate_per_second: float = 0.0
    """At most so many objects deleted a second, by one reaper. 0: no limit."""
    grace_override_seconds: float | None = None
    """Instead of each repository's own grace window. None: each repository's own, or `grace_seconds`."""
    lease_seconds: float = 60.0
    """How long a reaper that died keeps others from its share of the work."""
    scrub_every_seconds: float = 3600.0
    breaker_share: float = 0.5
    """Hard deletion stops when more than this share of a repository's objects is due, unless it was deleted. 1: never
    so.
    """
    breaker_floor_objects: int = 10_000
    """The share is not looked at for fewer due objects than this: half of a small repository is nothing unusual."""
    breaker_per_hour: int = 1_000_000
    """Hard deletion stops when more than this is deleted in an hour. 0: no limit."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    """Where Prometheus may fetch metrics. 0: nowhere."""

    def __post_init__(self) -> None:
        _within("reaper.cycle_seconds", self.cycle_seconds, 0.01, 86_400)
        _within("reaper.budget_seconds", self.budget_seconds, 0.1, 86_400)
        _within("reaper.batch_keys", self.batch_keys, 1, 100_000)
        _within("reaper.rate_per_second", self.rate_per_second, 0, 1e9)
        if self.grace_override_seconds is not None:
            _within("reaper.grace_override_seconds", self.grace_override_seconds, 0, 10 * 366 * 86_400)
        _within("reaper.lease_seconds", self.lease_seconds, 1, 86_400)
        _within("reaper.scrub_every_seconds", self.scrub_every_seconds, 1, 366 * 86_400)
        _within("reaper.breaker_share", self.breaker_share, 0, 1)
        _within("reaper.breaker_floor_objects", self.breaker_floor_objects, 0, 10**15)
        _within("reaper.breaker_per_hour", self.breaker_per_hour, 0, 10**15)
        _within("reaper.metrics_port", self.metrics_port, 0, 65_535)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """The HTTP service."""

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    """Processes that answer; each holds its own connections, and counts wrong secrets for itself."""
    threads: int = 32
    """Requests of one process that may wait for a store at a time."""
    reads_at_once: int = 4
    """Expensive reads (listings, logs, differences, merge bases, what became of an address) that one process makes at a
    time.
    """
    reads_per_key: int = 0
    """Of `reads_at_once`, for one access key; 0: half of them."""
    read_seconds: float = 30.0
    """How long such a read may wait for its turn, and how long it may take."""
    reads_in: Literal["process", "threads"] = "process"
    """Where such reads are made: in a process beside each that answers, which lets it go first, or in threads of that
    one, which its other requests then wait for. With a memory: KV, threads.
    """
    public_url: str = ""
    """How clients reach the service, for URLs that it hands out; left out: as the request named it."""
    upload_bytes_max: int = 5 << 40
    """The largest object, as S3 has it."""
    body_bytes_max: int = 8 << 20
    """The largest request that is not an object."""
    upload_idle_seconds: float = 60.0
    """An upload that sends nothing for so long is given up."""
    upload_bytes_per_second_min: int = 1024
    """One that sends less than this on average is given up as well, `upload_idle_seconds` after it fell behind. 0:
    however slow.
    """
    idle_seconds: float = 60.0
    """A connection on which nothing moves for so long is closed, unless the service is what it waits for."""
    connections_max: int = 2048
    """Of one process; fewer where it may not open two files for each (`ulimit -n`)."""
    connections_per_address: int = 0
    """Of `connections_max`; 0: half of them. Also how many requests at a time a client has that a trusted proxy names.
    """
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks whose X-Forwarded-For and X-Forwarded-Proto are believed: the last address there that is
    none of them is the client's.
    """
    tls_certificate: str = ""
    """The PEM file of the service's certificate and of those between it and its root; left out: plain HTTP. Read again
    on SIGHUP.
    """
    tls_key: str = ""
    """The PEM file of its key, without a password."""
    presign_seconds: int = 900
    """How long a signed URL reads an object."""
    login_seconds: int = 86_400
    """How long a bearer token is good."""
    key_seconds: float = 5.0
    """How long a process goes on taking an access key that it has seen, before it looks again: a revoked key lives so
    long.
    """
    wrong_secrets_max: int = 10
    """How many wrong secrets for one access key may come from one address in a minute, to each process, before the next
    have to wait; 0: any number.
    """
    namespaces: tuple[str, ...] = ()
    """URLs of folders, such as s3://bucket/team/, below which repositories may be made over HTTP. Empty: below the
    lake's own objects, and where that is S3, in any bucket that the service's credentials open.
    """
    import_from: tuple[str, ...] = ()
    """URLs of folders, such as s3://bucket/prefix/ or file:///directory/, below which data of others may be imported,
    and read where it was named. An S3 URL may say how its bucket is reached (`?endpoint=...`). Empty: from nowhere.
    """
    imports_at_once: int = 2
    """Imports that one process may have under way."""

    def __post_init__(self) -> None:
        _within("api.port", self.port, 0, 65_535)
        _within("api.workers", self.workers, 1, 256)
        _within("api.threads", self.threads, 1, 1024)
        _within("api.reads_at_once", self.reads_at_once, 1, 1024)
        _within("api.reads_per_key", self.reads_per_key, 0, 1024)
        _within("api.read_seconds", self.read_seconds, 0.01, 3600)
        if self.public_url and not re.fullmatch(r"https?://[^\s?#]+", self.public_url):
            raise InvalidSettings(
                f"api.public_url is {self.public_url!r}; it must be a URL such as https://lake.example.org"
            )
        _within("api.upload_bytes_max", self.upload_bytes_max, 1, 5 << 40)
        _within("api.body_bytes_max", self.body_bytes_max, 1 << 10, 1 << 30)
        _within("api.upload_idle_seconds", self.upload_idle_seconds, 0.1, 3600)
        _within("api.upload_bytes_per_second_min", self.upload_bytes_per_second_min, 0, 1 << 30)
        _within("api.idle_seconds", self.idle_seconds, 0.1, 3600)
        _within("api.connections_max", self.connections_max, 1, 1_000_000)
        _within("api.connections_per_address", self.connections_per_address, 0, 1_000_000)
        for network in self.trusted_proxies:
            try:
                ip_network(network)
            except ValueError as error:
                raise InvalidSettings(
                    f"api.trusted_proxies: {network[:80]!r} is no address or network ({error}); write 192.0.2.7 or "
                    "10.1.0.0/16"
                ) from None
        _within("api.presign_seconds", self.presign_seconds, 1, 7 * 86_400)
        _within("api.login_seconds", self.login_seconds, 60, 30 * 86_400)
        _within("api.key_seconds", self.key_seconds, 0, 3600)
        _within("api.imports_at_once", self.imports_at_once, 1, 64)
        for url in self.namespaces:
            if not _URL.fullmatch(url) or "?" in url or "#" in url:
                raise InvalidSettings(
                    f"api.namespaces has {redact_url(url)!r}; it must be URLs such as s3://bucket/team/, without "
                    "options"
                )
        for url in self.import_from:
            if not _FOREIGN.fullmatch(url):
                raise InvalidSettings(
                    f"api.import_from has {redact_url(url)!r}; it must be URLs such as s3://bucket/prefix/ or "
                    "file:///directory/"
                )
        _within("api.wrong_secrets_max", self.wrong_secrets_max, 0, 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineSettings:
    """The offline job."""

    tag_name: str = "refstore-expire-now"
    """The object tag that the bucket's lifecycle rule deletes by, where `--mode tag` sweeps. After a change apply the
    rule again, and leave the old one until what carries the old tag is gone.
    """
    tag_wait_days: float = 3.0
    """What is tagged and still there after so many days is warned of: the bucket's rule may not be in force."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    """Where Prometheus may fetch the metrics of `refstore gc run --every`. 0: nowhere."""

    def __post_init__(self) -> None:
        name = self.tag_name
        if not _TAG_KEY.fullmatch(name) or name != name.strip() or name.lower().startswith("aws:"):
            raise InvalidSettings(
                f"offline.tag_name is {name[:200]!r}; a tag key of S3 has 1 to 128 letters, digits, spaces and + - = . "
                "_ : / @, and does"
                " not begin with aws:"
            )
        _within("offline.tag_wait_days", self.tag_wait_days, 0, 3650)
        _within("offline.metrics_port", self.metrics_port, 0, 65_535)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"
    """auto: console on a terminal, JSON lines elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data: Path | None
    """The embedded default's directory. None: the stores were named by URL."""
    kv: str = field(repr=False)
    objects: str = field(repr=False)
    signing_keys: tuple[str, ...] = field(default=(), repr=False)
    """`kid:secret` each. The first signs issued addresses, all of them verify. None: one is made and kept in the KV."""
    safety: Safety = field(default_factory=Safety)
    reaper: ReaperSettings = field(default_factory=ReaperSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    offline: OfflineSettings = field(default_factory=OfflineSettings)
    log: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        kids = [key.kid for key in self.parsed_signing_keys]
        if len(set(kids)) != len(kids):
            raise InvalidSettings("signing_keys names one key id twice; give each key an id of its own")

    @property
    def parsed_signing_keys(self) -> tuple[SigningKey, ...]:
        return tuple(parse_signing_key(number, text) for number, text in enumerate(self.signing_keys, start=1))


class Origin(NamedTuple):
    """Where a value came from."""

    kind: Literal["flag", "environment", "file", "default"]
    detail: str = ""
    """The variable's or the file's name."""

    def __str__(self) -> str:
        match self.kind:
            case "flag":
                return "command line"
            case "environment":
                return f"environment {self.detail}"
            case "file":
                return self.detail
            case "default":
                return "default"


class Row(NamedTuple):
    """One setting as it may be shown to anyone."""

    setting: str
    value: str | int | float | list[str] | None
    origin: str


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    origins: Mapping[str, Origin]
    """By setting name, `reaper.batch_keys`; every setting is here."""
    file: Path | None
    """The TOML file that was read."""
    warnings: tuple[str, ...]
    """Variables that look like a mistyped setting. Not errors: orchestrators put `REFSTORE_PORT` and the like there by
    themselves.
    """

    def rows(self) -> Iterator[Row]:
        """Every setting, secrets hidden."""
        for setting in SETTINGS.values():
            yield Row(setting.name, setting.shown(self.value(setting.name)), str(self.origins[setting.name]))

    def value(self, name: str) -> object:
        """The value of `data`, `reaper.batch_keys`, ..."""
        current: object = self.settings
        for part in name.split("."):
            current = getattr(current, part)
        return current


class Setting(NamedTuple):
    """One line of the table of all settings."""

    name: str
    """Its TOML key: `kv`, `safety.grace_seconds`."""
    kind: object
    """Its type."""
    default: object

    @property
    def variable(self) -> str:
        """Safety's durations stand without their section: REFSTORE_GRACE_SECONDS."""
        return ENVIRONMENT_PREFIX + self.name.removeprefix("safety.").replace(".", "_").upper()

    @property
    def secret(self) -> bool:
        return self.name == "signing_keys"

    @property
    def allowed(self) -> str:
        kinds = [kind for kind in get_args(self.kind) if kind is not type(None)]
        kind = kinds[0] if type(None) in get_args(self.kind) else self.kind
        if get_origin(kind) is Literal:
            return "one of " + ", ".join(get_args(kind))
        if get_origin(kind) is tuple:
            return "a list of kid:secret texts" if self.secret else "a list of texts"
        return {int: "a whole number", float: "a number", Path: "a directory", str: "a text"}[cast(type, kind)]

    def shown(self, value: object) -> str | int | float | list[str] | None:
        if self.secret:
            return [f"{kid}:{HIDDEN}" for kid in _kids(cast(tuple[str, ...], value))]
        if self.name in ("kv", "objects"):
            return redact_url(str(value))
        if isinstance(value, tuple):
            return [redact_url(str(each)) for each in cast("tuple[object, ...]", value)]
        return value if isinstance(value, int | float | None) else str(value)


def _table(section: type, prefix: str = "") -> Iterator[Setting]:
    hints = get_type_hints(section)
    for entry in cast(Iterable[Field[object]], fields(section)):
        if hints[entry.name] in (Safety, ReaperSettings, ApiSettings, OfflineSettings, LogSettings):
            yield from _table(hints[entry.name], f"{entry.name}.")
        else:
            yield Setting(prefix + entry.name, hints[entry.name], None if entry.default is MISSING else entry.default)


SETTINGS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in _table(Settings)}
"""Every setting by name, in the order of the dataclasses above, which are the one place where a setting is added."""

_SECTIONS: Final = frozenset(name.partition(".")[0] for name in SETTINGS if "." in name)
_STORES: Final = ("data", "kv", "objects")

_Source = Mapping[str, tuple[object, Origin]]
"""What one place says: raw values by setting name."""


def load(
    flags: Mapping[str, object], environ: Mapping[str, str], files: Sequence[Path] = (), *, default_data: Path
) -> Loaded:
    """What is in force. Raises InvalidSettings, with the place, the key and what is allowed.

    `flags`: by setting name (and `config`), None for a flag that was not given. `files`: where a TOML file may be, best
    first, when neither `--config` nor `REFSTORE_CONFIG` names one; those must be there.
    """
    allowed = {CONFIG, *SETTINGS}
    if unknown := set(flags) - allowed:
        raise InvalidSettings(f"no such setting: {', '.join(sorted(unknown))}; there are {', '.join(sorted(allowed))}")
    file = _file(flags, environ, files)
    sources: list[_Source] = [
        {name: (value, Origin("flag")) for name, value in flags.items() if value is not None and name != CONFIG},
        {
            setting.name: (environ[setting.variable], Origin("environment", setting.variable))
            for setting in SETTINGS.values()
            if environ.get(setting.variable)  # an empty variable is how a shell says "not set"
        },
        {name: (value, Origin("file", str(file))) for name, value in _read(file).items()} if file else {},
    ]
    values: dict[str, object] = {}
    origins: dict[str, Origin] = {}
    for name, setting in SETTINGS.items():
        if name in _STORES:
            continue
        value, origin = next(
            (source[name] for source in sources if name in source), (setting.default, Origin("default"))
        )
        values[name] = value if origin.kind == "default" else _convert(setting, value, origin)
        origins[name] = origin
    _choose_stores(sources, default_data, values, origins)
    return Loaded(_build(values, origins), origins, file, tuple(_suspicious(environ)))


def candidate_files(directory: Path, user_directory: Path) -> tuple[Path, ...]:
    """Where a TOML file is looked for when none is named."""
    return (directory / FILE_NAME, user_directory / FILE_NAME)


def embedded(data: Path) -> tuple[str, str]:
    """(kv URL, objects URL) of the embedded default under a directory, which may be named from where one is
    (`../lake`).
    """
    root = quote(str(data.resolve() if ".." in data.parts else data.absolute()))
    return f"sqlite://{root}/kv.sqlite", f"file://{root}/objects"


def _file(flags: Mapping[str, object], environ: Mapping[str, str], files: Sequence[Path]) -> Path | None:
    named_file = flags.get(CONFIG) or environ.get(ENVIRONMENT_PREFIX + "CONFIG")
    if named_file:
        path = Path(str(named_file)).expanduser()
        if not _is_file(path):
            place = "--config" if flags.get(CONFIG) else "REFSTORE_CONFIG"
            raise InvalidSettings(f"{place} names {path}, which is not a file; write it, or leave {place} out")
        return path
    return next((path for path in files if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    """Raises InvalidSettings where it cannot be told: what may stand there must not be left out."""
    try:
        return path.is_file()
    except OSError as error:
        raise InvalidSettings(
            f"{path} cannot be looked for ({error.strerror}); make its folder readable, or name another file"
        ) from error


def _read(file: Path) -> dict[str, object]:
    """The file's settings by name. A key that is not a setting is an error: it would be a duration that is not in
    force.
    """
    try:
        document = cast(dict[str, object], tomllib.loads(file.read_text("utf-8")))
    except OSError as error:
        raise InvalidSettings(
            f"{file} cannot be read ({error.strerror}); make it readable, or name another with --config"
        ) from error
    except ValueError as error:
        raise InvalidSettings(f"{file} is not TOML in UTF-8 ({error}); correct it") from error
    settings: dict[str, object] = {}
    for key, value in document.items():
        if key not in _SECTIONS:
            settings[key] = value
        elif isinstance(value, dict):
            settings |= {f"{key}.{inner}": content for inner, content in cast(dict[str, object], value).items()}
        else:
            raise InvalidSettings(f"{file}: {key} must be a table; write [{key}] and its settings below")
    for name in settings:
        if name not in SETTINGS:
            section = name.rpartition(".")[0]
            allowed = [other for other in SETTINGS if other.rpartition(".")[0] == section]
            raise InvalidSettings(
                f"{file}: {name} is not a setting; {_did_you_mean(name, SETTINGS)}allowed: {', '.join(allowed)}"
            )
    return settings


def _convert(setting: Setting, value: object, origin: Origin) -> object:
    """`value` in its setting's type. Text from the environment and the command line is parsed; a file's types are taken
    as they are.
    """
    if get_origin(setting.kind) is tuple and isinstance(value, str) and origin.kind != "file":
        value = re.split(r"[,\s]+", value.strip(", \t\n"))
    try:
        if Path in get_args(setting.kind) and isinstance(value, str | Path):
            return Path(value)
        return cast(object, msgspec.convert(value, setting.kind, strict=origin.kind == "file"))
    except msgspec.ValidationError:
        text = "not valid" if setting.secret else repr(redact_url(value) if isinstance(value, str) else value)[:120]
        raise InvalidSettings(f"{setting.name} ({origin}) is {text}; it must be {setting.allowed}") from None


def _choose_stores(
    sources: Sequence[_Source], default_data: Path, values: dict[str, object], origins: dict[str, Origin]
) -> None:
    """The stores, all from the first source that names any of them."""
    nowhere: _Source = {}
    source = next((source for source in sources if any(name in source for name in _STORES)), nowhere)
    stores = {name: (_convert(SETTINGS[name], *source[name]), source[name][1]) for name in _STORES if name in source}
    if "data" in stores and len(stores) > 1:
        raise InvalidSettings(
            f"data ({stores['data'][1]}) and {' and '.join(name for name in stores if name != 'data')} exclude each "
            "other;"
            " give data, or kv and objects"
        )
    if len(stores) == 1 and "data" not in stores:
        (name, (_, origin)) = next(iter(stores.items()))
        other = "objects" if name == "kv" else "kv"
        raise InvalidSettings(f"{name} ({origin}) is given without {other}; give both in the same place, or data")
    if "kv" in stores:
        for name in ("kv", "objects"):
            url, origin = cast(str, stores[name][0]), stores[name][1]
            if not _URL.fullmatch(url):
                raise InvalidSettings(
                    f"{name} ({origin}) is {redact_url(url)!r}; it must be a URL such as {_EXAMPLES[name]}"
                )
            values[name], origins[name] = url, origin
        values["data"], origins["data"] = None, Origin("default")
        return
    data, origin = cast(tuple[Path, Origin], stores.get("data", (default_data, Origin("default"))))
    # What a file says is meant from where the file is; the rest from where the command runs.
    base = Path(origin.detail).absolute().parent if origin.kind == "file" else Path.cwd()
    values["data"] = base / data.expanduser()
    values["kv"], values["objects"] = embedded(values["data"])
    origins |= dict.fromkeys(_STORES, origin)


_EXAMPLES: Final = {
    "kv": "redis://localhost:6379/0 or sqlite:///var/lib/lake/kv.sqlite",
    "objects": "s3://bucket/prefix or file:///srv/lake",
}


def _build(values: Mapping[str, object], origins: Mapping[str, Origin]) -> Settings:
    def section(name: str) -> dict[str, object]:
        return {key.removeprefix(f"{name}."): value for key, value in values.items() if key.startswith(f"{name}.")}

    try:
        return Settings(
            safety=Safety(**section("safety")),  # type: ignore[arg-type]  # _convert gave every value its field's type
            reaper=ReaperSettings(**section("reaper")),  # type: ignore[arg-type]  # likewise
            api=ApiSettings(**section("api")),  # type: ignore[arg-type]  # likewise
            offline=OfflineSettings(**section("offline")),  # type: ignore[arg-type]  # likewise
            log=LogSettings(**section("log")),  # type: ignore[arg-type]  # likewise
            **{name: value for name, value in values.items() if "." not in name},  # type: ignore[arg-type]  # likewise
        )
    except InvalidSettings as error:
        # A rule between two settings was broken: say where those of them that are not defaults were set.
        places = [
            f"{name}: {origin}"
            for name, origin in origins.items()
            if origin.kind != "default" and _last(name) in str(error)
        ]
        raise InvalidSettings(f"{error} ({'; '.join(places)})" if places else str(error)) from None


def _suspicious(environ: Mapping[str, str]) -> Iterator[str]:
    variables = {ENVIRONMENT_PREFIX + "CONFIG", *(setting.variable for setting in SETTINGS.values())}
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in variables and not name.startswith(_ORCHESTRATORS):
            near = get_close_matches(name, variables, n=1, cutoff=0.85)
            if near:
                yield f"{name} is not a setting and has no effect; did you mean {near[0]}?"


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    by_last = {_last(other): other for other in names}
    near = get_close_matches(name, names, n=1) or [
        by_last[last] for last in get_close_matches(_last(name), by_last, n=1)
    ]
    return f"did you mean {near[0]}? " if near else ""


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _kids(keys: Iterable[str]) -> list[str]:
    return [key.partition(":")[0] for key in keys]


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidSettings(f"{name} is {value!r}; it must be between {least:g} and {most:g}")
