"""The phases of the main job, in order; `run` has them all. `final_audit.py` judges what is left."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

import refstore
from examples.demo.client_reports import Report, read_reports
from examples.demo.clients import CLIENTS
from examples.demo.final_audit import AuditResult, audit
from examples.demo.processes import POLL_SECONDS, Processes
from examples.demo.s3_client import list_open_uploads
from examples.demo.s3_gateway import S3_CLIENT, Gateway, start_gateway
from examples.demo.short_durations import SAFETY, environment
from examples.demo.source_files import SourceFile
from refstore import Lake, Repository, Safety
from refstore.errors import Conflict, NothingToCommit
from refstore_reaper import reap

REAPERS: Final = ("reaper-1", "reaper-2")
SLACK_SECONDS: Final = 2
"""Added to the required time."""
SHOW_SECONDS: Final = 5
BATCHES_BEFORE_THE_KILL: Final = 3


@contextmanager
def open_main_job(
    stores: Mapping[str, str],
    files: Sequence[SourceFile],
    folder: Path,
    say: Callable[[str], None],
    safety: Safety = SAFETY,
) -> Generator[MainJob, None, None]:
    """Open the lake (`data`, or `kv` and `objects`), and create a repository, which stays. At the end all processes of
    the job are ended. `folder`: takes logs and reports.
    """
    lake = refstore.create(stores.get("data"), kv=stores.get("kv"), objects=stores.get("objects"), safety=safety)
    with lake, Processes(folder, environment(stores, safety)) as processes:
        repo = lake.create_repository(f"demo-{secrets.token_hex(4)}")
        with start_gateway(repo.name, processes) as gateway:
            yield MainJob(lake, repo, files, folder, say, safety, processes, gateway)


@dataclass(frozen=True, slots=True)
class MainJob:
    _lake: Lake
    repo: Repository
    files: Sequence[SourceFile]
    _folder: Path
    _say: Callable[[str], None]
    _safety: Safety
    _processes: Processes
    _gateway: Gateway

    def run(self) -> None:
        self._start_reapers()
        self._fill_main()
        self._work_on_branches()
        self._merge()
        self._let_reapers_finish()

    def reports(self) -> dict[str, list[Report]]:
        """Read what each client has reported."""
        return {name: self._reports_of(name) for name in (*CLIENTS, S3_CLIENT)}

    def audit(self) -> AuditResult:
        """Compare what is left with what the clients have reported."""
        open_uploads = list_open_uploads(self._gateway.wait_for_access(), self.repo.name)
        return audit(self.repo, self._list_objects(), open_uploads, self.files, self.reports())

    def end(self) -> None:
        """End the gateway, which lists what is open for the audit. Raises ProcessFailed."""
        self._gateway.end()

    def _list_objects(self) -> dict[str, int]:
        """Return the sizes of all objects in the store by address, whoever names them."""
        with closing(self._lake.open_url(self.repo.record.namespace)) as store:
            return {info.key: info.size_bytes for info in store.list("data/")}

    def _start_reapers(self) -> None:
        size_mib = sum(file.size_bytes for file in self.files) / (1 << 20)
        self._say(f"repository {self.repo.name}, two reapers, {len(self.files)} files of {size_mib:.1f} MiB")
        for name in REAPERS:  # for this repository only: the short grace window is not for others on these stores
            self._processes.start(name, "refstore", "reaper", "--repository", self.repo.name)

    def _fill_main(self) -> None:
        self._say("3 clients upload to main, and commit all the while")
        (self._folder / "files.json").write_bytes(msgspec.json.encode(self.files))
        uploaders = [name for name in CLIENTS if name.startswith("uploader")]
        self._start_clients(uploaders)
        self._processes.wait(uploaders)

    def _work_on_branches(self) -> None:
        self._say(
            "6 clients on 6 branches: overwrite, copy, move, link, reset, delete; one uses S3, one will be killed"
        )
        for branch in ("etl", "ml", "landing", "scratch", "doomed", "crash"):
            self.repo.create_branch(branch, source="main")
        clients = ("etl", "ml", "scratch", "doomed")
        self._gateway.tell(self._folder)
        self._start_clients([*clients, "victim"])
        self._processes.start(S3_CLIENT, "examples.demo.s3_client", self.repo.name, str(self._folder))
        self._kill_in_the_middle("victim")
        self._start_clients(["survivor"])
        self._processes.wait([*clients, "survivor", S3_CLIENT])

    def _kill_in_the_middle(self, client: str) -> None:
        """Kill a client (SIGKILL) after the beginning of a batch. By then the batch has its references, perhaps some of
        its objects, and no entries.
        """
        kinds: list[str] = []
        while len(kinds) <= 2 * BATCHES_BEFORE_THE_KILL or kinds[-1] != "began":
            time.sleep(POLL_SECONDS)
            self._processes.check()
            kinds = [report.kind for report in self._reports_of(client)]
        self._processes.kill(client)
        self._say(f"killed the client {client!r} while it was uploading (SIGKILL)")

    def _merge(self) -> None:
        self._say(
            "etl, ml and landing are committed and merged into main; ml is deleted; new files stay staged on main"
        )
        for branch in ("etl", "ml", "landing"):
            with suppress(NothingToCommit):
                self.repo.commit(branch, f"the rest of {branch}", committer="demo")
            self.repo.merge(branch, into="main", committer="demo")
        self.repo.create_tag("merged", ref="main")
        self.repo.delete_branch("ml")
        self.repo.reset("landing")  # which ends the uploads in parts that were left open there
        self._start_clients(["last"])
        self._processes.wait(["last"])

    def _let_reapers_finish(self) -> None:
        """Wait until the remains of the killed client may be deleted: until no operation can still be under way."""
        seconds = self._safety.scrub_after_seconds + SLACK_SECONDS
        self._say(f"work is done; the reapers get {seconds:.0f} s, after which no operation can be under way any more")
        self._wait(seconds)
        self._say("the reapers are asked to end (SIGTERM), and the demo reaps what is left, crashes' remains included")
        self._processes.terminate(REAPERS)
        self._reap()
        self._wait(self._safety.grace_seconds + SLACK_SECONDS)
        self._reap()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._say(f"{len(self._list_objects())} objects are in the store")
            time.sleep(min(SHOW_SECONDS, left))
            self._processes.check()

    def _reap(self) -> None:
        """Raises Conflict if something could not be deleted."""
        report = reap(self._lake, repositories=[self.repo.name], share_max=1, scrub=True)
        if not report.is_done:
            raise Conflict(f"the reaper did not end well: {report}")

    def _start_clients(self, names: Collection[str]) -> None:
        for name in names:
            self._processes.start(name, "examples.demo.clients", name, self.repo.name, str(self._folder))

    def _reports_of(self, client: str) -> list[Report]:
        return read_reports(self._folder / f"{client}.reports")
