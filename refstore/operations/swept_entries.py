"""Find out which entries of a swept commit are gone.

A sweep deletes what only expired commits named, so a part of what a swept commit names is mostly still there: other
commits, or a legal hold, keep it. No record says which part that is, as it changes with every later sweep. So the store
is asked. What is tagged for the bucket to delete (`--mode tag`) is there until the bucket comes round, and counts as
gone: the outcome of the sweep says what was tagged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from refstore.context import Context
from refstore.core.ids import Address, is_own
from refstore.gc_marks.sweep_records import RunFilesMissing, read_outcomes
from refstore.operations.reference_lookup import have_content
from refstore.operations.rules_in_force import get_rules
from refstore.records.mark_records import StoredMark
from refstore.records.staging_records import StoredEntry

FIRST_PAGE: Final = 16
PAGE: Final = 1000
"""How many entries the store is asked for at a time: few at first, as a listing by folders needs one of each."""
EXCLUDED_OUTCOME: Final = "excluded"
"""The outcome of what a sweep left."""


def find_sweeping_marks(
    ctx: Context, marks: Sequence[StoredMark], entries: Sequence[tuple[str, StoredEntry]]
) -> list[StoredMark | None]:
    """Return for each entry the mark whose sweep took its object; None: it can be read.

    `marks`: those of the commit, the newest first.
    """
    takers = [_find_sweeping_mark(marks, path) if is_own(entry.address) else None for path, entry in entries]
    tagged = _find_tagged(
        ctx, [(path, entry, mark) for (path, entry), mark in zip(entries, takers, strict=True) if mark]
    )
    asked = [
        entry.address
        for (_, entry), mark in zip(entries, takers, strict=True)
        if mark is not None and entry.address not in tagged
    ]
    readable = {address for address, is_there in zip(asked, have_content(ctx, asked), strict=True) if is_there}
    return [
        None if mark is None or entry.address in readable else mark
        for (_, entry), mark in zip(entries, takers, strict=True)
    ]


def hide_swept(
    ctx: Context, marks: Sequence[StoredMark], entries: Iterable[tuple[str, StoredEntry]]
) -> Iterator[tuple[str, StoredEntry | None]]:
    """Yield the entries in their order; None for each that cannot be read."""
    waiting, amount = iter(entries), FIRST_PAGE
    while page := list(islice(waiting, amount)):
        for (path, entry), mark in zip(page, find_sweeping_marks(ctx, marks, page), strict=True):
            yield path, entry if mark is None else None
        amount = min(PAGE, amount * 4)


def _find_sweeping_mark(marks: Sequence[StoredMark], path: str) -> StoredMark | None:
    """Return the newest mark that was swept, or is being swept, and covers the path."""
    return next((mark for mark in marks if mark.sweeping_ms and mark.covers((path,))), None)


def _find_tagged(ctx: Context, entries: Iterable[tuple[str, StoredEntry, StoredMark]]) -> set[Address]:
    """Return the addresses that wait for the bucket, by the outcomes of their sweeps. Not what a legal hold covers by
    now: that is read for as long as the bucket leaves it.
    """
    waiting: dict[str, list[tuple[str, Address]]] = {}
    for path, entry, mark in entries:
        if mark.tagged_ms and not mark.swept_ms:
            waiting.setdefault(mark.mark_id, []).append((path, entry.address))
    if not waiting:
        return set()
    in_force = get_rules(ctx)
    holds = tuple(hold.prefix for hold in in_force.rules.legal_holds) if in_force is not None else ()
    tagged: set[Address] = set()
    for mark_id, items in waiting.items():
        addresses = [address for path, address in items if not path.startswith(holds)]
        try:
            outcomes = read_outcomes(ctx.objects, mark_id, addresses)
        except RunFilesMissing:  # the sweep cannot go on without them either; the store says what is gone
            continue
        tagged |= {Address(address) for address, outcome in outcomes.items() if outcome != EXCLUDED_OUTCOME}
    return tagged
