"""The PostgreSQL driver when its server fails: what each failure is called, and what is known of its writes."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psycopg
import pytest

from refstore.conformance.kv_suite import apply
from refstore.core.clock import SystemClock
from refstore.errors import (
    InvalidName,
    InvalidSettings,
    KVRefused,
    KVUnavailable,
    OutcomeUnknown,
    RefstoreError,
    StoreMisconfigured,
)
from refstore.kv import open_kv, postgres
from refstore.kv.base import ABSENT, Absent, Delete, Exchange, Get, Key, Op, Set, SetIf
from refstore.kv.postgres import PostgresKV, open_postgres, statements
from tests.servers.postgres_servers import PgBouncer, PostgresServer
from tests.servers.redis_servers import until
from tests.servers.tcp import LossyProxy

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that each test leaves as it found it."""
    with PostgresServer(options=("fsync=off", "wal_writer_delay=10s")) as running:
        yield running


@pytest.fixture
def key() -> Key:
    return Key(f"test/{uuid.uuid4().hex}", "k")


@contextlib.contextmanager
def driver(url: str) -> Iterator[PostgresKV]:
    """The driver without retries."""
    kv = open_postgres(url, SystemClock())
    try:
        yield kv
    finally:
        kv.close()


@contextlib.contextmanager
def database(server: PostgresServer) -> Iterator[str]:
    """The URL of a new database without tables of ours."""
    name = f"d{uuid.uuid4().hex}"
    server.run(f"CREATE DATABASE {name}")
    yield server.url_of("postgres", name)
    server.run(f"DROP DATABASE {name} WITH (FORCE)")


def writes(key: Key) -> list[Op]:
    """One of each kind, for a key that holds b"0"."""
    return [Set(key, b"1"), SetIf(key, b"0", b"1"), SetIf(key, b"0", ABSENT), Exchange(key, b"1"), Delete(key)]


# ---- the tables


def test_many_that_come_first_together_make_the_tables_once(server: PostgresServer, key: Key) -> None:
    with database(server) as url:

        def first_use(number: int) -> bool:
            with driver(url) as kv:
                return kv.set_if(key, ABSENT, str(number).encode())

        with ThreadPoolExecutor(12) as pool:
            assert sum(pool.map(first_use, range(12))) == 1


def test_who_makes_the_tables_is_waited_for_and_not_for_ever(
    server: PostgresServer, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "MAKE_SECONDS", 1)
    with database(server) as url, contextlib.closing(psycopg.connect(url)) as other, driver(url) as kv:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (postgres.MAKE_LOCK,))
        with pytest.raises(KVUnavailable, match="another transaction kept a lock") as caught:
            kv.get(key)
        assert caught.value.nothing_done
        other.rollback()
        assert kv.get(key) is ABSENT


def test_this_code_runs_on_the_tables_of_a_later_version_until_they_are_finished(
    server: PostgresServer, key: Key
) -> None:
    """The before-part of a later version adds to the tables; its after-part ends what old code may do."""
    with (
        database(server) as url,
        driver(url) as kv,
        contextlib.closing(psycopg.connect(url, autocommit=True)) as client,
    ):
        kv.set(key, b"1")
        client.execute("ALTER TABLE refstore.kv ADD COLUMN later integer DEFAULT 7")
        client.execute("UPDATE refstore.kv_schema SET version = 2")
        with driver(url) as again:
            for op in writes(key):
                again.set(key, b"0")
                again.execute([op])
            again.set(key, b"2")
            assert again.scan(key.partition) == [("k", b"2")]
        client.execute("UPDATE refstore.kv_schema SET oldest = 2")
        with driver(url) as refused, pytest.raises(StoreMisconfigured, match="upgrade this one"):
            refused.get(key)


def test_a_user_that_may_not_make_the_tables_is_refused(server: PostgresServer, key: Key) -> None:
    with database(server) as url:
        server.run("CREATE ROLE weak LOGIN")
        try:
            with driver(url.replace("postgres@", "weak@")) as kv, pytest.raises(KVRefused, match="create a schema"):
                kv.get(key)
            with contextlib.closing(psycopg.connect(url, autocommit=True)) as client:
                client.execute("CREATE SCHEMA refstore AUTHORIZATION weak")
            with driver(url.replace("postgres@", "weak@")) as kv:
                kv.set(key, b"1")
                assert kv.servers()
                assert not kv.scan(key.partition, limit=0)
                with contextlib.closing(psycopg.connect(url, autocommit=True)) as client:
                    client.execute("DROP OWNED BY weak")
        finally:
            server.run("DROP ROLE weak")


def test_a_table_of_somebody_else_is_not_touched(server: PostgresServer, key: Key) -> None:
    with database(server) as url, contextlib.closing(psycopg.connect(url, autocommit=True)) as client:
        client.execute("CREATE SCHEMA refstore")
        client.execute("CREATE TABLE refstore.kv (theirs integer)")
        with driver(url) as kv, pytest.raises(StoreMisconfigured, match="schema refstore"):
            kv.get(key)
        client.execute("DROP TABLE refstore.kv")
        with driver(url) as kv:
            assert kv.get(key) is ABSENT


# ---- what cannot be reached


def test_what_cannot_be_reached_has_done_nothing(server: PostgresServer, key: Key) -> None:
    for url, kind, words in [
        ("postgresql://127.0.0.1:1/x", KVUnavailable, "cannot be reached"),
        (server.url_of("postgres", "nowhere"), StoreMisconfigured, "create the database"),
        (server.url_of("nobody"), KVRefused, "refused the login"),
    ]:
        with driver(url) as kv, pytest.raises(kind, match=words) as caught:
            kv.set(key, b"1")
        assert getattr(caught.value, "nothing_done", True)


def test_malformed_urls_are_refused_without_their_password() -> None:
    for url, words in [
        ("postgresql://u:hunter2@[h/x", "malformed"),
        ("postgresql://u:hunter2@h/x?sslmodus=x", "sslmodus"),
        ("postgresql://u:hunter2@h/x?timeout=soon", "timeout"),
    ]:
        with pytest.raises(InvalidSettings, match=words) as caught:
            open_postgres(url, SystemClock())
        assert "hunter2" not in str(caught.value)


def test_a_standby_is_not_used_and_a_server_set_to_read_only_neither(server: PostgresServer, key: Key) -> None:
    with driver(server.url) as kv:
        kv.set(key, b"0")
        server.run("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        try:
            until(lambda: _is_read_only(server), "the setting")
            with pytest.raises(KVUnavailable, match="read only") as caught:
                kv.set(key, b"1")
            assert caught.value.nothing_done
            with pytest.raises(KVUnavailable, match="takes writes") as caught:
                kv.get(key)
            assert caught.value.nothing_done
        finally:
            server.run(
                "SET default_transaction_read_only = off",
                "ALTER SYSTEM RESET default_transaction_read_only",
                "SELECT pg_reload_conf()",
            )
            until(lambda: not _is_read_only(server), "the setting")
        assert kv.get(key) == b"0"


def _is_read_only(server: PostgresServer) -> bool:
    return server.run("SHOW default_transaction_read_only")[0][0] == "on"


def test_a_standby_behind_a_pooler_answers_no_read(key: Key) -> None:
    """The pooler was pointed to it after the connection had been made."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        pooler = stack.enter_context(PgBouncer(server.url))
        kv = stack.enter_context(driver(pooler.url))
        kv.set(key, b"0")
        standby = stack.enter_context(PostgresServer.standby_of(server))
        server.kill()
        pooler.redirect(standby.url)
        reads: list[Callable[[], object]] = [
            lambda: kv.get(key),
            lambda: kv.scan(key.partition),
            lambda: kv.count(key.partition, limit=9),
            kv.servers,
        ]
        with contextlib.closing(standby.client()) as client, client.cursor(binary=True) as cursor:
            for statement, values in [
                *((read, statements.parameters(read, [Get(key)])) for read in statements.READS),
                (statements.SCAN, (key.partition.encode(), b"", b"\xff", 9)),
                (statements.COUNT, (key.partition.encode(), 9)),
            ]:
                with pytest.raises(psycopg.errors.ActiveSqlTransaction):
                    cursor.execute(statement.encode(), values)
        for read in reads:
            with pytest.raises(KVUnavailable):
                read()


def test_too_many_connections(key: Key) -> None:
    options = ("fsync=off", "max_connections=5", "superuser_reserved_connections=0")
    with PostgresServer(options=options) as server, contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(contextlib.closing(server.client()))
        with driver(server.url) as kv, pytest.raises(KVUnavailable, match="too many") as caught:
            kv.set(key, b"1")
        assert caught.value.nothing_done


def test_more_threads_than_connections_wait_for_their_turn(
    server: PostgresServer, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "CONNECTIONS_MOST", 2)
    with driver(server.url + "?timeout=1s") as kv, contextlib.closing(server.client()) as client:
        kv.set(key, b"0")
        with ThreadPoolExecutor(8) as pool:
            assert [*pool.map(lambda _: kv.get(key), range(100))] == [b"0"] * 100
        (used,) = client.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'refstore'").fetchall()
        assert used[0] <= 2
        with client.transaction(), ThreadPoolExecutor(8) as pool:
            client.execute("LOCK TABLE refstore.kv")
            failures = [*pool.map(lambda _: _failure(lambda: kv.set(key, b"1")), range(8))]
        busy = [error for error in failures if "are busy" in str(error)]
        assert 4 <= len(busy) <= 6
        assert all(error.nothing_done == (error in busy) for error in failures)


def _failure(call: Callable[[], object]) -> KVUnavailable:
    with pytest.raises(KVUnavailable) as caught:
        call()
    return caught.value


# ---- what the server refuses


def test_what_the_server_refuses_was_undone(server: PostgresServer, key: Key) -> None:
    """A statement that waits for a lock is ended by the settings of the user, for example."""
    before = Key(f"{key.partition}/before", "k")
    with driver(server.url) as kv, contextlib.closing(server.client()) as client:
        kv.set(key, b"0")
        for setting, words in [
            ("statement_timeout", "raise the statement_timeout"),
            ("lock_timeout", "another transaction kept a lock"),
        ]:
            server.run(f"ALTER ROLE postgres SET {setting} = '200ms'")
            kv.close()
            try:
                with client.transaction():
                    client.execute("SELECT FROM refstore.kv WHERE partition = %s FOR UPDATE", (key.partition.encode(),))
                    for op in writes(key):
                        with pytest.raises(KVUnavailable, match=words) as caught:
                            kv.execute([op])
                        assert caught.value.nothing_done
                        with pytest.raises(KVUnavailable, match=words) as caught:
                            kv.execute([Exchange(before, b"1") if isinstance(op, Set) else Set(before, b"1"), op])
                        assert not caught.value.nothing_done, "the run before it was performed"
            finally:
                server.run(f"ALTER ROLE postgres RESET {setting}")
        assert kv.get(key) == b"0"


@pytest.mark.parametrize(
    ("before", "change", "ops"),
    [
        (ABSENT, b"x", [Exchange(Key("", ""), b"n"), SetIf(Key("", ""), ABSENT, b"n"), Set(Key("", ""), b"n")]),
        (b"0", b"x", writes(Key("", ""))),
        (b"0", b"0", writes(Key("", ""))),
        (b"0", ABSENT, [*writes(Key("", "")), SetIf(Key("", ""), ABSENT, b"n")]),
    ],
    ids=["created", "replaced", "written again", "removed"],
)
@pytest.mark.parametrize("is_undone", [False, True], ids=["committed", "rolled back"])
def test_an_operation_that_waits_for_another_transaction_goes_by_what_that_left(
    server: PostgresServer, key: Key, before: bytes | Absent, change: bytes | Absent, ops: list[Op], *, is_undone: bool
) -> None:
    with driver(server.url) as kv, contextlib.closing(psycopg.connect(server.url)) as client:
        for number, kind in enumerate(ops):
            op = msgspec.structs.replace(kind, key=Key(key.partition, f"{number}"))
            neighbour = msgspec.structs.replace(kind, key=Key(key.partition, f"{number}/beside"))
            kv.execute([Delete(op.key) if before is ABSENT else Set(op.key, before)])
            place = (op.key.partition.encode(), op.key.name.encode())
            if change is ABSENT:
                client.execute("DELETE FROM refstore.kv WHERE partition = %s AND key = %s", place)
            else:
                client.execute(
                    "INSERT INTO refstore.kv VALUES (%s, %s, %s) ON CONFLICT (partition, key) DO UPDATE SET "
                    "value = excluded.value",
                    (*place, change),
                )
            with ThreadPoolExecutor(1) as pool:
                ours = pool.submit(kv.execute, [op, neighbour])
                until(lambda: _waiting(server), f"the wait of {op}")
                client.rollback() if is_undone else client.commit()
                result = ours.result()[0]
            left = before if is_undone else change
            model = {} if left is ABSENT else {op.key: left}
            assert result == apply(model, op), op
            assert kv.get(op.key) == model.get(op.key, ABSENT), op


def test_statements_that_wait_for_each_other_are_told_apart_by_the_server(server: PostgresServer, key: Key) -> None:
    """A program of somebody else takes its locks in another order: one of both is ended, and undone."""
    first, second = Key(key.partition, "a"), Key(key.partition, "b")
    with driver(server.url) as kv, contextlib.closing(server.client()) as client:
        kv.set_many([(first, b"0"), (second, b"0")])
        select = "SELECT FROM refstore.kv WHERE partition = %s AND key = %s FOR UPDATE"
        with client.transaction(), ThreadPoolExecutor(1) as pool:
            client.execute("SET LOCAL deadlock_timeout = '20s'")  # so that ours is the one that is ended
            client.execute(select, (key.partition.encode(), b"b"))
            ours = pool.submit(_failure, lambda: kv.set_many([(first, b"1"), (second, b"1")]))
            until(lambda: _waiting(server), "the wait for the second key")
            client.execute(select, (key.partition.encode(), b"a"))
            assert ours.result().nothing_done
            assert "waited for each other" in str(ours.result())
        assert kv.get_many([first, second]) == [b"0", b"0"]


def _waiting(server: PostgresServer) -> int:
    return len(server.run("SELECT true FROM pg_locks WHERE NOT granted"))


def test_calls_that_name_the_same_keys_in_any_order_do_not_wait_for_each_other(
    server: PostgresServer, key: Key
) -> None:
    keys = [Key(key.partition, f"{number:03}") for number in range(200)]
    ended = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'"
    before = server.run(ended)
    with driver(server.url) as kv:

        def write(thread: int) -> None:
            for number in range(10):
                mine = keys if (thread + number) % 2 else keys[::-1]
                kv.set_many([(each, b"0") for each in mine])
                kv.set_if_many([SetIf(each, b"0", b"1") for each in mine])
                kv.set_if_many([SetIf(each, b"1", ABSENT) for each in mine])
                kv.set_if_many([SetIf(each, ABSENT, b"0") for each in mine])
                kv.delete_range(key.partition, "050", "080")

        with ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(write, thread) for thread in range(6)]:
                done.result()
    assert server.run(ended) == before


def test_a_key_that_is_too_long_is_told_so(server: PostgresServer, key: Key) -> None:
    with driver(server.url) as kv, pytest.raises(InvalidName, match="about 2,600 bytes"):
        kv.set(Key(key.partition, os.urandom(2000).hex()), b"1")


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_name_that_none_may_have_is_refused(server: PostgresServer, key: Key, name: str) -> None:
    with driver(server.url) as kv:
        for op in writes(Key(key.partition, name)):
            with pytest.raises(InvalidName, match="must not be empty"):
                kv.execute([op])


# ---- lost replies


@pytest.mark.parametrize("index", range(5))
def test_a_lost_reply_leaves_the_outcome_open_and_the_retries_know_their_own_write(
    server: PostgresServer, key: Key, index: int
) -> None:
    op = writes(key)[index]
    with LossyProxy(server.port) as proxy:
        url = server.url.replace(str(server.port), str(proxy.port))
        with driver(url) as kv:
            kv.set(key, b"0")
            proxy.armed = True
            with pytest.raises(KVUnavailable, match="may have been performed") as caught:
                kv.execute([op])
            assert not caught.value.nothing_done
        with contextlib.closing(open_kv(url)) as kv:
            kv.set(key, b"0")
            proxy.armed = True
            if isinstance(op, Exchange):
                with pytest.raises(OutcomeUnknown):
                    kv.execute([op])
            else:
                assert kv.execute([op]) == [True if isinstance(op, SetIf) else None]
            assert kv.get(key) == (ABSENT if op.__class__ is Delete or getattr(op, "value", 0) is ABSENT else b"1")
        assert proxy.lost == 2


def test_rows_without_the_end_of_the_reply_are_no_success(server: PostgresServer, key: Key) -> None:
    """The rows of a large reply come before the commit."""
    keys = [Key(key.partition, f"{number:05}") for number in range(1000)]
    with LossyProxy(server.port) as proxy, driver(server.url.replace(str(server.port), str(proxy.port))) as kv:
        kv.get(key)
        proxy.passes = 4000
        with pytest.raises(KVUnavailable, match="may have been performed") as caught:
            kv.set_if_many([SetIf(each, ABSENT, b"1") for each in keys])
        assert not caught.value.nothing_done
        assert proxy.lost == 1


def test_a_server_that_does_not_answer_is_given_up(server: PostgresServer, key: Key) -> None:
    with driver(server.url + "?timeout=500ms") as kv:
        kv.set(key, b"0")
        server.pause()
        try:
            began = time.monotonic()
            with pytest.raises(KVUnavailable, match="may have been performed") as caught:
                kv.set(key, b"1")
            assert not caught.value.nothing_done
            with pytest.raises(KVUnavailable, match="cannot be reached"):
                kv.set(key, b"1")
            assert time.monotonic() - began < 20
        finally:
            server.resume()


def test_a_statement_that_is_given_up_does_not_land_later(server: PostgresServer, key: Key) -> None:
    with driver(server.url + "?timeout=500ms") as kv, contextlib.closing(server.client()) as client:
        kv.set(key, b"0")
        with client.transaction():
            client.execute("LOCK TABLE refstore.kv")
            with pytest.raises(KVUnavailable) as caught:
                kv.set(key, b"1")
            assert not caught.value.nothing_done
            until(lambda: not _waiting(server), "the cancellation")
        assert kv.get(key) == b"0"


@pytest.mark.parametrize("how", ["restart", "crash", "killed connection"])
def test_a_server_that_ends_and_starts_again(key: Key, how: str) -> None:
    """Connections that were idle meanwhile are not used; nothing acknowledged is lost."""
    with PostgresServer() as server, driver(server.url) as kv:
        before = kv.servers()
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(lambda i: kv.set_if(Key(key.partition, f"{i}"), ABSENT, b"1"), range(40)))
        if how == "killed connection":
            ended = server.run(
                "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'refstore'"
            )
            until(lambda: not any(Path(f"/proc/{pid}").exists() for pid, _ in ended), "the end of the connections")
        else:
            server.restart(kill=how == "crash")
        assert kv.count(key.partition, limit=100) == 40
        assert (kv.servers() == before) == (how == "killed connection")


def test_writes_while_the_server_is_killed_again_and_again(key: Key) -> None:
    """What was acknowledged is there, and no counted step was done twice."""
    with PostgresServer() as server, contextlib.closing(open_kv(server.url + "?timeout=2s", attempts=40)) as kv:
        kv.set(key, b"0")
        acknowledged = 0
        over = threading.Event()

        def kill() -> None:
            for _ in range(4):
                time.sleep(0.3)
                os.kill(server.pid, signal.SIGCONT)
                server.restart(kill=True)
            over.set()

        killer = threading.Thread(target=kill)
        killer.start()
        while not over.is_set():
            assert kv.set_if(key, str(acknowledged).encode(), str(acknowledged + 1).encode())
            acknowledged += 1
        killer.join()
        assert kv.get(key) == str(acknowledged).encode()
        assert acknowledged > 4


# ---- durability


@pytest.mark.parametrize("through", ["directly", "pgbouncer"])
@pytest.mark.parametrize("index", range(6))
def test_each_write_is_synced_whatever_the_servers_default(
    server: PostgresServer, key: Key, through: str, index: int
) -> None:
    """Asynchronous commits would wait for the writer of the log, which sleeps here for ten seconds."""
    ops = [*writes(key), SetIf(Key(key.partition, "new"), ABSENT, b"1")]
    server.run("ALTER ROLE postgres SET synchronous_commit = off")
    try:
        with contextlib.ExitStack() as stack:
            url = server.url if through == "directly" else stack.enter_context(PgBouncer(server.url)).url
            kv = stack.enter_context(driver(url))
            kv.set(key, b"0")
            with contextlib.closing(server.client()) as client:
                (off,) = client.execute("SHOW synchronous_commit").fetchall()
                assert off == ("off",)
                kv.execute([ops[index]])
                ((is_flushed,),) = client.execute(
                    "SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()"
                ).fetchall()
            assert is_flushed
    finally:
        server.run("ALTER ROLE postgres RESET synchronous_commit")


def test_a_commit_that_stopped_waiting_for_its_standby_is_not_acknowledged(key: Key) -> None:
    with PostgresServer(options=("fsync=off",)) as server, driver(server.url) as kv:
        kv.set(key, b"0")
        server.run("ALTER SYSTEM SET synchronous_standby_names = 'none_runs'", "SELECT pg_reload_conf()")
        with ThreadPoolExecutor(
            1
        ) as pool:  # the server takes the setting in a moment, so the first writes may not wait
            ours = pool.submit(_failure, lambda: [kv.set(key, b"1") for _ in range(10_000)])
            waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            until(lambda: server.run(waits), "the wait for a standby")
            server.run("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
            assert not ours.result().nothing_done
            assert "standby" in str(ours.result()) or "replication" in str(ours.result())


def test_doctor_is_told_of_a_server_that_may_be_damaged_by_a_crash(server: PostgresServer) -> None:
    with driver(server.url) as kv, pytest.raises(StoreMisconfigured, match="set both on"):
        kv.risks()
    with PostgresServer() as durable, driver(durable.url) as kv:
        assert kv.risks() == ()
        with PostgresServer.standby_of(durable):
            until(kv.risks, "the standby")
            assert "synchronous_standby_names is empty" in kv.risks()[0]


# ---- scans


def test_a_scan_reads_no_row_beyond_its_page_or_its_prefix_whatever_the_statistics_know(
    server: PostgresServer, key: Key
) -> None:
    """The statistics are of before the partition was there, so the planner takes it for small."""
    fill = """
        INSERT INTO refstore.kv SELECT ({})::bytea, (chr(97 + number % 4) || '/' || right('00000' || number, 6))::bytea,
        repeat('x', 100)::bytea FROM generate_series(0, 39999) AS number ORDER BY random()
    """
    count = "SELECT idx_tup_read + seq_tup_read FROM pg_stat_user_tables JOIN pg_stat_user_indexes USING (relid) "
    count += "WHERE pg_stat_user_tables.relname = 'kv'"
    with (
        database(server) as url,
        driver(url) as kv,
        contextlib.closing(psycopg.connect(url, autocommit=True)) as client,
    ):
        kv.get(key)
        client.execute(fill.format("'p' || number % 400"))
        client.execute("ANALYZE refstore.kv")
        client.execute(fill.format("'new'"))

        def read_rows(call: Callable[[], object]) -> int:
            """Return how many rows or entries of the index a call reads. The server counts them as a session ends."""
            counts: list[int] = []
            for each in (lambda: None, call):
                each()
                kv.close()
                until(
                    lambda: not server.run("SELECT true FROM pg_stat_activity WHERE application_name = 'refstore'"),
                    "the end of the session",
                )
                counts += client.execute(count).fetchall()[0]
            return counts[1] - counts[0]

        assert len(kv.scan("new", prefix="b/", after="b/001000")) == 1000
        assert read_rows(lambda: kv.scan("new", prefix="b/", after="b/001000")) <= 1100
        assert read_rows(lambda: kv.scan("new", prefix="b/", after="b/039990")) <= 20
        assert read_rows(lambda: kv.count("new", limit=100)) <= 200
        assert read_rows(lambda: kv.delete_range("new", "b/001000", "b/001040")) <= 100


# ---- forks


def test_a_forked_child_has_connections_of_its_own(server: PostgresServer, key: Key) -> None:
    with driver(server.url) as kv:
        kv.set(key, b"0")
        child = os.fork()
        if child == 0:
            try:
                ok = all(
                    kv.exchange(Key(key.partition, "c"), b"%d" % i) in (ABSENT, b"%d" % (i - 1)) for i in range(50)
                )
            except RefstoreError:
                ok = False
            os._exit(0 if ok else 1)
        for i in range(50):
            assert kv.exchange(Key(key.partition, "p"), b"%d" % i) in (ABSENT, b"%d" % (i - 1))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert kv.execute([Get(key)]) == [b"0"]


# ---- partitions


def test_partitions_are_listed_while_they_hold_a_key(server: PostgresServer, key: Key) -> None:
    names = [f"{key.partition}/{name}" for name in ("a", "b:c", "\u00e4*?[x]", "\U0001f600")]
    with database(server) as url, driver(url) as kv:
        assert kv.partitions() == []
        kv.set_many([(Key(name, each), b"") for name in names for each in ("1", "2")])
        assert kv.partitions() == names
        kv.delete_many([Key(names[1], each) for each in ("1", "2")])
        assert kv.partitions() == [names[0], *names[2:]]
