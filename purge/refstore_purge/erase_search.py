"""Find the objects that the mode `erase` takes: those whose names or metadata have one of the ids.

Where the identifier stands, the first of these that the data set has decides: its `path` template; a folder
`identifier=value`; the object's user metadata.
"""

from __future__ import annotations

from collections.abc import Sequence

from refstore_purge.purge_plan import Partition
from refstore_purge.purge_run_state import PurgeRun
from refstore_purge.purge_tasks import ObjectResult
from refstore_purge.row_search import find_ids


def find_erasable(run: PurgeRun, units: Sequence[Partition], attempt: int) -> set[str]:
    """Return the addresses of the objects that are to be erased. An object counts as one row."""
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
