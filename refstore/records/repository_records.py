"""Records of repositories: their life, retention rules and imports."""

from __future__ import annotations

from typing import NamedTuple

from refstore.core.ids import BranchName, RepositoryId
from refstore.records.encoding import Record


class RepositoryRecord(Record, frozen=True, tag=40):
    """`repositories/<name>`."""

    id: RepositoryId
    namespace: str
    """URL of the object store's namespace, perhaps relative to the lake's own (`refstore/objects/named_stores.py`)."""
    default_branch: BranchName
    created_ms: int
    metadata: dict[str, str] = {}
    grace_seconds: int = -1
    """-1: the reaper's default."""
    closed_ms: int = 0
    """When the repository was deleted; the record stays until the reaper has drained it. 0: it is not deleted."""
    rules_id: str = ""
    """The write id of the rules set last: a deletion that checked for legal holds before then finds another record."""
    given_namespace: str = ""
    """The namespace as a lakeFS client gave it (`local://...`), shown by the API instead of the URL; '': none."""
    is_bucket: bool = False
    """Whether an S3 client created it as a bucket, which is its default branch."""


class ClearedRepository(Record, frozen=True, tag=45):
    """`cleared-repositories/<repo>`: a deleted repository, from the first deletion of its data on."""

    namespace: str
    created_ms: int
    closed_ms: int
    cleared_ms: int
    runs: tuple[str, ...]
    """The runs of the offline job that deleted what was in it."""
    objects: int
    """How many objects they deleted, or found gone. What a bucket's own rule deletes (mode `tag`) is not counted."""
    bytes: int


class RetentionRecord(Record, frozen=True, tag=41):
    """`<repo>/retention/rules`: the rules document, whole."""

    document: str
    """The text as it was set (`refstore/retention/rules.py`)."""
    set_ms: int
    set_by: str
    write_id: str
    """Differs in every version of the record, so that a retried write recognises its own."""
    read_as: dict[str, str] = {}
    """Filter prefixes that were split as `branch/path` when the document was set, and the branch of each."""
    withheld: str = ""
    """Why nothing expires by these rules until an operator has set rules again. '': they are in force."""


class ImportSource(NamedTuple):
    """A source of an import: one foreign object, or all objects with a prefix."""

    url: str
    destination: str
    """The object's path; or the folder that all paths begin with."""
    is_object: bool = False


class ImportRecord(Record, frozen=True, tag=70):
    """`<repo>/imports/<id>`: an import in the background (`refstore/service/background_imports.py`)."""

    write_id: str
    state: str
    branch: BranchName
    sources: tuple[ImportSource, ...]
    message: str
    committer: str
    metadata: dict[str, str]
    allow_empty: bool
    began_ms: int
    updated_ms: int
    """The last heartbeat of its process; 0: that process ended, and another may continue at once."""
    objects: int = 0
    """How many objects were listed so far, or imported."""
    skipped_objects: int = 0
    attempts: int = 1
    commit: str = ""
    """The commit that it is about to land, or that landed."""
    error: str = ""
    error_code: str = ""
