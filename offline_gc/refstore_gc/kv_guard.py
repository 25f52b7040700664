"""What the offline job asks of the KV before it deletes: that it lost no writes (rule 21).

The job does not settle after other servers of the KV answer; the reaper does. A mark holds for the servers that
answered while it looked: the sweep gives up a mark that was made under others.
"""

from __future__ import annotations

from collections.abc import Mapping

from refstore.context import Context
from refstore.errors import Gone
from refstore.gc_marks import Marks, RunState
from refstore.kv_recovery.fence import PositionFence, refuse_to_settle
from refstore.kv_recovery.manifest_check import check_repository


def begin_guarded_pass(ctx: Context, mark_id: str, *, is_closed: bool = False) -> PositionFence:
    """Begin a pass. `is_closed`: the repository was deleted, so its manifest says nothing any more. Raises KVWentBack,
    KVSettling, CorruptObject, Unavailable; then nothing may be deleted.
    """
    # a process that sweeps the mark again is another deleter
    deleter = f"gc-{mark_id}-{ctx.ids.new_id(ctx.clock.now_ms())}"
    fence = PositionFence(ctx.kv, ctx.lake_objects, ctx.clock, ctx.durations, deleter)
    fence.begin(refuse_to_settle)
    if not is_closed:
        check_repository(ctx)
    return fence


def abandon_if_servers_changed(
    marks: Marks, mark_id: str, servers_before: Mapping[str, str], fence: PositionFence
) -> None:
    """Give a mark up whose look was made under other servers than answer now. Raises Gone then.

    What the mark saw may not be so any more. If its sweep has begun, its commits stay as swept; the next run finds what
    is left. `servers_before`: the servers that the mark saw.
    """
    if dict(servers_before) == fence.servers:
        return
    if marks.runs.get(mark_id).state is RunState.SWEEPING:
        marks.sweeps.finish(mark_id, {})
    else:
        marks.decisions.unmark(mark_id)
    raise Gone(
        f"mark {mark_id} was made while other servers of the KV answered, so it was given up; the next run looks again"
    )
