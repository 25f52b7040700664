"""Apply the rules that act on branches, before anything is marked: on old staged objects, and on the latest view.

Both act as a user would, by a reset and a commit, so the marking does not know of them. A dry run takes the same path
and writes nothing.
"""

from __future__ import annotations

from refstore.context import Context
from refstore.operations import expire_head, expire_staged_entries
from refstore.operations.expire_head import RangeAges
from refstore.operations.rules_in_force import rules_to_expire_by
from refstore.retention.path_rules import latest_view_rules
from refstore.retention.rules import Rules
from refstore_gc.run_summary import BranchRuleResult, ObjectCount


def apply_branch_rules(ctx: Context, rules: Rules | None = None, *, dry_run: bool = False) -> BranchRuleResult:
    """`rules`: instead of the repository's own. Raises CorruptRecord, CorruptRange: something cannot be read."""
    effective = rules or rules_to_expire_by(ctx)
    done = _expire_staged(ctx, effective, dry_run=dry_run)
    if not effective.allow_deletion_from_latest_view:
        return done
    from_head = _expire_latest_view(ctx, effective, dry_run=dry_run)
    return BranchRuleResult(
        staged=done.staged,
        latest_view=from_head.latest_view,
        commits=from_head.commits,
        incomplete_branches=[*done.incomplete_branches, *from_head.incomplete_branches],
    )


def _expire_staged(ctx: Context, rules: Rules, *, dry_run: bool) -> BranchRuleResult:
    if not expire_staged_entries.has_uncommitted_rule(rules):
        return BranchRuleResult()
    total = ObjectCount()
    left: list[str] = []
    for branch in [name for name, _ in ctx.branches.scan_open()]:
        done = expire_staged_entries.expire_staged_entries(ctx, rules, branch, dry_run=dry_run)
        total += ObjectCount(done.objects, done.size_bytes)
        if done.is_incomplete:
            left.append(f"staged objects of branch {branch!r}: it has an unfinished commit, or was changed meanwhile")
    return BranchRuleResult(staged=total, incomplete_branches=left)


def _expire_latest_view(ctx: Context, rules: Rules, *, dry_run: bool) -> BranchRuleResult:
    total, commits = ObjectCount(), 0
    left: list[str] = []
    known = RangeAges()
    held = expire_head.protected_commits(ctx, rules)
    for branch in [name for name, _ in ctx.branches.scan_open()]:
        for rule in latest_view_rules(rules, branch, ctx.clock.now_ms()):
            done = expire_head.expire_head(ctx, branch, rule, held, known, dry_run=dry_run)
            total += ObjectCount(done.objects, done.size_bytes)
            commits += done.commits
            if done.remaining_reason:
                left.append(f"paths {rule.prefix}* of branch {branch!r}: {done.remaining_reason}")
    return BranchRuleResult(latest_view=total, commits=commits, incomplete_branches=left)
