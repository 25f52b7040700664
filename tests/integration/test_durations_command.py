"""Every entry point refuses durations that the lake's processes have not agreed on. `refstore config --set` changes
them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from refstore.agreed_durations import read_record
from refstore.configuration.settings import Settings, embedded_urls
from refstore.core.safety import FOR_TRYING, SHARED
from refstore.errors import DurationsDiffer
from refstore.lake import Lake
from refstore.records import keys
from refstore_api import create_app
from tests.commands import Command
from tests.durations import MAIN_JOB
from tests.servers.redis_servers import RedisServer

OTHERS = {
    "REFSTORE_OPERATION_DEADLINE_SECONDS": "8",
    "REFSTORE_IO_TIMEOUT_SECONDS": "3",
    "REFSTORE_CLOCK_SKEW_SECONDS": "0",
    "REFSTORE_RECHECK_AFTER_SECONDS": "2",
    "REFSTORE_SCRUB_AFTER_SECONDS": "11",
}
REFUSAL = (
    "operation_deadline_seconds is 8 (environment REFSTORE_OPERATION_DEADLINE_SECONDS), and the lake's processes have "
    "agreed on 3600"
)


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
        opened = stack.enter_context(Lake.open(kv, objects))
        opened.create_repository("sales").upload("main", "a", b"1")
        yield opened


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of a process that was set up for other durations."""
    for name, value in OTHERS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("lake", "others")
@pytest.mark.parametrize(
    "command",
    [
        "ls sales main",
        "upload sales main - b",
        "repo create more",
        "keys create",
        "reaper --once",
        "reaper --once --dry-run",
        "reaper",
        "reaper status",
        "gc status sales",
        "gc run sales",
        "gc run sales --only index",
        "serve --port 0",
        "retention set sales -",
        "audit verify",
    ],
)
def test_every_command_refuses(refstore: Command, command: str) -> None:
    ran = refstore(*command.split(), "--json")
    assert ran.code == 2
    assert ran.error["code"] == "durations_differ"
    assert REFUSAL in ran.error["message"]
    assert "refstore config --set" in ran.error["message"]


@pytest.mark.usefixtures("lake", "others")
def test_so_does_the_application() -> None:
    kv, objects = os.environ["REFSTORE_KV"], os.environ["REFSTORE_OBJECTS"]
    with pytest.raises(DurationsDiffer, match="operation_deadline_seconds is 8, and"):
        create_app(Settings(data=None, kv=kv, objects=objects, safety=MAIN_JOB))


@pytest.mark.usefixtures("lake")
def test_a_process_without_settings_goes_on(refstore: Command) -> None:
    assert refstore.json("ls", "sales", "main")[0]["path"] == "a"
    assert refstore.json("reaper", "--once")["errors"] == []


@pytest.mark.usefixtures("lake")
def test_a_real_reaper_does_not_start(refstore: Command) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "refstore", "reaper"],
        capture_output=True, env=os.environ | OTHERS, cwd=refstore.folder, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert REFUSAL in ran.stderr.decode()


def test_the_durations_stand_in_the_lake_from_its_creation_on(
    refstore: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OTHERS.items():
        monkeypatch.setenv(name, value)
    refstore.ok("repo", "create", "sales")
    for name in OTHERS:
        monkeypatch.delenv(name)
    rows = {row["setting"]: row["agreed_seconds"] for row in refstore.json("config", "--agreed")}
    assert rows == {
        "safety.operation_deadline_seconds": 8,
        "safety.io_timeout_seconds": 3,
        "safety.clock_skew_seconds": 0,
        "safety.scrub_after_seconds": 11,
        "safety.issue_seconds": 3600,
    }


def test_show_tells_which_settings_differ(lake: Lake, refstore: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refstore.ok("config", "--agreed").err == ""
    monkeypatch.setenv("REFSTORE_ISSUE_SECONDS", "60")
    shown = refstore.ok("config", "--agreed", "--json")
    assert shown.json[-1] == {
        "setting": "safety.issue_seconds",
        "agreed_seconds": 3600,
        "former_seconds": [],
        "until": None,
        "own_seconds": 60,
        "origin": "environment REFSTORE_ISSUE_SECONDS",
    }
    assert "a process with them does not start." in shown.err
    lake.kv.delete(keys.DURATIONS)
    assert "no agreed durations yet" in refstore.ok("config", "--agreed").err
    assert read_record(lake.kv) is None, "it shows only"


@pytest.mark.usefixtures("lake")
def test_a_change(refstore: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFSTORE_ISSUE_SECONDS", "60")
    assert refstore("ls", "sales", "main").code == 2
    planned = refstore.json("config", "--set", "issue_seconds=60s", "--dry-run")
    assert planned["changed"] == [{"setting": "safety.issue_seconds", "before_seconds": 3600, "after_seconds": 60}]
    assert planned["dry_run"]
    assert refstore("ls", "sales", "main").code == 2, "nothing was changed"

    done = refstore.ok("config", "--set", "safety.issue_seconds=1m", "--json")
    assert done.json["changed"] == planned["changed"]
    assert done.json["until"] in done.err
    assert refstore.ok("ls", "sales", "main", "--json").json[0]["path"] == "a"
    monkeypatch.setenv("REFSTORE_ISSUE_SECONDS", "3600")
    refstore.ok("ls", "sales", "main")
    shown = refstore.ok("config", "--agreed", "--json")
    assert shown.json[-1]["former_seconds"] == [3600]
    assert f"does not start any more after {done.json['until']}" in shown.err

    entries = refstore.json("audit", "log", "--action", "durations.set")
    assert [entry["outcome"] for entry in entries] == ["done", "begun"]
    assert (entries[0]["before"]["issue_seconds"], entries[0]["after"]["issue_seconds"]) == (3600, 60)
    assert "Nothing to change" in refstore.ok("config", "--set", "issue_seconds=60s").err
    assert len(refstore.json("audit", "log", "--action", "durations.set")) == 2


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("issue_seconds", "is no change; write NAME=DURATION"),
        ("issue_seconds=60", "issue_seconds '60' is no duration"),
        ("issue_seconds=soon", "issue_seconds 'soon' is no duration"),
        ("grace_seconds=5s", "grace_seconds: not a duration that processes agree on"),
        ("operation_deadline_seconds=59s", "operation_deadline_seconds is 59, and 60 s is the shortest"),
        ("io_timeout_seconds=14s", "io_timeout_seconds is 14, and 15 s is the shortest"),
        ("clock_skew_seconds=0", "clock_skew_seconds is 0, and 1 s is the shortest"),
        ("operation_deadline_seconds=1d", "must be at least operation_deadline_seconds + io_timeout_seconds"),
    ],
)
def test_what_is_no_change(sales: Command, argument: str, message: str) -> None:
    ran = sales("config", "--set", argument)
    assert ran.code == 2
    assert message in ran.err


def test_a_shorter_request_asks_for_a_new_start(sales: Command) -> None:
    assert "start every process again" in sales.ok("config", "--set", "io_timeout_seconds=20s").err
    assert "start every process again" not in sales.ok("config", "--set", "io_timeout_seconds=70s").err


class TestALakeForTrying:
    def test_it_has_short_durations_from_its_making_on_and_says_so(self, refstore: Command) -> None:
        refstore.ok("repo", "create", "sales", "--for-trying")
        agreed = {row["setting"]: row["agreed_seconds"] for row in refstore.json("config", "--agreed")}
        assert agreed == {f"safety.{name}": getattr(FOR_TRYING, name) for name in SHARED}
        checks = {row["check"]: row for row in refstore("doctor", "--json").json}
        assert checks["durations"]["state"] == "warning"
        assert "this lake is for trying" in checks["durations"]["found"]
        refstore.ok("repo", "create", "more", "--for-trying")

    def test_its_garbage_may_be_as_young_as_an_operation(self, refstore: Command) -> None:
        refstore.ok("repo", "create", "sales", "--for-trying")
        assert refstore.json("gc", "run", "--dry-run", "sales")["runs"][0]["min_age_seconds"] == 31
        refstore.ok("repo", "create", "stock", "--data", "other")
        assert (
            refstore.json("gc", "run", "--dry-run", "stock", "--data", "other")["runs"][0]["min_age_seconds"] == 86_400
        )

    def test_it_keeps_them(self, refstore: Command) -> None:
        refstore.ok("repo", "create", "sales", "--for-trying")
        ran = refstore("config", "--set", "operation_deadline_seconds=1h", "--set", "scrub_after_seconds=2h")
        assert ran.code == 2
        assert "was made with durations for trying, and keeps them" in ran.err

    def test_no_other_lake_gets_them(self, refstore: Command, lake: Lake) -> None:
        for _ in range(2):  # with its durations, and with records of a KV that has lost them
            ran = refstore("repo", "create", "try", "--for-trying")
            assert ran.code == 2
            assert "this one exists with other durations" in ran.err
            lake.kv.delete(keys.DURATIONS)
        assert [row["repository"] for row in refstore.json("repo", "list")] == ["sales"]
