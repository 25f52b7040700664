"""`refstore gc run --all`: repositories do not answer for one another, nor marks of one repository for one another."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from refstore.cli import gc
from refstore.cli.gc_job import Job, run_all
from refstore.configuration.settings import embedded_urls
from refstore.errors import Conflict, Corrupt, KVUnavailable, RefstoreError, RunUnderWay
from refstore.gc_marks import Marks, RunState, new_mark_id
from refstore.lake import Lake, open_lake_at
from refstore_gc import gc_run
from refstore_gc.gc_run import GcOptions
from refstore_gc.run_summary import ObjectCount, SweepResult
from refstore_purge import nightly_job
from tests.commands import Command

NO_ENGINES = cast(Any, None)
JOB = Job("run", GcOptions())


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    kv, objects = embedded_urls(tmp_path / "lake")
    with open_lake_at(kv, f"{objects}?fsync=0") as lake:
        for name in ("broken", "sales"):
            lake.create_repository(name)
        yield lake


@contextmanager
def no_engines(*_: object) -> Generator[None, None, None]:
    yield


def made(repository: str) -> Any:
    """What was marked."""
    return SimpleNamespace(repository=repository, mark_id="", purge_cleanup=None)


def collected(asked: list[str]) -> Callable[..., Any]:
    """`run_nightly`, that fails in one repository."""

    def collect(ctx: Any, *_: object, **__: object) -> Any:
        asked.append(ctx.name)
        if ctx.name == "broken":
            raise Conflict("mark x is being made; wait for it, or take it over if it is dead")
        return SimpleNamespace(
            sweep_summaries=(),
            waiting_marks=(),
            mark_summary=made(ctx.name),
        )

    return collect


def test_a_failing_repository_stops_no_other_repositorys_collection(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(gc_run, "run_nightly", collected(asked))
    troubles = run_all(lake, ["broken", "sales"], JOB, NO_ENGINES, None).troubles
    assert [(name, type(error)) for name, error in troubles] == [("broken", Conflict)]
    assert asked == ["broken", "sales"]


def test_a_store_that_cannot_be_opened_stops_no_other_repositorys_collection(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = lake.open_store, lake.namespace_url(lake.repository("broken").record)

    def opened(url: str) -> Any:
        if url == broken:
            raise Corrupt("the disk is not there")
        return real(url)

    kv, objects = embedded_urls(tmp_path / "lake")
    with open_lake_at(kv, f"{objects}?fsync=0") as again:
        again.open_store = opened
        asked: list[str] = []
        monkeypatch.setattr(gc_run, "run_nightly", collected(asked))
        troubles = run_all(again, ["broken", "sales"], JOB, NO_ENGINES, None).troubles
    assert [(name, type(error)) for name, error in troubles] == [("broken", Corrupt)]
    assert asked == ["sales"]


def test_a_mark_is_reported_although_the_look_for_purged_ids_failed_after_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def purge(*_: object) -> None:
        raise Conflict("another purge is under way")

    def collect(*_: object, **__: object) -> Any:
        waiting = SimpleNamespace(
            state=RunState.SWEEPING, is_tagged=True, mark_id="m", record=SimpleNamespace(tagged_ms=1)
        )
        return SimpleNamespace(
            sweep_summaries=(),
            waiting_marks=[waiting],
            mark_summary=made("sales"),
        )

    monkeypatch.setattr(gc_run, "run_nightly", collect)
    monkeypatch.setattr(nightly_job, "purge_again", purge)
    job = Job("run", GcOptions(), purge_key=b"k")
    ran = run_all(lake, ["sales"], job, NO_ENGINES, None)
    assert (ran.done, ran.purges) == ([made("sales")], [])
    assert [(name, type(error)) for name, error in ran.troubles] == [("sales", Conflict)]
    assert "sales: " in capsys.readouterr().err, "the mark that waits for the bucket is told, too"


def test_a_repository_that_was_deleted_since_it_was_listed_is_no_trouble(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collect(ctx: Any, *_: object, **__: object) -> Any:
        """The night is long."""
        lake.delete_repository("sales")
        return SimpleNamespace(
            sweep_summaries=(),
            waiting_marks=(),
            mark_summary=made(ctx.name),
        )

    monkeypatch.setattr(gc_run, "run_nightly", collect)
    done, _, _, troubles, *_ = run_all(lake, ["broken", "sales"], JOB, NO_ENGINES, None)
    assert (len(done), troubles) == (1, [])


# ---- the marks of one repository


def nothing(*_: object) -> None: ...


def nothing_marked(*_: object) -> Any:
    return SimpleNamespace(mark_id="", purge_cleanup=None)


class Sweeps:
    """`sweep`, for marks that stand in the KV only: what becomes of each, one after the other; then it is swept."""

    def __init__(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ctx = lake.repository("sales").context
        self.marks = Marks(self.ctx)
        self.asked: list[str] = []
        self.outcomes: dict[str, list[RefstoreError | int]] = {}
        monkeypatch.setattr(gc_run, "sweep", self.sweep)
        monkeypatch.setattr("refstore_gc.sweep.sweep", self.sweep)
        monkeypatch.setattr(gc_run, "mark", nothing_marked)

    def marked(self, *outcomes: RefstoreError | int) -> str:
        mark_id = self.marks.mark_run.finish(
            self.marks.mark_run.begin("digest", 0, [], new_mark_id(self.ctx)), {}
        ).mark_id
        self.outcomes[mark_id] = list(outcomes)
        return mark_id

    def sweep(self, _ctx: object, _spark: object, mark_id: str, _tell: object, **_: object) -> Any:
        self.asked.append(mark_id)
        found = self.outcomes[mark_id].pop(0) if self.outcomes[mark_id] else 0
        if isinstance(found, RefstoreError):
            raise found
        self.marks.sweeps.begin(mark_id)
        if not found:
            self.marks.sweeps.finish(mark_id, {})
        swept = SweepResult(
            mode="delete", at_ms=0, outcomes={"failed": ObjectCount(found)} if found else {}, by_reason={}
        )
        return SimpleNamespace(mark_id=mark_id, sweep=swept)

    def states(self, mark_ids: Sequence[str]) -> list[RunState]:
        return [self.marks.runs.get(mark_id).state for mark_id in mark_ids]


@pytest.fixture
def sweeps(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Sweeps:
    return Sweeps(lake, monkeypatch)


def test_a_mark_that_cannot_be_swept_keeps_no_other_waiting(sweeps: Sweeps) -> None:
    bad, good = sweeps.marked(Corrupt("it lost its files")), sweeps.marked()
    told: list[tuple[str, RefstoreError]] = []

    def tell(mark_id: str, error: RefstoreError) -> None:
        told.append((mark_id, error))

    ran = gc_run.run_nightly(sweeps.ctx, NO_ENGINES, GcOptions(), on_sweep_error=tell)
    assert [(mark_id, type(error)) for mark_id, error in told] == [(bad, Corrupt)]
    assert sweeps.asked == [bad, good], "it is tried once in a run"
    assert sweeps.states([bad, good]) == [RunState.MARKED, RunState.SWEPT]
    assert [each.mark_id for each in ran.sweep_summaries] == [good]
    assert [each.mark_id for each in ran.waiting_marks] == [bad]


def test_what_kept_a_mark_from_being_swept_is_told_by_the_command(lake: Lake, sweeps: Sweeps) -> None:
    sweeps.marked(Corrupt("it lost its files"))
    sweeps.marked()
    done, _, _, troubles, *_ = run_all(lake, ["sales"], JOB, NO_ENGINES, None)
    assert [(name, type(error)) for name, error in troubles] == [("sales", Corrupt)]
    assert len(done) == 2


def test_what_was_swept_is_told_although_another_run_marks(
    lake: Lake, sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = sweeps.marked()

    def busy(*_: object) -> Any:
        raise RunUnderWay("mark x is being made; wait for it")

    monkeypatch.setattr(gc_run, "mark", busy)
    found = run_all(lake, ["sales"], JOB, NO_ENGINES, None)
    assert [each.mark_id for each in found.done] == [swept]
    assert [type(error) for _, error in found.troubles] == [RunUnderWay]


def test_whoever_asks_for_nothing_else_hears_it_at_once(sweeps: Sweeps) -> None:
    sweeps.marked(Corrupt("it lost its files"))
    with pytest.raises(Corrupt):
        gc_run.run_nightly(sweeps.ctx, NO_ENGINES, GcOptions())


def test_a_kv_that_does_not_answer_ends_the_run(sweeps: Sweeps) -> None:
    first, _ = sweeps.marked(KVUnavailable("down")), sweeps.marked()
    with pytest.raises(KVUnavailable):
        gc_run.run_nightly(sweeps.ctx, NO_ENGINES, GcOptions(), on_sweep_error=nothing)
    assert sweeps.asked == [first]


def test_a_mark_that_somebody_took_back_meanwhile_is_no_trouble(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sweeps.marked(), sweeps.marked()
    sweep = sweeps.sweep

    def slowly(*of: Any) -> Any:
        sweeps.marks.decisions.unmark(second)
        return sweep(*of)

    monkeypatch.setattr(gc_run, "sweep", slowly)
    ran = gc_run.run_nightly(sweeps.ctx, NO_ENGINES, GcOptions())
    assert [each.mark_id for each in ran.sweep_summaries] == [first]


def test_what_the_store_deleted_at_the_second_try_did_not_fail(sweeps: Sweeps) -> None:
    """A sweep that left some keys is made again behind the marking."""
    mark_id = sweeps.marked(3)
    ran = gc_run.run_nightly(sweeps.ctx, NO_ENGINES, GcOptions())
    assert sweeps.states([mark_id]) == [RunState.SWEPT]
    assert ran.failed_objects == 0
    assert [each.mark_id for each in ran.sweep_summaries] == [mark_id]


def test_gc_sweep_sweeps_what_can_be_swept_and_says_what_cannot(
    sweeps: Sweeps, refstore: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = sweeps.marked(Corrupt("it lost its files")), sweeps.marked()

    monkeypatch.setattr(gc.EngineRequest, "open", no_engines)
    monkeypatch.setattr(gc, "emit_summaries", nothing)
    ran = refstore("gc", "run", "--only", "sweep", "sales")
    assert (ran.code, ran.err) == (6, f"{bad}: it lost its files\nrefstore: it lost its files\n")
    assert sweeps.states([bad, good]) == [RunState.MARKED, RunState.SWEPT]


def test_the_command_ends_with_what_went_wrong_and_says_where(
    lake: Lake, refstore: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(gc_run, "run_nightly", collected(asked))
    monkeypatch.setattr(gc.EngineRequest, "open", no_engines)
    monkeypatch.setattr(gc, "emit_summaries", nothing)
    assert refstore("gc", "run", "nowhere").code == 3
    assert refstore("gc", "run", "sales").code == 0
    ran = refstore("gc", "run", "--all")
    assert ran.code == 4
    assert "broken: mark x is being made" in ran.err
    assert asked == ["sales", "broken", "sales"]


def test_a_file_that_cannot_be_read_or_written_is_no_defect(
    lake: Lake, refstore: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refstore("gc", "run", "--dry-run", "sales", "--rules", "nowhere.json").code == 2
    (refstore.folder / "rules.json").write_bytes(b"\xff\xfe")
    ran = refstore("gc", "run", "--dry-run", "sales", "--rules", "rules.json")
    assert (ran.code, "is not UTF-8" in ran.err) == (2, True)


def test_a_mark_is_confirmed_where_the_user_has_no_name(
    sweeps: Sweeps, refstore: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 1000780000")

    monkeypatch.setattr("getpass.getuser", nobody)
    marking = sweeps.marks.mark_run.begin("digest", 0, [], new_mark_id(sweeps.ctx))
    mark_id = sweeps.marks.mark_run.finish(marking, {}, question="80 % of all objects").mark_id
    assert refstore.json("gc", "confirm", "sales", mark_id, "--yes")["state"] == "marked"


def test_nothing_to_sweep_is_an_answer_too(lake: Lake, refstore: Command) -> None:
    assert refstore.json("gc", "run", "--only", "sweep", "sales") == {"runs": [], "deleted_repositories": []}
