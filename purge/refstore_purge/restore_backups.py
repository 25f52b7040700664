"""Restore what purges have replaced, while the backups last (seed 002, restore).

What a restore replaces becomes trash, which has days of its own. An object is restored to what it was before a run; or,
without a run, to its newest backup, the last known good. An object that a later run has replaced is left alone: going
back behind both would bring back what the later one purged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from refstore.context import Context
from refstore.core import deadline
from refstore.core.batches import split_batches
from refstore.core.ids import Address
from refstore.core.step_progress import ReportProgress, StepProgress, ignore_progress
from refstore.errors import Gone, Invalid, NotFound
from refstore.operations.referenced_entries import referenced_entries
from refstore.operations.version_entries import scan_versions
from refstore.records.location_records import Content
from refstore.repository import Repository
from refstore.versioning.locations import LocatedIdentity
from refstore_purge.content_replacement import keep_in_manifest
from refstore_purge.purge_plan import is_within, partition_of

PAGE: Final = 500
LISTED_MAX: Final = 10_000


class RestoreScope(NamedTuple):
    """Which objects are restored; of empty fields all."""

    run: str = ""
    """Those that this run replaced."""
    dataset: str = ""
    partition: str = ""
    path: str = ""
    backup: str = ""
    """The address of a backup: restore this one, whichever run replaced it."""


class RestoreFailure(msgspec.Struct, frozen=True):
    """An object whose original could not be put back."""

    address: str
    """The object's identity."""
    reason: str


class RestoreSummary(msgspec.Struct, kw_only=True):
    """What a restore did; of a dry run, what it would do."""

    restore: str
    """Its id, which the trash names."""
    run: str
    objects: int = 0
    bytes: int = 0
    already_restored: int = 0
    """Objects whose content is what would be restored."""
    not_restored: list[RestoreFailure] = []
    not_restored_count: int = 0


def restore_backups(
    repo: Repository,
    scope: RestoreScope,
    *,
    dry_run: bool = False,
    report_progress: ReportProgress = ignore_progress,
) -> RestoreSummary:
    """Restore the objects of a scope. Raises NotFound (there is no candidate), Invalid (the scope), Unavailable."""
    ctx = repo.context
    done = RestoreSummary(restore=ctx.ids.new_id(ctx.clock.now_ms()), run=scope.run)
    if dry_run:
        _restore_all(repo, scope, done, report_progress, dry_run=True)
    else:
        with ctx.audit.change("purge.restore", repository=repo.name) as draft:
            try:
                _restore_all(repo, scope, done, report_progress, dry_run=False)
            finally:  # what was restored before an error is restored
                draft.after = {**scope._asdict(), "restore": done.restore, "objects": done.objects}
    if not (done.objects or done.already_restored or done.not_restored_count):
        raise NotFound(
            f"nothing of repository {repo.name!r} has a backup{f' of the run {scope.run!r}' if scope.run else ''} to "
            f"restore; `refstore purge backups {repo.name}` lists what there is"
        )
    return done


def _restore_all(
    repo: Repository, scope: RestoreScope, done: RestoreSummary, report_progress: ReportProgress, *, dry_run: bool
) -> None:
    ctx, began = repo.context, time.monotonic()
    for page in split_batches(_scan_locations(ctx, _select_identities(repo, scope)), PAGE):
        candidates = [found for each in page if (found := _find_candidate(each, scope, done)) is not None]
        with deadline.limit_operation(ctx.clock, ctx.safety.operation_deadline_seconds):
            _restore(ctx, candidates, done, dry_run=dry_run)
        elapsed = timedelta(seconds=time.monotonic() - began)
        report_progress(StepProgress(repo.name, "restoring objects", done.objects, elapsed=elapsed))


def _select_identities(repo: Repository, scope: RestoreScope) -> set[str] | None:
    """Return the objects of a data set, partition or path; None: all."""
    partition = "" if scope.path else scope.partition.strip("/")
    if scope.path:
        prefix = scope.path
    elif scope.dataset:
        datasets = repo.purge_document().document.datasets
        dataset = next((each for each in datasets if each.name == scope.dataset), None)
        if dataset is None:
            names = ", ".join(sorted(each.name for each in datasets)) or "none"
            raise NotFound(f"there is no data set {scope.dataset!r}; the purge document describes: {names}")
        if partition and partition_of(f"{partition}/") != partition:
            raise Invalid(
                f"{partition!r} is no partition; write its folders of the form key=value alone: day=2026-11-26/hour=7"
            )
        prefix = dataset.prefix
    elif scope.partition:
        raise Invalid("a partition is one of a data set; say which with --dataset")
    else:
        return None
    # a run has replaced what is in the trash, too; references first, so that whatever moves meanwhile is met
    every = chain(referenced_entries(repo.context, [prefix]), scan_versions(repo.context, prefixes=[prefix]))
    return {
        each.entry.address
        for each in every
        if (not scope.path or each.path == scope.path)
        and (not partition or is_within(partition_of(each.path[len(prefix) :]), partition))
    }


def _scan_locations(ctx: Context, identities: set[str] | None) -> Iterator[LocatedIdentity]:
    if not ctx.locations.are_announced():
        return
    if identities is None:
        yield from ctx.locations.scan()
        return
    for page in split_batches([Address(identity) for identity in sorted(identities)], PAGE):
        for identity, record in zip(page, ctx.locations.get_many(page), strict=True):
            if record is not None:
                yield LocatedIdentity(identity, record)


def _find_candidate(each: LocatedIdentity, scope: RestoreScope, done: RestoreSummary) -> tuple[Address, Content] | None:
    """Return an object and the content that is to be restored; None: there is none."""
    location = each.location
    backups = [backup for backup in location.backups if not backup.is_trash]
    if location.current is None:
        return None
    if scope.backup:
        chosen = next((backup for backup in location.backups if backup.content.address == scope.backup), None)
        done.already_restored += location.current.address == scope.backup
        return (each.identity, chosen.content) if chosen is not None else None
    if not scope.run:
        return (each.identity, backups[-1].content) if backups else None
    chosen = next((backup for backup in backups if backup.replaced_by == scope.run), None)
    if chosen is None:
        # a restore puts what the run wrote into the trash; what came later stands behind it
        since = [backup for backup in location.backups if backup.is_trash and backup.content.run == scope.run]
        if not since:
            return None
        if since[-1] is location.backups[-1]:
            done.already_restored += 1
            return None
    if chosen is None or location.current.run != scope.run:
        run = location.current.run
        reason = f"the run {run!r} has replaced it since; restore that one first" if run else "it was restored since"
        _record_failure(done, each.identity, f"{reason}, or name a backup with --backup")
        return None
    return each.identity, chosen.content


def _restore(
    ctx: Context, candidates: Sequence[tuple[Address, Content]], done: RestoreSummary, *, dry_run: bool
) -> None:
    wanted = [content.address for _, content in candidates if not content.is_erased]
    found = {info.key: info.size_bytes for info in ctx.objects.head_many(wanted) if info is not None}
    restored: list[LocatedIdentity] = []
    try:
        for identity, content in candidates:
            if not content.is_erased and content.address not in found:
                _record_failure(done, identity, f"the backup at {content.address} is gone")
                continue
            if not content.is_erased and found[content.address] != content.size_bytes:
                size = f"has {found[content.address]} bytes, and had {content.size_bytes}"
                _record_failure(done, identity, f"the backup at {content.address} is damaged: it {size}")
                continue
            if not dry_run:
                try:
                    restored.append(ctx.locations.restore(identity, content.address, done.restore))
                except (NotFound, Gone) as error:
                    _record_failure(done, identity, str(error))
                    continue
            done.objects += 1
            done.bytes += content.size_bytes
    finally:
        keep_in_manifest(ctx, restored, f"the restore {done.restore} restored objects")


def _record_failure(done: RestoreSummary, identity: str, reason: str) -> None:
    done.not_restored_count += 1
    if len(done.not_restored) < LISTED_MAX:
        done.not_restored.append(RestoreFailure(identity, reason))
