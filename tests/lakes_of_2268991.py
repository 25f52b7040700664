"""The lakes that commit 2268991 wrote (`tests/fixtures/written_by_2268991/`), opened and read with today's code.

`read_lake` reads what `write.py` read when it had written them, so that both can be compared as a whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote, urlsplit

from refstore import access_keys
from refstore.core import keys, records
from refstore.core.ids import CommitId
from refstore.core.records import Entry
from refstore.core.settings import ReaperSettings
from refstore.errors import Gone, ObjectNotFound
from refstore.gc_marks import Marks
from refstore.lake import Lake
from refstore.objects.base import Body, Stored
from refstore.objects.local import LocalObjects
from refstore.operations import address_info
from refstore.repository import Repository
from refstore_reaper.daemon import Reaper
from tests.durations import unchecked_lake
from tests.kit.clock import FakeClock
from tests.kit.independent_audit import Audit, audit
from tests.servers.redis_servers import RedisServer

FIXTURES = Path(__file__).resolve().parent / "fixtures" / "written_by_2268991"
OBJECTS = "file:///lake/objects"
"""Where the repositories' records say that their objects are; `ClockedObjects` has them elsewhere."""
DAY = 86_400


class ClockedObjects(LocalObjects):
    """Files are as old as the lake's clock says."""

    def __init__(self, folder: Path, url: str, clock: FakeClock) -> None:
        self.folder = folder / unquote(urlsplit(url).path).removeprefix("/lake/")
        self._lake_clock = clock
        super().__init__(self.folder, fsync=False)

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> Stored:
        stored = super().put(key, body, if_absent=if_absent)
        seconds = self._lake_clock.now_ms() / 1000
        os.utime(self.folder / key, (seconds, seconds))
        return stored


@dataclass(slots=True)
class OldLake:
    """A lake as it was left, at the time at which it was left."""

    lake: Lake
    clock: FakeClock
    expected: dict[str, Any]
    notes: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.notes = self.expected["notes"]

    def reap(self) -> None:
        """Everything that is due now, and what crashes left behind."""
        with Reaper(self.lake, ReaperSettings(), scrub_now=True, random=Random(1), asynchronous=False) as reaper:
            reaper.run_once(lambda: False)

    def audit(self, name: str) -> Audit:
        ctx = self.lake.repository(name).context
        now_ms = self.clock.now_ms()
        return audit(self.lake.kv, ctx.objects, ctx.repo, now_ms=now_ms, grace_seconds=ctx.grace_seconds)


@contextmanager
def open_old_lake(name: str, folder: Path, *, binary: str | None = None) -> Generator[OldLake, None, None]:
    """`name`: `local`, or `redis`, whose dump a server of its own loads (`binary`: which one)."""
    with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    expected = json.loads((FIXTURES / f"{name}.json").read_text())
    clock = FakeClock(wall_ms=expected["notes"]["now_ms"])
    if name == "local":
        with _opened(f"sqlite://{folder}/kv.sqlite", folder, clock) as lake:
            yield OldLake(lake, clock, expected)
        return
    with RedisServer(folder, aof=False, binary=binary) as server:
        with server.client() as client:
            client.config_set("appendonly", "yes")
        with _opened(server.url, folder, clock) as lake:
            yield OldLake(lake, clock, expected)


@contextmanager
def _opened(kv_url: str, folder: Path, clock: FakeClock) -> Generator[Lake, None, None]:
    with unchecked_lake(kv_url, OBJECTS, clock=clock) as lake:
        lake.open_store = lambda url: ClockedObjects(folder, url, clock)
        yield lake


# ---- records, as they are stored

_GLOBAL: dict[str, type[records.Record]] = {
    keys.REPOSITORIES: records.RepositoryRecord,
    keys.CLOSED_REPOSITORIES: records.RepositoryRecord,
    keys.LEASES: records.Lease,
    keys.REAPERS: records.Heartbeat,
    keys.ACCESS_KEYS: records.AccessKeyRecord,
}
_BY_FOLDER: dict[str, Callable[[bytes], records.Record] | type[records.Record]] = {
    "references": records.decode_reference,
    "due": records.Due,
    "branches": records.decode_branch,
    "tags": records.Tag,
    "tokens": records.TokenRecord,
    "staging/deleted": records.DeletedToken,
    "staging/committed": records.CommittedTokens,
    "staging": records.decode_staged,
    "commits": records.Commit,
    "marks": records.Mark,
    "retention": records.RetentionRecord,
    "gc/runs": records.GcRun,
    "gc": records.GcFlag,
}
_REAPER = {"breaker": records.BreakerState, "deleted": records.Counter, "scrubbed": records.Stamp}
_NO_RECORDS = ("landed", "gc/pins", "gc/marked", "configuration", "namespaces")


def decode_record(partition: str, name: str, value: bytes) -> records.Record | None:
    """The record as today's code reads it; None where the value is no record."""
    if partition in _NO_RECORDS:
        return None
    if partition in _GLOBAL:
        return records.decode(value, _GLOBAL[partition])
    folder = partition.partition("/")[2]
    if folder.startswith(_NO_RECORDS):
        return None
    if folder == "reaper":
        return records.decode(value, _REAPER[name.partition("/")[0]])
    kind = _BY_FOLDER.get(folder) or _BY_FOLDER[folder.partition("/")[0]]
    return records.decode(value, kind) if isinstance(kind, type) else kind(value)


# ---- what is read


def read_lake(lake: Lake, notes: dict[str, Any]) -> dict[str, Any]:
    return {
        "notes": notes,
        "partitions": _partitions(lake),
        "keys": [
            [key.id, int(key.role), list(key.repositories), key.description, key.created_ms]
            for key in access_keys.scan(lake.kv)
        ],
        "closed": [name for name, _ in lake.kv.scan_all(keys.CLOSED_REPOSITORIES)],
        "deleted": [name for name, record in lake.all_repositories() if record.closed_ms],
        "repositories": {name: read_repository(lake.repository(name), notes) for name, _ in lake.repositories()},
    }


def read_repository(repo: Repository, notes: dict[str, Any]) -> dict[str, Any]:
    record, rules = repo.record, repo.retention()
    branches, commits = list(repo.branches()), [(commit, repo.get_commit(commit)[1]) for commit in _commit_ids(repo)]
    return {
        "record": [
            record.id,
            record.namespace,
            record.default_branch,
            record.created_ms,
            record.metadata,
            record.grace_seconds,
        ],
        "branches": {
            name: [branch.head, branch.token, list(branch.sealed), branch.created_ms, branch.hidden]
            for name, branch in branches
        },
        "tags": {name: [tag.commit, tag.created_ms] for name, tag in repo.tags()},
        "commits": {
            name: [
                list(each.parents),
                each.metarange,
                each.added,
                list(each.tokens),
                each.created_ms,
                each.committer,
                each.message,
                each.metadata,
                each.generation,
            ]
            for name, each in commits
        },
        "logs": {name: [commit for commit, _ in repo.log(name)] for name, _ in branches},
        "staged": {name: _changes(repo, name) for name, _ in branches},
        "diffs": {name: _changes(repo, name, "main") for name, _ in commits},
        "listings": {
            ref: list(read_listing(repo, ref))
            for ref in [*(name for name, _ in branches), *(name for name, _ in commits)]
        },
        "rules": [rules.document, rules.set_ms, rules.set_by, rules.rules.digest()] if rules is not None else None,
        "marks": {
            name: [
                mark.since_ms,
                mark.deletes_at_ms,
                mark.mark_id,
                mark.sweeping_ms,
                mark.swept_ms,
                list(mark.prefixes),
            ]
            for name, mark in repo.marks()
        },
        "runs": {
            each.mark_id: [
                each.state.value,
                each.record.deletes_at_ms,
                each.record.finished_ms,
                each.record.counts,
                each.record.swept,
                each.record.ended,
                list(each.record.disregards),
            ]
            for each in Marks(repo.context).runs()
        },
        "addresses": list(_addresses(repo)),
        "trash": sorted(
            [each.address, each.branch, each.path, each.cause, each.since_ms, each.deletes_at_ms]
            for each in repo.in_grace()
            if each.deletes_at_ms is not None  # else the reaper has not come to it yet: 2268991 did not list that
        ),
        "journal": [
            [address, deletion.outcome, deletion.at_ms, deletion.cause, deletion.path]
            for address in notes["reaped"]
            if repo.name == "sales"
            for deletion in repo.why(address).deletions
        ],
    }


def read_listing(repo: Repository, ref: str) -> Iterator[Any]:
    """Each path with the digest of its bytes; `gone` where they were swept, '' where they are not the lake's."""
    listed = {line.path: line.entry for line in repo.list(ref)}
    commit, record = repo.get_commit(ref)
    # a listing of a commit leaves out what was swept
    named = list(repo.context.trees.scan(record.metarange)) if ref == commit else list(listed.items())
    for path, entry in named:
        assert entry is not None
        digest = ""
        if entry.address.startswith("data/"):
            try:
                digest = hashlib.sha256(repo.read(ref, path)).hexdigest()
            except (ObjectNotFound, Gone):
                digest = "gone"
        assert (path in listed) == (digest != "gone"), (ref, path)
        yield [path, digest, _fields(entry)]


def _fields(entry: Entry | None) -> Any:
    if entry is None:
        return None
    return [entry.address, entry.size_bytes, entry.checksum, entry.mtime_ms, entry.metadata, entry.content_type]


def _commit_ids(repo: Repository) -> list[CommitId]:
    refs = [name for name, _ in repo.branches()] + [name for name, _ in repo.tags()]
    return sorted({commit for ref in refs for commit, _ in repo.log(ref)})


def _changes(repo: Repository, left: str, right: str | None = None) -> list[Any]:
    return [[each.path, each.kind.value, _fields(each.left), _fields(each.right)] for each in repo.diff(left, right)]


def _addresses(repo: Repository) -> Iterator[Any]:
    """Those that have a reference key."""
    for shard in range(keys.SHARDS):
        for address, _ in repo.context.kv.scan_all(keys.references(repo.context.repo, shard)):
            view = address_info.address_info(repo.context, address)
            named = [[each.branch, each.path, each.token, each.state.value] for each in view.references]
            yield [view.address, view.state.value, named, view.since_ms, view.cause, view.expires_ms]


def partition_names(lake: Lake) -> list[str]:
    """Every partition that the key layout knows."""
    names = [keys.REPOSITORIES, keys.CLOSED_REPOSITORIES, keys.LEASES, keys.REAPERS, keys.ACCESS_KEYS]
    names += ["configuration", "namespaces"]
    repositories = [record.id for _, record in lake.all_repositories()]
    for repo in [*repositories, *(name for name, _ in lake.kv.scan_all(keys.CLOSED_REPOSITORIES))]:
        for shard in range(keys.SHARDS):
            names += [keys.references(repo, shard), keys.due_shard(repo, shard)]
        own = (
            keys.branches,
            keys.tags,
            keys.tokens,
            keys.deleted_tokens,
            keys.committed_tokens,
            keys.commits,
            keys.landed_commits,
            keys.marks,
            keys.retention,
            lambda repo: keys.gc_flag(repo).partition,
            keys.gc_runs,
            keys.gc_pins,
            keys.reaper_states,
        )
        names += [partition(repo) for partition in own]
        names += [keys.staging(repo, token) for token, _ in lake.kv.scan_all(keys.tokens(repo))]
        names += [keys.gc_marked_by(repo, mark) for mark, _ in lake.kv.scan_all(keys.gc_runs(repo))]
    return names


def _partitions(lake: Lake) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for partition in partition_names(lake):
        values = [[name, value.hex()] for name, value in lake.kv.scan_all(partition)]
        if values:
            found[partition] = [len(values), hashlib.sha256(json.dumps(values).encode()).hexdigest()]
    return found
