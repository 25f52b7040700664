"""Decide by the rules which commits are marked, and what each keeps, before anything of the store is read.

This reads the KV only, and needs no Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from refstore.context import Context
from refstore.core.ids import CommitId
from refstore.core.safety import Safety
from refstore.errors import StoreMisconfigured
from refstore.gc_marks import LiveCommit, Marks, barrier_seconds
from refstore.objects.base import ObjectStore
from refstore.operations import rules_document
from refstore.retention.active_commits import State
from refstore.retention.commit_arrays import NONE
from refstore.retention.path_rules import Keeps, PathClass, Plan, plan
from refstore.retention.rules import DAY_MS, Periods, Rules
from refstore_gc.listing import HOUR_MS, cut_at
from refstore_gc.live_in_commits import ALL, NOTHING, Filter, Part

CLOCK_GRAIN_SECONDS: Final = 2.0
"""A store tells its clock in whole seconds, and asking takes a moment."""
MIN_AGE_SECONDS: Final = 86_400.0
_NO_RULES: Final = Rules()
_YOUNG: Final = int(Keeps.YOUNG)


@dataclass(frozen=True, slots=True)
class Decision:
    rules: Rules
    plan: Plan
    commits: Sequence[CommitId]
    """Expired as a whole."""
    given_up: Sequence[CommitId]
    """Commits that never landed; what they left is garbage."""
    partly: Sequence[tuple[CommitId, tuple[str, ...]]]
    grace_ms: int


def decide(ctx: Context, *, rules: Rules | None = None, grace_days: float | None = None) -> Decision:
    """Decide what to mark. `rules` replace the repository's own. Raises CorruptRecord (rules, or commits)."""
    if rules is None:
        own = rules_document.get(ctx)
        rules = own.rules if own is not None else _NO_RULES
    history, refs = rules_document.read_history(ctx)
    made = plan(history, refs, rules, ctx.clock.now_ms())
    grace_ms = int((rules.grace_days if grace_days is None else grace_days) * DAY_MS)
    given_up = list(Marks(ctx).commits.given_up())
    return Decision(rules, made, made.expiry.commits(State.EXPIRED), given_up, list(made.partly()), grace_ms)


def expired_by(decision: Decision) -> dict[str, int]:
    """Count by which rule commits have expired. This answers later why something was deleted."""
    counts: Counter[str] = Counter()
    expiry, periods = decision.plan.expiry, Periods(decision.rules)
    for commit in decision.commits:
        holder = expiry.holder[expiry.history.numbers[commit]]
        chosen = periods.default if holder == NONE else periods.of(expiry.branches[holder])
        counts[f"{chosen.rule}: {chosen.days} days"] += 1
    for _, prefixes in decision.partly:
        counts.update(f"rule for paths {prefix!r}" for prefix in prefixes)
    if decision.given_up:
        counts["never landed"] = len(decision.given_up)
    return dict(counts)


def filters_of(made: Plan) -> Callable[[LiveCommit], Filter | None]:
    """Return a function that says what a commit keeps of its tree: from its marks, the rules of its paths, and legal
    holds. None: everything.
    """
    classes = made.classes
    numbers = made.expiry.history.numbers

    def filter_of(commit: LiveCommit) -> Filter | None:
        if not commit.expired_prefixes:
            return None
        number = numbers.get(commit.commit)
        parts: list[Part] = []
        for prefix in sorted(
            {"", *commit.expired_prefixes, *(each.prefix for each in classes)}, key=lambda each: (len(each), each)
        ):
            if not prefix.startswith(commit.expired_prefixes):
                parts.append(Part(prefix, ALL))
            else:
                parts.append(_part_of(prefix, next(each for each in classes if prefix.startswith(each.prefix)), number))
        return None if all(part.keeps == ALL for part in parts) else Filter(tuple(parts))

    return filter_of


def _part_of(prefix: str, path_class: PathClass, number: int | None) -> Part:
    """Return what a marked part keeps by the rules of today. Where they do not know the commit, only legal holds keep
    something.
    """
    if path_class.on_hold:
        return Part(prefix, ALL)
    keeps = NOTHING if number is None else path_class.keeps[number]
    return Part(prefix, keeps, (path_class.made_from_ms or 0) if keeps == _YOUNG else 0)


def store_now_ms(store: ObjectStore, key: str) -> int:
    """Return the time by the store's clock, which alone says how old objects are."""
    store.put(key, b"")
    return store.head(key).mtime_ms


def check_clock(ctx: Context, key: str) -> None:
    """Raises StoreMisconfigured: this machine's clock and the store's are further apart than the settings allow."""
    before = ctx.clock.now_ms()
    there = store_now_ms(ctx.objects, key)
    after = ctx.clock.now_ms()
    bound_ms = (ctx.waits.clock_skew_seconds + CLOCK_GRAIN_SECONDS) * 1000
    if there < before - bound_ms or there > after + bound_ms:
        raise StoreMisconfigured(
            f"the clocks of this machine and of {ctx.objects.url} are {abs(there - before) / 1000:.0f} s apart, and"
            f" clock_skew_seconds allows for {ctx.waits.clock_skew_seconds:g}; set the clocks right, nothing was "
            "marked"
        )


def horizon_of(waits: Safety, cutoff_ms: int) -> str:
    """Return where the next run starts to list. Blobs whose addresses sort before it were listed by the cutoff, or will
    never be named.

    The upload that made an address writes its blob, or an issued address is linked in time; clocks may be apart.
    """
    landing_seconds = max(waits.operation_deadline_seconds, waits.issue_seconds) + waits.io_timeout_seconds
    made_ms = cutoff_ms - int((landing_seconds + waits.clock_skew_seconds) * 1000)
    return cut_at(made_ms // HOUR_MS * HOUR_MS)


def age_seconds(ctx: Context, requested_seconds: float | None) -> float:
    """Return how old garbage must be: at least the longest operation, whose objects may not be named yet."""
    seconds = MIN_AGE_SECONDS if requested_seconds is None else requested_seconds
    return max(seconds, barrier_seconds(ctx.waits))
