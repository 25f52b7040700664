"""One run of the purge, in the mode `keep-history`.

    plan      which objects the heads have in onboarded data sets, by partition
    find      look for the ids in each distinct object, unless its partition's value tells; executors do
    copies    refuse objects that have a name outside the data sets
    breaker   stop where more rows would go than anybody expects
    rewrite   write the objects that have some again; executors do
    publish   one commit for each branch
    again     look at the heads that have moved meanwhile, or whose publication was refused: up to three attempts

It may be killed anywhere and run again: nothing is published before it is whole, and what is purged matches no more.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from refstore.errors import BranchNotFound, Conflict, Invalid, RefstoreError
from refstore.purging.document import KEEP_HISTORY, Dataset
from refstore.repository import Repository
from refstore_gc.run_progress import Steps, Tell
from refstore_gc.session import parts_of, translated
from refstore_purge import ids_file, index, report, tasks
from refstore_purge.ids import IdSet, write_index_hashes
from refstore_purge.plan import Name, NotPurged, Piece, Plan, Unit, plan
from refstore_purge.private_folder import private_folder
from refstore_purge.publish import Publication, Rewritten, delete_abandoned
from refstore_purge.report import LISTED_MAX, Published, Report, Row
from refstore_purge.tasks import Done, Job, Work
from refstore_purge.untyped_arrow import pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS: Final = 3
FOUND_PER_PART: Final = 2048
"""How many objects each core looks through in one job of Spark, of which progress knows the end."""
REWRITTEN_PER_PART: Final = 32
"""How many objects each core writes in one: their addresses are issued before, and expire."""
HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
SHARE: Final = 0.5
FLOOR_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    ids: Path
    id_column: str = ""
    """'': the only one."""
    id_type: str = ""
    """'': as the file has them."""
    dry_run: bool = False
    """Find, and write nothing but the report."""
    max_units: int | None = None
    """How many partitions this run does at most."""
    after: str = ""
    """The watermark of an earlier run: partitions up to it are left out."""
    including_copies: bool = False
    """Whether names outside the data sets are given the rewritten object, too."""
    share: float = SHARE
    """Stop if more than this share of the rows that were looked at would go."""
    floor_rows: int = FLOOR_ROWS
    """Fewer rows never stop a run."""
    purge_key: bytes | None = field(default=None, repr=False)
    """The key of the index (`refstore.purging.key`). None: no index is read or written."""


@dataclass(slots=True)
class _State:
    """What a run knows so far."""

    report: Report
    found: dict[str, Done] = field(default_factory=dict[str, Done])
    """By address. An object never changes, so it is looked at once."""
    rows: dict[tuple[str, str], Row] = field(default_factory=dict[tuple[str, str], Row])
    failures: dict[str, NotPurged] = field(default_factory=dict[str, NotPurged])
    by_partition: dict[tuple[str, str], bool] = field(default_factory=dict[tuple[str, str], bool])
    """By unit, if its partition has the identifier's value: whether that is one of the ids."""
    indexes: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """The sizes of indexes, by their folder and the object's address."""


def run(repo: Repository, spark: SparkSession, options: Options, tell: Tell) -> Report:
    """Purge what is onboarded in a repository, and return the report, which is in its namespace, too.

    Raises NotFound (nothing is onboarded), Invalid (the ids, their type, or a table of Delta or Iceberg), Conflict (the
    breaker), Unavailable, Corrupt.
    """
    datasets = [each for each in repo.purge_document().document.onboarded if each.mode == KEEP_HISTORY]
    if not datasets:
        raise Invalid(
            f"no data set of {repo.name!r} is onboarded in the mode {KEEP_HISTORY!r}; see `refstore purge validate "
            f"{repo.name}`"
        )
    ctx = repo.context
    run_id = ctx.ids.unique(ctx.clock.now_ms())
    state = _State(Report(run=run_id, state="running", began_ms=ctx.clock.now_ms()))
    with private_folder() as folder:
        state.report.ids = ids_file.load(options.ids, folder / "ids", column=options.id_column, id_type=options.id_type)
        steps = Steps(spark, tell)
        key = index.Key.of(options.purge_key) if options.purge_key else None
        ids = _opened(folder / "ids", key)
        with ctx.audit.change("purge.run", repository=repo.name) as draft:
            try:
                _run(_Run(repo, spark, options, steps, datasets, state, folder / "ids", ids, key))
                state.report.state = "dry run" if options.dry_run else "done"
            except BaseException as error:
                state.report.state = "failed"
                state.report.failure = str(error) if isinstance(error, RefstoreError) else type(error).__name__
                raise
            finally:
                state.report.seconds = steps.seconds
                _finish(ctx.clock.now_ms(), state)
                report.write(ctx.objects, state.report)
                draft.after = _audited(state.report)
    return state.report


@dataclass(frozen=True, slots=True)
class _Run:
    repo: Repository
    spark: SparkSession
    options: Options
    steps: Steps
    datasets: Sequence[Dataset]
    state: _State
    folder: Path
    """Of the ids."""
    ids: IdSet
    key: index.Key | None


def _run(run: _Run) -> None:
    if not run.options.dry_run:
        delete_abandoned(run.repo)
    job = _job(run)
    try:
        _attempts(run, job)
    finally:
        tasks.remove_ids(run.spark, job)


def _attempts(run: _Run, job: Job) -> None:
    repo, options, state = run.repo, run.options, run.state
    wanted: set[str] | None = None
    for attempt in range(1, ATTEMPTS + 1):
        with run.steps.step("listing the heads"):
            planned = plan(repo, run.datasets, branches=wanted)
            units = _chosen(run, planned)
            _ask_partitions(run, units)
        if attempt == 1:
            _check_kinds(run, units)
            _list_indexes(run, planned)
            state.report.not_purged = planned.not_purged
        with run.steps.step("looking for the ids"), translated("looking for the ids"):
            _find(run, job, units, attempt)
        matched = {
            piece.address for unit in units for piece in unit.pieces.values() if state.found[piece.address].matched
        }
        with run.steps.step("looking for copies"):
            left = _with_copies(run, planned, units, matched)
        _ask_breaker(run, units)
        if options.dry_run or not left:
            return
        publication = Publication(repo, state.report.run, attempt, planned.heads)
        try:
            with run.steps.step("rewriting"), translated("rewriting"):
                _rewrite(run, job, units, left, publication)
            with run.steps.step("publishing"):
                published, refused = publication.publish(f"Purge {state.report.ids} ids (run {state.report.run})")
            if run.key is not None:
                index.delete(repo.context.objects, _index_keys(run, units, left))
        finally:
            publication.close()
        state.report.published += published
        wanted = {*refused, *_moved(repo, planned.heads, published)}
        if attempt == ATTEMPTS:
            for branch, reason in refused.items():
                state.failures[f"branch {branch}"] = NotPurged(branch, "", f"not published: {reason}")


def _moved(repo: Repository, heads: dict[str, str], published: Sequence[Published]) -> set[str]:
    """Return the branches that others have moved since they were looked at. One that is gone has not moved."""
    landed = {each.branch: each.commit for each in published}
    moved: set[str] = set()
    for name, head in heads.items():
        commit = landed.get(name)
        # what landed is one commit upon the branch as it was then
        before = head if commit is None else repo.get_commit(commit).record.parents[0]
        with suppress(BranchNotFound):
            if before != head or repo.get_branch(name).head != (commit or head):
                moved.add(name)
    return moved


def _opened(folder: Path, key: index.Key | None) -> IdSet:
    ids = IdSet(folder)
    if key is None:
        return ids
    write_index_hashes(folder, index.hashes(ids.values, ids.kind, key.hash_key))
    return IdSet(folder)


def _job(run: _Run) -> Job:
    ctx = run.repo.context
    context: Any = run.spark.sparkContext
    on_cluster = not str(context.master).startswith("local")
    name = str(run.folder)
    if on_cluster:
        name = f"refstore-purge-{secrets.token_hex(8)}"
        for file in sorted(run.folder.iterdir()):
            shipped = file.rename(file.with_name(f"{name}-{file.name}"))
            context.addFile(str(shipped))
    return Job(
        url=ctx.objects.url,
        io_timeout_seconds=ctx.safety.objects_io_seconds,
        ids=name,
        on_cluster=on_cluster,
        hash_key=run.key.hash_key if run.key is not None else b"",
    )


def _chosen(run: _Run, planned: Plan) -> list[Unit]:
    """Return the units after the watermark, as many as this run may do."""
    units = [unit for unit in planned.units if watermark_of(unit) > run.options.after]
    most = run.options.max_units
    if most is not None and len(units) > most:
        run.state.report.units_left = len(units) - most
        units = units[:most]
        run.state.report.watermark = watermark_of(units[-1]) if units else run.options.after
    return units


def _ask_partitions(run: _Run, units: Sequence[Unit]) -> None:
    """Learn which partitions have an identifier that is one of the ids. Raises Invalid."""
    for unit in units:
        value = unit.identifier_value
        if value is not None and unit.order not in run.state.by_partition:
            run.state.by_partition[unit.order] = _is_one(run.ids, unit, value)


def _is_one(ids: IdSet, unit: Unit, value: str) -> bool:
    if value == HIVE_NULL:
        return False
    if ids.kind == "integer" and not INTEGER.fullmatch(value):
        raise Invalid(
            f"partition {unit.partition!r} of data set {unit.dataset.name!r} has no integer as "
            f"{unit.dataset.identifier!r}, and the ids are integers; give ids that are strings, or say --id-type string"
        )
    if ids.kind == "integer":
        number = int(value)
        return -(2**63) <= number < 2**64 and bool(ids.matches(pa.array([number]))[0])
    return bool(ids.matches(pa.array([value if ids.kind == "string" else value.encode()]))[0])


def watermark_of(unit: Unit) -> str:
    return f"{unit.dataset.prefix}{unit.partition}"


def _check_kinds(run: _Run, units: Sequence[Unit]) -> None:
    """Raise Invalid where the first object of a data set has identifiers of another type than the ids."""
    seen: set[str] = set()
    for unit in units:
        if unit.dataset.name not in seen and unit.order not in run.state.by_partition:
            seen.add(unit.dataset.name)
            first = next(iter(unit.pieces.values()))
            tasks.check_kind(run.repo.context.objects, _work(run, unit, first), run.ids)


def _list_indexes(run: _Run, planned: Plan) -> None:
    """Learn which objects have an index; delete those of objects that stand at no head any more."""
    key, store = run.key, run.repo.context.objects
    if key is None:
        return
    addresses: dict[str, set[str]] = {}
    for dataset in run.datasets:
        for kind in ids_file.KINDS:
            addresses[index.folder_of(key, dataset, kind)] = set()
        addresses[index.folder_of(key, dataset, run.ids.kind)] |= {
            address for unit in planned.units if unit.dataset is dataset for address in unit.pieces
        }
    if not run.options.dry_run:
        index.delete_superfluous(store, addresses)
    run.state.indexes = {folder: index.sizes(store, folder) for folder in addresses}


def _find(run: _Run, job: Job, units: Sequence[Unit], attempt: int) -> None:
    state = run.state
    todo = [(unit, piece) for unit in units for piece in unit.pieces.values() if piece.address not in state.found]
    every = todo
    ruled_out = [(unit, piece) for unit, piece in todo if state.by_partition.get(unit.order) is False]
    state.found.update({piece.address: Done(address=piece.address, by="partition") for _, piece in ruled_out})
    todo = [(unit, piece) for unit, piece in todo if piece.address not in state.found]
    for some in _jobs(run, todo, FOUND_PER_PART):
        for done in tasks.run(run.spark, job, [_indexed(run, _work(run, unit, piece), unit) for unit, piece in some]):
            state.found[done.address] = done
    for unit, piece in every:
        done, row = state.found[piece.address], _row(state, unit)
        row.attempts = attempt
        row.objects += 1
        row.read_bytes += done.read_bytes
        if done.failure:
            _fail(state, unit, piece, done.failure)
            continue
        row.by_partition += done.by == "partition"
        row.by_index += done.by == "index"
        row.index_bytes += done.index_bytes
        row.by_statistics += done.by == "statistics"
        row.by_column += done.by == "column"
        row.matched += bool(done.matched)
        row.rows_found += done.matched


def _with_copies(run: _Run, planned: Plan, units: Sequence[Unit], matched: set[str]) -> set[str]:
    """Return which of the matched objects are to be rewritten: not those with a name outside the data sets, unless the
    run includes copies; then those names are added.
    """
    if not matched:
        return set()
    repo, state = run.repo, run.state
    pieces = {piece.address: (unit, piece) for unit in units for piece in unit.pieces.values()}
    outside: dict[str, list[Name]] = {}
    inside = {(name, address) for address in matched for name in pieces[address][1].names}
    heads = {branch: record.head for branch, record in repo.branches() if not record.hidden} | planned.heads
    for branch, head in heads.items():
        for path, entry in repo.list(head):
            if entry is not None and entry.address in matched and (Name(branch, path), entry.address) not in inside:
                dataset = next((each for each in run.datasets if path.startswith(each.prefix)), None)
                if dataset is None:
                    outside.setdefault(entry.address, []).append(Name(branch, path))
    for address, names in outside.items():
        unit, piece = pieces[address]
        if run.options.including_copies:
            for name in names:
                planned.heads.setdefault(name.branch, heads[name.branch])
            piece.names = sorted([*piece.names, *names])
        else:
            where = ", ".join(f"{name.path!r} on {name.branch!r}" for name in names[:3])
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            _fail(
                state,
                unit,
                piece,
                f"it is also named outside the onboarded data sets ({where}{more}); run again with --including-copies",
            )
    return matched if run.options.including_copies else matched - set(outside)


def _ask_breaker(run: _Run, units: Sequence[Unit]) -> None:
    pieces = [piece for unit in units for piece in unit.pieces.values()]
    done = [run.state.found[piece.address] for piece in pieces]
    rows, matched = sum(each.rows for each in done), sum(each.matched for each in done)
    size = sum(piece.size_bytes for piece in pieces)
    counted = sum(piece.size_bytes for piece, each in zip(pieces, done, strict=True) if each.rows)
    if counted:  # nobody counted the rows of what its partition ruled out
        rows = rows * size // counted
    if not run.options.dry_run and matched > run.options.floor_rows and matched > run.options.share * rows:
        raise Conflict(
            f"{matched} of {rows} rows would go, more than a share of {run.options.share:g}; nothing was changed. Look "
            "with --dry-run, and if that is right, run it again with --breaker-share 1"
        )


def _rewrite(run: _Run, job: Job, units: Sequence[Unit], wanted: set[str], publication: Publication) -> None:
    todo = [(unit, piece) for unit in units for piece in unit.pieces.values() if piece.address in wanted]
    for some in _jobs(run, todo, REWRITTEN_PER_PART):
        issued = publication.issue([piece for _, piece in some])
        works = [_work(run, unit, piece, to=issued[piece.address][0]) for unit, piece in some]
        rewritten: list[Rewritten] = []
        for (unit, piece), done in zip(some, tasks.run(run.spark, job, works), strict=True):
            if done.failure:
                _fail(run.state, unit, piece, done.failure)
                continue
            row = _row(run.state, unit)
            row.rewritten += 1
            row.rows_before += done.rows
            row.rows_changed += done.matched
            row.rows_after += done.rows - (0 if unit.dataset.set_null else done.matched)
            row.bytes_before += piece.size_bytes
            row.bytes_after += done.size_bytes
            row.read_bytes += done.read_bytes
            run.state.found[done.to] = Done(address=done.to, rows=done.rows, by="column")  # need not be looked at
            rewritten.append(Rewritten(piece, issued[piece.address][1], done.size_bytes, done.checksum))
        publication.stage(rewritten)


def _jobs(run: _Run, todo: Sequence[tuple[Unit, Piece]], per_part: int) -> Iterator[Sequence[tuple[Unit, Piece]]]:
    """Yield what each job of Spark has to do."""
    size = parts_of(run.spark) * per_part
    for number, start in enumerate(range(0, len(todo), size)):
        run.steps.of_jobs(number, -(-len(todo) // size))
        yield todo[start : start + size]


def _work(run: _Run, unit: Unit, piece: Piece, *, to: str = "") -> Work:
    dataset = unit.dataset
    assert dataset.format is not None  # noqa: S101  # the document's check says so for this mode
    return Work(
        address=piece.address,
        size_bytes=piece.size_bytes,
        format=dataset.format,
        identifier=tuple(dataset.identifier.split(".")),
        map_part=dataset.map_part,
        set_null=tuple(tuple(name.split(".")) for name in dataset.set_null),
        every_row=run.state.by_partition.get(unit.order, False),
        to=to,
    )


def _indexed(run: _Run, work: Work, unit: Unit) -> Work:
    """Return the work with the place of its object's index."""
    if run.key is None or work.every_row:
        return work
    folder = index.folder_of(run.key, unit.dataset, run.ids.kind)
    sizes = run.state.indexes.get(folder, {})
    return msgspec.structs.replace(work, index=f"{folder}{work.address}", index_bytes=sizes.get(work.address, 0))


def _index_keys(run: _Run, units: Sequence[Unit], addresses: set[str]) -> list[str]:
    return [
        work.index
        for unit in units
        for piece in unit.pieces.values()
        if piece.address in addresses and (work := _indexed(run, _work(run, unit, piece), unit)).index
    ]


def _row(state: _State, unit: Unit) -> Row:
    return state.rows.setdefault(unit.order, Row(dataset=unit.dataset.name, partition=unit.partition))


def _fail(state: _State, unit: Unit, piece: Piece, reason: str) -> None:
    if piece.address not in state.failures:
        _row(state, unit).failed += 1
        state.failures[piece.address] = NotPurged(*piece.names[0], reason)


def _finish(now_ms: int, state: _State) -> None:
    made = state.report
    made.ended_ms = now_ms
    made.rows = [state.rows[key] for key in sorted(state.rows)]
    every = [*made.not_purged, *state.failures.values()]
    made.not_purged, made.not_purged_count = every[:LISTED_MAX], len(every)


def _audited(made: Report) -> dict[str, object]:
    return {
        "run": made.run,
        "state": made.state,
        "ids": made.ids,
        "rows": sum(row.rows_changed for row in made.rows),
        "objects": sum(row.rewritten for row in made.rows),
        "commits": [each.commit for each in made.published],
    }
