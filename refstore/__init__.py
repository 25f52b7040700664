"""refstore deletes what a versioned data lake no longer needs, and never what is still named.

    import refstore

    with refstore.create("./lake") as lake:
        repo = lake.create_repository("sales")
        repo.upload("main", "2026/11/21.csv", b"...")
        print(repo.commit("main", "first day").id)

`create` makes a `Lake`, and `open` opens one that is there. It makes and opens each `Repository`: the class with every
operation. `Branch`, `Tag` and `Ref` are handles that have them without the name in each call. `Upload`, `Stage`,
`Link`, `Copy` and `Move` are the items of its bulk calls. A call names what it reads before what it writes, and the
second of two names is a keyword: `repo.merge("dev", into="main")`. All errors derive from `RefstoreError`;
`refstore.errors` draws their tree. `docs/protocol.md` has the rules that deletion follows.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from os import PathLike, fspath
from typing import TYPE_CHECKING

from refstore import errors
from refstore.errors import RefstoreError

if TYPE_CHECKING:
    from refstore.core.safety import Safety
    from refstore.core.step_progress import StepProgress
    from refstore.deletion_history.deletion_search import MarkedFor
    from refstore.deletion_history.explain import AddressReport, Deletion, PathReport, PathVersion
    from refstore.deletion_history.naming_commits import NamingCommit, NamingCommits, Version
    from refstore.handles import Branch, Ref, Tag
    from refstore.lake import Lake
    from refstore.operations.address_info import AddressInfo, AddressReference, AddressState, ReferenceState
    from refstore.operations.commit import CommitDetails
    from refstore.operations.committed_names import CommittedName
    from refstore.operations.copy import Copy
    from refstore.operations.import_objects import ImportResult
    from refstore.operations.log_and_diff import CommitLifetime, LogEntry
    from refstore.operations.move import Move
    from refstore.operations.onboard import OnboardedDocument
    from refstore.operations.purge_roles import AddressRole, PurgeRole
    from refstore.operations.read import ListedPath, ListingPage
    from refstore.operations.restore import RestoreOutcome, RestoreRequest, RestoreResult
    from refstore.operations.rule_review import RuleReview
    from refstore.operations.rules_in_force import RetentionRules
    from refstore.operations.unmark import UnmarkResult
    from refstore.operations.upload import IssuedAddress, Link, Stage, Upload
    from refstore.public_types import Commit, Entry, Mark, NamedEntry, PathChange, TrashItem
    from refstore.purge_document.document import BackupPolicy, Dataset, PurgeDocument, TrashPolicy
    from refstore.records.repository_records import ImportSource
    from refstore.repository import Repository
    from refstore.retention.rule_changes import ChangeKind, RuleChange
    from refstore.retention.rules import BranchRule, GcRules, LegalHold, Pins
    from refstore.retention.typed_rules import PathRetention, Retention
    from refstore.transactions import Transaction
    from refstore.versioning.commits.tree_diff import PathChangeKind

__version__ = "0.1.0"

__all__ = [
    "AddressInfo",
    "AddressReference",
    "AddressReport",
    "AddressRole",
    "AddressState",
    "BackupPolicy",
    "Branch",
    "BranchRule",
    "ChangeKind",
    "Commit",
    "CommitDetails",
    "CommitLifetime",
    "CommittedName",
    "Copy",
    "Dataset",
    "Deletion",
    "Entry",
    "GcRules",
    "ImportResult",
    "ImportSource",
    "IssuedAddress",
    "Lake",
    "LegalHold",
    "Link",
    "ListedPath",
    "ListingPage",
    "LogEntry",
    "Mark",
    "MarkedFor",
    "Move",
    "NamedEntry",
    "NamingCommit",
    "NamingCommits",
    "OnboardedDocument",
    "PathChange",
    "PathChangeKind",
    "PathReport",
    "PathRetention",
    "PathVersion",
    "Pins",
    "PurgeDocument",
    "PurgeRole",
    "Ref",
    "ReferenceState",
    "RefstoreError",
    "Repository",
    "RestoreOutcome",
    "RestoreRequest",
    "RestoreResult",
    "Retention",
    "RetentionRules",
    "RuleChange",
    "RuleReview",
    "Safety",
    "Stage",
    "StepProgress",
    "Tag",
    "Transaction",
    "TrashItem",
    "TrashPolicy",
    "UnmarkResult",
    "Upload",
    "Version",
    "create",
    "errors",
    "open",
]

_MODULES = {
    "AddressInfo": "operations.address_info",
    "AddressReference": "operations.address_info",
    "AddressReport": "deletion_history.explain",
    "AddressRole": "operations.purge_roles",
    "AddressState": "operations.address_info",
    "BackupPolicy": "purge_document.document",
    "Branch": "handles",
    "BranchRule": "retention.rules",
    "ChangeKind": "retention.rule_changes",
    "Commit": "public_types",
    "CommitDetails": "operations.commit",
    "CommitLifetime": "operations.log_and_diff",
    "CommittedName": "operations.committed_names",
    "Copy": "operations.copy",
    "Dataset": "purge_document.document",
    "Deletion": "deletion_history.explain",
    "Entry": "public_types",
    "GcRules": "retention.rules",
    "ImportResult": "operations.import_objects",
    "ImportSource": "records.repository_records",
    "IssuedAddress": "operations.upload",
    "Lake": "lake",
    "LegalHold": "retention.rules",
    "Link": "operations.upload",
    "ListedPath": "operations.read",
    "ListingPage": "operations.read",
    "LogEntry": "operations.log_and_diff",
    "Mark": "public_types",
    "MarkedFor": "deletion_history.deletion_search",
    "Move": "operations.move",
    "NamedEntry": "public_types",
    "NamingCommit": "deletion_history.naming_commits",
    "NamingCommits": "deletion_history.naming_commits",
    "OnboardedDocument": "operations.onboard",
    "PathChange": "public_types",
    "PathChangeKind": "versioning.commits.tree_diff",
    "PathReport": "deletion_history.explain",
    "PathRetention": "retention.typed_rules",
    "PathVersion": "deletion_history.explain",
    "Pins": "retention.rules",
    "PurgeDocument": "purge_document.document",
    "PurgeRole": "operations.purge_roles",
    "Ref": "handles",
    "ReferenceState": "operations.address_info",
    "Repository": "repository",
    "RestoreOutcome": "operations.restore",
    "RestoreRequest": "operations.restore",
    "RestoreResult": "operations.restore",
    "Retention": "retention.typed_rules",
    "RetentionRules": "operations.rules_in_force",
    "RuleChange": "retention.rule_changes",
    "RuleReview": "operations.rule_review",
    "Safety": "core.safety",
    "Stage": "operations.upload",
    "StepProgress": "core.step_progress",
    "Tag": "handles",
    "Transaction": "transactions",
    "TrashItem": "public_types",
    "TrashPolicy": "purge_document.document",
    "UnmarkResult": "operations.unmark",
    "Upload": "operations.upload",
    "Version": "deletion_history.naming_commits",
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
    path_or_url: str | PathLike[str] | None = None,
    *,
    kv: str | None = None,
    objects: str | None = None,
    create: bool = False,
    read_only: bool = False,
    safety: Safety | Mapping[str, timedelta | str] | None = None,
    stores: Mapping[str, Mapping[str, str]] | None = None,
    config: str | PathLike[str] | None = None,
    import_from: Sequence[str] | None = None,
) -> Lake:
    """Open a lake that is there: an embedded one in a folder, by its path or `file:///` URL; or one on any stores, by
    their URLs. `create`: make it if it is not there, as `refstore.create` does. `read_only`: nothing is written through
    this lake, and every operation that would write raises LakeReadOnly.

    `kv` is a URL such as `redis://host:6379/0` or `sqlite:///path`; `objects` one such as `s3://bucket/prefix` or
    `file:///folder`. What is not given comes from the environment (`REFSTORE_DATA`, ...), from one TOML file (`config`,
    `REFSTORE_CONFIG`, or that of the user's configuration directory) or from the defaults, as for every command.

    `safety`: durations that safety rests on, all of them or some by their names, such as `{"grace": "2h"}` or
    `{"grace": timedelta(hours=2)}`. Those that other processes rely on must be the ones that the lake's processes have
    agreed on; what is not given is taken from there.

    `stores`: how the S3 services are reached that namespaces name (`s3://bucket/prefix?endpoint=archive`), such
    as `{"archive": {"endpoint": "https://s3.example"}}`.

    `import_from`: URLs of folders, such as `s3://bucket/prefix/`. Only below them `read` and `get` read objects outside
    the lake, which anybody who may write to a branch can stage.

    Close the lake, or use it as a context manager. Raises NotFound (there is no lake), WrongStore (the KV and the
    object store belong to different lakes), InvalidSettings, DurationsDiffer, MissingExtra, StoreMisconfigured,
    KVUnavailable, ObjectsUnavailable.
    """
    from dataclasses import replace

    if create and read_only:
        raise errors.Invalid("create=True makes a lake, and read_only=True writes nothing; leave one of them out")
    from refstore.configuration.configured_lake import find_settings, open_lake

    places = {"data": _folder_of(path_or_url), "kv": kv, "objects": objects, "config": config}
    flags: dict[str, object] = {name: None if value is None else fspath(value) for name, value in places.items()}
    flags["import_from"] = None if import_from is None else tuple(import_from)
    loaded = find_settings(flags | _options_of(stores or {}), given_as="argument of refstore.open")
    for warning in loaded.warnings:
        warnings.warn(warning, stacklevel=2)
    own, explicit = _read_safety(loaded.settings.safety, safety)
    return open_lake(
        replace(loaded.settings, safety=own),
        explicit=dict.fromkeys(explicit, "argument of refstore.open"),
        create=create,
        must_exist=not create,
        read_only=read_only,
    )


def _read_safety(
    configured: Safety, given: Safety | Mapping[str, timedelta | str] | None
) -> tuple[Safety, Collection[str]]:
    """Return the durations of a process, and the names of those that the application gave. Raises InvalidSettings."""
    from refstore.core.safety import SHARED, Safety

    if isinstance(given, Safety):
        return given, SHARED
    return configured.with_given(given or {}), tuple(f"{name}_seconds" for name in given or ())


def create(
    path_or_url: str | PathLike[str] | None = None,
    *,
    kv: str | None = None,
    objects: str | None = None,
    safety: Safety | Mapping[str, timedelta | str] | None = None,
    stores: Mapping[str, Mapping[str, str]] | None = None,
    config: str | PathLike[str] | None = None,
    import_from: Sequence[str] | None = None,
) -> Lake:
    """Open a lake, and make it first if it is not there, with its folder. Arguments and errors are those of `open`."""
    return open(
        path_or_url,
        kv=kv,
        objects=objects,
        create=True,
        safety=safety,
        stores=stores,
        config=config,
        import_from=import_from,
    )


def _options_of(stores: Mapping[str, Mapping[str, str]]) -> dict[str, object]:
    """Return the settings of named stores."""
    return {f"stores.{store}.{name}": value for store, options in stores.items() for name, value in options.items()}


def _folder_of(path_or_url: str | PathLike[str] | None) -> str | PathLike[str] | None:
    """Return the path of a folder. Raises InvalidSettings for a URL that names none."""
    if not isinstance(path_or_url, str) or "://" not in path_or_url:
        return path_or_url
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(path_or_url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise errors.InvalidSettings(
            "a URL of a lake is that of its folder, such as file:///srv/lake; name other stores with kv= and objects="
        )
    return unquote(parts.path)
