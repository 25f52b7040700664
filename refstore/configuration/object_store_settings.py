"""The settings of named object stores: how each is reached. There may be any number of them.

    [stores.archive]
    endpoint = "https://s3.example"               REFSTORE_STORES_ARCHIVE_ENDPOINT

The URL of a namespace says `?endpoint=archive` (`refstore/objects/named_stores.py`). So the endpoint of a store can
change without a change of any record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final, cast

from refstore.errors import InvalidSettings

SECTION: Final = "stores"
VARIABLES: Final = "REFSTORE_STORES_"
_ENDPOINT: Final = re.compile(r"https?://[^\s/?#@]+(/[^\s?#@]*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreSettings:
    """How one S3 service is reached. What is empty comes from the usual AWS configuration."""

    endpoint: str = ""
    """The URL of the service, for one that is not Amazon's."""
    profile: str = ""
    """The profile of the AWS configuration that has credentials, region or `s3.addressing_style`, where those of the
    default profile are not this service's.
    """

    @property
    def options(self) -> dict[str, str]:
        """Return those that are set, as the options of a URL."""
        values = {entry.name: cast(str, getattr(self, entry.name)) for entry in fields(self)}
        return {name: value for name, value in values.items() if value}


FIELDS: Final = tuple(entry.name for entry in fields(ObjectStoreSettings))
_SETTING: Final = re.compile(rf"{SECTION}\.([a-z][a-z0-9_]{{0,62}})\.({'|'.join(FIELDS)})")


def is_store_setting(name: str) -> bool:
    """Return whether the name is that of a setting of a named store, such as `stores.archive.endpoint`."""
    return _SETTING.fullmatch(name) is not None


def store_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of named stores in the environment, and the variable of each."""
    found: dict[str, str] = {}
    for variable in environ:
        store, _, field = variable.removeprefix(VARIABLES).lower().rpartition("_")
        name = f"{SECTION}.{store}.{field}"
        if variable.startswith(VARIABLES) and is_store_setting(name):
            found[name] = variable
    return found


def build_object_stores(values: Mapping[str, object]) -> dict[str, ObjectStoreSettings]:
    """Return the named stores of the settings' values, by name. Raises InvalidSettings."""
    by_store: dict[str, dict[str, str]] = {}
    for name, value in values.items():
        match = _SETTING.fullmatch(name)
        if match is not None:
            by_store.setdefault(match[1], {})[match[2]] = cast(str, value)
    stores = {store: ObjectStoreSettings(**options) for store, options in by_store.items()}
    for store, each in stores.items():
        if each.endpoint and not _ENDPOINT.fullmatch(each.endpoint):
            raise InvalidSettings(
                f"{SECTION}.{store}.endpoint must be a URL such as https://s3.example:9000, without credentials"
            )
    return stores


def flatten_tables(file: object, tables: object) -> dict[str, object]:
    """Return the settings of the file's section by name. Raises InvalidSettings."""
    flat: dict[str, object] = {}
    if not isinstance(tables, dict):
        raise InvalidSettings(f"{file}: {SECTION} must be a table; write [{SECTION}.NAME] and its settings below")
    for store, table in cast(dict[str, object], tables).items():
        if not isinstance(table, dict):
            raise InvalidSettings(f"{file}: {SECTION}.{store} must be a table; write [{SECTION}.{store}]")
        flat |= {f"{SECTION}.{store}.{field}": value for field, value in cast(dict[str, object], table).items()}
    check_names(flat, str(file))
    return flat


def check_names(names: Iterable[str], source: str) -> None:
    """Raise InvalidSettings for a name that is no setting of a named store."""
    for name in names:
        if not is_store_setting(name):
            raise InvalidSettings(
                f"{source}: {name} is not a setting; the name of a store has lower-case letters, digits and _, and its "
                f"settings are {', '.join(FIELDS)}"
            )
