"""The phases of the main job, in order. Each can be called by itself, so that a test can plant faults between them.

prepare   create a repository, and start two reapers, which run until `settle`
work      run several clients on several branches; one of them is killed
settle    wait until the reapers may delete everything, stop them, and let a last one finish
verify    compare the stores with the clients' reports and with the files, and audit them
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, TypeVar

import tenacity

from refstore.core.settings import Settings
from refstore.demo import pace, verdict
from refstore.demo.client import open_lake
from refstore.demo.ledger import Ledger
from refstore.demo.plan import CRASH, DOOMED, ETL, MAIN, ML, SCRATCH, VICTIM, Steps, plan
from refstore.demo.processes import Processes
from refstore.demo.sources import Source
from refstore.demo.steps import Began, Failed, Job, LinkStep, Stored, UploadStep
from refstore.demo.verdict import Verdict
from refstore.errors import NothingToCommit, RefstoreError
from refstore.lake import Lake
from refstore.repository import Repository

REAPERS: Final = ("reaper-1", "reaper-2")

SILENCE_SECONDS: Final = 60
"""A client that reports nothing for this time hangs: all its operations would have met their deadlines."""

KILL_AFTER_SECONDS: Final = 0.01
"""The time after the beginning of a batch. By then its references exist, some of its blobs, and none of its entries."""

SLACK_SECONDS: Final = 3
"""Added to the required time, so that it includes the reapers' next passes."""

T = TypeVar("T")


class Bar(Protocol):
    def advance(self, count: int = 1) -> None: ...


class Screen(Protocol):
    """Shows the progress."""

    def phase(self, text: str) -> None: ...

    def bar(self, description: str, total: int) -> AbstractContextManager[Bar]: ...


class MainJob:
    """Use as a context manager. At its end all its processes are ended; the repository stays."""

    def __init__(
        self, settings: Settings, sources: Sequence[Source], *, seed: int, screen: Screen, folder: Path
    ) -> None:
        self.ledger = Ledger()
        self.sources = sources
        self.settings = settings
        self._screen = screen
        self._folder = folder
        self._plan = plan([source.path for source in sources], seed)
        self._processes = Processes(folder, pace.environment(settings, folder))
        self._lake: Lake = open_lake(settings)
        self._repo: Repository | None = None
        self._last_operation_seconds = 0.0
        self._heard_out: set[str] = set()
        """Clients whose output has ended."""

    def __enter__(self) -> MainJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._processes.__exit__(kind, error, trace)
        finally:
            self._lake.close()

    @property
    def repo(self) -> Repository:
        if self._repo is None:
            raise RuntimeError("prepare() comes first")
        return self._repo

    def prepare(self) -> None:
        name = f"demo-{secrets.token_hex(4)}"
        self._repo = self._lake.create_repository(name, metadata={"made-by": "refstore demo"})
        self.ledger.branch_created(MAIN)
        self._screen.phase(
            f"repository {name}, two reapers, {len(self.sources)} files of "
            f"{_mib(sum(s.size_bytes for s in self.sources))}"
        )
        for reaper in REAPERS:
            self._processes.start_command(reaper, self._reaper())

    def work(self) -> None:
        self._fill_main()
        self._branches()
        self._merge()
        self._last_operation_seconds = self.repo.context.clock.monotonic_seconds()

    def settle(self) -> None:
        """Wait until the remains of crashed operations may be deleted: until no operation can still be running."""
        safety = self.settings.safety
        clock = self.repo.context.clock
        whole = (
            safety.scrub_after_seconds + safety.grace_seconds + self.settings.reaper.scrub_every_seconds + SLACK_SECONDS
        )
        left = self._last_operation_seconds + whole - clock.monotonic_seconds()
        self._screen.phase(
            f"work is done; the reapers get {max(0, round(left))} s, after which no operation can be under way any more"
        )
        with self._screen.bar("reaping", max(1, round(left))) as bar:
            for _ in range(max(0, round(left))):
                clock.sleep(1)
                bar.advance()
                self._check_reapers()
        self._screen.phase("the reapers are asked to end (SIGTERM), and a last one finishes (--once)")
        for reaper in REAPERS:
            self._processes.terminate(reaper)
        self._processes.run_command("reaper-last", [*self._reaper(), "--once", "--scrub"])

    def verify(self, *, read_back: int | None = None) -> Verdict:
        """Compare and audit. `read_back`: how many of the named blobs to read; None: all."""
        self._screen.phase(
            f"the audit, and {'all' if read_back is None else read_back} of the named blobs read back and compared"
        )
        with self._screen.bar("comparing", 1) as bar:
            found = verdict.reach(self.repo, self.ledger, self.sources, read_back=read_back)
            bar.advance()
        return found

    # ---- the work

    def _fill_main(self) -> None:
        uploaders = self._plan.uploaders
        self._screen.phase(f"{len(uploaders)} clients upload to {MAIN}, another one commits all the while")
        with self._screen.bar("uploading", _objects(uploaders)) as bar:
            self._start({**uploaders, "committer": self._plan.committer})
            self._listen(set(uploaders), bar)
            self._processes.tell_end("committer")
            self._listen({"committer"}, bar)

    def _branches(self) -> None:
        for branch in (ETL, ML, SCRATCH, DOOMED, CRASH):
            self.repo.create_branch(branch, MAIN)
            self.ledger.branch_created(branch, MAIN)
        clients = self._plan.branch_clients
        self._screen.phase(
            f"{len(clients)} clients on {len(clients)} branches: overwrite, copy, move, link, reset, delete; one will "
            "be killed"
        )
        with self._screen.bar("working", _objects(clients)) as bar:
            self._start(clients)
            self._kill_in_the_middle(VICTIM, bar)
            self._start({"survivor": self._plan.survivor})
            self._listen({*clients, "survivor"} - {VICTIM}, bar)

    def _kill_in_the_middle(self, name: str, bar: Bar) -> None:
        """Kill the client (SIGKILL) in the middle of a batch. Its reports until then count."""
        step = self._plan.branch_clients[name][0]
        assert isinstance(step, UploadStep)  # noqa: S101  # the plan says so
        written = 0

        def in_the_middle(event: object) -> bool:
            nonlocal written
            if isinstance(event, Stored):
                written += len(event.items)
            return isinstance(event, Began) and written >= len(step.items) // 2

        self._listen({name}, bar, until=lambda client, event: client == name and in_the_middle(event))
        self._lake.clock.sleep(KILL_AFTER_SECONDS)
        code = self._processes.kill(name)
        self._screen.phase(f"killed the client {name!r} while it was uploading (SIGKILL)")
        if code != -signal.SIGKILL:
            raise RefstoreError(
                f"the client {name!r} ended with {code} before it could be killed:\n{self._processes.last_words(name)}"
            )
        self._listen({name}, bar, killed=True)

    def _merge(self) -> None:
        self._screen.phase(
            f"{ETL} and {ML} are committed and merged into {MAIN}; {ML} is deleted; new files stay staged on {MAIN}"
        )
        for branch in (ETL, ML):
            with suppress(NothingToCommit):
                self._again(lambda of=branch: self.repo.commit(of, f"the rest of {of}", committer="demo"))
                self.ledger.counts["commits"] += 1
            self._again(lambda of=branch: self.repo.merge(MAIN, of, committer="demo"))
            self.ledger.counts["commits"] += 1
            self.ledger.merged(branch, MAIN)
        self._again(lambda: self.repo.create_tag("merged", MAIN))
        self._again(lambda: self.repo.delete_branch(ML))
        self.ledger.branch_deleted(ML)
        self.ledger.counts["branches deleted"] += 1
        with self._screen.bar("uploading", _objects({"last": self._plan.last})) as bar:
            self._start({"last": self._plan.last})
            self._listen({"last"}, bar)

    # ---- processes

    def _start(self, clients: Mapping[str, Steps]) -> None:
        files = [str(source.file) for source in self.sources]
        for name, steps in clients.items():
            self._processes.start_client(name, Job(self.repo.name, files, steps))

    def _listen(
        self, clients: set[str], bar: Bar, *, until: Callable[[str, object], bool] | None = None, killed: bool = False
    ) -> None:
        """Record the clients' reports until each of `clients` has ended, or `until` returns true."""
        waiting = clients - self._heard_out
        while waiting:
            report = self._processes.next_event(SILENCE_SECONDS)
            if report is None:
                raise RefstoreError(
                    f"no client reported anything for {SILENCE_SECONDS} s; waiting for {', '.join(sorted(waiting))}"
                )
            client, event = report
            if event is None:
                self.ledger.ended(client)
                self._heard_out.add(client)
                waiting.discard(client)
                if not killed or client not in clients:
                    self._processes.ended(client)
                continue
            if isinstance(event, Failed):
                raise RefstoreError(f"the client {client!r} failed: {event.error}")
            self.ledger.apply(client, event)
            if isinstance(event, Stored):
                bar.advance(len(event.items))
            if until is not None and until(client, event):
                return

    def _reaper(self) -> list[str]:
        """Start a reaper for the demo's repository only: its short durations would not be safe for others on the same
        stores.
        """
        return ["reaper", "--repository", self.repo.name]

    def _check_reapers(self) -> None:
        for reaper in REAPERS:
            if not self._processes.running(reaper):
                self._processes.ended(reaper)
                raise RefstoreError(f"{reaper} ended by itself; its log: {self._processes.log(reaper)}")

    def _again(self, attempt: Callable[[], T]) -> T:
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(8),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=3),
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, RefstoreError) and error.retryable),
            reraise=True,
        )
        return retrying(attempt)


def _objects(clients: Mapping[str, Steps]) -> int:
    """Return the number to which the progress bar counts."""
    count = 0
    for steps in clients.values():
        for step in steps:
            if isinstance(step, UploadStep):
                count += len(step.items)
            elif isinstance(step, LinkStep):
                count += len(step.linked)
    return count


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
