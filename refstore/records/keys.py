"""Build and parse KV keys; no other module does so.

Partitions, under the seeds' names (`<repo>` is the repository's id; `kv/base.py` explains partitions):

    repositories                      <name>                  RepositoryRecord
    closed-repositories               <repo>                  RepositoryRecord   (drained; the offline job clears it)
    cleared-repositories              <repo>                  ClearedRepository  (forgotten: its namespace is free)
    <repo>/branches                   <branch>                Branch | ClosedBranch
    <repo>/tags                       <tag>                   Tag
    <repo>/tokens                     <token>                 TokenRecord        (which staging partitions there may be)
    <repo>/staging/<token>            <path>                  StoredEntry | Tombstone
    <repo>/references/<shard>         <physical address>      Listed | Emptied | Issued | Deleting
    <repo>/due/<shard>                <time>/<address>        DueHintRecord      (hints; the reference key decides)
                                      <time>/many/<digest>    SharedDueHintRecord (a hint for several addresses)
    <repo>/staging/deleted            <token>                 DeletedToken
    <repo>/staging/committed          <commit id>             CommittedTokens
    <repo>/commits                    <commit id>             Commit
    <repo>/landed                     <commit id>             (empty)            (a branch's head was moved to it)
    <repo>/marks                      <commit id>             StoredMark
    <repo>/retention                  rules                   RetentionRecord
    <repo>/purge                      document                PurgeRecord
                                      locations               LocationsFlag      (there are records of the next kind)
    <repo>/locations/<shard>          <physical address>      Location           (where its content lies)
    <repo>/gc                         on                      GcFlag             (a run of marking is on)
    <repo>/gc/runs                    <mark id>               GcRun
    <repo>/gc/pins                    <mark id>/<address>     (empty)            (that run must keep the address)
    <repo>/gc/marked/<mark id>        <commit id>             (or `complete`)    (that run marked it; and unmarked it)
    <repo>/gc/complete                <commit id>             NothingToDelete    (expired, and none of its data is lost)
    <repo>/imports                    <import id>             ImportRecord
    <repo>/uploads                    <branch>\x01<path>\x01<upload id>
                                                              MultipartUpload
    <repo>/parts/<upload id>          <number>/<address>      UploadedPart
    <repo>/reaper                     breaker                 BreakerState
                                      deleted/<time>/<reaper> DeletionCount
                                      scrubbed/<unit>         StampRecord
    <repo>/unwritten                  <name>                  manifest entry     (which the object store has not taken
                                                                                 yet; the lake's: `unwritten_manifest`)
    <repo>/progress                   <run>                   RunProgress        (a run of the offline job or a purge)
                                      <run>/stop              StopRequest
    figures                           <repo>/reaper           ReaperFigures      (what the overview page shows)
                                      <repo>/gc               GcFigures
    positions...                      <deleter>               Position           (one partition for each server)
    leases                            <repo>/<unit>           Lease
    reapers                           <reaper id>             Heartbeat
    namespaces                        <URL as a folder>       (id of the repository that has it)
    configuration                     signing-keys            (kid:secret, where none is configured)
                                      durations               DurationsRecord    (those that safety rests on)
                                      lake                    LakeRecord         (which lake the KV is of)
                                      copy                    KvCopy             (the lake moves to another KV, or came)
    configuration/access-keys         <key id>                AccessKeyRecord
    configuration/access-key-uses     <key id>                StampRecord        (when it was used last, to the hour)
    configuration/ended-sessions      <expiry>/<token id>     (empty)            (its token is no longer valid)
    audit/heads                       <chain>                 AuditHead          (the newest entry of each chain)
    audit/waiting                     <id>                    WaitingAct         (entries that the store has not taken
                                      yet)

A staging token has one partition, so a branch's staging area is read in path order from any point. References and due
hints are spread over SHARDS partitions, so that no slot of a cluster and no reaper owns a repository. Names are
validated before they come here (`refstore/core/ids.py`): no name can hold a separator that would make two keys collide,
and tokens hold a `:`, which keeps `staging/<token>` apart from `staging/deleted`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Final
from zlib import crc32

from refstore.core import ids
from refstore.core.ids import (
    Address,
    BranchName,
    CommitId,
    Path,
    RepositoryId,
    RepositoryName,
    TagName,
    Token,
    UploadId,
)
from refstore.errors import CorruptRecord, Invalid, InvalidName
from refstore.kv.base import Key

SHARDS: Final = 64
"""It decides in which partition a reference is, so it never changes once data exists."""
_MANY: Final = "many/"
"""No physical address begins with it."""

_UPLOAD_SEPARATOR: Final = "\x01"
"""Sorts before what paths have, so that uploads lie in the order of their paths. An upload id has none."""

REPOSITORIES: Final = "repositories"
CLOSED_REPOSITORIES: Final = "closed-repositories"
CLEARED_REPOSITORIES: Final = "cleared-repositories"
NAMESPACES: Final = "namespaces"
LEASES: Final = "leases"
REAPERS: Final = "reapers"
SIGNING_KEYS: Final = Key("configuration", "signing-keys")
DURATIONS: Final = Key("configuration", "durations")
LAKE: Final = Key("configuration", "lake")
KV_COPY: Final = Key("configuration", "copy")
ACCESS_KEYS: Final = "configuration/access-keys"
ACCESS_KEY_USES: Final = "configuration/access-key-uses"
ENDED_SESSIONS: Final = "configuration/ended-sessions"
AUDIT_HEADS: Final = "audit/heads"
AUDIT_WAITING: Final = "audit/waiting"
UNWRITTEN_LAKE_MANIFEST: Final = "unwritten"
FIGURES: Final = "figures"
STOP: Final = "/stop"
LAST_CODE_POINT: Final = "\U0010ffff"
"""What starts with a name sorts before the name with this after it."""


def repository(name: RepositoryName) -> Key:
    return Key(REPOSITORIES, name)


def closed_repository(repo: RepositoryId) -> Key:
    return Key(CLOSED_REPOSITORIES, repo)


def cleared_repository(repo: RepositoryId) -> Key:
    return Key(CLEARED_REPOSITORIES, repo)


def namespace(folder: str) -> Key:
    """`folder`: as `refstore.namespaces.folder_url` gives it."""
    return Key(NAMESPACES, folder)


def access_key(id_: str) -> Key:
    return Key(ACCESS_KEYS, id_)


def access_key_use(id_: str) -> Key:
    return Key(ACCESS_KEY_USES, id_)


def audit_head(chain: str) -> Key:
    return Key(AUDIT_HEADS, chain)


def audit_waiting(id_: str) -> Key:
    return Key(AUDIT_WAITING, id_)


def branches(repo: RepositoryId) -> str:
    return f"{repo}/branches"


def branch(repo: RepositoryId, name: BranchName) -> Key:
    return Key(branches(repo), name)


def tags(repo: RepositoryId) -> str:
    return f"{repo}/tags"


def tag(repo: RepositoryId, name: TagName) -> Key:
    return Key(tags(repo), name)


def tokens(repo: RepositoryId) -> str:
    return f"{repo}/tokens"


def token(repo: RepositoryId, name: Token) -> Key:
    return Key(tokens(repo), name)


def staging(repo: RepositoryId, under: Token) -> str:
    return f"{repo}/staging/{under}"


def entry(repo: RepositoryId, under: Token, path: Path) -> Key:
    return Key(staging(repo, under), path)


def entries(repo: RepositoryId, under: Token, paths: Collection[Path]) -> list[Key]:
    """Return the `entry` key of each path, for bulk operations."""
    partition = staging(repo, under)
    return [Key(partition, path) for path in paths]


def shard_of(address: Address) -> int:
    return crc32(address.encode()) % SHARDS


def references(repo: RepositoryId, shard: int) -> str:
    return f"{repo}/references/{shard:02x}"


def reference(repo: RepositoryId, address: Address) -> Key:
    return Key(references(repo, shard_of(address)), address)


@lru_cache(maxsize=256)
def _reference_partitions(repo: RepositoryId) -> Sequence[str]:
    return tuple(references(repo, shard) for shard in range(SHARDS))


def reference_keys(repo: RepositoryId, addresses: Collection[Address]) -> list[Key]:
    """Return the `reference` key of each address, for bulk operations."""
    partitions = _reference_partitions(repo)
    return [Key(partitions[shard_of(address)], address) for address in addresses]


def due_hint_shard(repo: RepositoryId, shard: int) -> str:
    return f"{repo}/due/{shard:02x}"


def due_hint(repo: RepositoryId, at_ms: int, address: Address) -> Key:
    return Key(due_hint_shard(repo, shard_of(address)), f"{format_due_time(at_ms)}/{address}")


def shared_due_hint(repo: RepositoryId, shard: int, at_ms: int, digest: str) -> Key:
    return Key(due_hint_shard(repo, shard), f"{format_due_time(at_ms)}/{_MANY}{digest}")


def format_due_time(at_ms: int) -> str:
    """Format a time for a due key: 13 digits, so that keys sort by time."""
    return f"{min(max(at_ms, 0), 9_999_999_999_999):013d}"


def parse_due_hint(name: str) -> tuple[int, Address | None]:
    """Parse a due key to (time in ms, address); None if its record names several. Raises CorruptRecord."""
    time, _, address = name.partition("/")
    try:
        return int(time), None if address.startswith(_MANY) else ids.own_address(address)
    except (ValueError, InvalidName) as error:
        raise CorruptRecord(f"{name[:120]!r} is not a due key; nothing that depends on it will be deleted") from error


def deleted_tokens(repo: RepositoryId) -> str:
    return f"{repo}/staging/deleted"


def deleted_token(repo: RepositoryId, name: Token) -> Key:
    return Key(deleted_tokens(repo), name)


def committed_tokens(repo: RepositoryId) -> str:
    return f"{repo}/staging/committed"


def committed_marker(repo: RepositoryId, commit_id: CommitId) -> Key:
    return Key(committed_tokens(repo), commit_id)


def commits(repo: RepositoryId) -> str:
    return f"{repo}/commits"


def commit(repo: RepositoryId, commit_id: CommitId) -> Key:
    return Key(commits(repo), commit_id)


def landed_mark(repo: RepositoryId, commit_id: CommitId) -> Key:
    return Key(landed_commits(repo), commit_id)


def landed_commits(repo: RepositoryId) -> str:
    return f"{repo}/landed"


def marks(repo: RepositoryId) -> str:
    return f"{repo}/marks"


def mark(repo: RepositoryId, commit_id: CommitId) -> Key:
    return Key(marks(repo), commit_id)


def gc_flag(repo: RepositoryId) -> Key:
    return Key(f"{repo}/gc", "on")


def gc_runs(repo: RepositoryId) -> str:
    return f"{repo}/gc/runs"


def gc_run(repo: RepositoryId, mark_id: str) -> Key:
    return Key(gc_runs(repo), mark_id)


def gc_pins(repo: RepositoryId) -> str:
    return f"{repo}/gc/pins"


def gc_pin(repo: RepositoryId, mark_id: str, address: Address) -> Key:
    return Key(gc_pins(repo), f"{mark_id}/{address}")


def gc_marked_commits(repo: RepositoryId, mark_id: str) -> str:
    return f"{repo}/gc/marked/{mark_id}"


def gc_marked_commit(repo: RepositoryId, mark_id: str, commit_id: CommitId) -> Key:
    return Key(gc_marked_commits(repo, mark_id), commit_id)


def gc_nothing_to_delete(repo: RepositoryId) -> str:
    return f"{repo}/gc/complete"


def gc_nothing_to_delete_commit(repo: RepositoryId, commit_id: CommitId) -> Key:
    return Key(gc_nothing_to_delete(repo), commit_id)


def retention(repo: RepositoryId) -> str:
    return f"{repo}/retention"


def retention_rules(repo: RepositoryId) -> Key:
    return Key(retention(repo), "rules")


def purge(repo: RepositoryId) -> str:
    return f"{repo}/purge"


def purge_document(repo: RepositoryId) -> Key:
    return Key(purge(repo), "document")


def locations_flag(repo: RepositoryId) -> Key:
    return Key(purge(repo), "locations")


def locations(repo: RepositoryId, shard: int) -> str:
    return f"{repo}/locations/{shard:02x}"


def location(repo: RepositoryId, identity: Address) -> Key:
    return Key(locations(repo, shard_of(identity)), identity)


def progress(repo: RepositoryId) -> str:
    return f"{repo}/progress"


def run_progress(repo: RepositoryId, run: str) -> Key:
    return Key(progress(repo), run)


def stop_request(repo: RepositoryId, run: str) -> Key:
    return Key(progress(repo), f"{run}{STOP}")


def figures(repo: RepositoryId, by: str) -> Key:
    return Key(FIGURES, f"{repo}/{by}")


def imports(repo: RepositoryId) -> str:
    return f"{repo}/imports"


def background_import(repo: RepositoryId, import_id: str) -> Key:
    return Key(imports(repo), import_id)


def uploads(repo: RepositoryId) -> str:
    return f"{repo}/uploads"


def upload(repo: RepositoryId, branch: BranchName, path: Path, upload_id: UploadId) -> Key:
    return Key(uploads(repo), uploads_of_path(branch, path) + upload_id)


def uploads_of(branch: BranchName) -> str:
    """Return what the names of a branch's uploads begin with, before the path."""
    return f"{branch}{_UPLOAD_SEPARATOR}"


def uploads_of_path(branch: BranchName, path: str) -> str:
    """Return what the names of a path's uploads begin with, before their ids."""
    return f"{branch}{_UPLOAD_SEPARATOR}{path}{_UPLOAD_SEPARATOR}"


def parse_upload(name: str) -> tuple[BranchName, Path, UploadId]:
    """Parse the name of an upload's key. Raises CorruptRecord."""
    branch, _, rest = name.partition(_UPLOAD_SEPARATOR)
    path, _, upload_id = rest.rpartition(_UPLOAD_SEPARATOR)
    try:
        return ids.branch_name(branch), ids.object_path(path), ids.upload_id(upload_id)
    except Invalid as error:
        raise CorruptRecord(
            f"{name[:120]!r} is not the key of an upload; nothing that depends on it is deleted"
        ) from error


def upload_parts(repo: RepositoryId, upload_id: UploadId) -> str:
    return f"{repo}/parts/{upload_id}"


def upload_part(repo: RepositoryId, upload_id: UploadId, number: int, address: Address) -> Key:
    return Key(upload_parts(repo, upload_id), upload_parts_of(number) + address)


def upload_parts_of(number: int) -> str:
    """Return what the names of the parts of a number begin with, before their addresses."""
    return f"{number:05d}/"


def parse_upload_part(name: str) -> tuple[int, Address]:
    """Parse the name of a part's key to its number and address. Raises CorruptRecord."""
    number, _, address = name.partition("/")
    try:
        return int(number), ids.own_address(address)
    except (ValueError, InvalidName) as error:
        raise CorruptRecord(f"{name[:120]!r} is not the key of a part; its upload is left alone") from error


def unwritten_manifest(repo: RepositoryId) -> str:
    return f"{repo}/{UNWRITTEN_LAKE_MANIFEST}"


def reaper_states(repo: RepositoryId) -> str:
    return f"{repo}/reaper"


def reaper_state(repo: RepositoryId, what: str) -> Key:
    return Key(reaper_states(repo), what)


def heartbeat(reaper: str) -> Key:
    return Key(REAPERS, reaper)


def lease(repo: RepositoryId, unit: str) -> Key:
    return Key(LEASES, f"{repo}/{unit}")
