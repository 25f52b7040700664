"""Each rule of `docs/protocol.md`, dropped from the real code: the explorer must see what is lost then.

A mutant names the scenario that catches it. That the scenarios hold without it is what `test_scenarios.py` shows.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.loss_mutants import lost_writes
from tests.simulation.multipart_mutants import uploads_in_parts
from tests.simulation.planting import Edit, Mutant
from tests.simulation.purge_mutants import purged
from tests.simulation.race_mutants import races
from tests.simulation.transaction_mutants import transactions

PLACING = "refstore.operations.stage_entries"
REFERENCES = "refstore.versioning.references:References"
STATES = "refstore.versioning.address_state"
UNNAMED = "refstore_reaper.scrub"


def mutants() -> Iterator[Mutant]:
    yield Mutant(
        name="the blob before its reference",
        rule="1",
        edits=(
            Edit("refstore.operations.upload:_reserve", "            ctx.references.create(reserved)\n", ""),
            Edit(
                "refstore.operations.upload:_upload",
                "    placements = [item",
                "    ctx.references.create(reserved)\n    placements = [item",
            ),
            Edit("refstore.operations.upload:_recheck_references", ">= ctx.safety.recheck_after_seconds", "< 0"),
        ),
        caught_by="upload | reset | reap",
    )
    yield Mutant(
        name="the entry before its reference",
        rule="1",
        edits=(
            Edit("refstore.operations.upload:_reserve", "            ctx.references.create(reserved)\n", ""),
            Edit("refstore.operations.upload:_recheck_references", ">= ctx.safety.recheck_after_seconds", "< 0"),
            Edit(
                "refstore.operations.upload:_upload",
                "    refused = place_each(ctx, branch, token, placements)\n",
                "    refused = place_each(ctx, branch, token, placements)\n    ctx.references.create(reserved)\n",
            ),
        ),
        caught_by="overwrite | copy p->feat | hard delete",
    )
    yield Mutant(
        name="the token is not looked at behind the entry",
        rule="2",
        edits=(Edit(f"{PLACING}:place", "is_current = open_branch.record.token == token", "is_current = True"),),
        caught_by="overwrite | commit+reset | reap",
    )
    yield Mutant(
        name="the old reference is dropped when the token moved",
        rule="2",
        edits=(
            Edit(
                f"{PLACING}:place",
                "        token = open_branch.record.token\n        following",
                "        stale = [Release(i.entry.address, Reference(token, i.path, i.entry.reference_id), '', i.entry)"
                " for i in placements if i.entry is not None and i.is_referenced]\n"
                "        references.release(stale)\n"
                "        token = open_branch.record.token\n        following",
            ),
        ),
        caught_by="late write | commit; reset | reap | hard delete",
    )
    yield Mutant(
        name="an advance does not retire what it commits",
        rule="3",
        edits=(
            Edit(
                "refstore.versioning.branches:Branches.advance",
                "retired = (*record.retired_tokens, *(RetiredToken(token, fate) for token in sealed))",
                "retired = record.retired_tokens",
            ),
        ),
        caught_by="commit | scrub | reap",
    )
    yield Mutant(
        name="a commit is marked before it is advanced to",
        rule="3",
        edits=(
            Edit(
                "refstore.operations.commit:commit",
                "        if _advance_branch(",
                "        ctx.kv.set(keys.committed_marker(ctx.repo, made.id), "
                "encode(__import__('refstore.records.branch_records', fromlist=['']).CommittedTokens(sealed, 0)))\n"
                "        if _advance_branch(",
            ),
        ),
        caught_by="markers: commit | reset",
    )
    yield Mutant(
        name="a missing reference key counts as committed",
        rule="4",
        edits=(
            Edit(
                "refstore.operations.copy:find_committed_sources",
                "if path in current and current[path] == before[path]",
                "if True",
            ),
        ),
        caught_by="copy main->feat | reset main | reap",
    )
    yield Mutant(
        name="a copy goes on where the list is empty",
        rule="5",
        edits=(Edit("refstore.operations.copy:_copy_once", "case None:", "case None | AddOutcome.EMPTY:"),),
        caught_by="overwrite | copy p->feat | hard delete",
    )
    yield Mutant(
        name="an overwrite releases without looking at the token",
        rule="6",
        edits=(
            Edit(
                f"{PLACING}:place",
                "            open_branch = branches.parse_open(branch, results[-1])\n            is_current",
                "            references.release(_releases_of_overwritten(token, placements, old))\n"
                "            open_branch = branches.parse_open(branch, results[-1])\n            is_current",
            ),
        ),
        caught_by="overwrite | commit | reap",
    )
    yield Mutant(
        name="a reset of a path releases without looking at the token",
        rule="6",
        edits=(Edit("refstore.operations.delete:remove_staged", ".token != token:", ".token == '':"),),
        caught_by="reset path | commit | reap",
    )
    yield Mutant(
        name="tokens are handed over before what was added is forgotten",
        rule="7",
        edits=(
            Edit(
                "refstore.operations.commit_references:process_committed",
                "    if not delete_added_references(",
                "    ctx.markers.set_deleted(marker.tokens, f'committed {commit}')\n"
                "    if not delete_added_references(",
            ),
        ),
        caught_by="markers: commit | reap | reap",
    )
    yield Mutant(
        name="a commit's tokens are only deleted",
        rule="7",
        edits=(
            Edit(
                "refstore.operations.commit_references:process_committed",
                "    if not delete_added_references(ctx, commit, go_on=go_on, page=page):",
                "    if False:",
            ),
        ),
        caught_by="overwrite | commit | reap",
    )
    yield Mutant(
        name="an empty list is deleted as it was read",
        rule="8",
        edits=(
            Edit(
                "refstore_reaper.deletion:mark_deleting",
                "    marked += [item for item, ok in zip(attempts, won, strict=True) if ok]",
                "    marked += attempts",
            ),
        ),
        caught_by="restore | hard delete | reset; reap",
    )
    yield Mutant(
        name="an issued address goes when it has expired by the reaper's clock",
        rule="8",
        edits=(
            Edit(
                f"{STATES}:may_delete_at_ms",
                "state.expires_ms + int(delays.clock_skew_seconds * 1000)",
                "state.expires_ms",
            ),
        ),
        caught_by="times: link | hard delete | scrub",
    )
    yield Mutant(
        name="hard deletion goes by a grace window of its own",
        rule="8",
        edits=(
            Edit(
                "refstore_reaper.deletion:mark_deleting",
                "begin_deletion(record, now, delays)",
                "begin_deletion(record, now, delays._replace(grace_seconds=delays.grace_seconds / 4))",
            ),
        ),
        caught_by="times: restore | hard delete | scrub",
    )
    yield Mutant(
        name="who processes a token deletes as if there were no grace window",
        rule="8",
        edits=(
            Edit("refstore.versioning.references:_ReleaseProgress.state_after", "self._now_ms", "0"),
            Edit("refstore.versioning.references:_ReleaseProgress.state_after_last", "self._now_ms", "0"),
        ),
        caught_by="times: restore | reset; reap",
    )
    yield Mutant(
        name="deleting is taken back",
        rule="8",
        edits=(
            Edit(f"{STATES}:add_reference", "case Emptied():", "case Emptied() | Deleting():"),
            Edit(f"{STATES}:add_reference", "case Issued() | Deleting():", "case Issued():"),
        ),
        caught_by="restore | hard delete | reset; reap",
    )
    yield Mutant(
        name="the scrubber reads the markers before the branch",
        rule="9",
        edits=(
            Edit(
                "refstore_reaper.scrub:dead_tokens",
                "    for raw in ctx.kv.get_many",
                "    for _, marker in markers.scan_committed():\n        left -= set(marker.tokens)\n"
                "    unmarked = sorted(left)\n"
                "    seen = ctx.kv.get_many([keys.deleted_token(ctx.repo, token) for token in unmarked])\n"
                "    left = {token for token, value in zip(unmarked, seen, strict=True) if value is ABSENT}\n"
                "    for raw in ctx.kv.get_many",
            ),
            Edit(
                "refstore_reaper.scrub:dead_tokens",
                "    for _, marker in markers.scan_committed():\n        left -= set(marker.tokens)\n    candidates",
                "    return left\n    candidates",
            ),
        ),
        caught_by="commit | scrub | reap",
    )
    yield Mutant(
        name="the scrubber asks for the deleted marker only",
        rule="9",
        edits=(Edit("refstore_reaper.scrub:dead_tokens", "        left -= set(marker.tokens)\n", "        pass\n"),),
        caught_by="commit | scrub | reap",
    )
    yield Mutant(
        name="a link that was refused goes on all the same",
        rule="10",
        edits=(
            Edit(
                "refstore.operations.upload:_link",
                "zip(placements, linked_flags, strict=True) if ok]",
                "zip(placements, linked_flags, strict=True)]",
            ),
        ),
        caught_by="link | overwrite | link (replay)",
    )
    yield Mutant(
        name="a link does not ask what it replaces",
        rule="10",
        edits=(
            Edit(
                f"{STATES}:link",
                "if isinstance(state, Issued) and state.token_id == token_id and state.expires_ms > now_ms:",
                "if True:",
            ),
        ),
        caught_by="link | link (replay) | commit+reap",
    )
    yield Mutant(
        name="a link overwrites what has changed since it was read",
        rule="10",
        edits=(
            Edit(
                f"{REFERENCES}.link",
                "self._kv.set_if_many(writes)",
                "[self._kv.set(write.key, write.value) is None for write in writes]",
            ),
        ),
        caught_by="link | link (replay) | commit+reap",
    )
    yield Mutant(
        name="a copy is linked although its issued address was taken before",
        rule="10",
        edits=(Edit(f"{REFERENCES}.replace_issued", "return taken", "return [True] * len(items)"),),
        caught_by="link of a copy | link (replay) | commit+reap",
    )
    yield Mutant(
        name="an upload that outlived its token removes all that it wrote",
        rule="11",
        edits=(Edit("refstore.operations.upload:_withdraw", " if isinstance(record, Deleting)]", "]"),),
        caught_by="upload | reset; reap | scrub | restore what it wrote",
    )
    yield Mutant(
        name="an upload that outlived its token removes what has no reference key",
        rule="11",
        edits=(
            Edit(
                "refstore.operations.upload:_withdraw",
                " if isinstance(record, Deleting)]",
                " if record is None or isinstance(record, Deleting)]",
            ),
        ),
        caught_by="upload | reset; reap; scrub; restore what it wrote; commit; reap",
    )
    yield Mutant(
        name="a reader trusts what it read first",
        rule="12",
        edits=(
            Edit(
                "refstore.operations.read:_resolve_many",
                "if is_same_view(open_branch.record, again.record):",
                "if True:",
            ),
        ),
        caught_by="read p | commit; reap",
    )
    yield Mutant(
        name="a listing trusts what it read first",
        rule="12",
        edits=(
            Edit(
                "refstore.operations.read:read_consistent",
                "if is_same_view(open_branch.record, again.record):",
                "if True:",
            ),
        ),
        caught_by="list | commit; reap",
    )
    yield from marks()
    yield from identities()
    yield from lost_replies()
    yield from registry_and_hints()
    yield from purged()
    yield from uploads_in_parts()
    yield from lost_writes()
    yield from races()
    yield from transactions()


def marks() -> Iterator[Mutant]:
    """Rules 13 and 14: nothing is copied from a marked commit, and no branch made at it; the order of the look; pins;
    the re-check.
    """
    yield Mutant(
        name="a copy does not look at the mark",
        rule="13",
        edits=(
            Edit(
                "refstore.operations.copy:_copy_once",
                "refs.check_mark(ctx, source.commit, [path for path, _ in pairs])",
                "pass",
            ),
            Edit(
                f"{PLACING}:_undo_if_marked",
                "if isinstance(mark, bytes) and decode(mark, StoredMark).covers(paths):",
                "if False:",
            ),
        ),
        caught_by="gc | copy from an expired commit | commit+reap",
    )
    yield Mutant(
        name="a copy from a branch does not look at the mark of its head",
        rule="13",
        edits=(
            Edit(
                "refstore.operations.copy:_copy_once",
                "            refs.check_mark(ctx, commit, paths)",
                "            pass",
            ),
            Edit(
                f"{PLACING}:_undo_if_marked",
                "if isinstance(mark, bytes) and decode(mark, StoredMark).covers(paths):",
                "if False:",
            ),
        ),
        caught_by="gc | branch at an expired commit (crash) | copy from it; delete it",
    )
    yield Mutant(
        name="a branch is made without a look at the mark",
        rule="13",
        edits=(
            Edit(
                "refstore.operations.branch:create_branch",
                "    refs.check_mark(ctx, ref.commit)\n    branches",
                "    branches",
            ),
            Edit(
                "refstore.operations.branch:create_branch",
                "        refs.check_mark(ctx, ref.commit)\n    except",
                "        pass\n    except",
            ),
        ),
        caught_by="gc | branch at an expired commit",
    )
    yield Mutant(
        name="a mark on a part of a commit counts for no path of it",
        rule="13",
        edits=(
            Edit(
                "refstore.records.mark_records:StoredMark.covers",
                "any(path.startswith(self.prefixes) for path in paths)",
                "False",
            ),
        ),
        caught_by="gc of a part | copy of the part | copy of the rest",
    )
    yield Mutant(
        name="a commit is unmarked as complete although something of what it names goes",
        rule="13",
        edits=(Edit("tests.kit.collecting:complete", ".isdisjoint(going)", " != set()"),),
        caught_by="gc | copy from an expired commit | commit+reap",
    )
    yield Mutant(
        name="what an earlier run found complete is complete for a later one",
        rule="13",
        edits=(
            Edit(
                "tests.kit.collecting:complete",
                "if _entries_of",
                "if marks.commits.read_nothing_to_delete([commit])[0] or _entries_of",
            ),
        ),
        caught_by="complete; mark and sweep with what held its data | copy from it",
    )
    yield Mutant(
        name="what a sweep unmarks, because nothing of it goes, leaves the run's list",
        rule="14",
        edits=(
            Edit(
                "refstore.gc_marks.sweeps:Sweeps.unmark_untouched",
                "count = self._commits.unmark_run(run.mark_id, is_untouched)",
                "count = len(self._commits.unmark_nothing_to_delete(run.mark_id, commits))",
            ),
        ),
        caught_by="sweep of the mark before | unmark what a sweep leaves; sweep | copy from it",
    )
    yield Mutant(
        name="nobody waits for operations that began before the mark",
        rule="13",
        edits=(
            Edit(
                "refstore.gc_marks.mark_run:barrier_seconds",
                "return waits.operation_deadline_seconds +",
                "return 0.0 *",
            ),
        ),
        caught_by="gc | branch at an expired commit",
    )
    yield Mutant(
        name="the objects are listed behind the look",
        rule="13",
        edits=(
            Edit(
                "tests.kit.collecting:may_go",
                "    named = what_stays(ctx, Marks(ctx).mark_run.scan_live(run), keeps)\n",
                "",
            ),
            Edit(
                "tests.kit.collecting:may_go",
                "    listing = [info",
                "    named = what_stays(ctx, Marks(ctx).mark_run.scan_live(run), keeps)\n    listing = [info",
            ),
        ),
        caught_by="gc | upload; commit; reap",
    )
    yield Mutant(
        name="commits are read before references and staging",
        rule="13",
        edits=(
            Edit(
                "refstore.gc_marks.live_set:scan_live_set",
                "    yield from _scan_heads(ctx, page)\n    yield from _scan_commits(ctx, run, page)\n",
                "",
            ),
            Edit(
                "refstore.gc_marks.live_set:scan_live_set",
                "    yield from _scan_references(ctx, page)\n",
                "    yield from _scan_heads(ctx, page)\n    yield from _scan_commits(ctx, run, page)\n    yield from "
                "_scan_references(ctx, page)\n",
            ),
        ),
        caught_by="gc | upload; commit; reap",
    )
    yield Mutant(
        name="pins are read before staging areas",
        rule="13",
        edits=(
            Edit("refstore.gc_marks.live_set:scan_live_set", "    yield from _scan_pins(ctx, run, page)\n", ""),
            Edit(
                "refstore.gc_marks.live_set:scan_live_set",
                "    yield from _scan_staged(ctx, page)\n",
                "    yield from _scan_pins(ctx, run, page)\n    yield from _scan_staged(ctx, page)\n",
            ),
        ),
        caught_by="gc | move of a reference-less staged entry",
    )
    yield Mutant(
        name="a copy of what has no reference is not pinned",
        rule="13",
        edits=(Edit("refstore.operations.copy:find_committed_sources", "    gc_marks.pin(ctx,", "    (ctx,"),),
        caught_by="gc | move of a reference-less staged entry",
    )
    yield Mutant(
        name="only what heads reach is kept",
        rule="13",
        edits=(Edit("refstore.gc_marks.live_set:scan_live_set", "    yield from _scan_commits(ctx, run, page)\n", ""),),
        caught_by="gc | copy from an unmarked commit | delete its branch",
    )
    yield Mutant(
        name="the look disregards what another run marks meanwhile",
        rule="13",
        edits=(
            Edit(
                "refstore.gc_marks.live_set:_expired_prefixes",
                "if mark.sweeping_ms or mark.mark_id == run.mark_id or mark.mark_id in run.record.disregarded_marks:",
                "if True:",
            ),
        ),
        caught_by="taken over: mark | mark and sweep of nothing | copy from it",
    )
    yield Mutant(
        name="a run that was taken over stands all the same",
        rule="13",
        edits=(
            Edit("refstore.gc_marks.mark_run:MarkRun.scan_live", "    self._runs.check_flag(run.mark_id)\n", ""),
            Edit(
                "refstore.gc_marks.mark_run:MarkRun.unmark_nothing_to_delete",
                "    self._runs.check_flag(run.mark_id)\n",
                "",
            ),
            Edit("refstore.gc_marks.mark_run:MarkRun.finish", "    self._runs.check_flag(run.mark_id)\n", ""),
            Edit(
                "refstore.gc_marks.offline_runs:OfflineRuns.abandon",
                "    for _ in range(ATTEMPTS):\n",
                "    if unfinished_only:\n        return False\n    for _ in range(ATTEMPTS):\n",
            ),
        ),
        caught_by="taken over: mark and sweep | mark of nothing | move of a reference-less staged entry",
    )
    yield Mutant(
        name="a run that was taken over drops everybody's pins",
        rule="13",
        edits=(
            Edit(
                "refstore.gc_marks.offline_runs:OfflineRuns.drop_late_pins",
                "if record is not None and record.state != RunState.MARKING:",
                "if True:",
            ),
        ),
        caught_by="taken over: drop pins | mark and sweep | move of a reference-less staged entry",
    )
    yield Mutant(
        name="the sweep does not look at the marks again",
        rule="13",
        edits=(
            Edit(
                "refstore.gc_marks.sweeps:Sweeps._others",
                "for mark_id in _disregarded_marks(run):",
                "for mark_id in ():",
            ),
        ),
        caught_by="gc | unmark; copy from it",
    )
    yield Mutant(
        name="the sweep looks at its own marks only",
        rule="13",
        edits=(
            Edit(
                "refstore.gc_marks.sweeps:Sweeps._others",
                "for mark_id in _disregarded_marks(run):",
                "for mark_id in (run.mark_id,):",
            ),
        ),
        caught_by="mark and sweep | unmark under the mark before; copy from it",
    )
    yield Mutant(
        name="the sweep takes any mark for its own",
        rule="13",
        edits=(
            Edit(
                "refstore.gc_marks.commit_marks:RunCommit.is_swept_by",
                "return self.mark is not None and self.mark.mark_id in mark_ids and bool(self.mark.sweeping_ms)",
                "return self.mark is not None",
            ),
        ),
        caught_by="sweep | unmark; copy from it | mark by another run",
    )
    yield Mutant(
        name="what is being swept is unmarked",
        rule="14",
        edits=(Edit("refstore.gc_marks.commit_marks:CommitMarks.check_pending", "if mark.sweeping_ms:", "if False:"),),
        caught_by="gc | unmark; copy from it",
    )
    yield Mutant(
        name="whether a commit landed is asked before its branch is read",
        rule="13",
        edits=(
            Edit(
                "refstore.gc_marks.commit_marks:CommitMarks.given_up",
                "and not self._may_land(tokens)\n                and not markers.has_landed(name)\n",
                "and not markers.has_landed(name)\n                and not self._may_land(tokens)\n",
            ),
        ),
        caught_by="gc of what never landed | commit; overwrite; commit",
    )


def identities() -> Iterator[Mutant]:
    yield Mutant(
        name="a copy's reference has no id of its own",
        rule="6",
        edits=(Edit("refstore.operations.copy:make_copy", "reference_id=ctx.ids.new_id(now_ms)", "reference_id=''"),),
        caught_by="copy q->p; delete q | overwrite p | hard delete",
    )
    yield Mutant(
        name="a commit that never landed counts",
        rule="a commit's landing",
        edits=(
            Edit(
                "refstore.operations.refs:_resolve_base",
                "[commit for commit in found_ids if markers.has_landed(commit)]",
                "found_ids",
            ),
        ),
        caught_by="aborted commit | branch at it | reset; reap",
    )
    yield Mutant(
        name="a merge takes what was staged meanwhile",
        rule="a merge is of commits",
        edits=(
            Edit(
                "refstore.operations.commit:_commit_tree",
                "if any(not staging.is_empty(token) for token in record.sealed_tokens):",
                "if False:",
            ),
        ),
        caught_by="merge feat->main | upload main | reap",
    )
    yield Mutant(
        name="a move deletes whatever stands at its source",
        rule="a move's meaning",
        edits=(
            Edit(
                "refstore.operations.move:move_many",
                "errors = delete_sources(",
                "from refstore.operations import delete\n"
                "        errors = (lambda ctx, branch, copied: delete.delete_many(ctx, branch, list(copied)) or {})(",
            ),
        ),
        caught_by="move p->q | upload p | hard delete",
    )
    yield Mutant(
        name="a branch made again is deleted in the old one's place",
        rule="a branch's identity",
        edits=(
            Edit("refstore.operations.branch:_close_branch", "if open_branch.record.id != branch_id:", "if False:"),
        ),
        caught_by="lost reply: delete branch | create it again | reap",
    )
    yield Mutant(
        name="a batch looks only at what became of its first entry",
        rule="2",
        edits=(
            Edit(
                f"{PLACING}:place",
                "        placements = _drop_placed(placements, unlisted)",
                "        placements = _drop_placed(placements[:1], unlisted)",
            ),
        ),
        caught_by="batch: overwrite p and q | commit | reap",
    )


def lost_replies() -> Iterator[Mutant]:
    yield Mutant(
        name="an exchange whose reply was lost is made again",
        rule="a lost reply",
        edits=(Edit("refstore.kv.retries:_is_unknown", "isinstance(op, Exchange) or ", ""),),
        caught_by="lost reply: overwrite | overwrite | hard delete",
    )
    yield Mutant(
        name="what may have been created is created again",
        rule="a lost reply",
        edits=(
            Edit(
                "refstore.kv.retries:RetryingKV._repeat_run",
                "if any(op.expected is ABSENT for op in set_ifs):",
                "if False:",
            ),
        ),
        caught_by="lost reply: issue; link | expire | expire",
    )
    yield Mutant(
        name="every try to seal uses the same token",
        rule="a lost reply",
        edits=(
            Edit(
                "refstore.versioning.branches:Branches.seal",
                "    for _ in range(ATTEMPTS):",
                "    once = new_token()\n    for _ in range(ATTEMPTS):",
            ),
            Edit("refstore.versioning.branches:Branches.seal", "token=new_token()", "token=once"),
        ),
        caught_by="lost reply: commit | commit; upload; reap",
    )


def registry_and_hints() -> Iterator[Mutant]:
    yield Mutant(
        name="a token is current before it is registered",
        rule="9",
        edits=(
            Edit(
                "refstore.versioning.staging:Staging.new_token",
                "    self._kv.set(keys.token(self._repo, token), encode(TokenRecord(created_ms=clock.now_ms())))\n",
                "",
            ),
        ),
        caught_by="registry: reset (crash) | scrub | upload",
    )
    yield Mutant(
        name="a token is forgotten however young it is",
        rule="9",
        edits=(
            Edit(
                "refstore_reaper.scrub:scrub_tokens",
                "if max(record.created_ms, record.processed_ms) < before",
                "if True",
            ),
        ),
        caught_by="registry: reset (crash) | scrub | upload",
    )
    yield Mutant(
        name="a reference is scrubbed however young it is",
        rule="9",
        edits=(Edit("refstore_reaper.scrub:old_references", "< before}", "< before or True}"),),
        caught_by="clock past grace: upload | reset; process; scrub; clock; hard delete",
    )
    yield Mutant(
        name="references of a live token stay until the token is processed",
        rule="9",
        edits=(Edit(f"{UNNAMED}:release_unnamed", "            if not unnamed:", "            if True:"),),
        caught_by="unnamed: upload (crash) | scrub",
    )
    yield Mutant(
        name="a reference is released however young it is",
        rule="9",
        edits=(Edit(f"{UNNAMED}:release_unnamed", "before = ctx.clock", "before = (1 << 62) + ctx.clock"),),
        caught_by="unnamed: upload (crash) | scrub",
    )
    yield Mutant(
        name="the branch is read before the entries",
        rule="9",
        edits=(
            Edit(
                f"{UNNAMED}:_find_unnamed",
                "    pairs = [",
                "    early = _current_tokens(ctx, {branch_of(ref.token) for refs in old.values() for ref in refs})\n"
                "    pairs = [",
            ),
            Edit(
                f"{UNNAMED}:_find_unnamed",
                "_current_tokens(ctx, {branch_of(ref.token) for _, ref in left})",
                "early",
            ),
        ),
        caught_by="unnamed: overwrite | scrub | commit",
    )
    yield Mutant(
        name="references of sealed tokens are released",
        rule="9",
        edits=(
            Edit(
                f"{UNNAMED}:_current_tokens",
                "{record.token for record in records if isinstance(record, StoredBranch)}",
                "{token for record in records if isinstance(record, StoredBranch) for token in record.live_tokens}",
            ),
        ),
        caught_by="unnamed: overwrite | scrub | commit",
    )
    yield Mutant(
        name="the scrubber leaves no hints",
        rule="9",
        edits=(Edit("refstore_reaper.scrub:_write_missing_hints", "ctx.repo, missing)", "ctx.repo, [])"),),
        caught_by="hints: overwrite (crash) | reap | scrub",
    )
