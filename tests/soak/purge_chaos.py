"""The purge, the offline job, two reapers and clients at once, as processes over real servers; the purge is killed in
the middle, and what it starts, too; then the audit.

Clients write rows of people on the branches that are purged, merge them, and copy them to where nothing is purged. The
purge runs again and again, and all its processes are killed in a step that the seed chooses; another purge, whose Spark
is warm, takes over. When the clients are gone, a last run goes to its end. Then a plain reader reads each path of every
head: no row of the ids is left in the data sets, every other row that was acknowledged is there, in its order, the
report's sums are what went, nothing named is gone, and nothing unnamed is left.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from refstore.errors import Gone, NothingToCommit
from refstore.gc_marks.commit_marks import CommitMarks
from refstore.lake import open_lake_at
from refstore.operations.committed_names import landed_commits
from refstore.operations.transaction import LEASE_MS
from refstore.repository import Repository
from tests.durations import COLLECTOR, set_agreed
from tests.kit.short_durations import environment
from tests.servers.redis_servers import RedisServer
from tests.servers.s3_base import S3Server
from tests.servers.s3_base import environment as s3_environment
from tests.soak import gc_chaos, ledgers
from tests.soak.gc_chaos import Collector, Later, telling
from tests.soak.purger import EVENTS, FORGET, LINES, SAFETY, WithRows, document, text_of
from tests.soak.result import SECONDS, SEED, Result
from tests.soak.storm import Processes
from tests.spark.cluster import Cluster, cluster

CLIENTS = 3
REAPERS = 2
STEPS = {
    "keep-history": ("listing the heads", "looking for the ids", "looking for copies", "rewriting", "publishing"),
    "rewrite": ("listing every version", "looking for the ids", "looking for copies", "rewriting"),
}
KILL_SECONDS_MAX = 0.3
"""How far into its step a run may come: none of them takes longer."""
FIRST_SECONDS = 3
"""The clients have written something by then."""
REST_SECONDS = 0.5
NIGHT_SECONDS = 3
"""Between two runs of the offline job."""
START_SECONDS = 120
AGAIN_SECONDS = 400
"""On a machine that has much else to do a run, in three attempts, takes a minute and more."""
RUNS_IN_VAIN = 2
"""On a slow machine a run is longer than a client's rest, and each branch has moved when it is to be published. After
so many runs that rewrote nothing the clients stand still for the next one, wherever they are.
"""
ANOTHER_SECONDS = 40
"""So much time has to be left for a third purge and more to be started."""
TRIES = 5
LAST_UPLOADS = 10
"""For the last run, which may find that the one before it has left nothing."""
RULES = json.dumps({"default_retention_days": 0, "keep_last": 10, "grace_days": 0})
"""What a run looks at does not expire meanwhile; nor is it kept for long."""
LOCAL = "local[2,4]"
"""Two cores; and a task that fails is done again, as on a cluster."""
RUN_AGAIN = {"gone"}
"""What a run among others may fail with, besides what the KV and the store may: of a branch that is deleted the head,
too, expires at once.
"""
TOO_SLOW = "within its deadline"
LEFT = (
    ": staged: ",
    ": not published: ",
    ": it is also named outside ",
    TOO_SLOW,
    "others kept changing it",
)
"""What a run among others may leave."""


# ---- what the ledgers say


def without(text: str) -> str:
    """These rows without those of the ids."""
    return json.dumps([row for row in json.loads(text) if row[1] not in FORGET])


def is_inside(path: str) -> bool:
    return path.startswith((EVENTS, LINES))


@dataclass
class Told:
    """By a client: what its own branch may hold, what of that was committed, and what of that came to `main`."""

    own: ledgers.Expected = field(default_factory=ledgers.Expected)
    committed: dict[str, set[str | None]] = field(default_factory=dict[str, set[str | None]])
    merged: dict[str, set[str | None]] = field(default_factory=dict[str, set[str | None]])
    bodies: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """By what the rows' numbers begin with: the path, and the rows."""
    steps: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """From where to where something was copied or moved on the shared branch, as far as it may have been done."""
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    findings: list[str] = field(default_factory=list[str])

    def apply(self, line: dict[str, Any], *, sure: bool) -> None:
        self.own.apply(line, sure=sure)
        if "among" in line:
            source, path = line["among"]
            self.steps.add((source, path))
        if line["op"] == "commit":
            self.committed = _after(self.committed, self.own.paths, sure=sure)
        elif line["op"] == "merge":
            self.merged = _after(self.merged, self.committed, sure=sure)

    def look(self, path: str, seen: str | None) -> None:
        """What was read among others may be purged, or not yet."""
        may = self.own.at(path)
        if seen not in may | {without(text) for text in may if text is not None}:
            self.findings.append(f"{path} was read as {seen}, and may hold {may}")


def _after(
    there: dict[str, set[str | None]], came: dict[str, set[str | None]], *, sure: bool
) -> dict[str, set[str | None]]:
    if sure:
        return {path: set(texts) for path, texts in came.items()}
    return {path: there.get(path, {None}) | came.get(path, {None}) for path in {*there, *came}}


def read(ledger: Path) -> Told:
    told = Told()
    for line, outcome in ledgers.read_operations(ledger):
        told.outcomes[line["op"], outcome] += 1
        for path, text in {**line.get("to", {}), **line.get("shared", {})}.items():
            for row in json.loads(text)[:1]:
                told.bodies[row[0].rpartition("-")[0]] = path, text
        if outcome == "corrupt":
            told.findings.append(line["error"])
        elif line["op"] == "look":
            if outcome in ("ok", "object_not_found"):
                told.look(line["seen"], line.get("answer"))
        elif outcome not in ledgers.DEFINITE:
            told.apply(line, sure=outcome == "ok")
    return told


# ---- what is there

Content = dict[tuple[str, str], tuple[str, str]]
"""By branch and path: the address, and the rows."""


def content(repo: Repository) -> Content:
    return {
        (branch, item.path): (item.entry.address, text_of(repo.read(branch, item.path)))
        for branch in [each.name for each in repo.branches() if not each.is_hidden]
        for item in repo.list(branch)
        if item.entry is not None
    }


def reached(path: str, steps: set[tuple[str, str]]) -> set[str]:
    """The paths to which an object of the shared branch may have been copied or moved, one step after the other."""
    found: set[str] = set()
    todo = {path}
    while todo:
        at = todo.pop()
        further = {to for source, to in steps if source == at} - found
        found |= further
        todo |= further
    return found


def differences(there: Content, told: dict[str, Told]) -> Iterator[str]:
    """Where the heads do not hold what was acknowledged, without the rows of the ids."""
    bodies = {key: body for each in told.values() for key, body in each.bodies.items()}
    steps = {step for each in told.values() for step in each.steps}

    def purged(path: str, text: str | None) -> set[str | None]:
        """What has become of an object."""
        if text is None or is_inside(path):
            return {text and without(text)}
        came_as = next((bodies[row[0].rpartition("-")[0]][0] for row in json.loads(text)), path)
        may_be_inside = is_inside(came_as) or any(map(is_inside, reached(came_as, steps)))
        return {text, without(text)} if may_be_inside else {text}  # it was copied, and may be the same object

    for (branch, path), (_, text) in there.items():
        for row in json.loads(text)[:1]:
            _, whole = bodies.get(row[0].rpartition("-")[0], ("", "[]"))
            if text not in purged(path, whole):
                yield f"{branch} {path}: holds {text}, which is not what is to stay of {whole}"
    for client, each in told.items():
        for branch, expected in ((client, each.own.paths), ("main", each.merged)):
            mine = {path for at, path in there if at == branch and f"{client}-" in path}
            for path in sorted({*mine, *expected}):
                _, text = there.get((branch, path), ("", None))
                texts = expected.get(path, {None})
                if text not in {after for before in texts for after in purged(path, before)}:
                    yield f"{branch} {path}: holds {text}, and is to hold what stays of one of {texts}"


def versions(repo: Repository) -> Content:
    """The same of every commit that is not swept. What is left of those that are has another name, which may lie
    outside the data sets.
    """
    found: Content = {}
    swept = {commit for commit, mark in CommitMarks(repo.context).scan() if mark.sweeping_ms and not mark.prefixes}
    for commit in [commit for commit, _ in landed_commits(repo.context) if commit not in swept]:
        with contextlib.suppress(Gone):
            for item in repo.list(commit):
                if item.entry is not None:
                    found[commit, item.path] = item.entry.address, text_of(repo.read(commit, item.path))
    return found


def to_go(there: Content) -> tuple[int, int]:
    """(objects, rows) of the data sets that the ids have."""
    texts = {address: text for (_, path), (address, text) in there.items() if is_inside(path)}
    rows = [sum(row[1] in FORGET for row in json.loads(text)) for text in texts.values()]
    return sum(map(bool, rows)), sum(rows)


def rows_left(there: Content) -> Iterator[str]:
    """Where rows of the ids are."""
    for (at, path), (address, text) in there.items():
        rows = [row for row in json.loads(text) if row[1] in FORGET]
        if rows and is_inside(path):
            yield f"rows of the ids are left at {at} {path}, in {address}: {rows}"


# ---- the run


def run(
    server: S3Server,
    seconds: float = SECONDS,
    *,
    mode: str = "keep-history",
    fault: str = "",
    on_cluster: bool = False,
) -> Result:
    """`mode`: of the data sets. `fault`: one of the purger's, for the test that the audit can fail. `on_cluster`: a
    standalone one, one of whose workers is killed.
    """
    rng = random.Random(SEED)
    result = Result()
    counts, findings, runs = result.counts, result.findings, result.runs
    collected: list[dict[str, Any]] = []
    clock = Later()
    with tempfile.TemporaryDirectory(prefix="refstore-soak-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        redis = stack.enter_context(RedisServer(folder / "redis", fsync="no"))
        kv, objects = redis.url, server.url()
        env = environment({"kv": kv, "objects": objects}, SAFETY) | s3_environment()
        processes = Processes(folder, env)
        stack.callback(processes.end)
        with open_lake_at(kv, objects, safety=SAFETY) as lake:
            repo = lake.create_repository("soak")
            repo.set_retention(RULES)
            repo.onboard_purge(json.dumps(document(mode)), by="soak")
            clients = [f"c{number}" for number in range(CLIENTS)]
            for client in (*clients, "shared"):
                repo.create_branch(client, source="main")
        ids = folder / "ids.parquet"
        pq.write_table(pa.table({"id": FORGET}), ids)
        temporary = folder / "tmp"
        temporary.mkdir()
        workers: Cluster | None = stack.enter_context(cluster(folder / "cluster")) if on_cluster else None
        at = (kv, objects, "soak", str(ids), str(folder), LOCAL if workers is None else workers.url, fault)
        started: list[Collector] = []

        def start_purger() -> Collector:
            own = {"TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary), "SPARK_LOCAL_IP": "127.0.0.1"}
            started.append(
                stack.enter_context(
                    telling(folder, f"purge{len(started)}", env | own, "tests.soak.purger", "purge", *at)
                )
            )
            return started[-1]

        collector = stack.enter_context(telling(folder, "gc", env, "tests.soak.purger", "collect", kv, objects, "soak"))
        purger = start_purger()
        for who, each in (("gc", collector), ("purge0", purger)):
            if each.told.get(timeout=START_SECONDS)["state"] != "ready":
                findings.append(processes.describe_end(who))
                return result
        waiting: Collector | None = start_purger()  # of a cluster it gets no cores before the first one is gone
        print(f"seed {SEED}: {CLIENTS} clients, {REAPERS} reapers, the offline job, a purge, {seconds} s")

        def start_client(client: str) -> None:
            arguments = (kv, objects, "soak", client, str(rng.randrange(10**6)), str(folder / f"{client}.ledger"))
            processes.start(client, "-m", "tests.soak.purger", "client", *arguments)

        for client in clients:
            start_client(client)
        for number in range(REAPERS):
            processes.start(f"reaper{number}", "-m", "refstore", "reaper")

        kill = rng.choice(STEPS[mode]), rng.uniform(0, KILL_SECONDS_MAX)
        is_to_die = clients_stand = False

        def start_run() -> None:
            nonlocal is_to_die, clients_stand
            is_to_die = waiting is not None and any(each.get("rewritten") for each in runs)
            in_vain = len(runs) >= RUNS_IN_VAIN and not any(each.get("rewritten") for each in runs[-RUNS_IN_VAIN:])
            clients_stand = in_vain and not clients_stand
            counts["runs beside which the clients stood still"] += clients_stand
            for client in clients:
                processes.running[client].send_signal(signal.SIGSTOP if clients_stand else signal.SIGCONT)
            purger.start(json.dumps({"copies": rng.random() < 0.5, "kill": kill if is_to_die else None}))

        until = time.monotonic() + START_SECONDS
        while not all((folder / f"{client}.ledger").exists() for client in clients) and time.monotonic() < until:
            time.sleep(0.1)
        end = time.monotonic() + seconds
        rests_until = end - seconds + FIRST_SECONDS
        collector.start("run")
        collects_from: float | None = None
        at_work, killed_client, killed_worker = False, False, False
        while time.monotonic() < end or waiting is started[1] or not collected:
            now = time.monotonic()
            if not at_work and now > rests_until:
                start_run()
                at_work = True
            with contextlib.suppress(Empty):
                said = purger.told.get_nowait()
                if said["state"] == "ready":
                    continue
                rests_until, at_work = now + REST_SECONDS, False
                if said["state"] != "ended":
                    runs.append(said)
                elif is_to_die and waiting is not None:
                    counts[f"purges killed in {kill[0]!r}"] += 1
                    purger, waiting = waiting, start_purger() if end - now > ANOTHER_SECONDS else None
                    kill = rng.choice(STEPS[mode]), rng.uniform(0, KILL_SECONDS_MAX)
                else:
                    findings.append(processes.describe_end(f"purge{started.index(purger)}"))
                    break
            with contextlib.suppress(Empty):
                collected.append(collector.told.get_nowait())
                collects_from = now + NIGHT_SECONDS
            if collects_from is not None and now > collects_from:
                collector.start("run")
                collects_from = None
            if not killed_client and now > end - seconds / 2:
                killed_client = True
                processes.kill(clients[0])
                counts["clients killed (SIGKILL)"] += 1
                start_client(clients[0])
            if workers is not None and not killed_worker and now > end - seconds / 2 and purger.step == "rewriting":
                killed_worker = True
                workers.kill_worker(0)
                counts["workers of the cluster killed"] += 1
            if now > end + AGAIN_SECONDS:
                findings.append(f"no purge came to {kill[0]!r} again")
                break
            time.sleep(0.02)
        findings += processes.end()
        if findings:
            return result
        with open_lake_at(kv, objects, safety=SAFETY) as lake:
            repo = lake.repository("soak")
            for branch in list(repo.branches()):
                if not branch.is_hidden:
                    with contextlib.suppress(NothingToCommit):
                        branch.commit("what the clients left")
        if at_work:
            runs.append(_told(purger))
        if collects_from is None:
            collected.append(collector.told.get(timeout=START_SECONDS))
        findings += [f"a run came to {each}" for each in runs if not _is_among_others(each)]
        with open_lake_at(kv, objects, safety=SAFETY) as lake:
            repo = lake.repository("soak")
            repo.create_branch("last", source="main")
            clients.append("last")
            with (folder / "last.ledger").open("ab") as ledger:
                last = WithRows(repo, "last", SEED, ledger.fileno())
                for _ in range(LAST_UPLOADS):
                    last.upload_many()
                last.commit()
                last.merge()
            told = {client: read(folder / f"{client}.ledger") for client in clients}
            result.outcomes = sum((each.outcomes for each in told.values()), Counter[tuple[str, str]]())
            findings += _the_last_run(repo, purger, runs, mode)
            findings += [finding for each in told.values() for finding in each.findings]
            there = content(repo)
            findings += rows_left(there | versions(repo) if mode == "rewrite" else there)
            findings += differences(there, told)
            repo.set_retention(gc_chaos.COMMITTED_AT_ONCE)
        set_agreed(kv, COLLECTOR)
        clock.ahead_seconds += LEASE_MS // 1000  # of the hidden branches that killed runs have left
        findings += gc_chaos.check_end(kv, objects, clock, collector, collected)
        with open_lake_at(kv, objects, safety=COLLECTOR, clock=clock) as lake:
            gc_chaos.check_repository(lake.repository("soak"), result)
        findings += [f"{left} is left" for left in temporary.glob("refstore-purge-ids-*")]
        counts["tasks whose process died (SIGKILL)"] = len(list(folder.glob("died-*")))
        result.count_outcomes()
        counts["runs done"] = sum(each["state"] == "done" for each in runs)
        counts["of them that rewrote some, before the last"] = sum(bool(each.get("rewritten")) for each in runs[:-1])
        counts["of them with a branch that had moved"] = sum(each.get("attempts", 0) > 1 for each in runs)
        counts["rows purged"] = sum(each.get("rows_changed", 0) for each in runs)
        counts["objects swept"] = sum(each.get("deleted", 0) for each in collected)
        findings += [
            f"{name}: none; this run proved nothing"
            for name in ("of them that rewrote some, before the last", "rows purged")
            if not counts[name]
        ]
    runs += collected
    return result


def _is_among_others(said: dict[str, Any]) -> bool:
    """Whether a run came to what it may come to while others are at work."""
    if said["state"] == "failed":
        return said["retryable"] or said["code"] in RUN_AGAIN
    return all(any(reason in left for reason in LEFT) for left in said["left"])


def _told(purger: Collector) -> dict[str, Any]:
    said = purger.told.get(timeout=AGAIN_SECONDS)
    return purger.told.get(timeout=AGAIN_SECONDS) if said["state"] == "ready" else said


def _the_last_run(repo: Repository, purger: Collector, runs: list[dict[str, Any]], mode: str) -> Iterator[str]:
    """Nobody is at work any more, so it leaves nothing, and its sums are those of a plain reader. Of every version they
    may be more: a run looks at expired commits, too, until these are swept. What a slow machine did not do within the
    short deadline of this lake is done by the next run.
    """
    for _ in range(TRIES):
        objects, rows = to_go(content(repo) | versions(repo) if mode == "rewrite" else content(repo))
        purger.start(json.dumps({"copies": True}))
        said = _told(purger)
        runs.append(said)
        if said["state"] == "done" and not any(TOO_SLOW in left for left in said["left"]):
            is_enough = said["rewritten"] >= objects and said["rows_changed"] >= rows
            is_exact = (said["rewritten"], said["rows_changed"]) == (objects, rows)
            if said["left"] or not (is_enough if mode == "rewrite" else is_exact):
                yield f"the last run was to purge {rows} rows of {objects} objects, and came to {said}"
            return
    yield f"no run went to its end, though nobody else was at work; they came to {runs[-TRIES:]}"
