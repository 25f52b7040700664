"""The name of the package that pip installs: not `refstore`, which is somebody else's project on the Python index."""

from __future__ import annotations

from typing import Final

DISTRIBUTION: Final = "refstore-lake"
"""The name in pyproject.toml. The import name and the command are `refstore`."""


def install_command(extra: str) -> str:
    """Say how to install an extra beside what is there."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
