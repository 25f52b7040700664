"""What operators see of each repository: measured by the reaper, counted as the store confirmed it."""

from __future__ import annotations

import msgspec
import pytest

from refstore.core.units import DAY_MS
from refstore.errors import KVUnavailable, ObjectsUnavailable
from refstore.monitoring import figures
from refstore.monitoring.figures import Concern, Figures
from refstore.records import keys
from refstore.records.figure_records import Amount, DayAmount, GcFigures, ReaperFigures
from refstore_reaper.pass_summary import Tally
from refstore_reaper.survey import FiguresWriter
from tests.reaper_world import GRACE_SECONDS, World

NOW = 1_700_000_000_000


@pytest.fixture
def world() -> World:
    return World(pause_seconds=10)


def figures_of(world: World) -> Figures:
    return figures.read_figures(world.lake.kv, world.repo.context.repo)


def test_a_survey_counts_what_is_live_staged_in_grace_and_due(world: World) -> None:
    world.upload("main", "live")
    world.repo.commit("main", "first")
    world.upload("main", "due")
    world.repo.delete("main", "due")
    world.run_once()
    world.clock.advance(GRACE_SECONDS + 1)
    world.upload("main", "in grace")
    world.repo.delete("main", "in grace")
    world.upload("main", "staged")
    size = world.repo.stat("main", "staged").size_bytes
    world.objects.refuses = {info.key for info in world.objects.list("data/")}
    world.run_once()

    own = figures_of(world).reaper
    assert (own.live.objects, own.staged, own.in_grace.objects, own.due.objects) == (1, Amount(1, size), 1, 1)
    assert own.measured_ms == world.clock.now_ms()
    assert (own.branches, own.stop_reason) == (1, "")
    assert (own.refused_objects, own.error) == (1, "")


def test_what_is_reclaimed_is_counted_by_day_and_only_if_it_was_deleted(world: World) -> None:
    for day in range(3):
        world.upload("main", "kept back", "deleted")
        size = world.repo.stat("main", "deleted").size_bytes
        world.objects.refuses = {world.repo.stat("main", "kept back").address}
        world.repo.delete_many("main", ["kept back", "deleted"])
        world.run_once()
        world.clock.advance(GRACE_SECONDS + 1)
        world.run_once()
        days = figures_of(world).reclaimed_days
        assert sum(each.objects for each in days) == 2 * day + 1
        assert sum(each.bytes for each in days) == (2 * day + 1) * size
        world.objects.refuses = set()
        world.run_once()
        assert sum(each.objects for each in figures_of(world).reclaimed_days) == 2 * day + 2
        world.clock.advance(DAY_MS / 1000)
    assert len({each.day for each in figures_of(world).reclaimed_days}) == 3


def test_a_write_whose_reply_was_lost_is_counted_once(world: World) -> None:
    kv, repo = world.lake.kv, world.repo.context.repo

    def count(write_id: str) -> None:
        figures.change_reaper_figures(
            kv,
            repo,
            write_id,
            lambda before: msgspec.structs.replace(
                before, reclaimed=figures.add_reclaimed(before.reclaimed, Amount(1, 10), NOW)
            ),
        )

    for write_id in ("w-1", "w-2", "w-1", "w-2"):
        count(write_id)
    assert figures_of(world).reclaimed_days == [DayAmount(figures.day_of(NOW), 2, 20)]


def test_a_kv_that_fails_delays_figures_and_stops_no_reaper(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.upload_due("a")
    write = figures.change_reaper_figures

    def fail(*args: object) -> None:
        write(*args)
        raise KVUnavailable("the reply was lost")

    monkeypatch.setattr(figures, "change_reaper_figures", fail)
    with world.reaper() as reaper:
        assert reaper.run_passes(lambda: False).deleted == 1
        world.clock.advance(10)
        reaper.run_passes(lambda: False)
        monkeypatch.undo()
        world.clock.advance(10)
        reaper.run_passes(lambda: False)
    assert [each.objects for each in figures_of(world).reclaimed_days] == [1]


def test_reapers_share_one_survey(world: World) -> None:
    with world.reaper() as first, world.reaper() as second:
        first.run_passes(lambda: False)
        measured_ms = figures_of(world).reaper.measured_ms
        world.clock.advance(30)
        second.run_passes(lambda: False)
        assert figures_of(world).reaper.measured_ms == measured_ms
        world.clock.advance(60)
        second.run_passes(lambda: False)
        assert figures_of(world).reaper.measured_ms > measured_ms


def test_figures_go_with_their_repository(world: World) -> None:
    world.run_once()
    repo = world.repo.context.repo
    assert figures.read_all_figures(world.lake.kv, [repo])[repo].reaper.measured_ms
    world.lake.delete_repository(world.repo.name)
    for _ in range(3):
        world.clock.advance(86_400)
        world.run_once()
    assert figures.read_all_figures(world.lake.kv, [repo]) == {repo: Figures()}
    assert not list(world.lake.kv.scan_all(keys.FIGURES))


def test_a_record_that_cannot_be_read_is_written_anew(world: World) -> None:
    key = keys.figures(world.repo.context.repo, figures.REAPER)
    world.lake.kv.set(key, b"\xc1")
    repo = world.repo.context.repo
    assert figures.read_all_figures(world.lake.kv, [repo]) == {repo: Figures()}
    assert figures_of(world) == Figures()
    world.run_once()
    assert figures_of(world).reaper.measured_ms


FRESH = ReaperFigures(measured_ms=NOW)
RAN = GcFigures(run_ms=NOW)


@pytest.mark.parametrize(
    ("own", "concern"),
    [
        (Figures(FRESH, RAN), None),
        (Figures(msgspec.structs.replace(FRESH, stop_reason="x"), RAN), Concern.STOPPED),
        (Figures(msgspec.structs.replace(FRESH, stop_reason="x", kv_went_back=True), RAN), Concern.KV_WENT_BACK),
        (Figures(FRESH, msgspec.structs.replace(RAN, questions=1)), Concern.QUESTION),
        (Figures(msgspec.structs.replace(FRESH, error="x"), RAN), Concern.REAPER_FAILED),
        (Figures(msgspec.structs.replace(FRESH, measured_ms=NOW - 2 * DAY_MS), RAN), Concern.NOT_MEASURED),
        (Figures(FRESH, GcFigures(run_ms=NOW - 4 * DAY_MS)), Concern.LATE_RUN),
        (Figures(FRESH, msgspec.structs.replace(RAN, error="x")), Concern.RUN_FAILED),
        (Figures(FRESH, msgspec.structs.replace(RAN, failed_objects=1)), Concern.REFUSED),
        (Figures(FRESH, msgspec.structs.replace(RAN, orphans=Amount(1000, 1))), Concern.ORPHANS_GREW),
        (
            Figures(FRESH, msgspec.structs.replace(RAN, orphans=Amount(1000, 1), orphans_before=Amount(500, 1))),
            None,
        ),
    ],
)
def test_operators_are_warned(own: Figures, concern: Concern | None) -> None:
    found = [each.concern for each in figures.find_warnings(own._replace(has_rules=True), NOW - 30 * DAY_MS, NOW)]
    assert found == ([] if concern is None else [concern])


def test_rules_count_from_the_moment_they_are_set(world: World) -> None:
    """No reaper has to pass."""
    world.run_once()

    def concerns() -> list[Concern]:
        return [each.concern for each in figures.find_warnings(figures_of(world), 0, world.clock.now_ms())]

    assert Concern.NO_RULES in concerns()
    world.repo.set_retention('{"default_retention_days": 21}')
    assert Concern.NO_RULES not in concerns()
    world.repo.delete_retention()
    assert Concern.NO_RULES in concerns()


def test_a_new_repository_is_not_late(world: World) -> None:
    assert figures.find_warnings(Figures(), NOW, NOW) == []


def test_an_error_that_people_see_has_no_password(world: World) -> None:
    writer = FiguresWriter()
    failed = Tally()
    failed.fail("lake", "due", ObjectsUnavailable("s3://key:secret-word@host/bucket does not answer; wait"))
    writer.record_pass(world.repo.context, world.repo.record, failed.summary())
    writer.write_all(lambda: True)
    error = figures_of(world).reaper.error
    assert "does not answer" in error
    assert "secret-word" not in error
