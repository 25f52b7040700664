"""Find the objects that the mode `erase` takes: those whose names or metadata have one of the ids.

Where the identifier stands, the first of these that the data set has decides: its `path` template; a folder
`identifier=value`; the object's user metadata.
"""

from __future__ import annotations

from collections.abc import Sequence

from refstore_purge.finding import are_ids
from refstore_purge.plan import Unit
from refstore_purge.run_state import PurgeRun
from refstore_purge.tasks import Done


def find(run: PurgeRun, units: Sequence[Unit], attempt: int) -> set[str]:
    """Return the addresses of the objects that are to be erased. An object counts as one row."""
    state = run.state
    wanted: set[str] = set()
    for unit in units:
        pieces = list(unit.pieces.values())
        told = are_ids(run.ids.every(unit.dataset), [piece.value for piece in pieces])
        row = run.row(unit)
        row.attempts = attempt
        for piece, is_one in zip(pieces, told, strict=True):
            run.see(unit, piece.content)
            if is_one:
                wanted.add(piece.address)
                run.note(unit, piece)
            if piece.content not in state.found:
                state.found[piece.content] = Done(address=piece.content, rows=1, matched=int(is_one), by="name")
                row.objects += 1
                row.matched += is_one
    return wanted
