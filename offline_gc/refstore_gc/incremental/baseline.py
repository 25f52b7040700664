"""What a run records, so that the next one need not read again what did not change (decision 0095).

    carried.bin              Baseline: how far the listing went, and the runs that this one rests on
    carried/<bucket>.bin     KnownKeys: what was named, and what was listed and stays
    carried/complete*.bin    the keys of what complete commits name (`complete_commits.py`)
    kept/<number>.parquet    what the KV named

A complete run writes the first layer. Each incremental run after it writes another one, of what changed. Damage raises
Corrupt (`checked_files.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from refstore.errors import Corrupt, ObjectNotFound
from refstore.gc_marks import STANDING, Marks, Run, RunState
from refstore_gc.address_codec import CUT_BYTES
from refstore_gc.anti_join import JoinResult
from refstore_gc.batches import Batch, BatchKind
from refstore_gc.checked_files import read_value, write_value
from refstore_gc.complete_commits import CompleteCommits
from refstore_gc.live_in_commits import CommitReads, LiveCommits
from refstore_gc.mark_plan import horizon_of
from refstore_gc.run_context import RunContext
from refstore_gc.run_layout import ROOT, remove
from refstore_gc.run_summary import Count

FILE: Final = "carried.bin"
FOLDER: Final = "carried/"
KEPT: Final = "kept/"
LAYERS_MAX: Final = 31


class Layer(msgspec.Struct, frozen=True):
    """What one run recorded."""

    cuts: list[str]
    """Where its buckets began, except the first."""
    files: dict[int, str]
    """bucket -> key. A bucket without a file knew nothing."""

    def touching(self, first: str, end: str) -> Iterator[str]:
        """Yield the files that say something of addresses from `first` on, before `end` ('': to the end)."""
        cuts = [cut[:CUT_BYTES] for cut in self.cuts]  # as `Cuts` compares them
        last = bisect_left(cuts, end[:CUT_BYTES]) if end else len(cuts)
        for bucket in range(bisect_right(cuts, first[:CUT_BYTES]), last + 1):
            if bucket in self.files:
                yield self.files[bucket]


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What an incremental run goes on from. The field names stand in files."""

    mark_id: str
    complete: str
    """The run that all of it rests on, which listed and read everything."""
    complete_ms: int
    seed: int
    cutoff_ms: int
    """Objects that were written later, by the store's clock, were left alone."""
    horizon: str
    """Addresses that sort before this were listed by the cutoff, or will never be written. The rest is listed again."""
    layers: list[Layer]
    former: list[str]
    """Files of what the KV named."""
    units: CommitReads
    there: Count
    """What the complete run listed."""
    complete_commits: CompleteCommits = CompleteCommits()
    """What only they name was never part of a mark, so nothing recorded changes when they keep it again."""

    def cuts(self, after: str) -> list[str]:
        """Return where to cut what is not listed again."""
        return sorted({cut for layer in self.layers for cut in layer.cuts if after < cut < self.horizon})

    def batches(self, bounds: Sequence[str]) -> list[Batch]:
        """Return for each bucket the recorded files that say something of its addresses."""
        edges = ["", *bounds, ""]
        return [
            Batch.of_value(bucket, BatchKind.EARLIER_KEYS, key)
            for bucket in range(len(edges) - 1)
            for layer in self.layers
            for key in layer.touching(edges[bucket], edges[bucket + 1])
        ]

    def unfit(self, commits: LiveCommits, reads: CommitReads | None, cutoff_ms: int) -> str:
        """Return why a run cannot go on from here; '' if it can. `reads`: those of `commits`."""
        if reads is None:
            return "some commits keep only a part of what they name"
        if not self.units.metaranges <= reads.metaranges:
            return "a commit came to nothing since"
        if any(commits.keeps(commit) for commit in self.units.past if commit not in self.complete_commits.commits):
            return "a commit keeps what it names again"
        if cutoff_ms < self.cutoff_ms:
            return "objects of an age are to be left alone that the last run looked at"
        return ""


def usable(run: RunContext) -> tuple[Baseline | None, str]:
    """Return what the last run recorded, or why the run must be complete. Damage is a reason, too."""
    if run.options.full:
        return None, "asked for"
    if run.options.foreign:
        return None, "what is foreign is looked for everywhere"
    store, full_days, now_ms = run.repository.objects, run.options.full_days, run.repository.clock.now_ms()
    finished = [mark for mark in Marks(run.repository).runs() if mark.record.finished_ms]
    if not finished:
        return None, "there was no run before"
    try:
        baseline = read_value(store, _key(finished[-1].mark_id), Baseline)
    except ObjectNotFound:
        return None, "the last run carried nothing over"
    except Corrupt as error:
        return None, str(error)
    for mark in finished:
        if mark.mark_id >= baseline.complete and mark.state not in STANDING | {RunState.SWEPT}:
            return None, f"mark {mark.mark_id} was taken back"
    if now_ms - baseline.complete_ms >= full_days * 86_400_000:
        return None, f"everything was last listed {(now_ms - baseline.complete_ms) / 86_400_000:.1f} days ago"
    if len(baseline.layers) >= LAYERS_MAX:
        return None, f"{len(baseline.layers)} runs rest on the last complete one"
    return baseline, ""


def record(
    run: RunContext,
    mark: Run,
    result: JoinResult,
    listed: Count,
    complete_commits: CompleteCommits,
    before: Baseline | None,
) -> None:
    """Record what the next run can go on from. `listed`: what a complete run listed."""
    if result.live.reads is None or run.options.foreign:
        return
    files = {count.kind: count.detail for count in result.counts if count.what == "carried"}
    baseline = Baseline(
        mark_id=mark.mark_id,
        complete=before.complete if before else mark.mark_id,
        complete_ms=before.complete_ms if before else mark.record.began_ms,
        seed=run.layout.seed,
        cutoff_ms=run.cutoff_ms,
        horizon=horizon_of(run.repository.safety, run.cutoff_ms),
        layers=[*(before.layers if before else ()), Layer(list(result.bounds), files)],
        former=list(result.live.addresses.files),
        units=result.live.reads,
        there=before.there if before else listed,
        complete_commits=complete_commits,
    )
    write_value(run.repository.objects, _key(mark.mark_id), baseline)


def remove_unused(run: RunContext, mark: Run, *, recorded: bool, before: Baseline | None) -> None:
    """Remove what earlier runs recorded and no run goes on from any more."""
    store = run.repository.objects
    if not recorded:
        remove(store, mark.mark_id, KEPT)
    elif before is not None:
        remove(store, before.mark_id, KEPT)
        return
    finished = [each.mark_id for each in Marks(run.repository).runs() if each.record.finished_ms]
    for mark_id in [each for each in finished if each != mark.mark_id][-LAYERS_MAX - 1 :]:
        remove(store, mark_id, FILE, FOLDER, KEPT)


def bucket_key(mark_id: str, bucket: int) -> str:
    return f"{ROOT}{mark_id}/{FOLDER}{bucket:06d}.bin"


def _key(mark_id: str) -> str:
    return f"{ROOT}{mark_id}/{FILE}"
