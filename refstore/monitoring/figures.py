"""The figures that operators see of each repository: what the reapers measured, what was reclaimed, what the job did.

Each reaper and each run of the offline job writes them into one partition of the KV, so that an overview of a thousand
repositories takes a handful of reads. Whoever changes a mark writes what the marks come to, so no reaper has to run for
that. Whether there are rules is read from the rules. Any other figure is as old as its record says. Nothing is decided
by figures: the protocol does not know them, and a lost write of them costs a number on a page.

Reclaimed objects are counted as the store confirmed them. A reaper that is killed loses the counts of its last seconds;
the journal has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from refstore.context import Context
from refstore.core import event_log
from refstore.core.ids import RepositoryId
from refstore.core.units import DAY_MS, sum_sizes
from refstore.errors import Contention, CorruptRecord, RefstoreError
from refstore.gc_marks import OPEN_STATES, Marks, RunState
from refstore.kv.base import ABSENT, KV, Key
from refstore.records import keys
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.figure_records import Amount, DayAmount, GcFigures, ReaperFigures

REAPER: Final = "reaper"
GC: Final = "gc"
DAYS_KEPT: Final = 30
WRITE_IDS_KEPT: Final = 16
ATTEMPTS: Final = 16

RUN_LATE_MS: Final = 3 * DAY_MS
"""The offline job is late if it has not run for so long in a repository that has rules."""
MEASURED_LATE_MS: Final = 3_600_000
ORPHANS_MIN: Final = 1_000
"""Fewer orphans than this are never said to have grown."""
ORPHANS_GROWTH: Final = 2

_log = event_log.get_logger(__name__)

FiguresRecord = TypeVar("FiguresRecord", ReaperFigures, GcFigures)


class Figures(NamedTuple):
    """The figures of one repository."""

    reaper: ReaperFigures = ReaperFigures()
    gc: GcFigures = GcFigures()
    has_rules: bool = False
    """Whether the repository has retention rules now."""

    @property
    def reclaimed_days(self) -> list[DayAmount]:
        """What was reclaimed on each day, by the reapers and the offline job together, the oldest day first."""
        return add_days(self.reaper.reclaimed, self.gc.reclaimed)


class Concern(StrEnum):
    """What an operator should look at, the most urgent first."""

    KV_WENT_BACK = "the KV went back"
    STOPPED = "deletion is stopped"
    RUN_FAILED = "the last run failed"
    QUESTION = "a mark waits for confirmation"
    REFUSED = "the store refused to delete"
    REAPER_FAILED = "the reaper's last pass failed"
    LATE_RUN = "no run for 3 days"
    KEEPS_VERSIONS = "deleting frees no space"
    """The bucket keeps versions of what is deleted, or nobody knows."""
    ORPHANS_GREW = "orphans grew"
    NOT_MEASURED = "no reaper has measured it lately"
    NO_RULES = "no rules"


class OperatorWarning(NamedTuple):
    concern: Concern
    detail: str


def find_warnings(figures: Figures, created_ms: int, now_ms: int) -> list[OperatorWarning]:
    """Return what an operator should look at, the most urgent first. `created_ms`: when the repository was created."""
    reaper, gc, has_rules = figures
    found: list[OperatorWarning] = []
    if reaper.stop_reason:
        found.append(
            OperatorWarning(Concern.KV_WENT_BACK if reaper.kv_went_back else Concern.STOPPED, reaper.stop_reason)
        )
    if gc.error:
        found.append(OperatorWarning(Concern.RUN_FAILED, gc.error))
    if gc.questions:
        found.append(OperatorWarning(Concern.QUESTION, f"marks that wait: {gc.questions}"))
    if gc.failed_objects or reaper.refused_objects:
        refused = f"objects in the last sweep: {gc.failed_objects}, in the reaper's last pass: {reaper.refused_objects}"
        found.append(OperatorWarning(Concern.REFUSED, refused))
    if reaper.error:
        found.append(OperatorWarning(Concern.REAPER_FAILED, reaper.error))
    if has_rules and now_ms - max(gc.run_ms, gc.marked_ms, created_ms) > RUN_LATE_MS:
        found.append(OperatorWarning(Concern.LATE_RUN, "run: refstore gc run"))
    if reaper.versions_warning:
        found.append(OperatorWarning(Concern.KEEPS_VERSIONS, reaper.versions_warning))
    if gc.orphans.objects >= ORPHANS_MIN and gc.orphans.objects > ORPHANS_GROWTH * gc.orphans_before.objects:
        found.append(
            OperatorWarning(Concern.ORPHANS_GREW, f"from {gc.orphans_before.objects} to {gc.orphans.objects} objects")
        )
    if now_ms - max(reaper.measured_ms, created_ms) > MEASURED_LATE_MS:
        found.append(OperatorWarning(Concern.NOT_MEASURED, "start one: refstore reaper, or refstore serve"))
    if not has_rules and (reaper.measured_ms or gc.marked_ms):
        found.append(OperatorWarning(Concern.NO_RULES, "no commit ever expires"))
    return found


def read_all_figures(kv: KV, repositories: Sequence[RepositoryId]) -> Mapping[RepositoryId, Figures]:
    """Return the figures of these repositories. A record that cannot be read counts as missing."""
    rules = kv.get_many([keys.retention_rules(repo) for repo in repositories])
    found = {repo: Figures(has_rules=raw is not ABSENT) for repo, raw in zip(repositories, rules, strict=True)}
    for name, raw in kv.scan_all(keys.FIGURES):
        repo, _, by = name.rpartition("/")
        figures = found.get(RepositoryId(repo))
        if figures is None:
            continue
        try:
            if by == REAPER:
                figures = figures._replace(reaper=decode(raw, ReaperFigures))
            elif by == GC:
                figures = figures._replace(gc=decode(raw, GcFigures))
        except CorruptRecord:
            continue  # its writer writes it anew
        found[RepositoryId(repo)] = figures
    return found


def read_figures(kv: KV, repo: RepositoryId) -> Figures:
    """Return the figures of one repository, as `read_all_figures` does."""
    names = (keys.figures(repo, REAPER), keys.figures(repo, GC), keys.retention_rules(repo))
    reaper, gc, rules = kv.get_many(names)
    try:
        return Figures(
            decode_optional(reaper, ReaperFigures) or ReaperFigures(),
            decode_optional(gc, GcFigures) or GcFigures(),
            rules is not ABSENT,
        )
    except CorruptRecord:
        return Figures(has_rules=rules is not ABSENT)


def measure_marks(ctx: Context, before: GcFigures) -> GcFigures:
    """Return the figures with what the marks come to now."""
    marks = [run for run in Marks(ctx).runs.scan() if run.state in OPEN_STATES]
    return msgspec.structs.replace(
        before,
        marked=Amount(
            sum(run.record.mark_counts.get("objects", 0) for run in marks),
            sum_sizes(run.record.mark_counts.get("bytes", 0) for run in marks),
        ),
        next_sweep_ms=min(
            (run.record.deletes_at_ms for run in marks if run.state is not RunState.NEEDS_CONFIRMATION), default=0
        ),
        questions=sum(run.state is RunState.NEEDS_CONFIRMATION for run in marks),
    )


def write_marks(ctx: Context) -> None:
    """Write what the marks come to, after one was confirmed or unmarked. What the KV does not take is lost."""
    try:
        change_gc_figures(ctx.kv, ctx.repo, ctx.ids.new_id(ctx.clock.now_ms()), partial(measure_marks, ctx))
    except RefstoreError as error:
        _log.warning("figures_not_written", repository=ctx.name, code=error.code, error=str(error))


def change_reaper_figures(
    kv: KV, repo: RepositoryId, write_id: str, change: Callable[[ReaperFigures], ReaperFigures]
) -> None:
    """Change what the reapers write. A call that is repeated with the same `write_id` changes nothing twice. Raises
    KVUnavailable, Contention.
    """
    _change_figures(kv, keys.figures(repo, REAPER), ReaperFigures(), write_id, change)


def change_gc_figures(kv: KV, repo: RepositoryId, write_id: str, change: Callable[[GcFigures], GcFigures]) -> None:
    """Change what the offline job writes, likewise."""
    _change_figures(kv, keys.figures(repo, GC), GcFigures(), write_id, change)


def day_of(at_ms: int) -> str:
    """Return the day of a time, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d")


def add_days(first: Iterable[DayAmount], second: Iterable[DayAmount]) -> list[DayAmount]:
    """Return the sums of each day, the oldest first."""
    sums: dict[str, DayAmount] = {}
    for each in (*first, *second):
        before = sums.get(each.day, DayAmount(each.day, 0, 0))
        sums[each.day] = DayAmount(each.day, before.objects + each.objects, sum_sizes((before.bytes, each.bytes)))
    return [sums[day] for day in sorted(sums)]


def add_reclaimed(days: tuple[DayAmount, ...], amount: Amount, at_ms: int) -> tuple[DayAmount, ...]:
    """Return the days with an amount that was deleted at a time; only the last `DAYS_KEPT` days stay."""
    if not (amount.objects or amount.bytes):
        return days
    return tuple(add_days(days, [DayAmount(day_of(at_ms), *amount)])[-DAYS_KEPT:])


def _change_figures(
    kv: KV, key: Key, empty: FiguresRecord, write_id: str, change: Callable[[FiguresRecord], FiguresRecord]
) -> None:
    for _ in range(ATTEMPTS):
        raw = kv.get(key)
        try:
            before = decode_optional(raw, type(empty)) or empty
        except CorruptRecord:
            before = empty
        if write_id in before.write_ids:
            return  # the reply of our own write was lost
        write_ids = (*before.write_ids, write_id)[-WRITE_IDS_KEPT:]
        if kv.set_if(key, raw, encode(msgspec.structs.replace(change(before), write_ids=write_ids))):
            return
    raise Contention(f"other processes kept changing the figures {key.name!r}; the next write tries again")
