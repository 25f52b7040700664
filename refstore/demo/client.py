"""One client process: `python -m refstore.demo.client JOB`, a file with a Job.

It uses the embedded SDK as any application would. It reports each step on standard output, in one line, as soon as the
stores have confirmed it. So no report is lost when it is killed.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import tenacity

from refstore.configured_lake import open_lake
from refstore.core import logs
from refstore.core.batches import batched
from refstore.core.settings import Settings, load
from refstore.demo import steps
from refstore.demo.steps import Item, Written
from refstore.errors import AlreadyLinked, NothingToCommit, RefstoreError
from refstore.objects import open_objects
from refstore.operations.copying import Copy, Move
from refstore.operations.uploading import IssuedAddress, Link, Upload
from refstore.repository import Repository

ATTEMPTS: Final = 8
"""How often one batch is tried while its error is retryable."""

T = TypeVar("T")


class Client:
    def __init__(self, repo: Repository, files: Sequence[str]) -> None:
        self._repo = repo
        self._files = [Path(file) for file in files]

    def perform(self, step: steps.AnyStep) -> None:
        match step:
            case steps.UploadStep():
                for _ in range(step.rounds):
                    for batch in batched(step.items, step.batch):
                        self._again(lambda items=batch: self._upload(step.branch, items))
            case steps.LinkStep():
                self._link(step)
            case steps.CopyStep(branch=branch, ref=ref, ways=ways):
                for batch in batched(ways, steps.BATCH):
                    self._again(lambda items=batch: self._copy(ref, branch, items, how="copy"))
            case steps.MoveStep():
                for batch in batched(step.ways, steps.BATCH):
                    self._move(step, batch)
            case steps.DeleteStep(branch=branch, paths=paths):
                for batch in batched(paths, steps.BATCH):
                    self._delete(branch, batch)
            case steps.CommitStep(branch=branch, message=message):
                self._commit(branch, message)
            case steps.CommitOftenStep(branch=branch, every_seconds=seconds):
                while not _told_to_stop(seconds):
                    self._commit(branch, "whatever is there by now")
                self._commit(branch, "all of it")
            case steps.ResetStep(branch=branch):
                self._again(lambda: self._repo.reset(branch))
                tell(steps.WasReset(branch))
            case steps.DeleteBranchStep(branch=branch):
                self._again(lambda: self._repo.delete_branch(branch))
                tell(steps.BranchDeleted(branch))

    def _upload(self, branch: str, items: Sequence[Item]) -> None:
        tell(steps.Began(branch, list(items)))
        uploads = [Upload(path=item.path, body=_read(self._files[item.source])) for item in items]
        entries = self._repo.upload_many(branch, uploads)
        done = [Written(*item, entry.address, entry.size_bytes) for item, entry in zip(items, entries, strict=True)]
        tell(steps.Stored(branch, done, "upload"))

    def _link(self, step: steps.LinkStep) -> None:
        """Link an object as an external writer does: it writes the data directly to the store, and refstore gets only
        the address.
        """
        store = open_objects(self._repo.context.objects.url)

        def write(items: Sequence[Item]) -> list[tuple[IssuedAddress, Written]]:
            tell(steps.Began(step.branch, list(items)))
            issued = self._repo.issue_many(step.branch, [item.path for item in items])
            sizes = [
                store.put(given.address, _read(self._files[item.source])).size_bytes
                for item, given in zip(items, issued, strict=True)
            ]
            return [
                (given, Written(*item, given.address, size))
                for item, given, size in zip(items, issued, sizes, strict=True)
            ]

        def link(items: Sequence[Item]) -> list[IssuedAddress]:
            done = write(items)
            links = [Link(path=given.path, token=given.token, size_bytes=written.size_bytes) for given, written in done]
            self._repo.link_many(step.branch, links)
            tell(steps.Stored(step.branch, [written for _, written in done], "link"))
            return [given for given, _ in done]

        try:
            for batch in batched(step.linked, steps.BATCH):
                used = self._again(lambda items=batch: link(items))
                self._replay(step.branch, used[0])
            for batch in batched(step.abandoned, steps.BATCH):
                tell(steps.Abandoned([written for _, written in self._again(lambda items=batch: write(items))]))
            for batch in batched(step.unused, steps.BATCH):
                given = self._again(
                    lambda items=batch: self._repo.issue_many(step.branch, [item.path for item in items])
                )
                tell(steps.Unused([str(item.address) for item in given]))
        finally:
            store.close()

    def _replay(self, branch: str, used: IssuedAddress) -> None:
        """A second link of one address must be refused."""
        try:
            self._again(lambda: self._repo.link(branch, used.path, used.token))
        except AlreadyLinked:
            tell(steps.Refused("a second link of one address"))
            return
        raise RuntimeError(f"{used.address} could be linked a second time")

    def _copy(self, ref: str, branch: str, ways: Sequence[steps.Way], how: str) -> None:
        copies = [Copy(way.source, way.destination) for way in ways]
        entries = self._repo.copy_many(ref, branch, copies)
        named = [(way.destination, str(entry.address)) for way, entry in zip(ways, entries, strict=True)]
        tell(steps.Named(branch, named, "move" if how == "move" else "copy"))

    def _move(self, step: steps.MoveStep, ways: Sequence[steps.Way]) -> None:
        source = step.from_branch or step.branch
        if source != step.branch:
            self._again(lambda: self._copy(source, step.branch, ways, how="move"))
            self._delete(source, [way.source for way in ways])
            return
        entries = self._again(lambda: self._repo.move_many(source, [Move(way.source, way.destination) for way in ways]))
        tell(
            steps.Named(
                source,
                [(way.destination, str(entry.address)) for way, entry in zip(ways, entries, strict=True)],
                "move",
            )
        )
        tell(steps.Removed(source, [way.source for way in ways]))

    def _delete(self, branch: str, paths: Sequence[str]) -> None:
        self._again(lambda: self._repo.delete_many(branch, paths))
        tell(steps.Removed(branch, list(paths)))

    def _commit(self, branch: str, message: str) -> None:
        with suppress(NothingToCommit):
            made = self._again(lambda: self._repo.commit(branch, message, committer="demo"))
            tell(steps.Committed(branch, made.id))

    def _again(self, attempt: Callable[[], T]) -> T:
        """Make the same call again while its error is retryable, as an application does."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=3),
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, RefstoreError) and error.retryable),
            before_sleep=_tell_retry,
            reraise=True,
        )
        return retrying(attempt)


def tell(event: steps.Event) -> None:
    sys.stdout.buffer.write(steps.encode(event) + b"\n")
    sys.stdout.buffer.flush()


def run(job: steps.Job, settings: Settings) -> int:
    """Perform the job. Return 0, or 1 after reporting an error."""
    try:
        with open_lake(settings) as lake:
            client = Client(lake.repository(job.repository), job.files)
            for step in job.steps:
                client.perform(step)
    except Exception as error:
        tell(steps.Failed(f"{type(error).__name__}: {error}"))
        raise
    return 0


def _read(file: Path) -> Iterator[bytes]:
    """Opened when its turn has come: a batch holds many."""
    yield file.read_bytes()


def _tell_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    tell(steps.Retried(f"{type(error).__name__}: {error}"))


def _told_to_stop(seconds: float) -> bool:
    """Wait for that time, and return whether standard input has ended."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and not sys.stdin.readline()


def main() -> int:
    import os

    loaded = load({}, os.environ, default_data=Path.cwd())
    logs.configure(loaded.settings.log, sys.stderr)
    return run(steps.decode_job(Path(sys.argv[1]).read_bytes()), loaded.settings)


if __name__ == "__main__":
    sys.exit(main())
