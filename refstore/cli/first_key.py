"""Make a service's first access key, an operator's. It comes from the environment, or from a new file that only its
owner can read.

A secret printed to standard error would stay in the system's journal, where others may read it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import typer

from refstore.core.file_modes import make_folder
from refstore.core.user_folders import state_folder
from refstore.errors import Conflict, InvalidSettings
from refstore.lake import Lake
from refstore.service import access_keys

KEY_ID: Final = "REFSTORE_ACCESS_KEY_ID"
SECRET: Final = "REFSTORE_SECRET_ACCESS_KEY"  # noqa: S105  # a variable's name


def see_to_first_key(lake: Lake, data: Path | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the id of an access key that can be named to people, and where its secret is; '' where nothing is known.

    Make the operator's key of the environment. Without one, and if the lake has no key, write a new key into a file.

    `data`: the embedded default's folder, which takes the file; None: the user's state folder. Raises InvalidSettings,
    Invalid.
    """
    key_id, secret = environ.get(KEY_ID, ""), environ.get(SECRET, "")
    if bool(key_id) != bool(secret):
        raise InvalidSettings(f"{KEY_ID} and {SECRET} must be given together; give both, or neither")
    if key_id:
        try:
            access_keys.ensure_key(lake, key_id, secret)
        except Conflict as error:  # the service goes on with its other keys; the old secret of a rotation stays ended
            typer.echo(f"refstore: warning: {KEY_ID} and {SECRET} open nothing: {error}", err=True)
        return key_id, f"${SECRET}"
    if not access_keys.has_any_key(lake.kv):
        place = _make_in_file(lake, data if data is not None else state_folder())
        typer.echo(f"The first access key, an operator's, is in {place}; keep it, and remove the file", err=True)
        return place.stem.removeprefix("first-access-key-"), f"the secret in {place}"
    return "", ""


def _make_in_file(lake: Lake, folder: Path) -> Path:
    """Make a key and return the file that holds it. The file is written first, because a lost secret would leave the
    lake with a useless key.
    """
    key_id, secret = access_keys.new_id(), access_keys.new_secret()
    place = folder / f"first-access-key-{key_id}.env"
    try:
        make_folder(folder)
        _write_private(place, f"{KEY_ID}={key_id}\n{SECRET}={secret}\n")
    except OSError as error:
        _remove(place)
        raise InvalidSettings(
            f"the first access key cannot be written to {place} ({error.strerror}); give it with {KEY_ID} and "
            f"{SECRET}, or name another folder with XDG_STATE_HOME"
        ) from error
    try:
        access_keys.create_key(
            lake, access_keys.Role.OPERATOR, id=key_id, secret=secret, description="made by the first refstore serve"
        )
    except BaseException:
        if access_keys.find_key(lake.kv, key_id) is None:
            _remove(place)
        raise
    return place


def _write_private(place: Path, text: str) -> None:
    """Write a new file with mode 0600, even in a folder that is shared by a group. Raises OSError, also if the file
    exists.
    """
    with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _remove(place: Path) -> None:
    with suppress(OSError):  # it is not there, or the folder is not; the name is random, so it is nobody else's
        place.unlink()
