"""The offline job in one process, plain and slow: what the real one is compared with, and what the explorer runs.

It keeps to the order of rule 13 by `refstore.gc_marks`, and holds everything in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from io import BytesIO
from typing import NamedTuple

import msgspec

from refstore.context import Context
from refstore.core.ids import Address, CommitId, is_own
from refstore.gc_marks import LiveBatch, LiveCommit, Marks, OfflineRun, new_mark_id
from refstore.gc_marks.sweep_records import ROOT, outcome_key
from refstore.kv.base import ABSENT
from refstore.objects.base import DeleteResult
from refstore.records import keys
from refstore.records.staging_records import StoredEntry
from refstore.versioning.commits import object_names
from refstore.versioning.commits.columns import pa, pq

DATA = "data/"
METADATA = (object_names.RANGES, object_names.METARANGES, object_names.ADDED_ADDRESSES)

Keeps = Callable[[CommitId, str, StoredEntry], bool]
"""Whether a commit keeps its entry at a path of which a part of it has expired (`Kept.but_for`): what path rules say.
"""


class MayGo(NamedTuple):
    """Object keys, each with its size."""

    data: dict[str, int]
    metadata: dict[str, int]
    """Ranges, metaranges and listings that no commit names that landed or may still land."""


def may_go(
    ctx: Context,
    run: OfflineRun,
    *,
    min_age_ms: int = 0,
    keeps: Keeps | None = None,
    folders: tuple[str, ...] = (DATA, *METADATA),
) -> MayGo:
    """What the listing has and nobody names, if it is old enough. The barrier of the run is over."""
    listing = [info for folder in folders for info in ctx.objects.list(folder)]
    named = what_stays(ctx, Marks(ctx).mark_run.scan_live(run), keeps)
    # a commit that began behind the mark may have written what its record will name
    young_ms = min(ctx.clock.now_ms() - min_age_ms, run.record.began_ms - int(ctx.safety.clock_skew_seconds * 1000))
    data = {
        info.key: info.size_bytes
        for info in listing
        if is_own(Address(info.key)) and info.key not in named and info.mtime_ms <= ctx.clock.now_ms() - min_age_ms
    }
    metadata = {
        info.key: info.size_bytes
        for info in listing
        if info.key.startswith(METADATA)
        and object_names.id_of_key(info.key)
        and info.key not in named
        and info.mtime_ms < young_ms
    }
    return MayGo(data, metadata)


def what_stays(ctx: Context, look: Iterable[LiveBatch], keeps: Keeps | None = None) -> set[str]:
    """Every object key that the look names."""
    found: set[str] = set()
    for batch in look:
        found.update(batch.addresses)
        for commit in batch.commits:
            found |= _objects_of(ctx, commit) | _entries_of(ctx, commit, keeps)
    return found


def mark(
    ctx: Context,
    expired: Iterable[CommitId],
    *,
    grace_ms: int = 0,
    partly: Iterable[tuple[CommitId, tuple[str, ...]]] = (),
    folders: tuple[str, ...] = (DATA, *METADATA),
) -> tuple[OfflineRun, MayGo]:
    """Mark, wait, list, look. Takes over from whoever else is at it."""
    marks = Marks(ctx)
    run = marks.mark_run.begin("", grace_ms, expired, new_mark_id(ctx), partly=partly, take_over=True)
    marks.mark_run.wait(run)
    found = may_go(ctx, run, folders=folders)
    marks.mark_run.unmark_nothing_to_delete(run, complete(ctx, run, found.data))
    return marks.mark_run.finish(run, {"objects": len(found.data), "metadata": len(found.metadata)}), found


def complete(ctx: Context, run: OfflineRun, going: Collection[str]) -> list[CommitId]:
    """What this run marked although nothing of it goes, nor is on its way by an earlier mark. Nothing that never
    landed.
    """
    marks = Marks(ctx)
    landed = [
        commit
        for commit in marks.mark_run.may_have_nothing_to_delete(run)
        if ctx.kv.get(keys.landed_mark(ctx.repo, commit)) is not ABSENT
    ]
    return [
        commit
        for commit, record in marks.commits.read_commits(landed)
        if _entries_of(ctx, LiveCommit(commit, record), None).isdisjoint(going)
    ]


def write_tagged(ctx: Context, mark_id: str, tagged: Iterable[str], left: Iterable[str] = ()) -> None:
    """Write the files of a sweep that tagged these addresses, and left the others to what names them again."""
    outcomes = sorted([*((each, "tagged") for each in tagged), *((each, "excluded") for each in left)])
    unit, sink = f"{ROOT}{mark_id}/mark/0.parquet", BytesIO()
    table = {"address": [each for each, _ in outcomes], "outcome": [outcome for _, outcome in outcomes]}
    pq.write_table(pa.table(table), sink)
    ctx.objects.put(outcome_key(unit), sink.getvalue())
    ctx.objects.put(f"{ROOT}{mark_id}/mark.json", msgspec.json.encode({"units": [[unit, outcomes[0][0]]]}))


def unmark_untouched(ctx: Context, mark_id: str, candidates: Iterable[str]) -> None:
    """Before a sweep: unmark the commits of which it would delete nothing."""
    marks = Marks(ctx)
    run = marks.runs.get(mark_id)
    left = {
        key
        for commit, record in marks.sweeps.will_exclude(run)
        for key in _entries_of(ctx, LiveCommit(commit, record), None)
    }
    marks.sweeps.unmark_untouched(run, complete(ctx, run, {*candidates} - left))


def sweep(ctx: Context, mark_id: str, candidates: Iterable[str]) -> DeleteResult:
    """First no mark can be taken back; then what was, drops out; then the objects go."""
    marks = Marks(ctx)
    run = marks.sweeps.begin(mark_id)
    dropped = {
        key
        for commit, record in marks.sweeps.excluded_commits(run)
        for key in _entries_of(ctx, LiveCommit(commit, record), None)
    }
    deletion = ctx.objects.delete_many([key for key in candidates if key not in dropped])
    if not deletion.failed_keys:
        marks.sweeps.finish(mark_id, {"deleted": len(deletion.deleted_keys), "missing": len(deletion.missing_keys)})
    return deletion


def _entries_of(ctx: Context, commit: LiveCommit, keeps: Keeps | None) -> set[str]:
    found: set[str] = set()
    if commit.expired_prefixes == ("",):
        return found
    after = ""
    while page := ctx.trees.scan(commit.record.metarange, after=after):
        for path, entry in page:
            if not path.startswith(commit.expired_prefixes) or (
                keeps is not None and keeps(commit.commit, path, entry)
            ):
                found.add(entry.address)
        after = page[-1][0]
    return found


def _objects_of(ctx: Context, commit: LiveCommit) -> set[str]:
    record = commit.record
    found = (
        {object_names.key(object_names.RANGES, range_id) for range_id in ctx.trees.ranges(record.metarange)}
        if record.metarange
        else set[str]()
    )
    if record.metarange:
        found.add(object_names.key(object_names.METARANGES, record.metarange))
    if record.added_addresses_id:
        found.add(object_names.key(object_names.ADDED_ADDRESSES, record.added_addresses_id))
    return found
