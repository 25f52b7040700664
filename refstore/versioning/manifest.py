"""Write what must survive the KV to the object store: commits, branches, tags, repositories (rule 21), and where the
content of purged objects lies (rule 22).

    _refstore/manifest/waiting/<kind>.<hash>.json     one entry, written before its call is acknowledged
    _refstore/manifest/confirmed/<id>.jsonl           entries that a deleter has witnessed, one in each line

A repository's manifest lies in its namespace; that of the lake, with the repositories, beside its audit log. An entry
waits until a deleter has seen that the KV knows it, and has witnessed a later position; from then on a position would
tell if the KV lost it. `refstore kv rebuild` makes a KV from both folders.

What else must survive the KV is one call: `add_record` after the KV has the record, `add_record_removal` before it is
removed. An entry that the object store does not take waits in the KV, and a reaper writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from refstore.core.ids import Address, BranchName, CommitId, Path, RepositoryId, RepositoryName, Token
from refstore.errors import CorruptObject, ManifestBehind, ObjectsUnavailable, Unavailable
from refstore.kv.base import KV, Key
from refstore.objects.base import ObjectStore
from refstore.objects.parallel_reads import read_many

WAITING_FOLDER: Final = "_refstore/manifest/waiting/"
CONFIRMED_FOLDER: Final = "_refstore/manifest/confirmed/"

MERGED_AT: Final = 100
MERGED_BYTES: Final = 4 * 1024 * 1024
"""Objects of confirmed entries that are smaller are merged when there are `MERGED_AT` of them."""


class ManifestEntry(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True):
    """What the object store knows of one record; bytes are written in base64."""

    @property
    def kind(self) -> str:
        """What the entry says, as its JSON has it."""
        return str(self.__struct_config__.tag)

    @property
    def identity(self) -> tuple[str, ...]:
        """What tells it from other entries of its kind."""
        raise NotImplementedError


class CommitLanded(ManifestEntry, frozen=True, tag="commit"):
    """A branch was moved to a commit."""

    commit: CommitId
    record: bytes
    """The commit's record, as the KV has it."""
    branch: BranchName
    branch_id: str
    """'': the branch was deleted when the entry was written."""

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.commit,)


class _BranchEntry(ManifestEntry, frozen=True):
    branch: BranchName
    branch_id: str

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.branch, self.branch_id)


class BranchCreated(_BranchEntry, frozen=True, tag="branch"):
    head: CommitId
    created_ms: int
    is_hidden: bool = False
    lease_until_ms: int = 0
    """As it was when the branch was made: a transaction that is put back has run out, and the reaper ends it."""


class BranchDeleted(_BranchEntry, frozen=True, tag="branch-deleted"):
    pass


class _RecordEntry(ManifestEntry, frozen=True):
    """About a record that never changes, such as a tag."""

    partition: str
    name: str
    value: bytes

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.partition, self.name, self.value.hex())

    @property
    def key(self) -> Key:
        return Key(self.partition, self.name)


class RecordCreated(_RecordEntry, frozen=True, tag="record"):
    pass


class RecordRemoved(_RecordEntry, frozen=True, tag="record-removed"):
    pass


class _RepositoryEntry(ManifestEntry, frozen=True):
    name: RepositoryName
    id: RepositoryId

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.id,)


class RepositoryCreated(_RepositoryEntry, frozen=True, tag="repository"):
    record: bytes
    """As it was when the repository was made; its metadata may have changed since."""


class RepositoryDeleted(_RepositoryEntry, frozen=True, tag="repository-deleted"):
    pass


class PlacedEntry(NamedTuple):
    """One entry that a call has placed."""

    token: Token
    path: Path
    record: bytes
    """The `StoredEntry`, as the KV has it."""
    issued_address: Address = Address("")
    """The issued address that was linked, where the entry names a copy."""


class EntriesPlaced(ManifestEntry, frozen=True, tag="entries"):
    """A call linked or restored entries, and `safety.witness` asks that this survives the KV."""

    id: str
    entries: tuple[PlacedEntry, ...]

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.id,)


class ManifestLocation(NamedTuple):
    """Where the content of one identity lies."""

    identity: Address
    record: bytes
    """The `Location`, as the KV has it."""


class LocationsPublished(ManifestEntry, frozen=True, tag="locations"):
    """A purge, or a restore of one, has published contents (rule 22)."""

    id: str
    items: tuple[ManifestLocation, ...]

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.id, self.items[0].identity if len(self.items) == 1 else "")

    def split(self) -> Iterator[LocationsPublished]:
        """Yield an entry for each item: one alone may be lost."""
        for item in self.items:
            yield msgspec.structs.replace(self, items=(item,))


class LossAccepted(ManifestEntry, frozen=True, tag="loss-accepted"):
    """An operator gave an entry up, or what it says was put back under another name: the KV need not know it."""

    accepted_kind: str
    accepted_identity: tuple[str, ...]
    """The `identity` of the entry that was given up. Of a commit only its branch is: its record stays."""

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.accepted_kind, *self.accepted_identity)


EntryKey = tuple[type[ManifestEntry], tuple[str, ...]]
"""The class of an entry and its `identity`."""

AnyEntry = (
    CommitLanded
    | BranchCreated
    | BranchDeleted
    | RecordCreated
    | RecordRemoved
    | RepositoryCreated
    | RepositoryDeleted
    | EntriesPlaced
    | LocationsPublished
    | LossAccepted
)

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(AnyEntry)


class Manifest:
    """The manifest of a repository, or of the lake, in its object store."""

    def __init__(self, objects: ObjectStore, kv: KV, unwritten: str) -> None:
        """`unwritten`: the KV's partition for entries that the object store has not taken yet."""
        self._objects = objects
        self._kv = kv
        self._unwritten = unwritten

    def add(self, entry: AnyEntry) -> None:
        """Write an entry; writing it again writes the same. Raises ObjectsUnavailable."""
        self._objects.put(waiting_key(entry), _encoder.encode(entry))

    def add_record(self, key: Key, value: bytes, what: str) -> None:
        """Write the entry of a record that the KV has and that never changes. Raises as `add_landed`."""
        self.add_landed(RecordCreated(key.partition, key.name, value), what)

    def add_record_removal(self, key: Key, value: bytes) -> None:
        """Write that the record is about to be removed: one that is missing without this entry was lost."""
        self.add_deletion(RecordRemoved(key.partition, key.name, value))

    def add_landed(self, entry: AnyEntry, what: str) -> None:
        """Write an entry of what the KV has. `what`: says so, such as "tag 'v1' was created". Raises
        ManifestBehind: it happened all the same, and the entry waits in the KV.
        """
        try:
            self.add(entry)
        except ObjectsUnavailable as error:
            follows = "a reaper writes it, so do not make the call again"
            try:
                self._kv.set(self._unwritten_key(entry), _encoder.encode(entry))
            except Unavailable:
                follows = "look, and write it with `refstore kv reconcile`"
            raise ManifestBehind(
                f"{what}, but could not be written to the manifest, so it is lost if the KV is ({error}); {follows}",
                happened=f"{what}; {follows}",
            ) from error

    def add_deletion(self, entry: AnyEntry) -> None:
        """Write an entry that explains why something is missing. While the object store is down it waits in the KV, so
        that a deletion does not need the store.
        """
        try:
            self.add(entry)
        except ObjectsUnavailable:
            self._kv.set(self._unwritten_key(entry), _encoder.encode(entry))

    def read_unwritten(self) -> list[AnyEntry]:
        """Read the entries that the object store has not taken yet. Raises CorruptObject."""
        return [_decode_entry(value, name) for name, value in self._kv.scan_all(self._unwritten)]

    def write_unwritten(self) -> None:
        """Write them. Raises ObjectsUnavailable."""
        for entry in self.read_unwritten():
            self.add(entry)
            self._kv.delete(self._unwritten_key(entry))

    def _unwritten_key(self, entry: AnyEntry) -> Key:
        return Key(self._unwritten, waiting_key(entry).removeprefix(WAITING_FOLDER))

    def read_waiting(self) -> list[AnyEntry]:
        """Read the entries that wait. Raises CorruptObject, ObjectsUnavailable."""
        bodies = read_many(self._objects, [info.key for info in self._objects.list(WAITING_FOLDER)])
        return [_decode_entry(body, key) for key, body in bodies if body is not None]  # else it has just been confirmed

    def confirm(self, entries: Sequence[AnyEntry], batch_id: str) -> None:
        """Move entries to the confirmed ones, but for placed entries, which soon have another fate. A crash in between
        leaves them in both folders, which is harmless.
        """
        if not entries:
            return
        kept = [entry for entry in entries if not isinstance(entry, EntriesPlaced)]
        if kept:
            lines = b"".join(_encoder.encode(entry) + b"\n" for entry in kept)
            self._objects.put(f"{CONFIRMED_FOLDER}{batch_id}.jsonl", lines)
        self._objects.delete_many([waiting_key(entry) for entry in entries])

    def read_confirmed(self) -> Iterator[AnyEntry]:
        """Read the confirmed entries. Raises CorruptObject, ObjectsUnavailable."""
        seen: set[str] = set()
        is_whole = False
        while not is_whole:
            is_whole = True
            keys = [info.key for info in self._objects.list(CONFIRMED_FOLDER) if info.key not in seen]
            for key, body in read_many(self._objects, keys):
                seen.add(key)
                if body is None:
                    is_whole = False  # it was merged meanwhile: its entries are in an object that is new
                    continue
                for line in body.splitlines():
                    yield _decode_entry(line, key)

    def merge_confirmed(self, batch_id: str) -> None:
        """Write many small objects of confirmed entries as one. A crash in between leaves entries twice, which is
        harmless. Raises ObjectsUnavailable.
        """
        small = [info.key for info in self._objects.list(CONFIRMED_FOLDER) if info.size_bytes < MERGED_BYTES]
        if len(small) < MERGED_AT:
            return
        lines: dict[bytes, None] = {}
        taken: list[str] = []
        size = 0
        for key, body in read_many(self._objects, small):
            own = (body or b"").splitlines()
            try:
                for line in own:
                    _decode_entry(line, key)
            except CorruptObject:
                continue  # it alone is to be restored
            taken.append(key)
            lines.update(dict.fromkeys(own))
            size += len(body or b"")
            if size >= MERGED_BYTES:
                break
        self._objects.put(f"{CONFIRMED_FOLDER}{batch_id}.jsonl", b"".join(line + b"\n" for line in lines))
        self._objects.delete_many(taken)

    def read_all(self) -> Iterator[AnyEntry]:
        """Read every entry, some perhaps twice. Entries move in this order."""
        yield from self.read_unwritten()
        yield from self.read_waiting()
        yield from self.read_confirmed()


def accept_loss(entry: AnyEntry) -> LossAccepted:
    """Return the entry that says that the KV need not know `entry`."""
    return LossAccepted(entry.kind, entry.identity)


def waiting_key(entry: AnyEntry) -> str:
    """Return the entry's key: its content decides, so that writing it again writes the same."""
    return f"{WAITING_FOLDER}{entry.kind}.{sha256(_encoder.encode(entry)).hexdigest()[:40]}.json"


def _decode_entry(line: bytes, key: str) -> AnyEntry:
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptObject(
            f"the manifest's object {key} cannot be read ({error}); restore it from a backup of the object store. "
            "Nothing is deleted meanwhile"
        ) from error
