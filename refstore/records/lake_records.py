"""Records of a whole lake: access keys, the audit log's heads, agreed durations, its id, and deleters' positions."""

from __future__ import annotations

from typing import NamedTuple

from refstore.records.encoding import Record


class SecretHash(NamedTuple):
    """A secret as it is stored."""

    salt: bytes
    hash: bytes
    """HMAC-SHA-256 of the secret under the salt."""
    ends_ms: int = 0
    """When the secret stops to be valid. 0: never."""


class EncryptedSecret(NamedTuple):
    """A secret that must be read again, as it is stored (`refstore/service/s3_secrets.py`)."""

    nonce: bytes
    ciphertext: bytes
    """AES-256-GCM under the server key, bound to the access key's id."""
    server_key_mark: bytes
    """Says under which server key, and nothing else about it."""
    created_ms: int
    ends_ms: int = 0
    """When the secret stops to be valid. 0: never."""


class AccessKeyRecord(Record, frozen=True, tag=60):
    """`configuration/access-keys/<id>` (`refstore/service/access_keys.py`)."""

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
    s3_secrets: tuple[EncryptedSecret, ...] = ()
    """The newest first; a second one is that before the last rotation."""
    write_id: str = ""
    """Differs in every version of the record, so that the audit log tells them apart."""
    buckets: tuple[str, ...] = ()
    """`NAME=REPOSITORY:BRANCH`: the branches that these buckets are for S3 clients that use the key."""


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
    """As its entry will have it (`refstore.audit.audit_entries.Act`, in JSON)."""
    since_ms: int
    claim: str = ""
    """Differs with each process that begins to write the entry; '': none has."""
    claimed_ms: int = 0


class SharedDurations(NamedTuple):
    """The durations that other processes rely on, in seconds: those of `Safety` that are `SHARED`."""

    operation_deadline_seconds: float
    io_timeout_seconds: float
    clock_skew_seconds: float
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


class KvCopy(Record, frozen=True, tag=93):
    """`configuration/copy`: the lake is not open in this KV (`refstore/kv_recovery/kv_copy.py`)."""

    id: str
    """Of the copy; both KVs have it."""
    state: str
    """Of the old KV: `leaving` or `gone`. Of the new one: `arriving` or `checked`."""
    other: str
    """The URL of the other KV, without secrets."""
    since_ms: int
    partition: str = ""
    after: str = ""
    """Up to this partition and name everything is copied."""
    contents: str = ""
    """What both KVs hold, in JSON, once they were compared."""
    run: str = ""
    """Of the call that fills the new KV. A later call puts another one here, and an earlier one writes no more."""


class Position(Record, frozen=True, tag=83):
    """`positions/...`: how often a deleter has witnessed what the server that stores this holds (rule 21)."""

    number: int
    at_ms: int
