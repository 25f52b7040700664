"""The local store under several processes: writers that are killed or stopped, races for one key, a process without
permissions.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from refstore.conformance.objects_suite import MIB
from refstore.errors import ObjectNotFound
from refstore.objects.local import LocalObjects
from tests.conformance.local_files import Later, staged

ROOT = Path(__file__).parents[2]
KEYS = 200

WRITER = """
import os, sys, time
from refstore.objects import open_objects
def body():
    for _ in range(5):
        yield bytes(1 << 20)
    print("midway", flush=True)
    sys.stdin.read()
    yield b"end"
open_objects(sys.argv[1]).put("data/2026112107/x", body(), if_absent=sys.argv[2] == "1")
print("done", flush=True)
"""


@pytest.fixture
def writer(directory: Path) -> Iterator[Callable[[bool], subprocess.Popen[str]]]:
    """A process that is in the middle of a put."""
    processes: list[subprocess.Popen[str]] = []

    def start(if_absent: bool = False) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            (sys.executable, "-c", WRITER, directory.as_uri(), str(int(if_absent))),
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "midway\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_killed_writer_leaves_no_object_and_its_staged_file_is_swept(
    store: LocalObjects, directory: Path, writer, if_absent: bool
):
    process = writer(if_absent)
    assert len(staged(directory)) == 1
    process.kill()
    process.wait()
    with pytest.raises(ObjectNotFound):
        store.head("data/2026112107/x")
    assert list(store.list()) == []
    assert store.sweep_temporary(older_than_seconds=7200, clock=Later(7100)) == 0, "too young"
    assert len(staged(directory)) == 1
    assert store.sweep_temporary(older_than_seconds=7200, clock=Later(7300)) == 1
    assert staged(directory) == []
    store.put("data/2026112107/x", b"again", if_absent=True)


def test_a_stopped_writer_goes_on_where_it_was(store: LocalObjects, directory: Path, writer):
    """A sweep takes only what is older than any operation."""
    process = writer()
    process.send_signal(signal.SIGSTOP)
    assert store.sweep_temporary(older_than_seconds=7200, clock=Later(7000)) == 0
    process.send_signal(signal.SIGCONT)
    assert process.communicate("")[0] == "done\n"
    assert store.head("data/2026112107/x").size_bytes == 5 * MIB + 3


def test_many_processes_put_if_absent_one_wins(directory: Path, tmp_path: Path):
    script = (
        "import sys\nfrom refstore.objects import open_objects\nfrom refstore.errors import AlreadyExists\n"
        "store = open_objects(sys.argv[1], create=True); print('ready', flush=True); sys.stdin.readline()\n"
        f"for n in range({KEYS}):\n"
        "    try: store.put(f'k/{n}', sys.argv[2].encode(), if_absent=True); print(n)\n"
        "    except AlreadyExists: pass\n"
    )
    processes = [
        subprocess.Popen(
            (sys.executable, "-c", script, f"{directory.as_uri()}?fsync=0", str(number)),
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(4)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:  # all of them, before one is waited for
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won = [[int(line) for line in process.communicate()[0].split()] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sorted(key for keys in won for key in keys) == list(range(KEYS))
    store = LocalObjects(directory)
    for number, keys in enumerate(won):
        assert all(store.read(f"k/{key}") == str(number).encode() for key in keys)


PERMISSIONS = """
import os, sys
from refstore.errors import StoreMisconfigured
from refstore.objects.local import LocalObjects
from refstore.objects.local_walk import make_directory
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
store = LocalObjects(sys.argv[1])
for attempt in (
    lambda: store.put("locked/x", b"x"),
    lambda: store.get("locked/x"),
    lambda: store.head("locked/x"),
    lambda: list(store.list()),
):
    try:
        attempt()
    except StoreMisconfigured as error:
        assert "permission" in str(error), error
    else:
        sys.exit(f"{attempt} was let through")
deletion = store.delete_many(["locked/x", "open/x"])
assert deletion.deleted_keys == ("open/x",), deletion
assert [key for key, reason in deletion.failed_keys if "EACCES" in reason] == ["locked/x"], deletion
try:
    LocalObjects(sys.argv[1] + "/locked/new")
except StoreMisconfigured as error:
    assert "permission" in str(error)
else:
    sys.exit("a store was made")
"""


def test_missing_permissions_say_what_to_give(store: LocalObjects, directory: Path):
    for key in ("locked/x", "open/x"):
        store.put(key, b"x")
    for path in (directory, directory / "open", directory / ".tmp"):
        path.chmod(0o777)
    (directory / "locked").chmod(0)
    above = [path for path in directory.parents if not path.stat().st_mode & stat.S_IXOTH]
    modes = {path: path.stat().st_mode for path in above}
    try:
        for path in above:
            path.chmod(modes[path] | stat.S_IXOTH)
        subprocess.run(
            (sys.executable, "-c", PERMISSIONS, str(directory)),
            cwd=ROOT,
            check=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
        (directory / "locked").chmod(0o755)
    assert store.read("locked/x") == b"x"
