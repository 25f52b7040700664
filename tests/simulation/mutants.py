"""Each rule of `docs/protocol.md`, dropped from the real code: the explorer must see what is lost then.

A mutant names the scenario that catches it. That the scenarios hold without it is what `test_scenarios.py` shows.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.planting import Edit, Mutant

PLACING = "refstore.flows.placing"
REFERENCES = "refstore.references:References"


def mutants() -> Iterator[Mutant]:
    yield Mutant(
        name="the blob before its reference",
        rule="1",
        edits=(
            Edit("refstore.flows.uploading:_reserve", "            references.create(held)\n", ""),
            Edit(
                "refstore.flows.uploading:upload_many",
                "    placements = [\n",
                "    references.create(held)\n    placements = [\n",
            ),
            Edit("refstore.flows.uploading:upload_many", ">= ctx.safety.recheck_after_seconds", "< 0"),
        ),
        caught_by="upload | reset | reap",
    )
    yield Mutant(
        name="the entry before its reference",
        rule="1",
        edits=(
            Edit("refstore.flows.uploading:_reserve", "            references.create(held)\n", ""),
            Edit("refstore.flows.uploading:upload_many", ">= ctx.safety.recheck_after_seconds", "< 0"),
            Edit(
                "refstore.flows.uploading:upload_many",
                "        place(ctx, branch, token, placements, on_empty=True)\n",
                "        place(ctx, branch, token, placements, on_empty=True)\n        references.create(held)\n",
            ),
        ),
        caught_by="overwrite | copy p->feat | hard delete",
    )
    yield Mutant(
        name="the token is not looked at behind the entry",
        rule="2",
        edits=(Edit(f"{PLACING}:place", "if seen.record.token == token:", "if True:"),),
        caught_by="overwrite | commit+reset | reap",
    )
    yield Mutant(
        name="the old reference is dropped when the token moved",
        rule="2",
        edits=(
            Edit(
                f"{PLACING}:place",
                "        token = seen.record.token\n        following",
                "        stale = [Release(i.entry.address, Reference(token, i.path, i.entry.reference_id), '', i.entry)"
                " for i in placements if i.entry is not None and i.referenced]\n"
                "        references.release(stale, grace_seconds=ctx.grace_seconds)\n"
                "        token = seen.record.token\n        following",
            ),
        ),
        caught_by="late write | commit; reset | reap | hard delete",
    )
    yield Mutant(
        name="an advance does not retire what it commits",
        rule="3",
        edits=(
            Edit(
                "refstore.branches:Branches.advance",
                "retired = (*record.retired, *(Retired(token, fate) for token in sealed))",
                "retired = record.retired",
            ),
        ),
        caught_by="commit | scrub | reap",
    )
    yield Mutant(
        name="a commit is marked before it is advanced to",
        rule="3",
        edits=(
            Edit(
                "refstore.flows.committing:commit",
                "        if _advance(",
                "        ctx.kv.set(keys.committed(ctx.repo, new), encode(__import__('refstore').records.CommittedTokens(sealed, 0)))\n"
                "        if _advance(",
            ),
        ),
        caught_by="markers: commit | reset",
    )
    yield Mutant(
        name="a missing reference key counts as committed",
        rule="4",
        edits=(Edit("refstore.flows.copying:_committed_after_all", "if path in again and again[path] == before[path]", "if True"),),
        caught_by="copy main->feat | reset main | reap",
    )
    yield Mutant(
        name="a copy goes on where the list is empty",
        rule="5",
        edits=(Edit("refstore.flows.copying:_attempt", "case None:", "case None | Hold.EMPTY:"),),
        caught_by="overwrite | copy p->feat | hard delete",
    )
    yield Mutant(
        name="an overwrite releases without looking at the token",
        rule="6",
        edits=(
            Edit(
                f"{PLACING}:place",
                "            seen = branches.seen(branch, results[-1])\n            if",
                "            references.release(_overwritten(token, placements, old), grace_seconds=ctx.grace_seconds)\n"
                "            seen = branches.seen(branch, results[-1])\n            if",
            ),
        ),
        caught_by="overwrite | commit | reap",
    )
    yield Mutant(
        name="a reset of a path releases without looking at the token",
        rule="6",
        edits=(Edit("refstore.flows.removing:_reset_batch", ".token != token:", ".token == '':"),),
        caught_by="reset path | commit | reap",
    )
    yield Mutant(
        name="tokens are handed over before what was added is forgotten",
        rule="7",
        edits=(
            Edit(
                "reaper.processing:process_committed",
                "    count = 0\n",
                "    count = 0\n    markers.set_deleted(marker.tokens, f'committed {commit_id}')\n",
            ),
        ),
        caught_by="markers: commit | reap | reap",
    )
    yield Mutant(
        name="a commit's tokens are only deleted",
        rule="7",
        edits=(Edit("reaper.processing:process_committed", "    if commit.added:", "    if not commit.added:"),),
        caught_by="overwrite | commit | reap",
    )
    yield Mutant(
        name="an empty list is deleted as it was read",
        rule="8",
        edits=(
            Edit(
                "reaper.deletion:condemn",
                "    doomed += [item for item, ok in zip(asked, won, strict=True) if ok]",
                "    doomed += asked",
            ),
        ),
        caught_by="restore | hard delete | reset; reap",
    )
    yield Mutant(
        name="deleting is taken back",
        rule="8",
        edits=(
            Edit(f"{REFERENCES}.hold", "                case Emptied():\n", "                case Emptied() | Deleting():\n"),
            Edit(f"{REFERENCES}.hold", "                case Issued() | Deleting():\n", "                case Issued():\n"),
        ),
        caught_by="restore | hard delete | reset; reap",
    )
    yield Mutant(
        name="the scrubber reads the markers before the branch",
        rule="9",
        edits=(
            Edit(
                "reaper.scrub:dead_tokens",
                "    for raw in ctx.kv.get_many",
                "    for _, marker in markers.committed():\n        left -= set(marker.tokens)\n"
                "    unmarked = sorted(left)\n"
                "    seen = ctx.kv.get_many([keys.deleted_token(ctx.repo, token) for token in unmarked])\n"
                "    left = {token for token, value in zip(unmarked, seen, strict=True) if value is ABSENT}\n"
                "    for raw in ctx.kv.get_many",
            ),
            Edit(
                "reaper.scrub:dead_tokens",
                "    for _, marker in markers.committed():\n        left -= set(marker.tokens)\n    candidates",
                "    return left\n    candidates",
            ),
        ),
        caught_by="commit | scrub | reap",
    )
    yield Mutant(
        name="the scrubber asks for the deleted marker only",
        rule="9",
        edits=(Edit("reaper.scrub:dead_tokens", "        left -= set(marker.tokens)\n", "        pass\n"),),
        caught_by="commit | scrub | reap",
    )
    yield Mutant(
        name="a link does not ask what it replaces",
        rule="10",
        edits=(
            Edit(
                f"{REFERENCES}.link",
                "if isinstance(record, Issued) and record.token_id == token_id and record.expires_ms > now:",
                "if True:",
            ),
        ),
        caught_by="link | link (replay) | commit+reap",
    )
    yield Mutant(
        name="a long upload does not re-check its reference",
        rule="11",
        edits=(Edit("refstore.flows.uploading:upload_many", ">= ctx.safety.recheck_after_seconds", "< 0"),),
        caught_by="long upload | reset; reap | scrub",
    )
    yield Mutant(
        name="a reader trusts what it read first",
        rule="12",
        edits=(Edit("refstore.flows.reading:resolve_many", "if _same(seen.record, again.record):", "if True:"),),
        caught_by="read p | commit; reap",
    )
    yield Mutant(
        name="a listing trusts what it read first",
        rule="12",
        edits=(Edit("refstore.flows.reading:while_still", "if _same(seen.record, again.record):", "if True:"),),
        caught_by="list | commit; reap",
    )
    yield from marks()
    yield from identities()
    yield from lost_replies()
    yield from registry_and_hints()


def marks() -> Iterator[Mutant]:
    """Rule 13: nothing is copied from a marked commit, and no branch made at it; looked at before and again behind the write."""
    yield Mutant(
        name="a copy does not look at the mark",
        rule="13",
        edits=(
            Edit("refstore.flows.copying:_attempt", "refs.check_mark(ctx, source.commit)", "pass"),
            Edit(f"{PLACING}:_take_back_if_marked", "if isinstance(mark, bytes):", "if False:"),
        ),
        caught_by="gc | copy from an expired commit | commit+reap",
    )
    yield Mutant(
        name="a branch is made without a look at the mark",
        rule="13",
        edits=(
            Edit("refstore.flows.branching:create", "    refs.check_mark(ctx, ref.commit)\n    branches", "    branches"),
            Edit("refstore.flows.branching:create", "        refs.check_mark(ctx, ref.commit)\n    except", "        pass\n    except"),
        ),
        caught_by="gc | branch at an expired commit",
    )


def identities() -> Iterator[Mutant]:
    yield Mutant(
        name="a copy's reference has no id of its own",
        rule="6",
        edits=(Edit("refstore.flows.copying:_copied", "reference_id=ctx.ids.unique(now_ms)", "reference_id=''"),),
        caught_by="copy q->p; delete q | overwrite p | hard delete",
    )
    yield Mutant(
        name="a commit that never landed counts",
        rule="a commit's landing",
        edits=(Edit("refstore.flows.refs:_base", "[commit for commit in found_ids if markers.landed(commit)]", "found_ids"),),
        caught_by="aborted commit | branch at it | reset; reap",
    )
    yield Mutant(
        name="a merge takes what was staged meanwhile",
        rule="a merge is of commits",
        edits=(
            Edit(
                "refstore.flows.committing:_combine",
                "if any(not staging.is_empty(token) for token in record.sealed):",
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
                "refstore.flows.copying:move_many",
                "    delete_copied(ctx, branch, moved)",
                "    __import__('refstore.flows.removing').flows.removing.delete_many(ctx, branch, list(moved))",
            ),
        ),
        caught_by="move p->q | upload p | hard delete",
    )
    yield Mutant(
        name="a branch made again is deleted in the old one's place",
        rule="a branch's identity",
        edits=(Edit("refstore.flows.branching:_delete", "if seen.record.id != branch_id:", "if False:"),),
        caught_by="lost reply: delete branch | create it again | reap",
    )
    yield Mutant(
        name="a batch looks only at what became of its first entry",
        rule="2",
        edits=(
            Edit(
                f"{PLACING}:place",
                "        placements = [item for item in placements if item.path not in lost]",
                "        placements = [item for item in placements[:1] if item.path not in lost]",
            ),
        ),
        caught_by="batch: overwrite p and q | commit | reap",
    )


def lost_replies() -> Iterator[Mutant]:
    yield Mutant(
        name="an exchange whose reply was lost is made again",
        rule="a lost reply",
        edits=(Edit("refstore.kv.retrying:_is_unknown", "if any(isinstance(op, Exchange) for op in ops):", "if False:"),),
        caught_by="lost reply: overwrite | overwrite | hard delete",
    )
    yield Mutant(
        name="what may have been created is created again",
        rule="a lost reply",
        edits=(Edit("refstore.kv.retrying:Retrying._run_again", "if any(op.expected is ABSENT for op in asked):", "if False:"),),
        caught_by="lost reply: issue; link | expire | expire",
    )
    yield Mutant(
        name="every try to seal uses the same token",
        rule="a lost reply",
        edits=(
            Edit(
                "refstore.branches:Branches.seal",
                "    for _ in range(ATTEMPTS):",
                "    once = new_token()\n    for _ in range(ATTEMPTS):",
            ),
            Edit("refstore.branches:Branches.seal", "token=new_token()", "token=once"),
        ),
        caught_by="lost reply: commit | commit; upload; reap",
    )


def registry_and_hints() -> Iterator[Mutant]:
    yield Mutant(
        name="a token is current before it is registered",
        rule="9",
        edits=(
            Edit(
                "refstore.staging:Staging.new_token",
                "    self._kv.set(keys.token(self._repo, token), encode(TokenRecord(created_ms=clock.now_ms())))\n",
                "",
            ),
        ),
        caught_by="registry: reset (crash) | scrub | upload",
    )
    yield Mutant(
        name="a token is forgotten however young it is",
        rule="9",
        edits=(Edit("reaper.scrub:scrub_tokens", "if max(record.created_ms, record.processed_ms) < before:", "if True:"),),
        caught_by="registry: reset (crash) | scrub | upload",
    )
    yield Mutant(
        name="a reference is scrubbed however young it is",
        rule="9",
        edits=(Edit("reaper.scrub:_drop_dead", "and record.changed_ms < before]", "]"),),
        caught_by="clock past grace: upload | reset; process; scrub; clock; hard delete",
    )
    yield Mutant(
        name="the scrubber leaves no hints",
        rule="9",
        edits=(Edit("reaper.scrub:_hint", "    if missing:", "    if not missing:"),),
        caught_by="hints: overwrite (crash) | reap | scrub",
    )
