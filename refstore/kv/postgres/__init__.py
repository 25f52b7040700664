"""`postgresql://user:password@host:5432/database`: PostgreSQL 15 or later, also behind PgBouncer in transaction mode.

Several hosts may be named (`host1:5432,host2:5432`); the one that takes writes is found. The options are those of
libpq (`sslmode=verify-full`, `sslrootcert=FILE`, ...), and

    timeout=10s                     for one reply; a call that takes longer has an unknown outcome. Half of it, at most
                                    5 s, to connect

`statements.py` has the SQL, and says why it is atomic. All keys are in one table, in the schema `refstore`, which the
first use makes. So a database holds one lake. The table is not partitioned: without prepared statements, which
PgBouncer cannot keep, each statement is planned anew, and planning for 16 partitions takes longer than the statement.

The driver retries nothing that may have been performed. An ERROR of the server means that the statement was undone. A
broken connection, a timeout, a server that ends, or a commit that stopped waiting for its standby raises
`KVUnavailable` (outcome unknown), and `RetryingKV` decides. A statement that is given up is also cancelled, so that it
does not land long after.

Durability: every write is committed with `synchronous_commit=on`, whatever the server's default. Set
`synchronous_standby_names` where there is a standby: otherwise a failover loses the last writes. `risks` tells of that,
and refuses a server with `fsync` or `full_page_writes` off.

`servers` identifies the server by its cluster, its timeline (a promotion or a recovery to a point in time begins a new
one), when it was started, and the table (a restored dump makes a new one). What else went back, such as a copy of the
disk, only the positions of deleters tell.

The connections are kept in a list, not in psycopg's pool, whose threads do not survive a fork, and which does not open
again after `close`.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from threading import BoundedSemaphore
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from refstore.core.clock import Clock
from refstore.core.durations import parse_duration
from refstore.core.redaction import redact_text, redact_url
from refstore.errors import InvalidSettings, KVUnavailable, StoreMisconfigured
from refstore.kv.base import ABSENT, KV, POSITIONS, SCAN_LIMIT, Absent, Op, Result, Server, SetIf
from refstore.kv.postgres import statements
from refstore.kv.postgres.failures import connecting_error, statement_error

VERSION: Final = 1
"""The version of the tables that this code makes. `sql/N_before.sql` brings them to version N before the first process
with that code starts, so code of N - 1 must run on it. `sql/N_after.sql`, if there is one, removes what only older code
needs, and sets `oldest`.
"""
CONNECTIONS_MOST: Final = 16
"""Of one process. More threads wait."""
OPTIONS: Final = ("timeout",)

_TIMEOUT_MOST: Final = 3600.0
_CONNECT_SECONDS_MOST: Final = 5.0
_CANCEL_SECONDS: Final = 1.0
MAKE_SECONDS: Final = 10
"""How long to wait for another process that makes the tables."""
MAKE_LOCK: Final = 0x7265667374
"""The advisory lock of who makes the tables."""
_DELETE_ROWS: Final = 10_000
"""How many rows `delete_range` removes per statement."""


def open_postgres(url: str, _clock: Clock) -> PostgresKV:
    """Open the KV of a PostgreSQL URL. Connects to nothing yet. Raises InvalidSettings."""
    place, _, query = url.partition("?")
    options = [option for option in query.split("&") if option]
    ours = [option.partition("=")[2] for option in options if option.startswith("timeout=")]
    theirs = "&".join(option for option in options if not option.startswith("timeout="))
    timeout = parse_duration("timeout of the postgresql:// URL", (ours or ["10s"])[-1], least=0.1, most=_TIMEOUT_MOST)
    try:
        conninfo = conninfo_to_dict(f"{place}?{theirs}")
    except psycopg.Error as error:
        raise InvalidSettings(
            f"the postgresql:// URL is malformed ({redact_text(' '.join(str(error).split()))}); write "
            "postgresql://user:password@host:5432/database, with options of libpq, or timeout="
        ) from None
    return PostgresKV(conninfo, redact_url(place), timeout)


class PostgresKV(KV):
    def __init__(self, conninfo: dict[str, Any], where: str, timeout_seconds: float) -> None:
        """`conninfo`: as psycopg takes it. `where`: the server's name in messages, without secrets."""
        self._conninfo: dict[str, Any] = {
            "application_name": "refstore",
            "tcp_user_timeout": int(timeout_seconds * 1000),
            **conninfo,
            "connect_timeout": max(2, int(min(timeout_seconds / 2, _CONNECT_SECONDS_MOST))),
            "target_session_attrs": "read-write",
        }
        self._where = where
        self._timeout_seconds = timeout_seconds
        self._idle: list[_Connection] = []
        self._turns = BoundedSemaphore(CONNECTIONS_MOST)
        self._is_made = False
        """Whether the tables are known to be there."""
        self._pid = os.getpid()
        self._inherited: list[_Connection] = []
        """Those of a parent process, which are never closed here: the server would end the parent's."""
        self._closed = False

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        if not ops:
            return []
        results: list[Result] = [None] * len(ops)
        wrote = False
        try:
            with self._borrow_connection() as connection:
                for statement, call in statements.split_calls(ops):
                    indexes = call
                    while indexes:
                        asked = [ops[index] for index in indexes]
                        rows = connection.run(statement, statements.parameters(statement, asked))
                        wrote = wrote or statement not in statements.READS
                        indexes = _fill_results(results, ops, statement, indexes, rows)
        except KVUnavailable as error:
            error.nothing_done &= not wrote
            raise
        return results

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        # Right after a name comes the name with NUL, which no name contains. No UTF-8 text contains the byte 255.
        low = max(prefix.encode(), after.encode() + b"\0" if after else b"")
        bounds = (statements.encode(partition), low, prefix.encode() + b"\xff", limit)
        with self._borrow_connection() as connection:
            return [(key.decode(), value) for key, value in connection.run(statements.SCAN, bounds)]

    def delete_range(self, partition: str, first: str, last: str) -> None:
        page = {
            "partition": statements.encode(partition),
            "low": first.encode(),
            "high": last.encode() + b"\0",
            "limit": _DELETE_ROWS,
        }
        with self._borrow_connection() as connection:
            while connection.run(statements.DELETE_PAGE, page)[0][0] == _DELETE_ROWS:
                pass

    def count(self, partition: str, *, limit: int) -> int:
        with self._borrow_connection() as connection:
            return connection.run(statements.COUNT, (statements.encode(partition), limit))[0][0]

    def partitions(self) -> list[str]:
        """Return the partitions that hold a key, in order. Raises KVUnavailable."""
        with self._borrow_connection() as connection:
            return [partition.decode() for (partition,) in connection.run(statements.PARTITIONS)]

    def servers(self) -> list[Server]:
        with self._borrow_connection() as connection:
            identity = connection.run(statements.SERVER)[0][0]
        if identity is None:
            raise KVUnavailable(
                f"{self._where} answers from a standby; let what is in front of it find the server that takes writes",
                nothing_done=True,
            )
        return [Server(POSITIONS, identity)]

    def risks(self) -> Sequence[str]:
        with self._borrow_connection() as connection:
            ((is_durable, may_fail_over_early),) = connection.run(statements.SETTINGS)
        if not is_durable:
            raise StoreMisconfigured(
                f"{self._where} has fsync or full_page_writes off, so that a crash may damage all of it; set both on"
            )
        if may_fail_over_early:
            return ["synchronous_standby_names is empty: a failover loses the last writes; name the standbys in it"]
        return ()

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().abandon()

    @contextmanager
    def _borrow_connection(self) -> Generator[_Connection, None, None]:
        """Yield one connection for one call. After a failure it is closed: the next one may find another server."""
        if self._pid != os.getpid():
            self._inherited, self._idle, self._pid = self._inherited + self._idle, [], os.getpid()
            self._turns = BoundedSemaphore(CONNECTIONS_MOST)
        turns = self._turns
        if not turns.acquire(timeout=self._timeout_seconds):
            raise KVUnavailable(
                f"all {CONNECTIONS_MOST} connections of this process to {self._where} are busy; make the same call "
                "again, or start another process",
                nothing_done=True,
            )
        try:
            connection = self._take_connection()
            try:
                yield connection
            except psycopg.Error as error:
                connection.abandon()
                raise statement_error(error, self._where) from error
            except BaseException:
                connection.abandon()
                raise
            if self._closed:
                connection.abandon()
            else:
                self._idle.append(connection)
        finally:
            turns.release()

    def _take_connection(self) -> _Connection:
        """Return one that is open, as far as can be seen: the server says why it closes one."""
        while self._idle:
            with suppress(IndexError):  # another thread took the last one
                connection = self._idle.pop()
                if not connection.has_news():
                    return connection
                connection.abandon()
        try:
            connection = _Connection.connect(**self._conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise connecting_error(error, self._where) from error
        connection.set_up(self._timeout_seconds)
        try:
            if not self._is_made:
                self._make_tables(connection)
                self._is_made = True
        except psycopg.Error as error:
            connection.abandon()
            failure = statement_error(error, self._where)
            if isinstance(failure, KVUnavailable):
                failure.nothing_done = True  # of the call
            raise failure from error
        except BaseException:
            connection.abandon()
            raise
        return connection

    def _make_tables(self, connection: _Connection) -> None:
        """Bring the tables to VERSION, unless they are at it or beyond. Raises StoreMisconfigured."""
        if self._table_version(connection) >= VERSION:
            return
        with connection.transaction():
            connection.run(f"SET LOCAL lock_timeout = '{MAKE_SECONDS}s'")
            connection.run("SELECT pg_advisory_xact_lock(%s)::text", (MAKE_LOCK,))
            for version in range(self._table_version(connection) + 1, VERSION + 1):
                script = (files("refstore.kv") / "postgres" / "sql" / f"{version}_before.sql").read_bytes()
                connection.execute(script)

    def _table_version(self, connection: _Connection) -> int:
        """Return the version of the tables; 0: there are none. Raises StoreMisconfigured."""
        # Not by to_regclass: who waited for the lock would be told what was there before.
        if not connection.run("SELECT true FROM pg_tables WHERE schemaname = 'refstore' AND tablename = 'kv_schema'"):
            return 0
        ((version, oldest),) = connection.run("SELECT version, oldest FROM refstore.kv_schema")
        if oldest > VERSION:
            raise StoreMisconfigured(
                f"the tables at {self._where} are of a later refstore (version {version}); upgrade this one"
            )
        return version


def _fill_results(
    results: list[Result], ops: Sequence[Op], statement: str, indexes: Sequence[int], rows: Sequence[tuple[Any, ...]]
) -> list[int]:
    """Put the results of a call in their places. Return the indexes of what is to be done again."""
    if statement in (*statements.READS, statements.EXCHANGE):
        found: dict[int, bytes | Absent] = {
            indexes[number - 1]: ABSENT if value is None else value for number, value in rows
        }
        again = [index for index in indexes if index not in found] if statement is statements.EXCHANGE else []
        for index in indexes:
            value = found.get(index, ABSENT)
            results[index] = value is ABSENT if isinstance(ops[index], SetIf) else value
        return again
    written = set(rows)
    for index in indexes:
        if isinstance(ops[index], SetIf):
            results[index] = statements.row_key(ops[index].key) in written
    return []


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for no reply longer than `timeout_seconds`."""

    timeout_seconds: float | None = None
    warning = ""
    """What the server warned of during a statement."""

    def set_up(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.add_notice_handler(self._keep_warning)

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, timeout or self.timeout_seconds)

    def run(self, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Perform a statement, and return its rows."""
        cursor = self.execute(statement.encode(), parameters, binary=True)
        if self.warning:  # such as: committed here, and not waited for the standby
            raise psycopg.OperationalError(self.warning)
        return cursor.fetchall() if cursor.description else []

    def has_news(self) -> bool:
        """Return whether the server sent something, or closed the connection, while nobody waited for it."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def abandon(self) -> None:
        """Close the connection. What is being performed is cancelled first, and what was not sent is discarded:
        otherwise it could arrive after its retry.
        """
        if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=_CANCEL_SECONDS)
            with socket.socket(fileno=os.dup(self.fileno())) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def _keep_warning(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self.warning = notice.message_primary or "the server warned"
