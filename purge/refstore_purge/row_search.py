"""Find the objects of a plan that have rows of the ids: by their partitions' values, or by looking into each once; of
the mode `erase` by their names or metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from refstore.errors import Conflict, Invalid
from refstore.purge_document.document import ERASE, Dataset
from refstore_purge import id_index, ids_file, purge_tasks
from refstore_purge.formats.text_values import match_texts
from refstore_purge.ledger import AnyIds
from refstore_purge.purge_plan import Partition, SkippedObject
from refstore_purge.purge_run_state import PurgeRun
from refstore_purge.purge_tasks import ObjectResult, TaskSettings

SEARCHED_PER_CORE: Final = 2048
"""How many objects each core looks through in one call of the engine, of which progress knows the end."""
TYPE_SAMPLES: Final = 20
"""How many objects of a data set are opened to learn its identifier's type, while they cannot be read."""
HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")


def prepare_ids(
    run: PurgeRun, datasets: Sequence[Dataset], units: Sequence[Partition], every: Sequence[Partition]
) -> None:
    """Before the first look: take the ids of each data set as its objects have them, and learn which indexes there are.
    `every`: all units of the data sets, not only those that this run does. Raises Invalid.
    """
    match_partitions(run, units)
    _start_processes(run, datasets, units)
    _adapt_ids(run, units)
    _list_indexes(run, datasets, every)


def _start_processes(run: PurgeRun, datasets: Sequence[Dataset], units: Sequence[Partition]) -> None:
    """Start the engine's processes where looking for the ids takes long: they import while this process prepares."""
    chosen = [unit for unit in units if run.state.by_partition.get(unit.watermark) is not False]
    read_sizes = [piece.size_bytes for unit in chosen for piece in unit.objects.values()]
    if sum(read_sizes) >= purge_tasks.LONG_BYTES:
        run.engine.start_ahead(purge_tasks.modules_for(datasets, has_index=run.key is not None), len(read_sizes))


def match_partitions(run: PurgeRun, units: Sequence[Partition]) -> None:
    """Learn which partitions have an identifier that is one of the ids. Raises Invalid."""
    for unit in units:
        value = unit.identifier_value
        if unit.dataset.mode != ERASE and value is not None and unit.watermark not in run.state.by_partition:
            run.state.by_partition[unit.watermark] = _is_id(run.ids.all_ids_of(unit.dataset), unit, value)


def _is_id(sets: Sequence[AnyIds], unit: Partition, value: str) -> bool:
    are_integers = all(ids.kind == "integer" for ids in sets)
    if value != HIVE_NULL and are_integers and not INTEGER.fullmatch(value):
        raise Invalid(
            f"partition {unit.partition!r} of data set {unit.dataset.name!r} has no integer as "
            f"{unit.dataset.identifier!r}, and the ids are integers; give ids that are strings, or say --id-type string"
        )
    return find_ids(sets, [value])[0]


def find_ids(sets: Sequence[AnyIds], texts: Sequence[str | None]) -> list[bool]:
    """Return which texts are one of the ids of any type. None and Hive's null are none; nor is what is no integer,
    where the ids are integers. Where they are binary, a text is one by its bytes, or as a UUID.
    """
    found = [_find_ids(ids, texts) for ids in sets]
    return [any(each) for each in zip(*found, strict=True)]


def _find_ids(ids: AnyIds, texts: Sequence[str | None]) -> list[bool]:
    chosen = {
        place: text.encode()
        for place, text in enumerate(texts)
        if text is not None and text != HIVE_NULL and (ids.kind != "integer" or INTEGER.fullmatch(text))
    }
    matched = np.zeros(len(texts), dtype=np.bool_)
    matched[list(chosen)] = match_texts(list(chosen.values()), ids)
    return [bool(each) for each in matched]


def _adapt_ids(run: PurgeRun, units: Sequence[Partition]) -> None:
    """Take the ids of each data set as its first object has them that can be read. Raises Invalid if they are of
    another type.
    """
    by_dataset: dict[str, list[Partition]] = {}
    for unit in units:
        if unit.dataset.mode != ERASE and unit.watermark not in run.state.by_partition:
            by_dataset.setdefault(unit.dataset.name, []).append(unit)
    for of_dataset in by_dataset.values():
        dataset, type_ = of_dataset[0].dataset, _identifier_type(run, of_dataset)
        if type_ is not None and not run.ids.adapt_ids(dataset, type_):
            reason = f"the ledger has no ids of the type {type_} of its identifiers; purge it once with --ids"
            run.state.unusable_datasets.append(SkippedObject("", dataset.prefix, reason))
    if run.key is not None:
        run.ids.write_index_hashes(run.key)


def _identifier_type(run: PurgeRun, units: Sequence[Partition]) -> Any:
    """Return the type of the identifier in Arrow, as the first objects of a data set tell; None: they do not."""
    works = (run.make_task(unit, piece) for unit in units for piece in unit.objects.values())
    types = (purge_tasks.identifier_type(run.repo.context, work) for work in islice(works, TYPE_SAMPLES))
    return next((type_ for type_ in types if type_ is not None), None)


def _list_indexes(run: PurgeRun, datasets: Sequence[Dataset], units: Iterable[Partition]) -> None:
    """Learn which objects have an index; delete those of objects that are in no plan any more."""
    key, store = run.key, run.repo.context.objects
    if key is None:
        return
    addresses: dict[str, set[str]] = {}
    for dataset in datasets:
        for kind in ids_file.KINDS:
            addresses[id_index.index_folder(key, dataset, kind)] = set()
    for unit in units:
        contents = {piece.content_address for piece in unit.objects.values()}
        addresses[id_index.index_folder(key, unit.dataset, run.ids.ids_of(unit.dataset).kind)] |= contents
    everything = set(datasets) == set(run.repo.purge_document().document.onboarded_datasets)
    if everything and not run.options.dry_run:
        id_index.delete_superfluous(store, addresses)
    run.state.indexes = {folder: id_index.read_sizes(store, folder) for folder in addresses}


def find_matching_objects(run: PurgeRun, job: TaskSettings, units: Sequence[Partition], attempt: int) -> set[str]:
    """Look for the ids in what was not looked at yet; return the addresses of the objects that have rows of them."""
    with run.steps.step("looking for the ids"):
        _search_objects(run, job, units, attempt)
    return {
        piece.address
        for unit in units
        for piece in unit.objects.values()
        if run.state.results[piece.content_address].has_ids
    }


def _search_objects(run: PurgeRun, job: TaskSettings, units: Sequence[Partition], attempt: int) -> None:
    state = run.state
    todo = [
        (unit, piece) for unit in units for piece in unit.objects.values() if piece.content_address not in state.results
    ]
    every = todo
    ruled_out = [(unit, piece) for unit, piece in todo if state.by_partition.get(unit.watermark) is False]
    state.results.update(
        {
            piece.content_address: ObjectResult(address=piece.content_address, decided_by="partition")
            for _, piece in ruled_out
        }
    )
    todo = [(unit, piece) for unit, piece in todo if piece.content_address not in state.results]
    for some in run.batch_objects(todo, SEARCHED_PER_CORE):
        for done in purge_tasks.run_tasks(
            run.engine, job, [run.with_index(run.make_task(unit, piece), unit) for unit, piece in some]
        ):
            state.results[done.address] = done
    for unit, piece in every:
        done, row = state.results[piece.content_address], run.report_row(unit)
        if done.is_gone:
            continue
        run.note_examined(unit, piece.content_address)
        if done.has_ids or done.failure:
            run.note_remaining(unit, piece, reason=done.failure)
        row.attempts = attempt
        row.objects += 1
        row.read_bytes += done.read_bytes
        _record_identifier(run, unit, done)
        if done.failure:
            run.report_failure(unit, piece, done.failure)
            continue
        row.by_partition += done.decided_by == "partition"
        row.by_index += done.decided_by == "index"
        row.index_bytes += done.index_bytes
        row.by_statistics += done.decided_by == "statistics"
        row.by_column += done.decided_by == "column"
        row.matched_objects += done.has_ids
        row.matched_rows += done.matched_rows
        row.matched_entries += done.matched_entries


def _record_identifier(run: PurgeRun, unit: Partition, done: ObjectResult) -> None:
    """Note whether an object has the identifier; one that cannot be read, or has no lines, does not tell."""
    if done.lacks_identifier:
        if done.failure or done.rows:
            run.state.datasets_without_identifier.add(unit.dataset.name)
    elif done.lacks_identifier is not None and not done.failure:
        run.state.identified_datasets.add(unit.dataset.name)


def find_erasable(run: PurgeRun, units: Sequence[Partition], attempt: int) -> set[str]:
    """Return the addresses of the objects of the mode `erase` that are to be erased. An object counts as one row.

    Where the identifier stands, the first of these that the data set has decides: its `path` template; a folder
    `identifier=value`; the object's user metadata.
    """
    state = run.state
    wanted: set[str] = set()
    for unit in units:
        pieces = list(unit.objects.values())
        told = find_ids(run.ids.all_ids_of(unit.dataset), [piece.identifier_value for piece in pieces])
        row = run.report_row(unit)
        row.attempts = attempt
        for piece, is_one in zip(pieces, told, strict=True):
            run.note_examined(unit, piece.content_address)
            if is_one:
                wanted.add(piece.address)
                run.note_remaining(unit, piece)
            if piece.content_address not in state.results:
                state.results[piece.content_address] = ObjectResult(
                    address=piece.content_address, rows=1, matched_rows=int(is_one), decided_by="name"
                )
                row.objects += 1
                row.matched_objects += is_one
    return wanted


def check_breaker(run: PurgeRun, units: Sequence[Partition], *, what: str = "rows") -> None:
    """Raise Conflict where more rows would go than anybody expects."""
    pieces = [piece for unit in units for piece in unit.objects.values()]
    done = [run.state.results[piece.content_address] for piece in pieces]
    rows, matched = sum(each.rows for each in done), sum(each.matched_rows for each in done)
    size = sum(piece.size_bytes for piece in pieces)
    counted = sum(piece.size_bytes for piece, each in zip(pieces, done, strict=True) if each.rows)
    if counted:  # nobody counted the rows of what its partition ruled out
        rows = rows * size // counted
    if not run.options.dry_run and matched > run.options.floor_rows and matched > run.options.share * rows:
        raise Conflict(
            f"{matched} of {rows} {what} would go, more than a share of {run.options.share:g}; nothing was changed. "
            "Look with --dry-run, and if that is right, run it again with --breaker-share 1"
        )
