"""The records of a run for the next one, which then reads only what changed (decision 0095).

    carried.bin              Baseline: the end of the listing, and the runs that this one builds on
    carried/<bucket>.bin     KnownKeys: the named keys, and the listed keys that stay
    carried/complete*.bin    the keys that complete commits name (`complete_commits.py`)
    kept/<number>.parquet    the addresses that the KV named

A complete run writes the first layer. Each incremental run after it writes another layer with the changes. Damage
raises Corrupt (`checked_files.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from refstore.core.ids import CommitId
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
MARKED_AGAIN: Final = "a commit was unmarked, and is marked again"


class Layer(msgspec.Struct, frozen=True):
    """The records of one run."""

    cuts: list[str]
    """Where its buckets began, except the first."""
    files: dict[int, str]
    """bucket -> key. A bucket without a file has no known keys."""

    def touching(self, first: str, end: str) -> Iterator[str]:
        """Yield the files with addresses from `first` on, before `end` ('': to the end)."""
        cuts = [cut[:CUT_BYTES] for cut in self.cuts]  # as `Cuts` compares them
        last = bisect_left(cuts, end[:CUT_BYTES]) if end else len(cuts)
        for bucket in range(bisect_right(cuts, first[:CUT_BYTES]), last + 1):
            if bucket in self.files:
                yield self.files[bucket]


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The records that an incremental run builds on. The field names are part of the stored files."""

    mark_id: str
    complete: str
    """The complete run that all layers build on. It listed and read everything."""
    complete_ms: int
    seed: int
    cutoff_ms: int
    """Objects that were written later, by the store's clock, were ignored."""
    horizon: str
    """Addresses that sort before this were listed by the cutoff, or will never be written. The rest is listed again."""
    layers: list[Layer]
    former: list[str]
    """Files with the addresses that the KV named."""
    units: CommitReads
    there: Count
    """The objects that the complete run listed."""
    complete_commits: CompleteCommits = CompleteCommits()
    """Objects that only these commits name were never part of a mark. So the records stay valid when such a commit is
    kept again.
    """

    def cuts(self, after: str) -> list[str]:
        """Return the boundaries of the buckets that are not listed again."""
        return sorted({cut for layer in self.layers for cut in layer.cuts if after < cut < self.horizon})

    def batches(self, bounds: Sequence[str]) -> list[Batch]:
        """Return for each bucket the recorded files with its addresses."""
        edges = ["", *bounds, ""]
        return [
            Batch.of_value(bucket, BatchKind.EARLIER_KEYS, key)
            for bucket in range(len(edges) - 1)
            for layer in self.layers
            for key in layer.touching(edges[bucket], edges[bucket + 1])
        ]

    def unfit(
        self, commits: LiveCommits, reads: CommitReads | None, cutoff_ms: int, marked: Iterable[CommitId] = ()
    ) -> str:
        """Return why a run cannot build on these records; '' if it can. `reads`: those of `commits`. `marked`: what the
        run itself has marked.
        """
        if reads is None:
            return "some commits keep only a part of what they name"
        if not self.units.metaranges <= reads.metaranges:
            return "a commit was given up since"
        if any(commits.keeps(commit) for commit in self.units.past if commit not in self.complete_commits.commits):
            return "a commit keeps what it names again"
        if any(commit in self.units.past and commit not in self.complete_commits.commits for commit in marked):
            return MARKED_AGAIN  # what it names has been no news since
        if cutoff_ms < self.cutoff_ms:
            return "the minimum age reaches further back than that of the last run"
        return ""


def usable(run: RunContext) -> tuple[Baseline | None, str]:
    """Return the records of the last run, or why the run must be complete. Damage is a reason, too."""
    if run.options.full:
        return None, "asked for"
    if run.options.foreign:
        return None, "foreign objects are searched everywhere"
    store, full_days, now_ms = run.repository.objects, run.options.full_days, run.repository.clock.now_ms()
    finished = [mark for mark in Marks(run.repository).runs() if mark.record.finished_ms]
    if not finished:
        return None, "there is no earlier run"
    try:
        baseline = read_value(store, _key(finished[-1].mark_id), Baseline)
    except ObjectNotFound:
        return None, "the last run recorded nothing"
    except Corrupt as error:
        return None, str(error)
    for mark in finished:
        if mark.mark_id >= baseline.complete and mark.state not in STANDING | {RunState.SWEPT}:
            return None, f"mark {mark.mark_id} was unmarked"
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
    """Write the records for the next run. `listed`: the listing of a complete run."""
    if result.live.reads is None or run.options.foreign:
        return
    files = {count.kind: count.detail for count in result.counts if count.what == "carried"}
    baseline = Baseline(
        mark_id=mark.mark_id,
        complete=before.complete if before else mark.mark_id,
        complete_ms=before.complete_ms if before else mark.record.began_ms,
        seed=run.layout.seed,
        cutoff_ms=run.cutoff_ms,
        horizon=horizon_of(run.repository.waits, run.cutoff_ms),
        layers=[*(before.layers if before else ()), Layer(list(result.bounds), files)],
        former=list(result.live.addresses.files),
        units=result.live.reads,
        there=before.there if before else listed,
        complete_commits=complete_commits,
    )
    write_value(run.repository.objects, _key(mark.mark_id), baseline)


def remove_unused(run: RunContext, mark: Run, *, recorded: bool, before: Baseline | None) -> None:
    """Remove the records of earlier runs that no run builds on any more."""
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
