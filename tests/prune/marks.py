"""Marks of runs that prune, written as a run writes them, for tests of what comes after."""

from __future__ import annotations

from refstore.objects.base import ObjectPage, ObjectStore, SkippedKeys
from refstore_gc.run_layout import write_json, write_table
from refstore_gc.untyped_arrow import pa
from refstore_prune.prune_layout import PRUNE_ROOT, PruneLayout, PruneManifest, PruneUnit, make_prune_layout
from refstore_prune.prune_report import PruneReport, RunState
from refstore_prune.state import write_report

BEGAN_MS = 1_763_708_400_000
GRACE_MS = 7 * 24 * 3_600_000


def run_id(number: int) -> str:
    """Return the id of a run; those of later runs sort behind."""
    return f"01kajkcwc0{number:016d}"


def list_objects(store: ObjectStore, prefix: str = "data/") -> ObjectPage:
    """Return all objects below a prefix, as one page."""
    columns = zip(*store.list_pages(prefix, skipped=SkippedKeys()), strict=True)
    return ObjectPage(*([value for part in column for value in part] for column in columns))


def write_mark(
    files: ObjectStore,
    layout: PruneLayout,
    listed: ObjectPage,
    *,
    is_due: bool = True,
    marked_ms: int = BEGAN_MS,
    stood_ms: int | None = None,
    rows: int = 10_000,
    state: RunState | None = "marked",
) -> PruneManifest:
    """Write the mark of a run with these objects, and its report. `rows`: of a unit. `state`: None for no report."""
    units: list[PruneUnit] = []
    for number, at in enumerate(range(0, len(listed.keys), rows)):
        part = ObjectPage(*(column[at : at + rows] for column in listed))
        keys, sizes, mtimes, etags = part
        columns = {"key": keys, "size_bytes": sizes, "mtime_ms": mtimes, "etag": etags}
        file = layout.file_key("mark", number, "f00d")
        write_table(files, file, pa.table({**columns, "marked_ms": [marked_ms] * len(keys)}))
        units.append(PruneUnit(file=file, first_key=keys[0], objects=len(keys), is_due=is_due))
    manifest = PruneManifest(
        run_id=layout.run_id,
        store=layout.url,
        marked_ms=marked_ms,
        stood_ms=marked_ms if stood_ms is None else stood_ms,
        grace_ms=GRACE_MS,
        names=1,
        names_by_source={"given": 1},
        units=units,
    )
    write_json(files, f"{PRUNE_ROOT}{layout.run_id}/mark.json", manifest)
    if state is not None:
        write_report(files, PruneReport(run_id=layout.run_id, store=layout.url, state=state, began_ms=marked_ms))
    return manifest


def layout_of(store: ObjectStore, number: int = 1, *, files: str = "") -> PruneLayout:
    return make_prune_layout(store.url, run_id(number), files=files)
