"""Refuse to read commits that the rules hide from the mark on (`hide_marked`), instead of only after their sweep.

Only marks of finished runs hide commits. Until then a marked commit may turn out to be complete, and is read as before.
A branch shows what its head names, marked or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from refstore.context import Context
from refstore.core.ids import Path
from refstore.operations import refs
from refstore.operations.refs import ResolvedRef
from refstore.records import keys
from refstore.records.encoding import decode, decode_optional
from refstore.records.mark_records import GcRun, StoredMark


def read_marks(ctx: Context, ref: ResolvedRef) -> list[StoredMark]:
    """Return the mark of a ref's commit, and behind it those of its parts that were swept before. A branch has none."""
    marks: list[StoredMark] = []
    mark = decode_optional(ctx.kv.get(keys.mark(ctx.repo, ref.commit)), StoredMark) if ref.is_pinned_to_commit else None
    while mark is not None:
        marks.append(mark)
        mark = decode(mark.earlier_marks, StoredMark) if mark.earlier_marks else None
    return marks


def check_hidden(
    ctx: Context, ref: ResolvedRef, marks: Sequence[StoredMark], paths: Sequence[Path] | None = None
) -> None:
    """Raise Gone, with the date of the deletion, where the rules hide the commit. `marks`: those of `read_marks`.

    `paths`: the only paths that the caller reads. None: it reads all of the commit.
    """
    for mark in marks:
        covers = not mark.prefixes if paths is None else mark.covers(paths)
        if covers and _hides(ctx, mark):
            raise refs.marked_error(ref.commit, mark)


def _hides(ctx: Context, mark: StoredMark) -> bool:
    """Return whether the rules hide what is marked, and the mark is that of a run that has finished marking."""
    # imported here: few reads meet a mark, and every reader would start later
    from refstore.gc_marks.offline_runs import RunState
    from refstore.operations.rules_in_force import get_rules

    run = decode_optional(ctx.kv.get(keys.gc_run(ctx.repo, mark.mark_id)), GcRun)
    hiding = (RunState.MARKED, RunState.NEEDS_CONFIRMATION, RunState.SWEEPING, RunState.SWEPT)
    if run is None or run.state not in hiding:
        return False
    in_force = get_rules(ctx)
    return in_force is not None and in_force.rules.hide_marked
