"""`refstore purge run` on a real standalone cluster, one of whose workers is killed in the middle; and where ids stand
behind it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.offline.world import World
from tests.purge.tracking import PREFIX, event, guestids, onboard, parquet, rows_at
from tests.spark.cluster import cluster
from tests.spark.java import QUICK_JAVA
from tests.spark.test_cluster import CONF, LOOPBACK

OBJECTS = 200
ROWS = 40
SECRET = "guest-SECRET"
SECRETS = [f"{SECRET}-{number}" for number in range(0, ROWS, 4)]
LOGGED = ("eventLog.enabled=true", "eventLog.compress=false", "eventLog.dir=file://{}")
CLEAN_SECONDS = 60
"""So long may a worker take to clean up behind an application."""


@pytest.mark.slow
@pytest.mark.server
def test_a_worker_that_is_killed_in_a_purge_costs_only_time_and_no_id_stands_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {name: tmp_path / name for name in ("tmp", "local", "events")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folders["tmp"]))  # of all processes that are started here
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folders["local"]))
    world = World(tmp_path / "lake")
    rows = {
        f"{PREFIX}day={number % 3}/{number}": [
            event(f"{SECRET if row % 4 == 0 else 'guest'}-{row}", number) for row in range(ROWS)
        ]
        for number in range(OBJECTS)
    }
    for path, each in rows.items():
        world.repo.upload("main", path, parquet(each))
    world.repo.commit("main", "events")
    onboard(world.repo)
    before = world.data()
    ids = guestids(tmp_path, *SECRETS)
    env = {
        **os.environ,
        "REFSTORE_DATA": str(tmp_path / "lake"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
    }
    command = [sys.executable, "-m", "refstore", "--json"]
    log = [word for each in LOGGED for word in ("--conf", f"spark.{each.format(folders['events'])}")]
    out, err = tmp_path / "driver.out", tmp_path / "driver.err"
    with cluster(tmp_path / "cluster") as spark:
        there = ["--master", spark.url, *CONF, *LOOPBACK, *log]
        with out.open("wb") as told, err.open("wb") as said:
            run = subprocess.Popen(
                [*command, "purge", "run", "sales", "--ids", str(ids), "--yes", *there],
                env=env,
                stdout=told,
                stderr=said,
            )
        try:
            while run.poll() is None and world.data() == before:
                time.sleep(0.005)
            spark.kill_worker(0)
            done = len(world.data() - before)
            run.wait(200)
        finally:
            run.kill()
            run.wait()
        assert run.returncode == 0, err.read_text()[-3000:]
        until = time.monotonic() + CLEAN_SECONDS
        while len(dead := list(folders["local"].glob("spark-*/executor-*"))) > 1 and time.monotonic() < until:
            time.sleep(0.1)
    assert 0 < done < OBJECTS, "the worker was killed before the rewriting or behind it; nothing was shown"

    report = json.loads(out.read_bytes())
    assert sum(row["rewritten_objects"] for row in report["rows"]) == OBJECTS
    assert sum(row["rows_changed"] for row in report["rows"]) == OBJECTS * len(SECRETS)
    for path, each in rows.items():
        assert rows_at(world.repo, "main", path) == [row for row in each if SECRET not in row["metadata"]["guestid"]]
    for words in (["purge", "verify", "sales", "--ids", str(ids)], ["audit", "log", "--limit", "0"]):
        ran = subprocess.run([*command, *words], env=env, capture_output=True, check=False, timeout=60)
        assert ran.returncode == 0, ran.stderr.decode()[-3000:]
        assert SECRET not in (ran.stdout + ran.stderr).decode()

    # of the KV, the store, the event log, and whatever Spark and its workers wrote; but for what is data
    assert list(folders["events"].rglob("events_*"))
    # on a busy machine Spark may start an executor of the living worker anew: then that one has written two
    wrote = {file.relative_to(tmp_path / "cluster").parts[0] for file in tmp_path.glob("cluster/work-*/*/*/stderr")}
    assert wrote == {"work-1", "work-2"}
    data = {world.blobs / address for address in before}
    names = {
        file
        for file in tmp_path.rglob("*")
        if file.is_file() and file not in data and file != ids and SECRET.encode() in file.read_bytes()
    }
    # the worker that was killed cleans up no more: docs/purge.md says so
    theirs = [tmp_path / "cluster" / "work-1", *dead]
    assert [file for file in names if not any(file.is_relative_to(each) for each in theirs)] == []
    assert list(folders["tmp"].iterdir()) == []
    world.close()
