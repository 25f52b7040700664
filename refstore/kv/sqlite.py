"""`sqlite:///absolute/path.db`, `sqlite:relative/path.db`: the embedded default. One file, any number of threads and
processes.

One table, ordered by its primary key, in WAL mode: readers never wait for a writer, and a writer waits for the one
before it, no longer than `busy_timeout` seconds, then raises `KVUnavailable`. All writes of one `execute` stand in one
transaction.

Durability: with `synchronous=full` (the default) what a call has written survives a crash of the process, of the
system, and a power loss, provided the disk keeps what fsync promised. With `?synchronous=normal` a power loss may take
back the last calls (in order, never half of one). The reaper may have deleted blobs by what is then undone, so that is
for scratch data only. The file must be on a local disk: WAL does not work between machines (NFS, SMB).

The file is made for its owner only, or for the group that shares its folder (`refstore/core/file_modes.py`); SQLite
gives its -wal and
-shm the same mode.

Options, as `?name=value&…`: `synchronous` (full or normal), `busy_timeout` (seconds).
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote

from refstore.core.clock import Clock, SystemClock
from refstore.core.file_modes import make_folder, modes_in
from refstore.errors import Corrupt, InvalidSettings, KVUnavailable, RefstoreError, StoreMisconfigured
from refstore.kv.base import ABSENT, KV, SCAN_LIMIT, Absent, Delete, Exchange, Get, Key, Op, Result, Set, SetIf

BUSY_TIMEOUT_SECONDS: Final = 15.0
"""Far longer than a transaction of ours: 10,000 operations take a tenth of a second."""

VERSION: Final = 1
"""Stands in the file as its user_version. A file of a later version is refused."""

_READ_SIZES: Final = (16, 256)
"""Keys per statement of a bulk read: two texts, which stay prepared; what is left of a run is filled up with NULL."""
_DELETE_ROWS: Final = 10_000
"""What `delete_range` removes per transaction, so that other writers get their turn."""
_CACHE_KIB: Final = 2_048
"""Per connection, as it is needed. More made batches no faster, since what is read again comes from the system's cache.
"""
_CHECKPOINT_PAGES: Final = 4_000
"""16 MB of WAL between checkpoints, each of which costs two fsyncs; a page that changed often meanwhile is written back
once.
"""
_OPEN_ATTEMPTS: Final = 40
_OPEN_WAIT_SECONDS: Final = 0.05

_TABLE: Final = (
    "CREATE TABLE kv (partition TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (partition, "
    "name)) WITHOUT ROWID"
)
_GET: Final = "SELECT value FROM kv WHERE partition = ? AND name = ?"
_GET_MANY: Final = {
    # CROSS JOIN keeps the order of the loops: each of the keys is looked up, the table is not read through.
    size: "SELECT column1, value FROM (VALUES "  # noqa: S608  # nothing but numbers goes in
    + ", ".join(f"({index}, ?, ?)" for index in range(size))
    + ") CROSS JOIN kv ON partition = column2 AND name = column3"
    for size in _READ_SIZES
}
_PUT: Final = "INSERT INTO kv VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_CREATE: Final = "INSERT INTO kv VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_SWAP: Final = "UPDATE kv SET value = ?4 WHERE partition = ?1 AND name = ?2 AND value = ?3"
_REMOVE: Final = "DELETE FROM kv WHERE partition = ? AND name = ? AND value = ?"
_DELETE: Final = "DELETE FROM kv WHERE partition = ? AND name = ?"
# A prefix ends before itself with a byte that UTF-8 does not have; the cast makes that a text, compared byte by byte.
SCAN_FROM: Final = (
    "SELECT name, value FROM kv WHERE partition = ? AND name >= ? AND name < CAST(? AS TEXT) ORDER BY name LIMIT ?"
)
SCAN_AFTER: Final = (
    "SELECT name, value FROM kv WHERE partition = ? AND name > ? AND name < CAST(? AS TEXT) ORDER BY name LIMIT ?"
)
COUNT: Final = "SELECT count(*) FROM (SELECT 1 FROM kv WHERE partition = ? LIMIT ?)"
_NTH: Final = "SELECT name FROM kv WHERE partition = ? AND name BETWEEN ? AND ? ORDER BY name LIMIT 1 OFFSET ?"
_DELETE_RANGE: Final = "DELETE FROM kv WHERE partition = ? AND name BETWEEN ? AND ?"

_UNAVAILABLE: Final = {
    sqlite3.SQLITE_BUSY: (
        "another process kept it locked for too long; make the same call again, or raise ?busy_timeout=SECONDS"
    ),
    sqlite3.SQLITE_LOCKED: "another connection kept it locked; make the same call again",
    sqlite3.SQLITE_PROTOCOL: "its locks are contended; make the same call again",
    sqlite3.SQLITE_INTERRUPT: "the call was interrupted; make it again",
    sqlite3.SQLITE_FULL: "the disk is full; free some space, then make the same call again",
    sqlite3.SQLITE_IOERR: "the disk failed a read or a write; look at the system's log and check the disk",
    sqlite3.SQLITE_NOMEM: "the machine is out of memory; make the same call again",
}
_MISCONFIGURED: Final = {
    sqlite3.SQLITE_CANTOPEN: (
        "it cannot be opened; check that the path names a file in a directory that this user may write to"
    ),
    sqlite3.SQLITE_PERM: "this user may not open it; check its owner and mode",
    sqlite3.SQLITE_READONLY: (
        "it cannot be written; check the owner and mode of the file, its -wal and -shm, and the directory"
    ),
}
_CORRUPT: Final = {
    sqlite3.SQLITE_CORRUPT: "its pages contradict each other",
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database",
    sqlite3.SQLITE_ERROR: "it does not hold what refstore keeps there",
}

_left_by_fork: Final[list[list[sqlite3.Connection]]] = []
"""Connections of a parent process, kept so that they are never closed here: closing would drop locks that are not ours.
"""


def open_sqlite(url: str, clock: Clock) -> SqliteKV:
    """Raises InvalidSettings."""
    place, _, query = url.partition(":")[2].partition("?")
    if place.startswith("//"):
        if not place.startswith("///"):
            raise InvalidSettings(f"{url!r} names a host; write sqlite:///absolute/path.db or sqlite:relative/path.db")
        place = place[2:]
    if place in ("", "/", ":memory:"):
        raise InvalidSettings(
            f"{url!r} names no file; write sqlite:///absolute/path.db, or memory: for a store that is not kept"
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    synchronous = options.pop("synchronous", "full").lower()
    if synchronous not in ("full", "normal"):
        raise InvalidSettings(f"synchronous={synchronous!r} in {url!r} is not known; use full or normal")
    try:
        busy_timeout_seconds = float(options.pop("busy_timeout", BUSY_TIMEOUT_SECONDS))
    except ValueError:
        busy_timeout_seconds = -1.0
    if not 0 <= busy_timeout_seconds <= 3600:
        raise InvalidSettings(f"busy_timeout in {url!r} must be a number of seconds from 0 to 3600")
    if options:
        raise InvalidSettings(
            f"{url!r} has options that are not known: {', '.join(options)}; known are synchronous and busy_timeout"
        )
    return SqliteKV(
        Path(unquote(place)), synchronous=synchronous, busy_timeout_seconds=busy_timeout_seconds, clock=clock
    )


class SqliteKV(KV):
    """A pool of connections, each used by one thread at a time: as many as there are threads in a call at once."""

    def __init__(
        self,
        path: Path,
        *,
        synchronous: str = "full",
        busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._path = path
        self._synchronous = synchronous
        self._busy_timeout_seconds = busy_timeout_seconds
        self._clock = clock or SystemClock()
        self._idle: list[sqlite3.Connection] = []
        self._pid = os.getpid()
        self._closed = False

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        if not ops:
            return []
        runs = [(kind, list(run)) for kind, run in groupby(ops, key=type)]
        with self._connection() as connection:
            if len(runs) == 1 and runs[0][0] is Get:
                return _perform(connection, *runs[0], _set_if_counted)
            try:
                return self._transact(connection, runs, _set_if_counted)
            except _NotAllWon:
                connection.execute("ROLLBACK")
                return self._transact(connection, runs, _set_if_compared)

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        statement, low = (SCAN_AFTER, after) if after >= prefix else (SCAN_FROM, prefix)
        with self._connection() as connection:
            return connection.execute(statement, (partition, low, prefix.encode() + b"\xff", limit)).fetchall()

    def delete_range(self, partition: str, first: str, last: str) -> None:
        while True:
            with self._connection() as connection:
                connection.execute("BEGIN IMMEDIATE")
                nth = connection.execute(_NTH, (partition, first, last, _DELETE_ROWS - 1)).fetchall()
                connection.execute(_DELETE_RANGE, (partition, first, nth[0][0] if nth else last))
                connection.execute("COMMIT")
            if not nth:
                return

    def count(self, partition: str, *, limit: int) -> int:
        with self._connection() as connection:
            return connection.execute(COUNT, (partition, limit)).fetchall()[0][0]

    def _transact(
        self, connection: sqlite3.Connection, runs: Sequence[tuple[type[Op], list[Op]]], set_if: _SetIf
    ) -> list[Result]:
        results: list[Result] = []
        connection.execute("BEGIN IMMEDIATE")
        for kind, run in runs:
            results += _perform(connection, kind, run, set_if)
        try:
            connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise self._typed(error, nothing_done=False) from error
        return results

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _connection(self) -> Generator[sqlite3.Connection, None, None]:
        """One connection for one call. After any failure it is closed, which rolls back what it had begun."""
        connection = self._take()
        try:
            yield connection
        except sqlite3.DatabaseError as error:
            connection.close()
            raise self._typed(error) from error
        except BaseException:
            connection.close()
            raise
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)

    def _take(self) -> sqlite3.Connection:
        if self._pid != os.getpid():
            _left_by_fork.append(self._idle)
            self._idle, self._pid = [], os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._open()

    def _open(self) -> sqlite3.Connection:
        """A new connection, set up; the file and its table are made if they are not there."""
        try:
            self._make_file()
        except OSError as error:
            raise StoreMisconfigured(
                f"the KV file {self._path} cannot be made ({error}); check the path and its folder's mode"
            ) from error
        for attempt in range(1, _OPEN_ATTEMPTS + 1):
            connection: sqlite3.Connection | None = None
            try:
                connection = sqlite3.connect(
                    self._path,
                    timeout=self._busy_timeout_seconds,
                    isolation_level=None,
                    check_same_thread=False,
                    cached_statements=64,
                )
                self._set_up(connection)
            except BaseException as error:
                if connection is not None:
                    connection.close()
                if not isinstance(error, sqlite3.DatabaseError):
                    raise
                # The change to WAL does not wait for others that make it at the same moment.
                if _primary(error) != sqlite3.SQLITE_BUSY or attempt == _OPEN_ATTEMPTS:
                    raise self._typed(error) from error
                self._clock.sleep(_OPEN_WAIT_SECONDS)
            else:
                return connection
        raise AssertionError("the last attempt returns or raises")

    def _make_file(self) -> None:
        """Make the file, empty, where it is not there: SQLite would make it for everybody to read. Raises OSError."""
        if self._path.exists():
            return
        make_folder(self._path.parent)
        modes = modes_in(self._path.parent.stat())
        try:
            # not opened: to close a file drops all locks that this process has on it, those of another thread's
            # connection too
            os.mknod(self._path, modes.file | stat.S_IFREG)
        except FileExistsError:
            return  # another was quicker
        except PermissionError:  # macOS lets only root make it so
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, modes.file))
        if modes.shared:
            self._path.chmod(modes.file)

    def _set_up(self, connection: sqlite3.Connection) -> None:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreMisconfigured(
                f"the KV file {self._path} cannot use WAL here (its mode is {mode}); put it on a local disk"
            )
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute("PRAGMA fullfsync = 1")  # macOS: fsync alone leaves it in the disk's cache
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        if self._version(connection) == VERSION:
            return
        connection.execute("BEGIN IMMEDIATE")
        if self._version(connection) != VERSION:  # nobody else made it meanwhile
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchall()[0][0]:
                raise InvalidSettings(f"{self._path} is a database of something else; name another file")
            connection.execute(_TABLE)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")

    def _version(self, connection: sqlite3.Connection) -> int:
        version: int = connection.execute("PRAGMA user_version").fetchall()[0][0]
        if version > VERSION:
            raise StoreMisconfigured(
                f"the KV file {self._path} was written by a later refstore (format {version}); upgrade this one"
            )
        return version

    def _typed(
        self, error: sqlite3.DatabaseError, *, nothing_done: bool = True
    ) -> RefstoreError | sqlite3.DatabaseError:
        """`error` in the words of `refstore/errors.py`; one that only a fault of ours can cause stays what it is.

        Whatever fails before the COMMIT is rolled back: then nothing was done.
        """
        primary = _primary(error)
        if (why := _UNAVAILABLE.get(primary)) is not None:
            return KVUnavailable(f"the KV file {self._path} did not do it ({error}): {why}", nothing_done=nothing_done)
        if (why := _MISCONFIGURED.get(primary)) is not None:
            return StoreMisconfigured(f"the KV file {self._path} cannot be used ({error}): {why}")
        why = _CORRUPT.get(primary)
        if primary == -1 and isinstance(error, sqlite3.OperationalError):
            why = "a name in it is not text"  # Python says so, not SQLite, so without a code
        if why is not None:
            return Corrupt(
                f"the KV file {self._path} is damaged ({error}): {why}; stop all processes and restore it from a backup"
            )
        return error


class _NotAllWon(Exception):
    """Some SetIf of a run did not succeed; only reading tells which."""


_SetIf = Callable[[sqlite3.Connection, Sequence[SetIf]], list[bool]]


def _primary(error: sqlite3.DatabaseError) -> int:
    """The error's primary result code; the low byte of the extended one. -1: it has none."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else -1


def _perform(connection: sqlite3.Connection, kind: type[Op], run: Sequence[Any], set_if: _SetIf) -> list[Result]:
    """One run of ops of one kind."""
    if kind is Get:
        return cast("list[Result]", _get(connection, [key for (key,) in run]))
    if kind is SetIf:
        return cast("list[Result]", set_if(connection, run))
    if kind is Exchange:
        old = _get(connection, [key for key, _ in run])
        connection.executemany(_PUT, ((p, n, value) for (p, n), value in run))
        return cast("list[Result]", old)
    if kind is Set:
        connection.executemany(_PUT, ((p, n, value) for (p, n), value in run))
    elif kind is Delete:
        connection.executemany(_DELETE, (key for (key,) in run))
    else:
        raise TypeError(f"{kind!r} is not an operation")
    return [None] * len(run)


def _get(connection: sqlite3.Connection, keys: Sequence[Key]) -> list[bytes | Absent]:
    if len(keys) == 1:
        rows = connection.execute(_GET, keys[0]).fetchall()
        return [rows[0][0] if rows else ABSENT]
    values: list[bytes | Absent] = []
    small, large = _READ_SIZES
    while len(values) < len(keys):
        start = len(values)
        size = small if len(keys) - start <= small else large
        some = keys[start : start + size]
        values += [ABSENT] * len(some)
        names: list[str | None] = list(chain.from_iterable(some))
        names += [None] * (2 * (size - len(some)))
        for index, value in connection.execute(_GET_MANY[size], names).fetchall():
            values[start + index] = value
    return values


def _set_if_counted(connection: sqlite3.Connection, run: Sequence[SetIf]) -> list[bool]:
    """Nearly always all of a run succeed, so that is tried, and counted. Raises _NotAllWon; the transaction is then
    begun anew.

    (A savepoint would save the runs before this one, and cost every transaction a second copy of the pages it changes.)
    """
    shapes = {(expected is ABSENT, value is ABSENT) for _, expected, value, _once in run}
    if (True, True) in shapes:
        raise _NotAllWon  # it writes nothing that could be counted
    done = 0
    # Rows are generated as they are bound: 10,000 tuples held at once cost more in cache misses than in their making.
    for shape in shapes:
        match shape:
            case (True, _):
                rows = ((p, n, new) for (p, n), old, new, _ in run if old is ABSENT)
                done += connection.executemany(_CREATE, rows).rowcount
            case (_, True):
                rows = ((p, n, old) for (p, n), old, new, _ in run if new is ABSENT)
                done += connection.executemany(_REMOVE, rows).rowcount
            case _:
                rows = ((p, n, old, new) for (p, n), old, new, _ in run if old is not ABSENT and new is not ABSENT)
                done += connection.executemany(_SWAP, rows).rowcount
    if done != len(run):
        raise _NotAllWon
    return [True] * len(run)


def _set_if_compared(connection: sqlite3.Connection, run: Sequence[SetIf]) -> list[bool]:
    """Inside the transaction nobody else writes, so what is read here still holds when it is written."""
    now = _get(connection, [op.key for op in run])
    won = [value == op.expected for op, value in zip(run, now, strict=True)]
    winners = [op for op, ok in zip(run, won, strict=True) if ok]
    connection.executemany(_PUT, [(*op.key, op.value) for op in winners if op.value is not ABSENT])
    connection.executemany(_DELETE, [op.key for op in winners if op.value is ABSENT])
    return won
