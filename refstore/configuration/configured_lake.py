"""Find the settings of this process, and open the lake that they name.

Every entry point opens its lake here: the commands, `refstore.open`, the HTTP service, the reaper and the offline job.
So all of them find the lake in one way, and none works with durations that the lake's other processes do not expect.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from refstore.configuration.settings import Settings
from refstore.configuration.settings_loader import LoadedSettings, load_settings
from refstore.core.file_modes import make_folder
from refstore.core.user_folders import config_folder, data_folder
from refstore.errors import InvalidSettings, NotFound
from refstore.lake import Lake
from refstore.purge_document.purge_key import read_purge_key


def find_settings(flags: Mapping[str, object], *, given_as: str = "") -> LoadedSettings:
    """Load the settings in force from `flags`, the environment, and one TOML file. Raises InvalidSettings."""
    return load_settings(flags, os.environ, config_folder(), default_data=data_folder(), given_as=given_as)


def open_lake(
    settings: Settings,
    *,
    create: bool = False,
    only_read: bool = False,
    check_durations: bool = True,
    check_identity: bool = True,
    allow_foreign: Sequence[str] = (),
) -> Lake:
    """Open the lake of the settings. Raises DurationsDiffer, and whatever `Lake.open` raises.

    `create`: make the folder of the embedded default if it is missing; otherwise raise NotFound. `only_read`: write
    nothing, not even the id and the durations of a lake that has none yet. `check_durations`: False only for who shows
    or changes the agreed durations, whatever its own are. `check_identity`: as in `Lake.open`. `allow_foreign`:
    URLs of folders below which foreign objects may be read, beside those of the settings.
    """
    if settings.data is not None:
        if create:
            _make_folder(settings.data)
        elif not _is_folder(settings.data):
            raise NotFound(
                f"there is no lake in {settings.data}; make its first repository with: refstore repo create NAME "
                "--data DIR"
            )
    return Lake.open(
        settings.kv,
        settings.objects,
        safety=settings.safety,
        explicit=settings.explicit_safety if check_durations else {},
        signing_keys=settings.parsed_signing_keys,
        import_from=(*settings.import_from, *allow_foreign),
        object_stores=settings.named_stores,
        read_purge_key=partial(read_purge_key, settings.purge_key, settings.data),
        only_read=only_read,
        check_identity=check_identity,
    )


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
