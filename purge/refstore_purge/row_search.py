"""Find the objects of a plan that have rows of the ids: by their partitions' values, or by looking into each once; of
the mode `erase` by their names or metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from refstore.errors import Conflict, Invalid
from refstore.purge_document.document import ERASE, Dataset
from refstore_purge import id_index, ids_file, purge_tasks
from refstore_purge.formats.text_values import match_texts
from refstore_purge.ledger import AnyIds
from refstore_purge.outcomes import ObjectResult
from refstore_purge.purge_context import PurgeRun
from refstore_purge.purge_plan import Partition, PurgeObject, SkippedObject

SEARCHED_PER_CORE: Final = 2048
"""How many objects each core looks through in one call of the engine, of which progress knows the end."""
TYPE_SAMPLES: Final = 20
"""How many objects of a data set are opened to learn its identifier's type, while they cannot be read."""
HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")


def prepare_ids(run: PurgeRun, datasets: Sequence[Dataset], objects: Sequence[PurgeObject]) -> None:
    """Before the first look: take the ids of each data set as its objects have them, and learn which indexes there are.
    `objects`: all of the data sets, not only those that this run does. Raises Invalid.
    """
    chosen = run.select_objects(objects)
    match_partitions(run, chosen)
    _start_processes(run, datasets, chosen)
    _adapt_ids(run, chosen)
    _list_indexes(run, datasets, objects)


def _start_processes(run: PurgeRun, datasets: Sequence[Dataset], objects: Sequence[PurgeObject]) -> None:
    """Start the engine's processes where looking for the ids takes long: they import while this process prepares."""
    sizes = [each.size_bytes for each in objects if run.partition_matches.get(each.partition.watermark) is not False]
    if sum(sizes) >= purge_tasks.LONG_BYTES:
        run.engine.start_ahead(purge_tasks.modules_for(datasets, has_index=run.key is not None), len(sizes))


def match_partitions(run: PurgeRun, objects: Iterable[PurgeObject]) -> None:
    """Learn which partitions have an identifier that is one of the ids. Raises Invalid."""
    for partition in {each.partition.watermark: each.partition for each in objects}.values():
        value, dataset = partition.identifier_value, partition.dataset
        if dataset.mode != ERASE and value is not None and partition.watermark not in run.partition_matches:
            run.partition_matches[partition.watermark] = _is_id(run.ids.all_ids_of(dataset), partition, value)


def _is_id(sets: Sequence[AnyIds], partition: Partition, value: str) -> bool:
    are_integers = all(ids.kind == "integer" for ids in sets)
    if value != HIVE_NULL and are_integers and not INTEGER.fullmatch(value):
        raise Invalid(
            f"partition {partition.name!r} of data set {partition.dataset.name!r} has no integer as "
            f"{partition.dataset.identifier!r}, and the ids are integers; give ids that are strings, or say "
            "--id-type string"
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


def _adapt_ids(run: PurgeRun, objects: Sequence[PurgeObject]) -> None:
    """Take the ids of each data set as its first object has them that can be read. Raises Invalid if they are of
    another type.
    """
    by_dataset: dict[str, list[PurgeObject]] = {}
    for each in objects:
        if each.dataset.mode != ERASE and each.partition.watermark not in run.partition_matches:
            by_dataset.setdefault(each.dataset.name, []).append(each)
    for of_dataset in by_dataset.values():
        dataset, type_ = of_dataset[0].dataset, _identifier_type(run, of_dataset)
        if type_ is not None and not run.ids.adapt_ids(dataset, type_):
            reason = f"the ledger has no ids of the type {type_} of its identifiers; purge it once with --ids"
            run.account.unusable_datasets.append(SkippedObject("", dataset.prefix, reason))
    if run.key is not None:
        run.ids.write_index_hashes(run.key)


def _identifier_type(run: PurgeRun, objects: Sequence[PurgeObject]) -> Any:
    """Return the type of the identifier in Arrow, as the first objects of a data set tell; None: they do not."""
    object_tasks = (run.make_task(each) for each in objects[:TYPE_SAMPLES])
    types = (purge_tasks.identifier_type(run.repo.context, each) for each in object_tasks)
    return next((type_ for type_ in types if type_ is not None), None)


def _list_indexes(run: PurgeRun, datasets: Sequence[Dataset], objects: Iterable[PurgeObject]) -> None:
    """Learn which objects have an index; delete those of objects that are in no plan any more."""
    key, store = run.key, run.repo.context.objects
    if key is None:
        return
    addresses: dict[str, set[str]] = {
        id_index.index_folder(key, dataset, kind): set() for dataset in datasets for kind in ids_file.KINDS
    }
    folders = {dataset.name: id_index.index_folder(key, dataset, run.ids.ids_of(dataset).kind) for dataset in datasets}
    for each in objects:
        addresses[folders[each.dataset.name]].add(each.content_address)
    everything = set(datasets) == set(run.repo.purge_document().document.onboarded_datasets)
    if everything and not run.options.dry_run:
        id_index.delete_superfluous(store, addresses)
    run.indexes.update({folder: id_index.read_sizes(store, folder) for folder in addresses})


def find_matching_objects(run: PurgeRun, objects: Sequence[PurgeObject]) -> list[PurgeObject]:
    """Look for the ids in what was not looked at yet; return the objects that have some."""
    match_partitions(run, objects)
    of_rows = [each for each in objects if each.dataset.mode != ERASE]
    with run.steps.step("looking for the ids"):
        _search_objects(run, of_rows)
    matched = [each for each in of_rows if run.account.result_of(each).has_ids]
    return [*matched, *_find_erasable(run, [each for each in objects if each.dataset.mode == ERASE])]


def _search_objects(run: PurgeRun, objects: Sequence[PurgeObject]) -> None:
    searchable: list[PurgeObject] = []
    for each in objects:
        if (each.dataset.name, each.content_address) in run.account.results:
            continue
        if run.partition_matches.get(each.partition.watermark) is False:
            ruled_out = ObjectResult(address=each.content_address, decided_by="partition")
            run.record("searched", each, ruled_out)
        else:
            searchable.append(each)
    for batch in run.batch_objects(searchable, SEARCHED_PER_CORE):
        results = run.run_tasks([run.with_index(run.make_task(each), each) for each in batch])
        for purge_object, result in zip(batch, results, strict=True):
            run.record("searched", purge_object, result)


def _find_erasable(run: PurgeRun, objects: Sequence[PurgeObject]) -> list[PurgeObject]:
    """Return the objects of the mode `erase` that are to be erased. An object counts as one row.

    Where the identifier stands, the first of these that the data set has decides: its `path` template; a folder
    `identifier=value`; the object's user metadata.
    """
    by_dataset: dict[str, list[PurgeObject]] = {}
    for each in objects:
        by_dataset.setdefault(each.dataset.name, []).append(each)
    erasable: list[PurgeObject] = []
    for of_dataset in by_dataset.values():
        ids = run.ids.all_ids_of(of_dataset[0].dataset)
        answers = find_ids(ids, [each.identifier_value for each in of_dataset])
        for purge_object, is_one in zip(of_dataset, answers, strict=True):
            address = purge_object.content_address
            if (purge_object.dataset.name, address) not in run.account.results:
                result = ObjectResult(address=address, rows=1, matched_rows=int(is_one), decided_by="name")
                run.record("searched", purge_object, result)
            if is_one:
                erasable.append(purge_object)
    return erasable


def check_breaker(run: PurgeRun, objects: Sequence[PurgeObject]) -> None:
    """Raise Conflict where more rows, or objects to be erased, would go than anybody expects."""
    _check_share(run, [each for each in objects if each.dataset.mode != ERASE], "rows")
    _check_share(run, [each for each in objects if each.dataset.mode == ERASE], "objects")


def _check_share(run: PurgeRun, objects: Sequence[PurgeObject], what: str) -> None:
    results = [run.account.result_of(each) for each in objects]
    rows, matched = sum(each.rows for each in results), sum(each.matched_rows for each in results)
    size = sum(each.size_bytes for each in objects)
    counted = sum(each.size_bytes for each, result in zip(objects, results, strict=True) if result.rows)
    if counted:  # nobody counted the rows of what its partition ruled out
        rows = rows * size // counted
    if not run.options.dry_run and matched > run.options.floor_rows and matched > run.options.share * rows:
        raise Conflict(
            f"{matched} of {rows} {what} would go, more than a share of {run.options.share:g}; nothing was changed. "
            "Look with --dry-run, and if that is right, run it again with --breaker-share 1"
        )
