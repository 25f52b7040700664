"""After a restart of Redis, or a copied KV file, nothing is deleted for an hour: whoever looks is told so."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.commands import Command
from tests.servers.redis_servers import RedisServer

UNTIL = r"settling until (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ), because other servers of the KV answer than before"


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.server)])
def restart(
    request: pytest.FixtureRequest, refstore: Command, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], None]]:
    """Make another server answer, which has lost nothing."""
    if request.param == "redis":
        with RedisServer(refstore.folder / "redis", fsync="no") as redis:
            monkeypatch.delenv("REFSTORE_DATA")
            monkeypatch.setenv("REFSTORE_KV", redis.url)
            (refstore.folder / "objects").mkdir()
            monkeypatch.setenv("REFSTORE_OBJECTS", f"file://{refstore.folder}/objects")
            yield redis.restart
        return

    def copy() -> None:
        (file,) = (refstore.folder / "lake").glob("*.sqlite")
        shutil.copy(file, refstore.folder / "copy")
        Path(refstore.folder / "copy").replace(file)

    yield copy


def test_what_deletion_waits_for_is_told_until_a_reaper_has_settled(
    refstore: Command, restart: Callable[[], None]
) -> None:
    refstore.ok("repo", "create", "sales")
    assert refstore.json("reaper", "status")["settling"] == "", "nothing was witnessed yet"
    refstore.ok("reaper", "--once")
    assert refstore.json("reaper", "status")["settling"] == ""
    restart()
    assert "no reaper has seen them yet" in refstore.json("reaper", "status")["settling"]
    ran = refstore("reaper", "--once")
    assert ran.code == 5
    until = re.search(r"nothing is deleted until (\S+Z)", ran.err)
    assert until is not None, ran.err
    told = re.match(UNTIL, refstore.json("reaper", "status")["settling"])
    assert told is not None
    assert told[1] == until[1]
    assert datetime.fromisoformat(told[1]).tzinfo is not None
    shown = refstore.ok("reaper", "status").out
    assert re.search(UNTIL, shown)
    assert re.search(r"sales .* settling", shown)
    doctor = refstore("doctor", "--no-write", "--json")
    assert doctor.code == 4
    (check,) = [each for each in doctor.json if each["check"] == "deletion"]
    assert (check["state"], bool(re.match(UNTIL, check["found"]))) == ("warning", True)
