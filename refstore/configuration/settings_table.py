"""The table of all settings: name, variable and type of each, made from the dataclasses of `settings.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

from refstore.configuration.settings import NO_SETTING, Settings
from refstore.core.redaction import HIDDEN, redact_url
from refstore.purge_document.purge_key import PURGE_KEY_CHARACTERS

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
        if isinstance(value, tuple):
            return [redact_url(str(item)) for item in cast("tuple[object, ...]", value)]
        return value if isinstance(value, int | float | None) else str(value)


def _table(section: type, prefix: str = "") -> Iterator[Setting]:
    hints = get_type_hints(section)
    for entry in cast(Iterable[Field[object]], fields(section)):
        if NO_SETTING in entry.metadata:
            continue
        if is_dataclass(hints[entry.name]):
            yield from _table(hints[entry.name], f"{entry.name}.")
        else:
            yield Setting(prefix + entry.name, hints[entry.name], None if entry.default is MISSING else entry.default)


SETTINGS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in _table(Settings)}
"""Every setting by name, in the order of the dataclasses. A new setting is added there only."""


def store_setting(name: str) -> Setting:
    return Setting(name, str, "")
