"""Whole runs: nothing that is named goes, nothing goes at its first run, and a run that looks wrong marks nothing."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from refstore.core.clock import SystemClock
from refstore.errors import Corrupt, Invalid, InvalidSettings, ObjectsUnavailable, PruneStopped
from refstore.objects import open_objects
from refstore.objects.base import ObjectPage
from refstore.objects.local import LocalObjects
from refstore_gc.engines.choice import Engines
from refstore_gc.run_summary import ObjectCount
from refstore_prune import compare, list_store, prune_sweep
from refstore_prune.key_history import read_history
from refstore_prune.prune_report import PruneReport
from refstore_prune.sources.base import NamePart
from refstore_prune.state import last_mark, read_report, unmark
from tests.prune.folders import make_store, stored_keys
from tests.prune.given_names import GivenNames, count_of, prune
from tests.prune.marks import layout_of, list_objects, run_id, write_mark
from tests.servers.s3_servers import S3Server

LONG = "tenants/0/warehouse/sales.db/transactions/year=2024/month="
NAMED = [f"{LONG}{month:02d}/part-{number}" for month in range(1, 13) for number in range(3)]
ENDINGS = ["", " ", "+", "\u00e9"]
STRAY = [f"{LONG}{month:02d}/stray" for month in range(1, 13)]


def keys_in(url: str) -> set[str]:
    store = open_objects(url)
    try:
        return {info.key for info in store.list() if not info.key.startswith("_refstore/")}
    finally:
        store.close()


def marks_that_stand(url: str) -> tuple[str, int]:
    """Return the run and the number of objects of the mark that stands."""
    last = last_mark(open_objects(url), url)
    return (last.manifest.run_id, sum(unit.objects for unit in last.manifest.units)) if last else ("", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store", [*NAMED, *STRAY])


@pytest.fixture
def url(folder: Path) -> str:
    return f"file://{folder}"


@pytest.fixture
def many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few objects make several intervals, chunks and buckets."""
    from refstore_gc import anti_join

    monkeypatch.setattr(list_store, "FEW_KEYS", 5)
    monkeypatch.setattr(list_store, "CHUNK_ROWS", 5)
    monkeypatch.setattr(anti_join, "BUCKET_ROWS", 5)
    monkeypatch.setattr(compare, "UNIT_ROWS", 3)


# ---- what goes, and when


def test_the_grace_period_counts_from_the_end_of_the_reading(folder: Path, url: str, engines: Engines) -> None:
    """A run that read for nine minutes is no earlier reading for what is marked, but the one that it ended with."""
    store, now_ms = open_objects(url), SystemClock().now_ms()
    stray = list_objects(store, f"{LONG}12/stray")
    begun, ended = now_ms - 600_000, now_ms - 60_000
    write_mark(store, layout_of(store), stray, is_due=False, marked_ms=begun, stood_ms=ended)
    source = [*NAMED, *STRAY[:-1]]
    waits = prune(url, source, engines, grace=timedelta(minutes=5))
    assert (waits.due.objects, waits.waiting.objects, waits.newly_marked.objects) == (0, 1, 0)
    assert waits.next_due_ms == ended + 300_000
    assert read_history(store, url, STRAY[-1]).due_ms == ended + 300_000
    unmark(store, run_id(1))
    begins_anew = prune(url, source, engines, grace=timedelta(seconds=30))
    assert (begins_anew.due.objects, begins_anew.newly_marked.objects) == (0, 1)
    unmark(store, begins_anew.run_id)
    assert prune(url, source, engines, grace=timedelta(0)).newly_marked.objects == 1
    done = prune(url, source, engines, grace=timedelta(0))
    assert done.outcomes["deleted"].objects == 1


@pytest.mark.parametrize("tasks", [0, 5])
def test_what_nothing_names_goes_at_the_second_run(
    folder: Path, url: str, many_buckets: None, both_engines: Engines, tasks: int
) -> None:
    names = [f"{url}/{key}" for key in NAMED]
    simulated = prune(url, GivenNames(names, tasks=tasks), both_engines, dry_run=True)
    assert simulated.state == "simulated"
    assert not (folder / "_refstore").exists()
    first = prune(url, GivenNames(names, tasks=tasks), both_engines)
    assert (first.state, first.due.objects, first.newly_marked.objects) == ("marked", 0, len(STRAY))
    assert (count_of(first, "named"), count_of(first, "unnamed")) == (len(NAMED), len(STRAY))
    assert (first.names.names, first.names.found) == (len(NAMED), len(NAMED))
    assert first.verdicts == {**simulated.verdicts, "own": first.verdicts["own"]}
    assert stored_keys(folder) >= {*NAMED, *STRAY}
    second = prune(url, GivenNames(names, tasks=tasks), both_engines)
    assert (second.state, second.outcomes) == ("done", {"deleted": first.waiting})
    assert stored_keys(folder) == {*NAMED}
    assert prune(url, names, both_engines).state == "marked"


@pytest.mark.parametrize("seed", range(8))
def test_what_is_named_in_whatever_spelling_never_goes(
    tmp_path: Path, many_buckets: None, engines: Engines, seed: int
) -> None:
    rng = random.Random(seed)
    folders = ["a b", "caf\u00e9", "cafe\u0301x", "dt=1", LONG.strip("/"), "x%20y", "a"]
    keys = {
        "/".join(
            [
                *rng.sample(folders, rng.randrange(3)),
                f"{rng.choice('fgh')}{number}{rng.choice(ENDINGS)}z",
            ]
        )
        for number in range(60)
    }
    folder = make_store(tmp_path / "sto re", keys)
    url = f"file://{quote(str(folder))}"
    named = set(rng.sample(sorted(keys), 40))
    spelled: list[Callable[[str], str]] = [
        lambda key: key,
        lambda key: f"/{key}",
        lambda key: f"./{key}",
        lambda key: f"file:{folder}/{key}",
        lambda key: f"{folder}//{key}",
        lambda key: f"file://{quote(f'{folder}/{key}')}",
        quote,
    ]
    names = [rng.choice(spelled)(key) for key in sorted(named)]
    assert prune(url, names, engines, consent=["few-found"]).state == "marked"
    swept = prune(url, names, engines, consent=["few-found"])
    assert stored_keys(folder) == named
    assert swept.names.found == len(named)
    assert swept.due.objects == len(keys - named)


def test_a_grace_period_is_waited_for(folder: Path, url: str, engines: Engines) -> None:
    week = timedelta(days=7)
    first = prune(url, NAMED, engines, grace=week)
    assert first.began_ms <= first.next_due_ms - 7 * 86_400_000 <= first.ended_ms
    second = prune(url, NAMED, engines, grace=week)
    assert (second.due.objects, second.waiting.objects, second.newly_marked.objects) == (0, len(STRAY), 0)
    assert second.next_due_ms == first.next_due_ms
    assert {each.marked_ms for each in second.largest} == {first.next_due_ms - 7 * 86_400_000}
    assert prune(url, NAMED, engines).due.objects == len(STRAY)
    assert stored_keys(folder) == {*NAMED}


def test_of_what_changed_the_grace_period_begins_anew(folder: Path, url: str, engines: Engines) -> None:
    prune(url, NAMED, engines)
    make_store(folder, STRAY[:1], days_ago=20)
    (folder / STRAY[1]).write_text("longer than it was")
    make_store(folder, ["new"], days_ago=20)
    second = prune(url, NAMED, engines)
    assert (second.due.objects, second.newly_marked.objects) == (len(STRAY) - 2, 3)
    assert stored_keys(folder) == {*NAMED, *STRAY[:2], "new"}
    assert prune(url, NAMED, engines).due.objects == 3


@pytest.mark.parametrize("was_killed", [False, True])
def test_what_was_deleted_and_restored_begins_anew(
    folder: Path, url: str, engines: Engines, was_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restored object is as it was, to the time. It may be named now: a new grace period gives time for that."""
    backup, delete = shutil.copytree(folder, folder.with_name("backup")), LocalObjects.delete_unchanged

    class Killed(BaseException):
        pass

    def delete_and_die(store: LocalObjects, objects: ObjectPage) -> None:
        delete(store, objects)
        raise Killed

    prune(url, NAMED, engines)
    with ExitStack() as until_killed:
        if was_killed:
            until_killed.enter_context(pytest.raises(Killed))
            monkeypatch.setattr(LocalObjects, "delete_unchanged", delete_and_die)
        prune(url, NAMED, engines)
    monkeypatch.undo()
    assert stored_keys(folder) == {*NAMED}
    shutil.copytree(backup, folder, dirs_exist_ok=True)
    third = prune(url, NAMED, engines)
    assert (third.due.objects, third.newly_marked.objects) == (0, len(STRAY))
    assert prune(url, NAMED, engines).outcomes == {"deleted": third.waiting}


def test_what_is_named_again_stays_and_is_counted(folder: Path, url: str, engines: Engines) -> None:
    prune(url, NAMED, engines)
    second = prune(url, [*NAMED, *STRAY[:4]], engines)
    assert (second.named_again.objects, second.due.objects) == (4, len(STRAY) - 4)
    assert stored_keys(folder) == {*NAMED, *STRAY[:4]}
    third = prune(url, NAMED, engines)
    assert (third.due.objects, third.newly_marked.objects) == (0, 4)


def test_what_is_young_stays(folder: Path, url: str, engines: Engines) -> None:
    make_store(folder, ["young"], days_ago=2)
    source = GivenNames(NAMED)
    source.min_age = timedelta(days=3)
    first = prune(url, source, engines)
    assert (count_of(first, "young"), count_of(first, "unnamed")) == (1, len(STRAY))
    assert count_of(prune(url, source, engines, min_age=timedelta(days=40)), "young") == len(STRAY) + 1
    assert count_of(prune(url, source, engines, dry_run=True, min_age=timedelta(days=1)), "young") == 0


def test_names_of_long_ago_take_nothing_that_is_younger(folder: Path, url: str, engines: Engines) -> None:
    """Neither by age nor by grace: what they do not name may have been named since."""
    make_store(folder, ["since"], days_ago=5)
    old = GivenNames(NAMED)
    old.as_of_ms = SystemClock().now_ms() - 10 * 86_400_000
    first = prune(url, old, engines)
    assert (count_of(first, "young"), count_of(first, "unnamed")) == (1, len(STRAY))
    assert prune(url, old, engines).due.objects == 0
    assert prune(url, NAMED, engines).due.objects == len(STRAY)


def test_what_appears_while_names_are_read_was_not_listed(folder: Path, url: str, engines: Engines) -> None:
    class Late(GivenNames):
        def parts(self) -> Iterator[NamePart]:
            make_store(folder, ["late"])
            yield from super().parts()

    found = prune(url, Late(NAMED), engines)
    assert count_of(found, "unnamed") == len(STRAY)
    assert prune(url, NAMED, engines).due.objects == len(STRAY)
    assert stored_keys(folder) == {*NAMED, "late"}


def test_what_is_protected_or_never_taken_stays(folder: Path, url: str, engines: Engines) -> None:
    make_store(folder, ["a/_SUCCESS", "_SUCCESS", "keep/x", "log/[1]/x", "log/1/x"])
    source = GivenNames(NAMED)
    source.never_taken, source.never_taken_folders = ("_SUCCESS",), (r"log/\[1\]/",)
    prune(url, source, engines, protect=["keep/*"])
    found = prune(url, source, engines, protect=["keep/*"])
    assert (count_of(found, "protected"), count_of(found, "never taken")) == (1, 3)
    assert stored_keys(folder) == {*NAMED, "a/_SUCCESS", "_SUCCESS", "keep/x", "log/[1]/x"}


def test_several_sources_are_united(folder: Path, url: str, engines: Engines) -> None:
    from refstore_prune.prune_run import PruneOptions, run_prune

    sources = [
        GivenNames(NAMED[::2]),
        GivenNames([NAMED[0], *(f"s3://elsewhere/{each}" for each in NAMED)]),
        GivenNames([key.removeprefix("tenants/") for key in NAMED[1::2]], base_url=f"{url}/tenants"),
    ]
    found = run_prune(url, sources, PruneOptions(), engines)
    assert (found.names.found, found.names.outside) == (len(NAMED), len(NAMED))
    assert count_of(found, "unnamed") == len(STRAY)


def test_on_s3_with_the_state_elsewhere(
    tmp_path: Path, rclone_s3_server: S3Server, many_buckets: None, engines: Engines
) -> None:
    url, state = rclone_s3_server.url(), f"file://{tmp_path}/state"
    store = open_objects(url)
    for key in [*NAMED[:12], *STRAY, "a b", "caf\u00e9"]:
        store.put(key, key.encode())
    base = url.partition("?")[0]
    names = [f"{base.replace('s3:', 's3a:')}/{key}" for key in NAMED[:12]] + [f"{base}/a%20b", "cafe\u0301"]
    assert prune(url, names, engines, state=state, dry_run=True).state == "simulated"
    assert not (tmp_path / "state").exists()
    first = prune(url, names, engines, state=state)
    assert (first.state, first.newly_marked.objects, first.names.found_by_other_spelling) == ("marked", len(STRAY), 2)
    store.put(STRAY[0], b"written anew")
    second = prune(url, names, engines, state=state)
    assert second.due == ObjectCount(len(STRAY) - 1, sum(map(len, STRAY[1:])))
    # rclone's listing and its answer for one key may tell times that are milliseconds apart: what seems changed stays
    assert {*second.outcomes} <= {"deleted", "changed"}
    assert second.outcomes["deleted"].objects >= len(STRAY) - 3
    left = {info.key for info in store.list()}
    assert left >= {*NAMED[:12], STRAY[0], "a b", "caf\u00e9"}
    assert len(left) == 15 + second.due.objects - second.outcomes["deleted"].objects
    store.close()


def test_the_state_may_lie_below_the_store(folder: Path, url: str, engines: Engines) -> None:
    prune(url, NAMED, engines, state=f"{url}/ops/state")
    report = prune(url, NAMED, engines, state=f"{url}/ops/state")
    assert report.outcomes == {"deleted": ObjectCount(len(STRAY), sum(map(len, STRAY)))}
    assert (folder / "ops/state/_refstore/prune").is_dir()
    assert not (folder / "_refstore").exists()


# ---- what stops a run


def stopped(url: str, names: Iterable[str] | GivenNames, engines: Engines, **options: object) -> PruneStopped:
    """Make a run that stops. The mark of the run before, if there is one, stands as before."""
    before = marks_that_stand(url)
    keys = keys_in(url)
    with pytest.raises(PruneStopped) as raised:
        prune(url, names, engines, **options)
    assert marks_that_stand(url) == before
    assert keys_in(url) == keys
    return raised.value


@pytest.fixture
def marked(url: str, engines: Engines) -> PruneReport:
    return prune(url, NAMED, engines, grace=timedelta(days=7))


@pytest.mark.parametrize(
    ("names", "word", "says"),
    [
        ([], "no-consent-possible", "no name"),
        (["s3://elsewhere/x/y"], "no-consent-possible", "s3://elsewhere/x/y"),
        (NAMED[:20], "fewer-names", "20 names, and run"),
        ([f"lake/{key}" for key in NAMED], "few-found", "'lake/' too much"),
        ([f"data/{key}.gz" for key in NAMED], "few-found", "data/tenants"),
    ],
)
def test_names_that_look_wrong_stop_the_run(
    url: str, engines: Engines, marked: PruneReport, names: list[str], word: str, says: str
) -> None:
    error = stopped(url, names, engines)
    assert word in error.words
    assert says in str(error)
    assert f"--consent {word}" in str(error) or word == "no-consent-possible"
    assert read_report(open_objects(url)).state == "failed"
    simulated = prune(url, names, engines, dry_run=True)
    assert any(word in each for each in simulated.failed_checks)
    if word != "no-consent-possible":
        assert prune(url, names, engines, consent=error.words, grace=timedelta(days=7)).state == "marked"
    else:
        stopped(url, names, engines, consent=["few-found", "fewer-names", "large-share"])


@pytest.mark.parametrize("tasks", [0, 3])
@pytest.mark.parametrize("names", [[f"lake/{key}" for key in STRAY], [f"s3://elsewhere/{key}" for key in STRAY], []])
def test_one_of_several_sources_of_which_nothing_is_there_stops_the_run(
    url: str, engines: Engines, names: list[str], tasks: int
) -> None:
    """The names of the others look right, and those of this one keep nothing: they have another prefix."""
    wrong = GivenNames(names, tasks=tasks)
    wrong.text = "the wrong one"
    error = stopped(url, NAMED, engines, more=[wrong])
    assert error.words == ("few-found",)
    assert f"of {len(names)} names of the wrong one" in str(error)
    assert prune(url, NAMED, engines, more=[GivenNames(STRAY[:4], tasks=tasks)]).newly_marked.objects == len(STRAY) - 4


def test_fewer_names_stop_the_run_also_after_all_was_unmarked(url: str, engines: Engines, marked: PruneReport) -> None:
    unmark(open_objects(url), "all")
    assert stopped(url, NAMED[:20], engines).words == ("fewer-names",)
    assert prune(url, NAMED, engines).newly_marked == marked.newly_marked


def test_fewer_names_of_a_small_source_stop_the_run(folder: Path, url: str, engines: Engines) -> None:
    def sources(*names: Iterable[str], called: str = "small ") -> list[GivenNames]:
        made = [GivenNames(each) for each in names]
        for number, each in enumerate(made):
            each.text = f"{called}{number}"
        return made

    small = [f"small/{number}" for number in range(11)]
    make_store(folder, small)
    assert prune(url, NAMED, engines, more=sources(small, STRAY[:6])).state == "marked"
    error = stopped(url, NAMED, engines, more=sources(small[:1], STRAY[:6]))
    assert error.words == ("fewer-names",)
    assert "small 0 had 11 names in run" in str(error)
    assert "small 0 has 1" in str(error)
    assert "small 1 had 6 names in run" in str(stopped(url, NAMED, engines, more=sources(small)))
    assert stopped(url, NAMED, engines, more=sources(small[:1], STRAY[:6], called="dated ")).words == ("fewer-names",)
    assert prune(url, NAMED, engines, more=sources(small[:9], STRAY[:6], called="dated ")).state == "done"


def test_names_of_another_prefix_of_the_bucket_stop_the_run(url: str, engines: Engines, marked: PruneReport) -> None:
    error = stopped(url, [f"s3://bucket/{key}" for key in NAMED], engines)
    assert "'s3://bucket/' too much" in str(error)


def test_a_large_share_stops_the_run(folder: Path, url: str, engines: Engines, marked: PruneReport) -> None:
    make_store(folder, [f"bulk/{number}" for number in range(100)])
    error = stopped(url, NAMED, engines, floor_objects=100)
    assert error.words == ("large-share",)
    assert prune(url, NAMED, engines, grace=timedelta(days=7), floor_objects=200).state == "marked"
    assert prune(url, NAMED, engines, grace=timedelta(days=7), floor_objects=1, share_max=0.9).state == "marked"


def test_a_large_share_of_the_bytes_stops_the_run(folder: Path, url: str, engines: Engines) -> None:
    (folder / STRAY[0]).write_bytes(b"x" * 100_000)
    make_store(folder, [], days_ago=0)
    error = stopped(url, NAMED, engines, floor_objects=1)
    assert error.words == ("large-share",)


@pytest.mark.parametrize(
    "key", ["t/_delta_log/0.json", "t/metadata/v1.metadata.json", "repo/_lakefs/x", "code/.git/config"]
)
def test_metadata_that_no_source_reads_stops_the_run(folder: Path, url: str, engines: Engines, key: str) -> None:
    make_store(folder, [key])
    error = stopped(url, NAMED, engines)
    assert error.words == ("unread-metadata",)
    assert key.partition("/")[0] in str(error)
    source = GivenNames(NAMED)
    source.reads = ("_delta_log", "iceberg", "_lakefs", ".git")
    assert prune(url, source, engines).state == "marked"


@pytest.mark.parametrize("pattern", ["caf\u00e9", "caf\u00e9/", "/caf\u00e9/*", "./cafe\u0301/*", "*/y"])
def test_a_pattern_protects_a_folder_in_every_spelling(folder: Path, url: str, engines: Engines, pattern: str) -> None:
    make_store(folder, ["cafe\u0301/x/y"])
    found = prune(url, NAMED, engines, protect=[pattern])
    assert (count_of(found, "protected"), count_of(found, "unnamed")) == (1, len(STRAY))


def test_what_refstore_owns_is_refused_behind_a_link(tmp_path: Path, folder: Path, engines: Engines) -> None:
    make_store(folder, ["_refstore/namespace"])
    (tmp_path / "link").symlink_to(folder / "tenants/0")
    names = [key.removeprefix("tenants/0/") for key in NAMED]
    assert stopped(f"file://{tmp_path}/link", names, engines).words == ("no-consent-possible",)


@pytest.mark.parametrize("owner", ["_refstore/namespace", "_refstore/lake", "below/lake1/_refstore/namespace"])
def test_what_refstore_owns_is_refused(folder: Path, url: str, engines: Engines, owner: str) -> None:
    make_store(folder, [owner])
    assert stopped(url, NAMED, engines, consent=["unread-metadata"]).words == ("no-consent-possible",)
    below = f"{url}/tenants/0"
    if owner == "_refstore/namespace":
        error = stopped(below, [key.removeprefix("tenants/0/") for key in NAMED], engines)
        assert error.words == ("no-consent-possible",)
        assert "refstore gc" in str(error)
        assert not (folder / "tenants/0/_refstore").exists()


def test_an_age_below_that_of_a_source_stops_the_run(url: str, engines: Engines) -> None:
    source = GivenNames(NAMED)
    source.min_age = timedelta(days=3)
    day = timedelta(days=1)
    assert stopped(url, source, engines, min_age=day).words == ("min-age",)
    assert prune(url, source, engines, min_age=day, consent=["min-age"]).state == "marked"


def test_a_source_that_breaks_off_stops_the_run(url: str, engines: Engines, marked: PruneReport) -> None:
    class Broken(GivenNames):
        def parts(self) -> Iterator[NamePart]:
            yield from super().parts()
            raise Corrupt("the list ends in the middle of a name")

    before = marks_that_stand(url)
    with pytest.raises(Corrupt):
        prune(url, Broken(NAMED), engines)
    assert marks_that_stand(url) == before
    assert read_report(open_objects(url)).error.startswith("Corrupt")


def test_a_run_that_breaks_off_tells_what_it_deleted(
    folder: Path, url: str, engines: Engines, many_buckets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = prune(url, NAMED, engines)
    looks, check_lock = count(), prune_sweep.check_lock

    def lose_lock(*args: Any) -> None:
        if next(looks) == 2:
            raise ObjectsUnavailable("the store is gone")
        check_lock(*args)

    monkeypatch.setattr(prune_sweep, "check_lock", lose_lock)
    with pytest.raises(ObjectsUnavailable):
        prune(url, NAMED, engines)
    gone = {*NAMED, *STRAY} - stored_keys(folder)
    told = read_report(open_objects(url))
    assert 0 < len(gone) < len(STRAY)
    assert (told.state, told.outcomes["deleted"].objects, told.due) == ("failed", len(gone), marked.waiting)
    assert told.error.endswith("the store is gone")


def test_wrong_options_are_refused(url: str, engines: Engines) -> None:
    for wrong in (
        {"grace": timedelta(-1)},
        {"consent": ["everything"]},
        {"share_max": 2},
        {"protect": ["s3://bucket/x/*"]},
        {"protect": ["/"]},
        {"protect": [""]},
    ):
        with pytest.raises(InvalidSettings):
            prune(url, NAMED, engines, **wrong)
    from refstore_prune.prune_run import PruneOptions, run_prune

    with pytest.raises(Invalid):
        run_prune(url, [], PruneOptions(), engines)


# ---- the report


def test_the_report_adds_up(folder: Path, url: str, engines: Engines, many_buckets: None) -> None:
    make_store(folder, ["a/b/c/old"], days_ago=400)
    make_store(folder, ["top"], days_ago=3)
    found = prune(url, NAMED, engines, dry_run=True)
    unnamed = found.verdicts["unnamed"]
    assert sum(found.verdicts.values(), ObjectCount()) == found.listed
    assert sum((row.unnamed for row in found.by_age), ObjectCount()) == unnamed
    assert sum((row.unnamed for row in found.by_prefix), ObjectCount()) == unnamed
    assert sum((row.listed for row in found.by_prefix), ObjectCount()) == found.listed
    assert {row.prefix for row in found.by_prefix} == {"tenants/0/", "a/b/", "./"}
    assert [(row.days_from, row.unnamed.objects) for row in found.by_age if row.unnamed.objects] == [
        (1, 1),
        (30, len(STRAY)),
        (365, 1),
    ]
    assert sorted(each.key for each in found.largest) == sorted([*STRAY, "a/b/c/old", "top"])
    assert msgspec.json.decode(msgspec.json.encode(found), type=PruneReport) == found


def test_names_that_were_not_found_are_told(url: str, engines: Engines) -> None:
    found = prune(url, [*NAMED, "missing/x"], engines, dry_run=True)
    assert found.names.examples_not_found == ["missing/x"]
    assert found.names.names == len(NAMED) + 1


def test_keys_that_the_store_cannot_have_are_left_and_told(folder: Path, url: str, engines: Engines) -> None:
    (folder / "link").symlink_to("nowhere")
    found = prune(url, NAMED, engines, dry_run=True)
    assert any("link" in each for each in found.not_looked_at)
