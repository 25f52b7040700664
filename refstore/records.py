"""The values of the KV: frozen records and their versioned encoding.

A record is a MessagePack array `[tag, field, …]`; the tag (a small integer, append-only) says which record it is. New
fields are appended with a default, so old values still decode; a new meaning takes a new tag. Encoding is canonical: equal
records have equal bytes, which is what `set_if` compares. Times are wall-clock milliseconds since the epoch.

Rule numbers refer to `docs/protocol.md`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

import msgspec

from refstore.errors import CorruptRecord
from refstore.ids import Address, BranchName, CommitId, Path, RepositoryId, Token
from refstore.kv.base import ABSENT, Absent


class Reference(NamedTuple):
    """One name of a physical address: a path under a staging token."""

    token: Token
    path: Path
    id: str = ""
    """Tells two placements of one address at one path apart, so that releasing the first does not release the second (rule 6).
    Empty where an address is placed for the first time; every later placement has its own."""


class Record(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Records hold no cycles, so the collector need not look at them: decoding a page of them takes half the time."""


# ---- staging entries: <repo>/staging/<token>/<path>


class Entry(Record, frozen=True, tag=1):
    address: Address
    size_bytes: int
    checksum: str
    mtime_ms: int
    metadata: dict[str, str] = {}
    content_type: str = ""
    reference_id: str = ""
    """The id of the reference that this entry was placed with; '' once it is committed, and where it needs none."""
    md5: str = ""
    """Hex MD5 of the content, where it is known: what S3 clients compare a file with. Nothing of ours is decided by it."""


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
    """The list is empty: in grace. It takes no new copy (rule 5); `restore` may still take it back."""

    since_ms: int
    last: Reference
    """The reference whose removal emptied the list."""
    cause: str
    """What removed it: overwritten, deleted, reset, branch-deleted, committed-over, scrubbed, …"""
    entry: Entry | None = None
    """The entry that named the address, where one was known: what `restore` puts back."""


class Issued(Record, frozen=True, tag=12):
    """Given out, not linked yet (rule 10)."""

    token_id: str
    expires_ms: int
    branch: BranchName
    path: Path


class Deleting(Record, frozen=True, tag=13):
    """One way (rule 8): the blob goes, then this key."""

    since_ms: int
    last: Reference
    cause: str
    size_bytes: int = -1
    """-1: not known."""


# ---- branches, tags, commits, repositories


class Retired(NamedTuple):
    """A token whose fate is decided (rule 3)."""

    token: Token
    fate: str
    """`DELETED`, or the id of the commit that took it."""


DELETED: Final = "deleted"


class Branch(Record, frozen=True, tag=20):
    head: CommitId
    token: Token
    """The current staging token."""
    sealed: tuple[Token, ...]
    """Oldest first."""
    retired: tuple[Retired, ...]
    write_id: str
    """Differs in every version of the record, so that a retried write recognises its own."""
    created_ms: int = 0
    hidden: bool = False
    id: str = ""
    """Given once when the branch is made, so that a branch made again under the name is told apart."""

    @property
    def live(self) -> tuple[Token, ...]:
        """The tokens a reader looks through: newest first."""
        return (self.token, *reversed(self.sealed))


class ClosedBranch(Record, frozen=True, tag=21):
    """A deleted branch whose tokens are not published yet (rule 3)."""

    retired: tuple[Retired, ...]
    write_id: str


class DeletedToken(Record, frozen=True, tag=22):
    """`<repo>/staging/deleted/<token>`: the token's references go."""

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
    added: str
    """Hash of the object that lists the addresses added against the first parent; '' where nothing was added."""
    tokens: tuple[Token, ...]
    created_ms: int
    committer: str
    message: str
    metadata: dict[str, str] = {}
    generation: int = 0
    """Longest distance from a root commit."""


class Mark(Record, frozen=True, tag=31):
    """`<repo>/marks/<commit_id>`: the commit is expired and will be swept (rules 13 and 14)."""

    since_ms: int
    deletes_at_ms: int
    mark_id: str = ""
    sweeping_ms: int = 0
    """From when on the mark cannot be taken back: its sweep has begun. 0: not yet."""
    swept_ms: int = 0
    """When what only this commit named was gone. 0: not yet."""
    prefixes: tuple[str, ...] = ()
    """Only what it names at paths that start so has expired; (): all of it."""
    earlier: bytes = b""
    """The mark, encoded, that this one took the place of, where a part of the commit was swept before: unmark brings it back."""
    tagged_ms: int = 0
    """When what only this commit named had been tagged for the bucket to delete (`--mode tag`). 0: not yet, or refstore deletes itself."""

    def covers(self, paths: Iterable[str]) -> bool:
        """Whether any of the paths has expired."""
        return not self.prefixes or any(path.startswith(self.prefixes) for path in paths)


class Complete(Record, frozen=True, tag=36):
    """`<repo>/gc/complete/<commit_id>`: the commit has expired, and the last run found that nothing of what it names goes.

    Only for those who ask: the commit is not marked, and whatever decides looks at its mark.
    """

    since_ms: int
    """When a run found so first; every run since found the same."""
    mark_id: str
    """That run's."""


class GcFlag(Record, frozen=True, tag=34):
    """`<repo>/gc/on`: while it stands, copies of what has no reference pin the address first (rule 13)."""

    mark_id: str
    """The run's; never the same again, so the flag of one run is never taken for another's."""
    since_ms: int
    beat_ms: int
    """When its owner was last known to live; only to tell a run that goes on from one that died."""
    owner: str = ""


class GcRun(Record, frozen=True, tag=35):
    """`<repo>/gc/runs/<mark id>` (`refstore/marks` says what becomes of it)."""

    write_id: str
    state: str
    began_ms: int
    grace_ms: int
    deletes_at_ms: int
    """Before this nothing is swept."""
    rules_digest: str
    disregards: tuple[str, ...] = ()
    """Marks that stood when this run began: what their commits name it keeps no more than what its own do."""
    marked_ms: int = 0
    """When its last commit was marked: operations that began before that are waited for. 0: not yet."""
    finished_ms: int = 0
    counts: dict[str, int] = {}
    question: str = ""
    """What an operator has to confirm before the sweep; '' where nothing."""
    confirmed_by: str = ""
    confirmed_ms: int = 0
    sweep_began_ms: int = 0
    swept_ms: int = 0
    swept: dict[str, int] = {}
    """What the sweep counted."""
    ended: str = ""
    """Why it was abandoned."""
    tagged_ms: int = 0
    """When all that it takes had been tagged for the bucket to delete; it is swept when the bucket has. 0: not yet, or not that way."""


class TokenRecord(Record, frozen=True, tag=24):
    """`<repo>/tokens/<token>`: written before the token can be current, so that every staging partition is known."""

    created_ms: int
    processed_ms: int = 0
    """When its entries were processed; late writes into it are scrubbed after that. 0: not yet."""


class Tag(Record, frozen=True, tag=32):
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
    """When it was deleted; the record stays until the reaper has drained it. 0: it lives."""
    rules_id: str = ""
    """The write id of the retention rules that were set last: a deletion that looked for legal holds before finds another record."""
    given_namespace: str = ""
    """The namespace as a client of lakeFS's gave it (`local://...`), which the API shows instead of the URL; '': it was given as a URL."""


class ClearedRepository(Record, frozen=True, tag=45):
    """`cleared-repositories/<repo>`: what is known of a deleted repository after its namespace was freed."""

    namespace: str
    created_ms: int
    closed_ms: int
    cleared_ms: int
    runs: tuple[str, ...]
    """The runs of the offline job that deleted what was in it."""
    objects: int
    """How many objects they deleted."""
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
    """Prefixes of the document's filters that were taken as `branch/path` when it was set, and the branch of each."""


# ---- the reaper's own


class Due(Record, frozen=True, tag=50):
    """`<repo>/due/<shard>/<time>/<address>`: a hint to look at an address at that time. The reference key decides."""


class Lease(Record, frozen=True, tag=51):
    owner: str
    expires_ms: int
    write_id: str


class Heartbeat(Record, frozen=True, tag=52):
    """`reapers/<reaper id>`: a reaper that lives, and what its last pass over all repositories did."""

    host: str
    pid: int
    started_ms: int
    beat_ms: int
    every_seconds: float
    """How often it means to beat; it is taken for dead some time after."""
    cycles: int = 0
    released: int = 0
    deleted: int = 0
    bytes: int = 0
    errors: int = 0
    """All of them since it started."""


class BreakerState(Record, frozen=True, tag=53):
    """`<repo>/reaper/breaker`: why hard deletion stands still, or how far an operator lets it go on."""

    write_id: str
    tripped_ms: int = 0
    """0: it is not tripped."""
    reason: str = ""
    due: int = 0
    """What was due for deletion, or was deleted within the hour."""
    of: int = 0
    """What that was too many of: the repository's objects, or the hourly limit."""
    let_until_ms: int = 0
    """Until then nothing is looked at: an operator said so."""
    let_objects: int = 0
    """So many may still go before it is looked at again."""


class Counter(Record, frozen=True, tag=54):
    """`<repo>/reaper/deleted/<time>/<reaper id>`: what one reaper deleted from that time on."""

    count: int


class Stamp(Record, frozen=True, tag=55):
    """`<repo>/reaper/scrubbed/<unit>`: when the unit was last gone through."""

    at_ms: int


# ---- imports


class ImportSource(NamedTuple):
    """What an import names: one foreign object, or all that begin with a prefix."""

    url: str
    destination: str
    """The object's path; or what the paths begin with, taken as a folder."""
    is_object: bool = False


class ImportRecord(Record, frozen=True, tag=70):
    """`<repo>/imports/<id>`: an import that is done in the background (`refstore/imports.py`)."""

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
    """When it was last heard of; 0: whoever did it gave it up, and the next may take it up at once."""
    objects: int = 0
    """So many were listed so far, or imported."""
    skipped: int = 0
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
    """From when on it opens nothing. 0: it goes on."""


class AccessKeyRecord(Record, frozen=True, tag=60):
    """`configuration/access-keys/<id>` (`refstore/access.py`)."""

    salt: bytes
    hash: bytes
    """HMAC-SHA-256 of the secret under the salt."""
    role: int
    created_ms: int
    repositories: tuple[str, ...] = ()
    """The only ones it is for; empty: all."""
    description: str = ""
    expires_ms: int = 0
    """From when on the key opens nothing. 0: it does not expire."""
    token_generation: int = 0
    """Raised to end the bearer tokens that were given out before."""
    previous: SecretHash | None = None
    """The secret before the last rotation: good until it ends, and then still recognised, so that its user hears why it is refused."""


def unreferenced(entry: Entry) -> Entry:
    """The entry as a commit holds it."""
    return entry if not entry.reference_id else msgspec.structs.replace(entry, reference_id="")


AnyRecord = (
    Entry | Tombstone | Listed | Emptied | Issued | Deleting | Branch | ClosedBranch | DeletedToken | CommittedTokens
    | TokenRecord | Commit | Mark | Tag | RepositoryRecord | Due | Lease | Heartbeat | BreakerState | Counter | Stamp
    | AccessKeyRecord | RetentionRecord | GcFlag | GcRun | Complete | ClearedRepository | ImportRecord
)  # fmt: skip

StagedRecord = Entry | Tombstone
ReferenceRecord = Listed | Emptied | Issued | Deleting
BranchRecord = Branch | ClosedBranch

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)
"""What a decoder raises: for a text that is not UTF-8 it has no error of its own."""

_encoder = msgspec.msgpack.Encoder(order="sorted")
_staged: Final = msgspec.msgpack.Decoder(StagedRecord)
_reference: Final = msgspec.msgpack.Decoder(ReferenceRecord)
_branch: Final = msgspec.msgpack.Decoder(BranchRecord)


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def decode_staged(value: bytes) -> StagedRecord:
    """Raises CorruptRecord, as all of these do."""
    return _decode(_staged, value, "staging entry")


def decode_reference(value: bytes) -> ReferenceRecord:
    return _decode(_reference, value, "reference")


def decode_branch(value: bytes) -> BranchRecord:
    return _decode(_branch, value, "branch")


def decode_staged_many(values: Iterable[bytes]) -> list[StagedRecord]:
    """All of them or none: for bulk operations, which pay per record."""
    decode = _staged.decode
    try:
        return [decode(value) for value in values]
    except _UNREADABLE as error:
        raise _corrupt("staging entry", error) from error


def decode_reference_many(values: Iterable[bytes | Absent]) -> list[ReferenceRecord | None]:
    """All of them or none; None where there is no value."""
    decode = _reference.decode
    try:
        return [None if value is ABSENT else decode(value) for value in values]
    except _UNREADABLE as error:
        raise _corrupt("reference", error) from error


R = TypeVar("R", bound=Record)
T = TypeVar("T")

_decoders: dict[type[Record], msgspec.msgpack.Decoder[Record]] = {}


def decode(value: bytes, kind: type[R]) -> R:
    """One record of a known kind. Raises CorruptRecord."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return _decode(decoder, value, kind.__name__)  # type: ignore[return-value]  # the table pairs kind and decoder


def maybe(value: bytes | Absent, kind: type[R]) -> R | None:
    """`decode`, with None where there is no value."""
    return None if value is ABSENT else decode(value, kind)


def _decode(decoder: msgspec.msgpack.Decoder[T], value: bytes, what: str) -> T:
    try:
        return decoder.decode(value)
    except _UNREADABLE as error:
        raise _corrupt(what, error) from error


def _corrupt(what: str, error: Exception) -> CorruptRecord:
    return CorruptRecord(f"a {what} record cannot be decoded ({error}); nothing that depends on it will be deleted")
