"""A client process of the soak: the embedded SDK, random operations, and a ledger of what it was told.

Each operation is written down before it is made and again when its answer is known, in one write each: whenever the
process is killed, the ledger says what was acknowledged, and that at most its last operation is in doubt.

On its own branch a client is alone, so the ledger says what must be there. On `shared` and `main` it meets the others.
Some branches are never committed, as those are to which tools write: what a crash leaves there is under a token that
stays.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from refstore.core.safety import Safety
from refstore.errors import Corrupt, RefstoreError
from refstore.lake import open_lake_at
from refstore.operations.upload import Upload
from refstore.repository import Repository
from tests.kit.short_durations import SAFETY

OWN_PATHS = [f"own/{number}" for number in range(12)]
SHARED_PATHS = [f"common/{number}" for number in range(6)]
SHARED = ("shared", "main")
NEVER_COMMITTED = ("c1", "c2")
"""Clients on whose branches nobody ever commits, resets or merges."""


class Client:
    def __init__(self, repo: Repository, name: str, seed: int, ledger: int, *, pause_seconds: float = 0) -> None:
        """`pause_seconds`: what it waits between operations, on average."""
        self.repo = repo
        self.name = name
        self.random = random.Random(seed)
        self.ledger = ledger
        self.count = 0
        self.life = f"{name}-{seed}"
        self.pause_seconds = pause_seconds
        self.own_paths = OWN_PATHS

    def run(self) -> None:
        own, shared = self.own_operations(), self.shared_operations()
        while True:
            self.random.choice(own if self.random.random() < 0.6 else shared)()
            time.sleep(self.random.uniform(0, 2 * self.pause_seconds))

    def own_operations(self) -> list[Callable[[], None]]:
        ends = [] if self.name in NEVER_COMMITTED else [self.commit]
        return [
            self.upload, self.upload, self.upload, self.upload_many, self.delete, self.copy, self.move, self.link,
            *ends,
        ]  # fmt: skip

    def shared_operations(self) -> list[Callable[[], None]]:
        return [
            self.shared_upload, self.shared_upload, self.shared_link, self.shared_copy, self.shared_move,
            self.shared_delete,
            self.shared_commit, self.shared_reset, self.shared_reset_path, self.shared_branch, self.shared_merge,
            self.shared_revert, self.shared_restore, self.shared_prefix,
        ]  # fmt: skip

    def told(self, **fields: Any) -> None:
        os.write(self.ledger, json.dumps({"client": self.name, "n": self.count, **fields}).encode() + b"\n")

    def op(self, kind: str, call: Callable[[], Any], **about: Any) -> None:
        self.count += 1
        self.told(op=kind, state="try", **about)
        try:
            answer = call()
        except Corrupt as error:
            self.told(op=kind, state="corrupt", error=str(error), **about)
            raise
        except RefstoreError as error:
            self.told(
                op=kind, state="error", code=error.code, retryable=error.retryable, error=str(error)[:200], **about
            )
        else:
            self.told(op=kind, state="ok", answer=answer if isinstance(answer, str) else None, **about)

    def body(self) -> str:
        return f"{self.life}-{self.count}-" + "x" * self.random.randrange(200)

    # ---- alone

    def upload(self) -> None:
        path, body = self.random.choice(self.own_paths), self.body()
        self.op("upload", lambda: self.repo.upload(self.name, path, body.encode()), to={path: body})

    def upload_many(self) -> None:
        bodies = {path: f"{path}-{self.body()}" for path in self.random.sample(self.own_paths, 4)}
        uploads = [Upload(path=path, body=body.encode()) for path, body in bodies.items()]
        self.op("upload many", lambda: self.repo.upload_many(self.name, uploads), to=bodies)

    def link(self) -> None:
        path, body = self.random.choice(self.own_paths), self.body()
        self.op("link", lambda: self.issue_and_link(self.name, path, body), to={path: body})

    def issue_and_link(self, branch: str, path: str, body: str) -> None:
        issued = self.repo.issue(branch, path)
        if self.random.random() < 0.2:
            return  # given out and never used, or only written to
        self.repo.context.objects.put(issued.address, body.encode())
        if self.random.random() < 0.2:
            return
        self.repo.link(branch, path, issued.token)

    def delete(self) -> None:
        path = self.random.choice(self.own_paths)
        self.op("delete", lambda: self.repo.delete(self.name, path), gone=[path])

    def copy(self) -> None:
        source, path = self.random.sample(self.own_paths, 2)
        self.op(
            "copy", lambda: self.repo.copy(self.name, source, to_branch=self.name, to_path=path), copied=[source, path]
        )

    def move(self) -> None:
        source, path = self.random.sample(self.own_paths, 2)
        self.op("move", lambda: self.repo.move(self.name, source, to_path=path), moved=[source, path])

    def commit(self) -> None:
        self.op("commit", lambda: self.repo.commit(self.name, f"{self.life} {self.count}").id, on=self.name)

    # ---- among others

    def place(self) -> tuple[str, str]:
        return self.random.choice(SHARED), self.random.choice(SHARED_PATHS)

    def shared_upload(self) -> None:
        branch, path = self.place()
        body = self.body()
        self.op("shared upload", lambda: self.repo.upload(branch, path, body.encode()))

    def shared_link(self) -> None:
        branch, path = self.place()
        body = self.body()
        self.op("shared link", lambda: self.issue_and_link(branch, path, body))

    def shared_copy(self) -> None:
        (source, path), (branch, destination) = self.place(), self.place()
        source = self.random.choice([source, self.name, f"{source}@", f"{source}~1"])
        path = self.random.choice(self.own_paths) if source == self.name else path
        self.op("shared copy", lambda: self.repo.copy(source, path, to_branch=branch, to_path=destination))

    def shared_move(self) -> None:
        (branch, path), destination = self.place(), self.random.choice(SHARED_PATHS)
        self.op("shared move", lambda: self.repo.move(branch, path, to_path=destination))

    def shared_delete(self) -> None:
        branch, path = self.place()
        self.op("shared delete", lambda: self.repo.delete(branch, path))

    def shared_prefix(self) -> None:
        branch = self.random.choice(SHARED)
        self.op("shared delete prefix", lambda: self.repo.delete_prefix(branch, "common/1"))

    def shared_commit(self) -> None:
        branch = self.random.choice(SHARED)
        self.op("shared commit", lambda: self.repo.commit(branch, "shared").id)

    def shared_reset(self) -> None:
        branch = self.random.choice(SHARED)
        self.op("shared reset", lambda: self.repo.reset(branch))

    def shared_reset_path(self) -> None:
        branch, path = self.place()
        self.op("shared reset path", lambda: self.repo.reset(branch, path=path))

    def shared_branch(self) -> None:
        if self.random.random() < 0.3:
            self.op("shared delete branch", lambda: self.repo.delete_branch("shared"))
        else:
            self.op(
                "shared create branch",
                lambda: self.repo.create_branch("shared", source=self.random.choice(["main", "main~1", self.name])),
            )

    def shared_merge(self) -> None:
        source, branch = self.random.choice([("shared", "main"), ("main", "shared"), (self.name, "shared")])
        strategy = self.random.choice(["", "source-wins", "dest-wins"])
        self.op("shared merge", lambda: self.repo.merge(source, into=branch, strategy=strategy))

    def shared_revert(self) -> None:
        branch = self.random.choice(SHARED)
        pick = self.random.random() < 0.5
        self.op(
            "shared revert",
            lambda: (
                self.repo.revert(f"{branch}@", on=branch)
                if pick
                else self.repo.cherry_pick(f"{self.name}@", onto=branch)
            ),
        )

    def shared_restore(self) -> None:
        def restore() -> None:
            waiting = list(self.repo.list_trash(prefix="common/"))
            if waiting:
                item = self.random.choice(waiting)
                self.repo.restore(item.address, to=self.random.choice(SHARED), force=self.random.random() < 0.5)

        self.op("shared restore", restore)


def run_client(
    arguments: Sequence[str], make: Callable[[Repository, str, int, int], Client] = Client, safety: Safety = SAFETY
) -> None:
    """Make a client as the command line says, and let it work until it is killed."""
    kv, objects, repo_name, name, seed, ledger = arguments
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with open_lake_at(kv, objects, safety=safety) as lake:
        while True:
            try:
                repo = lake.repository(repo_name)
                break
            except RefstoreError as error:
                if not error.retryable:
                    raise
        make(repo, name, int(seed), file).run()


if __name__ == "__main__":
    run_client(sys.argv[1:])
