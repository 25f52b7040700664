"""Settings: frozen values, each with its origin.

Every command, and `refstore.open`, finds its values in the same way. The first source that has a value wins:

    1. the command line       --data DIR, or --kv URL --objects URL, --log-level, ...; the arguments of `refstore.open`
    2. the environment        REFSTORE_DATA, REFSTORE_KV, REFSTORE_GRACE_SECONDS, REFSTORE_REAPER_LEASE_SECONDS, ...
    3. one TOML file          --config, REFSTORE_CONFIG, ./refstore.toml, the user's own; the first that exists, and
                              never two merged
    4. the default

The stores are one choice: `data`, or `kv` and `objects` together, all from the same source. With the KV of one lake and
the objects of another, all blobs would look unreferenced. So `kv` without `objects`, or the reverse, is an error.

This module does not read the environment: entry points pass it in. Secrets (URL passwords, signing keys) are in no
`repr`, no error message and no row of `LoadedSettings.rows`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote

import msgspec

from refstore.configuration.object_store_settings import (
    SECTION,
    VARIABLES,
    ObjectStoreSettings,
    build_object_stores,
    check_names,
    flatten_tables,
    is_store_setting,
    store_variables,
)
from refstore.core.redaction import HIDDEN, redact_url
from refstore.core.safety import Safety
from refstore.core.signing_keys import SigningKey, parse_signing_key
from refstore.core.suggestions import find_nearest
from refstore.errors import InvalidSettings
from refstore.purge_document.purge_key import PURGE_KEY_CHARACTERS

ENVIRONMENT_PREFIX: Final = "REFSTORE_"
CONFIG: Final = "config"
COMMITTER: Final = "REFSTORE_COMMITTER"
"""No setting: who makes the commits of the command."""
FILE_NAME: Final = "refstore.toml"

_ORCHESTRATORS: Final = (f"{ENVIRONMENT_PREFIX}PORT", f"{ENVIRONMENT_PREFIX}SERVICE_")
"""Variables that Kubernetes sets if a service is called refstore."""
_NO_SETTING: Final = "no setting"
"""Marks a field of the dataclasses below that no source may set."""
_BOUNDS: Final = "bounds"
"""The key of a number's least and most value in the metadata of its field."""
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://\S*")
_STORE_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*:\S*")
"""Drivers may take URLs without an authority, such as memory:."""
_FOREIGN: Final = re.compile(r"(s3://[^/?#]+|file://(localhost)?/)[^#]*")


def _number_setting(default: float, least: float, most: float) -> Any:
    """Declare a number and its bounds."""
    return field(default=default, metadata={_BOUNDS: (least, most)})


def _check_bounds(section: str, settings: ReaperSettings | ApiSettings | OfflineSettings) -> None:
    """Raises InvalidSettings."""
    for entry in fields(settings):
        if _BOUNDS in entry.metadata:
            (least, most), value = entry.metadata[_BOUNDS], getattr(settings, entry.name)
            if not least <= value <= most:
                raise InvalidSettings(f"{section}.{entry.name} is {value!r}; it must be between {least:g} and {most:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaperSettings:
    """Limits of the reaper's time and resources. Safety durations are in `Safety`."""

    pause_seconds: float = _number_setting(10.0, 0.01, 86_400)
    """The pause between two passes, if the last one has nothing more to do."""
    rate_per_second: float = _number_setting(0.0, 0, 1e9)
    """How many objects one reaper deletes per second at most. 0: no limit."""
    lease_seconds: float = _number_setting(60.0, 1, 86_400)
    """How long the lease of a dead reaper keeps other reapers from its share of the work."""
    scrub_every_seconds: float = _number_setting(3600.0, 1, 366 * 86_400)
    breaker_share: float = _number_setting(0.5, 0, 1)
    """Hard deletion stops when more than this share of a repository's objects is due, unless the repository was
    deleted. 1: no limit.
    """
    breaker_floor_objects: int = _number_setting(10_000, 0, 10**15)
    """The share is not checked below this number of due objects, because half of a small repository is
    nothing unusual.
    """
    breaker_per_hour: int = _number_setting(1_000_000, 0, 10**15)
    """Hard deletion stops when more than this is deleted in an hour. 0: no limit."""
    reserve_mib: int = _number_setting(32, 0, 1 << 20)
    """The size in MiB of the file that a reaper keeps on each disk of this machine that has the KV or the objects; on a
    small disk a twentieth of it. When others fill the disk it is given up, so that deletion has the room to begin with.
    0: none.
    """
    metrics_host: str = "127.0.0.1"
    metrics_port: int = _number_setting(0, 0, 65_535)
    """The port where Prometheus reads metrics. 0: no metrics."""

    def __post_init__(self) -> None:
        _check_bounds("reaper", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """The HTTP service."""

    host: str = "127.0.0.1"
    port: int = _number_setting(8000, 0, 65_535)
    workers: int = _number_setting(1, 1, 256)
    """Processes that serve requests. Each has its own connections, and its own count of wrong secrets."""
    reads_at_once: int = _number_setting(4, 1, 1024)
    """Expensive reads (listings, logs, diffs, merge bases, explanations of an address) that one process makes at the
    same time, half of them for one access key at most.
    """
    public_url: str = ""
    """The URL of the service for its clients, used in URLs that it returns. Empty: as in the request."""
    upload_bytes_max: int = _number_setting(5 << 40, 1, 5 << 40)
    """The largest object; the default is S3's limit."""
    upload_idle_seconds: float = _number_setting(60.0, 0.1, 3600)
    """An upload that sends nothing for this time is aborted."""
    idle_seconds: float = _number_setting(60.0, 0.1, 3600)
    """A connection without traffic for this time is closed, unless it waits for the service."""
    connections_max: int = _number_setting(2048, 1, 1_000_000)
    """Connections of one process; fewer if it may not open two files for each (`ulimit -n`)."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks whose X-Forwarded-For and X-Forwarded-Proto are trusted. The client's address is the last
    one there that is not a trusted proxy.
    """
    tls_certificate: str = ""
    """The PEM file of the service's certificate and the intermediate ones. Empty: plain HTTP. It is read again on
    SIGHUP.
    """
    tls_key: str = ""
    """The PEM file of the certificate's key, without a password."""
    namespaces: tuple[str, ...] = ()
    """URLs of folders, such as s3://bucket/team/, below which repositories may be created over HTTP. Empty: below the
    lake's own objects; if those are on S3, in any bucket that the service's credentials can access.
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
        for url in self.namespaces:
            if not _URL.fullmatch(url) or "?" in url or "#" in url:
                raise InvalidSettings(
                    f"api.namespaces has {redact_url(url)!r}; it must be URLs such as s3://bucket/team/, without "
                    "options"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineSettings:
    """Settings of the offline job."""

    metrics_host: str = "127.0.0.1"
    metrics_port: int = _number_setting(0, 0, 65_535)
    """The port where Prometheus reads the metrics of `refstore gc run --every`. 0: no metrics."""
    engine: Literal["auto", "local", "spark"] = "auto"
    """What the offline job and the purge run on: this machine, Spark, or, with auto, Spark for large runs (if it is
    installed).
    """

    def __post_init__(self) -> None:
        _check_bounds("offline", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"
    """auto: plain lines of a command; of a service, console lines on a terminal and JSON lines elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data: Path | None
    """The directory of the embedded default. None: the stores were given by URL."""
    kv: str = field(repr=False)
    objects: str = field(repr=False)
    signing_keys: tuple[str, ...] = field(default=(), repr=False)
    """`kid:secret` each. The first one signs issued addresses; all of them verify. Empty: one is generated and stored
    in the KV.
    """
    purge_key: str = field(default="", repr=False)
    """The key of what the purge keeps about ids, at least 32 characters. It stands neither in the KV nor in the object
    store. Empty: with `data`, one is generated and stored in that folder; else the purge keeps nothing about ids.
    """
    import_from: tuple[str, ...] = ()
    """URLs of folders, such as s3://bucket/prefix/ or file:///directory/. Only below them foreign objects are read, and
    only from there clients of the service may import. An S3 URL may say how its bucket is reached (`?endpoint=...`).
    """
    safety: Safety = field(default_factory=Safety)
    reaper: ReaperSettings = field(default_factory=ReaperSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    offline: OfflineSettings = field(default_factory=OfflineSettings)
    log: LogSettings = field(default_factory=LogSettings)
    object_stores: Mapping[str, ObjectStoreSettings] = field(
        default_factory=dict[str, ObjectStoreSettings], metadata={_NO_SETTING: True}
    )
    """How the stores are reached that namespaces name, by name. Their settings have names such as
    `object_stores.archive.endpoint`.
    """
    safety_origins: Mapping[str, str] | None = field(
        default=None, repr=False, compare=False, metadata={_NO_SETTING: True}
    )
    """Where each field of `safety` came from that is no default, by name. None: unknown, so what differs from the
    default was set.
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
    def explicit_safety(self) -> Mapping[str, str]:
        """The fields of `safety` that were set, and where, for `Lake.open`."""
        if self.safety_origins is not None:
            return self.safety_origins
        names = (entry.name for entry in fields(Safety))
        return {name: "" for name in names if getattr(self.safety, name) != getattr(Safety(), name)}

    @property
    def named_stores(self) -> dict[str, Mapping[str, str]]:
        """The options by which each named store is reached."""
        return {name: store.options for name, store in self.object_stores.items()}

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
                return self.detail or "command line"
            case "environment":
                return f"environment {self.detail}"
            case "file":
                return self.detail
            case "default":
                return "default"


class SettingRow(NamedTuple):
    """One setting for display, without secrets."""

    setting: str
    value: str | int | float | list[str] | None
    origin: str


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    settings: Settings
    origins: Mapping[str, Origin]
    """By setting name, such as `reaper.lease_seconds`, for every setting."""
    file: Path | None
    """The TOML file that was read; None: none."""
    warnings: tuple[str, ...]
    """Variables that look like a mistyped setting. They are no errors, because orchestrators set `REFSTORE_PORT` and
    the like by themselves.
    """

    def rows(self) -> Iterator[SettingRow]:
        """Yield every setting, with secrets hidden."""
        for name in (*SETTINGS, *(name for name in self.origins if name not in SETTINGS)):
            setting = SETTINGS.get(name) or _store_setting(name)
            yield SettingRow(name, setting.display_value(self.value(name)), str(self.origins[name]))

    def value(self, name: str) -> object:
        """Return the value of a setting, such as `data` or `reaper.lease_seconds`."""
        current: object = self.settings
        for part in name.split("."):
            is_table = isinstance(current, Mapping)
            current = cast("Mapping[str, object]", current)[part] if is_table else getattr(current, part)
        return current


class Setting(NamedTuple):
    """One row of the table of all settings."""

    name: str
    """The TOML key, such as `kv` or `safety.grace_seconds`."""
    kind: object
    """The type of its value."""
    default: object

    @property
    def variable(self) -> str:
        """The environment variable. Those of safety durations leave out the section: REFSTORE_GRACE_SECONDS."""
        return ENVIRONMENT_PREFIX + self.name.removeprefix("safety.").replace(".", "_").upper()

    @property
    def is_secret(self) -> bool:
        return self.name in ("signing_keys", "purge_key")

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
        return {int: "a whole number", float: "a number", Path: "a directory", str: "a text"}[cast(type, kind)]

    def display_value(self, value: object) -> str | int | float | list[str] | None:
        if self.name == "purge_key":
            return HIDDEN if value else ""
        if self.is_secret:
            return [f"{kid}:{HIDDEN}" for kid in _key_ids(cast(tuple[str, ...], value))]
        if self.name in ("kv", "objects"):
            return redact_url(str(value))
        if isinstance(value, tuple):
            return [redact_url(str(item)) for item in cast("tuple[object, ...]", value)]
        return value if isinstance(value, int | float | None) else str(value)


def _table(section: type, prefix: str = "") -> Iterator[Setting]:
    hints = get_type_hints(section)
    for entry in cast(Iterable[Field[object]], fields(section)):
        if _NO_SETTING in entry.metadata:
            continue
        if hints[entry.name] in (Safety, ReaperSettings, ApiSettings, OfflineSettings, LogSettings):
            yield from _table(hints[entry.name], f"{entry.name}.")
        else:
            yield Setting(prefix + entry.name, hints[entry.name], None if entry.default is MISSING else entry.default)


SETTINGS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in _table(Settings)}
"""Every setting by name, in the order of the dataclasses above. A new setting is added there only."""


def _store_setting(name: str) -> Setting:
    return Setting(name, str, "")


_SECTIONS: Final = frozenset(name.partition(".")[0] for name in SETTINGS if "." in name)
_STORES: Final = ("data", "kv", "objects")

_SettingSource = Mapping[str, tuple[object, Origin]]
"""The raw values of one source, by setting name."""


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    files: Sequence[Path] = (),
    *,
    default_data: Path,
    given_as: str = "",
) -> LoadedSettings:
    """Load the settings in force. Raises InvalidSettings, with the source, the key and the allowed values.

    `flags`: by setting name (and `config`), None for a flag that was not given. `files`: where a TOML file may be, the
    preferred one first, if neither `--config` nor `REFSTORE_CONFIG` names one. A named file must exist. `given_as`:
    what messages call the source of `flags`, if it is not the command line.
    """
    allowed = {CONFIG, *SETTINGS}
    check_names((name for name in flags if name.startswith(f"{SECTION}.")), given_as or "command line")
    if unknown := {name for name in flags if not is_store_setting(name)} - allowed:
        raise InvalidSettings(f"no such setting: {', '.join(sorted(unknown))}; there are {', '.join(sorted(allowed))}")
    file = _find_file(flags, environ, files, given_as)
    variables = {setting.name: setting.variable for setting in SETTINGS.values()} | store_variables(environ)
    sources: list[_SettingSource] = [
        {
            name: (value, Origin("flag", given_as))
            for name, value in flags.items()
            if value is not None and name != CONFIG
        },
        {
            name: (environ[variable], Origin("environment", variable))
            for name, variable in variables.items()
            if environ.get(variable)  # shells use an empty variable for "not set"
        },
        {name: (value, Origin("file", str(file))) for name, value in _read_file(file).items()} if file else {},
    ]
    values: dict[str, object] = {}
    origins: dict[str, Origin] = {}
    store_settings = sorted({name for source in sources for name in source if is_store_setting(name)})
    for name in (*SETTINGS, *store_settings):
        if name in _STORES:
            continue
        setting = SETTINGS.get(name) or _store_setting(name)
        value, origin = next(
            (source[name] for source in sources if name in source), (setting.default, Origin("default"))
        )
        values[name] = value if origin.kind == "default" else _convert_value(setting, value, origin)
        origins[name] = origin
    _choose_stores(sources, default_data, values, origins)
    return LoadedSettings(_build_settings(values, origins), origins, file, tuple(_find_suspicious(environ)))


def candidate_files(directory: Path, user_directory: Path) -> tuple[Path, ...]:
    """Return where to look for a TOML file if none is named."""
    return (directory / FILE_NAME, user_directory / FILE_NAME)


def embedded_urls(data: Path) -> tuple[str, str]:
    """Return (kv URL, objects URL) of the embedded default in a directory. The path may be relative (`../lake`)."""
    root = quote(str(data.resolve() if ".." in data.parts else data.absolute()))
    return f"sqlite://{root}/kv.sqlite", f"file://{root}/objects"


def _find_file(
    flags: Mapping[str, object], environ: Mapping[str, str], files: Sequence[Path], given_as: str
) -> Path | None:
    named_file = flags.get(CONFIG) or environ.get(ENVIRONMENT_PREFIX + "CONFIG")
    if named_file:
        path = Path(str(named_file)).expanduser()
        if not _is_file(path):
            source = "REFSTORE_CONFIG"
            if flags.get(CONFIG):
                source = f"config ({given_as})" if given_as else "--config"
            raise InvalidSettings(f"{source} names {path}, which is not a file; write it, or leave {source} out")
        return path
    return next((path for path in files if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    """Return whether the file exists. Raises InvalidSettings if that is unknown, because an existing file must not be
    ignored.
    """
    try:
        return path.is_file()
    except OSError as error:
        raise InvalidSettings(
            f"{path} cannot be accessed ({error.strerror}); make its folder readable, or name another file"
        ) from error


def _read_file(file: Path) -> dict[str, object]:
    """Return the file's settings by name. An unknown key is an error, because it may be a misspelt safety duration."""
    import tomllib

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
        if key == SECTION:
            settings |= flatten_tables(file, value)
        elif key not in _SECTIONS:
            settings[key] = value
        elif isinstance(value, dict):
            settings |= {f"{key}.{inner}": content for inner, content in cast(dict[str, object], value).items()}
        else:
            raise InvalidSettings(f"{file}: {key} must be a table; write [{key}] and its settings below")
    for name in settings:
        if name not in SETTINGS and not is_store_setting(name):
            section = name.rpartition(".")[0]
            allowed = [other for other in SETTINGS if other.rpartition(".")[0] == section]
            raise InvalidSettings(
                f"{file}: {name} is not a setting; {_suggest_name(name, SETTINGS)}allowed: {', '.join(allowed)}"
            )
    return settings


def _convert_value(setting: Setting, value: object, origin: Origin) -> object:
    """Convert `value` to its setting's type. Text from the environment and the command line is parsed; types in a file
    are strict.
    """
    if get_origin(setting.kind) is tuple and isinstance(value, str) and origin.kind != "file":
        value = re.split(r"[,\s]+", value.strip(", \t\n"))
    try:
        if Path in get_args(setting.kind) and isinstance(value, str | Path):
            return Path(value)
        return cast(object, msgspec.convert(value, setting.kind, strict=origin.kind == "file"))
    except msgspec.ValidationError:
        text = "not valid" if setting.is_secret else repr(redact_url(value) if isinstance(value, str) else value)[:120]
        raise InvalidSettings(f"{setting.name} ({origin}) is {text}; it must be {setting.allowed_values}") from None


def _choose_stores(
    sources: Sequence[_SettingSource], default_data: Path, values: dict[str, object], origins: dict[str, Origin]
) -> None:
    """Set the stores, all from the first source that has any of them."""
    no_source: _SettingSource = {}
    source = next((source for source in sources if any(name in source for name in _STORES)), no_source)
    stores = {
        name: (_convert_value(SETTINGS[name], *source[name]), source[name][1]) for name in _STORES if name in source
    }
    if "data" in stores and len(stores) > 1:
        raise InvalidSettings(
            f"data ({stores['data'][1]}) and {' and '.join(name for name in stores if name != 'data')} exclude each "
            "other; give data, or kv and objects"
        )
    if len(stores) == 1 and "data" not in stores:
        (name, (_, origin)) = next(iter(stores.items()))
        other = "objects" if name == "kv" else "kv"
        raise InvalidSettings(f"{name} ({origin}) is given without {other}; give both in the same source, or data")
    if "kv" in stores:
        for name in ("kv", "objects"):
            url, origin = cast(str, stores[name][0]), stores[name][1]
            if not _STORE_URL.fullmatch(url):
                raise InvalidSettings(
                    f"{name} ({origin}) is {redact_url(url)!r}; it must be a URL such as {_EXAMPLES[name]}"
                )
            values[name], origins[name] = url, origin
        values["data"], origins["data"] = None, Origin("default")
        return
    data, origin = cast(tuple[Path, Origin], stores.get("data", (default_data, Origin("default"))))
    # A path in a file is relative to the file; any other path is relative to the working directory.
    base = Path(origin.detail).absolute().parent if origin.kind == "file" else Path.cwd()
    values["data"] = base / data.expanduser()
    values["kv"], values["objects"] = embedded_urls(values["data"])
    origins |= dict.fromkeys(_STORES, origin)


_EXAMPLES: Final = {
    "kv": "redis://localhost:6379/0 or sqlite:///var/lib/lake/kv.sqlite",
    "objects": "s3://bucket/prefix or file:///srv/lake",
}


def _build_settings(values: Mapping[str, object], origins: Mapping[str, Origin]) -> Settings:
    safety_origins = {
        _last_part(name): str(origin)
        for name, origin in origins.items()
        if name.startswith("safety.") and origin.kind != "default"
    }

    def section(name: str) -> dict[str, object]:
        return {key.removeprefix(f"{name}."): value for key, value in values.items() if key.startswith(f"{name}.")}

    try:
        return Settings(
            safety=Safety(**section("safety")),  # type: ignore[arg-type]  # _convert gave every value its field's type
            reaper=ReaperSettings(**section("reaper")),  # type: ignore[arg-type]  # likewise
            api=ApiSettings(**section("api")),  # type: ignore[arg-type]  # likewise
            offline=OfflineSettings(**section("offline")),  # type: ignore[arg-type]  # likewise
            log=LogSettings(**section("log")),  # type: ignore[arg-type]  # likewise
            object_stores=build_object_stores(values),
            safety_origins=safety_origins,
            **{name: value for name, value in values.items() if "." not in name},  # type: ignore[arg-type]  # likewise
        )
    except InvalidSettings as error:
        # Two settings contradict each other: name the sources of those that are not defaults.
        places = [
            f"{name}: {origin}"
            for name, origin in origins.items()
            if origin.kind != "default" and _last_part(name) in str(error)
        ]
        raise InvalidSettings(f"{error} ({'; '.join(places)})" if places else str(error)) from None


def _find_suspicious(environ: Mapping[str, str]) -> Iterator[str]:
    variables = {ENVIRONMENT_PREFIX + "CONFIG", COMMITTER, *(setting.variable for setting in SETTINGS.values())}
    variables |= {*store_variables(environ).values()}
    for name in sorted(environ):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in variables or name.startswith(_ORCHESTRATORS):
            continue
        if name.startswith(VARIABLES):
            yield (
                f"{name} is not a setting and has no effect; the variables of a named store are "
                f"{VARIABLES}NAME_ENDPOINT, _REGION, _PROFILE and _ADDRESSING"
            )
        elif near := find_nearest(name, variables, cutoff=0.85):
            yield f"{name} is not a setting and has no effect; did you mean {near}?"


def _suggest_name(name: str, names: Iterable[str]) -> str:
    by_last = {_last_part(other): other for other in names}
    last = _last_part(name)
    near = find_nearest(name, names) or by_last.get(last if last in by_last else find_nearest(last, by_last) or "")
    return f"did you mean {near}? " if near else ""


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def _key_ids(keys: Iterable[str]) -> list[str]:
    return [key.partition(":")[0] for key in keys]
