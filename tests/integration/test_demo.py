"""The demo: small, on the embedded default, and with harm done before its audit, which must then notice.

The clients, the killed one among them, and the reapers are real processes here as in `make demo`; only their number of
files and their durations are smaller.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import refstore
from examples.demo.main_job import MainJob, open_main_job
from examples.demo.processes import ProcessFailed
from examples.demo.source_files import choose_files
from refstore import Repository
from refstore.core.ids import BranchName
from refstore.core.ids import Path as ObjectPath
from refstore.operations import multipart
from refstore.records import keys
from refstore.service.access_keys import scan_keys
from tests.durations import MAIN_JOB, set_constants
from tests.kit.independent_audit import audit_repository
from tests.servers.redis_servers import RedisServer, until
from tests.servers.s3_servers import RcloneS3
from tests.servers.s3_servers import environment as s3_environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
FILES = 120
BUSY_REAPERS = {"pause_seconds": 0.5, "lease_seconds": 5.0, "scrub_every_seconds": 2.0}
"""They meet the clients more often than those that somebody watches."""


def path_on_main(job: MainJob, folder: str) -> str:
    return next(item.path for item in job.repo.list("main", prefix=folder))


def processes_with(word: str) -> list[str]:
    """Return the command lines of processes that have the word: those of a demo have its repository's name."""
    lines: list[str] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_text().replace("\0", " "))
        except OSError:
            continue
    return [line for line in lines if word in line]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MainJob]:
    folder = tmp_path_factory.mktemp("demo")
    stores, files = {"data": str(folder / "lake")}, choose_files(None, FILES)
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_constants(monkeypatch, ReaperSettings=BUSY_REAPERS)
        with open_main_job(stores, files, folder, print, MAIN_JOB) as job:
            job.run()
            yield job
            job.end()
    assert processes_with(job.repo.name) == []


def check(repo: Repository) -> None:
    """The tests' own audit, which shares no reading code with the product, finds nothing either."""
    seen = audit_repository(repo, grace_seconds=repo.context.grace_seconds)
    assert seen.ok, seen.findings()
    assert (seen.issued, seen.in_grace, seen.deleting) == (0, 0, 0)


@pytest.mark.xdist_group("demo")
class TestEmbedded:
    def test_nothing_named_is_gone_and_nothing_unnamed_is_left(self, done: MainJob) -> None:
        result = done.audit()
        assert result.findings == []
        check(done.repo)
        count = {row.what: row.objects for row in result.rows}
        assert count["uploaded"] > FILES
        assert count["reaped"] > FILES // 10
        assert min(count[what] for what in ("linked", "abandoned", "left open", "copied", "moved", "deleted")) > 0
        (committed,) = [objects for what, objects in count.items() if what.startswith("named by")]
        assert count["left in the store"] == committed + count["only staged, read back"]
        assert min(committed, count["only staged, read back"]) > 0
        written = sum(count[what] for what in ("uploaded", "linked", "abandoned"))
        unreported = count["left in the store"] + count["reaped"] - written
        assert 0 <= unreported <= 20, "what the killed client had begun may be there in addition"

    def test_what_was_meant_to_happen_did(self, done: MainJob) -> None:
        assert {each.name for each in done.repo.branches()} == {"main", "etl", "landing", "scratch", "crash"}
        folders = {item.path for item in done.repo.list("main", delimiter="/")}
        of_landing = {"landing/", "parts/", "copied/"}
        assert folders == {"lib/", "archive/", "linked/", "rescued/", "shared/", "inbox/", *of_landing}
        assert {item.path for item in done.repo.list("crash", delimiter="/")} == {"lib/", "victim/", "survivor/"}
        assert {item.path for item in done.repo.list("scratch", delimiter="/")} == {"lib/", "kept/"}
        assert {item.path for item in done.repo.list("landing", delimiter="/")} == {"lib/", *of_landing}
        assert done.reports()["victim"][-1].kind in ("began", "uploaded")

    @pytest.mark.parametrize("folder", ["lib/", "inbox/"])
    def test_a_named_object_that_is_gone_is_found(self, done: MainJob, folder: str) -> None:
        objects = done.repo.context.objects
        address = done.repo.stat("main", path_on_main(done, folder)).address
        body = objects.read(address)
        objects.delete_many([address])
        try:
            findings = done.audit().findings
        finally:
            objects.put(address, body)
        assert [finding for finding in findings if not finding.startswith(f"lost: {address}")] == []
        assert findings

    def test_an_object_that_nothing_names_is_found(self, done: MainJob) -> None:
        objects = done.repo.context.objects
        address = "data/2026010100/00000000000000000000000000"
        objects.put(address, b"left over")
        try:
            findings = done.audit().findings
        finally:
            objects.delete_many([address])
        assert findings == [f"left over: {address}, which nothing names"]

    def test_an_upload_in_parts_that_is_left_open_is_found(self, done: MainJob) -> None:
        ctx = done.repo.context
        begun = multipart.begin(ctx, BranchName("landing"), "parts/open", seconds=3600)
        try:
            findings = done.audit().findings
        finally:
            multipart.abort(ctx, begun.name)
        assert findings == ["left over: the upload in parts of 'landing/parts/open'"]
        assert done.audit().findings == []

    def test_an_object_with_other_bytes_is_found(self, done: MainJob) -> None:
        objects = done.repo.context.objects
        address = done.repo.stat("main", path_on_main(done, "lib/")).address
        body = objects.read(address)
        objects.put(address, b"x" * len(body))
        try:
            findings = done.audit().findings
        finally:
            objects.put(address, body)
        (finding,) = findings
        assert finding.startswith(f"lost: {address}: ")
        assert "size or checksum differs" in finding

    def test_entries_that_are_gone_or_left_over_or_exchanged_are_found(self, done: MainJob) -> None:
        ctx = done.repo.context
        token = done.repo.context.branches.read_open(BranchName("main")).record.token
        paths = [item.path for item in done.repo.list("main", prefix="inbox/")]
        gone, other = (keys.entry(ctx.repo, token, ObjectPath(path)) for path in paths[:2])
        extra = keys.entry(ctx.repo, token, ObjectPath("inbox/should be gone"))
        first, second = ctx.kv.get(gone), ctx.kv.get(other)
        assert isinstance(first, bytes)
        assert isinstance(second, bytes)
        ctx.kv.delete(gone)
        ctx.kv.set(other, first)
        ctx.kv.set(extra, second)
        try:
            findings = done.audit().findings
        finally:
            ctx.kv.set(gone, first)
            ctx.kv.set(other, second)
            ctx.kv.delete(extra)
        assert findings == [
            f"'main' misses {paths[0]!r}",
            f"'main' has another content at {paths[1]!r}",
            "'main' has what should be gone at 'inbox/should be gone'",
        ]

    @pytest.mark.parametrize("branch", ["etl", "doomed"])
    def test_a_branch_that_is_gone_or_left_over_is_found(self, done: MainJob, branch: str) -> None:
        ctx = done.repo.context
        key = keys.branch(ctx.repo, branch)
        before, of_etl = ctx.kv.get(key), ctx.kv.get(keys.branch(ctx.repo, "etl"))
        assert isinstance(of_etl, bytes)
        ctx.kv.delete(key) if branch == "etl" else ctx.kv.set(key, of_etl)
        try:
            findings = done.audit().findings
        finally:
            ctx.kv.set(key, of_etl) if branch == "etl" else ctx.kv.delete(key)
        assert f"branch {branch!r} {'is missing' if branch == 'etl' else 'should be gone'}" in findings
        assert ctx.kv.get(key) == before


@pytest.mark.server
def test_the_command_on_a_real_redis_and_a_real_s3(
    tmp_path: Path, environment: dict[str, str], s3_credentials: None
) -> None:
    (tmp_path / "redis").mkdir()
    with RedisServer(tmp_path / "redis") as redis, RcloneS3(tmp_path / "s3") as s3:
        stores = {"kv": redis.url, "objects": s3.url("demo")}
        arguments = [word for name, url in stores.items() for word in (f"--{name}", url)]
        ran = run_demo(environment | s3_environment(), "--files", str(FILES), *arguments)
        assert ran.returncode == 0, ran.stderr
        assert "Nothing that is named is gone, and nothing that is not named is left." in ran.stdout
        assert "killed the client 'victim'" in ran.stderr
        with refstore.create(**stores) as lake:
            (repo,) = lake.repositories()
            check(repo)
            assert f"refstore repo delete {repo.name}" in ran.stderr
        assert processes_with(repo.name) == []
    assert list(tmp_path.glob("refstore-demo-*")) == []


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if not name.startswith("REFSTORE_")}
    return {**found, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}


def run_demo(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.demo", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_no_process_behind(
    tmp_path: Path, environment: dict[str, str], by: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--files", "100"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_heed_interrupts,  # noqa: PLW1509  # no threads are running yet
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        repository = ""
        for line in process.stderr:
            repository = repository or line.decode().partition("repository ")[2].partition(",")[0]
            if b"clients upload" in line:
                break
        until(lambda: len(processes_with(repository)) >= 4, "the demo's clients")
        process.send_signal(by)
        process.stderr.read()
        process.stdout.read()
        assert process.wait(60) == 130
    assert processes_with(repository) == []
    assert list(tmp_path.glob("refstore-demo-*")) == []


def _heed_interrupts() -> None:
    """A shell's background job ignores SIGINT, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_too_few_files(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "few").mkdir()
    ran = run_demo(environment, "--source", str(tmp_path / "few"))
    assert ran.returncode == 2
    assert "--source" in ran.stderr
    assert list(tmp_path.glob("refstore-demo-*")) == []


def test_a_client_that_fails_stops_the_job_and_says_why(tmp_path: Path) -> None:
    files = [msgspec.structs.replace(file, file=str(tmp_path / "nowhere")) for file in choose_files(None, FILES)]
    with (
        open_main_job({"data": str(tmp_path / "lake")}, files, tmp_path, print, MAIN_JOB) as job,
        pytest.raises(ProcessFailed, match="nowhere"),
    ):
        job.run()
    assert processes_with(job.repo.name) == []
    with refstore.create(str(tmp_path / "lake"), safety=MAIN_JOB) as lake:
        assert not list(scan_keys(lake.kv)), "the S3 client's access key was for the job only"
