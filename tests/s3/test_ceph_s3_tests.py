"""Run the cases of ceph/s3-tests that are in scope against a running service.

`ceph_s3_tests/scope.txt` names each of its 757 tests: in scope, or out of scope and why.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from refstore.service.access_keys import Role
from tests.api.conftest import KEY_ID
from tests.s3.ceph_s3_tests import cases, functional
from tests.s3.s3_service import S3_SECRET, S3Service, serving_s3

OTHER_KEY: Final = "AKIAOTHERTESTS"
IN_SCOPE: Final = "in scope"
CASES_OF_THE_SUITE: Final = 757
CASES_IN_SCOPE_MIN: Final = 220
KNOWN_FAILURES: Final[dict[str, str]] = {
    "test_object_write_with_chunked_transfer_encoding": "AWS refuses a body without a length, as well",
    "test_object_set_get_unicode_metadata": "it sends Latin-1 and UTF-8 by turns; it fails on Ceph RGW, too",
    "test_object_raw_put_authenticated_expired": "a URL for -1000 seconds is not one that expired: 400, as AWS answers",
    "test_atomic_write_bucket_gone": "the client reads the body twice, and the case deletes its bucket at each reading",
    "test_multipart_resend_first_finishes_last": "it names part 1 twice, which is no ascending order",
    "test_atomic_dual_conditional_write_1mb": "the client reads the body twice, and the case writes at each reading",
    "test_object_checksum_sha256": "a checksum that is no base64 is InvalidRequest, as AWS answers",
    "test_object_checksum_crc64nvme": "a checksum that is no base64 is InvalidRequest, as AWS answers",
}
"""Cases in scope that fail, and why; at most one in twenty."""


def read_scope() -> dict[str, list[str]]:
    """The names of cases by their heading."""
    text = Path(__file__).parent.joinpath("ceph_s3_tests", "scope.txt").read_text()
    sections = (section.splitlines() for section in text.split("\n# ")[1:])
    return {heading: [name for name in names if name] for heading, *names in sections}


SCOPE: Final = read_scope()


@pytest.fixture(scope="module")
def conformance_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Service]:
    environment = {"REFSTORE_S3_CREATE_BUCKETS": "true"}
    with serving_s3(tmp_path_factory.mktemp("conformance"), environment=environment) as service:
        service.add_key(OTHER_KEY, Role.OPERATOR)
        functional.configure(service.url, (KEY_ID, S3_SECRET), (OTHER_KEY, S3_SECRET))
        yield service


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xfail(reason=KNOWN_FAILURES[name])] if name in KNOWN_FAILURES else []


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=marks_of(name)) for name in SCOPE[IN_SCOPE]],
)
@pytest.mark.usefixtures("conformance_s3")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the suite's clients leave connections open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_case_passes(name: str) -> None:
    case = getattr(cases, name)
    try:
        case(*(None for _ in inspect.signature(case).parameters))  # what it asks for only cleans up
    finally:
        functional.clean_up()


def test_each_case_of_the_suite_is_in_scope_or_has_a_reason() -> None:
    names = [name for section in SCOPE.values() for name in section]
    assert len(names) == len(set(names)) == CASES_OF_THE_SUITE
    assert len(SCOPE[IN_SCOPE]) >= CASES_IN_SCOPE_MIN
    assert {name for name in dir(cases) if name.startswith("test_")} == set(SCOPE[IN_SCOPE])
    assert set(KNOWN_FAILURES) <= set(SCOPE[IN_SCOPE])
    assert len(KNOWN_FAILURES) <= len(SCOPE[IN_SCOPE]) // 20
