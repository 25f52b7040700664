"""The parts of rule 21, each dropped from the real code: the explorer must see what is lost with the KV then."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.planting import Edit, Mutant

PLACING = "refstore.operations.stage_entries"
FENCE = "refstore.kv_recovery.fence:PositionFence"
SETTLING = "refstore.kv_recovery.settlement"


def lost_writes() -> Iterator[Mutant]:
    yield Mutant(
        name="nothing is witnessed before it is deleted",
        rule="21",
        edits=(
            Edit(
                "refstore_reaper.deletion:BatchDeleter.delete_batch",
                "        self._fence.pass_through()",
                "        self._fence.check_servers()",
            ),
        ),
        caught_by="loss: reset; reap",
    )
    yield Mutant(
        name="the witness is written after the deletion",
        rule="21",
        edits=(
            Edit(
                "refstore_reaper.deletion:BatchDeleter.delete_batch",
                "        self._fence.pass_through()",
                "        pass",
            ),
            Edit(
                "refstore_reaper.deletion:BatchDeleter.delete_batch",
                "        left = remove_keys(",
                "        self._fence.pass_through()\n        left = remove_keys(",
            ),
        ),
        caught_by="loss: reset; reap",
    )
    yield Mutant(
        name="nobody reads the witnesses",
        rule="21",
        edits=(Edit(f"{FENCE}.begin", "    self._check_witnesses(witnesses)\n", ""),),
        caught_by="copy put back: of before a commit, reaped; reset; reap",
    )
    yield Mutant(
        name="a deleter has no position in one shard",
        rule="21",
        edits=(Edit(f"{FENCE}.pass_through", "sorted(self._servers)", "sorted(self._servers)[1:]"),),
        caught_by="loss of entries: overwrite; reap",
    )
    yield Mutant(
        name="nobody looks behind the witness who answers",
        rule="21",
        edits=(Edit(f"{FENCE}.pass_through", "    self.check_servers()\n", ""),),
        caught_by="loss of entries: overwrite; reap",
    )
    yield Mutant(
        name="the servers are looked at before the positions are written",
        rule="21",
        edits=(
            Edit(f"{FENCE}.pass_through", "    self.check_servers()\n", ""),
            Edit(
                f"{FENCE}.pass_through",
                "    partitions = sorted(self._servers)\n",
                "    self.check_servers()\n    partitions = sorted(self._servers)\n",
            ),
        ),
        caught_by="loss of entries: overwrite; reap",
    )
    yield Mutant(
        name="nobody looks at the manifest",
        rule="21",
        edits=(
            Edit(
                "refstore.kv_recovery.manifest_check:check_repository",
                "    _raise_if_lost(",
                "    (",
            ),
        ),
        caught_by="copy put back: of before a commit; reset; reap",
    )
    yield Mutant(
        name="other servers are taken for the same",
        rule="21",
        edits=(Edit(f"{FENCE}.begin", "        settle()\n", ""),),
        caught_by="loss of references: copy; reset; reap",
    )
    yield Mutant(
        name="settling puts back no reference",
        rule="21",
        edits=(Edit(f"{SETTLING}:settle_repository", "            _restore_references(ctx, token)\n", ""),),
        caught_by="loss of references: copy; reset; reap",
    )
    yield Mutant(
        name="settling puts back no reference of a first upload",
        rule="21",
        edits=(
            Edit(
                f"{SETTLING}:_restore_references",
                "if isinstance(record, StoredEntry) and is_own(record.address)",
                "if isinstance(record, StoredEntry) and record.reference_id and is_own(record.address)",
            ),
        ),
        caught_by="loss: overwrite | reap",
    )
    yield Mutant(
        name="settling follows no commit",
        rule="21",
        edits=(Edit(f"{SETTLING}:settle_repository", "    _settle_commits(ctx)\n", ""),),
        caught_by="loss: commit | reap",
    )
    yield Mutant(
        name="a marker of a live token is believed",
        rule="21",
        edits=(Edit("refstore.versioning.branches:Branches.has_live", "    return any(", "    return False and any("),),
        caught_by="loss of entries: overwrite; reap",
    )
    yield Mutant(
        name="a commit is acknowledged without the manifest",
        rule="21",
        edits=(
            Edit(
                "refstore.versioning.manifest:Manifest.add",
                "    self._objects.put(waiting_key(entry), _encoder.encode(entry))",
                "    str(entry)",
            ),
        ),
        caught_by="loss of markers: commit; reap; scrub",
    )
    yield Mutant(
        name="whatever is staged no more is taken for released",
        rule="21",
        edits=(
            Edit(
                "refstore.kv_recovery.manifest_check:_was_released",
                "    return isinstance",
                "    return True or isinstance",
            ),
        ),
        caught_by="loss: witnessed restore | reap; reap",
    )
