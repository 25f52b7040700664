"""The main job: small, on the embedded default, and with harm done before its verdict, which must then notice.

The clients, the killed one among them, and the reapers are real processes here as in `make demo`; only their number of
files and their durations are smaller.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refstore.core import keys
from refstore.core.ids import Path as ObjectPath
from refstore.core.settings import Settings, load
from refstore.demo import pace, sources, verdict
from refstore.demo.main_job import MainJob
from refstore.demo.plan import CRASH, ETL, MAIN, ML, SCRATCH
from refstore.demo.verdict import Verdict
from refstore.errors import RefstoreError
from refstore.kv.base import Key
from tests.durations import MAIN_JOB
from tests.servers.redis_servers import RedisServer, until
from tests.servers.s3_servers import RcloneS3

pytestmark = pytest.mark.slow

FILES = 120


class Quiet:
    """A screen that remembers what it was told."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def phase(self, text: str) -> None:
        self.phases.append(text)

    @contextmanager
    def bar(self, description: str, total: int) -> Generator[Quiet, None, None]:
        assert total > 0
        yield self

    def advance(self, count: int = 1) -> None:
        assert count > 0


def job_on(settings: Settings, folder: Path) -> MainJob:
    return MainJob(
        pace.settings(settings, MAIN_JOB), sources.choose(None, FILES, 1), seed=1, screen=Quiet(), folder=folder
    )


def of_process(folder: Path) -> list[str]:
    """Processes that run with this folder's settings: each process of a demo does."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"REFSTORE_CONFIG={folder}".encode() in entry.read_bytes():
                found.append(entry.with_name("cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MainJob]:
    """The main job, settled and not judged yet."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "lake").mkdir()
    with job_on(load({"data": folder / "lake"}, {}, default_data=folder).settings, folder) as job:
        job.prepare()
        job.work()
        job.settle()
        yield job
    assert of_process(folder) == []


def counts(found: Verdict) -> dict[str, int]:
    return {line.what: line.objects for line in found.lines}


def check(found: Verdict) -> None:
    """What must hold of every run, on any stores."""
    assert found.findings == ()
    assert found.ok
    count = counts(found)
    assert count["uploaded"] > FILES
    assert count["reaped"] > FILES // 10
    assert (
        count["left in the store"]
        == count["committed"] + count["still staged"] + count["held by a live token, unnamed"]
    )
    written = sum(count[what] for what in count if what.startswith(("uploaded", "written")))
    assert written == count["left in the store"] + count["reaped"]
    assert count["still staged"] > 0
    assert count["issued, not expired"] == 0


@pytest.mark.xdist_group("demo")
class TestEmbedded:
    def test_nothing_named_is_gone_and_nothing_unnamed_is_left(self, done: MainJob) -> None:
        check(done.verify())

    def test_what_was_meant_to_happen_did(self, done: MainJob) -> None:
        assert {name for name, _ in done.repo.branches()} == {MAIN, ETL, SCRATCH, CRASH}
        told = done.ledger.counts
        assert told["resets"] == 1
        assert told["branches deleted"] == 2
        assert min(told["moved"], told["copied"], told["removed"], told["linked"], told["abandoned"]) > 0
        assert done.ledger.refused["a second link of one address"] >= 1
        assert any(path.startswith("victim/") for path in done.ledger.branches[CRASH])
        assert any(path.startswith("survivor/") for path in done.ledger.branches[CRASH])
        assert ML not in done.ledger.branches

    @pytest.mark.parametrize("staged", [False, True])
    def test_a_named_blob_that_is_gone_is_found(self, done: MainJob, staged: bool) -> None:
        ctx = done.repo.context
        path = next(path for path in done.ledger.branches[MAIN] if path.startswith("inbox/" if staged else "lib/"))
        address = done.repo.stat(MAIN, path).address
        body = ctx.objects.read(address)
        ctx.objects.delete_many([address])
        try:
            found = done.verify()
        finally:
            ctx.objects.put(address, body)
        assert not found.ok
        assert any(text.startswith("audit: lost") and address in text for text in found.findings)
        assert any(text.startswith("ledger") and path in text for text in found.findings)
        assert any(text.startswith("bytes") and address in text for text in found.findings)
        # the count has a slack, what the killed client may have written untold, and need not notice one blob
        check(done.verify())

    def test_a_blob_that_nothing_names_is_found(self, done: MainJob) -> None:
        objects = done.repo.context.objects
        address = "data/2026010100/00000000000000000000000000"
        objects.put(address, b"left over")
        try:
            found = done.verify()
        finally:
            objects.delete_many([address])
        assert not found.ok
        assert any(text.startswith("audit: leaked") and address in text for text in found.findings)

    def test_a_blob_with_other_bytes_is_found(self, done: MainJob) -> None:
        objects = done.repo.context.objects
        path = next(path for path in done.ledger.branches[MAIN] if path.startswith("lib/"))
        address = done.repo.stat(MAIN, path).address
        body = objects.read(address)
        objects.put(address, b"other bytes")
        try:
            found = done.verify()
        finally:
            objects.put(address, body)
        assert not found.ok
        assert any(text.startswith("bytes") and address in text for text in found.findings)

    def test_a_sample_is_read_back_and_all_is_looked_for(self, done: MainJob) -> None:
        ctx = done.repo.context
        sampled = done.verify(read_back=10)
        check(sampled)
        assert "by the checksums on record" in sampled.notes[0]
        address = done.repo.stat(
            MAIN, next(path for path in done.ledger.branches[MAIN] if path.startswith("lib/"))
        ).address
        body = ctx.objects.read(address)
        ctx.objects.delete_many([address])
        try:
            found = done.verify(read_back=0)
        finally:
            ctx.objects.put(address, body)
        assert any(text.startswith("audit: lost") for text in found.findings)
        assert any(text.startswith("bytes") and address in text for text in found.findings)

    def test_a_staged_entry_that_is_gone_is_found(self, done: MainJob) -> None:
        ctx = done.repo.context
        path = next(path for path in done.ledger.branches[MAIN] if path.startswith("inbox/"))
        key = keys.entry(ctx.repo, done.repo.get_branch(MAIN).token, ObjectPath(path))
        value = ctx.kv.get(key)
        ctx.kv.delete(key)
        try:
            found = done.verify()
        finally:
            assert isinstance(value, bytes)
            ctx.kv.set(key, value)
        assert not found.ok
        assert any(text.startswith(f"ledger: on '{MAIN}', missing") and path in text for text in found.findings)

    def test_a_deletion_that_the_journal_does_not_know_is_found(
        self, done: MainJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(verdict, "JOURNAL", "_refstore/nothing/")
        found = done.verify()
        assert any(text.startswith("count") for text in found.findings)

    def test_a_record_of_the_reaper_that_is_left_over_is_told(self, done: MainJob) -> None:
        ctx = done.repo.context
        left = Key(keys.deleted_tokens(ctx.repo), f"{MAIN}:{'0' * 26}")
        ctx.kv.set(left, b"\x90")
        try:
            notes = done.verify().notes
        finally:
            ctx.kv.delete(left)
        assert any("left to scrub" in note for note in notes)


@pytest.mark.server
def test_on_a_real_redis_and_a_real_s3(tmp_path: Path, s3_credentials: None) -> None:
    for name in ("redis", "jobs"):
        (tmp_path / name).mkdir()
    with RedisServer(tmp_path / "redis") as redis, RcloneS3(tmp_path / "s3") as s3:
        stores = load({"kv": redis.url, "objects": s3.url("demo")}, {}, default_data=tmp_path).settings
        with job_on(stores, tmp_path / "jobs") as job:
            job.prepare()
            job.work()
            job.settle()
            check(job.verify())
    assert of_process(tmp_path / "jobs") == []


class TestCommand:
    """The whole demo, from its installed package, runs in `test_packaging.py`."""

    @pytest.fixture
    def environment(self, tmp_path: Path) -> dict[str, str]:
        found = {name: value for name, value in os.environ.items() if not name.startswith("REFSTORE_")}
        return {**found, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}

    @pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
    def test_interrupted_it_leaves_no_process_behind(
        self, tmp_path: Path, environment: dict[str, str], by: signal.Signals
    ) -> None:
        command = [sys.executable, "-m", "refstore", "demo", "--files", "100"]
        with subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=_heed_interrupts,  # noqa: PLW1509  # no threads are running yet
        ) as process:
            assert process.stderr is not None
            assert process.stdout is not None
            for line in process.stderr:
                if b"clients upload" in line:
                    break
            (folder,) = tmp_path.glob("refstore-demo-*")
            until(lambda: len(of_process(folder)) >= 4, "the demo's clients")
            process.send_signal(by)
            process.stderr.read()
            process.stdout.read()
            assert process.wait(60) == 130
        assert of_process(folder) == []
        assert not folder.exists()

    def test_too_few_files(self, tmp_path: Path, environment: dict[str, str]) -> None:
        (tmp_path / "few").mkdir()
        ran = subprocess.run(
            [sys.executable, "-m", "refstore", "demo", "--source", "few"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            check=False,
        )
        assert ran.returncode == 2
        assert b"--source" in ran.stderr


def _heed_interrupts() -> None:
    """A shell's background job ignores SIGINT, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_client_that_fails_stops_the_job_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    settings = load({"data": tmp_path / "lake"}, {}, default_data=tmp_path).settings
    with job_on(settings, tmp_path) as job:
        job.prepare()
        job.sources = [source._replace(file=tmp_path / "nowhere") for source in job.sources]
        with pytest.raises(RefstoreError, match="nowhere"):
            job.work()
    assert of_process(tmp_path) == []
