"""What runs say of a key, and what they cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest

from refstore.core.clock import SystemClock
from refstore.errors import Invalid
from refstore.objects.local import LocalObjects
from refstore_gc.engines.local import LocalEngine, SharedWork
from refstore_prune.key_history import KeyHistory, read_history
from refstore_prune.prune_layout import PRUNE_ROOT
from refstore_prune.prune_sweep import sweep_units
from refstore_prune.state import open_run, unmark
from tests.prune.marks import BEGAN_MS, GRACE_MS, layout_of, list_objects, run_id, write_mark


@pytest.fixture
def store(tmp_path: Path) -> LocalObjects:
    made = LocalObjects(tmp_path / "store", fsync=False)
    for number in range(5):
        made.put(f"data/{number}", b"x")
    return made


def run(store: LocalObjects, number: int, keys: str, *, is_due: bool = False, marked_ms: int = BEGAN_MS) -> None:
    """Write the mark of a run that found these unnamed; what is due is swept."""
    listed = list_objects(store)
    some = listed.select([key[-1] in keys for key in listed.keys])
    layout = layout_of(store, number)
    manifest = write_mark(store, layout, some, is_due=is_due, marked_ms=marked_ms, rows=2)
    if is_due:
        with open_run(store, layout.run_id) as lock:
            sweep_units(
                LocalEngine(shared=SharedWork(0)), layout, manifest.units, SystemClock().now_ms(), lock.generation
            )


def why(store: LocalObjects, key: str) -> KeyHistory:
    return read_history(store, store.url, key)


def told(history: KeyHistory) -> list[tuple[str, str]]:
    return [(each.run_id, each.found) for each in history.events]


def test_since_when_it_is_unnamed_and_when_it_is_due(store: LocalObjects):
    run(store, 1, "123")
    run(store, 2, "1234")
    history = why(store, "data/3")
    assert (history.is_stored, told(history)) == (True, [(run_id(1), "unnamed")])
    assert (history.events[0].marked_ms, history.due_ms) == (BEGAN_MS, BEGAN_MS + GRACE_MS)
    assert why(store, f"{store.url.partition('?')[0]}/data/3").events == history.events
    assert told(why(store, "data/4")) == [(run_id(2), "unnamed")]
    for key in ("data/0", "data/9", "a", "z"):
        named = why(store, key)
        assert (named.is_stored, named.events, named.due_ms) == (key == "data/0", [], 0)
        assert "a run reads them" in named.not_looked_at[0]
    with pytest.raises(Invalid):
        why(store, "s3://elsewhere/data/3")


def test_what_deleted_it_and_when(store: LocalObjects):
    run(store, 1, "12")
    store.put("data/1", b"longer")
    run(store, 2, "2", is_due=True)
    history = why(store, "data/2")
    assert (history.is_stored, history.due_ms) == (False, 0)
    assert told(history) == [(run_id(1), "unnamed"), (run_id(2), "deleted")]
    assert told(why(store, "data/1")) == [(run_id(1), "unnamed"), (run_id(2), "not unnamed")]
    assert "named" in why(store, "data/1").events[1].why


def test_what_is_marked_again_after_it_was_named(store: LocalObjects):
    for number, keys in enumerate(("1", "1", "2", "12"), start=1):
        run(store, number, keys, marked_ms=BEGAN_MS + (number > 2))
    assert told(why(store, "data/1")) == [
        (run_id(1), "unnamed"),
        (run_id(3), "not unnamed"),
        (run_id(4), "unnamed"),
    ]
    assert why(store, "data/1").due_ms == BEGAN_MS + 1 + GRACE_MS


def test_a_mark_that_was_taken_back_is_not_due(store: LocalObjects):
    run(store, 1, "1", marked_ms=BEGAN_MS)
    run(store, 2, "1", marked_ms=BEGAN_MS)
    assert why(store, "data/1").due_ms
    unmark(store, run_id(1))
    history = why(store, "data/1")
    assert (history.due_ms, history.is_unmarked) == (0, True)


def test_what_somebody_else_deleted_is_not_due(store: LocalObjects):
    run(store, 1, "1")
    store.delete_many(["data/1"])
    assert why(store, "data/1").due_ms == 0


def test_a_run_that_was_killed_while_it_deleted_leaves_it_open(store: LocalObjects, monkeypatch: pytest.MonkeyPatch):
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(LocalObjects, "delete_unchanged", kill)
    with pytest.raises(Killed):
        run(store, 1, "1234", is_due=True)
    history = why(store, "data/1")
    assert told(history) == [(run_id(1), "unnamed"), (run_id(1), "not known")]
    assert "before it wrote" in history.events[1].why
    assert not history.due_ms
    history = why(store, "data/3")
    assert (told(history), history.due_ms) == ([(run_id(1), "unnamed")], BEGAN_MS + GRACE_MS)


def test_damaged_files_and_runs_without_a_mark_are_named(store: LocalObjects):
    run(store, 1, "1")
    run(store, 2, "1")
    store.put(f"{PRUNE_ROOT}{run_id(2)}/mark/000000-f00d.parquet", b"PAR1")
    store.put(f"{PRUNE_ROOT}{run_id(3)}/listing/000000.parquet", b"x")
    history = why(store, "data/1")
    assert told(history) == [(run_id(1), "unnamed")]
    assert [run_id(number) in history.not_looked_at[number - 1] for number in (2, 3)] == [True, True]
