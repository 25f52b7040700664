"""The end of a deleted repository: when it is drained, remove its KV partitions, and free its name.

Committed objects stay in its namespace until the offline job deletes them. The record moves to `closed-repositories`,
where that job finds it.
"""

from __future__ import annotations

from refstore.context import Context
from refstore.kv.base import ABSENT
from refstore.records import keys
from refstore.records.encoding import decode_optional, encode
from refstore.records.repository_records import RepositoryRecord
from refstore.versioning.manifest import RepositoryDeleted


def is_drained(ctx: Context, record: RepositoryRecord) -> bool:
    """Return whether the repository is closed, no operation on it can still run, and nothing of it is left to reap."""
    age_ms = ctx.clock.now_ms() - record.closed_ms
    if not record.closed_ms or age_ms < ctx.waits.scrub_after_seconds * 1000:
        return False
    left = (
        keys.branches(ctx.repo),
        keys.committed_tokens(ctx.repo),
        keys.deleted_tokens(ctx.repo),
        keys.tokens(ctx.repo),
        keys.uploads(ctx.repo),
        *(keys.references(ctx.repo, shard) for shard in range(keys.SHARDS)),
    )
    return not any(ctx.kv.count(partition, limit=1) for partition in left)


def remove(ctx: Context, record: RepositoryRecord) -> bool:
    """Move the record, remove the partitions, and free the name, in this order. After a crash the next call repeats it.

    Return whether this call freed the name.
    """
    ctx.lake_manifest.add_deletion(RepositoryDeleted(ctx.name, ctx.repo))  # who deleted it may have died before
    ctx.kv.set(keys.closed_repository(ctx.repo), encode(record))
    for mark_id, _ in ctx.kv.scan_all(keys.gc_runs(ctx.repo)):
        ctx.kv.delete_range(keys.gc_marked_commits(ctx.repo, mark_id), "", keys.LAST_CODE_POINT)
    for partition in (
        keys.branches(ctx.repo),
        keys.commits(ctx.repo),
        keys.landed_commits(ctx.repo),
        keys.tags(ctx.repo),
        keys.tokens(ctx.repo),
        keys.marks(ctx.repo),
        keys.gc_flag(ctx.repo).partition,
        keys.gc_pins(ctx.repo),
        keys.gc_runs(ctx.repo),
        keys.retention(ctx.repo),
        keys.purge(ctx.repo),
        keys.imports(ctx.repo),
        keys.progress(ctx.repo),
        *(keys.due_hint_shard(ctx.repo, shard) for shard in range(keys.SHARDS)),
        *(keys.locations(ctx.repo, shard) for shard in range(keys.SHARDS)),
        keys.reaper_states(ctx.repo),
        keys.unwritten_manifest(ctx.repo),
    ):
        ctx.kv.delete_range(partition, "", keys.LAST_CODE_POINT)
    for shared in (keys.LEASES, keys.FIGURES):
        ctx.kv.delete_range(shared, f"{ctx.repo}/", f"{ctx.repo}/{keys.LAST_CODE_POINT}")
    key = keys.repository(ctx.name)
    raw = ctx.kv.get(key)
    record_by_name = decode_optional(raw, RepositoryRecord)
    return record_by_name is not None and record_by_name.id == ctx.repo and ctx.kv.set_if(key, raw, ABSENT)
