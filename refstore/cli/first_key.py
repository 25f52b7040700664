"""The first access key of a service: an operator's, from the environment, or made and left in a file that only its owner reads.

A secret on standard error would stand in the system's journal for as long as that is kept, for everybody who may read it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import typer

from refstore import access
from refstore.errors import Conflict, InvalidSettings
from refstore.file_modes import make_folder
from refstore.lake import Lake

KEY_ID: Final = "REFSTORE_ACCESS_KEY_ID"
SECRET: Final = "REFSTORE_SECRET_ACCESS_KEY"  # noqa: S105  # a variable's name


def see_to_first_key(lake: Lake, data: Path | None, environ: Mapping[str, str]) -> None:
    """Make the operator's key that the environment names, or, where the lake has no key at all, one whose secret goes into a file.

    `data`: the embedded default's folder, which takes the file; None: the state folder of the user does. Raises InvalidSettings, Invalid.
    """
    key_id, secret = environ.get(KEY_ID, ""), environ.get(SECRET, "")
    if bool(key_id) != bool(secret):
        raise InvalidSettings(f"{KEY_ID} and {SECRET} must be given together; give both, or neither")
    if key_id:
        try:
            access.ensure(lake.kv, lake.clock, key_id, secret)
        except Conflict as error:  # the service goes on with its other keys; the old secret of a rotation stays ended
            typer.echo(f"refstore: warning: {KEY_ID} and {SECRET} open nothing: {error}", err=True)
    elif not access.any_there(lake.kv):
        place = _make_in_file(lake, data if data is not None else _state_folder())
        typer.echo(f"The first access key, an operator's, is in {place}; keep it, and remove the file", err=True)


def _make_in_file(lake: Lake, folder: Path) -> Path:
    """Make a key and return the file that holds it. The file comes first: a key whose secret nobody has would be the only one."""
    key_id, secret = access.new_id(), access.new_secret()
    place = folder / f"first-access-key-{key_id}.env"
    try:
        make_folder(folder)
        _write_private(place, f"{KEY_ID}={key_id}\n{SECRET}={secret}\n")
    except OSError as error:
        _remove(place)
        raise InvalidSettings(
            f"the first access key cannot be written to {place} ({error.strerror}); give it with {KEY_ID} and {SECRET}, or name another"
            " folder with XDG_STATE_HOME"
        ) from error
    try:
        access.create(lake.kv, lake.clock, access.Role.OPERATOR, id=key_id, secret=secret, description="made by the first refstore serve")
    except BaseException:
        if access.find(lake.kv, key_id) is None:
            _remove(place)
        raise
    return place


def _write_private(place: Path, text: str) -> None:
    """Write a new file with mode 0600, also in a folder that is shared by group. Raises OSError: also where something is there."""
    with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _remove(place: Path) -> None:
    with suppress(OSError):  # it is not there, or the folder is not; the name is random, so it is nobody else's
        place.unlink()


def _state_folder() -> Path:
    import platformdirs

    return platformdirs.user_state_path("refstore", appauthor=False)
