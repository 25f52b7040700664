"""The audit log: every kind of act leaves its entry, nothing that needs one happens without, and none is lost when
the store is down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from refstore import audit
from refstore.audit import Actor, act_as, audit_log
from refstore.audit.audit_entries import PREFIX, VALUE_BYTES_MAX, AuditEntry
from refstore.audit.audit_reader import entries_newest_first
from refstore.audit.audit_verification import AuditVerification, FindingKind
from refstore.configuration.settings import ReaperSettings
from refstore.errors import (
    AuditRefused,
    AuditUnavailable,
    Conflict,
    Contention,
    InvalidName,
    KVRefused,
    KVUnavailable,
    ObjectsRefused,
    RefstoreError,
)
from refstore.gc_marks import Marks, RunState
from refstore.kv.base import ABSENT, SCAN_LIMIT, Op, Result, SetIf
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.objects.base import ObjectStore
from refstore.objects.memory import MemoryObjects
from refstore.records import keys
from refstore.repository import Repository
from refstore.retention.rules import GcRules
from refstore.service import access_keys, s3_secrets
from refstore.service.access_keys import Role
from refstore_reaper import breaker
from refstore_reaper.breaker import Breaker
from refstore_reaper.daemon import Reaper
from tests.kit import collecting
from tests.kit.clock import FakeClock
from tests.kit.faults import Faults, FaultyObjects

RULES = '{"default_retention_days": 3}'
HELD = '{"legal_holds": [{"prefix": "held/"}]}'
ROOT = "memory://audit"
DOWN = Faults(request_lost=1.0)
ANN = Actor("http", "RSANN", "192.0.2.7", "DELETE /somewhere")
DAY_SECONDS = 86_400


class Seen(MemoryKV):
    """Notes which partitions are asked for; and dies before what `dies` says."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.dies: Callable[[Op], bool] = lambda _: False

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        self.asked += [op.key.partition for op in ops]
        if any(self.dies(op) for op in ops):
            raise KVUnavailable("the process died")
        return super().execute(ops)

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        self.asked.append(partition)
        return super().scan(partition, prefix=prefix, after=after, limit=limit)


class World:
    """One KV and one object store; each lake of it is a process."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.kv = Seen()
        self.stores: dict[str, MemoryObjects] = {}
        self.lake = self.process()

    def process(self, faults: Faults | None = None) -> Lake:
        """`faults`: of the object store, from when the process has opened the repositories."""
        opened: list[FaultyObjects] = []

        def open_store(url: str) -> ObjectStore:
            store = self.stores.setdefault(url, MemoryObjects(clock=self.clock, name=url.removeprefix("memory://")))
            opened.append(FaultyObjects(store, Faults(), Random(1), self.clock))
            return opened[-1]

        self.clock.advance(1)  # so that its entries are newer than those of the others
        lake = Lake(self.kv, ROOT, clock=self.clock, open_store=open_store)
        if faults is not None:
            for repo in lake.repositories():
                assert repo.context
            assert lake.own_store is opened[-1]
            for store in opened:
                store.begin(faults)
        return lake

    @property
    def store(self) -> MemoryObjects:
        return self.stores.setdefault(ROOT, MemoryObjects(clock=self.clock, name="audit"))

    def entries(self, action: str = "") -> list[AuditEntry]:
        """Oldest first."""
        found = [read.entry for read in entries_newest_first(self.kv, self.store)]
        assert None not in found
        return [entry for entry in reversed(found) if entry is not None and action in ("", entry.act.action)]

    def found(self) -> list[tuple[FindingKind, int]]:
        return [(finding.kind, finding.number) for finding in AuditVerification(self.kv, self.store).findings()]

    def waiting(self) -> int:
        return self.kv.count(keys.AUDIT_WAITING, limit=1000)

    def snapshot(self) -> list[tuple[str, list[tuple[str, bytes]]]]:
        """What acts change, without the log's own."""
        repos = [record.id for _, record in self.lake.all_repositories()]
        of_repos = [keys.branches, keys.tags, keys.retention, keys.gc_runs, keys.marks, keys.reaper_states]
        partitions = [keys.ACCESS_KEYS, keys.REPOSITORIES, *(of(repo) for repo in repos for of in of_repos)]
        return [(partition, MemoryKV.scan(self.kv, partition)) for partition in partitions]


@pytest.fixture
def world() -> World:
    return World()


def repository(world: World) -> Repository:
    """With all that the acts below act on."""
    repo = world.lake.create_repository("sales")
    repo.upload("main", "a", b"1")
    first = repo.commit("main", "first").id
    repo.create_branch("dev", source="main")
    repo.create_tag("v1", ref="main")
    repo.set_retention(RULES, by="ann")
    repo.upload("main", "b", b"2")
    repo.commit("main", "second")
    repo.create_branch("old", source=first)
    access_keys.create_key(world.lake, Role.WRITER, id="key", description="a program")
    access_keys.create_key(world.lake, Role.READER, id="rotated")
    access_keys.rotate_secret(world.lake, "rotated", overlap_ms=60_000)
    s3_secrets.make_s3_secret(world.lake, CIPHER, "rotated", overlap_ms=0)
    return repo


def asking(repo: Repository, question: str = "all of it would go") -> str:
    """A mark that needs confirmation."""
    marks = Marks(repo.context)
    run = marks.mark_run.begin("digest", 0, [], "mark-one")
    marks.mark_run.finish(run, {"objects": 3}, question=question)
    return "mark-one"


def pinning(lake: Lake) -> None:
    from refstore.operations import rules_document

    repo = lake.repository("sales")
    rules_document.pin_commits(repo.context, [repo.get_branch("main").head], by="ann")


CIPHER = s3_secrets.SecretCipher(b"a server key of more than 32 characters")
CHANGES: dict[str, tuple[str, Callable[[Lake], object]]] = {
    "create": ("key.create", lambda lake: access_keys.create_key(lake, Role.READER, id="new")),
    "ensure": ("key.set", lambda lake: access_keys.ensure_key(lake, "key", "another-secret-of-enough-characters")),
    "rotate": ("key.rotate", lambda lake: access_keys.rotate_secret(lake, "key", overlap_ms=1000)),
    "end overlap": ("key.end-overlap", lambda lake: access_keys.end_overlap(lake, "rotated")),
    "end tokens": ("key.end-tokens", lambda lake: access_keys.end_tokens(lake, "key")),
    "make an S3 secret": (
        "key.s3-secret",
        lambda lake: s3_secrets.make_s3_secret(lake, CIPHER, "key", overlap_ms=1000),
    ),
    "end S3 secrets": ("key.end-s3-secrets", lambda lake: s3_secrets.end_s3_secrets(lake, "rotated")),
    "revoke": ("key.revoke", lambda lake: access_keys.revoke_key(lake, "key")),
    "set rules": ("rules.set", lambda lake: lake.repository("sales").set_retention(HELD, by="bob")),
    "set lakeFS's rules": ("rules.set", lambda lake: lake.repository("sales").set_gc_rules(GcRules(7, ()), by="bob")),
    "delete lakeFS's rules": ("rules.delete", lambda lake: lake.repository("sales").set_gc_rules(None)),
    "delete rules": ("rules.delete", lambda lake: lake.repository("sales").delete_retention()),
    "pin": ("rules.pin", pinning),
    "confirm": (
        "gc.confirm",
        lambda lake: Marks(lake.repository("sales").context).decisions.confirm("mark-one", "ann"),
    ),
}


def trip(lake: Lake) -> None:
    settings = ReaperSettings(breaker_per_hour=1)
    tripping = Breaker(lake.repository("sales").context, settings, "reaper-1")
    tripping.check_share(lambda _: 0, lambda _: 0, lambda _: 0)
    tripping.report_deleted(tripping.request_permit(1), 1)
    assert tripping.request_permit(1).count == 0


ACTS: dict[str, tuple[str, Callable[[Lake], object]]] = {
    "branch": ("branch.delete", lambda lake: lake.repository("sales").delete_branch("dev")),
    "tag": ("tag.delete", lambda lake: lake.repository("sales").delete_tag("v1")),
    "repository": ("repository.delete", lambda lake: lake.delete_repository("sales")),
    "unmark": ("gc.unmark", lambda lake: lake.repository("sales").unmark("mark-one")),
    "trip": ("breaker.trip", trip),
    "resume": ("breaker.resume", lambda lake: breaker.resume(lake.repository("sales").context, objects=5)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_has_an_entry_before_it_and_one_with_its_outcome(world: World, name: str) -> None:
    action, change = CHANGES[name]
    asking(repository(world))
    before = len(world.entries())
    with act_as(ANN):
        change(world.process())
    begun, done = (entry.act for entry in world.entries()[before:])
    assert [begun.action, begun.outcome, done.action, done.outcome] == [action, "begun", action, "done"]
    assert begun.actor == done.actor == ANN
    assert begun.id == done.id
    assert done.begin_entry is not None
    assert done.begin_entry.number == 1
    assert (begun.before, begun.after) == (done.before, done.after)
    assert (done.before is None) == (name == "create")
    assert (done.after is None) == (name in ("revoke", "delete rules", "delete lakeFS's rules"))
    assert world.found() == []


@pytest.mark.parametrize("name", CHANGES)
def test_no_change_without_its_entry(world: World, name: str) -> None:
    asking(repository(world))
    before, entries = world.snapshot(), len(world.entries())
    with pytest.raises(AuditUnavailable, match=r"nothing was changed; repair the lake's object store"):
        CHANGES[name][1](world.process(DOWN))
    assert world.snapshot() == before
    assert len(world.entries()) == entries
    assert world.found() == []


@pytest.mark.parametrize("name", ACTS)
def test_an_act_has_one_entry(world: World, name: str) -> None:
    action, act = ACTS[name]
    asking(repository(world), question="")
    before = len(world.entries())
    with act_as(ANN):
        act(world.process())
    (entry,) = world.entries()[before:]
    assert (entry.act.action, entry.act.repository, entry.act.outcome) == (action, "sales", "done")
    assert entry.act.actor == ANN if name != "trip" else entry.act.actor.kind == "reaper"
    assert entry.act.before or entry.act.after
    assert world.waiting() == 0
    assert world.found() == []


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("writer", ["reaper", "change", "call"])
def test_an_act_goes_on_while_the_store_is_down_and_is_logged_later(world: World, name: str, writer: str) -> None:
    action, act = ACTS[name]
    asking(repository(world), question="")
    before = world.snapshot()
    act(world.process(DOWN))
    assert world.snapshot() != before
    assert (world.waiting(), len(world.entries(action))) == (1, 0)
    assert world.found() == [(FindingKind.WAITING, 0)]
    after = world.process()
    match writer:
        case "reaper":
            with Reaper(after, ReaperSettings(), asynchronous=False) as reaper:
                reaper.run_passes(lambda: False)
        case "change":
            access_keys.create_key(after, Role.READER)
        case _:
            assert after.audit.write_waiting() == 1
    (entry,) = world.entries(action)
    assert entry.act.outcome == "done"
    assert (world.waiting(), world.found()) == (0, [])


def test_a_mark_has_one_entry_with_its_counts(world: World) -> None:
    repo = repository(world)
    run, _ = collecting.mark(repo.context, [])
    (entry,) = world.entries("gc.mark")
    assert (entry.act.target, entry.act.outcome) == (run.mark_id, "done")
    assert entry.act.after is not None
    assert entry.act.after["state"] == RunState.MARKED.value
    assert entry.act.after["counts"]["objects"] == run.record.mark_counts["objects"]


def test_a_change_that_fails_says_so(world: World) -> None:
    repository(world)
    with pytest.raises(Conflict):
        access_keys.create_key(world.lake, Role.READER, id="key")
    act = world.entries("key.create")[-1].act
    assert (act.outcome, act.error, act.after) == ("failed", "already_exists", None)


def test_an_act_that_is_refused_says_so(world: World) -> None:
    repo = repository(world)
    repo.set_retention(HELD)
    with pytest.raises(Conflict):
        world.lake.delete_repository("sales")
    act = world.entries("repository.delete")[-1].act
    assert (act.outcome, act.error) == ("failed", "conflict")


@pytest.mark.parametrize("kind", [KVRefused, ObjectsRefused, KVUnavailable, Contention])
def test_an_act_that_may_have_landed_is_not_called_failed(world: World, kind: type[RefstoreError]) -> None:
    """Also where nobody is to make the call again: a store may take the first of its writes, and refuse the next."""
    with pytest.raises(kind), world.lake.audit.change("rules.set"):
        raise kind("the password is wrong; correct it")
    assert world.entries("rules.set")[-1].act.outcome == "unknown"


def test_a_store_that_refuses_the_entry_is_for_an_operator(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that repeats by `retryable` would go on for ever, here as with the store's own error."""

    def refuse(*_args: object, **_options: object) -> None:
        raise ObjectsRefused("the key is wrong; correct it")

    monkeypatch.setattr(FaultyObjects, "put", refuse)
    with pytest.raises(AuditRefused, match="nothing was changed") as raised:
        access_keys.create_key(world.lake, Role.READER)
    assert not raised.value.retryable


def test_what_is_not_there_leaves_no_entry(world: World) -> None:
    repo = repository(world)
    before = len(world.entries())
    for call in (
        lambda: repo.delete_branch("none"),
        lambda: repo.delete_tag("none"),
        lambda: access_keys.revoke_key(world.lake, "none"),
    ):
        with pytest.raises(Exception, match="does not exist"):
            call()
    assert len(world.entries()) == before


def test_a_process_that_died_in_an_act_leaves_its_entry(world: World) -> None:
    """It is left alone for as long as the process may be at it; then its outcome is not known."""
    repository(world)
    with pytest.raises(KeyboardInterrupt), world.lake.audit.act("branch.delete", repository="sales"):
        raise KeyboardInterrupt
    assert world.process().audit.write_waiting() == 0
    world.clock.advance(2 * 3600)
    assert world.process().audit.write_waiting() == 1
    (entry,) = world.entries("branch.delete")
    assert entry.act.outcome == "unknown"


def test_a_process_that_died_in_a_change_is_told_and_is_no_damage(world: World) -> None:
    with pytest.raises(KeyboardInterrupt), world.lake.audit.change("rules.set"):
        raise KeyboardInterrupt
    assert world.found() == [(FindingKind.UNKNOWN, 1)]


def test_an_entry_without_its_head_is_told_and_is_no_damage(world: World) -> None:
    """The process died between the two, or the KV did; the change was not begun."""
    lake = world.process()
    access_keys.create_key(lake, Role.READER, id="one")
    world.kv.dies = lambda op: isinstance(op, SetIf) and op.key.partition == keys.AUDIT_HEADS
    with pytest.raises(KVUnavailable):
        access_keys.create_key(lake, Role.READER, id="two")
    world.kv.dies = lambda _: False
    assert access_keys.find_key(world.kv, "two") is None
    assert world.found() == [(FindingKind.BEYOND, 3)]
    access_keys.create_key(lake, Role.READER, id="two")
    assert world.found() == [
        (FindingKind.BEYOND, 3)
    ]  # in a chain of its own: nothing is linked to what may not be there


def test_an_entry_whose_reply_was_lost_fails_the_change(world: World) -> None:
    with pytest.raises(AuditUnavailable):
        access_keys.create_key(world.process(Faults(reply_lost=1.0)), Role.READER, id="one")
    assert access_keys.find_key(world.kv, "one") is None
    assert world.found() == [(FindingKind.BEYOND, 1)]


def test_an_outcome_that_the_store_does_not_take_waits(world: World) -> None:
    faulty = FaultyObjects(world.store, DOWN, Random(1), world.clock)
    stores = iter([world.store, faulty])
    log = audit.AuditLog(world.kv, lambda: next(stores), world.clock, world.lake.ids, world.lake.durations)
    with log.change("rules.set", repository="sales"):
        pass
    assert world.found() == [(FindingKind.WAITING, 0)]
    assert world.process().audit.write_waiting() == 1
    assert [entry.act.outcome for entry in world.entries()] == ["begun", "done"]
    assert world.found() == []


def test_a_waiting_entry_that_another_process_writes_is_left_to_it(world: World) -> None:
    repository(world)
    world.process(DOWN).repository("sales").delete_branch("dev")
    other = world.process()
    taken: list[int] = []
    world.kv.dies = lambda op: bool(
        isinstance(op, SetIf)
        and op.key.partition == keys.AUDIT_HEADS
        and not taken
        and taken.append(1) is None
        and race()
    )

    def race() -> bool:
        assert other.audit.write_waiting() == 0
        return False

    assert world.process().audit.write_waiting() == 1
    assert taken
    assert len(world.entries("branch.delete")) == 1


def test_with_too_many_waiting_a_deletion_is_refused_and_no_entry_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "WAITING_MAX", 1)
    repo, down = repository(world), world.process(DOWN)
    down.repository("sales").delete_branch("dev")
    down.repository("sales").delete_tag("v1")
    before = world.snapshot()
    with pytest.raises(AuditUnavailable, match="so this was not done"):
        down.repository("sales").delete_branch("old")
    assert world.snapshot() == before
    trip(down)  # to stop a deletion needs no room
    assert breaker.explain(breaker.read_state(world.kv, repo.context.repo))
    assert world.waiting() == 3


def test_a_store_that_failed_is_left_alone_for_a_while(world: World) -> None:
    repository(world)
    asked: list[int] = []

    def refuse() -> ObjectStore:
        asked.append(1)
        return FaultyObjects(world.store, DOWN, Random(1), world.clock)

    lake = world.process()
    lake.audit_log = audit.AuditLog(world.kv, refuse, world.clock, lake.ids, lake.durations)
    lake.repository("sales").delete_branch("dev")
    lake.repository("sales").delete_branch("old")
    assert len(asked) == 1
    world.clock.advance(60)
    lake.repository("sales").delete_tag("v1")
    assert len(asked) == 2


def test_no_entry_holds_a_secret_or_a_hash_of_one(world: World) -> None:
    secrets: list[bytes] = []

    def note(key_id: str, secret: str) -> None:
        record = access_keys.find_key(world.kv, key_id)
        assert record is not None
        secrets.append(secret.encode())
        for value in (record.salt, record.hash, *(record.previous_secret[:2] if record.previous_secret else ())):
            assert isinstance(value, bytes)
            secrets.extend((value.hex().encode(), json.dumps(list(value)).encode(), value))

    for lake in (world.process(), world.process()):
        made = access_keys.create_key(lake, Role.OPERATOR, description="a program")
        note(made.key.id, made.secret)
        note(made.key.id, access_keys.rotate_secret(lake, made.key.id, overlap_ms=1000).secret)
        access_keys.end_tokens(lake, made.key.id)
        access_keys.revoke_key(lake, made.key.id)
    bodies = [world.store.read(info.key) for info in world.store.list(PREFIX)]
    assert len(bodies) == 16
    assert not [secret for secret in secrets for body in bodies if secret in body]


def test_what_is_large_is_shortened(world: World) -> None:
    with world.lake.audit.change("rules.set", before={"document": "x" * VALUE_BYTES_MAX}, after={"document": "y"}):
        pass
    before = world.entries()[0].act.before
    assert before is not None
    assert before["shortened"] is True
    assert before["size_bytes"] > VALUE_BYTES_MAX
    assert max(info.size_bytes for info in world.store.list(PREFIX)) < 20_000
    assert world.found() == []


def test_hot_paths_write_nothing_to_the_log(world: World) -> None:
    repo = repository(world)
    world.kv.asked.clear()
    entries = len(world.entries())
    repo.upload("main", "hot", b"1")
    repo.stat("main", "hot")
    repo.delete("main", "hot")
    repo.upload("main", "hot", b"2")
    repo.commit("main", "hot")
    repo.reset("main")
    assert not [
        partition for partition in world.kv.asked if partition.startswith("audit/") and partition != keys.AUDIT_HEADS
    ]
    assert world.kv.asked.count(keys.AUDIT_HEADS) == 1  # `entries` above
    world.clock.advance(10 * DAY_SECONDS)
    world.kv.asked.clear()
    with Reaper(world.lake, ReaperSettings(), asynchronous=False) as reaper:
        assert reaper.run_passes(lambda: False).deleted
    assert [partition for partition in world.kv.asked if partition.startswith("audit/")] == [keys.AUDIT_WAITING]
    assert len(world.entries()) == entries


def test_many_threads_and_processes_at_once_leave_whole_chains(world: World) -> None:
    lakes = [world.process() for _ in range(3)]
    with ThreadPoolExecutor(9) as pool:
        list(
            pool.map(
                lambda number: access_keys.create_key(lakes[number % 3], Role.READER, id=f"key-{number}"), range(60)
            )
        )
    assert len(world.entries()) == 120
    assert world.found() == []
    assert len({entry.chain for entry in world.entries()}) == 3


@pytest.mark.parametrize("name", ["_refstore", "_refstore/audit", "_refstore/audit/mine", "_REFSTORE/other"])
def test_no_repository_lies_where_the_log_does(world: World, name: str) -> None:
    with pytest.raises(InvalidName, match="audit log"):
        world.lake.create_repository("sales", namespace=f"{ROOT}/{name}")


def test_no_repository_lists_the_entries(world: World) -> None:
    repo = repository(world)
    assert list(world.store.list(PREFIX))
    assert not [info.key for info in repo.context.objects.list() if "audit" in info.key]
    assert world.kv.get(keys.audit_head("none")) is ABSENT
