"""Find the folders of a user's own files: XDG's, or `~/Library/Application Support` on macOS.

A variable such as XDG_CONFIG_HOME counts on both, if it is an absolute path. platformdirs does the same, but importing
it takes a tenth of the time of a short command.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_NAME: Final = "refstore"


def config_folder() -> Path:
    return _user_folder("XDG_CONFIG_HOME", "~/.config")


def data_folder() -> Path:
    return _user_folder("XDG_DATA_HOME", "~/.local/share")


def state_folder() -> Path:
    return _user_folder("XDG_STATE_HOME", "~/.local/state")


def _user_folder(variable: str, elsewhere: str) -> Path:
    default = "~/Library/Application Support" if sys.platform == "darwin" else elsewhere
    named = Path(os.environ.get(variable, ""))
    return (named if named.is_absolute() else Path(default).expanduser()) / _NAME
