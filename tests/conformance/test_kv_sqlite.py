"""The SQLite driver: the suite, and what is its own: processes, locks, damaged files, full disks, forks, query
plans.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from refstore.conformance.kv_suite import KVSuite
from refstore.core.clock import SystemClock
from refstore.errors import Corrupt, InvalidSettings, KVUnavailable, RefstoreError, StoreMisconfigured
from refstore.kv import open_kv, sqlite
from refstore.kv.base import ABSENT, KV, Exchange, Get, Key, SetIf
from refstore.kv.sqlite import SqliteKV, open_sqlite

KEY = Key("p", "k")


@pytest.fixture(scope="module")
def kv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KV]:
    kv = open_kv(f"sqlite://{tmp_path_factory.mktemp('kv')}/kv.db", attempts=1)
    yield kv
    kv.close()


class TestSqlite(KVSuite):
    pass


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.db"


def opened(path: Path, query: str = "") -> SqliteKV:
    return open_sqlite(f"sqlite://{path}{query}", SystemClock())


# ---- where the file is


def test_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, file in [
        ("sqlite:here.db", "here.db"),
        (f"sqlite://{tmp_path}/new/dir/there.db?fsync=0", "new/dir/there.db"),
        (f"sqlite:{tmp_path}/a%20b.db", "a b.db"),
    ]:
        kv = open_kv(url)
        kv.set(KEY, b"v")
        kv.close()
        assert (tmp_path / file).is_file()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/kv.db",
        "sqlite::memory:",
        "sqlite:kv.db?fsync=2",
        "sqlite:kv.db?fsync=yes",
        "sqlite:kv.db?journal=off",
    ],
)
def test_malformed_urls(url: str) -> None:
    with pytest.raises(InvalidSettings, match="sqlite"):
        open_kv(url)


# ---- what it promises


@pytest.mark.parametrize(("query", "level"), [("", 2), ("?fsync=1", 2), ("?fsync=0", 1)])
def test_each_connection_is_as_durable_as_was_asked(
    path: Path, query: str, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str]] = []

    class Watched(apsw.Connection):
        def close(self, force: bool = False) -> None:
            seen.append((self.pragma("synchronous"), self.pragma("journal_mode")))
            super().close(force)

    monkeypatch.setattr(apsw, "Connection", Watched)
    kv = opened(path, query)
    kv.set(KEY, b"v")
    kv.close()
    assert seen == [(level, "wal")]


WRITER = """
import itertools
import sys
from refstore.kv import open_kv
from refstore.kv.base import Key
kv = open_kv(sys.argv[1])
for i in itertools.count():
    kv.set(Key("p", f"{i:06d}"), b"v")
    print(i, flush=True)
"""


def test_what_was_written_is_there_after_a_kill(path: Path) -> None:
    """Each write is acknowledged on stdout; the process is killed amid them."""
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            WRITER,
            f"sqlite://{path}",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    with writer:
        acknowledged = [int(writer.stdout.readline()) for _ in range(200)]
        writer.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in writer.stdout if line.endswith("\n")]
    kv = opened(path)
    names = [name for name, _ in kv.scan_all("p")]
    kv.close()
    assert names[: len(acknowledged)] == [f"{i:06d}" for i in acknowledged]
    assert len(names) <= len(acknowledged) + 1


# ---- processes


WORKER = """
import sys
from refstore.kv import open_kv
from refstore.kv.base import ABSENT, Key, SetIf
kv = open_kv(sys.argv[1], attempts=1)
me = sys.argv[2].encode()
won = kv.set_if_many([SetIf(Key("race", f"{i:04d}"), ABSENT, me) for i in range(500)])
for i in range(25):
    while True:
        now = kv.get(Key("p", "counter"))
        if kv.set_if(Key("p", "counter"), now, str(int(now or b"0") + 1 if now is not ABSENT else 1).encode()):
            break
for i in range(500):
    print(int(won[i]), end="")
kv.close()
"""


def test_several_processes(path: Path) -> None:
    """Eight that open a file that is not there at the same moment, race for the same keys, and count together."""
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, f"sqlite://{path}", str(i)], stdout=subprocess.PIPE, text=True)
        for i in range(8)
    ]
    outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 8
    kv = opened(path)
    assert kv.get(Key("p", "counter")) == str(8 * 25).encode()
    for index, value in enumerate(kv.get_many([Key("race", f"{i:04d}") for i in range(500)])):
        assert [str(worker).encode() for worker in range(8) if outputs[worker][index] == "1"] == [value]
    kv.close()


def test_a_child_that_was_forked_does_not_share_connections(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_in: list[int] = []

    class Noting(apsw.Connection):
        def __init__(self, filename: str) -> None:
            opened_in.append(os.getpid())
            super().__init__(filename)

    monkeypatch.setattr(apsw, "Connection", Noting)
    kv = opened(path)
    kv.set(KEY, b"parent")
    child = os.fork()
    if child == 0:  # no pytest in here: it ends with os._exit
        try:
            for i in range(50):
                kv.set(Key("p", f"child{i}"), b"v")
            ok = kv.get(KEY) == b"parent" and opened_in[-1] == os.getpid()
            kv.close()
        except BaseException:  # noqa: BLE001  # the exit code tells
            ok = False
        os._exit(0 if ok else 1)
    for i in range(50):
        kv.set(Key("p", f"parent{i}"), b"v")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert kv.count("p", limit=1000) == 101
    kv.close()
    assert integrity(path) == "ok"


def test_a_writer_waits_for_another_but_not_for_ever(path: Path) -> None:
    kv = SqliteKV(path, busy_timeout_seconds=0.2)
    kv.set(KEY, b"1")
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(KVUnavailable, match=r"locked.*make the same call again") as caught:
        kv.set(KEY, b"2")
    assert caught.value.nothing_done
    assert kv.get(KEY) == b"1"  # readers do not wait
    assert kv.scan("p") == [("k", b"1")]
    other.execute("COMMIT")
    other.close()
    kv.set(KEY, b"2")
    assert kv.get(KEY) == b"2"
    kv.close()


def test_readers_see_all_of_a_batch_or_nothing(path: Path) -> None:
    """More than the interface asks; what stands in one transaction is seen in one."""
    kv = opened(path)
    keys = [Key("p", f"{i:03d}") for i in range(200)]
    kv.set_many([(key, b"0") for key in keys])
    stop = threading.Event()

    def write() -> None:
        round_ = 0
        while not stop.is_set():
            round_ += 1
            kv.execute([Exchange(key, str(round_).encode()) for key in keys])

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        try:
            for _ in range(100):
                assert len({value for _, value in kv.scan("p")}) == 1
        finally:
            stop.set()
        writer.result()
    kv.close()


def test_a_failing_batch_leaves_nothing_behind(path: Path) -> None:
    kv = opened(path)
    with pytest.raises(UnicodeEncodeError):
        kv.execute([Exchange(KEY, b"1"), Get(KEY), SetIf(Key("p", "\ud800"), ABSENT, b"1")])
    assert kv.get(KEY) is ABSENT
    kv.set(KEY, b"2")
    kv.close()


# ---- failures


def test_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(Corrupt, match="restore it from a backup"):
        opened(path).get(KEY)
    assert path.read_bytes().startswith(b"not a database")


def test_a_damaged_page(path: Path) -> None:
    kv = opened(path)
    kv.set_many([(Key("p", f"{i:05d}"), b"v" * 100) for i in range(2000)])
    kv.close()
    with path.open("r+b") as file:
        for page in range(2, path.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(os.urandom(64))
    kv = opened(path)
    with pytest.raises(Corrupt, match="damaged"):
        list(kv.scan_all("p"))
    kv.close()


@pytest.mark.parametrize(
    ("statement", "read", "error", "told"),
    [
        pytest.param(
            "UPDATE kv SET name = CAST(X'6BFF' AS TEXT)",
            lambda kv: kv.scan(KEY.partition),
            Corrupt,
            "restore it from a backup",
            id="a name is no text any more",
        ),
        pytest.param(
            "PRAGMA user_version = 99",
            lambda kv: kv.get(KEY),
            StoreMisconfigured,
            "later refstore",
            id="of a later version",
        ),
        pytest.param("DROP TABLE kv", lambda kv: kv.get(KEY), Corrupt, "no such table", id="its table is gone"),
    ],
)
def test_a_file_that_was_changed_from_outside(
    path: Path, statement: str, read: Callable[[KV], object], error: type[RefstoreError], told: str
) -> None:
    kv = opened(path)
    kv.set(KEY, b"v")
    kv.close()
    other = apsw.Connection(str(path))
    other.execute(statement)
    other.close()
    with pytest.raises(error, match=told):
        read(opened(path))


def test_a_database_of_something_else(path: Path) -> None:
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE theirs (a)")
    other.close()
    with pytest.raises(InvalidSettings, match="something else"):
        opened(path).get(KEY)


def test_a_path_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreMisconfigured, match="check that the path"):
        opened(tmp_path).get(KEY)
    (tmp_path / "file").touch()
    with pytest.raises(StoreMisconfigured, match="directory"):
        opened(tmp_path / "file" / "kv.db").get(KEY)


FILL = """
import contextlib
import os
import subprocess
import sys
from pathlib import Path
from concurrent.futures import ThreadPoolExecutor
from refstore.core.clock import SystemClock
from refstore.errors import KVUnavailable
from refstore.kv.base import Key
from refstore.kv.sqlite import SqliteKV, open_sqlite
kv = open_sqlite(sys.argv[1], SystemClock())
written = 0
try:
    while written < 100_000:
        kv.set(Key("p", f"{written:06d}"), b"v" * 1000)
        written += 1
except KVUnavailable as error:
    assert "disk is full" in str(error), error
else:
    raise AssertionError("never full")
assert len(list(kv.scan_all("p"))) == written > 10  # all that was acknowledged, and it still reads
subprocess.run(["mount", "-o", "remount,size=16m", sys.argv[2]], check=True)
kv.set(Key("p", "again"), b"v")
kv.close()
assert not os.path.exists(sys.argv[2] + "/kv.db-shm")
with open(sys.argv[2] + "/filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
    while True:
        filler.write(bytes(4096))
# Opened anew there is not even room for the index of the write-ahead log. Several threads read at once.
kv = open_sqlite(sys.argv[1], SystemClock())
with ThreadPoolExecutor(4) as pool:
    assert set(pool.map(lambda _: len(list(kv.scan_all("p"))), range(8))) == {written + 1}
other = SqliteKV(Path(sys.argv[1].removeprefix("sqlite://")), busy_timeout_seconds=0)
assert other.count("p", limit=5) == 5  # nobody is kept out between two calls
try:
    kv.set(Key("p", "none"), b"v" * 100_000)
except KVUnavailable as error:
    assert f"0 of 16,777,216 bytes are free at {sys.argv[2]}" in str(error), error
    assert error.nothing_done
else:
    raise AssertionError("no disk is full")
os.unlink(sys.argv[2] + "/filler")
kv.set(Key("p", "more"), b"v")
kv.close()
"""


def test_a_full_disk(tmp_path: Path) -> None:
    """A real one, of 4 MB, in a mount namespace of its own; with more room it goes on."""
    in_namespace = ["unshare", "-Urm", "sh", "-ec"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*in_namespace, f"mount -t tmpfs none {tmp_path}"], check=False).returncode
    ):
        pytest.skip("needs user namespaces, to mount a small disk")
    script = 'mount -t tmpfs -o size=4m none "$1"; exec "$2" -c "$3" "sqlite://$1/kv.db" "$1"'
    done = subprocess.run(
        [*in_namespace, script, "sh", str(tmp_path), sys.executable, FILL],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


# ---- another file under the same name


def copy_of(path: Path) -> Path:
    """Return a copy that holds everything: the write-ahead log is in the file once nobody has it open."""
    return Path(shutil.copy(path, path.with_name("copy.db")))


def test_a_replaced_file_is_another_server_and_an_error_before_it_is_opened_again(path: Path) -> None:
    kv = opened(path)
    kv.set(KEY, b"kept")
    before = kv.servers()
    kv.close()
    assert kv.servers() == before, "opening it again does not change it"
    copy = copy_of(path)
    kv = opened(path)
    kv.set(KEY, b"lost")
    assert kv.servers() == before, "nor does another connection"
    copy.replace(path)
    for _ in range(3):  # it stays so, also after the retries: no connection goes over to the other file
        with pytest.raises(KVUnavailable, match=r"replaced or removed.*another file.*start them again"):
            kv.servers()
    assert kv.get(KEY) == b"lost", "it is still the old file that is open"
    kv.close()
    for ending in ("-wal", "-shm"):  # of the old file: SQLite leaves them, and would play them into the new one
        path.with_name(path.name + ending).unlink()
    after = kv.servers()
    assert kv.get(KEY) == b"kept"
    kv.close()
    assert [server.partition for server in after] == [server.partition for server in before]
    assert after != before


def test_a_removed_file_is_an_error_and_then_another_server(path: Path) -> None:
    kv = opened(path)
    kv.set(KEY, b"1")
    before = kv.servers()
    path.unlink()  # the system may use its inode again
    with pytest.raises(KVUnavailable, match=r"replaced or removed.*No such file"):
        kv.servers()
    kv.close()
    assert kv.servers() != before
    assert kv.get(KEY) is ABSENT
    kv.close()


def test_a_connection_of_another_thread_to_a_replaced_file_is_noticed(path: Path) -> None:
    """The call that asks has a new connection, to the new file; a call that is not done yet has the old file."""
    kv = opened(path)
    kv.set(KEY, b"1")
    kv.close()
    copy = copy_of(path)
    kv = opened(path)
    with kv._borrow_connection() as busy:
        busy.execute("SELECT 1").fetchall()
        copy.replace(path)
        with pytest.raises(KVUnavailable, match="replaced or removed"):
            kv.servers()
    kv.close()
    assert len(kv.servers()) == 1
    kv.close()


def test_a_forked_child_sees_the_same_server(path: Path) -> None:
    kv = opened(path)
    kv.set(KEY, b"1")
    servers = kv.servers()
    child = os.fork()
    if child == 0:  # no pytest in here: it ends with os._exit
        try:
            ok = kv.servers() == servers
            kv.close()
        except BaseException:  # noqa: BLE001  # the exit code tells
            ok = False
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert kv.servers() == servers
    kv.close()


# ---- speed that rests on the primary key


def plan(path: Path, statement: str, parameters: tuple[object, ...]) -> list[str]:
    connection = apsw.Connection(str(path))
    rows = connection.execute("EXPLAIN QUERY PLAN " + statement, parameters).fetchall()
    connection.close()
    return [row[3] for row in rows]


def test_every_statement_uses_the_primary_key(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken from what the driver really sends, so that a statement that is changed is seen here."""
    sent: dict[str, tuple[object, ...]] = {}

    def trace(_cursor: object, statement: str, bindings: tuple[object, ...] | None) -> bool:
        sent[statement] = bindings or ()
        return True

    class Traced(apsw.Connection):
        def __init__(self, filename: str) -> None:
            super().__init__(filename)
            self.exec_trace = trace

    kv = opened(path)
    kv.set_many([(Key("p", f"{i:05d}"), b"v") for i in range(3000)])
    kv.close()
    with monkeypatch.context() as patch:
        patch.setattr(apsw, "Connection", Traced)
        kv = opened(path)
        kv.get(KEY)
        kv.get_many([Key("p", f"{i:05d}") for i in range(300)])
        kv.scan("p", prefix="000", after="00001")
        kv.scan("p", prefix="000")
        kv.scan("p")
        kv.count("p", limit=10)
        for shape in (
            SetIf(KEY, ABSENT, b"1"),
            SetIf(KEY, b"1", b"2"),
            SetIf(KEY, b"2", ABSENT),
            SetIf(KEY, b"x", b"y"),
        ):
            kv.set_if_many([shape])
        kv.exchange(KEY, b"3")
        kv.delete(KEY)
        kv.delete_range("p", "00100", "00200")
        kv.close()
    statements = {
        line: bindings
        for line, bindings in sent.items()
        if line.split()[0] in ("SELECT", "DELETE", "UPDATE") and "sqlite_master" not in line
    }
    assert len(statements) >= 10
    for statement, bindings in statements.items():
        steps = [step for step in plan(path, statement, bindings) if " kv" in step]
        assert steps, statement
        for step in steps:
            assert step.startswith("SEARCH kv USING PRIMARY KEY (partition=?"), (statement, step)
        if "ORDER BY" in statement:
            assert not any("TEMP B-TREE" in step for step in plan(path, statement, bindings)), statement
        if "name >" in statement:
            assert "name>? AND name<?" in steps[0], (statement, steps)


def test_count_and_scan_stop_at_their_limit(path: Path) -> None:
    """The virtual machine's steps are counted: they depend on the limit, not on the size of the partition."""
    kv = opened(path)
    kv.set_many([(Key("p", f"{i:06d}"), b"v") for i in range(50_000)])
    kv.close()
    steps = 0

    def tick() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection = apsw.Connection(str(path))
    connection.set_progress_handler(tick, 10)
    for statement, parameters in ((sqlite.COUNT, ("p", 10)), (sqlite.SCAN_AFTER, ("p", "000100", b"\xff", 10))):
        steps = 0
        connection.execute(statement, parameters).fetchall()
        assert steps < 50
    connection.close()


def test_connections_are_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than there were threads are opened, for 300 calls, and all are closed; the write-ahead log goes with the
    last.
    """
    opened_, closed = [], []

    class Counted(apsw.Connection):
        def __init__(self, filename: str) -> None:
            opened_.append(self)
            super().__init__(filename)

        def close(self, force: bool = False) -> None:
            closed.append(self)
            super().close(force)

    monkeypatch.setattr(apsw, "Connection", Counted)
    kv = opened(path)
    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: kv.set(Key("p", f"{i}"), b"v"), range(100)))
    kv.close()
    assert len(opened_) <= 12
    assert sorted(map(id, opened_)) == sorted(map(id, closed))
    assert not path.with_name("kv.db-wal").exists()


def integrity(path: Path) -> str:
    connection = apsw.Connection(str(path))
    answer: str = connection.pragma("integrity_check")
    connection.close()
    return answer
