"""Look for the ids in what a run's plan leaves out, so that the report lists every place that still has their rows.

Behind the run each object below the data sets' prefixes is known by its name: those of branches and commits, the undo
trash, what the reaper or a sweep has begun to delete, and uploads to issued addresses. Of each of them the contents are
taken that the record names: the current one, backups, trash, attempts, and what is retired. What the run has looked at
is known already; the rest is looked at here. Only earlier commits of the mode `keep-history`, and partitions that this
run leaves, are not: they are listed as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from refstore.context import Context
from refstore.core.batches import batched
from refstore.core.ids import Address, is_own
from refstore.core.records import Entry, Location
from refstore.errors import Invalid, ObjectNotFound
from refstore.purging.document import ERASE, KEEP_HISTORY, Dataset
from refstore_purge import finding, summaries, tasks
from refstore_purge.formats.base import PurgeError
from refstore_purge.place import Place, RunContent
from refstore_purge.plan import Name, Piece, Unit, held_prefixes, is_data, is_summary, partition_of, value_in
from refstore_purge.run_state import PurgeRun
from refstore_purge.standing import Standing, every_name, lost_names
from refstore_purge.tasks import Job, Work

PAGE: Final = 1000
PARTITION_LEFT: Final = "its partition was left out"
HISTORY: Final = "earlier commits of the mode keep-history are not looked at"
HELD: Final = "a legal hold covers it"
OTHER_BRANCH: Final = "the purge document leaves this branch out"


class _Named(NamedTuple):
    """An object with the name that decides about it."""

    dataset: Dataset
    standing: Standing | None
    """None: nothing names it any more, or not yet."""
    ref: str
    path: str
    identity: Address
    entry: Entry | None


class _Content(NamedTuple):
    named: _Named
    address: Address


def look(run: PurgeRun, job: Job, datasets: Sequence[Dataset]) -> None:
    """Note every content of the data sets that has rows of the ids and that the run did not look at.

    Raises CorruptRange, Unavailable.
    """
    run.state.put_together()
    with run.steps.step("looking at what is left"):
        for page in batched(_contents(run, datasets), PAGE):
            _look(run, job, page)


def _contents(run: PurgeRun, datasets: Sequence[Dataset]) -> Iterator[_Content]:
    """Yield each content that the run did not look at, once."""
    ctx = run.repo.context
    announced = ctx.locations.are_announced()
    looked_at = run.state.looked_at
    changing: dict[Address, Location] = dict(ctx.locations.scan_changing()) if announced else {}
    for page in batched(_objects(run, ctx, datasets), PAGE):
        unknown = [
            each.identity
            for each in page
            if announced and each.identity not in changing and each.identity not in looked_at.get(each.dataset.name, ())
        ]
        records = dict(zip(unknown, ctx.locations.get_many(unknown), strict=True)) if unknown else {}
        for each in page:
            record = changing.get(each.identity) or records.get(each.identity)
            addresses = record.addresses() if record is not None else (each.identity,)
            known = looked_at.get(each.dataset.name, ())
            yield from (_Content(each, address) for address in addresses if address not in known)


def _objects(run: PurgeRun, ctx: Context, datasets: Sequence[Dataset]) -> Iterator[_Named]:
    """Yield each object of the data sets once, by its firmest name."""
    lost_ones = list(lost_names(ctx, [dataset.prefix for dataset in datasets]))
    for dataset in datasets:
        seen: set[str] = set()
        outside: set[str] = set()
        for name in every_name(ctx, prefix=dataset.prefix):
            address = name.entry.address
            if not (is_data(dataset, name.path) or is_summary(dataset, name.path)):
                continue
            if not is_own(address):
                outside.update([address] if address else [])
            elif address not in seen:
                seen.add(address)
                yield _Named(dataset, name.standing, name.ref, name.path, address, name.entry)
        for lost in lost_ones:
            is_below = lost.path.startswith(dataset.prefix) and lost.address not in seen
            if is_below and (is_data(dataset, lost.path) or is_summary(dataset, lost.path)):
                seen.add(lost.address)
                yield _Named(dataset, None, "", lost.path, lost.address, lost.entry)
        if outside:
            reason = "their data lies outside the repository; purge them where they are"
            run.state.places.append(
                Place(
                    kind="outside",
                    dataset=dataset.name,
                    reason=reason,
                    objects=len(outside),
                    has_rows=False,
                    as_of_run=True,
                )
            )


class _Todo(NamedTuple):
    """A content to look into, as the object of a unit."""

    content: _Content
    size_bytes: int
    reason: str
    unit: Unit

    @property
    def is_summary(self) -> bool:
        return is_summary(self.unit.dataset, self.content.named.path)

    @property
    def piece(self) -> Piece:
        named = self.content.named
        names = [Name(named.ref, named.path)]
        return Piece(named.identity, self.size_bytes, {}, "", names, self.content.address)


def _look(run: PurgeRun, job: Job, contents: Sequence[_Content]) -> None:
    """Note which of the contents that are there have rows of the ids."""
    infos = run.repo.context.objects.head_many([each.address for each in contents])
    held = held_prefixes(run.repo)
    told = {each.path: each.reason for each in run.state.report.not_purged}
    todo: list[_Todo] = []
    for content, info in zip(contents, infos, strict=True):
        if info is None:
            continue
        named = content.named
        unit = Unit(named.dataset, partition_of(named.path[len(named.dataset.prefix) :]), {})
        reason = HELD if named.path.startswith(held) else told.get(named.path, "")
        if not run.chosen([unit]):
            _note(run, content, info.size_bytes, PARTITION_LEFT, has_rows=False)
        elif named.dataset.mode == KEEP_HISTORY and named.standing in (Standing.TAG, Standing.COMMIT):
            _note(run, content, info.size_bytes, HISTORY, has_rows=False)
        else:
            if named.standing is Standing.BRANCH and not named.dataset.has_branch(named.ref):
                reason = OTHER_BRANCH
            todo.append(_Todo(content, info.size_bytes, reason, unit))
    _look_at_names(run, [each for each in todo if each.unit.dataset.mode == ERASE])
    of_rows = [each for each in todo if each.unit.dataset.mode != ERASE]
    _look_at_summaries(run, [each for each in of_rows if each.is_summary])
    _look_into(run, job, [each for each in of_rows if not each.is_summary])


def _look_at_names(run: PurgeRun, todo: Sequence[_Todo]) -> None:
    """Note the objects of the mode `erase` whose names or metadata have one of the ids."""
    for each in todo:
        named = each.content.named
        value = value_in(named.dataset, named.path, named.entry or Entry(named.identity, 0, "", 0))
        (is_one,) = finding.are_ids(run.ids.every(named.dataset), [value])
        if value is None and named.entry is None:
            _note(run, each.content, each.size_bytes, "its metadata is not known", has_rows=False)
        elif is_one:
            _note(run, each.content, each.size_bytes, each.reason, has_rows=True)


def _look_at_summaries(run: PurgeRun, todo: Sequence[_Todo]) -> None:
    """Note the summary files of Parquet that have an id, and those that could not be read."""
    for each in todo:
        with suppress(ObjectNotFound):
            try:
                if summaries.have_ids(run, each.unit, each.piece):
                    _note(run, each.content, each.size_bytes, each.reason, has_rows=True)
            except PurgeError as error:
                _note(run, each.content, each.size_bytes, str(error), has_rows=False)


def _look_into(run: PurgeRun, job: Job, todo: Sequence[_Todo]) -> None:
    """Note the contents with rows of the ids, and those that could not be read."""
    readable: list[tuple[_Todo, Work]] = []
    for each in todo:
        try:
            finding.ask_partitions(run, [each.unit])
        except Invalid as error:
            _note(run, each.content, each.size_bytes, str(error), has_rows=False)
            continue
        if run.state.by_partition.get(each.unit.order) is not False:
            readable.append((each, msgspec.structs.replace(run.work(each.unit, each.piece), may_be_gone=True)))
    if not readable:
        return
    for (each, _), done in zip(readable, tasks.run(run.engine, job, [work for _, work in readable]), strict=True):
        if done.failure:
            _note(run, each.content, each.size_bytes, done.failure, has_rows=False)
        elif done.has_ids:
            _note(run, each.content, each.size_bytes, each.reason, has_rows=True)


def _note(run: PurgeRun, content: _Content, size_bytes: int, reason: str, *, has_rows: bool) -> None:
    dataset = content.named.dataset
    run.state.contents.append(
        RunContent(content.address, content.named.identity, dataset.name, dataset.prefix, size_bytes, has_rows, reason)
    )
