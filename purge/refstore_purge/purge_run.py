"""One run of the purge, over all onboarded data sets of a repository.

    ids       read the ids of each data set into a folder that only this user can read
    plan      which objects the data sets have, by partition: at the heads, or in every version
    attempts  find, decide and publish (`purge_attempts.py`): at the heads for data sets of the mode `keep-history`, in
              every version for those of the modes `rewrite` and `erase`
    look      look for the ids in what the plan leaves out: backups, trash, what is held (`unplanned_contents.py`)
    report    write what was done, and the places that still have rows (`remaining_places.py`), also if the run failed

It may be killed anywhere and run again: nothing is published before it is whole, and what is purged matches no more.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from refstore.core.step_progress import ReportProgress
from refstore.errors import Invalid, RefstoreError
from refstore.monitoring.run_control import RunControl
from refstore.purge_document.document import KEEP_HISTORY, Dataset, PurgeDocument
from refstore.repository import Repository
from refstore_gc.engines import worker_processes
from refstore_gc.engines.choice import Engines
from refstore_gc.run_progress import RunSteps
from refstore_purge import id_index, ids_file, ledger, purge_report, remaining_places, row_search, unplanned_contents
from refstore_purge.dataset_ids import DatasetIds
from refstore_purge.dataset_results import make_dataset_results
from refstore_purge.formats.base import IdKind
from refstore_purge.head_publisher import HeadPublisher
from refstore_purge.ids_file import IdsFile
from refstore_purge.location_publisher import LocationPublisher
from refstore_purge.purge_account import PurgeAccount
from refstore_purge.purge_context import PurgeOptions, PurgeRun
from refstore_purge.purge_plan import PurgePlan, SkippedObject, plan_heads, plan_versions
from refstore_purge.purge_report import PurgeReport, unexamined_place
from refstore_purge.purge_tasks import TaskSettings, modules_for

__all__ = ["IdsFile", "PurgeOptions", "run_purge"]


def run_purge(
    repo: Repository,
    engines: Engines,
    options: PurgeOptions,
    report_progress: ReportProgress,
    *,
    print_notice: Callable[[str], None] = lambda _: None,
) -> PurgeReport:
    """Purge what is onboarded in a repository, and return the report, which is in its namespace, too. `print_notice`:
    is told which ids were read; no value is among it.

    Raises NotFound (nothing is onboarded), Invalid (the ids, their type, or a table's files), Conflict (the
    breaker), Unavailable, Corrupt.
    """
    document = repo.purge_document().document
    if not document.onboarded_datasets:
        raise Invalid(
            f"no data set of {repo.name!r} is onboarded: one must be described and stand on the whitelist; see "
            f"`refstore purge onboard {repo.name} --dry-run`"
        )
    ctx = repo.context
    run_id = ctx.ids.new_id(ctx.clock.now_ms())
    report = PurgeReport(run=run_id, state="running", began_ms=ctx.clock.now_ms())
    account, engine = PurgeAccount(report), engines.for_objects(0)
    with ids_file.ids_folder() as folder:
        owner = f"{socket.gethostname()}:{os.getpid()}"
        steps = RunSteps(repo.name, engine, report_progress, RunControl(ctx, run_id, "purge", owner))
        key = id_index.IndexKey.derive(options.purge_key) if options.purge_key else None
        datasets = document.select_datasets(options.datasets)
        worker_processes.start_ahead(modules_for(datasets, has_index=key is not None))
        ids, unclear = _load_ids(repo, document, datasets, options, folder / "ids", key, print_notice)
        datasets = ids.select_datasets(datasets)
        account.unusable_datasets += unclear
        account.places += [unexamined_place(each.reason) for each in unclear]
        report.ids, report.is_from_ledger = ids.count, options.ids is None
        with ctx.audit.change("purge.run", repository=repo.name) as draft:
            try:
                _purge(datasets, PurgeRun(repo, engine, options, steps, account, ids, key), engines)
                if key is not None and not options.dry_run:
                    ledger.write_ledger(ctx.objects, key, run_id, ids.group_by_set(), ctx.clock.now_ms())
                report.state = "dry run" if options.dry_run else "done"
            except BaseException as error:
                report.state = "failed"
                report.failure = str(error) if isinstance(error, RefstoreError) else type(error).__name__
                report.watermark, report.partitions_left = "", 0  # nobody may go on from where it did not come to
                raise
            finally:
                try:
                    account.update_report()
                    purge_report.complete_report(repo, report)
                    report.seconds, report.ended_ms = steps.seconds, ctx.clock.now_ms()
                    if not options.dry_run:
                        _record_places(repo, account)
                    purge_report.write_report(ctx.objects, report)
                    draft.after = _audit_values(report)
                finally:
                    steps.close()  # until then nobody takes the run for killed
    return report


def _purge(datasets: Sequence[Dataset], run: PurgeRun, engines: Engines) -> None:
    run.steps.start_beat()
    run.save()
    account, report = run.account, run.account.report
    heads = [each for each in datasets if each.mode == KEEP_HISTORY]
    versions = [each for each in datasets if each.mode != KEEP_HISTORY]
    head_plan = version_plan = PurgePlan({}, [], [])
    if heads:
        with run.steps.step("listing the heads"):
            head_plan = plan_heads(run.repo, heads, run.ids.planned_sets)
        account.note_plan(head_plan, head_plan.heads)
    if versions:
        with run.steps.step("listing every version"):
            version_plan = plan_versions(run.repo, versions, run.ids.planned_sets)
        account.note_plan(version_plan)
    objects = [*head_plan.objects, *version_plan.objects]
    every, most = sorted({each.partition.watermark for each in objects}), run.options.max_partitions
    chosen = [watermark for watermark in every if watermark > run.options.after]
    run = run.move_to(engines.for_objects(len(objects)))
    if most is not None and len(chosen) > most:
        run = replace(run, until=chosen[most - 1])
    run.save()
    with run.steps.step("preparing"):
        row_search.prepare_ids(run, datasets, objects)
        task_settings = _make_task_settings(run)
    run = replace(run, task_settings=task_settings)
    try:
        if heads:
            HeadPublisher(run, heads).purge(head_plan)
        if versions:
            publisher = LocationPublisher(run, versions)
            latest = publisher.purge(version_plan)
            if latest.summaries:
                publisher.purge_summaries(latest)
        if not run.options.dry_run:
            unplanned_contents.find_unplanned(run, datasets)
        account.update_report()
        report.datasets = make_dataset_results(run, datasets, objects)
    finally:
        run.engine.remove_shared(task_settings.ids)
    report.watermark = run.until or ""
    report.partitions_left = len(every) - len(chosen if most is None else chosen[:most])


def _load_ids(
    repo: Repository,
    document: PurgeDocument,
    datasets: Sequence[Dataset],
    options: PurgeOptions,
    folder: Path,
    key: id_index.IndexKey | None,
    print_notice: Callable[[str], None],
) -> tuple[DatasetIds, list[SkippedObject]]:
    """Bring the ids of these data sets to a folder; return them, and the data sets for which that cannot be done.

    Raises Invalid, NotFound, Corrupt.
    """
    ids_file.check_id_type(options.id_type)
    if options.ids is None:
        if key is None:
            raise Invalid("the ledger needs the key of the purge; set purge_key, or give ids with --ids")
        kind = cast("IdKind | None", {"": None, "uuid": "binary"}.get(options.id_type, options.id_type))
        loaded = ledger.load_ledger(repo.context.objects, key, folder, datasets, kind=kind)
        ids = DatasetIds(folder, loaded.sets)
        print_notice(f"ids: {ids.count} of the ledger{_describe_datasets_without_ids(ids, datasets)}")
        return ids, [
            SkippedObject("", each.prefix, "the ledger has ids of several types for it; run it alone with --id-type")
            for each in datasets
            if each.name in loaded.ambiguous_datasets
        ]
    onboarded = [each.name for each in document.onboarded_datasets]
    read = ids_file.load_ids(options.ids, folder, id_type=options.id_type, datasets=onboarded)
    sets = {each.name: [read.sets[name]] for each in datasets for name in ("", each.name) if name in read.sets}
    if not sets:
        raise Invalid(f"{options.ids.name} has no ids of what --dataset names; give others, or leave it out")
    ids = DatasetIds(folder, sets, is_for_all="" in read.sets)
    print_notice(f"ids: {read.text}{_describe_datasets_without_ids(ids, datasets)}")
    return ids, []


def _describe_datasets_without_ids(ids: DatasetIds, datasets: Sequence[Dataset]) -> str:
    """Say which data sets a run leaves out, because they have no ids."""
    chosen = {each.name for each in ids.select_datasets(datasets)}
    others = ", ".join(each.name for each in datasets if each.name not in chosen)
    return f"; not looked at, without ids: {others}" if others else ""


def _make_task_settings(run: PurgeRun) -> TaskSettings:
    ctx = run.repo.context
    return TaskSettings(
        url=ctx.objects.url,
        io_timeout_seconds=ctx.safety.objects_io_seconds,
        ids=run.engine.share_folder(run.ids.folder),
        hash_key=run.key.hash_key if run.key is not None else b"",
    )


def _record_places(repo: Repository, account: PurgeAccount) -> None:
    """Write down what still has rows of the ids, and list the places where that stands."""
    report, purge = account.report, f"refstore purge run {repo.name}"
    report.places = list(account.places)
    if report.failure:
        report.places.append(unexamined_place("the run failed, and has not looked at everything", purge))
    report.unexamined = [remaining_places.UNNAMED]
    report.places += [
        unexamined_place(each.untouched_reason, purge, each.dataset)
        for each in report.datasets
        if each.untouched_reason
    ]
    try:
        remaining_places.write_contents(repo.context.objects, report.run, account.remaining_contents())
        remaining_places.refresh_places(repo, [report], examined={address for _, address in account.examined})
    except RefstoreError as error:
        reason = f"where the rows still are could not be looked up: {error}"
        report.places.append(unexamined_place(reason, purge))


def _audit_values(report: PurgeReport) -> dict[str, object]:
    return {
        "run": report.run,
        "state": report.state,
        "ids": report.ids,
        "rows": sum(row.rows_changed for row in report.rows),
        "objects": sum(row.rewritten_objects for row in report.rows),
        "commits": [each.commit for each in report.published_commits],
    }
