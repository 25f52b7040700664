"""Write the index of deletions (`refstore/deletion_history/deletion_index.py`), by which `refstore why` finds an
address.

    index_sweep     what became of each address of a sweep; only then the sweep may end
    index_missing   what has no file yet: the journal since the last time, and swept runs whose file was removed
    rebuild         all of it again

A file is written whole, and has the same name and the same records when it is written again. So whoever dies in
between, and two hosts at once, lose nothing and tell nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from refstore.context import Context
from refstore.core import event_log
from refstore.core.arrow_arrays import make_array, make_scalar
from refstore.core.batches import split_batches
from refstore.deletion_history import deletion_index, deletion_journal
from refstore.deletion_history.causes import SWEEP, rule_of_run
from refstore.deletion_history.deletion_index import Period, Unreadable
from refstore.errors import Corrupt, ObjectsRefused, RefstoreError
from refstore.gc_marks import Marks, RunState
from refstore.gc_marks.sweep_records import RunRules, outcome_key, read_run_rules
from refstore.objects.base import ObjectStore
from refstore.versioning.commits.workers import Workers
from refstore_gc.run_layout import read_table
from refstore_gc.run_summary import EXCLUDED_OUTCOME, read_manifest
from refstore_gc.untyped_arrow import pa, pc, pq

UNITS_PER_FILE: Final = 50
"""500,000 deletions at most: some 150 MB while they are sorted."""
JOURNAL_FILE_ROWS: Final = 500_000
JOURNAL_SEGMENTS: Final = 20_000
"""Indexed at once; the next time goes on."""
_THREADS: Final = 8
_OUTCOME_COLUMNS: Final = ("address", "size_bytes", "reason", "outcome", "why")

_log = event_log.get_logger(__name__)


def index_sweep(ctx: Context, mark_id: str, outcome_files: Iterable[str], at_ms: int) -> None:
    """Index what became of each address of a sweep, from the sweep's files.

    Raises Corrupt (an outcome file is missing or damaged), Unavailable.
    """
    facts = read_run_rules(ctx.objects, mark_id)
    parts = list(split_batches(outcome_files, UNITS_PER_FILE)) or [[]]
    for part, files in enumerate(parts):
        with Workers(_THREADS) as workers:
            read = workers.map_ahead(lambda file: read_table(ctx.objects, file, _OUTCOME_COLUMNS), files)
            rows = [_rows_of_sweep(table, mark_id, at_ms, facts) for table in read]
        write_file(ctx.objects, deletion_index.sweep_file(mark_id, part, len(parts)), rows, [])


class IndexResult(NamedTuple):
    """What was added to the index."""

    runs: int
    """Runs whose file was written."""
    lost_runs: int
    """Runs that could not be added, because their files are missing or damaged."""
    journal_segments: int
    """Segments of the journal that were added."""
    files: int
    """The files that the index consists of now."""


def index_missing(ctx: Context) -> IndexResult:
    """Index what has no file yet. What cannot be read is logged and noted in the index, and the rest is done."""
    return _index_missing(ctx, deletion_index.read_index(ctx.objects).runs)


def index_missing_or_log(ctx: Context) -> None:
    """`index_missing` at the end of a run, which has done its work: what the index lacks is looked for elsewhere until
    the next one.
    """
    try:
        index_missing(ctx)
    except RefstoreError as error:
        _log.error("deletion_index_not_caught_up", repository=ctx.name, error=str(error))


def rebuild(ctx: Context) -> IndexResult:
    """Write the index again from what the runs and the journal say. The file of a run whose own files were removed
    stays. Raises ObjectsRefused if a file of the journal's deletions cannot be removed: it would be taken for whole.
    """
    of_journal = [
        info.key for info in deletion_index.read_index(ctx.objects).files if deletion_index.is_of_journal(info.key)
    ]
    # until it is written again, the journal itself is searched
    failed = ctx.objects.delete_many(of_journal).failed_keys
    if failed:
        key, why = failed[0]
        raise ObjectsRefused(
            f"{len(failed)} files of the index of deletions could not be removed, so that nothing was written again "
            f"({key}: {why}); allow these credentials to delete them, and make the same call again"
        )
    return _index_missing(ctx, frozenset())


def _index_missing(ctx: Context, indexed_runs: frozenset[str]) -> IndexResult:
    added = lost = segments = 0
    for run in list(Marks(ctx).runs.scan()):
        if run.state is not RunState.SWEPT or run.mark_id in indexed_runs:
            continue
        try:
            units = read_manifest(ctx.objects, run.mark_id).units
            index_sweep(ctx, run.mark_id, [outcome_key(unit.key) for unit in units], run.record.swept_ms)
            added += 1
        except Corrupt as error:
            _log.warning("sweep_not_indexed", repository=ctx.name, mark=run.mark_id, error=str(error))
            lost += 1
            if run.mark_id not in deletion_index.read_index(ctx.objects).runs:
                text = f"mark {run.mark_id}, whose files were removed or damaged before they were indexed"
                note = Unreadable(run.record.swept_ms, text)
                write_file(ctx.objects, deletion_index.sweep_file(run.mark_id, 0, 1), [], [note])
    for gap in deletion_index.read_index(ctx.objects).journal_gaps:
        segments += _index_journal(
            ctx, Period(gap.from_ms, min(gap.to_ms, ctx.clock.now_ms() - deletion_journal.INDEXED_AFTER_MS))
        )
    return IndexResult(added, lost, segments, len(deletion_index.read_index(ctx.objects).files))


def _index_journal(ctx: Context, period: Period) -> int:
    """Index the journal's segments of a time in which nothing can be added any more. Return how many there were."""
    after, before = deletion_journal.first_after(period.from_ms), deletion_journal.first_after(period.to_ms)
    began = deletion_journal.began_segments(ctx.objects, after=after, before=before)
    keys = list(islice(began, JOURNAL_SEGMENTS + 1))
    if len(keys) > JOURNAL_SEGMENTS:
        period = Period(period.from_ms, deletion_journal.began_ms(keys.pop()))
    start_ms, waiting, notes = period.from_ms, list[Any](), list[Unreadable]()

    def read(key: str) -> tuple[Any, list[Unreadable]]:
        unreadable: list[str] = []
        rows = _rows_of_journal(deletion_journal.find_in(ctx.objects, key, unreadable=unreadable.append))
        return rows, [Unreadable(deletion_journal.began_ms(key), text) for text in unreadable]

    with Workers(_THREADS) as workers:
        for key, (rows, unreadable) in zip(keys, workers.map_ahead(read, keys), strict=True):
            at_ms = deletion_journal.began_ms(key)
            if sum(map(len, waiting)) >= JOURNAL_FILE_ROWS and at_ms > start_ms:
                write_file(ctx.objects, deletion_index.journal_file(Period(start_ms, at_ms)), waiting, notes)
                start_ms, waiting, notes = at_ms, [], []
            waiting.append(rows)
            notes += unreadable
    if waiting:
        write_file(ctx.objects, deletion_index.journal_file(Period(start_ms, period.to_ms)), waiting, notes)
    return len(keys)


def _rows_of_sweep(table: Any, mark_id: str, at_ms: int, facts: RunRules | None) -> Any:
    """Return the index's rows of an outcome file, without what was excluded: that was not deleted."""
    table = table.filter(pc.not_equal(table.column("outcome"), make_scalar(EXCLUDED_OUTCOME, pa.string())))
    cause = table.column("reason")
    causes = pc.unique(cause)
    rules = make_array([rule_of_run(facts, each) for each in causes.to_pylist()], pa.string())
    columns = {
        "key": table.column("address"),
        "at_ms": make_scalar(at_ms, pa.int64()),
        "by": SWEEP,
        "run": mark_id,
        "outcome": table.column("outcome"),
        "cause": cause,
        "rule": rules.take(pc.index_in(cause, value_set=causes)),
        "size_bytes": table.column("size_bytes"),
        "reason": table.column("why"),
    }
    return _table(columns, table.num_rows)


def _table(columns: dict[str, Any], rows: int) -> Any:
    """Return a table of the index. A column that is a text has it in each row; one that is not given has ''."""
    filled: list[Any] = []
    for field in deletion_index.schema():
        values = columns.get(field.name, "")
        if isinstance(values, str):
            values = make_scalar(values, pa.string())
        filled.append(pa.repeat(values, rows) if isinstance(values, pa.Scalar) else values)
    return pa.table(filled, schema=deletion_index.schema())


def _rows_of_journal(records: Sequence[deletion_journal.DeletionRecord]) -> Any:
    """Return the index's rows of a segment of the journal: each record by its address and by its path."""
    rows = [
        (key, "" if key == record.address else record.address, *record[1:])
        for record in records
        for key in deletion_journal.keys_of(record)
    ]
    schema = deletion_index.schema()
    columns = [make_array([row[number] for row in rows], field.type) for number, field in enumerate(schema)]
    return pa.table(columns, schema=schema)


def write_file(objects: ObjectStore, key: str, tables: Sequence[Any], notes: Sequence[Unreadable]) -> None:
    """Write a file of the index: all rows of the tables, in order of their keys, and what could not be indexed."""
    table = pa.concat_tables(tables or [_rows_of_journal([])]).sort_by("key")
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=[name for name in table.column_names if name not in ("key", "address", "path", "size_bytes")],
        write_statistics=["key"],
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, deletion_index.ROW_GROUP_ROWS)
        writer.add_key_value_metadata({deletion_index.UNREADABLE: msgspec.json.encode(notes).decode()})
    objects.put(key, sink.getvalue().to_pybytes())
