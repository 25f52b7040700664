"""Find and read the one TOML file of settings: the file that is named, or that of the user's configuration directory.

A file of the working folder is not looked for: it may have come with a download, and its settings decide which keys
sign tokens and how long data can be restored. The file of the configuration directory has to be the user's own, or
root's, and nobody else may write it, or put another in its place. A named file is taken as it is, because deployments
mount files of anybody's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from refstore.configuration.settings import ENVIRONMENT_PREFIX
from refstore.errors import InvalidSettings

CONFIG: Final = "config"
CONFIG_VARIABLE: Final = f"{ENVIRONMENT_PREFIX}CONFIG"
FILE_NAME: Final = "refstore.toml"

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class SettingsFile(NamedTuple):
    path: Path | None
    """None: no file is in force."""
    origin: str
    """Who named the file, or where it was looked for."""
    content: bytes = b""
    warnings: tuple[str, ...] = ()


def read_settings_file(
    flags: Mapping[str, object], environ: Mapping[str, str], user_folder: Path | None, given_as: str
) -> SettingsFile:
    """Read the file that `flags` or `environ` names, else that of `user_folder`. Raises InvalidSettings.

    `given_as`: what messages call the source of `flags`; '': the command line.
    """
    if named := flags.get(CONFIG):
        source = f"{CONFIG} ({given_as})" if given_as else f"--{CONFIG}"
        return _read_named(Path(str(named)), given_as or "command line", source)
    if variable := environ.get(CONFIG_VARIABLE):
        return _read_named(Path(variable), f"environment {CONFIG_VARIABLE}", CONFIG_VARIABLE)
    return SettingsFile(None, "default") if user_folder is None else _read_own(user_folder / FILE_NAME)


def _read_named(path: Path, origin: str, source: str) -> SettingsFile:
    path = path.expanduser()
    found = _read(path)
    if found is None:
        raise InvalidSettings(f"{source} names {path}, which is not a file; write it, or leave {source} out")
    content, status = found
    warning = f"everybody may write {path}, and so change these settings; look at them, then run: chmod o-w {path}"
    return SettingsFile(path, origin, content, (warning,) if status.st_mode & stat.S_IWOTH else ())


def _read_own(path: Path) -> SettingsFile:
    """Read the file of the configuration directory, if there is one. The checks are those of what was opened: what the
    names mean may change meanwhile.
    """
    folder = _open(path.parent, os.O_DIRECTORY | getattr(os, "O_PATH", 0))
    try:
        found = None if folder is None else _read(path, folder)
        if folder is None or found is None:
            return SettingsFile(None, f"there is no {path}")
        content, status = found
        _check_writers({path: status, path.parent: os.fstat(folder)})
    finally:
        if folder is not None:
            os.close(folder)
    return SettingsFile(path, "configuration directory", content)


def _check_writers(places: Mapping[Path, os.stat_result]) -> None:
    """Raise InvalidSettings if others than the user and root may write one of the places."""
    for place, status in places.items():
        if status.st_uid not in (os.geteuid(), 0):
            raise InvalidSettings(
                f"{place} belongs to the user {status.st_uid}, neither to you nor to root, so its settings are not "
                f"taken; give it to your user ({os.geteuid()}), or name a file with --{CONFIG} or {CONFIG_VARIABLE}"
            )
    open_places = [str(place) for place, status in places.items() if status.st_mode & _OTHERS_WRITE]
    if open_places:
        raise InvalidSettings(
            f"others may write {' and '.join(open_places)}, so the settings there are not taken; look at them, then "
            f"run: chmod go-w {' '.join(open_places)}"
        )


def _read(path: Path, folder: int | None = None) -> tuple[bytes, os.stat_result] | None:
    """Return what is in the file, and its state; None: it is not there, or is no file. `folder`: what holds it."""
    descriptor = _open(path, 0, folder)
    if descriptor is None:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(), status
    finally:
        os.close(descriptor)


def _open(path: Path, flags: int, folder: int | None = None) -> int | None:
    """Return a descriptor; None: there is nothing. Raises InvalidSettings if that is unknown, because a file that is
    there must not be ignored.
    """
    flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # without the last, a named pipe would be waited for
    try:
        return os.open(path if folder is None else path.name, flags, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidSettings(
            f"{path} cannot be accessed ({error.strerror}); make it and its folder readable, or name another file with "
            f"--{CONFIG}"
        ) from error
