"""The bodies of requests and answers, as lakeFS names them. Times are seconds since the epoch.

Unknown fields of a request are ignored, as lakeFS does. Names and bounds are those of lakeFS's public OpenAPI document;
a comment marks what only refstore has.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from refstore.core.ids import SIZE_BYTES_MAX
from refstore.core.json_documents import CHARACTERS_MAX
from refstore.core.units import DAY_SECONDS
from refstore.retention.rules import DAYS_MAX

PathText = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
NameText = Annotated[str, StringConstraints(min_length=1, max_length=255)]
RefText = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Metadata = dict[
    Annotated[str, StringConstraints(min_length=1, max_length=1024)], Annotated[str, StringConstraints(max_length=8192)]
]
MessageText = Annotated[str, StringConstraints(max_length=65_536)]
Seconds = Annotated[int, Field(ge=0, le=253_402_300_799)]

PATHS_MAX = 1000
"""Paths in one bulk request, as in lakeFS."""
RESUME_SECONDS_MAX = 30 * DAY_SECONDS
"""The reaper's own bound, too."""


class Model(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="null")


class Error(Model):
    message: str
    code: str = ""
    """refstore's own: stable, for machines."""


class Pagination(Model):
    has_more: bool
    next_offset: str
    results: int
    max_per_page: int


# ---- the installation


class VersionConfig(Model):
    version: str
    version_context: str = "refstore"


class StorageConfig(Model):
    blockstore_type: str
    blockstore_namespace_example: str
    blockstore_namespace_ValidityRegex: str  # noqa: N815  # lakeFS's word
    default_namespace_prefix: str | None = None
    pre_sign_support: bool
    pre_sign_support_ui: bool = False
    import_support: bool = False
    import_validity_regex: str = ""
    """'': every import is sent to the service, whose refusal says which setting is missing."""
    pre_sign_multipart_upload: bool = False


class CapabilitiesConfig(Model):
    async_ops: bool = False
    """Whether commits and merges can run in the background, with a status to poll."""


class Config(Model):
    version_config: VersionConfig
    storage_config: StorageConfig
    capabilities_config: CapabilitiesConfig = CapabilitiesConfig()


class GarbageCollectionConfig(Model):
    grace_period: int
    """Seconds."""


class SetupState(Model):
    state: Literal["initialized", "not_initialized"]
    comm_prefs_missing: bool = False


class LoginInformation(Model):
    access_key_id: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    secret_access_key: Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class AuthenticationToken(Model):
    token: str
    token_expiration: int


class User(Model):
    id: str
    creation_date: int
    friendly_name: str | None = None


class CurrentUser(Model):
    user: User


# ---- repositories, branches, tags


class RepositoryCreation(Model):
    name: NameText
    storage_namespace: Annotated[str, StringConstraints(max_length=2048)] = ""
    """'' or the default prefix of `storage_config`: a namespace below the lake's own objects."""
    storage_id: str = ""
    default_branch: NameText = "main"
    sample_data: bool = False
    read_only: bool = False


class RepositoryModel(Model):
    id: str
    creation_date: int
    default_branch: str
    storage_id: str = ""
    storage_namespace: str
    read_only: bool = False


class RepositoryList(Model):
    pagination: Pagination
    results: list[RepositoryModel]


class RepositoryMetadataSet(Model):
    metadata: Metadata


class RepositoryMetadataKeys(Model):
    keys: Annotated[list[str], Field(max_length=PATHS_MAX)]


class RefModel(Model):
    id: str
    commit_id: str


class RefList(Model):
    pagination: Pagination
    results: list[RefModel]


class BranchCreation(Model):
    name: NameText
    source: RefText
    hidden: bool = False


class ResetCreation(Model):
    type: Literal["object", "common_prefix", "reset"]
    path: Annotated[str, StringConstraints(max_length=1024)] | None = None


class TagCreation(Model):
    id: NameText
    ref: RefText


# ---- history


class CommitModel(Model):
    id: str
    parents: list[str]
    committer: str
    message: str
    creation_date: int
    meta_range_id: str
    metadata: dict[str, str] = {}
    notes: dict[str, str] | None = None
    """refstore's own: what it says itself of the commit, such as the run of a purge (`purge`), how many names an import
    left out (`skipped`), or the rule that removed entries (`rule`, `prefix`, `days`).
    """
    generation: int = 0
    version: int = 1
    state: str | None = None
    """refstore's own: active (or absent), "being examined" (it has expired, and the run under way has yet to find
    whether anything of it goes), marked, sweeping (it can no longer be unmarked), tagged (for the bucket to
    delete), swept (the data that only expired commits named is deleted); or "expired, nothing to delete": it has
    expired, and none of its objects is deleted. Of a commit that expired in part: "partly marked", "partly sweeping",
    "partly tagged", "partly swept"; and "partly swept, marked", where the rest, or another part, has expired since.
    """
    marked_since: int | None = None
    deletes_at: int | None = None
    mark_id: str | None = None
    expired_prefixes: list[str] | None = None
    """Only its objects at paths with these prefixes have expired (absent: all of them, if it is marked)."""


class ImportStatus(Model):
    completed: bool
    update_time: datetime
    ingested_objects: int
    """Listed so far, or imported."""
    skipped_objects: int = 0
    """refstore's own: what the sources contain but refstore cannot stage, such as links."""
    metarange_id: str | None = None
    commit: CommitModel | None = None
    error: Error | None = None


class CommitList(Model):
    pagination: Pagination
    results: list[CommitModel]


class CommitCreation(Model):
    message: MessageText
    metadata: Metadata = {}
    date: Seconds | None = None
    allow_empty: bool = False


class ImportLocation(Model):
    type: Literal["common_prefix", "object"]
    path: Annotated[str, StringConstraints(min_length=1, max_length=2048)]
    """The URL of a prefix, or of an object."""
    destination: Annotated[str, StringConstraints(max_length=1024)]
    """The object's path; for a prefix, the folder that receives its objects and is replaced as a whole."""


class ImportCreation(Model):
    paths: Annotated[list[ImportLocation], Field(max_length=PATHS_MAX)]
    commit: CommitCreation


class ImportCreationResponse(Model):
    id: str


class CommitOverrides(Model):
    message: MessageText | None = None
    metadata: Metadata | None = None


class RevertCreation(Model):
    ref: RefText
    parent_number: Annotated[int, Field(ge=0, le=64)] = 0
    commit_overrides: CommitOverrides | None = None
    allow_empty: bool = False


class CherryPickCreation(Model):
    ref: RefText
    parent_number: Annotated[int, Field(ge=0, le=64)] | None = None
    commit_overrides: CommitOverrides | None = None


class MergeModel(Model):
    message: MessageText | None = None
    metadata: Metadata | None = None
    strategy: Literal["", "dest-wins", "source-wins"] | None = None
    allow_empty: bool = False
    squash_merge: bool = False


class MergeResult(Model):
    reference: str


class MergeConflictResult(Model):
    """The answer to a merge that conflicts: lakeFS's fields, and an error's."""

    reference: str = ""
    message: str
    code: str
    paths: list[str] = []
    """refstore's own: a bounded sample of what conflicts."""


class FindMergeBaseResult(Model):
    source_commit_id: str
    destination_commit_id: str
    base_commit_id: str


DiffType = Literal["added", "removed", "changed", "conflict", "prefix_changed"]


class Diff(Model):
    type: DiffType
    path: str
    path_type: Literal["common_prefix", "object"]
    size_bytes: int | None = None


class DiffList(Model):
    pagination: Pagination
    results: list[Diff]


# ---- objects


class ObjectStats(Model):
    path: str
    path_type: Literal["common_prefix", "object"]
    physical_address: str
    physical_address_expiry: int | None = None
    checksum: str
    size_bytes: int | None = None
    mtime: int
    metadata: dict[str, str] | None = None
    content_type: str | None = None
    unreadable: Annotated[
        str | None, Field(description="refstore's own: why a staged object cannot be read by its address.")
    ] = None


class ObjectStatsList(Model):
    pagination: Pagination
    results: list[ObjectStats]


class ObjectStageCreation(Model):
    physical_address: Annotated[str, StringConstraints(min_length=1, max_length=2048)]
    checksum: Annotated[str, StringConstraints(max_length=1024)]
    size_bytes: Annotated[int, Field(ge=0, le=SIZE_BYTES_MAX)]
    mtime: Seconds | None = None
    metadata: Metadata | None = None
    content_type: Annotated[str, StringConstraints(max_length=1024)] | None = None


class ObjectCopyCreation(Model):
    src_path: PathText
    src_ref: RefText | None = None


class PathList(Model):
    paths: Annotated[list[PathText], Field(max_length=PATHS_MAX)]


class ObjectError(Model):
    status_code: int
    message: str
    path: str | None = None


class ObjectErrorList(Model):
    errors: list[ObjectError]


class UnderlyingObjectProperties(Model):
    storage_class: str | None = None


class StagingLocation(Model):
    physical_address: str
    """Carries the token as `?token=`, because lakeFS's clients hand back this field and no other of ours."""
    token: str | None = None
    """refstore's own: the JWT that links the address."""
    expiry: int | None = None
    """refstore's own: when it can no longer be linked."""
    presigned_url: str | None = None
    presigned_url_expiry: int | None = None


class StagingLocationInput(Model):
    physical_address: Annotated[str, StringConstraints(max_length=8192)] | None = None
    token: Annotated[str, StringConstraints(max_length=4096)] | None = None


class StagingMetadata(Model):
    staging: StagingLocationInput
    checksum: Annotated[str, StringConstraints(max_length=1024)]
    size_bytes: Annotated[int, Field(ge=0, le=SIZE_BYTES_MAX)]
    user_metadata: Metadata | None = None
    content_type: Annotated[str, StringConstraints(max_length=1024)] | None = None


# ---- collection


class GarbageCollectionRule(Model):
    branch_id: NameText
    retention_days: Annotated[int, Field(ge=0, le=DAYS_MAX)]


class GarbageCollectionRules(Model):
    default_retention_days: Annotated[int, Field(ge=0, le=DAYS_MAX)]
    branches: Annotated[list[GarbageCollectionRule], Field(max_length=10_000)]


# ---- refstore's own


class MoveRequest(Model):
    src_path: PathText
    dest_path: PathText


class RestoreRequestModel(Model):
    physical_address: Annotated[str, StringConstraints(min_length=1, max_length=2048)]
    path: PathText | None = None
    force: bool = False
    """Whether to replace what was written to the path since."""


class AddressReferenceModel(Model):
    branch: str
    path: str
    staging_token: str
    state: str
    last_modified: int | None = None


class AddressReferences(Model):
    physical_address: str
    state: str
    reference_state: str | None = None
    commit: str | None = None
    references: list[AddressReferenceModel]
    since: int | None = None
    cause: str = ""
    expires: int | None = None


class JournalEvent(Model):
    at: int
    outcome: str
    path: str
    cause: str
    size_bytes: int | None = None
    reason: str = ""
    by: str = ""
    run: str = ""
    """The run that deleted it, or the reaper, which only operators learn."""
    rule: str = ""


class PurgedObject(Model):
    """What purges have to do with an address."""

    identity: str
    """The physical address that commits name."""
    role: str
    """`identity`, or what lies there for the identity: `content`, `backup`, `trash`, `attempt`, `leftover`."""
    content: str | None = None
    """Where the object's content lies now; None: it was erased, or is being deleted."""
    run: str = ""
    since: int | None = None


class WhyModel(Model):
    physical_address: str
    now: AddressReferences
    events: list[JournalEvent]
    meaning: str = ""
    """What keeps the object, or what will happen to it, where the state does not say it."""
    purged: PurgedObject | None = None


class TrashItemModel(Model):
    physical_address: str
    branch: str
    path: str
    cause: str
    since: int
    deletes_at: int | None = None
    """None: the reaper has not processed it yet."""
    size_bytes: int | None = None


class TrashItemList(Model):
    pagination: Pagination
    results: list[TrashItemModel]


class ResumeRequest(Model):
    seconds: Annotated[float, Field(ge=1, le=RESUME_SECONDS_MAX)] | None = None
    objects: Annotated[int, Field(ge=1, le=10**15)] | None = None


class PurgeDocumentText(Model):
    document: Annotated[str, Field(max_length=CHARACTERS_MAX)]
    """The document's text, as in a file."""


class PurgeDataset(Model):
    name: str
    prefix: str
    mode: str
    is_whitelisted: bool
    """Whether its name is on the whitelist, too."""


class PurgeDocumentModel(Model):
    document: str
    set_at: int
    set_by: str
    datasets: list[PurgeDataset]
    warnings: list[str]


class Message(Model):
    message: str


class MarkRunModel(Model):
    mark_id: str
    state: str
    began: int
    deletes_at: int | None = None
    """Absent: it has not found what goes, and perhaps never will."""
    finished: int | None = None
    tagged: int | None = None
    """When everything was tagged for the bucket to delete."""
    swept: int | None = None
    counts: dict[str, int] = {}
    swept_counts: dict[str, int] = {}
    question: str = ""
    """What an operator has to confirm before the sweep; '': nothing."""
    confirmed_by: str = ""
    end_reason: str = ""


class MarkRunList(Model):
    results: list[MarkRunModel]


class MarkedCommit(Model):
    commit_id: str
    mark_id: str
    since: int
    deletes_at: int
    tagged: int | None = None
    """When its data was tagged for the bucket to delete."""
    swept: int | None = None
    expired_prefixes: list[str] | None = None
    """As in Commit."""


class MarkedCommitList(Model):
    pagination: Pagination
    results: list[MarkedCommit]


class UnmarkResponse(Model):
    unmarked_commits: int
    expired_commits: int = 0
    """How many of these the rules still expire: the next run marks them again."""
    pinned_commits: int = 0
    """How many were added to the pins of the rules, if the request asked for that."""


class CollectionStatus(Model):
    running: str | None = None
    """The id of the mark that a run is making now."""
    runs: list[MarkRunModel]
