"""What a retention plan means for one entry: every faster implementation must agree with this."""

from __future__ import annotations

from refstore.core.ids import CommitId
from refstore.retention.path_rules import KeepLevel, RetentionPlan


def keeps_entry(plan: RetentionPlan, commit: CommitId, path: str, made_ms: int) -> bool:
    """Return whether a commit's entry keeps its object."""
    path_class = plan.class_of(path)
    level = path_class.keep_levels[plan.expiry.history.numbers[commit]]
    return level == KeepLevel.ALL or (
        level == KeepLevel.YOUNG and path_class.made_from_ms is not None and made_ms >= path_class.made_from_ms
    )
