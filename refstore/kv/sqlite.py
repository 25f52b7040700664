"""`sqlite:///absolute/path.db`, `sqlite:relative/path.db`: the embedded default. One file, any number of threads and
processes.

One table, ordered by its primary key, in WAL mode. Readers never wait for a writer. A writer waits for the one before
it, at most BUSY_TIMEOUT_SECONDS, then raises `KVUnavailable`. All writes of one `execute` are one transaction.

Durability: a completed write survives a crash of the process or the system, and a power loss, provided that the disk
honours fsync. With `?fsync=0` (SQLite's `synchronous=normal`) a power loss may undo the last calls (in order, never
half of one). The reaper may have deleted blobs because of a write that is then undone, so use it for
scratch data only. The file must be on a local disk: WAL does not work between machines (NFS, SMB).

SQLite comes with apsw. Do not open the file with Python's `sqlite3` in the same process: when either of two copies of
SQLite closes it, the system drops the other one's locks, too. Another process may.

Only the file's owner, or the group that shares its folder, can open it (`refstore/core/file_modes.py`). SQLite gives
its -wal and -shm the same mode.

`servers` identifies the file by its device, its inode and the time at which it was made. It raises an error if another
file was moved over the path while this process has the old one open, because the connections still read and write the
old one. The identity does not show a copy that is written into the file itself (`cp copy kv.db`). Move a copy into
place instead: `mv`.

The only option is `?fsync=0`.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final, Protocol, cast
from urllib.parse import parse_qsl, unquote

import apsw

from refstore.core.clock import Clock, SystemClock
from refstore.core.disk_space import describe_full_disk, is_full
from refstore.core.file_identity import read_file_identity
from refstore.core.file_modes import make_folder, modes_for
from refstore.errors import Corrupt, InvalidSettings, KVUnavailable, RefstoreError, StoreMisconfigured
from refstore.kv.base import (
    ABSENT,
    KV,
    POSITIONS,
    SCAN_LIMIT,
    Absent,
    Delete,
    Exchange,
    Get,
    Key,
    Op,
    Result,
    Server,
    Set,
    SetIf,
)

BUSY_TIMEOUT_SECONDS: Final = 15.0
"""Far longer than one of our transactions: 10,000 operations take a tenth of a second."""

VERSION: Final = 1
"""The file's user_version. A file of a later version is refused."""

_READ_SIZES: Final = (16, 256)
"""Keys per statement of a bulk read. There are two statements, which stay prepared; unused parameters are NULL."""
_DELETE_ROWS: Final = 10_000
"""How many rows `delete_range` removes per transaction, so that other writers get their turn."""
_CACHE_KIB: Final = 2_048
"""The cache of each connection, filled as needed. A larger one made batches no faster, because the system caches the
file.
"""
_CHECKPOINT_PAGES: Final = 4_000
"""16 MB of WAL between checkpoints, each of which costs two fsyncs. A page that changed often meanwhile is written back
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
    # CROSS JOIN keeps the order of the loops: each key is looked up, and the table is not scanned.
    size: "SELECT column1, value FROM (VALUES "  # noqa: S608  # only numbers are inserted
    + ", ".join(f"({index}, ?, ?)" for index in range(size))
    + ") CROSS JOIN kv ON partition = column2 AND name = column3"
    for size in _READ_SIZES
}
_PUT: Final = "INSERT INTO kv VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_CREATE: Final = "INSERT INTO kv VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_SWAP: Final = "UPDATE kv SET value = ?4 WHERE partition = ?1 AND name = ?2 AND value = ?3"
_REMOVE: Final = "DELETE FROM kv WHERE partition = ? AND name = ? AND value = ?"
_DELETE: Final = "DELETE FROM kv WHERE partition = ? AND name = ?"
# The upper bound is the prefix and a byte that UTF-8 does not use. The cast makes it a text, compared byte by byte.
SCAN_FROM: Final = (
    "SELECT name, value FROM kv WHERE partition = ? AND name >= ? AND name < CAST(? AS TEXT) ORDER BY name LIMIT ?"
)
SCAN_AFTER: Final = (
    "SELECT name, value FROM kv WHERE partition = ? AND name > ? AND name < CAST(? AS TEXT) ORDER BY name LIMIT ?"
)
COUNT: Final = "SELECT count(*) FROM (SELECT 1 FROM kv WHERE partition = ? LIMIT ?)"
_PARTITIONS: Final = (
    "WITH RECURSIVE each(last) AS (SELECT min(partition) FROM kv UNION ALL SELECT (SELECT min(partition) FROM kv WHERE "
    "partition > last) FROM each WHERE last IS NOT NULL) SELECT last FROM each WHERE last IS NOT NULL"
)
"""One look into the index for each partition."""
_NTH: Final = "SELECT name FROM kv WHERE partition = ? AND name BETWEEN ? AND ? ORDER BY name LIMIT 1 OFFSET ?"
_DELETE_RANGE: Final = "DELETE FROM kv WHERE partition = ? AND name BETWEEN ? AND ?"

_UNAVAILABLE: Final = {
    apsw.SQLITE_BUSY: (
        f"another process kept it locked for {BUSY_TIMEOUT_SECONDS:g} s and more; make the same call again"
    ),
    apsw.SQLITE_LOCKED: "another connection kept it locked; make the same call again",
    apsw.SQLITE_PROTOCOL: "its locks are contended; make the same call again",
    apsw.SQLITE_INTERRUPT: "the call was interrupted; make it again",
    apsw.SQLITE_IOERR: "the disk failed a read or a write; look at the system's log and check the disk",
    apsw.SQLITE_NOMEM: "the machine is out of memory; make the same call again",
}
_SYSTEM_ERRORS: Final = (apsw.SQLITE_IOERR, apsw.SQLITE_CANTOPEN)
"""Errors for which the system has an error number."""
_MISCONFIGURED: Final = {
    apsw.SQLITE_CANTOPEN: (
        "it cannot be opened; check that the path names a file in a directory that this user may write to"
    ),
    apsw.SQLITE_PERM: "this user may not open it; check its owner and mode",
    apsw.SQLITE_READONLY: (
        "it cannot be written; check the owner and mode of the file, its -wal and -shm, and the directory"
    ),
}
_CORRUPT: Final = {
    apsw.SQLITE_CORRUPT: "its pages contradict each other",
    apsw.SQLITE_NOTADB: "it is not an SQLite database",
    apsw.SQLITE_ERROR: "it does not hold what refstore keeps there",
}


class SqliteCursor(Protocol):
    def fetchall(self) -> list[Any]: ...


class SqliteConnection(Protocol):
    """The part of apsw's connections that the driver uses. apsw's own types allow every kind of value everywhere."""

    def execute(self, statements: str, bindings: Sequence[object] | None = None) -> SqliteCursor: ...

    def executemany(self, statements: str, sequenceofbindings: Iterable[Sequence[object]]) -> object: ...

    def set_busy_timeout(self, milliseconds: int) -> None: ...

    @property
    def system_errno(self) -> int:
        """The error number of the system at the last failure."""
        ...

    def total_changes(self) -> int:
        """Return how many rows the connection has changed since it was opened."""
        ...

    def close(self, force: bool) -> None:
        """Close it, and roll back its transaction. `force`: also with unfinished statements."""
        ...


_inherited_connections: Final[list[list[SqliteConnection]]] = []
"""Connections of a parent process. They are kept so that they are never closed here: closing would drop the parent's
locks.
"""


def open_sqlite(url: str, clock: Clock) -> SqliteKV:
    """Open the KV of an SQLite URL. Raises InvalidSettings."""
    file_path, _, query = url.partition(":")[2].partition("?")
    if file_path.startswith("//"):
        if not file_path.startswith("///"):
            raise InvalidSettings(f"{url!r} names a host; write sqlite:///absolute/path.db or sqlite:relative/path.db")
        file_path = file_path[2:]
    if file_path in ("", "/", ":memory:"):
        raise InvalidSettings(
            f"{url!r} names no file; write sqlite:///absolute/path.db, or memory: for a temporary store"
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    fsync = options.pop("fsync", "1")
    if fsync not in ("0", "1") or options:
        raise InvalidSettings(f"{url!r} has unknown options; known is fsync, 0 or 1")
    return SqliteKV(Path(unquote(file_path)), fsync=fsync == "1", clock=clock)


class SqliteKV(KV):
    """A pool of connections, each used by one thread at a time. It has as many connections as threads call at once."""

    def __init__(
        self,
        path: Path,
        *,
        fsync: bool = True,
        busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._path = path
        self._fsync = fsync
        self._busy_timeout_seconds = busy_timeout_seconds
        self._clock = clock or SystemClock()
        self._idle: list[SqliteConnection] = []
        self._files: dict[SqliteConnection, str] = {}
        """The identity of the file that each open connection reads and writes, idle or not."""
        self._alone: set[SqliteConnection] = set()
        """The one that keeps all others out, and is closed after one call (`_open_connection`), if there is one."""
        self._turn = threading.Lock()
        """Held by the thread that has such a connection."""
        self._pid = os.getpid()
        self._closed = False

    @property
    def local_files(self) -> Sequence[Path]:
        path = self._path.absolute()
        return [path.with_name(f"{path.name}{suffix}") for suffix in ("", "-wal", "-shm", "-journal")]

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        if not ops:
            return []
        runs = [(kind, list(run)) for kind, run in groupby(ops, key=type)]
        with self._borrow_connection() as connection:
            if len(runs) == 1 and runs[0][0] is Get:
                return _perform_run(connection, *runs[0], _set_if_by_count)
            try:
                return self._transact(connection, runs, _set_if_by_count)
            except _NotAllWritten:
                connection.execute("ROLLBACK")
                return self._transact(connection, runs, _set_if_by_read)

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        statement, low = (SCAN_AFTER, after) if after >= prefix else (SCAN_FROM, prefix)
        with self._borrow_connection() as connection:
            return connection.execute(statement, (partition, low, prefix.encode() + b"\xff", limit)).fetchall()

    def delete_range(self, partition: str, first: str, last: str) -> None:
        while True:
            with self._borrow_connection() as connection:
                connection.execute("BEGIN IMMEDIATE")
                nth = connection.execute(_NTH, (partition, first, last, _DELETE_ROWS - 1)).fetchall()
                connection.execute(_DELETE_RANGE, (partition, first, nth[0][0] if nth else last))
                connection.execute("COMMIT")
            if not nth:
                return

    def count(self, partition: str, *, limit: int) -> int:
        with self._borrow_connection() as connection:
            return connection.execute(COUNT, (partition, limit)).fetchall()[0][0]

    def partitions(self) -> list[str]:
        with self._borrow_connection() as connection:
            return [partition for (partition,) in connection.execute(_PARTITIONS).fetchall()]

    def servers(self) -> list[Server]:
        with self._borrow_connection() as connection:
            self._version(connection)
            opened = set(self._files.copy().values())
            try:
                named, why = read_file_identity(self._path), "another file has its name"
            except OSError as error:
                named, why = "", str(error)
        if opened == {named}:
            return [Server(POSITIONS, named)]
        # Raised out here, where it closes no connection: otherwise the retries would close all, and open the new file.
        raise KVUnavailable(
            f"the KV file {self._path} was replaced or removed while this process had it open ({why}). What this "
            "process writes will be lost. Stop all processes that use the file, move the right file there, without the "
            "-wal and -shm of the other one, then start them again",
            nothing_done=True,
        )

    def _transact(
        self, connection: SqliteConnection, runs: Sequence[tuple[type[Op], list[Op]]], set_if: _SetIfRun
    ) -> list[Result]:
        results: list[Result] = []
        connection.execute("BEGIN IMMEDIATE")
        for kind, run in runs:
            results += _perform_run(connection, kind, run, set_if)
        try:
            connection.execute("COMMIT")
        except apsw.Error as error:
            # Full: the last frame of the transaction, which commits it, is not whole in the write-ahead log.
            is_undone = _primary_code(error) == apsw.SQLITE_FULL
            raise self._typed_error(error, connection.system_errno, nothing_done=is_undone) from error
        return results

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._close_connection(self._idle.pop())

    @contextmanager
    def _borrow_connection(self) -> Generator[SqliteConnection, None, None]:
        """Yield one connection for one call. After a failure it is closed, which rolls back its transaction."""
        connection = self._take_connection()
        try:
            yield connection
        except (apsw.Error, UnicodeDecodeError) as error:
            number = connection.system_errno
            self._close_connection(connection)
            raise self._typed_error(error, number) from error
        except BaseException:
            self._close_connection(connection)
            raise
        if self._closed or connection in self._alone:
            self._close_connection(connection)
        else:
            self._idle.append(connection)

    def _close_connection(self, connection: SqliteConnection) -> None:
        connection.close(True)  # a call that failed may leave a statement unfinished
        self._files.pop(connection, None)
        if connection in self._alone:
            self._alone.remove(connection)
            self._turn.release()

    def _take_connection(self) -> SqliteConnection:
        if self._pid != os.getpid():
            _inherited_connections.append([*self._files])
            self._idle, self._files, self._alone, self._pid = [], {}, set(), os.getpid()
            self._turn = threading.Lock()
        try:
            return self._idle.pop()
        except IndexError:
            return self._open_connection()

    def _open_connection(self) -> SqliteConnection:
        """Open and set up a new connection. Create the file and its table if they do not exist.

        The first connection to the file needs 32 KiB of disk for the index of the write-ahead log (-shm). On a full
        disk the connection has the index in memory, and so must keep all other connections out; it is closed after one
        call. So everything can still be read.
        """
        try:
            self._make_file()
            # Before it is opened: if it is replaced in between, the identity is the older one, and `servers` notices.
            file = read_file_identity(self._path)
        except OSError as error:
            if is_full(error.errno):
                words = describe_full_disk(self._path.parent, error.errno or 0)
                raise KVUnavailable(f"the KV file {self._path} cannot be made: {words}", nothing_done=True) from error
            raise StoreMisconfigured(
                f"the KV file {self._path} cannot be made ({error}); check the path and its folder's mode"
            ) from error
        try:
            return self._connect(file, alone=False)
        except _NoRoomForIndex:
            self._turn.acquire()
        try:
            return self._connect(file, alone=True)
        except BaseException:
            self._turn.release()
            raise

    def _connect(self, file: str, *, alone: bool) -> SqliteConnection:
        """Return a new connection to the file of this identity. Raises _NoRoomForIndex, unless it is to be alone."""
        for attempt in range(1, _OPEN_ATTEMPTS + 1):
            connection: SqliteConnection | None = None
            number = 0
            try:
                connection = cast(SqliteConnection, apsw.Connection(str(self._path)))
                # Two processes that want to be alone would wait for each other, each with a lock that the other needs.
                connection.set_busy_timeout(0 if alone else int(self._busy_timeout_seconds * 1000))
                if alone:
                    connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
                self._set_up(connection)
            except BaseException as error:
                if connection is not None:
                    number = connection.system_errno
                    connection.close(True)
                if not isinstance(error, apsw.Error):
                    raise
                if not alone and _is_full(error, number):
                    raise _NoRoomForIndex from error
                # The change to WAL does not wait for a connection that makes it at the same moment.
                if _primary_code(error) != apsw.SQLITE_BUSY or attempt == _OPEN_ATTEMPTS:
                    raise self._typed_error(error, number) from error
                self._clock.sleep(_OPEN_WAIT_SECONDS)
            else:
                self._files[connection] = file
                if alone:
                    self._alone.add(connection)
                return connection
        raise AssertionError("the last attempt returns or raises")

    def _make_file(self) -> None:
        """Create the file, empty, if it does not exist: SQLite would make it readable for everybody. Raises OSError."""
        if self._path.exists():
            return
        make_folder(self._path.parent)
        modes = modes_for(self._path.parent.stat())
        try:
            # Not opened: closing a file drops all locks that this process has on it, also of another thread's
            # connection.
            os.mknod(self._path, modes.file | stat.S_IFREG)
        except FileExistsError:
            return  # another process or thread created it first
        except PermissionError:  # macOS allows mknod only to root
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, modes.file))
        if modes.is_shared:
            self._path.chmod(modes.file)

    def _set_up(self, connection: SqliteConnection) -> None:
        ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
        if mode != "wal":
            raise StoreMisconfigured(
                f"the KV file {self._path} cannot use WAL here (its mode is {mode}); put it on a local disk"
            )
        connection.execute(f"PRAGMA synchronous = {'full' if self._fsync else 'normal'}")
        connection.execute("PRAGMA fullfsync = 1")  # macOS: fsync alone leaves it in the disk's cache
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        if self._version(connection) == VERSION:
            return
        connection.execute("BEGIN IMMEDIATE")
        if self._version(connection) != VERSION:  # no other process created the table meanwhile
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchall()[0][0]:
                raise InvalidSettings(f"{self._path} is a database of something else; name another file")
            connection.execute(_TABLE)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")

    def _version(self, connection: SqliteConnection) -> int:
        version: int = connection.execute("PRAGMA user_version").fetchall()[0][0]
        if version > VERSION:
            raise StoreMisconfigured(
                f"the KV file {self._path} was written by a later refstore (format {version}); upgrade this one"
            )
        return version

    def _typed_error(
        self, error: apsw.Error | UnicodeDecodeError, number: int, *, nothing_done: bool = True
    ) -> RefstoreError | apsw.Error | UnicodeDecodeError:
        """Return the error of `refstore/errors.py` for an SQLite error. An error that only a bug of refstore can cause
        is returned unchanged. `number`: the system's error number.

        A failure before the COMMIT is rolled back, so nothing was done.
        """
        primary = _primary_code(error) if isinstance(error, apsw.Error) else -1
        if isinstance(error, apsw.Error) and _is_full(error, number):
            words = describe_full_disk(self._path.absolute().parent, number or errno.ENOSPC)
            return KVUnavailable(f"the KV file {self._path} cannot be written: {words}", nothing_done=nothing_done)
        if (why := _UNAVAILABLE.get(primary)) is not None:
            return KVUnavailable(f"the KV file {self._path} failed ({error}): {why}", nothing_done=nothing_done)
        if (why := _MISCONFIGURED.get(primary)) is not None:
            return StoreMisconfigured(f"the KV file {self._path} cannot be used ({error}): {why}")
        why = _CORRUPT.get(primary)
        if isinstance(error, UnicodeDecodeError):
            why = "a name in it is not text"
        if why is not None:
            return Corrupt(
                f"the KV file {self._path} is damaged ({error}): {why}; stop all processes and restore it from a backup"
            )
        return error


class _NoRoomForIndex(Exception):
    """Raised if the disk has no room for the index of the write-ahead log."""


class _NotAllWritten(Exception):
    """Raised if some SetIf of a run did not succeed. Only reading shows which."""


_SetIfRun = Callable[[SqliteConnection, Sequence[SetIf]], list[bool]]


def _is_full(error: apsw.Error, number: int) -> bool:
    """Return whether the disk is full. `number`: the system's error number."""
    primary = _primary_code(error)
    return primary == apsw.SQLITE_FULL or (primary in _SYSTEM_ERRORS and is_full(number))


def _primary_code(error: apsw.Error) -> int:
    """Return the error's primary result code, the low byte of the extended one; -1 if it has none."""
    code = getattr(error, "result", None)
    return code & 0xFF if isinstance(code, int) else -1


def _perform_run(connection: SqliteConnection, kind: type[Op], run: Sequence[Any], set_if: _SetIfRun) -> list[Result]:
    """Perform one run of ops of one kind."""
    if kind is Get:
        return cast("list[Result]", _get_values(connection, [op.key for op in run]))
    if kind is SetIf:
        return cast("list[Result]", set_if(connection, run))
    if kind is Exchange:
        old = _get_values(connection, [op.key for op in run])
        connection.executemany(_PUT, _bind_rows(run))
        return cast("list[Result]", old)
    if kind is Set:
        connection.executemany(_PUT, _bind_rows(run))
    elif kind is Delete:
        connection.executemany(_DELETE, ((op.key.partition, op.key.name) for op in run))
    else:
        raise TypeError(f"{kind!r} is not an operation")
    return [None] * len(run)


def _bind_rows(ops: Iterable[Set | SetIf | Exchange]) -> Iterator[tuple[str, str, bytes | Absent]]:
    """Yield partition, name and new value of each op. Rows are made as they are bound: keeping 10,000 tuples costs more
    in cache misses than making them.
    """
    return ((op.key.partition, op.key.name, op.value) for op in ops)


def _get_values(connection: SqliteConnection, keys: Sequence[Key]) -> list[bytes | Absent]:
    if len(keys) == 1:
        rows = connection.execute(_GET, (keys[0].partition, keys[0].name)).fetchall()
        return [rows[0][0] if rows else ABSENT]
    values: list[bytes | Absent] = []
    small, large = _READ_SIZES
    while len(values) < len(keys):
        start = len(values)
        size = small if len(keys) - start <= small else large
        chunk = keys[start : start + size]
        values += [ABSENT] * len(chunk)
        names: list[str | None] = list(chain.from_iterable([(key.partition, key.name) for key in chunk]))
        names += [None] * (2 * (size - len(chunk)))
        for index, value in connection.execute(_GET_MANY[size], names).fetchall():
            values[start + index] = value
    return values


def _set_if_by_count(connection: SqliteConnection, run: Sequence[SetIf]) -> list[bool]:
    """Write a run of SetIf without reading, and count the changed rows, because nearly always all of them succeed.
    Raises _NotAllWritten; then the caller restarts the transaction.

    (A savepoint would save the runs before this one, and cost every transaction a second copy of the pages it changes.)
    """
    shapes = {(op.expected is ABSENT, op.value is ABSENT) for op in run}
    if (True, True) in shapes:
        raise _NotAllWritten  # such an op writes nothing that could be counted
    before = connection.total_changes()
    for shape in shapes:
        match shape:
            case (True, _):
                connection.executemany(_CREATE, _bind_rows(op for op in run if op.expected is ABSENT))
            case (_, True):
                removals = (op for op in run if op.value is ABSENT)
                connection.executemany(_REMOVE, ((op.key.partition, op.key.name, op.expected) for op in removals))
            case _:
                swaps = (op for op in run if op.expected is not ABSENT and op.value is not ABSENT)
                connection.executemany(_SWAP, ((op.key.partition, op.key.name, op.expected, op.value) for op in swaps))
    if connection.total_changes() - before != len(run):
        raise _NotAllWritten
    return [True] * len(run)


def _set_if_by_read(connection: SqliteConnection, run: Sequence[SetIf]) -> list[bool]:
    """Read the keys of a run, then write those that match. No other process writes during the transaction, so the
    values stay valid.
    """
    current = _get_values(connection, [op.key for op in run])
    won = [value == op.expected for op, value in zip(run, current, strict=True)]
    winners = [op for op, ok in zip(run, won, strict=True) if ok]
    connection.executemany(_PUT, _bind_rows(op for op in winners if op.value is not ABSENT))
    connection.executemany(_DELETE, [(op.key.partition, op.key.name) for op in winners if op.value is ABSENT])
    return won
