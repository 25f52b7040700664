"""Which commits can no longer be read although the store may still have their data.

    tagged        handed to the bucket to delete (`--mode tag`). The bucket deletes when it likes, one object after the other: so that
                  nobody sees half of a commit, all of it is out of sight from the tagging on, also what another commit keeps
    hide_marked   a rule: what a mark takes can no longer be read from the mark on, instead of only after its sweep

Only marks of runs that have finished hide. While a run looks, what it marked may turn out to be complete, and is read as before.
A branch shows what its head names, marked or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from refstore import keys
from refstore.context import Context
from refstore.flows import refs
from refstore.flows.refs import Ref
from refstore.ids import Path
from refstore.marks.runs import State
from refstore.records import GcRun, Mark, RetentionRecord, decode, maybe
from refstore.retention.rules import read_rules

_HIDING: Final = frozenset((State.MARKED, State.ASKING, State.SWEEPING, State.SWEPT))


def check_hidden(ctx: Context, ref: Ref, paths: Sequence[Path] | None = None) -> None:
    """Raise Gone, with the date on which the data goes. `paths`: all that is wanted; None: a listing, which the rule alone hides."""
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
    run = maybe(ctx.kv.get(keys.gc_run(ctx.repo, mark.mark_id)), GcRun)
    return run is not None and run.state in _HIDING


def _rules_hide(ctx: Context) -> bool:
    record = maybe(ctx.kv.get(keys.retention_rules(ctx.repo)), RetentionRecord)
    return record is not None and read_rules(record.document).rules.hide_marked
