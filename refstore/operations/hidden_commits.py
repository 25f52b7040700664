"""Refuse to read commits that are hidden although the store may still have their data.

    tagged        the data is tagged for the bucket to delete (`--mode tag`). The bucket deletes one object after
                  another, whenever it likes. So that nobody sees half of a commit, all of it is hidden from the
                  tagging on, also data that another commit keeps
    hide_marked   a rule: marked data is hidden from the mark on, instead of only after its sweep

Only marks of finished runs hide commits. Until then a marked commit may turn out to be complete, and is read as before.
A branch shows what its head names, marked or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from refstore.context import Context
from refstore.core import keys
from refstore.core.ids import Path
from refstore.core.records import GcRun, Mark, RetentionRecord, decode, maybe
from refstore.operations import refs
from refstore.operations.refs import Ref


def check_hidden(ctx: Context, ref: Ref, paths: Sequence[Path] | None = None) -> None:
    """Raise Gone, with the date of the deletion, where the commit is hidden.

    `paths`: the only paths that the caller reads. None: a listing, which only the rule hides.
    """
    if not ref.from_history:
        return
    mark = maybe(ctx.kv.get(keys.mark(ctx.repo, ref.commit)), Mark)
    while mark is not None:
        covers = not mark.prefixes if paths is None else mark.covers(paths)
        tagged = mark.tagged_ms and paths is not None
        if covers and (tagged or (_is_finished(ctx, mark) and _rules_hide(ctx))):
            raise refs.marked(ref.commit, mark)
        mark = decode(mark.earlier, Mark) if mark.earlier else None


def _is_finished(ctx: Context, mark: Mark) -> bool:
    # imported here, as below: few reads meet a mark, and every reader would start later
    from refstore.gc_marks.runs import RunState

    run = maybe(ctx.kv.get(keys.gc_run(ctx.repo, mark.mark_id)), GcRun)
    hiding = (RunState.MARKED, RunState.NEEDS_CONFIRMATION, RunState.SWEEPING, RunState.SWEPT)
    return run is not None and run.state in hiding


def _rules_hide(ctx: Context) -> bool:
    from refstore.retention.rules import read_rules

    record = maybe(ctx.kv.get(keys.retention_rules(ctx.repo)), RetentionRecord)
    return record is not None and read_rules(record.document).rules.hide_marked
