"""Read a key of a setting, or that of a file in the embedded default's folder, which is made at first use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from refstore.core.file_modes import modes_for
from refstore.errors import InvalidSettings

KEY_CHARACTERS: Final = 32
"""The least number of a key's characters."""


def read_key(setting: str, data: Path | None, file_name: str, what: str) -> bytes | None:
    """Return the key: the setting's, or that of the file in the embedded default's folder, which is made if it is
    missing. None: the stores were given by URL, and no key is set.

    `what`: what the key is, for errors. Raises InvalidSettings if the file cannot be read or written, or is no key.
    """
    if setting:
        return setting.encode()
    if data is None:
        return None
    file = data / file_name
    try:
        if not file.exists():
            _make_key(file)
        key = file.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{file}, which has {what}, cannot be read or made ({error})") from error
    if len(key) < KEY_CHARACTERS:
        raise InvalidSettings(f"{file} has no key of at least {KEY_CHARACTERS} characters; restore it, or remove it")
    return key.encode()


def _make_key(file: Path) -> None:
    """Write a new key, under another name first, so that nobody reads half a key."""
    key = os.urandom(32).hex()
    part = file.with_name(f"{file.name}.{os.getpid()}-{os.urandom(4).hex()}")
    modes = modes_for(file.parent.stat())
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, modes.file), "w") as opened:
        if modes.is_shared:
            os.fchmod(opened.fileno(), modes.file)
        opened.write(key + "\n")
        opened.flush()
        os.fsync(opened.fileno())
    try:
        os.link(part, file)
    except FileExistsError:
        pass  # another process was quicker, and its key counts
    finally:
        part.unlink()
