"""Decide by the rules which commits are marked, and what each keeps, before anything of the store is read. This reads
the KV only, and needs no Spark.

Before anything is marked, the rules that act on branches are applied (`apply_branch_rules`): on old staged objects, and
on the latest view. Both act as a user would, by a reset and a commit, so the marking does not know of them. A dry run
takes the same path and writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from refstore.context import Context
from refstore.core.ids import CommitId
from refstore.core.safety import Safety, is_for_trying
from refstore.core.units import DAY_MS, DAY_SECONDS
from refstore.errors import StoreMisconfigured
from refstore.gc_marks import LiveCommit, Marks, barrier_seconds
from refstore.objects.base import ObjectStore
from refstore.operations import expire_head, expire_staged_entries, rules_document
from refstore.operations.expire_head import RangeAges
from refstore.operations.rules_in_force import rules_to_expire_by
from refstore.retention.active_commits import ExpiryState
from refstore.retention.commit_arrays import NONE
from refstore.retention.path_rules import KeepLevel, PathClass, RetentionPlan, latest_view_rules, make_plan
from refstore.retention.rules import BranchPeriods, Rules
from refstore_gc.list_objects import HOUR_MS, address_bound
from refstore_gc.live_in_commits import FilterPart, TreeFilter
from refstore_gc.run_summary import BranchRuleResult, ObjectCount

CLOCK_GRAIN_SECONDS: Final = 2.0
"""A store tells its clock in whole seconds, and asking takes a moment."""
MIN_AGE_SECONDS: Final = float(DAY_SECONDS)


@dataclass(frozen=True, slots=True)
class MarkDecision:
    rules: Rules
    plan: RetentionPlan
    commits: Sequence[CommitId]
    """Expired as a whole."""
    abandoned_commits: Sequence[CommitId]
    """Commits that never landed; what they left is garbage."""
    partly_expired_commits: Sequence[tuple[CommitId, tuple[str, ...]]]
    waiting_commits: int
    """How many have expired, and are left alone because no reaper has processed them yet."""
    grace_ms: int


def decide_marks(ctx: Context, *, rules: Rules | None = None, grace_days: float | None = None) -> MarkDecision:
    """Decide what to mark. `rules` replace the repository's own. Raises CorruptRecord (rules, or commits).

    A commit waits until the reaper has processed it. Until then references keep all that it added, so it would pass for
    one that loses nothing.
    """
    if rules is None:
        rules = rules_to_expire_by(ctx)
    history, refs = rules_document.read_history(ctx)
    made = make_plan(history, refs, rules, ctx.clock.now_ms())
    grace_ms = int((rules.grace_days if grace_days is None else grace_days) * DAY_MS)
    given_up = list(Marks(ctx).commits.given_up())
    unprocessed = ctx.markers.unprocessed_commits()
    expired, partly = made.expiry.commits(ExpiryState.EXPIRED), list(made.partly_expired_commits())
    return MarkDecision(
        rules,
        made,
        [commit for commit in expired if commit not in unprocessed],
        given_up,
        [(commit, prefixes) for commit, prefixes in partly if commit not in unprocessed],
        len(unprocessed & {*expired, *(commit for commit, _ in partly)}),
        grace_ms,
    )


def count_expired_by_rule(decision: MarkDecision) -> dict[str, int]:
    """Count by which rule commits have expired. This answers later why something was deleted."""
    counts: Counter[str] = Counter()
    expiry, periods = decision.plan.expiry, BranchPeriods(decision.rules)
    for commit in decision.commits:
        holder = expiry.holders[expiry.history.numbers[commit]]
        chosen = periods.default if holder == NONE else periods.period_of(expiry.branches[holder])
        counts[f"{chosen.rule}: {chosen.days} days"] += 1
    for _, prefixes in decision.partly_expired_commits:
        counts.update(f"rule for paths {prefix!r}" for prefix in prefixes)
    if decision.abandoned_commits:
        counts["never landed"] = len(decision.abandoned_commits)
    return dict(counts)


def tree_filter_of(made: RetentionPlan) -> Callable[[LiveCommit], TreeFilter | None]:
    """Return a function that says what a commit keeps of its tree: from its marks, the rules of its paths, and legal
    holds. None: everything.
    """
    classes = made.classes
    numbers = made.expiry.history.numbers

    def filter_of(commit: LiveCommit) -> TreeFilter | None:
        if not commit.expired_prefixes:
            return None
        number = numbers.get(commit.commit)
        parts: list[FilterPart] = []
        for prefix in sorted(
            {"", *commit.expired_prefixes, *(each.prefix for each in classes)}, key=lambda each: (len(each), each)
        ):
            if not prefix.startswith(commit.expired_prefixes):
                parts.append(FilterPart(prefix, KeepLevel.ALL))
            else:
                parts.append(
                    _filter_part(prefix, next(each for each in classes if prefix.startswith(each.prefix)), number)
                )
        return None if all(part.keep_level == KeepLevel.ALL for part in parts) else TreeFilter(tuple(parts))

    return filter_of


def _filter_part(prefix: str, path_class: PathClass, number: int | None) -> FilterPart:
    """Return what a marked part keeps by the rules of today. Where they do not know the commit, only legal holds keep
    something.
    """
    if path_class.on_hold:
        return FilterPart(prefix, KeepLevel.ALL)
    keeps = KeepLevel.NOTHING if number is None else KeepLevel(path_class.keep_levels[number])
    return FilterPart(prefix, keeps, (path_class.made_from_ms or 0) if keeps is KeepLevel.YOUNG else 0)


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
            f" clock_skew allows for {ctx.waits.clock_skew_seconds:g}; set the clocks right, nothing was "
            "marked"
        )


def listing_horizon(waits: Safety, cutoff_ms: int) -> str:
    """Return where the next run starts to list. Blobs whose addresses sort before it were listed by the cutoff, or are
    left to the next full run.

    The upload that made an address writes its blob, or an issued address is linked in time; clocks may be apart. An
    upload in parts may be completed days later, and what no run has listed is never garbage.
    """
    landing_seconds = max(waits.operation_deadline_seconds, waits.issue_seconds) + waits.io_timeout_seconds
    made_ms = cutoff_ms - int((landing_seconds + waits.clock_skew_seconds) * 1000)
    return address_bound(made_ms // HOUR_MS * HOUR_MS)


def minimum_age_seconds(ctx: Context, requested_seconds: float | None) -> float:
    """Return how old garbage must be: at least the longest operation, whose objects may not be named yet.

    A day by default; no more than that operation in a lake that is for trying, where everything is young.
    """
    default_seconds = 0.0 if is_for_trying(ctx.waits) else MIN_AGE_SECONDS
    return max(default_seconds if requested_seconds is None else requested_seconds, barrier_seconds(ctx.waits))


def apply_branch_rules(ctx: Context, rules: Rules | None = None, *, dry_run: bool = False) -> BranchRuleResult:
    """`rules`: instead of the repository's own. They do not act on branches with a lease (rule 24): a transaction is
    merged with all that it has, or ended. Raises CorruptRecord, CorruptRange: something cannot be read.
    """
    branches = [name for name, record in ctx.branches.scan_open() if not record.lease_until_ms]
    effective = rules or rules_to_expire_by(ctx)
    staged = latest_view = ObjectCount()
    commits = 0
    left: list[str] = []
    if expire_staged_entries.has_uncommitted_rule(effective):
        for branch in branches:
            reset = expire_staged_entries.expire_staged_entries(ctx, effective, branch, dry_run=dry_run)
            staged += ObjectCount(reset.objects, reset.size_bytes)
            if reset.is_incomplete:
                left.append(
                    f"staged objects of branch {branch!r}: it has an unfinished commit, or was changed meanwhile"
                )
    if effective.allow_deletion_from_latest_view:
        known, protected = RangeAges(), expire_head.protected_commits(ctx, effective)
        for branch in branches:
            for rule in latest_view_rules(effective, branch, ctx.clock.now_ms()):
                removed = expire_head.expire_head(ctx, branch, rule, protected, known, dry_run=dry_run)
                latest_view += ObjectCount(removed.objects, removed.size_bytes)
                commits += removed.commits
                if removed.remaining_reason:
                    left.append(f"paths {rule.prefix}* of branch {branch!r}: {removed.remaining_reason}")
    return BranchRuleResult(staged=staged, latest_view=latest_view, commits=commits, incomplete_branches=left)
