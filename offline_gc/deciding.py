"""What the rules come to, before anything is read of the store: which commits are marked, and what of each is kept.

Reads the KV only; needs no Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from offline_gc.committed import ALL, NOTHING, Filter, Part
from offline_gc.listing import HOUR_MS, cut_at
from refstore.context import Context
from refstore.errors import InvalidSettings, StoreMisconfigured
from refstore.flows import retaining
from refstore.ids import CommitId
from refstore.marks import Kept, Marks, barrier_seconds
from refstore.objects.base import ObjectStore
from refstore.retention.active import State
from refstore.retention.history import NONE
from refstore.retention.paths import Keeps, PathClass, Plan, plan
from refstore.retention.rules import DAY_MS, Periods, Rules
from refstore.safety import Safety

CLOCK_GRAIN_SECONDS: Final = 2.0
"""A store's clock is told in whole seconds, and asking takes a moment."""
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
    """They never landed, and what they left can go."""
    partly: Sequence[tuple[CommitId, tuple[str, ...]]]
    grace_ms: int


def decide(ctx: Context, *, rules: Rules | None = None, grace_days: float | None = None) -> Decision:
    """`rules`: instead of the repository's own. Raises CorruptRecord: rules or commits that cannot be read."""
    if grace_days is not None and not 0 <= grace_days <= 3650:
        raise InvalidSettings(f"grace_days is {grace_days:g}; use 0 to 3650")
    if rules is None:
        own = retaining.get(ctx)
        rules = own.rules if own is not None else _NO_RULES
    history, refs = retaining.read_history(ctx)
    made = plan(history, refs, rules, ctx.clock.now_ms())
    grace_ms = int((rules.grace_days if grace_days is None else grace_days) * DAY_MS)
    given_up = list(Marks(ctx).given_up())
    return Decision(rules, made, made.lives.commits(State.EXPIRED), given_up, list(made.partly()), grace_ms)


def expired_by(decision: Decision) -> dict[str, int]:
    """Count by which rule commits have expired: for who asks later why something was deleted."""
    found: Counter[str] = Counter()
    lives, periods = decision.plan.lives, Periods(decision.rules)
    for commit in decision.commits:
        holder = lives.holder[lives.history.numbers[commit]]
        chosen = periods.default if holder == NONE else periods.of(lives.branches[holder])
        found[f"{chosen.rule}: {chosen.days} days"] += 1
    for _, prefixes in decision.partly:
        found.update(f"rule for paths {prefix!r}" for prefix in prefixes)
    if decision.given_up:
        found["never landed"] = len(decision.given_up)
    return dict(found)


def filters_of(made: Plan) -> Callable[[Kept], Filter | None]:
    """What a commit keeps of its tree, from what its marks leave it, its paths' rules and legal holds. None: everything."""
    classes = made.classes
    numbers = made.lives.history.numbers

    def of(kept: Kept) -> Filter | None:
        if not kept.but_for:
            return None
        number = numbers.get(kept.commit)
        parts: list[Part] = []
        for prefix in sorted({"", *kept.but_for, *(each.prefix for each in classes)}, key=lambda each: (len(each), each)):
            if not prefix.startswith(kept.but_for):
                parts.append(Part(prefix, ALL))
            else:
                parts.append(_part(prefix, next(each for each in classes if prefix.startswith(each.prefix)), number))
        return None if all(part.keeps == ALL for part in parts) else Filter(tuple(parts))

    return of


def _part(prefix: str, found: PathClass, number: int | None) -> Part:
    """A mark takes, and only the rules of today say what stays all the same: where they do not know the commit, what is held."""
    if found.held:
        return Part(prefix, ALL)
    keeps = NOTHING if number is None else found.keeps[number]
    return Part(prefix, keeps, (found.made_from_ms or 0) if keeps == _YOUNG else 0)


def store_now_ms(store: ObjectStore, key: str) -> int:
    """The time by the store's clock, which alone says how old objects are."""
    store.put(key, b"")
    return store.head(key).mtime_ms


def check_clock(ctx: Context, key: str) -> None:
    """Raises StoreMisconfigured: this machine's clock and the store's are further apart than the settings allow for."""
    before = ctx.clock.now_ms()
    there = store_now_ms(ctx.objects, key)
    after = ctx.clock.now_ms()
    bound_ms = (ctx.safety.clock_skew_seconds + CLOCK_GRAIN_SECONDS) * 1000
    if there < before - bound_ms or there > after + bound_ms:
        raise StoreMisconfigured(
            f"the clocks of this machine and of {ctx.objects.url} are {abs(there - before) / 1000:.0f} s apart, and"
            f" clock_skew_seconds allows for {ctx.safety.clock_skew_seconds:g}; set the clocks right, nothing was marked"
        )


def horizon(safety: Safety, cutoff_ms: int) -> str:
    """Where to list again from: a blob whose address was made earlier was there by the cutoff, or will never be named.

    It is written by the upload that made the address, or while an issued one may be linked; clocks may be apart.
    """
    landing_seconds = max(safety.operation_deadline_seconds, safety.issue_seconds) + safety.io_timeout_seconds
    made_ms = cutoff_ms - int((landing_seconds + safety.clock_skew_seconds) * 1000)
    return cut_at(made_ms // HOUR_MS * HOUR_MS)


def age_seconds(ctx: Context, asked: float | None) -> float:
    """How old something must be to go: never younger than the longest operation, whose objects may not be named yet."""
    wanted = MIN_AGE_SECONDS if asked is None else asked
    if wanted < 0:
        raise InvalidSettings(f"min_age_seconds is {wanted:g}; it cannot be negative")
    return max(wanted, barrier_seconds(ctx.safety))
