"""The local store holds the suite, and what a file system adds: links, durability, a full disk, staged files.

What takes several processes stands in `test_objects_local_processes.py`.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore.conformance.objects_suite import ObjectStoreSuite, in_threads
from refstore.core.clock import SystemClock
from refstore.core.file_modes import FileModes
from refstore.errors import (
    AlreadyExists,
    Conflict,
    Invalid,
    InvalidPath,
    InvalidSettings,
    ObjectNotFound,
    ObjectsUnavailable,
    StoreMisconfigured,
)
from refstore.objects import ObjectStore, open_objects
from refstore.objects.base import DeleteResult, SkippedKeys
from refstore.objects.local import LocalObjects
from refstore.objects.local_walk import make_directory
from tests.conformance.local_files import Later, staged
from tests.small_disk import fill, mounted


class TestLocal(ObjectStoreSuite):
    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        return tmp_path / "a store, with spaces & such"

    @pytest.fixture
    def url(self, directory: Path) -> str:
        return directory.as_uri()

    @pytest.fixture(autouse=True)
    def _no_descriptor_leaks(self) -> Iterator[None]:
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # counted, not used
        yield
        assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208  # likewise

    def assert_nothing_staged(self, store: ObjectStore) -> None:
        assert staged(store.local_folder) == []


class TestLocalWithoutSync(TestLocal):
    @pytest.fixture
    def url(self, directory: Path) -> str:
        return f"{directory.as_uri()}?fsync=0"


# -- the order of a listing, against a model


SEGMENTS = st.text("a-.0é😀", min_size=1, max_size=2).filter(lambda segment: segment not in (".", ".."))


@settings(max_examples=150, deadline=None)
@given(
    keys=st.sets(st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)),
    prefix=st.sampled_from(["", "a", "a/", "a-", "a/a", "é/", "a./0", "0/a/-"]),
    after=st.one_of(st.just(""), st.text("a-./0é😀", max_size=6)),
)
def test_any_tree_is_listed_in_the_order_of_bytes(
    tmp_path_factory: pytest.TempPathFactory, keys: set[str], prefix: str, after: str
):
    keys = {key for key in keys if not any(other.startswith(f"{key}/") for other in keys)}
    root = tmp_path_factory.mktemp("tree")
    store = LocalObjects(root, fsync=False)
    for key in keys:
        store.put(key, b"x")
    expected = sorted((key for key in keys if key.startswith(prefix) and key > after), key=str.encode)
    assert [info.key for info in store.list(prefix, after=after)] == expected
    shutil.rmtree(root)


def test_slices_that_lie_before_are_not_read(store: LocalObjects, directory: Path, monkeypatch: pytest.MonkeyPatch):
    for hour in range(10):
        store.put(f"data/20261121{hour:02}/x", b"x")
    scanned: list[str] = []
    scandir = os.scandir

    def counting(descriptor: int):
        scanned.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        return scandir(descriptor)

    monkeypatch.setattr(os, "scandir", counting)
    assert [info.key for info in store.list("data/", after="data/2026112107/x")] == [
        "data/2026112108/x",
        "data/2026112109/x",
    ]
    assert [Path(path).name for path in scanned] == ["data", "2026112107", "2026112108", "2026112109"]
    scanned.clear()
    assert [info.key for info in store.list("data/2026112103/")] == ["data/2026112103/x"]
    assert [Path(path).name for path in scanned] == ["2026112103"]


def test_objects_and_directories_that_go_while_they_are_listed(
    store: LocalObjects, directory: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("refstore.objects.local.LISTED_FIRST_KEYS", 1)
    for key in ("a/1", "a/2", "b/1", "c/1"):
        store.put(key, b"x")
    listing = store.list()
    assert next(listing).key == "a/1"
    store.delete_many(["a/2", "b/1"])
    (directory / "b").rmdir()
    assert [info.key for info in listing] == ["c/1"]


def test_what_refstore_could_not_have_written_is_not_listed(store: LocalObjects, directory: Path):
    store.put("a/good", b"x")
    (directory / "a" / "bad\nname").touch()
    (directory / "a" / "\x7f\x01").touch()
    Path(os.fsdecode(bytes(directory / "a") + b"/\xff\xfe")).touch()
    (directory / "a" / "link").symlink_to("good")
    os.mkfifo(directory / "a" / "fifo")
    deep = directory
    for _ in range(6):
        deep /= "d" * 250
        deep.mkdir()
    assert [info.key for info in store.list()] == ["a/good"]


# -- nothing leaves the root


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    (outside / "deeper").mkdir(parents=True)
    (outside / "secret").write_text("secret")
    (outside / "deeper" / "secret").write_text("secret")
    return outside


@pytest.mark.parametrize("planted", ["data", "data/2026112107"])
def test_a_planted_link_leads_nowhere(store: LocalObjects, directory: Path, outside: Path, planted: str):
    link = directory / planted
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    key = f"{planted}/secret"
    for attempt in (
        lambda: store.get(key),
        lambda: store.head(key),
        lambda: store.head_many(["fine", key]),
        lambda: store.put(key, b"overwritten"),
        lambda: store.put(f"{planted}/new", b"x"),
        lambda: store.put(f"{planted}/new", b"x", if_absent=True),
        lambda: list(store.list(f"{planted}/")),
        lambda: store.get(f"{planted}/deeper/secret"),
    ):
        with pytest.raises(StoreMisconfigured, match="symbolic link"):
            attempt()
    deletion = store.delete_many([key, f"{planted}/deeper/secret"])
    assert [key for key, reason in deletion.failed_keys if "ELOOP" in reason] == [key, f"{planted}/deeper/secret"]
    assert list(store.list()) == []
    store.sweep_temporary(older_than_seconds=3600, clock=Later(86_400))
    assert {str(path.relative_to(outside)) for path in outside.rglob("*")} == {"secret", "deeper", "deeper/secret"}
    assert (outside / "secret").read_text() == "secret"


def test_a_planted_link_at_the_key_itself(store: LocalObjects, directory: Path, outside: Path):
    (directory / "data").mkdir()
    (directory / "data" / "x").symlink_to(outside / "secret")
    for look in (store.get, store.head, lambda key: store.head_many([key])):
        with pytest.raises(StoreMisconfigured):
            look("data/x")
    store.put("data/x", b"mine")
    assert store.read("data/x") == b"mine", "the link was replaced, not followed"
    assert (outside / "secret").read_text() == "secret"
    (directory / "data" / "y").symlink_to(outside / "secret")
    assert store.delete_many(["data/y"]).deleted_keys == ("data/y",)
    assert (outside / "secret").exists()


def test_a_planted_staging_link(store: LocalObjects, directory: Path, outside: Path):
    (directory / ".tmp").symlink_to(outside)
    with pytest.raises(StoreMisconfigured, match="symbolic link"):
        store.put("a", b"x")
    assert len(list(outside.iterdir())) == 2


def test_the_root_may_be_a_link(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    store = LocalObjects(tmp_path / "link")
    store.put("a/b", b"x")
    assert (tmp_path / "real" / "a" / "b").read_bytes() == b"x"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.mkdir()], ids=["fifo", "directory"])
def test_what_is_no_file_is_no_object(store: LocalObjects, directory: Path, make: Callable[[Path], None]):
    make(directory / "odd")
    for look in (store.get, store.head):
        with pytest.raises((ObjectNotFound, StoreMisconfigured)):
            look("odd")


def test_a_key_cannot_be_the_directory_of_another(store: LocalObjects):
    store.put("a/b", b"x")
    for if_absent in (False, True):
        with pytest.raises(Conflict, match="another key") as below:
            store.put("a/b/c", b"x", if_absent=if_absent)
        with pytest.raises(Conflict, match="another key") as above:
            store.put("a", b"x", if_absent=if_absent)
        assert not isinstance(below.value, AlreadyExists)
        assert not isinstance(above.value, AlreadyExists)
    for look in (store.get, store.head):
        with pytest.raises(ObjectNotFound):
            look("a/b/c")
    assert store.delete_many(["a/b/c", "a"]) == DeleteResult((), ("a/b/c", "a"), ())
    assert store.read("a/b") == b"x"


def test_a_name_that_is_too_long_for_a_file(store: LocalObjects):
    for attempt in (lambda: store.put(f"a/{'x' * 256}", b""), lambda: store.put("é" * 128, b"")):
        with pytest.raises(InvalidPath, match="255 bytes"):
            attempt()


# -- durability


def test_everything_is_synced_before_a_put_is_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    events: list[str] = []
    root = tmp_path / "new" / "root"
    fsync, rename, link = os.fsync, os.rename, os.link

    def name_of(descriptor: int) -> str:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        return "staged" if path.parent.name == ".tmp" else str(path.relative_to(tmp_path))

    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (events.append(f"sync {name_of(descriptor)}"), fsync(descriptor))[1]
    )
    monkeypatch.setattr(os, "rename", lambda *args, **kwargs: (events.append("rename"), rename(*args, **kwargs))[1])
    monkeypatch.setattr(os, "link", lambda *args, **kwargs: (events.append("link"), link(*args, **kwargs))[1])
    store = LocalObjects(root)
    assert events == ["sync new", "sync ."]
    events.clear()
    store.put("data/1/x", b"x")
    assert events == ["sync staged", "rename", "sync new/root/data/1", "sync new/root/data", "sync new/root"]
    events.clear()
    store.put("data/1/y", b"x", if_absent=True)
    assert events == ["sync staged", "link", "sync new/root/data/1"]
    events.clear()
    LocalObjects(root).put("data/1/z", b"x")
    assert events[-2:] == ["sync new/root/data", "sync new/root"], (
        "another process may have made the directory and not synced it yet"
    )
    events.clear()
    store.delete_many(["data/1/x", "data/1/y", "data/1/nothing"])
    assert events == ["sync new/root/data/1"]
    events.clear()
    hasty = LocalObjects(root, fsync=False)
    hasty.put("data/2/x", b"x")
    hasty.delete_many(["data/2/x"])
    assert events == ["rename"]


def test_a_deletion_that_could_not_be_synced_is_not_confirmed(store: LocalObjects, monkeypatch: pytest.MonkeyPatch):
    store.put("a/x", b"x")

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    reason = "EIO: Input/output error"
    assert store.delete_many(["a/x", "a/y"]) == DeleteResult((), (), (("a/x", reason), ("a/y", reason)))
    assert store.delete_many(["a/x"]) == DeleteResult((), (), (("a/x", reason),)), (
        "that it is missing is not synced either"
    )
    monkeypatch.undo()
    assert store.delete_many(["a/x"]) == DeleteResult((), ("a/x",), ())


def test_who_puts_between_the_look_and_the_name_is_not_overwritten(
    store: LocalObjects, directory: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whatever gives an object its name: somebody else was quicker, at the last moment."""
    theirs: list[str] = []

    def overtaken(real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: object, **kwargs: object) -> None:
            if not theirs:
                theirs.append(real.__name__)
                LocalObjects(directory).put("data/1/x", b"theirs", if_absent=True)
            real(*args, **kwargs)

        return call

    for name in ("link", "rename", "replace"):
        monkeypatch.setattr(os, name, overtaken(getattr(os, name)))
    with pytest.raises(AlreadyExists):
        store.put("data/1/x", b"mine", if_absent=True)
    assert theirs == ["link"]
    assert store.read("data/1/x") == b"theirs"


# -- staged files and empty directories, swept


def test_a_staged_file_that_was_taken_is_an_error_not_an_object(store: LocalObjects, directory: Path):
    def body() -> Iterator[bytes]:
        yield b"x"
        for path in staged(directory):
            path.unlink()

    for if_absent in (False, True):
        with pytest.raises(ObjectsUnavailable, match="put it again"):
            store.put("a", body(), if_absent=if_absent)
    assert list(store.list()) == []


def test_a_sweep_must_be_for_what_is_old(store: LocalObjects):
    with pytest.raises(Invalid, match="3600"):
        store.sweep_temporary(older_than_seconds=60, clock=SystemClock())


def test_empty_directories_are_swept_when_they_are_old(store: LocalObjects, directory: Path):
    for key in ("data/1/x", "data/2/x", "data/3/y/x", "keep/x"):
        store.put(key, b"x")
    store.delete_many(["data/1/x", "data/2/x", "data/3/y/x"])
    old = time.time() - 10_000
    for path in directory.rglob("*"):
        if path.is_dir() and path.name != "2":
            os.utime(path, (old, old))
    store.sweep_temporary(older_than_seconds=7200, clock=SystemClock())
    assert sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.name != ".tmp") == [
        "data",
        "data/2",  # too young
        "data/3",  # was young again when the one in it went; the next sweep takes it
        "keep",
        "keep/x",
    ]
    store.put("data/1/x", b"again")
    assert store.read("data/1/x") == b"again"


@pytest.mark.parametrize("if_absent", [False, True])
@pytest.mark.parametrize("what", ["data/1", "data"])
def test_a_put_that_loses_its_directory_makes_it_again(
    store: LocalObjects, directory: Path, monkeypatch: pytest.MonkeyPatch, what: str, if_absent: bool
):
    times = 5

    def make_and_lose(root: int, name: str, modes: FileModes) -> bool:
        nonlocal times
        made = make_directory(root, name, modes)
        if name == "data/1" and times:
            times -= 1
            shutil.rmtree(directory / what)
        return made

    monkeypatch.setattr("refstore.objects.local.make_directory", make_and_lose)
    store.put("data/1/x", b"x", if_absent=if_absent)
    assert (times, store.read("data/1/x")) == (0, b"x")
    times = 10_000
    with pytest.raises(ObjectsUnavailable, match="find out which program removes directories"):
        store.put("data/1/y", b"x", if_absent=if_absent)
    assert times == 10_000 - 100, "a bounded number of times"
    assert staged(directory) == []


def test_puts_and_sweeps_at_once_lose_nothing(directory: Path):
    """Puts must come through although their directories are taken away under them, far more often than any sweep does
    it.
    """
    store = LocalObjects(directory, fsync=False)
    over = threading.Event()

    def act(number: int) -> int:
        if number < 2:
            try:
                for turn in range(300):
                    store.put(f"data/{turn % 3}/{number}-{turn}", b"x", if_absent=turn % 2 == 0)
                    assert store.delete_many([f"data/{turn % 3}/{number}-{turn}"]).deleted_keys
            finally:
                over.set()
            return 0
        removed = 0
        while not over.wait(
            0.0005
        ):  # without a breath between, this thread could take a directory eight times in a row
            for name in ("data/0", "data/1", "data/2", "data"):
                with suppress(OSError):
                    (directory / name).rmdir()
                    removed += 1
        return removed

    first, second, removed = in_threads(3, act)
    assert (first, second) == (0, 0)
    assert isinstance(removed, int)
    assert removed > 0, "the race was not run"


# -- a disk that fails


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", size_mib=1) as disk:
        yield disk


@pytest.mark.root
def test_a_full_disk(small_disk: Path):
    store = LocalObjects(small_disk / "store")
    store.put("data/1/small", b"x" * 1000)
    for if_absent in (False, True):
        with pytest.raises(ObjectsUnavailable, match="make room"):
            store.put("data/1/large", (bytes(100_000) for _ in range(100)), if_absent=if_absent)
    assert [info.key for info in store.list()] == ["data/1/small"]
    assert staged(small_disk / "store") == []
    store.put("data/1/fits", bytes(100_000))
    assert store.delete_many(["data/1/fits"]).deleted_keys == ("data/1/fits",)
    # What refstore writes itself (journal, witness, marks' files) may take the last bytes, which uploads leave.
    fill(small_disk, leave_bytes=40_960)
    with pytest.raises(ObjectsUnavailable, match=f"bytes are free at {small_disk}"):
        store.put("data/1/another", b"x")
    store.put("_refstore/journal/x", b"x" * 10_000)
    assert store.read("data/1/small") == b"x" * 1000


@pytest.mark.root
def test_another_file_system_below_the_root(small_disk: Path, tmp_path: Path):
    store = LocalObjects(tmp_path)
    with pytest.raises(StoreMisconfigured, match="one file system"):
        store.put("disk/x", b"x")
    assert list((tmp_path / "disk").iterdir()) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE])
@pytest.mark.parametrize("call", ["write", "fsync", "rename", "open"])
def test_errors_of_the_system_are_typed_and_leave_nothing(
    store: LocalObjects, directory: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
):
    real = getattr(os, call)
    store.put("a/before", b"x")

    def broken(*args, **kwargs):
        if call == "open" and not args[1] & os.O_CREAT:
            return real(*args, **kwargs)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, broken)
        with pytest.raises(ObjectsUnavailable) as raised:
            store.put("a/x", b"x")
    assert raised.value.retryable
    assert ";" in str(raised.value), "it says what to do"
    assert [info.key for info in store.list()] == ["a/before"]
    assert staged(directory) == []


def test_a_read_that_fails_is_typed(store: LocalObjects, monkeypatch: pytest.MonkeyPatch):
    store.put("a", b"x")

    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(ObjectsUnavailable, match="check the disk"):
        store.read("a")


def test_a_body_that_cannot_be_read_is_the_callers_own_error(store: LocalObjects):
    def body() -> Iterator[bytes]:
        yield b"x"
        raise OSError(errno.EIO, "of another disk")

    with pytest.raises(OSError, match="of another disk"):
        store.put("a", body())


def test_a_file_system_without_hard_links(store: LocalObjects, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", broken)
    with pytest.raises(StoreMisconfigured, match="hard links"):
        store.put("a", b"x", if_absent=True)
    store.put("a", b"x")


def test_a_root_that_is_gone_is_not_an_empty_store(store: LocalObjects, directory: Path):
    store.put("a", b"x")
    directory.rename(directory.with_name("unmounted"))
    for attempt in (
        lambda: store.head("a"),
        lambda: store.get("a"),
        lambda: list(store.list()),
        lambda: store.delete_many(["a"]),
        lambda: store.put("b", b"x"),
        lambda: store.sweep_temporary(older_than_seconds=3600, clock=SystemClock()),
    ):
        with pytest.raises(ObjectsUnavailable, match="mounted"):
            attempt()


# -- the URL


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file://relative/path", "three slashes"),
        ("file:relative", "looks like"),
        ("/just/a/path", "looks like"),
        ("file:///a/../b", "'..'"),
        ("file:///a?fsync=maybe", "fsync=0"),
        ("file:///a?fsnc=0", "'fsnc'"),
        ("file:///a?fsync=0&fsync=1", "twice"),
        ("file:///a#b", "%23"),
        ("file://user:secret@/a", "credentials"),
        ("gopher://a", "file://"),
        ("file:///a\nb", "looks like"),
    ],
)
def test_urls_that_are_refused(url: str, says: str):
    with pytest.raises(InvalidSettings, match=re.escape(says)) as raised:
        open_objects(url)
    assert "secret" not in str(raised.value)


def test_a_file_that_became_a_link_or_a_folder_is_not_deleted_as_unchanged(store: LocalObjects, directory: Path):
    for key in ("a/file", "a/link", "a/folder"):
        store.put(key, b"x")
    (listed,) = store.list_pages(skipped=SkippedKeys())
    for key in ("a/link", "a/folder"):
        (directory / key).unlink()
    (directory / "a/link").symlink_to(directory / "a/file")
    (directory / "a/folder").mkdir()
    deletion = store.delete_unchanged(listed)
    assert deletion == DeleteResult(("a/file",), ("a/folder",), (), changed_keys=("a/link",))
    assert (directory / "a/link").is_symlink()
    assert (directory / "a/folder").is_dir()
