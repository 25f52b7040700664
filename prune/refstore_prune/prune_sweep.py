"""Sweep in tasks of the engine: delete what is due and still as it was listed, and write down what became of each key.

The due units of the mark were written before, so what is deleted is always told somewhere. A task looks at the run's
lock, writes that the outcome of its unit is not known, deletes the objects in batches, and writes what became of them.
What the store did not delete stays in the mark, and so the next run tries again. All else of a unit that a sweep began
with is marked no more (`state.read_left`): what is there again was restored, and what a killed run did not come to
costs a grace period.

Names that were read hours ago say little about now. So before each batch a task asks how old the reading is, by the
wall clock and by the clock that no one sets: a process that was stopped, and wakes up, deletes nothing. What remains
after both looks is the batch under way: a store that has conditional deletions refuses what changed (`s3://`: the ETag
of each key), and in other stores an object is lost that is written at its old key in the moment between the look at it
and its deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from refstore.core.arrow_arrays import make_array, to_numpy
from refstore.core.clock import Clock, SystemClock
from refstore.errors import RefstoreError
from refstore.gc_marks.sweep_records import outcome_key
from refstore.objects.base import ObjectPage, ObjectStore
from refstore.versioning.commits.workers import Workers
from refstore_gc.engines.base import Engine
from refstore_gc.garbage import count_of
from refstore_gc.run_layout import BULK_KEYS, open_store, request_threads, write_table
from refstore_gc.run_summary import (
    DELETED_OUTCOME,
    FAILED_OUTCOME,
    KEPT_AS_VERSION_OUTCOME,
    MISSING_OUTCOME,
    ObjectCount,
)
from refstore_gc.untyped_arrow import pa
from refstore_prune.prune_layout import PruneLayout, PruneUnit
from refstore_prune.state import OUTCOME_COLUMNS, UNIT_COLUMNS, check_lock, read_outcome, read_unit

CHANGED_OUTCOME: Final = "changed"
"""It is another object than the one that was listed, and stays."""
UNKNOWN_OUTCOME: Final = "not known"
READING_SECONDS_MAX: Final = 6 * 3600
_EXAMPLES: Final = 3
_THREADS: Final = 4
"""How many batches of a unit are deleted at once, in a store across a network."""
_OLD_READING: Final = f"the names were read over {READING_SECONDS_MAX // 3600} hours ago; the next run tries again"
_BEGUN: Final = "the run deletes it now, or ended before it wrote what became of it"
_UNCONFIRMED: Final = "the store did not say what became of it"


class UnitOutcome(NamedTuple):
    """A count of what became of a unit's objects."""

    unit: str
    outcome: str
    amount: ObjectCount
    examples: tuple[str, ...]
    """Some keys, with the store's reasons."""


def sweep_units(
    engine: Engine, layout: PruneLayout, units: Sequence[PruneUnit], reading_ms: int, generation: int
) -> list[UnitOutcome]:
    """Delete what the units have that are due; return what became of it, counted. `reading_ms`: when the reading of
    names began. `generation`: of the run's lock.

    Raises Conflict: another run took over; Corrupt; Unavailable: the run's own files cannot be read or written.
    """
    due = [unit for unit in units if unit.is_due]
    return list(engine.map(partial(sweep_unit, layout, reading_ms, generation), due))


def sweep_unit(
    layout: PruneLayout, reading_ms: int, generation: int, unit: PruneUnit, clock: Clock | None = None
) -> Iterator[UnitOutcome]:
    """Delete the objects of one unit. Where an earlier attempt of the task wrote an outcome, only what failed then, or
    is not known, is tried again.
    """
    store, files = open_store(layout.url, layout), open_store(layout.files, layout)
    check_lock(files, generation, layout.run_id)
    table, before = read_unit(files, unit), read_outcome(files, unit)
    if before is None:
        outcomes, whys = (np.full(len(table), text, object) for text in (UNKNOWN_OUTCOME, _BEGUN))
    else:
        outcomes, whys = (to_numpy(before[name]).copy() for name in OUTCOME_COLUMNS)
    left = np.flatnonzero((outcomes == FAILED_OUTCOME) | (outcomes == UNKNOWN_OUTCOME))
    outcomes[left], whys[left] = UNKNOWN_OUTCOME, _BEGUN
    _write_outcome(files, unit, table, outcomes, whys)
    batches = [left[at : at + BULK_KEYS] for at in range(0, len(left), BULK_KEYS)]
    check = partial(check_lock, files, generation, layout.run_id)
    deletion = _UnitDeletion(store, table, check, reading_ms, clock or SystemClock())
    with Workers(min(_THREADS, request_threads(layout))) as workers:
        for places, batch_outcomes in zip(batches, workers.map_ahead(deletion.delete_batch, batches), strict=True):
            outcomes[places], whys[places] = zip(*batch_outcomes, strict=True)
    _write_outcome(files, unit, table, outcomes, whys)
    yield from _count_outcomes(unit, table, outcomes, whys)


def _write_outcome(files: ObjectStore, unit: PruneUnit, table: Any, outcomes: Any, whys: Any) -> None:
    for name, column in zip(OUTCOME_COLUMNS, (outcomes, whys), strict=True):
        table = table.append_column(name, make_array(column, pa.string()))
    write_table(files, outcome_key(unit.file), table)


def read_outcomes(files: ObjectStore, units: Sequence[PruneUnit]) -> Iterator[UnitOutcome]:
    """Yield what the tasks of a sweep that broke off had written down."""
    for unit in units:
        table = read_outcome(files, unit)
        if table is not None:
            yield from _count_outcomes(unit, table, *(to_numpy(table[name]) for name in OUTCOME_COLUMNS))


class _UnitDeletion:
    """Deletes batches of a unit, several at once, until the store fails for a whole batch."""

    def __init__(
        self, store: ObjectStore, table: Any, check_lock_of_run: Callable[[], None], reading_ms: int, clock: Clock
    ) -> None:
        self._store = store
        self._table = table
        self._check_lock = check_lock_of_run
        self._reading_ms = reading_ms
        self._clock = clock
        self._age_before, self._began = self._wall_age(), clock.monotonic_seconds()
        self._failure = ""

    def _wall_age(self) -> float:
        """Return how many seconds ago the names were read."""
        return abs(self._clock.now_ms() - self._reading_ms) / 1000  # in the future: a clock is wrong

    def _is_too_old(self) -> bool:
        passed = self._age_before + self._clock.monotonic_seconds() - self._began
        return max(self._wall_age(), passed) >= READING_SECONDS_MAX

    def delete_batch(self, places: Any) -> list[tuple[str, str]]:
        """Delete the objects at these rows; return what became of each, and the store's reason."""
        columns = (self._table[name].take(make_array(places)).to_pylist() for name in UNIT_COLUMNS[:4])
        page = ObjectPage(*columns)
        if self._is_too_old():
            return [(FAILED_OUTCOME, _OLD_READING)] * len(places)
        if self._failure:
            return [(FAILED_OUTCOME, self._failure)] * len(places)
        try:
            self._check_lock()
            deletion = self._store.delete_unchanged(page)
        except RefstoreError as error:  # another run took over, or a right is missing; the unit's other batches stay
            self._failure = str(error)
            return [(FAILED_OUTCOME, self._failure)] * len(places)
        found: dict[str, tuple[str, str]] = dict.fromkeys(deletion.deleted_keys, (DELETED_OUTCOME, ""))
        found.update((key, (KEPT_AS_VERSION_OUTCOME, why)) for key, why in deletion.kept_keys)
        found.update(dict.fromkeys(deletion.missing_keys, (MISSING_OUTCOME, "")))
        found.update(dict.fromkeys(deletion.changed_keys, (CHANGED_OUTCOME, "")))
        found.update((key, (FAILED_OUTCOME, why or "no reason was given")) for key, why in deletion.failed_keys)
        return [found.get(key, (FAILED_OUTCOME, _UNCONFIRMED)) for key in page.keys]


def _count_outcomes(unit: PruneUnit, table: Any, outcomes: Any, whys: Any) -> Iterator[UnitOutcome]:
    sizes = to_numpy(table["size_bytes"])
    for outcome in sorted({*outcomes.tolist()}):
        of = outcomes == outcome
        some = np.flatnonzero(of & (whys != ""))[:_EXAMPLES].tolist()
        examples = tuple(f"{table['key'][place].as_py()}: {whys[place]}" for place in some)
        yield UnitOutcome(unit.file, outcome, count_of(sizes, of), examples)
