"""What each client process does: `python -m examples.demo.clients CLIENT REPOSITORY FOLDER`.

The folder has the list of source files, and takes the client's reports. A client uses the SDK as any application would.
Each object has the SHA-256 of its source file in its metadata.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import msgspec

import refstore
from examples.batches import split_batches
from examples.demo.client_reports import Kind, Report
from examples.demo.source_files import SourceFile
from refstore import Copy, IssuedAddress, Lake, Link, Move, RefstoreError, Upload
from refstore.errors import AlreadyLinked, NothingToCommit

BATCH: Final = 50
VICTIM_BATCH: Final = 20
"""Small, so that it has many batches in whose middle it can be killed."""
ATTEMPTS: Final = 8
"""How often a call is made while its error is retryable."""
SHA256: Final = "sha256"
"""The key of the metadata."""

Files = Sequence[SourceFile]
P = ParamSpec("P")
T = TypeVar("T")


# ---- what each client does


def upload_to_main(client: Client, part: int) -> None:
    """Upload a third of the files, and commit now and then what is staged on main by then, also by other clients."""
    files = client.files[part::3]
    for some in split_batches(files, max(BATCH, len(files) // 3)):
        client.upload("main", "lib/", some)
        client.commit("main", "what is there by now")


def work_on_etl(client: Client) -> None:
    """Overwrite, move and delete what is committed; overwrite what was just staged; commit twice."""
    files = client.files
    client.upload("etl", "lib/", files[0::8], contents=files[1::8])
    client.move("etl", "lib/", "etl", "archive/", files[2::16])
    client.delete("etl", "lib/", files[4::32])
    client.commit("etl", "changed, moved and deleted")
    client.upload("etl", "lib/", files[3::8], contents=files[5::8])
    client.upload("etl", "lib/", files[3::8], contents=files[7::8])
    client.commit("etl", "changed again")


def work_on_ml(client: Client) -> None:
    """Link what another program wrote to issued addresses; never link some of it."""
    client.link("ml", "linked/", client.files[0::12])
    client.abandon("ml", "linked/", client.files[1::48])
    client.commit("ml", "linked")


def work_on_scratch(client: Client) -> None:
    """Upload; hand some of it to etl while it is only staged; reset the branch; upload again, and leave that staged."""
    files = client.files
    client.upload("scratch", "scratch/", files[0::7])
    client.copy("scratch", "scratch/", "etl", "shared/", files[0::21])
    client.copy("main", "lib/", "scratch", "borrowed/", files[6::32])
    client.reset("scratch")
    client.upload("scratch", "kept/", files[1::20])


def work_on_doomed(client: Client) -> None:
    """Upload; move some of it to ml while it is only staged; delete the branch with the rest."""
    client.upload("doomed", "doomed/", client.files[0::10])
    client.move("doomed", "doomed/", "ml", "rescued/", client.files[0::30])
    client.delete_branch("doomed")


def be_killed(client: Client) -> None:
    """Upload the same files again and again, until the demo kills this process."""
    while True:
        client.upload("crash", "victim/", client.files[0::10], batch=VICTIM_BATCH)


def survive(client: Client) -> None:
    """Go on where the killed client was, and commit what there is."""
    client.upload("crash", "survivor/", client.files[1::25])
    client.commit("crash", "what there is after a crash")


def stage_on_main(client: Client) -> None:
    """Upload, and commit nothing."""
    client.upload("main", "inbox/", client.files[0::50])


CLIENTS: Final[Mapping[str, Callable[[Client], None]]] = {
    **{f"uploader-{part + 1}": partial(upload_to_main, part=part) for part in range(3)},
    "etl": work_on_etl,
    "ml": work_on_ml,
    "scratch": work_on_scratch,
    "doomed": work_on_doomed,
    "victim": be_killed,
    "survivor": survive,
    "last": stage_on_main,
}


# ---- how it does that


class Client:
    """Calls the SDK in batches, and reports what was confirmed. A file's path on a branch is a folder and its own."""

    def __init__(self, lake: Lake, repository: str, files: Files, reports: Path) -> None:
        self.files = files
        self.repo = lake.repository(repository)
        self._lake = lake
        self._reports = reports.open("ab", buffering=0)

    def upload(self, branch: str, to: str, files: Files, *, contents: Files = (), batch: int = BATCH) -> None:
        """Upload files to a folder. `contents`: other files, whose content is uploaded to the paths of `files`."""
        for pairs in split_batches(zip(files, contents or files, strict=False), batch):
            sources = {to + file.path: content.path for file, content in pairs}
            uploads = [
                Upload(to + file.path, Path(content.file), metadata={SHA256: content.sha256}) for file, content in pairs
            ]
            self.report("began", branch, sources)
            entries = self._call(self.repo.upload_many, branch, uploads)
            self.report("uploaded", branch, sources, [entry.address for entry in entries])

    def link(self, branch: str, to: str, files: Files) -> None:
        """Link what another program has written. A second link of the same addresses has to be refused."""
        for some in split_batches(files, BATCH):
            issued = self._write_to_issued(branch, to, some)
            links = [
                Link(given.path, given.token, size_bytes=file.size_bytes, metadata={SHA256: file.sha256})
                for given, file in zip(issued, some, strict=True)
            ]
            self._call(self.repo.link_many, branch, links)
            self.report("linked", branch, sources_of(to, some), [given.address for given in issued])
            with suppress(AlreadyLinked):
                self._call(self.repo.link_many, branch, links)
                raise RuntimeError("addresses could be linked a second time")

    def abandon(self, branch: str, to: str, files: Files) -> None:
        """Write to issued addresses that are never linked, and leave as many unwritten."""
        self._call(self.repo.issue_many, branch, [*sources_of(to, files)])
        issued = self._write_to_issued(branch, to, files)
        self.report("abandoned", branch, sources_of(to, files), [given.address for given in issued])

    def copy(self, ref: str, folder: str, branch: str, to: str, files: Files) -> None:
        copies = [Copy(folder + file.path, to + file.path) for file in files]
        self._call(self.repo.copy_many, ref, copies, to_branch=branch)
        self.report("copied", branch, sources_of(to, files))

    def move(self, branch: str, folder: str, to_branch: str, to: str, files: Files) -> None:
        for some in split_batches(files, BATCH):
            moves = [Move(folder + file.path, to + file.path) for file in some]
            self._call(self.repo.move_many, branch, moves, to_branch=to_branch)
            self.report("moved", to_branch, sources_of(to, some))
            self.report("deleted", branch, sources_of(folder, some))

    def delete(self, branch: str, folder: str, files: Files) -> None:
        self._call(self.repo.delete_many, branch, [*sources_of(folder, files)])
        self.report("deleted", branch, sources_of(folder, files))

    def commit(self, branch: str, message: str) -> None:
        with suppress(NothingToCommit):
            self._call(self.repo.commit, branch, message, committer="demo")

    def reset(self, branch: str) -> None:
        self._call(self.repo.reset, branch)
        self.report("reset", branch)

    def delete_branch(self, branch: str) -> None:
        self._call(self.repo.delete_branch, branch)

    def _write_to_issued(self, branch: str, to: str, files: Files) -> Sequence[IssuedAddress]:
        """Issue addresses, and write to them as another program does, which knows nothing of refstore."""
        issued = self._call(self.repo.issue_many, branch, [*sources_of(to, files)])
        with closing(self._lake.open_url(self.repo.record.namespace)) as store:
            for given, file in zip(issued, files, strict=True):
                store.put(given.address, Path(file.file).read_bytes())
        return issued

    def _call(self, method: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> T:
        """Call a method of the SDK, and call it again while its error is retryable, as an application does."""
        for attempt in range(1, ATTEMPTS):
            try:
                return method(*arguments, **more)
            except RefstoreError as error:
                if not error.retryable:
                    raise
                print(f"attempt {attempt}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                self.report("repeated")
                time.sleep(random.uniform(0, min(3, 0.1 * 2**attempt)))  # noqa: S311  # no secret
        return method(*arguments, **more)

    def report(
        self, kind: Kind, branch: str = "", sources: Mapping[str, str] | None = None, addresses: Sequence[str] = ()
    ) -> None:
        report = Report(kind, branch, dict(sources or {}), tuple(addresses))
        self._reports.write(msgspec.json.encode(report) + b"\n")


def sources_of(folder: str, files: Files) -> dict[str, str]:
    return {folder + file.path: file.path for file in files}


def main() -> None:
    name, repository, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    files = msgspec.json.decode((folder / "files.json").read_bytes(), type=list[SourceFile])
    with refstore.open() as lake:
        CLIENTS[name](Client(lake, repository, files, folder / f"{name}.reports"))


if __name__ == "__main__":
    main()
