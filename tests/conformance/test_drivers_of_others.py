"""Drivers of other packages: docs/drivers.md is run as it stands, installed by a real entry point."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
import zipfile
from contextlib import nullcontext
from pathlib import Path
from xml.etree import ElementTree

import pytest

import refstore
from refstore.configuration.settings_loader import load_settings
from refstore.conformance import ObjectStoreSuite
from refstore.conformance.kv_suite import RACES
from refstore.errors import InvalidSettings
from refstore.kv import open_kv
from refstore.objects import memory, open_objects
from refstore.objects.memory import MemoryObjects

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    match[1]: match[2]
    for match in re.finditer(
        r"^```\w+\n# (\S+)\n(.*?)^```", (ROOT / "docs/drivers.md").read_text(), re.DOTALL | re.MULTILINE
    )
}
SHELF = '''
"""An object store whose scheme is none of refstore's."""

from refstore.objects.memory import MemoryObjects

shelves = {}


class Shelf(MemoryObjects):
    def __init__(self, url, clock):
        super().__init__(clock=clock)
        self._url = url


def open_shelf(url, options):
    url.check_options("wood")
    return shelves.setdefault(url.text(), Shelf(url.text(), options.clock))


def open_nothing(url, options):
    return None
'''


def install(site: Path, entry_points: dict[str, dict[str, str]], name: str = "refstore-dict") -> None:
    """Write a package's metadata as an installer does."""
    folder = site / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    sections = [
        f"[{group}]\n" + "".join(f"{scheme} = {opener}\n" for scheme, opener in entries.items())
        for group, entries in entry_points.items()
    ]
    (folder / "entry_points.txt").write_text("\n".join(sections))


def install_example(site: Path) -> None:
    """Build the documented package, and unpack its wheel beside the documented test module."""
    source = site.with_name(f"{site.name}-source")
    source.mkdir()
    for name, text in FILES.items():
        (source / name).write_text(text)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=100)
    (wheel,) = (source / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "test_refstore_dict.py").write_text(FILES["test_refstore_dict.py"])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages: the example's driver, and an object store."""
    folder = tmp_path / "site"
    install_example(folder)
    install(folder, {"refstore.objects": {"shelf": "refstore_shelf:open_shelf"}}, "refstore-shelf")
    (folder / "refstore_shelf.py").write_text(SHELF)
    for module in ("refstore_dict", "refstore_shelf"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(folder)
    return folder


def suite_results(site: Path, *selection: str) -> dict[str, bool]:
    """Run the example's test module in a process of its own; whether each test passed."""
    report = site / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    subprocess.run(
        [*command, f"--junitxml={report}", *selection, "test_refstore_dict.py"],
        cwd=site,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        timeout=240,
        check=False,
    )
    cases = ElementTree.parse(report).getroot().iter("testcase")  # noqa: S314  # pytest wrote it
    return {case.attrib["name"]: case.find("failure") is None and case.find("error") is None for case in cases}


@pytest.mark.slow
def test_the_documented_driver_passes_the_suite(tmp_path: Path) -> None:
    install_example(tmp_path)
    results = suite_results(tmp_path)
    assert len(results) > 50
    assert [name for name, passed in results.items() if not passed] == []


@pytest.mark.slow
def test_without_its_lock_the_documented_driver_fails_every_test_of_atomicity(tmp_path: Path) -> None:
    install_example(tmp_path)
    driver = tmp_path / "refstore_dict.py"
    unlocked = driver.read_text().replace("self._lock = Lock()", "self._lock = nullcontext()")
    driver.write_text(unlocked.replace("from threading import Lock", "from contextlib import nullcontext"))
    results = suite_results(tmp_path, "-k", "atomic or paused or absent_until")
    assert results.pop("test_a_key_is_absent_until_it_is_set"), "the driver works but for its lock"
    assert len(results) == len(RACES) + 4
    assert [name for name, passed in results.items() if passed] == []


def test_an_object_store_without_its_lock_fails_the_test_of_atomicity(monkeypatch: pytest.MonkeyPatch) -> None:
    check = ObjectStoreSuite().test_a_put_if_absent_is_atomic_at_each_of_its_steps
    check(MemoryObjects())
    monkeypatch.setattr(memory, "Lock", nullcontext)
    unlocked = MemoryObjects()
    with pytest.raises(AssertionError):
        check(unlocked)


@pytest.mark.usefixtures("site")
def test_a_lake_lives_in_stores_of_others() -> None:
    kv, objects = f"dict://user:secret@{uuid.uuid4().hex}", f"shelf://{uuid.uuid4().hex}/lake?wood=oak"
    assert load_settings({"kv": kv, "objects": objects}, {}, default_data=Path("unused")).settings.objects == objects
    for turn in range(2):
        with refstore.create(kv=kv, objects=objects) as lake:
            repo = lake.repository("sales") if turn else lake.create_repository("sales")
            if not turn:
                repo.upload("main", "a/b", b"body")
                repo.commit("main", "first")
            assert repo.read("main", "a/b") == b"body"


@pytest.mark.usefixtures("site")
def test_an_unknown_scheme_says_what_there_is_and_how_to_add_one() -> None:
    with pytest.raises(InvalidSettings, match=r"sqlite:.*, dict:, or install .*entry point.*'refstore\.kv'$"):
        open_kv("etcd://host")
    with pytest.raises(
        InvalidSettings, match=r"^gs:// is not .* file://, s3://, memory://, shelf://, .*'refstore\.objects'$"
    ):
        open_objects("gs://bucket")


def test_a_built_in_scheme_is_never_anothers(site: Path) -> None:
    install(site, {"refstore.kv": {"Memory": "refstore_thief:open_kv"}}, "refstore-thief")
    assert open_kv("memory:").count("partition", limit=1) == 0  # the other one cannot even be imported
    with pytest.raises(InvalidSettings, match=r"built in: Memory = refstore_thief:open_kv of refstore-thief$"):
        open_kv("etcd://host")


def test_two_packages_with_one_scheme_are_refused(site: Path) -> None:
    install(site, {"refstore.kv": {"dict": "other_dict:open_dict"}}, "other-dict")
    with pytest.raises(InvalidSettings, match=r"several packages .* dict: .*other-dict.*uninstall all but one"):
        open_kv("dict://x")


@pytest.mark.parametrize(
    ("opener", "reason"),
    [
        (
            "refstore_nowhere:open_it",
            r"cannot be loaded from void = refstore_nowhere:open_it of refstore-void \(No module",
        ),
        ("refstore_shelf:open_it", "cannot be loaded .*open_it"),
        ("refstore_shelf:open_nothing", r"opened a NoneType; it must return a subclass"),
    ],
)
def test_a_driver_that_cannot_be_used_says_why(site: Path, opener: str, reason: str) -> None:
    groups = {"refstore.kv": {"void": opener}, "refstore.objects": {"void": opener}}
    install(site, groups, "refstore-void")
    with pytest.raises(InvalidSettings, match=reason):
        open_kv("void://x")
    with pytest.raises(InvalidSettings, match=reason):
        open_objects("void://x")
