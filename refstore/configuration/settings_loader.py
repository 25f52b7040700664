"""Find the values of the settings, each with its origin.

Every command, and `refstore.open`, finds its values in the same way. The first source that has a value wins:

    1. the command line       --data DIR, or --kv URL --objects URL, --log-level, ...; the arguments of `refstore.open`
    2. the environment        REFSTORE_DATA, REFSTORE_KV, REFSTORE_SAFETY_GRACE, REFSTORE_REAPER_BREAKER_SHARE, ...
    3. one TOML file          --config, REFSTORE_CONFIG, or that of the user's configuration directory; never two merged
    4. the default

The stores are one choice: `data`, or `kv` and `objects` together, all from the same source. With the KV of one lake and
the objects of another, all blobs would look unreferenced. So `kv` without `objects`, or the reverse, is an error.

This module does not read the environment: entry points pass it in. Secrets (URL passwords, signing keys) are in no
error message and no row of `LoadedSettings.rows`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast, get_args, get_origin

import msgspec

from refstore.configuration.object_store_settings import (
    SECTION,
    VARIABLES,
    build_object_stores,
    check_names,
    flatten_tables,
    is_store_setting,
    store_variables,
)
from refstore.configuration.settings import (
    ENVIRONMENT_PREFIX,
    OPTIONS,
    SECTIONS,
    SETTINGS,
    Setting,
    Settings,
    embedded_urls,
    store_setting,
)
from refstore.configuration.settings_file import CONFIG, CONFIG_VARIABLE, SettingsFile, read_settings_file
from refstore.core.durations import read_duration
from refstore.core.redaction import redact_url
from refstore.core.safety import LONGEST_SECONDS, SHARED
from refstore.core.suggestions import find_nearest
from refstore.errors import InvalidSettings

COMMITTER: Final = "REFSTORE_COMMITTER"
"""No setting: who makes the commits of the command."""

_ORCHESTRATORS: Final = (f"{ENVIRONMENT_PREFIX}PORT", f"{ENVIRONMENT_PREFIX}SERVICE_")
"""Variables that Kubernetes sets if a service is called refstore."""
_AGREED: Final = frozenset(name.removesuffix("_seconds") for name in SHARED)
_STORE_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*:\S*")
"""Drivers may take URLs without an authority, such as memory:."""
_STORES: Final = ("data", "kv", "objects")


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
    """By setting name, such as `reaper.breaker_share`, for every setting."""
    file: SettingsFile
    """The TOML file that was read."""
    warnings: tuple[str, ...]
    """That everybody may write the file; variables that look like a mistyped setting. They are no errors, because
    orchestrators set `REFSTORE_PORT` and the like by themselves.
    """

    def rows(self) -> Iterator[SettingRow]:
        """Yield the file, then every setting, with secrets hidden."""
        yield SettingRow(CONFIG, str(self.file.path.absolute()) if self.file.path else None, self.file.origin)
        for name in (*SETTINGS, *filter(is_store_setting, self.origins)):
            setting = _setting_of(name)
            yield SettingRow(name, setting.display_value(self.value(name)), str(self.origins[name]))

    def value(self, name: str) -> object:
        """Return the value of a setting, such as `data` or `reaper.breaker_share`."""
        current: object = self.settings
        section, _, last = name.rpartition(".")
        for part in (*filter(None, section.split(".")), last if is_store_setting(name) else _setting_of(name).field):
            is_table = isinstance(current, Mapping)
            current = cast("Mapping[str, object]", current)[part] if is_table else getattr(current, part)
        return current


_SettingSource = Mapping[str, tuple[object, Origin]]
"""The raw values of one source, by setting name."""


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    user_folder: Path | None = None,
    *,
    default_data: Path,
    given_as: str = "",
) -> LoadedSettings:
    """Load the settings in force. Raises InvalidSettings, with the source, the key and the allowed values.

    `flags`: by setting name (and `config`), None for a flag that was not given. `user_folder`: the user's configuration
    directory, where a TOML file may be if neither `--config` nor `REFSTORE_CONFIG` names one. A named file must exist.
    `given_as`: what messages call the source of `flags`, if it is not the command line.
    """
    allowed = {CONFIG, *SETTINGS, *OPTIONS}
    check_names((name for name in flags if name.startswith(f"{SECTION}.")), given_as or "command line")
    if unknown := {name for name in flags if not is_store_setting(name)} - allowed:
        raise InvalidSettings(f"no such setting: {', '.join(sorted(unknown))}; there are {', '.join(sorted(allowed))}")
    file = read_settings_file(flags, environ, user_folder, given_as)
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
        {name: (value, Origin("file", str(file.path))) for name, value in _parse_file(file).items()},
    ]
    values: dict[str, object] = {}
    origins: dict[str, Origin] = {}
    store_settings = sorted({name for source in sources for name in source if is_store_setting(name)})
    for name in (*SETTINGS, *OPTIONS, *store_settings):
        if name in _STORES:
            continue
        setting = _setting_of(name)
        value, origin = next(
            (source[name] for source in sources if name in source), (setting.default, Origin("default"))
        )
        values[name] = value if origin.kind == "default" else _convert_value(setting, value, origin)
        origins[name] = origin
    _choose_stores(sources, default_data, values, origins)
    warnings = (*file.warnings, *_find_suspicious(environ))
    return LoadedSettings(_build_settings(values, origins), origins, file, warnings)


def _setting_of(name: str) -> Setting:
    return SETTINGS.get(name) or OPTIONS.get(name) or store_setting(name)


def _parse_file(read: SettingsFile) -> dict[str, object]:
    """Return the file's settings by name. An unknown key is an error, because it may be a misspelt safety duration."""
    file = read.path
    if file is None:
        return {}
    import tomllib

    try:
        document = cast(dict[str, object], tomllib.loads(read.content.decode()))
    except ValueError as error:
        raise InvalidSettings(f"{file} is not TOML in UTF-8 ({error}); correct it") from error
    settings: dict[str, object] = {}
    for key, value in document.items():
        if key == SECTION:
            settings |= flatten_tables(file, value)
        elif key not in SECTIONS:
            settings[key] = value
        elif isinstance(value, dict):
            settings |= {f"{key}.{inner}": content for inner, content in cast(dict[str, object], value).items()}
        else:
            raise InvalidSettings(f"{file}: {key} must be a table; write [{key}] and its settings below")
    for name in settings:
        if name in OPTIONS:
            raise InvalidSettings(
                f"{file}: {name} is not a setting; give it as an option of the command, in each start"
            )
        if name.removesuffix("_seconds").removeprefix("safety.") in _AGREED:
            raise InvalidSettings(
                f"{file}: {name} is not a setting; all processes of a lake agree on it: refstore config --set"
            )
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
    if setting.is_duration:
        return read_duration(f"{setting.name} ({origin})", value, most=LONGEST_SECONDS)
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


def _build_settings(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> Settings:
    """Make the settings of values that have the types of their fields. Raises InvalidSettings."""

    def section(name: str) -> dict[str, Any]:
        return {_setting_of(key).field: value for key, value in values.items() if key.startswith(f"{name}.")}

    try:
        return Settings(
            stores=build_object_stores(values),
            **{name: kind(**section(name)) for name, kind in SECTIONS.items()},
            **{name: value for name, value in values.items() if "." not in name},
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
    variables = {CONFIG_VARIABLE, COMMITTER, *(setting.variable for setting in SETTINGS.values())}
    variables |= {*store_variables(environ).values()}
    options = {setting.variable for setting in OPTIONS.values()}
    by_name = {f"{ENVIRONMENT_PREFIX}{_last_part(name).upper()}": each.variable for name, each in SETTINGS.items()}
    for name in sorted(environ):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in variables or name.startswith(_ORCHESTRATORS):
            continue
        if name.startswith(VARIABLES):
            yield (
                f"{name} is not a setting and has no effect; the variables of a named store are "
                f"{VARIABLES}NAME_ENDPOINT and _PROFILE"
            )
        elif name in options:
            yield f"{name} is not a setting and has no effect; give it as an option of the command"
        elif near := find_nearest(name, variables, cutoff=0.85) or by_name.get(
            name.replace("_SAFETY_", "_").removesuffix("_SECONDS")
        ):
            yield f"{name} is not a setting and has no effect; did you mean {near}?"


def _suggest_name(name: str, names: Iterable[str]) -> str:
    by_last = {_last_part(other): other for other in names}
    last = _last_part(name)
    near = find_nearest(name, names) or by_last.get(last if last in by_last else find_nearest(last, by_last) or "")
    return f"did you mean {near}? " if near else ""


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]
