"""What a run knew, carried over to the next one, so that it need not read again what did not change (decision 0095).

    carried.bin              Carried: how far the listing went, and the runs that this one rests on
    carried/<bucket>.bin     Known: what was named, and what was listed and stays, as keys
    carried/complete*.bin    what complete commits name (`complete_commits.py`), as keys
    kept/<number>.parquet    what the KV named

A run that begins anew writes the first layer; each run that goes on from it writes another one, of what changed. What commits keep is
reckoned with, not guessed: each key stands there as often as it was read, and is taken off as often when what named it is not read
any more. What comes to nothing is named by no commit.

Every file says by its own hash that it is whole. One that is damaged, missing, or does not agree with what is taken off raises Corrupt:
a key too few would be a lost object.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from offline_gc.addresses import CUT_BYTES, Keys, among
from offline_gc.committed import Units, Wanted
from offline_gc.packets import Packet, Side
from offline_gc.places import ROOT, Work, remove
from offline_gc.summary import Count
from refstore.errors import Corrupt, ObjectNotFound
from refstore.ids import CommitId
from refstore.marks import STANDING, Marks, Run, State
from refstore.objects.base import ObjectStore

FILE: Final = "carried.bin"
FOLDER: Final = "carried/"
KEPT: Final = "kept/"
LAYERS_MAX: Final = 31
_HASH_BYTES: Final = 16
_NO_KEYS: Final[Keys] = np.empty(0, np.uint64)

T = TypeVar("T")


class Known(msgspec.Struct, frozen=True):
    """Of one bucket, as the bytes lie in memory: keys, and a size for each of `listed`."""

    named: bytes
    """What commits keep, each as often as it was read."""
    lost: bytes
    """What is not read any more, each as often as it was."""
    ranges: bytes
    listed: bytes
    """Blobs that were listed, and stay."""
    sizes: bytes

    @classmethod
    def of(cls, named: Sequence[Keys], lost: Keys, ranges: Sequence[Keys], listed: Sequence[Keys], sizes: Sequence[Any]) -> Known:
        return cls(*(b"".join(each.tobytes() for each in some) for some in (named, [lost], ranges, listed, sizes)))


class Layer(msgspec.Struct, frozen=True):
    """What one run wrote down."""

    cuts: list[str]
    """Where its buckets began, but for the first."""
    files: dict[int, str]
    """bucket -> key; a bucket without a file knew nothing."""

    def touching(self, first: str, end: str) -> Iterator[str]:
        """The files that say something of addresses from `first` on, before `end` ('': to the end)."""
        cuts = [cut[:CUT_BYTES] for cut in self.cuts]  # as `Cuts` compares them
        last = bisect_left(cuts, end[:CUT_BYTES]) if end else len(cuts)
        for bucket in range(bisect_right(cuts, first[:CUT_BYTES]), last + 1):
            if bucket in self.files:
                yield self.files[bucket]


class CompleteCommits(msgspec.Struct, frozen=True, kw_only=True):
    """The commits that a run marked and unmarked itself (`complete_commits.py`), and what it knew of what they name."""

    commits: set[CommitId] = set()
    watched: bool = False
    """Whether what they name is in `read`, or in trees that were kept; else a run reads it again."""
    ranges: set[str] = set()
    """Of their trees: at least those that are not in `read`."""
    read: set[str] = set()
    """Ranges of which every address has its key in `files`."""
    files: list[str] = []


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    mark_id: str
    complete: str
    """The run that all of it rests on, which listed and read everything."""
    complete_ms: int
    seed: int
    cutoff_ms: int
    """What was written behind it was left alone, by the store's clock."""
    horizon: str
    """Whatever is named before it was there by the cutoff, or never comes; what is behind is listed again."""
    layers: list[Layer]
    former: list[str]
    """Files of what the KV named."""
    units: Units
    there: Count
    """What the complete listing had."""
    complete_commits: CompleteCommits = CompleteCommits()
    """What only they name was never part of a mark: that they keep it again changes nothing of what is known."""

    def runs(self) -> set[str]:
        files = [key for layer in self.layers for key in layer.files.values()] + self.complete_commits.files
        return {key.removeprefix(ROOT).partition("/")[0] for key in files} | {self.mark_id}

    def cuts(self, after: str) -> list[str]:
        """Where to cut what is not listed again."""
        return sorted({cut for layer in self.layers for cut in layer.cuts if after < cut < self.horizon})

    def packets(self, cuts: Sequence[str]) -> list[Packet]:
        """For each bucket the files that say something of its addresses."""
        bounds = ["", *cuts, ""]
        return [
            Packet.telling(bucket, Side.CARRIED, key)
            for bucket in range(len(bounds) - 1)
            for layer in self.layers
            for key in layer.touching(bounds[bucket], bounds[bucket + 1])
        ]

    def unfit(self, wanted: Wanted, units: Units | None, cutoff_ms: int) -> str:
        """Why a run cannot go on from here; '': it can. `units`: of `wanted`."""
        if units is None:
            return "some commits keep only a part of what they name"
        if not self.units.metaranges <= units.metaranges:
            return "a commit came to nothing since"
        if any(wanted.keeps(commit) for commit in self.units.past if commit not in self.complete_commits.commits):
            return "a commit keeps what it names again"
        if cutoff_ms < self.cutoff_ms:
            return "objects of an age are to be left alone that the last run looked at"
        return ""


def usable(store: ObjectStore, marks: Marks, *, now_ms: int, full_days: float) -> tuple[Carried | None, str]:
    """What the last run carried over, or why there is nothing to go on from. Damage is a reason, too: the run begins anew then."""
    done = [run for run in marks.runs() if run.record.finished_ms]
    if not done:
        return None, "there was no run before"
    try:
        carried = read(store, done[-1].mark_id)
    except ObjectNotFound:
        return None, "the last run carried nothing over"
    except Corrupt as error:
        return None, str(error)
    for run in done:
        if run.mark_id >= carried.complete and run.state not in STANDING | {State.SWEPT}:
            return None, f"mark {run.mark_id} was taken back"
    if now_ms - carried.complete_ms >= full_days * 86_400_000:
        return None, f"everything was last listed {(now_ms - carried.complete_ms) / 86_400_000:.1f} days ago"
    if len(carried.layers) >= LAYERS_MAX:
        return None, f"{len(carried.layers)} runs rest on the last complete one"
    return carried, ""


def carry_over(
    store: ObjectStore,
    run: Run,
    work: Work,
    own: Layer,
    units: Units,
    *,
    cutoff_ms: int,
    horizon: str,
    former: Sequence[str],
    listed: Count,
    before: Carried | None,
    complete_commits: CompleteCommits,
) -> None:
    """Write down what the next run can go on from. `listed`: what this run saw, where it saw everything."""
    write(
        store,
        Carried(
            mark_id=run.mark_id,
            complete=before.complete if before else run.mark_id,
            complete_ms=before.complete_ms if before else run.record.began_ms,
            seed=work.seed,
            cutoff_ms=cutoff_ms,
            horizon=horizon,
            layers=[*(before.layers if before else ()), own],
            former=list(former),
            units=units,
            there=before.there if before else listed,
            complete_commits=complete_commits,
        ),
    )


def drop(store: ObjectStore, marks: Marks, run: Run, before: Carried | None, *, carry: bool) -> None:
    """Remove what earlier runs carried over and no run goes on from any more."""
    if not carry:
        remove(store, run.mark_id, KEPT)
    if before is not None and carry:
        remove(store, before.mark_id, KEPT)
        return
    earlier = [each.mark_id for each in marks.runs() if each.record.finished_ms and each.mark_id != run.mark_id]
    for mark_id in earlier[-LAYERS_MAX - 1 :]:
        remove(store, mark_id, FILE, FOLDER, KEPT)


# ---- a bucket


def still_named(known: Sequence[Known], asked: Keys, new: Sequence[Keys], lost: Keys) -> Keys:
    """Which of the keys that are asked for some commit still keeps. `asked`: in order, each once.

    Raises Corrupt: more is taken off than was ever there.
    """
    counts = np.zeros(len(asked), np.int64)

    def reckon(keys: Keys, sign: int) -> None:
        found = keys[among(keys, [asked])]
        if len(found):
            counts[:] += sign * np.bincount(np.searchsorted(asked, found), minlength=len(asked))

    for each in known:
        reckon(_keys(each.named), 1)
        reckon(_keys(each.lost), -1)
    for keys in new:
        reckon(keys, 1)
    reckon(lost, -1)
    if bool((counts < 0).any()):
        raise Corrupt("what earlier runs carried over does not agree with what commits name; mark again with --full")
    return asked[counts > 0]


def sizes_of(known: Sequence[Known], asked: Keys) -> NDArray[np.int64]:
    """The sizes of blobs that an earlier run listed, and which stayed; -1: it listed no such blob. `asked`: in order, each once."""
    sizes = np.full(len(asked), -1, np.int64)
    for each in known:
        listed = _keys(each.listed)
        chosen = among(listed, [asked])
        sizes[np.searchsorted(asked, listed[chosen])] = np.frombuffer(each.sizes, np.int64)[chosen]
    return sizes


def ranges_in(known: Sequence[Known]) -> list[Keys]:
    return [_keys(each.ranges) for each in known]


def _keys(body: bytes) -> Keys:
    return np.frombuffer(body, np.uint64) if body else _NO_KEYS


# ---- files


def bucket_key(mark_id: str, bucket: int) -> str:
    return f"{ROOT}{mark_id}/{FOLDER}{bucket:06d}.bin"


def write(store: ObjectStore, carried: Carried) -> None:
    _write(store, f"{ROOT}{carried.mark_id}/{FILE}", carried)


def read(store: ObjectStore, mark_id: str) -> Carried:
    """Raises ObjectNotFound, Corrupt."""
    return _read(store, f"{ROOT}{mark_id}/{FILE}", Carried)


def write_known(store: ObjectStore, key: str, known: Known) -> None:
    _write(store, key, known)


def read_known(store: ObjectStore, key: str) -> Known:
    """Raises Corrupt."""
    try:
        return _read(store, key, Known)
    except ObjectNotFound as error:
        raise _damaged(store, key, "it is not there") from error


def write_keys(store: ObjectStore, key: str, keys: Keys) -> None:
    _write(store, key, keys.tobytes())


def read_keys(store: ObjectStore, key: str) -> Keys:
    """Raises Corrupt."""
    try:
        return _keys(_read(store, key, bytes))
    except ObjectNotFound as error:
        raise _damaged(store, key, "it is not there") from error


def _write(store: ObjectStore, key: str, value: object) -> None:
    body = msgspec.msgpack.encode(value)
    store.put(key, _hash(body) + body)


def _read(store: ObjectStore, key: str, kind: type[T]) -> T:
    body = memoryview(store.read(key))
    if _hash(body[_HASH_BYTES:]) != bytes(body[:_HASH_BYTES]):
        raise _damaged(store, key, "its hash is another one")
    try:
        return msgspec.msgpack.decode(body[_HASH_BYTES:], type=kind)
    except msgspec.DecodeError as error:
        raise _damaged(store, key, str(error)) from error


def _hash(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_HASH_BYTES).digest()


def _damaged(store: ObjectStore, key: str, why: str) -> Corrupt:
    return Corrupt(f"{key} in {store.url} is not what an earlier run wrote ({why}); mark again with --full")
