"""Run an unchanged checkout of ceph/s3-tests, the public conformance suite, and compare its results with the scope.

`make s3-tests S3_TESTS_DIR=DIR` runs this, and so does `make test-all` where the environment has S3_TESTS_DIR.
`public_suite_scope.txt` has the names of the tests that must pass, and says which are expected to fail and why.
"""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from defusedxml import ElementTree

from refstore.service.access_keys import Role
from tests.api.conftest import KEY_ID
from tests.s3.s3_service import S3_SECRET, S3Service, serving_s3

ROOT: Final = Path(__file__).resolve().parents[2]
SCOPE_FILE: Final = Path(__file__).with_name("public_suite_scope.txt")
TESTS_FILE: Final = "s3tests/functional/test_s3.py"
SECTIONS: Final = ("s3 main", "s3 alt", "s3 tenant", "iam", "iam root", "iam alt root")
"""The users that the suite's configuration names. Each has an access key of its own."""
RUN_SECONDS_MAX: Final = 3000


def read_scope() -> dict[str, str]:
    """The tests in scope, and why each is expected to fail; '': it must pass."""
    lines = [line for line in SCOPE_FILE.read_text().splitlines() if line and not line.startswith("#")]
    return {name: reason.strip() for name, _, reason in (line.partition(":") for line in lines)}


@pytest.fixture
def suite() -> Path:
    folder = os.environ.get("S3_TESTS_DIR")
    if not folder:
        pytest.skip("S3_TESTS_DIR names no checkout of ceph/s3-tests")
    return Path(folder).resolve()


@pytest.fixture
def suite_s3(tmp_path: Path) -> Iterator[S3Service]:
    with serving_s3(tmp_path, "--s3-create-buckets") as service:
        for section in SECTIONS[1:]:
            service.add_key(key_of(section), Role.OPERATOR)
        yield service


def key_of(section: str) -> str:
    return KEY_ID if section == SECTIONS[0] else f"AKIA{section.replace(' ', '').upper()}"


def write_configuration(service: S3Service, file: Path) -> None:
    host, port = service.address
    parser = configparser.RawConfigParser()
    parser["DEFAULT"] = {"host": host, "port": str(port), "is_secure": "False", "ssl_verify": "False"}
    parser["fixtures"] = {"bucket prefix": "suite-{random}-"}
    for section in SECTIONS:
        parser[section] = {
            "access_key": key_of(section),
            "secret_key": S3_SECRET,
            "user_id": "refstore",  # the owner of every object, as listings have it
            "display_name": "refstore",
            "email": "nobody@example.org",
            "tenant": "",
        }
    with file.open("w") as opened:
        parser.write(opened)


def install(requirements: Path) -> Path:
    """Install what the suite needs, from wherever this machine gets packages; return the Python that has it."""
    folder = ROOT / "build" / "s3-tests"
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    if stamp.is_file() and stamp.read_text() == requirements.read_text():
        return python
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "--quiet", "--clear", "--no-project", "--python", sys.executable, folder], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, "-r", requirements], check=True)
    stamp.write_text(requirements.read_text())
    return python


def read_failures(report: Path) -> dict[str, str]:
    """What went wrong with each test that ran; '': it passed."""
    return {
        case.attrib["name"]: "\n".join(
            f"{each.tag}: {each.attrib.get('message', '')}"
            for each in case
            if each.tag in ("failure", "error", "skipped")
        )
        for case in ElementTree.parse(report).iter("testcase")
    }


def run_suite(suite: Path, service: S3Service, folder: Path, names: Mapping[str, str]) -> dict[str, str]:
    configuration, report = folder / "s3tests.conf", folder / "report.xml"
    write_configuration(service, configuration)
    python = install(suite / "requirements.txt")
    environment = {**service.environment(), "S3TEST_CONF": str(configuration), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", "--tb=short"]
    ran = subprocess.run(
        [python, "-m", "pytest", *options, *(f"{TESTS_FILE}::{name}" for name in names)],
        cwd=suite, env=environment, capture_output=True, text=True, check=False, timeout=RUN_SECONDS_MAX,
    )  # fmt: skip
    print(ran.stdout, ran.stderr)
    assert report.is_file(), "the suite did not run"
    return read_failures(report)


@pytest.mark.timeout(RUN_SECONDS_MAX + 600)
def test_what_is_in_scope_passes(
    suite: Path, suite_s3: S3Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scope = read_scope()
    failures = run_suite(suite, suite_s3, tmp_path, scope)
    assert failures.keys() == scope.keys(), "names that are in one of both only"
    passed = [name for name, reason in scope.items() if reason and not failures[name]]
    with capsys.disabled():
        print(f"\n{sum(not each for each in failures.values())} of {len(scope)} in scope passed")
        print(*(f"{name} was expected to fail, and passed" for name in passed), sep="\n")
    assert {name: text for name, text in failures.items() if text and not scope[name]} == {}


def test_few_in_scope_are_expected_to_fail() -> None:
    scope = read_scope()
    assert len(scope) >= 239
    assert sum(bool(reason) for reason in scope.values()) <= len(scope) // 20
