"""refstore deletes what a versioned data lake no longer needs, and never what is still named.

    import refstore

    with refstore.open(data="./lake") as lake:
        repo = lake.create_repository("sales")
        repo.upload("main", "2026/11/21.csv", b"...")
        repo.commit("main", "first day")

`refstore.repository.Repository` is the embedded SDK; `refstore.errors` the errors; `docs/protocol.md` the rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refstore.lake import Lake
    from refstore.safety import Safety

__version__ = "0.1.0"


def open(data: str | None = None, *, kv: str | None = None, objects: str | None = None, safety: Safety | None = None) -> Lake:  # noqa: A001  # refstore.open
    """Open a lake: the embedded default under the folder `data`, or any KV and object store by URL. Raises InvalidSettings."""
    from refstore.errors import InvalidSettings
    from refstore.file_modes import make_folder
    from refstore.lake import Lake
    from refstore.settings import embedded

    if (data is None) == (kv is None and objects is None) or (kv is None) != (objects is None):
        raise InvalidSettings("give either data, a folder, or both kv and objects, as URLs")
    if data is not None:
        folder = Path(data).absolute()
        make_folder(folder)
        kv, objects = embedded(folder)
    assert kv is not None  # noqa: S101  # checked above
    assert objects is not None  # noqa: S101  # likewise
    return Lake.open(kv, objects, safety=safety)
