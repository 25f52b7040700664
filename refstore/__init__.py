"""refstore deletes what a versioned data lake no longer needs, and never what is still named.

    import refstore

    with refstore.open(data="./lake") as lake:
        repo = lake.create_repository("sales")
        repo.upload("main", "2026/11/21.csv", b"...")
        print(repo.commit("main", "first day").id)

`open` returns a `Lake`, which makes and opens each `Repository`: the class with every operation. `Upload`, `Stage`,
`Link`, `Copy` and `Move` are the items of its bulk calls. All errors derive from `RefstoreError`; `refstore.errors`
draws their tree. `docs/protocol.md` has the rules that deletion follows.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from os import PathLike, fspath
from typing import TYPE_CHECKING

from refstore import errors
from refstore.errors import RefstoreError

if TYPE_CHECKING:
    from refstore.core.safety import Safety
    from refstore.deletion_history.explain import AddressReport, PathReport
    from refstore.lake import Lake
    from refstore.operations.address_info import AddressInfo, AddressState
    from refstore.operations.commit import CommitDetails
    from refstore.operations.copy import Copy
    from refstore.operations.import_objects import ImportResult
    from refstore.operations.log_and_diff import CommitLifetime, LogEntry
    from refstore.operations.move import Move
    from refstore.operations.read import ListedPath, ListingPage
    from refstore.operations.restore import RestoreOutcome, RestoreRequest, RestoreResult
    from refstore.operations.unmark import UnmarkResult
    from refstore.operations.upload import IssuedAddress, Link, Stage, Upload
    from refstore.public_types import Commit, Entry, Mark, NamedEntry, PathChange, TrashItem
    from refstore.records.branch_records import StoredBranch, StoredTag
    from refstore.records.repository_records import ImportSource
    from refstore.repository import Repository
    from refstore.versioning.commits.tree_diff import PathChangeKind

__version__ = "0.1.0"

__all__ = [
    "AddressInfo",
    "AddressReport",
    "AddressState",
    "Commit",
    "CommitDetails",
    "CommitLifetime",
    "Copy",
    "Entry",
    "ImportResult",
    "ImportSource",
    "IssuedAddress",
    "Lake",
    "Link",
    "ListedPath",
    "ListingPage",
    "LogEntry",
    "Mark",
    "Move",
    "NamedEntry",
    "PathChange",
    "PathChangeKind",
    "PathReport",
    "RefstoreError",
    "Repository",
    "RestoreOutcome",
    "RestoreRequest",
    "RestoreResult",
    "Safety",
    "Stage",
    "StoredBranch",
    "StoredTag",
    "TrashItem",
    "UnmarkResult",
    "Upload",
    "errors",
    "open",
]

_MODULES = {
    "AddressInfo": "operations.address_info",
    "AddressReport": "deletion_history.explain",
    "AddressState": "operations.address_info",
    "Commit": "public_types",
    "CommitDetails": "operations.commit",
    "CommitLifetime": "operations.log_and_diff",
    "Copy": "operations.copy",
    "Entry": "public_types",
    "ImportResult": "operations.import_objects",
    "ImportSource": "records.repository_records",
    "IssuedAddress": "operations.upload",
    "Lake": "lake",
    "Link": "operations.upload",
    "ListedPath": "operations.read",
    "ListingPage": "operations.read",
    "LogEntry": "operations.log_and_diff",
    "Mark": "public_types",
    "Move": "operations.move",
    "NamedEntry": "public_types",
    "PathChange": "public_types",
    "PathChangeKind": "versioning.commits.tree_diff",
    "PathReport": "deletion_history.explain",
    "Repository": "repository",
    "RestoreOutcome": "operations.restore",
    "RestoreRequest": "operations.restore",
    "RestoreResult": "operations.restore",
    "Safety": "core.safety",
    "Stage": "operations.upload",
    "StoredBranch": "records.branch_records",
    "StoredTag": "records.branch_records",
    "TrashItem": "public_types",
    "UnmarkResult": "operations.unmark",
    "Upload": "operations.upload",
}
"""Where each name is defined. A name is imported on first use, because a lake needs PyArrow, which takes a second."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def open(  # noqa: A001  # refstore.open
    data: str | PathLike[str] | None = None,
    *,
    kv: str | None = None,
    objects: str | None = None,
    safety: Safety | Mapping[str, float | str] | None = None,
    object_stores: Mapping[str, Mapping[str, str]] | None = None,
    config: str | PathLike[str] | None = None,
    import_from: Sequence[str] | None = None,
) -> Lake:
    """Open a lake: an embedded one in the folder `data`, which is made if missing; or one on any stores, by their URLs.

    `kv` is a URL such as `redis://host:6379/0` or `sqlite:///path`; `objects` one such as `s3://bucket/prefix` or
    `file:///folder`. What is not given comes from the environment (`REFSTORE_DATA`, ...), from one TOML file (`config`,
    `REFSTORE_CONFIG`, or that of the user's configuration directory) or from the defaults, as for every command.

    `safety`: durations that safety rests on, all of them or some by their names. Those that other processes rely on
    must be the ones that the lake's processes have agreed on; what is not given is taken from there.

    `object_stores`: how the S3 services are reached that namespaces name (`s3://bucket/prefix?endpoint=archive`), such
    as `{"archive": {"endpoint": "https://s3.example"}}`.

    `import_from`: URLs of folders, such as `s3://bucket/prefix/`. Only below them `read` and `get` read objects outside
    the lake, which anybody who may write to a branch can stage.

    Close the lake, or use it as a context manager. Raises WrongStore (the KV and the object store belong to different
    lakes), InvalidSettings, DurationsDiffer, MissingExtra, StoreMisconfigured, KVUnavailable, ObjectsUnavailable.
    """
    from dataclasses import asdict

    from refstore.configuration.configured_lake import find_settings, open_lake
    from refstore.core.safety import Safety

    durations = asdict(safety) if isinstance(safety, Safety) else dict(safety or {})
    stores = {"data": data, "kv": kv, "objects": objects, "config": config}
    flags: dict[str, object] = {name: None if value is None else fspath(value) for name, value in stores.items()}
    flags["import_from"] = None if import_from is None else tuple(import_from)
    flags |= {f"safety.{name}": value for name, value in durations.items()}
    flags |= {
        f"object_stores.{store}.{name}": value
        for store, options in (object_stores or {}).items()
        for name, value in options.items()
    }
    loaded = find_settings(flags, given_as="argument of refstore.open")
    for warning in loaded.warnings:
        warnings.warn(warning, stacklevel=2)
    return open_lake(loaded.settings, create=True)
