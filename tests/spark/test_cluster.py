"""The command on a real standalone cluster, one of whose workers is killed in the middle of a sweep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refstore.core import ids
from tests.durations import AT_ONCE_ENVIRONMENT
from tests.offline.world import World
from tests.reaping import release_all
from tests.spark.cluster import cluster
from tests.spark.java import QUICK_JAVA

ORPHANS = 60_000
"""Six units of the mark: two are under way when the first is seen to be done, and some are not begun, however busy
the machine is.
"""
SLICES = 20
CONF = ("--conf", "spark.executor.memory=512m", "--conf", f"spark.executor.extraJavaOptions={QUICK_JAVA}")
LOOPBACK = ("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1")


@pytest.mark.slow
@pytest.mark.server
def test_a_worker_that_is_killed_in_a_sweep_costs_nothing_but_time(tmp_path: Path) -> None:
    world = World(tmp_path / "lake")
    world.commit(days_ago=2, a=b"kept")
    release_all(world.repo)
    kept = world.address("main", "a")
    for number in range(ORPHANS):
        address = ids.new_address(ids.RandomIds(), 1_700_000_000_000 + number % SLICES * 3_600_000)
        file = world.blobs / address
        if number < SLICES:
            file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    world.age()
    world.close()
    with cluster(tmp_path / "cluster") as spark:
        env = {
            **os.environ,
            **AT_ONCE_ENVIRONMENT,
            "REFSTORE_DATA": str(tmp_path / "lake"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": QUICK_JAVA,
        }
        command = [sys.executable, "-m", "refstore", "gc", "--json", "run", "sales", "--only"]
        there = ["--master", spark.url, *CONF, *LOOPBACK]
        ages = ["--grace", "0", "--min-age", "0", "--breaker-share", "1"]
        marked = subprocess.run([*command, "mark", *ages, *there], env=env, capture_output=True, check=False)
        assert marked.returncode == 0, marked.stderr.decode()[-3000:]
        (summary,) = json.loads(marked.stdout)["runs"]
        assert summary["marked"]["objects"] == ORPHANS
        files = world.blobs / "_refstore" / "gc" / summary["mark_id"]
        units = len(list((files / "mark").iterdir()))
        sweep = subprocess.Popen([*command, "sweep", *there], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            while sweep.poll() is None and not list((files / "sweep").glob("*.parquet")):
                time.sleep(0.005)
            spark.kill_worker(0)
            done = len(list((files / "sweep").glob("*.parquet")))
            out, err = sweep.communicate()
        finally:
            sweep.kill()
        assert sweep.returncode == 0, err.decode()[-3000:]
    assert 0 < done < units, "the worker was killed before the sweep or behind it; nothing was shown"
    (swept,) = json.loads(out)["runs"]
    outcomes = {name: count["objects"] for name, count in swept["sweep"]["outcomes"].items()}
    assert sum(outcomes.values()) == ORPHANS
    assert set(outcomes) <= {"deleted", "already gone"}
    assert world.data() == {kept}
