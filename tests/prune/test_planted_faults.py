"""Faults that would lose objects, or keep garbage: each is planted, and the random histories find it."""

from __future__ import annotations

from random import Random

import pytest

from refstore.errors import RefstoreError
from tests.prune.test_prune_properties import run_in_memory
from tests.simulation.planting import Edit, Mutant

HISTORIES_MAX = 40
_RUN = "refstore_prune.prune_run:run_prune"
_CHUNK = "refstore_prune.compare:_compare_chunk"
_BATCH = "refstore_prune.prune_sweep:_UnitDeletion.delete_batch"


def fault(seed: int, name: str, *edits: tuple[str, str, str]) -> tuple[Mutant, int]:
    """`seed`: of the history that found it; if that one finds it no more, others may."""
    made = tuple(Edit(*each) for each in edits)
    return Mutant(name=name, rule="prune", edits=made, caught_by="tests/prune/history.py"), seed


FAULTS = [
    fault(
        25,
        "names are read before the listing",
        (
            _RUN,
            'with begun.steps.step("listing the store"):',
            """names = gather_names(begun.layout, begun.engine, sources, has_encoded_keys=True)
        with begun.steps.step("listing the store"):""",
        ),
        (
            _RUN,
            "names = gather_names(run.layout, run.engine, sources, has_encoded_keys=listing.facts.has_encoded_keys)",
            "pass",
        ),
    ),
    fault(
        0,
        "the names are not read again for what was marked",
        (
            _CHUNK,
            "marked_before, marked_ms = earlier.find(table, hashes)",
            "marked_before, marked_ms = earlier.find(table, hashes)\n    named = named & ~marked_before",
        ),
    ),
    fault(
        0,
        "what is marked goes by the same run",
        (
            "refstore_prune.compare:decide",
            "is_unnamed & (marked_ms > 0) & (marked_ms + grace_ms < named_ms)",
            "is_unnamed & (marked_ms + grace_ms < named_ms)",
        ),
    ),
    fault(
        5,
        "a mark is that of a key, not of an object",
        (
            "refstore_prune.compare:_EarlierMark.find",
            "[*equal.values(), ~np",
            '[equal["key"], ~np',
        ),
    ),
    fault(
        0,
        "a mark that was taken back counts",
        (
            "refstore_prune.compare:_EarlierMark.find",
            "[*equal.values(), ~np.isin(times, self._unmarked_ms)]",
            "[*equal.values()]",
        ),
    ),
    fault(
        14,
        "nobody looks before a deletion",
        (_BATCH, "self._store.delete_unchanged(page)", "self._store.delete_many(page.keys)"),
    ),
    fault(
        2,
        "names that were read long ago count",
        (_BATCH, "if self._is_too_old():", "if False:"),
    ),
    fault(
        0,
        "a batch of names is lost",
        (
            "refstore_prune.compare:read_names",
            "yield from builder.flush()",
            "yield from [*builder.flush()][1:]",
        ),
    ),
    fault(
        6,
        "the beginnings of keys decide about their bucket",
        ("refstore_prune.compare:compare", "are_whole=True", "are_whole=False"),
    ),
    fault(
        1,
        "the marks of the next bucket are not looked at",
        (
            "refstore_prune.compare:_earlier_batches",
            "for bucket in range(first, end + 1):",
            "for bucket in range(first, first + 1):",
        ),
    ),
    fault(
        0,
        "what a source was read long ago names counts as of now",
        (
            "refstore_prune.prune_run:_compare_task",
            "*(each.as_of_ms or each.began_ms for each in facts)",
            "run.began_ms",
        ),
    ),
    fault(
        17,
        "a mark stands although another run took over",
        ("refstore_prune.prune_run:_let_mark_stand", "lock.check()", "pass"),
    ),
    fault(
        0,
        "the mark stands before the checks",
        (
            _RUN,
            "checks.refuse(failed, options.consent)\n        _let_mark_stand(run, run.lock, found, stood_ms)",
            "_let_mark_stand(run, run.lock, found, stood_ms)\n        checks.refuse(failed, options.consent)",
        ),
    ),
    fault(
        0,
        "a grace period counts from the beginning of the run that marks",
        ("refstore_prune.state:_read_rows", "times[0]), times[1], table", "times[0]), times[0], table"),
    ),
]


@pytest.mark.parametrize(("mutant", "seed"), FAULTS, ids=[each.name for each, _ in FAULTS])
def test_a_fault_is_found(mutant: Mutant, seed: int) -> None:
    with mutant.planted():
        assert any(finds_a_fault(each) for each in [seed, *range(HISTORIES_MAX)])


def finds_a_fault(seed: int) -> bool:
    try:
        run_in_memory(Random(seed))
    except (AssertionError, RefstoreError, KeyError):
        return True
    return False
