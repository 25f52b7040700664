"""Find the settings of this process, and open the lake that they name.

Every entry point opens its lake here: the commands, `refstore.open`, the HTTP service, the reaper and the offline job.
So all of them find the lake in one way, and none works with durations that the lake's other processes do not expect.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from refstore.configuration.settings import KV_FILE, Settings
from refstore.configuration.settings_loader import LoadedSettings, load_settings
from refstore.core.file_modes import make_folder
from refstore.core.suggestions import find_nearest
from refstore.core.user_folders import config_folder, data_folder
from refstore.errors import InvalidSettings, NotFound
from refstore.kv import open_kv
from refstore.lake import Lake, open_lake_at
from refstore.objects import open_objects
from refstore.purge_document import purge_key


def find_settings(flags: Mapping[str, object], *, given_as: str = "") -> LoadedSettings:
    """Load the settings in force from `flags`, the environment, and one TOML file. Raises InvalidSettings."""
    return load_settings(flags, os.environ, config_folder(), default_data=data_folder(), given_as=given_as)


def open_lake(
    settings: Settings,
    *,
    explicit: Mapping[str, str] | None = None,
    create: bool = False,
    must_exist: bool = False,
    read_only: bool = False,
    check_identity: bool = True,
    allow_foreign: Sequence[str] = (),
) -> Lake:
    """Open the lake of the settings. Raises DurationsDiffer, and whatever `open_lake_at` raises.

    `explicit`: the durations of `settings.safety` that must be those that the lake's processes have agreed on, and
    where each came from. `create`: make the folder of the embedded default if it is missing; otherwise raise NotFound.
    `must_exist`: raise NotFound where no lake is, and make none. `read_only`: write nothing, not even the id and the
    durations of a lake that has none yet; what would write raises LakeReadOnly. `check_identity`: as in `open_lake_at`.
    `allow_foreign`: URLs of folders below which foreign objects may be read, beside those of the settings.
    """
    if settings.data is not None:
        if create:
            _make_folder(settings.data)
        elif not _is_folder(settings.data):
            raise NotFound(
                f"there is no lake in {settings.data}{_suggest(settings.data)}; make its first repository with: "
                "refstore repo create NAME --data DIR, or the lake with: refstore.create(...)"
            )
        elif must_exist and not (settings.data / KV_FILE).exists():
            raise NotFound(f"there is no lake in {settings.data}; make it with: refstore.create(...)")
    may_have_key = settings.data is not None and (not read_only or (settings.data / purge_key.FILE).exists())
    return open_lake_at(
        settings.kv,
        settings.objects,
        safety=settings.safety,
        explicit=explicit or {},
        signing_keys=settings.parsed_signing_keys,
        import_from=(*settings.import_from, *allow_foreign),
        stores=settings.named_stores,
        must_exist=must_exist,
        read_purge_key=partial(purge_key.read_purge_key, settings.purge_key, settings.data if may_have_key else None),
        read_only=read_only,
        check_identity=check_identity,
    )


def make_lake(settings: Settings, kv_url: str) -> Lake:
    """Return the lake of the settings by another KV, where nobody has looked what is in it. Raises InvalidSettings."""
    io_seconds = settings.safety.objects_io_seconds
    return Lake(
        open_kv(kv_url),
        settings.objects,
        safety=settings.safety,
        open_store=partial(open_objects, io_timeout_seconds=io_seconds),
        stores=settings.named_stores,
    )


def _suggest(folder: Path) -> str:
    """Return which lake is near a folder that is not there, as the end of a sentence."""
    try:
        lakes = {other.name: other for other in folder.parent.iterdir() if (other / KV_FILE).is_file()}
    except OSError:
        return f", nor is there {folder.parent}"
    near = find_nearest(folder.name, lakes)
    return f"; did you mean {lakes[near]}?" if near else ""


def _make_folder(folder: Path) -> None:
    try:
        make_folder(folder)
    except OSError as error:
        raise InvalidSettings(
            f"{folder} cannot be created ({error.strerror}); name another folder with --data"
        ) from error


def _is_folder(folder: Path) -> bool:
    try:
        return folder.is_dir()
    except OSError as error:
        raise InvalidSettings(
            f"{folder} cannot be accessed ({error.strerror}); name another folder with --data"
        ) from error
