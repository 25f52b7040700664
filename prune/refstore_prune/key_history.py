"""What the runs that are kept found and did with one key."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final, cast

import msgspec
from msgspec import structs

from refstore.core.arrow_arrays import make_scalar
from refstore.errors import Corrupt, Invalid, ObjectNotFound
from refstore.objects import ObjectStore, open_objects
from refstore.objects.object_keys import check_key
from refstore_gc.run_layout import read_json
from refstore_gc.run_summary import FAILED_OUTCOME
from refstore_gc.untyped_arrow import pa, pc
from refstore_prune.prune_layout import MARK_FILE, PRUNE_ROOT, PruneManifest, PruneUnit
from refstore_prune.state import last_mark, read_outcome, read_runs, read_unit

UNNAMED: Final = "unnamed"
NOT_UNNAMED: Final = "not unnamed"
_STAYS: Final = (UNNAMED, FAILED_OUTCOME)
"""What leaves a key in the mark: a later run tries again."""


class KeyEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found or did with a key."""

    run_id: str
    at_ms: int
    """When the run began."""
    found: str
    """`unnamed`; `not unnamed`: the run before had found it so, and this one did not; or what became of it when it was
    due: `deleted`, `deleted, kept as a version`, `already gone`, `changed`, `failed`, `not known`.
    """
    marked_ms: int
    """Since when it has been found unnamed; its grace period is counted from then."""
    size_bytes: int
    why: str = ""
    """The store's reason, or what the run's files leave open."""


class KeyHistory(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    is_stored: bool
    """Whether the store has it now."""
    events: list[KeyEvent] = []
    """In the order of the runs; a run that found what the one before had found has none."""
    due_ms: int = 0
    """From when a run may delete it, with the grace period of the last one. 0: no mark that stands has it."""
    is_unmarked: bool = False
    """Whether the last run found it unnamed, and somebody took that back."""
    not_looked_at: list[str] = []
    """What this answer does not know, a sentence each."""


def read_history(files: ObjectStore, store_url: str, key: str) -> KeyHistory:
    """Read what the runs found and did with a key, or a URL below the store. `files`: the store of the runs' files.
    Raises Invalid.
    """
    with closing(open_objects(store_url)) as store:
        if "://" in key:
            folder = f"{store.url.partition('?')[0].rstrip('/')}/"
            if not key.startswith(folder):
                raise Invalid(f"{key} does not lie in {store.url}; give a key of that store")
            key = key.removeprefix(folder)
        is_stored = store.is_stored(check_key(key))
    events: list[KeyEvent] = []
    unseen = ["which names the sources have now: a run reads them"]
    waiting: KeyEvent | None = None
    for run in read_runs(files):
        try:
            manifest = _read_manifest(files, run.run_id)
            found = list(_find_events(files, manifest, key)) if manifest is not None else None
        except Corrupt as error:
            unseen.append(f"what run {run.run_id} found: {error}")
            continue
        if manifest is None or found is None:
            unseen.append(f"what run {run.run_id} found: no mark of it stood (it is {run.state})")
            continue
        if waiting is not None and not found:
            why = "it was named, protected, too young, or not there"
            found = [structs.replace(waiting, run_id=run.run_id, at_ms=manifest.marked_ms, found=NOT_UNNAMED, why=why)]
        events += [
            each for each in found if waiting is None or each.found != UNNAMED or each.marked_ms != waiting.marked_ms
        ]
        waiting = found[-1] if found and found[-1].found in _STAYS else None
    due_ms, is_unmarked = 0, False
    if waiting is not None and is_stored:
        try:
            last = last_mark(files, store_url)
            is_unmarked = last is None or waiting.marked_ms in last.unmarked_ms
            due_ms = 0 if last is None or is_unmarked else waiting.marked_ms + last.manifest.grace_ms
        except Corrupt as error:
            unseen.append(f"when it is due: {error}")
    return KeyHistory(
        key=key, is_stored=is_stored, events=events, due_ms=due_ms, is_unmarked=is_unmarked, not_looked_at=unseen
    )


def _read_manifest(files: ObjectStore, run_id: str) -> PruneManifest | None:
    try:
        return read_json(files, f"{PRUNE_ROOT}{run_id}/{MARK_FILE}", PruneManifest, "look at the run's report")
    except ObjectNotFound:  # it is on, or stopped before its mark stood
        return None


def _find_events(files: ObjectStore, manifest: PruneManifest, key: str) -> Iterator[KeyEvent]:
    for is_due in (True, False):
        units = [unit for unit in manifest.units if unit.is_due is is_due]
        for unit in units[: bisect_right(units, key, key=_first_key)][-1:]:
            times = (manifest.marked_ms, manifest.stood_ms)
            for row in _find_rows(read_unit(files, unit, times), key):
                yield _event(manifest, row, UNNAMED)
                swept = read_outcome(files, unit, times)
                for outcome in [] if swept is None else _find_rows(swept, key):
                    yield _event(manifest, outcome, str(outcome["outcome"]))


def _first_key(unit: PruneUnit) -> str:
    return unit.first_key


def _find_rows(table: Any, key: str) -> list[dict[str, Any]]:
    found = table.filter(pc.equal(table.column("key"), make_scalar(key, pa.string())))
    return cast("list[dict[str, Any]]", found.to_pylist())


def _event(manifest: PruneManifest, row: Mapping[str, Any], found: str) -> KeyEvent:
    return KeyEvent(
        run_id=manifest.run_id,
        at_ms=manifest.marked_ms,
        found=found,
        marked_ms=row["marked_ms"],
        size_bytes=row["size_bytes"],
        why=row.get("why") or "",
    )
