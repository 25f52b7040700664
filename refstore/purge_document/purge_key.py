"""The key of the purge: what it keeps about ids is hashed with it, so that nobody who lacks it can guess ids.

It stands in the settings (`read_purge_key`), and neither in the KV nor in the namespace. With `--data DIR` it may lie
in a file of its own in that folder instead, which is made at first use.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from refstore.errors import InvalidSettings

FILE: Final = "purge.key"
PURGE_KEY_CHARACTERS: Final = 32


def read_purge_key(setting: str, data: Path | None) -> bytes | None:
    """Return the key: the setting's, or that of the file in the embedded default's folder, which is made if it is
    missing. None: the stores were given by URL, and no key is set.

    Raises InvalidSettings if the file cannot be read or written, or is no key.
    """
    if setting:
        return setting.encode()
    if data is None:
        return None
    file = data / FILE
    try:
        made = os.urandom(32).hex()
        # written under another name first, so that nobody reads half a key
        part = file.with_name(f"{FILE}.{os.getpid()}-{made[:8]}")
        if not file.exists():
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
                opened.write(made + "\n")
            try:
                os.link(part, file)
            except FileExistsError:
                pass  # another process was quicker, and its key counts
            finally:
                part.unlink()
        found = file.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{file}, which has the purge's key, cannot be read or made ({error})") from error
    if len(found) < PURGE_KEY_CHARACTERS:
        raise InvalidSettings(
            f"{file} has no key of at least {PURGE_KEY_CHARACTERS} characters; restore it, or remove it"
        )
    return found.encode()
