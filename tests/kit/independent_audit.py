"""The audit: find objects that are named and missing, and objects that exist and that nothing names.

The audit shares no reading code with the product. It has its own copy of the key layout and the records' tags, decodes
MessagePack without the record types, and reads Parquet with pyarrow. So it finds faults of the product's reading, too.
It works with any KV and any object store, and changes nothing. The repository must be at rest: while clients write, the
findings may be out of date.

- *lost*: a live entry (under a current or sealed token of an open branch) or a reachable commit names missing data.
- *leaked*: data exists, but no live entry and no commit names it, no live token holds it, it is not an unexpired issued
  address, and it is not in its grace window.
  After a purge the content of a named object lies where its location record says; what such a record names is named
  as long as its object is.
- *garbage*: records without use: references, entries, markers and registrations of dead tokens, hints without cause.

Memory: the named addresses are kept as a set; everything else streams.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from refstore.errors import ObjectNotFound
from refstore.kv.base import ABSENT, KV, Key
from refstore.objects.base import ObjectStore
from refstore.repository import Repository

ENTRY, TOMBSTONE = 1, 2
LISTED, EMPTIED, ISSUED, DELETING = 10, 11, 12, 13
BRANCH, CLOSED_BRANCH = 20, 21
COMMIT, TAG = 30, 32
LOCATION = 85
"""The tags of `refstore/records/`, written down a second time on purpose."""

_LOCATION_DEFAULTS: Final[tuple[Any, ...]] = (None, 0, None, (), ())
"""Of the fields of a location behind its tag; the last ones are left out where they are these."""

SHARDS: Final = 64
DATA: Final = "data/"
NO_KEY: Final = "no reference key"

Record = list[Any]


class Lost(NamedTuple):
    """A missing object or record that something names."""

    what: str
    """A physical address, or the key of a commit, metarange or range."""
    named_by: str


class Leaked(NamedTuple):
    """An object that nothing names."""

    address: str
    size_bytes: int
    state: str
    """The state in its reference key."""


class Garbage(NamedTuple):
    """A record without use."""

    key: Key
    why: str


class Unreadable(NamedTuple):
    where: str
    why: str


@dataclass(slots=True)
class Audit:
    """The findings, and the counts."""

    repo: str
    branches: int = 0
    commits: int = 0
    """Reachable ones."""
    staged: int = 0
    """Live entries."""
    committed: int = 0
    """Different addresses that reachable commits name."""
    objects: int = 0
    """Data objects in the store."""
    size_bytes: int = 0
    held: int = 0
    """Unnamed objects that a reference under a live token holds: interrupted uploads on a live branch."""
    issued: int = 0
    in_grace: int = 0
    deleting: int = 0
    offline: int = 0
    """Objects that are named only by marked or unreachable commits. The offline job deletes them."""
    lost: list[Lost] = field(default_factory=list[Lost])
    leaked: list[Leaked] = field(default_factory=list[Leaked])
    garbage: list[Garbage] = field(default_factory=list[Garbage])
    unnamed: list[Garbage] = field(default_factory=list[Garbage])
    """References under a branch's current token whose entry does not name the address: their writers are under way, or
    died. None are left when the scrubber has run behind the longest operation.
    """
    unreadable: list[Unreadable] = field(default_factory=list[Unreadable])

    @property
    def ok(self) -> bool:
        """Nothing lost, nothing leaked, everything readable."""
        return not (self.lost or self.leaked or self.unreadable)

    def findings(self) -> list[str]:
        """Everything that is wrong, one line each."""
        return [
            *(f"lost: {what}, named by {by}" for what, by in self.lost),
            *(f"leaked: {address} ({size} bytes): {state}" for address, size, state in self.leaked),
            *(f"unreadable: {where}: {why}" for where, why in self.unreadable),
            *(f"garbage: {key.partition} {key.name!r}: {why}" for key, why in self.garbage),
        ]


def audit(
    kv: KV,
    objects: ObjectStore,
    repo_id: str,
    *,
    now_ms: int,
    grace_seconds: float = 0.0,
    shards: int = SHARDS,
) -> Audit:
    """Audit a whole repository, which must be at rest. `grace_seconds`: the grace window of the reaper."""
    return _Auditor(kv, objects, repo_id, now_ms, grace_seconds, shards).run()


def audit_repository(repo: Repository, *, grace_seconds: float = 0.0) -> Audit:
    """Audit a repository in its lake, at its clock's time."""
    ctx = repo.context
    return audit(ctx.kv, ctx.objects, ctx.repo, now_ms=ctx.clock.now_ms(), grace_seconds=grace_seconds)


class _Auditor:
    def __init__(self, kv: KV, objects: ObjectStore, repo: str, now_ms: int, grace_seconds: float, shards: int) -> None:
        self._kv = kv
        self._objects = objects
        self._repo = repo
        self._now_ms = now_ms
        self._grace_ms = grace_seconds * 1000
        self._shards = shards
        self._found = Audit(repo)
        self._live: set[str] = set()
        """Tokens."""
        self._current: set[str] = set()
        """Those of them that are not sealed."""
        self._named: dict[str, str] = {}
        """Address -> by what; taken out again as the listing shows that it is there."""
        self._offline: set[str] = set()
        """Addresses that only a marked or an unreachable commit names."""
        self._owners: dict[str, str] = {}
        """Address that a location record names -> the object of which it is a content."""
        self._ranges: dict[str, set[str]] = {"live": set(), "offline": set()}
        """Ranges that were read, so that each is read once."""

    def run(self) -> Audit:
        heads = self._branches()
        self._tokens()
        self._commits(heads)
        kept = self._locations()
        self._references()
        self._listing(kept)
        self._found.lost += [Lost(address, by) for address, by in self._named.items()]
        return self._found

    # ---- named objects

    def _branches(self) -> list[tuple[str, str]]:
        """Yield (commit, its name) of every branch and tag."""
        heads: list[tuple[str, str]] = []
        for name, record in self._records("branches"):
            retired: Sequence[Sequence[str]] = record[4] if record[0] == BRANCH else record[1]
            if record[0] == BRANCH:
                self._found.branches += 1
                heads.append((record[1], f"the head of branch {name!r}"))
                self._live.update((record[2], *record[3]))
                self._current.add(record[2])
                for token in (record[2], *record[3]):
                    self._entries(name, token)
            elif record[0] == CLOSED_BRANCH:
                self._garbage("branches", name, "a deleted branch that was not published")
            else:
                self._unreadable("branches", name, f"tag {record[0]}")
            for token, fate in retired:
                self._garbage("branches", name, f"token {token} is retired ({fate[:16]}) and not published")
        heads += [(record[1], f"tag {name!r}") for name, record in self._records("tags") if record[0] == TAG]
        return heads

    def _entries(self, branch: str, token: str) -> None:
        for path, record in self._records(f"staging/{token}"):
            if record[0] == ENTRY:
                self._found.staged += 1
                if record[1].startswith(DATA):
                    self._named.setdefault(record[1], f"{path!r} staged on {branch!r} under {token}")
            elif record[0] != TOMBSTONE:
                self._unreadable(f"staging/{token}", path, f"tag {record[0]}")

    def _commits(self, heads: Sequence[tuple[str, str]]) -> None:
        """Read what reachable commits name. Marked commits (except heads), and unreachable ones that landed, are left
        to the offline job.
        """
        marked = {name for name, _ in self._pairs("marks")}
        first = {commit for commit, _ in heads}
        waiting, visited = list(heads), set[str]()
        while waiting:
            commit, by = waiting.pop()
            if commit in visited:
                continue
            visited.add(commit)
            value = self._kv.get(Key(f"{self._repo}/commits", commit))
            if value is ABSENT:
                self._found.lost.append(Lost(f"commit {commit}", by))
                continue
            record = self._decoded("commits", commit, value)
            if record is None:
                continue
            self._found.commits += 1
            waiting += [(parent, f"commit {commit}") for parent in record[1]]
            self._tree(record[2], f"commit {commit}", live=commit in first or commit not in marked)
        for commit, _ in self._pairs("landed"):
            if commit not in visited:
                value = self._kv.get(Key(f"{self._repo}/commits", commit))
                record = None if value is ABSENT else self._decoded("commits", commit, value)
                if record is not None:
                    self._tree(record[2], f"commit {commit}", live=False)
        self._offline -= self._named.keys()
        self._found.committed = sum(by.startswith("commit") for by in self._named.values())

    def _tree(self, metarange: str, by: str, *, live: bool) -> None:
        if not metarange:
            return
        seen = self._ranges["live" if live else "offline"]
        for range_id in self._column(f"_refstore/metaranges/{metarange}.parquet", "range", by, must_be=live):
            if range_id in seen:
                continue
            seen.add(range_id)
            for address in self._column(f"_refstore/ranges/{range_id}.parquet", "address", by, must_be=live):
                if not address.startswith(DATA):
                    continue
                if live:
                    self._named.setdefault(address, by)
                else:
                    self._offline.add(address)

    def _column(self, key: str, column: str, by: str, *, must_be: bool) -> Iterator[str]:
        try:
            yield from column_of(self._objects.read(key), column)
        except ObjectNotFound:
            if must_be:
                self._found.lost.append(Lost(key, by))
        except (pa.ArrowException, OSError) as error:
            self._found.unreadable.append(Unreadable(key, str(error)))

    def _locations(self) -> set[str]:
        """Look for the contents of purged objects where their records say. Return the objects that are named."""
        kept = {*self._named, *self._offline}
        for shard in range(self._shards):
            folder = f"locations/{shard:02x}"
            for identity, record in self._records(folder):
                if record[0] != LOCATION:
                    self._unreadable(folder, identity, f"tag {record[0]}")
                    continue
                fields: Record = [*record[1:], *_LOCATION_DEFAULTS[len(record) - 1 :]]
                current, intent, backups, going = fields[0], fields[2], fields[3], fields[4]
                contents = [*([current] if current else []), *(backup[0] for backup in backups)]
                for address in (*(content[0] for content in contents), *([intent[0]] if intent else []), *going):
                    self._owners[address] = identity
                if current is not None and (by := self._named.pop(identity, None)) is not None and current[0]:
                    self._named[current[0]] = f"{by}, as the content of {identity}"
                elif current is not None and current[0] and identity in self._offline:
                    self._offline.add(current[0])
                if intent is not None:
                    self._garbage(folder, identity, f"the intent of the run {intent[1]}, which is over")
                if going:
                    self._garbage(folder, identity, "what a cleaning has begun to delete")
        return kept

    # ---- existing objects

    def _listing(self, kept: set[str]) -> None:
        for info in self._objects.list(DATA):
            self._found.objects += 1
            self._found.size_bytes += info.size_bytes
            if self._named.pop(info.key, None) is not None:
                continue
            if info.key in self._offline:
                self._found.offline += 1
                continue
            owner = self._owners.get(info.key, info.key)
            if owner in kept and (owner != info.key or info.key in self._owners):
                continue  # a content or a backup of what is named
            state = self._held(owner)
            if state:
                self._found.leaked.append(Leaked(info.key, info.size_bytes, state))

    def _held(self, address: str) -> str:
        """Return why an unnamed object is a leak; '' if it is none."""
        value = self._kv.get(Key(f"{self._repo}/references/{crc32(address.encode()) % self._shards:02x}", address))
        if value is ABSENT:
            return NO_KEY
        record = self._decoded("references", address, value)
        match record:
            case [10, references, *_] if any(token in self._live for token, *_ in references):
                self._found.held += 1
            case [11, since_ms, *_] if since_ms + self._grace_ms > self._now_ms:
                self._found.in_grace += 1
            case [12, _, expires_ms, *_] if expires_ms > self._now_ms:
                self._found.issued += 1
            case [13, *_]:
                self._found.deleting += 1
                return f"deleting, and not finished: {record[1:]}"
            case _:
                return f"{record}"
        return ""

    # ---- garbage

    def _tokens(self) -> None:
        registered: set[str] = set()
        for token, _ in self._pairs("tokens"):
            registered.add(token)
            if token not in self._live:
                self._garbage("tokens", token, "the token is dead")
                for path, _ in self._pairs(f"staging/{token}"):
                    self._garbage(f"staging/{token}", path, "an entry under a dead token")
        for token in sorted(self._live - registered):
            self._garbage(
                "tokens",
                token,
                "missing: the token is live and not registered, so its staging area would not be scrubbed",
            )
        for folder in ("staging/deleted", "staging/committed"):
            for name, _ in self._pairs(folder):
                self._garbage(folder, name, "a marker that was not processed")

    def _references(self) -> None:
        for shard in range(self._shards):
            folder = f"references/{shard:02x}"
            for address, record in self._records(folder):
                match record:
                    case [10, references, *_]:
                        for token, path, *_ in references:
                            if token not in self._live:
                                self._garbage(folder, address, f"a reference of {path!r} under {token}, which is dead")
                            elif token in self._current and not self._carries(token, path, address):
                                why = f"a reference of {path!r} under {token}, whose entry names something else"
                                self._found.unnamed.append(Garbage(Key(f"{self._repo}/{folder}", address), why))
                    case [11, since_ms, *_] if since_ms + self._grace_ms > self._now_ms:
                        pass  # in its grace window
                    case [12, _, expires_ms, *_] if expires_ms > self._now_ms:
                        pass  # issued, and may still be linked
                    case [11 | 12 | 13, *_]:
                        self._garbage(
                            folder,
                            address,
                            f"due, and still {({11: 'empty', 12: 'issued', 13: 'deleting'})[record[0]]}",
                        )
                    case _:
                        self._unreadable(folder, address, f"tag {record[0]}")
            for name, _ in self._pairs(f"due/{shard:02x}"):
                if int(name.partition("/")[0]) <= self._now_ms:
                    self._garbage(f"due/{shard:02x}", name, "a hint that was not followed")

    def _carries(self, token: str, path: str, address: str) -> bool:
        value = self._kv.get(Key(f"{self._repo}/staging/{token}", path))
        record = None if value is ABSENT else decoded(value)
        return record is not None and record[0] == ENTRY and record[1] == address

    # ---- reading

    def _pairs(self, folder: str) -> Iterator[tuple[str, bytes]]:
        return self._kv.scan_all(f"{self._repo}/{folder}")

    def _records(self, folder: str) -> Iterator[tuple[str, Record]]:
        for name, value in self._pairs(folder):
            record = self._decoded(folder, name, value)
            if record is not None:
                yield name, record

    def _decoded(self, folder: str, name: str, value: bytes) -> Record | None:
        record = decoded(value)
        if record is None:
            self._unreadable(folder, name, f"{len(value)} bytes that are no record")
        return record

    def _garbage(self, folder: str, name: str, why: str) -> None:
        self._found.garbage.append(Garbage(Key(f"{self._repo}/{folder}", name), why))

    def _unreadable(self, folder: str, name: str, why: str) -> None:
        self._found.unreadable.append(Unreadable(f"{self._repo}/{folder} {name!r}", why))


def decoded(value: bytes) -> Record | None:
    """Decode a record into the list that is stored, its tag first; None if it is no record."""
    try:
        record = msgspec.msgpack.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return cast(Record, record) if isinstance(record, list) and record and isinstance(record[0], int) else None


def column_of(body: bytes, column: str) -> Iterator[str]:
    """Return a text column of a Parquet file. Raises pyarrow's errors."""
    file = pq.ParquetFile(io.BytesIO(body))
    # the stub has a hole
    for batch in file.iter_batches(columns=[column], use_threads=False):  # type: ignore[reportUnknownMemberType]
        yield from cast("list[str]", batch.column(0).to_pylist())
