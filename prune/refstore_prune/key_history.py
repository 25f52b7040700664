"""What the runs that are kept found and did with one key."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final, cast

import msgspec

from refstore.core.arrow_arrays import make_scalar
from refstore.errors import Invalid, ObjectNotFound
from refstore.objects import ObjectStore, open_objects
from refstore.objects.object_keys import check_key
from refstore_gc.run_layout import read_json, read_table
from refstore_gc.untyped_arrow import pa, pc
from refstore_prune.prune_layout import MARK_FILE, PRUNE_ROOT, MarkManifest, MarkUnit
from refstore_prune.state import read_runs, read_unit

UNNAMED: Final = "unnamed"


class KeyEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found or did with a key."""

    run_id: str
    at_ms: int
    """When the run began."""
    found: str
    """`unnamed`, or what became of it when it was due: `deleted`, `already gone`, `changed`, `failed`."""
    marked_ms: int
    """Since when it has been found unnamed; its grace period is counted from then."""
    size_bytes: int
    why: str = ""
    """The store's reason."""


class KeyHistory(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    is_stored: bool
    """Whether the store has it now."""
    events: list[KeyEvent] = []
    """In the order of the runs; a run that found what the one before had found has none."""


def read_history(files: ObjectStore, store_url: str, key: str) -> KeyHistory:
    """Read what the runs found and did with a key, or a URL below the store. `files`: the store of the runs' files.
    Raises Invalid, Corrupt.
    """
    with closing(open_objects(store_url)) as store:
        if "://" in key:
            folder = f"{store.url.partition('?')[0].rstrip('/')}/"
            if not key.startswith(folder):
                raise Invalid(f"{key} does not lie in {store.url}; give a key of that store")
            key = key.removeprefix(folder)
        is_stored = store.is_stored(check_key(key))
    events: list[KeyEvent] = []
    for run in read_runs(files):
        for event in _find_events(files, run.run_id, key):
            if event.found != UNNAMED or not events or events[-1].marked_ms != event.marked_ms:
                events.append(event)
    return KeyHistory(key=key, is_stored=is_stored, events=events)


def _find_events(files: ObjectStore, run_id: str, key: str) -> Iterator[KeyEvent]:
    try:
        manifest = read_json(files, f"{PRUNE_ROOT}{run_id}/{MARK_FILE}", MarkManifest, "look at the run's report")
    except ObjectNotFound:  # it stopped before its mark stood
        return
    for is_due in (True, False):
        units = [unit for unit in manifest.units if unit.is_due is is_due]
        for unit in units[: bisect_right(units, key, key=_first_key)][-1:]:
            for row in _find_rows(read_unit(files, unit), key):
                yield _event(manifest, row, UNNAMED)
            if is_due:
                for info in files.list(f"{PRUNE_ROOT}{run_id}/sweep/"):
                    for row in _find_rows(read_table(files, info.key), key):
                        yield _event(manifest, row, str(row["outcome"]))


def _first_key(unit: MarkUnit) -> str:
    return unit.first_key


def _find_rows(table: Any, key: str) -> list[dict[str, Any]]:
    found = table.filter(pc.equal(table.column("key"), make_scalar(key, pa.string())))
    return cast("list[dict[str, Any]]", found.to_pylist())


def _event(manifest: MarkManifest, row: Mapping[str, Any], found: str) -> KeyEvent:
    return KeyEvent(
        run_id=manifest.run_id,
        at_ms=manifest.marked_ms,
        found=found,
        marked_ms=row["marked_ms"],
        size_bytes=row["size_bytes"],
        why=row.get("why") or "",
    )
