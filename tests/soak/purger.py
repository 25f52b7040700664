"""The processes of the soak with a purge: a client whose objects have rows of people, and a purger that is told to run.

    python -m tests.soak.purger client KV OBJECTS REPO NAME SEED LEDGER
    python -m tests.soak.purger purge KV OBJECTS REPO IDS FOLDER MASTER [FAULT]
    python -m tests.soak.purger collect KV OBJECTS REPO

A purger starts its Spark once and says "ready"; then each line of its standard input is a run, as JSON: `copies`,
whether names outside the data sets are purged, too; `kill`, the step in which all its processes are to be killed, and
after how many seconds. It tells each step as it begins, and what a run came to.

Whatever a run rewrites, it rewrites twice at once; and one Python process of each purger dies behind an object that it
has written, so that Spark does the task again. `FAULT` plants one that the audit has to find: "row" (of JSON, one row
too many goes), "over" (a run publishes over what others have changed meanwhile).
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from refstore.errors import RefstoreError
from refstore.lake import open_lake_at
from refstore.operations.upload import Upload
from refstore.repository import Repository
from tests.durations import MAIN_JOB
from tests.soak import collector
from tests.soak.client import Client, run_client
from tests.soak.collector import tell

SAFETY = replace(MAIN_JOB, issue_seconds=60)
"""On a busy machine a task takes longer than a client, and a rewrite has to end within the deadline. The offline
job does not wait for what was issued.
"""
PAUSE_SECONDS = 0.15
REST_SECONDS = 1.5
"""A branch that has staged changes all the time is never purged."""
FORGET = ("forget-0", "forget-1")
GUESTS = (*FORGET, "stay-0", "stay-1", "stay-2", None)
EVENTS, LINES, OTHER = "events/", "lines/", "other/"
"""Parquet and JSON lines, which are onboarded; and what is not."""
SCHEMA: Any = pa.schema([("n", pa.string()), ("user", pa.struct([("guest", pa.string())]))])
PURGE_KEY = b"a key of at least thirty-two characters"


def document(mode: str) -> dict[str, Any]:
    """The purge document; of the mode `rewrite` no backup is kept for longer than it has to be."""
    return {
        "whitelist": ["*"],
        "datasets": [
            {"name": "events", "prefix": EVENTS, "format": "parquet", "identifier": "user.guest", "mode": mode},
            {"name": "lines", "prefix": LINES, "format": "json", "identifier": "user.guest", "mode": mode},
        ],
        "backup": {"days": 0, "versions": 0},
    }


def body_of(path: str, text: str) -> bytes:
    """An object with these rows: a ledger has them as [[n, guest], ...]."""
    rows = [{"n": n, "user": {"guest": guest}} for n, guest in json.loads(text)]
    if not path.startswith(EVENTS):
        return "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), out, row_group_size=4)
    return out.getvalue()


def text_of(body: bytes) -> str:
    """The rows of an object, as plain readers read them."""
    is_parquet = body.startswith(b"PAR1")
    rows = pq.read_table(io.BytesIO(body)).to_pylist() if is_parquet else map(json.loads, body.splitlines())
    return json.dumps([[row["n"], row["user"]["guest"]] for row in rows])


class WithRows(Client):
    """On its own branch, and at its own paths on `main`, where only its merges bring them, a client is alone. On
    `shared` it meets the others.
    """

    def __init__(self, repo: Repository, name: str, seed: int, ledger: int) -> None:
        super().__init__(repo, name, seed, ledger)
        self.bodies = 0
        self.written: list[str] = []
        self.inside = [f"{EVENTS}day={number % 2}/{name}-{number}" for number in range(10)]
        self.inside += [f"{LINES}{name}-{number}" for number in range(8)]
        self.outside = [f"{OTHER}{name}-{number}" for number in range(3)]
        self.shared = [f"{prefix}shared-{number}" for prefix in (LINES, OTHER) for number in range(3)]

    def run(self) -> None:
        own = [self.upload_many, self.upload_many, self.upload_many, self.delete, self.copy, self.move]
        shared = [
            self.shared_upload, self.shared_upload, self.shared_copy, self.shared_move, self.shared_delete,
            self.shared_branch, self.shared_merge, self.shared_revert,
        ]  # fmt: skip
        while True:
            for _ in range(self.random.randrange(1, 4)):
                self.random.choice(own)()
                self.pause(PAUSE_SECONDS)
            self.commit()
            self.random.choice([self.merge, self.look])()
            self.random.choice(shared)()
            self.shared_commit()
            self.pause(REST_SECONDS)
            for _ in range(3):
                self.look()

    def pause(self, seconds: float) -> None:
        time.sleep(self.random.uniform(0, 2 * seconds))

    def body(self) -> str:
        """Rows that no other object has."""
        self.bodies += 1
        count = self.random.choice([0, 1, 9])
        return json.dumps([[f"{self.life}-{self.bodies}-{n}", self.random.choice(GUESTS)] for n in range(count)])

    # ---- alone

    def upload_many(self) -> None:
        paths = self.random.sample([*self.inside, *self.outside], self.random.choice([1, 3]))
        texts = {path: self.body() for path in paths}
        self.written += paths
        uploads = [Upload(path=path, body=body_of(path, text)) for path, text in texts.items()]
        self.op("upload many", lambda: self.repo.upload_many(self.name, uploads), to=texts)

    def delete(self) -> None:
        path = self.random.choice([*self.inside, *self.outside])
        self.op("delete", lambda: self.repo.delete(self.name, path), gone=[path])

    def two(self) -> tuple[str, str]:
        """Within a data set, or out of it."""
        source = self.random.choice(self.inside)
        beside = [path for path in self.inside if path[:5] == source[:5] and path != source]
        return source, self.random.choice([*beside, self.random.choice(self.outside)])

    def copy(self) -> None:
        source, path = self.two()
        self.op(
            "copy", lambda: self.repo.copy(self.name, source, to_branch=self.name, to_path=path), copied=[source, path]
        )

    def move(self) -> None:
        source, path = self.two()
        self.op("move", lambda: self.repo.move(self.name, source, to_path=path), moved=[source, path])

    def look(self) -> None:
        path = self.random.choice(self.written or self.inside)
        self.op("look", lambda: text_of(self.repo.read(self.name, path)), seen=path)

    def merge(self) -> None:
        self.op("merge", lambda: self.repo.merge(self.name, into="main", strategy="source-wins").id)

    # ---- among others

    def place(self) -> tuple[str, str]:
        return "shared", self.random.choice(self.shared)

    def shared_upload(self) -> None:
        (branch, path), text = self.place(), self.body()
        self.op("shared upload", lambda: self.repo.upload(branch, path, body_of(path, text)), shared={path: text})

    def shared_copy(self) -> None:
        (branch, path), (_, destination) = self.place(), self.place()
        source = self.random.choice([branch, f"{branch}@", f"{branch}~1"])
        self.op(
            "shared copy",
            lambda: self.repo.copy(source, path, to_branch=branch, to_path=destination),
            among=[path, destination],
        )

    def shared_move(self) -> None:
        (branch, path), (_, destination) = self.place(), self.place()
        self.op("shared move", lambda: self.repo.move(branch, path, to_path=destination), among=[path, destination])

    def shared_commit(self) -> None:
        self.op("shared commit", lambda: self.repo.commit("shared", "shared").id)

    def shared_merge(self) -> None:
        source, strategy = self.random.choice(["main", self.name]), self.random.choice(["", "source-wins", "dest-wins"])
        self.op("shared merge", lambda: self.repo.merge(source, into="shared", strategy=strategy))

    def shared_revert(self) -> None:
        self.op("shared revert", lambda: self.repo.revert("shared@", on="shared"))


def client(*arguments: str) -> None:
    run_client(arguments, WithRows, SAFETY)


def collect(kv: str, objects: str, repo: str) -> None:
    collector.COLLECTOR = SAFETY
    collector.collect(kv, objects, repo)


# ---- the purge


def purge(kv: str, objects: str, repo: str, ids: str, folder: str, master: str, fault: str = "") -> None:
    from refstore_gc.engines.choice import EngineOptions, open_engines
    from refstore_purge import purge_tasks
    from refstore_purge.purge_run import IdsFile, PurgeOptions, run_purge
    from tests.engines import QUICK

    purge_tasks.run_group = partial(unluckily, f"{folder}/died-{os.getpid()}", fault)
    purge_tasks.TASKS_PER_CORE = 2
    small = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    options = EngineOptions(choice="spark", master=master, conf=QUICK | small)
    with open_engines(options) as engines, _over() if fault == "over" else nullcontext():
        list(engines.for_objects(0).map(warm, range(8)))
        tell(state="ready")
        for line in sys.stdin:
            asked = json.loads(line)
            options = PurgeOptions(
                ids=IdsFile(Path(ids)), includes_copies=asked.get("copies", False), share=1, purge_key=PURGE_KEY
            )
            try:
                with open_lake_at(kv, objects, safety=SAFETY) as lake:
                    report = run_purge(lake.repository(repo), engines, options, _telling(asked.get("kill")))
            except RefstoreError as error:
                tell(state="failed", code=error.code, retryable=error.retryable, error=str(error)[:500])
                continue
            tell(
                state=report.state,
                objects=sum(row.objects for row in report.rows),
                rewritten=sum(row.rewritten_objects for row in report.rows),
                rows_changed=sum(row.rows_changed for row in report.rows),
                attempts=max((row.attempts for row in report.rows), default=0),
                commits=len(report.published_commits),
                left=[f"{each.branch}:{each.path}: {each.reason}" for each in report.skipped_objects],
            )


def _telling(kill: tuple[str, float] | None) -> Callable[[Any], None]:
    """Tell each step once, and die in one."""
    last = ""

    def told(now: Any) -> None:
        nonlocal last
        if now.step != last:
            last = now.step
            tell(step=last)
            if kill is not None and last == kill[0]:
                threading.Timer(kill[1], os.killpg, (os.getpgid(0), signal.SIGKILL)).start()

    return told


def warm(_: int) -> list[int]:
    from refstore_purge import id_index
    from refstore_purge.formats import json_lines, parquet

    assert id_index
    assert json_lines
    assert parquet
    return []


def unluckily(died: str, fault: str, task_settings: Any, numbered: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """`purge_tasks.run_group`, with the planted faults. Spark sends it whole, because it is of the main module."""
    from concurrent.futures import ThreadPoolExecutor
    from contextlib import suppress

    from refstore_purge import purge_tasks
    from refstore_purge.formats import json_lines

    if fault == "row" and not hasattr(json_lines, "real"):
        json_lines.real = json_lines.rewrite

        def one_too_many(source: Any, target: Any, task: Any, ids: Any) -> Any:
            written = json_lines.real(source, target, task, ids)
            target.seek(0)
            kept = b"".join(target.readlines()[:-1])
            target.seek(0)
            target.truncate()
            target.write(kept)
            return written

        json_lines.rewrite = one_too_many
    every: list[tuple[int, Any]] = []
    for number, object_task in numbered:
        if not object_task.target_address:
            every.append((number, purge_tasks.run_task(task_settings, object_task)))
            continue
        # two attempts at once, in two processes; a planted fault stands in this one only
        attempts = [purge_tasks.run_in_process, purge_tasks.run_in_process if fault else purge_tasks.run_task]
        with ThreadPoolExecutor(2) as both:
            every.append(
                (number, random.choice(list(both.map(lambda do, task=object_task: do(task_settings, task), attempts))))
            )
        with suppress(FileExistsError):
            Path(died).touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
    return every


def _over() -> AbstractContextManager[None]:
    """Let the merge of a publication take its own side of every conflict."""
    from tests.simulation.planting import Edit, Mutant

    target = "refstore.operations.transaction:merge_when_clean"
    merge = "return merge()"
    edits = (
        Edit(target, "for seconds in WAITS_SECONDS:", "for seconds in [3]:"),  # for those who change something
        Edit(target, f"        with suppress(DirtyBranch, Contention):\n            {merge}\n", ""),
        Edit(target, "options, squash=True", "options, squash=True, strategy='source-wins'"),
    )
    return Mutant(name="a purge writes over others", rule="purge", edits=edits, caught_by="the audit").planted()


if __name__ == "__main__":
    {"client": client, "purge": purge, "collect": collect}[sys.argv[1]](*sys.argv[2:])
