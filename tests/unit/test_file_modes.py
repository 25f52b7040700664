"""Who can read a lake on a disk: nobody but its owner, or its group where its folder says so, whatever the umask."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import refstore
from refstore.cli.common import warn_of_open_folders
from refstore.configuration.settings import Settings, embedded_urls
from refstore.core.file_modes import PRIVATE_MODES, SHARED_MODES, find_exposed, make_folder
from refstore.errors import InvalidSettings

WRITE = """
import sys, refstore
with refstore.create(sys.argv[1]) as lake:
    repo = lake.create_repository("alpha")
    repo.upload("main", "a/b", b"x" * 100)
    repo.upload("main", "c", b"y", if_absent=True)
    repo.commit("main", "first")
    issued = repo.issue("main", "d")
    repo.context.objects.put(issued.address, iter([b"z", b"z"]))
    print(lake.current_signing_keys()[0].kid)
    import os
    for name in os.listdir(sys.argv[1]):
        print(name, oct(os.stat(os.path.join(sys.argv[1], name)).st_mode & 0o7777))
"""


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that everybody may enter, as pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="refstore-modes-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        yield folder


def modes_below(folder: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {"folder": set(), "file": set()}
    for path in (folder, *folder.rglob("*")):
        found["folder" if path.is_dir() else "file"].add(oct(stat.S_IMODE(path.stat().st_mode)))
    return found


def used_lake(data: Path, umask: int) -> str:
    """What a process with that umask says that has written all kinds of files, while its database is open."""
    ran = subprocess.run(
        [sys.executable, "-c", WRITE, str(data)],
        check=True, capture_output=True, text=True, umask=umask, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return ran.stdout


@pytest.mark.parametrize("umask", [0, 0o002, 0o022, 0o077])
def test_a_lake_is_its_owners_only_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    said = used_lake(tmp_path / "new" / "lake", umask)
    assert modes_below(tmp_path / "new") == {"folder": {"0o700"}, "file": {"0o600"}}
    assert "kv.sqlite-wal 0o600" in said
    assert "kv.sqlite-shm 0o600" in said


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_a_lake_whose_folder_was_made_for_a_group_is_shared_with_it(tmp_path: Path, umask: int) -> None:
    data = tmp_path / "lake"
    data.mkdir()
    data.chmod(0o2770)
    said = used_lake(data, umask)
    assert modes_below(data) == {"folder": {"0o2770"}, "file": {"0o660"}}
    assert "kv.sqlite-wal 0o660" in said
    assert "kv.sqlite-shm 0o660" in said


def test_the_folder_of_an_issued_address_is_shared_as_well(tmp_path: Path) -> None:
    data = tmp_path / "lake"
    data.mkdir()
    data.chmod(0o2770)
    for words in (["repo", "create", "sales"], ["issue", "sales", "main", "a"]):
        command = [sys.executable, "-m", "refstore", "--data", str(data), *words]
        subprocess.run(command, check=True, capture_output=True, umask=0o022)
    assert modes_below(data)["folder"] == {"0o2770"}


def test_a_group_that_may_write_is_not_enough(tmp_path: Path) -> None:
    """A umask of 002, which many systems have, is nobody's decision to share."""
    tmp_path.chmod(0o775)
    make_folder(tmp_path / "lake" / "below")
    assert modes_below(tmp_path / "lake")["folder"] == {"0o700"}


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake").chmod(0o755)
    used_lake(tmp_path / "lake", 0o022)
    assert oct(stat.S_IMODE((tmp_path / "lake").stat().st_mode)) == "0o755"
    assert modes_below(tmp_path / "lake")["file"] == {"0o600"}


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("")
    with pytest.raises(InvalidSettings, match="name another folder"):
        refstore.create(str(tmp_path / "lake"))
    with pytest.raises(OSError, match="directory"):
        make_folder(tmp_path / "lake")
    with pytest.raises(OSError, match="directory"):
        make_folder(tmp_path / "lake" / "below")


def test_what_others_can_get_at_is_told(reachable: Path) -> None:
    lake = reachable / "lake"
    lake.mkdir()
    lake.chmod(0o755)
    wide, narrow = lake / "kv.sqlite", lake / "other"
    wide.touch()
    wide.chmod(0o644)
    narrow.touch()
    narrow.chmod(0o600)
    places = [lake, wide, narrow, lake / "missing"]
    assert [place for place, _ in find_exposed(places)] == [lake, wide]
    lake.chmod(0o700)
    assert find_exposed(places) == [], "behind a closed folder, nothing is open"
    lake.chmod(0o2770)
    wide.chmod(0o660)
    assert find_exposed(places) == [], "shared by group"
    lake.chmod(0o770)
    assert find_exposed(places) == [(lake, 0o770), (wide, 0o660)]
    lake.chmod(0o2775)
    assert find_exposed(places) == [(lake, 0o2775)]


def test_the_start_names_each_place_and_what_to_do(reachable: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = reachable / "a lake"
    data.mkdir()
    data.chmod(0o755)
    used_lake(data, 0o022)
    (data / "kv.sqlite").chmod(0o644)
    kv, objects = embedded_urls(data)
    for settings in (
        Settings(data=data, kv=kv, objects=objects),
        Settings(data=None, kv=kv + "?fsync=1", objects=objects),
    ):
        caplog.clear()
        warn_of_open_folders(settings)
        said = caplog.text
        assert said.count("open_to_others") == (1 if settings.data is None else 2)
        assert f"chmod go= {data}/kv.sqlite" in said
    assert PRIVATE_MODES.folder == 0o700
    assert SHARED_MODES.folder == 0o2770
    caplog.clear()
    warn_of_open_folders(Settings(data=None, kv="redis://h", objects="s3://b"))
    assert "open_to_others" not in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_cannot_read_the_signing_key(reachable: Path) -> None:
    data = reachable / "lake"
    used_lake(data, 0)
    steal = (
        f"import os; os.setgroups([]); os.setgid(65534); os.setuid(65534); open({str(data / 'kv.sqlite')!r}, "
        "'rb').read()"
    )
    stolen = subprocess.run([sys.executable, "-c", steal], check=False, capture_output=True, text=True)
    assert "PermissionError" in stolen.stderr
