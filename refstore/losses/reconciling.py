"""Settle a lake whose KV went back in time, so that deletion goes on.

    1. block      stop hard deletion in every repository, and let no deleter begin a pass
    2. put back   what the manifest has (`putting_back.py`)
    3. give up    what cannot be put back, if an operator accepts that
    4. wait       until the operations that began before have ended, as they may rest on what was lost
    5. settle     every repository, and put beyond the reaper what commits added; witness what the KV holds now, and
                  remove the witnesses that it does not hold
    6. unblock, then let hard deletion go on in every repository

After a crash anywhere the block is still there, or a breaker is still tripped, and the same is done again.
"""

from __future__ import annotations

from typing import Final

from refstore.context import Context
from refstore.core import keys
from refstore.core.batches import batched
from refstore.core.records import BreakerState, encode, maybe
from refstore.errors import Contention
from refstore.kv.base import ABSENT
from refstore.losses.fence import BREAKER_REASON, Fence
from refstore.losses.known import get_batched, lost_of_lake
from refstore.losses.lake_parts import LakeParts, NoWatcher, Watcher, fence_of, open_repositories, unique
from refstore.losses.putting_back import (
    NOT_ITS_OWN,
    PAGE,
    PutBack,
    Repair,
    claim,
    own_context,
    protect,
    write_name,
)
from refstore.losses.settling import settle
from refstore.losses.verifying import lost_in, others_answer
from refstore.versioning.manifest import CommitLanded, Manifest, RepositoryCreated, given_up

ATTEMPTS: Final = 16
NAP_SECONDS: Final = 5.0
NAMED_MAX: Final = 100
"""How many of the things that were put back the audit log names."""


def put_back(lake: LakeParts, *, dry_run: bool = False, watcher: Watcher | None = None) -> list[PutBack]:
    """Put back what the manifest has and the KV does not know, and return what became of it; block all deletion first.
    Raises AuditUnavailable, Corrupt, Unavailable.
    """
    shown = watcher or NoWatcher()
    if dry_run:
        return _put_back(lake, shown, dry_run=True)
    with lake.audit.change("kv.reconcile") as draft:
        for ctx in open_repositories(lake):
            _stop(ctx)
        _fence(lake).block()
        done = _put_back(lake, shown, dry_run=False)
        draft.after = {
            "put_back": len(done),
            "named": [f"{item.repository}: {item.what} {item.name}: {item.outcome}" for item in done[:NAMED_MAX]],
        }
    return done


def settle_lake(
    lake: LakeParts, *, accept: bool, clients_stopped: bool = False, watcher: Watcher | None = None
) -> dict[str, int]:
    """Settle every repository, and let deletion go on. Return what was done.

    `accept`: give up what cannot be put back; the caller has made sure that otherwise nothing is missing.
    `clients_stopped`: no operation that began before the KV went back is under way, so do not wait for any. Raises
    AuditUnavailable, Corrupt, Unavailable.
    """
    shown = watcher or NoWatcher()
    fence = _fence(lake)
    while not clients_stopped:
        began_ms = fence.block()
        _wait(lake, began_ms, shown)
        if fence.block() == began_ms:
            break  # else other servers answer by now
    fence.block()
    done: dict[str, int] = {}
    with lake.audit.change("kv.settle", after={"accepted": accept}) as draft:
        done["given_up"] = _give_up(lake) if accept else 0

        def settle_all() -> None:
            settled = 0
            for name, record in lake.all_repositories():
                shown.describe(f"settling {name}")
                ctx = lake.context(name, record)
                settle(ctx)
                _protect_commits(ctx, shown)
                settled += 1
            done["settled"] = settled

        done["witnesses_removed"] = fence.replace_lost(settle_all)
        fence.unblock()
        done["resumed"] = sum(_resume(lake.context(name, record)) for name, record in lake.all_repositories())
        draft.after = {"accepted": accept, **done}
    return done


def _protect_commits(ctx: Context, shown: Watcher) -> None:
    """Put what every commit added beyond the reaper again. A server may have lost that it was, after the commit was
    processed and its entry confirmed.
    """
    shown.describe(f"protecting the commits of {ctx.name}")
    entries = unique(ctx.manifest.all()).values()
    commits = [entry.commit for entry in entries if isinstance(entry, CommitLanded)]
    for page in batched(commits, PAGE):
        values = get_batched(ctx.kv, [keys.commit(ctx.repo, commit) for commit in page])
        protect(ctx, [commit for commit, value in zip(page, values, strict=True) if value is not ABSENT])
        shown.advance(len(page))


def _put_back(lake: LakeParts, shown: Watcher, *, dry_run: bool) -> list[PutBack]:
    done: list[PutBack] = []
    others = others_answer(lake)
    for item in lost_of_lake(lake.kv, lake.manifest, unique(lake.manifest.all()).values()):
        assert isinstance(item.entry, RepositoryCreated)  # noqa: S101  # lost_of_lake returns no others
        done += _put_back_repository(lake, item.entry, shown, dry_run=dry_run)
    for name, record in list(lake.all_repositories()):
        shown.describe(f"putting back what {name} lost")
        ctx = lake.context(name, record)
        repair = Repair(ctx, unique(ctx.manifest.all()), shown, dry_run=dry_run, protect=True)
        done += repair.run(commits_only=bool(record.closed_ms), others_answer=others)
    return done


def _put_back_repository(lake: LakeParts, entry: RepositoryCreated, shown: Watcher, *, dry_run: bool) -> list[PutBack]:
    """Put back a lost repository; its name comes last."""
    ctx = own_context(lake, entry)
    taken = lake.kv.get(keys.repository(entry.name))
    reason = "another repository has its name" if isinstance(taken, bytes) else ""
    if ctx is None:
        reason = NOT_ITS_OWN
    elif not reason and not dry_run:
        reason = claim(lake, entry)
    if reason or ctx is None:
        return [PutBack(entry.name, "repository", entry.name, f"left: {reason}")]
    done = Repair(ctx, unique(ctx.manifest.all()), shown, dry_run=dry_run, protect=True).run()
    if not dry_run:
        _stop(ctx)
        reason = write_name(lake, entry)
    outcome = f"left: {reason}" if reason else "put back"
    return [*done, PutBack(entry.name, "repository", entry.name, outcome)]


def _give_up(lake: LakeParts) -> int:
    """Write that what is still lost was given up, and confirm commits that cannot be read. Return how many there
    were.
    """
    given = 0
    for item in lost_of_lake(lake.kv, lake.manifest, unique(lake.manifest.all()).values()):
        lake.manifest.add(given_up(item.entry))
        given += 1
    others = others_answer(lake)
    for ctx in open_repositories(lake):
        for item in lost_in(ctx, unique(ctx.manifest.all()), others_answer=others):
            ctx.manifest.add(given_up(item.entry))
            given += 1
        given += _confirm_unreadable(ctx, ctx.manifest)
    return given


def _confirm_unreadable(ctx: Context, manifest: Manifest) -> int:
    """Confirm waiting commits whose additions cannot be read: no pass could ever put them beyond the reaper."""
    commits = {entry.commit: entry for entry in manifest.waiting() if isinstance(entry, CommitLanded)}
    unreadable = [commits[commit] for commit in protect(ctx, commits)]
    manifest.confirm(unreadable, ctx.ids.unique(ctx.clock.now_ms()))
    return len(unreadable)


def _wait(lake: LakeParts, began_ms: int, shown: Watcher) -> None:
    lake.durations.refresh()
    waits = lake.durations.waits
    longest = waits.operation_deadline_seconds + waits.io_timeout_seconds + 2 * waits.clock_skew_seconds
    while (left := began_ms / 1000 + longest - lake.clock.now_ms() / 1000) > 0:
        shown.describe(f"waiting {left:.0f} s for operations that began before")
        lake.clock.sleep(min(left, NAP_SECONDS))


def _stop(ctx: Context) -> None:
    """Stop hard deletion of a repository, unless it is stopped already: a pass may be under way."""
    key = keys.reaper_state(ctx.repo, "breaker")
    for _ in range(ATTEMPTS):
        raw = ctx.kv.get(key)
        state = maybe(raw, BreakerState)
        if state is not None and state.tripped_ms:
            return
        now = ctx.clock.now_ms()
        if ctx.kv.set_if(key, raw, encode(BreakerState(ctx.ids.unique(now), max(1, now), BREAKER_REASON))):
            return
    raise Contention(f"others kept changing the breaker of {ctx.name!r}; run the same again")


def _resume(ctx: Context) -> bool:
    """Let hard deletion go on where it stood still because the KV went back. Return whether it did."""
    key = keys.reaper_state(ctx.repo, "breaker")
    for _ in range(ATTEMPTS):
        raw = ctx.kv.get(key)
        state = maybe(raw, BreakerState)
        if state is None or not state.tripped_ms or state.reason != BREAKER_REASON:
            return False
        if ctx.kv.set_if(key, raw, encode(BreakerState(ctx.ids.unique(ctx.clock.now_ms())))):
            return True
    raise Contention(f"others kept changing the breaker of {ctx.name!r}; run the same again")


def _fence(lake: LakeParts) -> Fence:
    return fence_of(lake, f"reconcile-{lake.ids.unique(lake.clock.now_ms())}")
