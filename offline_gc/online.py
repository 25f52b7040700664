"""Rules that act on branches, applied before anything is marked: what was staged too long ago, and the latest view.

Both are done as a user would do them, a reset and a commit, so nothing that the marking rests on knows of them. A rehearsal takes the
same path and writes nothing.
"""

from __future__ import annotations

from offline_gc.summary import Count, Online
from refstore.context import Context
from refstore.flows import expiring, outdating, retaining
from refstore.flows.outdating import Ranges
from refstore.retention.paths import latest_view
from refstore.retention.rules import Rules


def apply(ctx: Context, rules: Rules | None = None, *, dry_run: bool = False) -> Online:
    """`rules`: instead of the repository's own. Raises CorruptRecord, CorruptRange: something cannot be read."""
    found = rules or _own(ctx)
    done = _staged(ctx, found, dry_run=dry_run)
    if not found.allow_deletion_from_latest_view:
        return done
    taken = _latest_view(ctx, found, dry_run=dry_run)
    return Online(staged=done.staged, latest_view=taken.latest_view, commits=taken.commits, left=[*done.left, *taken.left])


def _staged(ctx: Context, rules: Rules, *, dry_run: bool) -> Online:
    if not expiring.any_rule(rules):
        return Online()
    total = Count()
    left: list[str] = []
    for branch in outdating.open_branches(ctx):
        done = expiring.expire_branch(ctx, rules, branch, dry_run=dry_run)
        total += Count(done.objects, done.size_bytes)
        if done.left:
            left.append(f"staged objects of branch {branch!r}: it has an unfinished commit, or was changed meanwhile")
    return Online(staged=total, left=left)


def _latest_view(ctx: Context, rules: Rules, *, dry_run: bool) -> Online:
    total, commits = Count(), 0
    left: list[str] = []
    known = Ranges()
    held = outdating.held_heads(ctx, rules)
    for branch in outdating.open_branches(ctx):
        for rule in latest_view(rules, branch, ctx.clock.now_ms()):
            done = outdating.remove_outdated(ctx, branch, rule, held, known, dry_run=dry_run)
            total += Count(done.objects, done.size_bytes)
            commits += done.commits
            if done.left:
                left.append(f"paths {rule.prefix}* of branch {branch!r}: {done.left}")
    return Online(latest_view=total, commits=commits, left=left)


def _own(ctx: Context) -> Rules:
    own = retaining.get(ctx)
    return own.rules if own is not None else Rules()
