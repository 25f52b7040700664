"""Purge every version of objects, while commits and their ids stay (modes `rewrite` and `erase`, rule 22).

    plan      which objects the data sets have in any commit, tag, branch or staging area (`version_plan.py`)
    find      look for the ids in each distinct content (`finding.py`); of `erase`, in its names (`erasing.py`)
    copies    refuse objects that have a name outside the data sets in any version
    breaker   stop where more rows would go than anybody expects
    intend    write down for each object where its new content will lie, before anything is written
    rewrite   write the contents again; executors do
    publish   make what was written the content; what it replaces becomes a backup
    again     look at what came meanwhile, and at what others replaced: up to three attempts

From intend to publish is one operation under the deadline of all operations. Whatever that does not end with leaves
intents, which the nightly job clears.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import deadline, ids
from refstore.core.batches import batched
from refstore.core.ids import Address
from refstore.core.records import Content, encode
from refstore.errors import DeadlineExceeded
from refstore.purging.document import ERASE, KEEP_HISTORY, Dataset
from refstore.versioning.locations import Intention, Located, Publication
from refstore.versioning.manifest import KeptLocation, LocationsKept
from refstore_gc.session import translated
from refstore_purge import erasing, finding, tasks
from refstore_purge.plan import Name, Piece, Plan, Unit
from refstore_purge.run_state import ATTEMPTS, PurgeRun
from refstore_purge.tasks import Done, Job
from refstore_purge.version_plan import names_outside, plan_versions

REWRITTEN_PER_PART: Final = 32
"""How many objects each core writes in one job of Spark."""
PART_BYTES: Final = 4 << 30
"""How many bytes, so that a job ends well within the deadline of an operation."""
ERASED_AT_ONCE: Final = 1000
BUSY: Final = "others kept changing it, or are deleting it; run the purge again"

Item = tuple[Unit, Piece]


class _Intended(NamedTuple):
    unit: Unit
    piece: Piece
    located: Located
    current: Content

    @property
    def to(self) -> Address:
        intent = self.located.location.intent
        assert intent is not None  # noqa: S101  # `Locations.intend` has written it
        return intent.address


def purge_versions(run: PurgeRun, job: Job, datasets: Sequence[Dataset], planned: Plan) -> None:
    """Purge what was planned, then what came meanwhile. Raises Conflict (the breaker), Unavailable."""
    for attempt in range(1, ATTEMPTS + 1):
        units = run.chosen(planned.units)
        finding.ask_partitions(run, units)
        of_rows = [unit for unit in units if unit.dataset.mode != ERASE]
        of_objects = [unit for unit in units if unit.dataset.mode == ERASE]
        matched = finding.find(run, job, of_rows, attempt)
        erased = erasing.find(run, of_objects, attempt)
        with run.steps.step("looking for copies"):
            wanted = _without_copies(run, units, matched | erased) - run.state.failures.keys()
        finding.ask_breaker(run, of_rows)
        finding.ask_breaker(run, of_objects, what="objects")
        if run.options.dry_run or not wanted:
            return
        run.repo.context.locations.announce()
        todo = [(unit, piece) for unit in units for piece in unit.pieces.values() if piece.address in wanted]
        busy: list[Item] = []
        with run.steps.step("rewriting"), translated("rewriting"):
            for some in run.jobs(
                [item for item in todo if item[1].address not in erased], REWRITTEN_PER_PART, PART_BYTES
            ):
                busy += _replace(run, job, some)
        with run.steps.step("erasing"):
            for some in batched([item for item in todo if item[1].address in erased], ERASED_AT_ONCE):
                busy += _replace(run, None, some)
        if attempt == ATTEMPTS:
            for unit, piece in busy:
                run.fail(unit, piece, BUSY)
            return
        with run.steps.step("listing every version"):
            planned = plan_versions(run.repo, datasets)


def _without_copies(run: PurgeRun, units: Sequence[Unit], matched: set[str]) -> set[str]:
    """Return which objects are to be replaced: those with a name outside the data sets only if the run includes copies,
    and never those with a name that a legal hold covers.
    """
    if not matched:
        return set()
    pieces = {piece.address: (unit, piece) for unit in units for piece in unit.pieces.values()}
    datasets = run.repo.purge_document().document.onboarded
    prefixes = tuple(dataset.prefix for dataset in datasets if dataset.mode != KEEP_HISTORY)
    left: set[str] = set()
    retention = run.repo.retention()
    held = tuple(hold.prefix for hold in retention.rules.legal_holds) if retention is not None else ()
    for address, names in names_outside(run.repo.context, prefixes, dict.fromkeys(matched)).items():
        covered = [name for name in names if name.path.startswith(held)]
        if covered:
            run.fail(*pieces[address], f"a legal hold covers it as {_named(covered)}")
        elif run.options.including_copies:
            continue
        else:
            run.fail(
                *pieces[address],
                f"it is also named outside the onboarded data sets ({_named(names)}); run again with "
                "--including-copies",
            )
        left.add(address)
    return matched - left


def _named(names: Sequence[Name]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"{name.path!r} in {name.branch!r}" for name in names[:3]) + more


def _replace(run: PurgeRun, job: Job | None, items: Sequence[Item]) -> list[Item]:
    """Replace the contents of some objects; return those that others changed meanwhile. `job`: to rewrite them; None:
    to erase them.
    """
    ctx = run.repo.context
    try:
        with deadline.operation(ctx.clock, ctx.safety.operation_deadline_seconds):
            return _replace_in_time(run, job, items)
    except DeadlineExceeded as error:
        for unit, piece in items:
            if piece.content not in run.state.replaced:
                run.fail(unit, piece, str(error))
        return []


def _replace_in_time(run: PurgeRun, job: Job | None, items: Sequence[Item]) -> list[Item]:
    ctx, run_id = run.repo.context, run.state.report.run
    intended, busy = _intend(ctx, run_id, items)
    written: list[tuple[_Intended, Done]] = []
    withdrawn: list[_Intended] = []
    works = [run.work(each.unit, _at(each), to=each.to) for each in intended] if job is not None else []
    results = (
        tasks.run(run.spark, job, works)
        if job is not None
        else [Done(address=each.current.address, matched=1) for each in intended]
    )
    for each, done in zip(intended, results, strict=True):
        if done.failure:
            run.fail(each.unit, each.piece, done.failure)
        if done.failure or done.is_gone or not done.matched:
            withdrawn.append(each)
        else:
            written.append((each, done))
    now = ctx.clock.now_ms()
    contents = [
        Content(Address(done.to), done.size_bytes, done.checksum, run=run_id, written_ms=now) for _, done in written
    ]
    published = ctx.locations.publish(
        [Publication(each.located, content) for (each, _), content in zip(written, contents, strict=True)], run_id
    )
    for (each, done), there in zip(written, published, strict=True):
        if there is None:
            busy.append((each.unit, each.piece))
        else:
            _count(run, each, done)
    keep_in_manifest(ctx, [each for each in published if each is not None], f"run {run_id} purged objects")
    run.delete_indexes(
        [(each.unit, _at(each)) for (each, _), there in zip(written, published, strict=True) if there is not None]
        if job is not None
        else []
    )
    lost = [each for (each, _), there in zip(written, published, strict=True) if there is None]
    if job is not None:
        _delete_unpublished(ctx, [*withdrawn, *lost])
    ctx.locations.withdraw([each.located for each in withdrawn])
    return busy


def _intend(ctx: Context, run_id: str, items: Sequence[Item]) -> tuple[list[_Intended], list[Item]]:
    """Write the intents; return what may be written, and the objects that others keep changing. An object that is
    erased or deleted by now needs nothing.
    """
    now = ctx.clock.now_ms()
    intentions: list[Intention] = []
    for _, piece in items:
        assert piece.original is not None  # noqa: S101  # `plan_versions` has set it
        intentions.append(Intention(Address(piece.address), piece.original, ids.new_address(ctx.ids, now)))
    intended: list[_Intended] = []
    busy: list[Item] = []
    for item, located in zip(items, ctx.locations.intend(intentions, run_id), strict=True):
        if located is None:
            busy.append(item)
        elif located.location.current is None or located.location.current.is_erased:
            ctx.locations.withdraw([located])
        else:
            intended.append(_Intended(*item, located, located.location.current))
    return intended, busy


def _at(each: _Intended) -> Piece:
    """Return the object with the content that the intent was written for: another run may have replaced what the plan
    saw.
    """
    return Piece(
        each.piece.address,
        each.current.size_bytes,
        each.piece.metadata,
        each.piece.content_type,
        each.piece.names,
        each.current.address,
    )


def _count(run: PurgeRun, each: _Intended, done: Done) -> None:
    run.state.replaced.add(each.piece.content)
    row = run.row(each.unit)
    if not done.to:
        row.erased += 1
        row.bytes_before += each.current.size_bytes
        return
    row.rewritten += 1
    row.rows_before += done.rows
    row.rows_changed += done.matched
    row.rows_after += done.rows - (0 if each.unit.dataset.set_null else done.matched)
    row.bytes_before += each.current.size_bytes
    row.bytes_after += done.size_bytes
    row.read_bytes += done.read_bytes
    run.state.found[done.to] = Done(address=done.to, rows=done.rows, by="column")  # need not be looked at


def _delete_unpublished(ctx: Context, attempts: Sequence[_Intended]) -> None:
    """Delete what attempts wrote that was not published."""
    addresses = ctx.locations.unpublished([(each.located.identity, each.to) for each in attempts])
    if addresses:
        ctx.objects.delete_many(addresses)


def keep_in_manifest(ctx: Context, published: Sequence[Located], what: str) -> None:
    """Write to the manifest where contents lie now, so that a KV that loses that is told. Raises ObjectsUnavailable."""
    if published:
        items = tuple(KeptLocation(each.identity, encode(each.location)) for each in published)
        ctx.manifest.add_landed(LocationsKept(ctx.ids.unique(ctx.clock.now_ms()), items), what)
