"""The values of the KV: frozen records and their versioned encoding.

A record is a MessagePack array `[tag, field, …]`; the tag (a small integer, append-only) says which record it is. New
fields are appended with a default, so old values still decode; a new meaning takes a new tag. Encoding is canonical:
equal records have equal bytes, which is what `set_if` compares. Times are wall-clock milliseconds since the epoch.

Rule numbers refer to `docs/protocol.md`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

import msgspec

from refstore.core.ids import Address, BranchName, CommitId, Path, RepositoryId, Token
from refstore.errors import CorruptRecord
from refstore.kv.base import ABSENT, Absent


class Reference(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One name of a physical address: a path under a staging token."""

    token: Token
    path: Path
    id: str = ""
    """Tells two placements of one address at one path apart, so that releasing the first does not release the second
    (rule 6). Empty where an address is placed for the first time; every later placement has its own.
    """


class Record(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Records hold no cycles, so Python's garbage collector may skip them: decoding a page takes half the time."""


# ---- staging entries: <repo>/staging/<token>/<path>


class Entry(Record, frozen=True, tag=1):
    """What a path names: a physical address, and what is known of its object. Sizes are bytes, times milliseconds."""

    address: Address
    size_bytes: int
    checksum: str
    mtime_ms: int
    metadata: dict[str, str] = {}
    content_type: str = ""
    reference_id: str = ""
    """The id of the reference that this entry was placed with; '' once it is committed, and where it needs none."""
    md5: str = ""
    """Hex MD5 of the content, where it is known, for S3 clients; refstore decides nothing by it."""


class Tombstone(Record, frozen=True, tag=2):
    """The path is deleted under this token, whatever the tokens and the commit below it say."""


# ---- references: <repo>/references/<shard>/<physical_address>


class Listed(Record, frozen=True, tag=10):
    """Named by at least one reference."""

    references: tuple[Reference, ...]
    """In the order they were added."""
    changed_ms: int
    """When the list last changed; the scrubber looks only at what is older than the longest operation (rule 9)."""


class Emptied(Record, frozen=True, tag=11):
    """The list is empty: the address is in grace. It takes no new copy (rule 5); `restore` may take it back."""

    since_ms: int
    last_reference: Reference
    """The reference whose removal emptied the list."""
    cause: str
    """Why it was removed: overwritten, deleted, reset, branch-deleted, committed-over, scrubbed, …"""
    entry: Entry | None = None
    """The entry that named the address, where one was known; `restore` writes it again."""


class Issued(Record, frozen=True, tag=12):
    """The address was issued, and is not linked yet (rule 10)."""

    token_id: str
    expires_ms: int
    branch: BranchName
    path: Path


class Deleting(Record, frozen=True, tag=13):
    """The reaper deletes the blob, then this key; nobody can take it back (rule 8)."""

    since_ms: int
    last_reference: Reference
    cause: str
    size_bytes: int = -1
    """-1: not known."""


# ---- branches, tags, commits, repositories


class RetiredToken(NamedTuple):
    """A token whose fate is decided (rule 3)."""

    token: Token
    fate: str
    """The id of the commit that took it, or why it was discarded (`refstore.versioning.markers`)."""


class Branch(Record, frozen=True, tag=20):
    """An open branch: its head commit, and the tokens that its uncommitted changes are staged under."""

    head: CommitId
    token: Token
    """The current staging token."""
    sealed_tokens: tuple[Token, ...]
    """Oldest first."""
    retired_tokens: tuple[RetiredToken, ...]
    write_id: str
    """Differs in every version of the record, so that a retried write recognises its own."""
    created_ms: int = 0
    is_hidden: bool = False
    id: str = ""
    """Made once with the branch, so that a later branch of the same name can be told apart."""

    @property
    def live_tokens(self) -> tuple[Token, ...]:
        """The tokens that a reader reads, newest first."""
        return (self.token, *reversed(self.sealed_tokens))


class ClosedBranch(Record, frozen=True, tag=21):
    """A deleted branch whose tokens are not published yet (rule 3)."""

    retired_tokens: tuple[RetiredToken, ...]
    write_id: str
    id: str = ""
    """The deleted branch's id, whose deletion the manifest is still to say; '': it need not."""


class DeletedToken(Record, frozen=True, tag=22):
    """`<repo>/staging/deleted/<token>`: the reaper releases the token's references."""

    cause: str
    """Why it was retired: reset, branch-deleted, repository-deleted, nothing-committed, or committed <commit id>."""
    at_ms: int


class CommittedTokens(Record, frozen=True, tag=23):
    """`<repo>/staging/committed/<commit_id>`."""

    tokens: tuple[Token, ...]
    at_ms: int


class Commit(Record, frozen=True, tag=30):
    """`<repo>/commits/<commit_id>`: immutable but for its mark, which stands in a record of its own."""

    parents: tuple[CommitId, ...]
    metarange: str
    """Key of the metarange's hash; '' is the empty tree."""
    added_addresses_id: str
    """Hash of the object that lists the addresses added against the first parent; '' where nothing was added."""
    tokens: tuple[Token, ...]
    created_ms: int
    """The commit's date, which whoever makes it may give."""
    committer: str
    message: str
    metadata: dict[str, str] = {}
    generation: int = 0
    """Longest distance from a root commit."""
    recorded_ms: int | None = None
    """When it was really made, where the date is only shown; None: the date counts."""

    @property
    def retention_date_ms(self) -> int:
        """The date by which the rules of retention count."""
        return self.created_ms if self.recorded_ms is None else self.recorded_ms


class Mark(Record, frozen=True, tag=31):
    """`<repo>/marks/<commit_id>`: the commit is expired and will be swept (rules 13 and 14)."""

    since_ms: int
    deletes_at_ms: int
    mark_id: str = ""
    sweeping_ms: int = 0
    """When its sweep began; from then on nobody can unmark it. 0: not yet."""
    swept_ms: int = 0
    """When everything that only this commit named was deleted. 0: not yet."""
    prefixes: tuple[str, ...] = ()
    """Only its entries at paths with these prefixes have expired; (): all of them."""
    earlier_marks: bytes = b""
    """The encoded mark that this one replaced, where a part of the commit was swept before; unmark restores it."""
    tagged_ms: int = 0
    """When everything that only this commit named was tagged for the bucket to delete (`--mode tag`). 0: not tagged."""

    def covers(self, paths: Iterable[str]) -> bool:
        """Return whether any of the paths has expired."""
        return not self.prefixes or any(path.startswith(self.prefixes) for path in paths)


class NothingToDelete(Record, frozen=True, tag=36):
    """`<repo>/gc/complete/<commit_id>`: the commit has expired, but by the last run none of its data is deleted.

    This is only shown to users: the commit is not marked, and every decision is made by the mark.
    """

    since_ms: int
    """When a run found this first; every run since found the same."""
    mark_id: str
    """That run's."""


class GcFlag(Record, frozen=True, tag=34):
    """`<repo>/gc/on`: while it exists, a copy of an entry without a reference pins the address first (rule 13)."""

    mark_id: str
    """The run's mark id, which is used once, so no run takes another's flag for its own."""
    since_ms: int
    beat_ms: int
    """The run's last heartbeat, which only tells a live run from a dead one."""
    owner: str = ""


class GcRun(Record, frozen=True, tag=35):
    """`<repo>/gc/runs/<mark id>`: a run of the offline job (`refstore/gc_marks`)."""

    write_id: str
    state: str
    began_ms: int
    grace_ms: int
    deletes_at_ms: int
    """The earliest time of the sweep."""
    rules_digest: str
    disregarded_marks: tuple[str, ...] = ()
    """Earlier marks whose commits this run treats as expired, too."""
    marked_ms: int = 0
    """When its last commit was marked; the run waits for operations that began before. 0: not yet."""
    finished_ms: int = 0
    mark_counts: dict[str, int] = {}
    question: str = ""
    """What an operator has to confirm before the sweep; '': nothing."""
    confirmed_by: str = ""
    confirmed_ms: int = 0
    sweep_began_ms: int = 0
    swept_ms: int = 0
    sweep_counts: dict[str, int] = {}
    """What the sweep counted."""
    end_reason: str = ""
    """Why it was abandoned."""
    tagged_ms: int = 0
    """When all its objects were tagged for the bucket to delete; it is swept once the bucket did so. 0: not tagged."""


class TokenRecord(Record, frozen=True, tag=24):
    """`<repo>/tokens/<token>`: written before the token can be current, so that the scrubber knows every token."""

    created_ms: int
    processed_ms: int = 0
    """When its entries were processed; late writes into it are scrubbed after that. 0: not yet."""


class Tag(Record, frozen=True, tag=32):
    """A fixed name of a commit."""

    commit: CommitId
    created_ms: int = 0


class RepositoryRecord(Record, frozen=True, tag=40):
    """`repositories/<name>`."""

    id: RepositoryId
    namespace: str
    """URL of the object store's namespace."""
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


class PurgeRecord(Record, frozen=True, tag=84):
    """`<repo>/purge/document`: which data sets may be purged, and how; whole."""

    document: str
    """The text as it was set (`refstore/purging/document.py`)."""
    set_ms: int
    set_by: str
    write_id: str


# ---- where content lies after a purge: <repo>/locations/<shard>/<identity>


class Content(NamedTuple):
    """One content that an object has, or had."""

    address: Address
    """Where it lies. '': nowhere, because it was erased."""
    size_bytes: int
    checksum: str
    md5: str = ""
    run: str = ""
    """The purge that wrote it; '': as it was uploaded."""
    written_ms: int = 0
    """When it became the object's content; 0: with its upload."""

    @property
    def is_erased(self) -> bool:
        return not self.address


class Intent(NamedTuple):
    """Where an attempt of a purge is about to write."""

    address: Address
    run: str
    since_ms: int


class Backup(NamedTuple):
    """A content that was replaced and can be restored."""

    content: Content
    replaced_ms: int
    replaced_by: str
    """The run that did."""
    is_trash: bool = False
    """Whether a restore replaced it: then it is trash, and goes after the days of trash."""


class Location(Record, frozen=True, tag=85):
    """Where the content of an identity lies, which is the address that commits and references name (rule 22)."""

    current: Content | None
    """None: the identity is being deleted, and nothing can be published to it."""
    replacement_count: int = 0
    """How often the content was replaced."""
    intent: Intent | None = None
    backups: tuple[Backup, ...] = ()
    """Oldest first."""
    pending_deletions: tuple[Address, ...] = ()
    """What is deleted next; nothing restores it."""
    unpublished_attempts: tuple[Address, ...] = ()
    """Of `pending_deletions`: what attempts wrote, or were about to, and nobody published."""

    def addresses(self) -> tuple[Address, ...]:
        """Every address that this record names, each once."""
        contents = [*([self.current] if self.current else []), *(backup.content for backup in self.backups)]
        named = [each.address for each in contents if not each.is_erased]
        named += [self.intent.address] if self.intent else []
        return tuple(dict.fromkeys([*named, *self.pending_deletions]))


class LocationsFlag(Record, frozen=True, tag=86):
    """`<repo>/purge/locations`: content may lie elsewhere than its identity says (rule 22)."""

    announced_ms: int


# ---- the reaper's own


class DueHintRecord(Record, frozen=True, tag=50):
    """`<repo>/due/<shard>/<time>/<address>`: a hint to check an address at that time. The reference key decides."""


class SharedDueHintRecord(Record, frozen=True, tag=91):
    """`<repo>/due/<shard>/<time>/many/<digest>`: the same for several addresses of a shard."""

    addresses: list[Address]


class Lease(Record, frozen=True, tag=51):
    owner: str
    expires_ms: int
    write_id: str


class Heartbeat(Record, frozen=True, tag=52):
    """`reapers/<reaper id>`: a running reaper, and what its last pass over all repositories did."""

    host: str
    pid: int
    started_ms: int
    beat_ms: int
    every_seconds: float
    """The interval of its heartbeats; it counts as dead some time after a missing one."""
    passes: int = 0
    released_references: int = 0
    deleted_objects: int = 0
    deleted_bytes: int = 0
    errors: int = 0
    """All counts are since it started."""


class BreakerState(Record, frozen=True, tag=53):
    """`<repo>/reaper/breaker`: why hard deletion is stopped, or how much an operator lets it delete."""

    write_id: str
    tripped_ms: int = 0
    """0: it is not tripped."""
    reason: str = ""
    due_objects: int = 0
    """What was due for deletion, or was deleted within the hour."""
    live_objects: int = 0
    """What `due` was compared with: the repository's objects, or the hourly limit."""
    allowed_until_ms: int = 0
    """Until then the breaker does not check, because an operator decided so."""
    allowed_objects: int = 0
    """How many objects may be deleted before the breaker checks again."""


class DeletionCount(Record, frozen=True, tag=54):
    """`<repo>/reaper/deleted/<time>/<reaper id>`: how many objects one reaper deleted from that time on."""

    count: int


class StampRecord(Record, frozen=True, tag=55):
    """`<repo>/reaper/scrubbed/<unit>`: when the unit was last scrubbed."""

    at_ms: int


# ---- what operators see


class Amount(NamedTuple):
    objects: int = 0
    bytes: int = 0


class DayAmount(NamedTuple):
    """What was deleted on one day, as the store confirmed it."""

    day: str
    """`2026-11-24`, in UTC."""
    objects: int
    bytes: int


class ReaperFigures(Record, frozen=True, tag=87):
    """`figures/<repo>/reaper`: what the reapers found in a repository, and deleted (`refstore/figures.py`).

    Nothing is decided by these figures, so a lost write of them does no harm.
    """

    write_ids: tuple[str, ...] = ()
    """Of the last writes, the newest last: a writer that got no reply finds out whether it wrote."""
    measured_ms: int = 0
    """When the amounts below were measured. 0: not yet."""
    measuring_ms: int = 0
    """How long that took."""
    live: Amount = Amount()
    """What the default branch's head names: its entries, of which several may name one object."""
    staged: Amount = Amount()
    """What is staged on all branches, likewise."""
    in_grace: Amount = Amount()
    """What nothing names, before the end of its grace window; also where no reaper has begun this window."""
    due: Amount = Amount()
    """What nothing names, after the end of its grace window."""
    marked: Amount = Amount()
    """What the marks hold that are not swept yet."""
    next_sweep_ms: int = 0
    """When the first of these marks is due. 0: there is none, or each waits for an operator."""
    questions: int = 0
    """How many marks wait for an operator."""
    branches: int = 0
    has_rules: bool = False
    """Whether the repository has retention rules."""
    stop_reason: str = ""
    """Why hard deletion is stopped; '' if it is not."""
    kv_went_back: bool = False
    """Whether it is stopped because the KV lost writes."""
    error: str = ""
    """The first error of the last pass that had one, until a pass has none."""
    error_ms: int = 0
    refused_objects: int = 0
    """Objects that the store did not delete in the last pass."""
    reclaimed: tuple[DayAmount, ...] = ()
    """Of the last days, the oldest first."""
    versions_warning: str = ""
    """That the bucket keeps versions of what is deleted, or that this is not known; '' if it does not."""


class GcFigures(Record, frozen=True, tag=88):
    """`figures/<repo>/gc`: what the offline job did in a repository, likewise."""

    write_ids: tuple[str, ...] = ()
    run_ms: int = 0
    """When the last run that succeeded ended."""
    marked_ms: int = 0
    """When the last mark was finished. 0: never."""
    mark_id: str = ""
    orphans: Amount = Amount()
    """What the last run found that the online path had missed."""
    orphans_before: Amount = Amount()
    """The same of the run before."""
    failed_objects: int = 0
    """Objects that the store did not delete in the last sweep."""
    error: str = ""
    """Why the last run failed; '' if it did not."""
    error_ms: int = 0
    reclaimed: tuple[DayAmount, ...] = ()


class RunProgress(Record, frozen=True, tag=89):
    """`<repo>/progress/<run>`: how far a run of the offline job or a purge is, while it lasts."""

    kind: str
    """`mark`, `sweep`, `purge` or `restore`."""
    owner: str
    """The host and process."""
    began_ms: int
    beat_ms: int
    """When this was written: a run that did not write for long is dead."""
    step: str = ""
    done_items: int = 0
    total_items: int = 0
    """0: unknown."""
    remaining_ms: int = -1
    """How long the step may still take, by its speed so far. -1: unknown."""
    until_ms: int = 0
    """When the step ends, if it waits for a time. 0: it does not."""


class StopRequest(Record, frozen=True, tag=90):
    """`<repo>/progress/<run>/stop`: an operator asked the run to stop."""

    by: str
    at_ms: int


# ---- imports


class ImportSource(NamedTuple):
    """A source of an import: one foreign object, or all objects with a prefix."""

    url: str
    destination: str
    """The object's path; or the folder that all paths begin with."""
    is_object: bool = False


class ImportRecord(Record, frozen=True, tag=70):
    """`<repo>/imports/<id>`: an import in the background (`refstore/background_imports.py`)."""

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


# ---- the service's own


class SecretHash(NamedTuple):
    """A secret as it is stored."""

    salt: bytes
    hash: bytes
    """HMAC-SHA-256 of the secret under the salt."""
    ends_ms: int = 0
    """When the secret stops to be valid. 0: never."""


class AccessKeyRecord(Record, frozen=True, tag=60):
    """`configuration/access-keys/<id>` (`refstore/access_keys.py`)."""

    salt: bytes
    hash: bytes
    """HMAC-SHA-256 of the secret under the salt."""
    role: int
    created_ms: int
    repositories: tuple[str, ...] = ()
    """The only repositories that the key opens; empty: all."""
    description: str = ""
    expires_ms: int = 0
    """When the key expires. 0: never."""
    token_generation: int = 0
    """Raised to end the bearer tokens that were issued before."""
    previous_secret: SecretHash | None = None
    """The secret before the last rotation; after its end it is still recognised, so that its user learns the reason."""


# ---- the audit log (`refstore/audit`)


class AuditHead(Record, frozen=True, tag=80):
    """`audit/heads/<chain>`: the newest entry that was confirmed; written before the first one."""

    number: int
    """0: none yet."""
    sha256: str
    """Of that entry's bytes."""
    written_ms: int


class WaitingAct(Record, frozen=True, tag=81):
    """`audit/waiting/<id>`: what has no entry yet, because it is under way or the store did not take it."""

    act: bytes
    """As its entry will have it (`refstore.audit.entries.Act`, in JSON)."""
    since_ms: int
    claim: str = ""
    """Differs with each process that begins to write the entry; '': none has."""
    claimed_ms: int = 0


# ---- the durations that safety rests on (`refstore/agreed_durations.py`)


class SharedDurations(NamedTuple):
    """The durations that other processes rely on, in seconds: those of `Safety` that are `SHARED`."""

    operation_deadline_seconds: float
    io_timeout_seconds: float
    clock_skew_seconds: float
    scrub_after_seconds: float
    issue_seconds: float


class FormerDurations(NamedTuple):
    """Durations that were agreed before. Processes may still run with them."""

    durations: SharedDurations
    until_ms: int
    """Until then they count."""


class DurationsRecord(Record, frozen=True, tag=82):
    """`configuration/durations`: what all processes that share the KV have agreed on."""

    current: SharedDurations
    write_id: str
    """Differs in every version of the record, so that a retried write recognises its own."""
    set_ms: int
    former: tuple[FormerDurations, ...] = ()


class LakeRecord(Record, frozen=True, tag=92):
    """`configuration/lake`: which lake the KV is of."""

    id: str
    is_confirmed: bool = False
    """Whether the object store holds the id, too."""


class Position(Record, frozen=True, tag=83):
    """`positions/...`: how often a deleter has witnessed what the server that stores this holds (rule 21)."""

    number: int
    at_ms: int


def without_reference(entry: Entry) -> Entry:
    """Return the entry as a commit holds it, without its reference id."""
    return entry if not entry.reference_id else msgspec.structs.replace(entry, reference_id="")


AnyRecord = (
    Entry | Tombstone | Listed | Emptied | Issued | Deleting | Branch | ClosedBranch | DeletedToken | CommittedTokens
    | TokenRecord | Commit | Mark | Tag | RepositoryRecord | DueHintRecord | Lease | Heartbeat | BreakerState | DeletionCount | StampRecord
    | AccessKeyRecord | RetentionRecord | GcFlag | GcRun | NothingToDelete | ClearedRepository | ImportRecord
    | AuditHead | WaitingAct | DurationsRecord | Position | PurgeRecord | Location | LocationsFlag
    | ReaperFigures | GcFigures | RunProgress | StopRequest | SharedDueHintRecord | LakeRecord
)  # fmt: skip

StagedRecord = Entry | Tombstone
ReferenceRecord = Listed | Emptied | Issued | Deleting
BranchRecord = Branch | ClosedBranch

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)
"""The errors of a decoder, which has none of its own for text that is not UTF-8."""

_encoder = msgspec.msgpack.Encoder(order="sorted")
_staged: Final = msgspec.msgpack.Decoder(StagedRecord)
_reference: Final = msgspec.msgpack.Decoder(ReferenceRecord)
_branch: Final = msgspec.msgpack.Decoder(BranchRecord)


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def decode_staged(value: bytes) -> StagedRecord:
    """Decode a staging entry. All decoders raise CorruptRecord."""
    return _decode(_staged, value, "staging entry")


def decode_reference(value: bytes) -> ReferenceRecord:
    return _decode(_reference, value, "reference")


def decode_branch(value: bytes) -> BranchRecord:
    return _decode(_branch, value, "branch")


def decode_staged_many(values: Iterable[bytes]) -> list[StagedRecord]:
    """Decode all values or none, for bulk operations."""
    decode = _staged.decode
    try:
        return [decode(value) for value in values]
    except _UNREADABLE as error:
        raise _corrupt_record("staging entry", error) from error


def decode_reference_many(values: Iterable[bytes | Absent]) -> list[ReferenceRecord | None]:
    """Decode all values or none; None where there is no value."""
    decode = _reference.decode
    try:
        return [None if value is ABSENT else decode(value) for value in values]
    except _UNREADABLE as error:
        raise _corrupt_record("reference", error) from error


R = TypeVar("R", bound=Record)
T = TypeVar("T")

_decoders: dict[type[Record], msgspec.msgpack.Decoder[Record]] = {}


def decode(value: bytes, kind: type[R]) -> R:
    """Decode a record of a known kind. Raises CorruptRecord."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return _decode(decoder, value, kind.__name__)  # type: ignore[return-value]  # the table pairs kind and decoder


def decode_optional(value: bytes | Absent, kind: type[R]) -> R | None:
    """Decode a record of a known kind; None where there is no value."""
    return None if value is ABSENT else decode(value, kind)


def _decode(decoder: msgspec.msgpack.Decoder[T], value: bytes, what: str) -> T:
    try:
        return decoder.decode(value)
    except _UNREADABLE as error:
        raise _corrupt_record(what, error) from error


def _corrupt_record(what: str, error: Exception) -> CorruptRecord:
    return CorruptRecord(f"a {what} record cannot be decoded ({error}); nothing that depends on it will be deleted")
