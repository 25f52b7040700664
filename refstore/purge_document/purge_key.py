"""The key of the purge: what it keeps about ids is hashed with it, so that nobody who lacks it can guess ids.

It stands in the settings (`read_purge_key`), and neither in the KV nor in the namespace. With `--data DIR` it may lie
in a file of its own in that folder instead, which is made at first use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from refstore.core.key_files import KEY_CHARACTERS, read_key

FILE: Final = "purge.key"
PURGE_KEY_CHARACTERS: Final = KEY_CHARACTERS


def read_purge_key(setting: str, data: Path | None) -> bytes | None:
    """Return the key; None: the stores were given by URL, and no key is set. Raises InvalidSettings."""
    return read_key(setting, data, FILE, "the purge's key")
