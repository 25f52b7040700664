"""Every entry point takes the durations that the lake's processes have agreed on. `config --set` changes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from refstore import open as refstore_open
from refstore.agreed_durations import read_record
from refstore.configuration.settings import SETTINGS, Settings, embedded_urls
from refstore.core.safety import FOR_TRYING, SHARED
from refstore.errors import DurationsDiffer
from refstore.lake import Lake, open_lake_at
from refstore.records import keys
from refstore_api import create_app
from tests.commands import Command
from tests.durations import MAIN_JOB, set_constants
from tests.servers.redis_servers import RedisServer


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.server)])
def lake(request: pytest.FixtureRequest, refstore: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A lake with the default durations, which every command finds."""
    kv, objects = embedded_urls(refstore.folder / "lake")
    (refstore.folder / "lake").mkdir()
    with ExitStack() as stack:
        if request.param == "redis":
            kv = stack.enter_context(RedisServer(refstore.folder / "redis")).url
        monkeypatch.delenv("REFSTORE_DATA")
        monkeypatch.setenv("REFSTORE_KV", kv)
        monkeypatch.setenv("REFSTORE_OBJECTS", objects)
        opened = stack.enter_context(open_lake_at(kv, objects))
        opened.create_repository("sales").upload("main", "a", b"1")
        yield opened


def test_no_process_has_durations_of_its_own(lake: Lake, refstore: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no settings, so nothing that is set up otherwise can scrub what another still needs."""
    set_constants(monkeypatch, Safety={name: getattr(MAIN_JOB, name) for name in SHARED})
    for command in ("ls sales main", "reaper --once", "gc status sales"):
        assert refstore(*command.split()).code == 0
    kv, objects = os.environ["REFSTORE_KV"], os.environ["REFSTORE_OBJECTS"]
    with create_app(Settings(data=None, kv=kv, objects=objects, safety=MAIN_JOB)).state.service.lake as served:
        assert served.safety.operation_deadline_seconds == 3600
    names = {setting.field for setting in SETTINGS.values()}
    assert names.isdisjoint(SHARED)
    with pytest.raises(DurationsDiffer, match="operation_deadline is 8s"):
        refstore_open(kv=kv, objects=objects, safety=MAIN_JOB)


@pytest.mark.usefixtures("lake")
def test_a_process_without_settings_goes_on(refstore: Command) -> None:
    assert refstore.json("ls", "sales", "main")[0]["path"] == "a"
    assert refstore.json("reaper", "--once")["errors"] == []


def test_the_durations_stand_in_the_lake_from_its_creation_on(
    refstore: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        set_constants(patch, Safety={name: getattr(MAIN_JOB, name) for name in SHARED})
        refstore.ok("repo", "create", "sales")
    rows = {row["duration"]: row["agreed_seconds"] for row in refstore.json("config", "--agreed")}
    assert rows == {
        "operation_deadline": 8,
        "io_timeout": 3,
        "clock_skew": 0,
        "issue": 8,
    }


def test_show(lake: Lake, refstore: Command) -> None:
    shown = refstore.ok("config", "--agreed", "--json")
    assert shown.err == ""
    assert shown.json[-1] == {"duration": "issue", "agreed_seconds": 3600, "former_seconds": [], "until": None}
    lake.kv.delete(keys.DURATIONS)
    assert "no agreed durations yet" in refstore.ok("config", "--agreed").err
    assert read_record(lake.kv) is None, "it shows only"


@pytest.mark.usefixtures("lake")
def test_a_change(refstore: Command) -> None:
    planned = refstore.json("config", "--set", "issue=60s", "--dry-run")
    assert planned["changed"] == [{"duration": "issue", "before_seconds": 3600, "after_seconds": 60}]
    assert planned["dry_run"]
    assert refstore.json("config", "--agreed")[-1]["agreed_seconds"] == 3600, "nothing was changed"

    done = refstore.ok("config", "--set", "issue=1m", "--json")
    assert done.json["changed"] == planned["changed"]
    assert done.json["until"] in done.err
    assert refstore.ok("ls", "sales", "main", "--json").json[0]["path"] == "a"
    (issue,) = refstore.json("config", "--agreed")[-1:]
    assert (issue["former_seconds"], issue["until"]) == ([3600], done.json["until"])

    entries = refstore.json("audit", "log", "--action", "durations.set")
    assert [entry["outcome"] for entry in entries] == ["done", "begun"]
    assert (entries[0]["before"]["issue_seconds"], entries[0]["after"]["issue_seconds"]) == (3600, 60)
    assert "Nothing to change" in refstore.ok("config", "--set", "issue=60s").err
    assert len(refstore.json("audit", "log", "--action", "durations.set")) == 2


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("issue", "is no change; write NAME=DURATION"),
        ("issue=soon", "issue 'soon' is no duration that fits"),
        ("issue=60", "issue '60' is no duration that fits"),
        ("grace=5s", "grace: not a duration that processes agree on"),
        ("operation_deadline=59s", "operation_deadline is 59s, and 1m is the shortest"),
        ("io_timeout=14s", "io_timeout is 14s, and 15s is the shortest"),
        ("clock_skew=0", "clock_skew is 0, and 1s is the shortest"),
    ],
)
def test_what_is_no_change(sales: Command, argument: str, message: str) -> None:
    ran = sales("config", "--set", argument)
    assert ran.code == 2
    assert message in ran.err


def test_a_shorter_request_asks_for_a_new_start(sales: Command) -> None:
    assert "start every process again" in sales.ok("config", "--set", "io_timeout=20s").err
    assert "start every process again" not in sales.ok("config", "--set", "io_timeout=70s").err


class TestALakeForTrying:
    def test_it_has_short_durations_from_its_making_on_and_says_so(self, refstore: Command) -> None:
        refstore.ok("repo", "create", "sales", "--for-trying")
        agreed = {row["duration"]: row["agreed_seconds"] for row in refstore.json("config", "--agreed")}
        assert [*agreed.values()] == [getattr(FOR_TRYING, name) for name in SHARED]
        checks = {row["check"]: row for row in refstore("doctor", "--json").json}
        assert checks["durations"]["state"] == "warning"
        assert "this lake is for trying" in checks["durations"]["found"]
        refstore.ok("repo", "create", "more", "--for-trying")

    def test_its_garbage_may_be_as_young_as_an_operation(self, refstore: Command) -> None:
        refstore.ok("repo", "create", "sales", "--for-trying")
        assert refstore.json("gc", "run", "sales", "--dry-run")["runs"][0]["min_age_seconds"] == 31
        refstore.ok("repo", "create", "stock", "--data", "other")
        assert (
            refstore.json("gc", "run", "stock", "--dry-run", "--data", "other")["runs"][0]["min_age_seconds"] == 86_400
        )

    def test_it_keeps_them(self, refstore: Command) -> None:
        refstore.ok("repo", "create", "sales", "--for-trying")
        ran = refstore("config", "--set", "operation_deadline=1h")
        assert ran.code == 2
        assert "was made with durations for trying, and keeps them" in ran.err

    def test_no_other_lake_gets_them(self, refstore: Command, lake: Lake) -> None:
        for _ in range(2):  # with its durations, and with records of a KV that has lost them
            ran = refstore("repo", "create", "try", "--for-trying")
            assert ran.code == 2
            assert "this one exists with other durations" in ran.err
            lake.kv.delete(keys.DURATIONS)
        assert [row["repository"] for row in refstore.json("repo", "list")] == ["sales"]
