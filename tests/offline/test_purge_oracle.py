"""Random histories with purges, restores, holds, expiry and nightly runs, compared with a model that knows only rows.

The model has the rows of each object, by the address that commits name, and what each run replaced. After every step
each path of each version that can be read has the rows of the model; at the end the store has nothing else.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from refstore.errors import Gone, NotFound, RefstoreError
from refstore_gc import purge_cleaning
from refstore_gc import run as nightly
from refstore_gc.run import Options as GcOptions
from refstore_purge import restoring, run, verify
from refstore_purge.restoring import Scope
from refstore_purge.run import Options
from tests.offline.world import World
from tests.reaping import reap_all

if TYPE_CHECKING:
    from pathlib import Path

    from refstore_gc.engines.choice import Engines

STEPS = 22
GUESTS = [f"guest-{number}" for number in range(8)]
ERASED = b"erased"
DOCUMENT = {
    "whitelist": ["*"],
    "datasets": [
        {"name": "events", "prefix": "events/", "format": "csv", "identifier": "guest", "mode": "rewrite"},
        {"name": "faces", "prefix": "faces/", "identifier": "guest", "mode": "erase"},
    ],
    "backup": {"days": 6, "versions": 2},
    "trash": {"days": 4},
}


@dataclass(slots=True)
class Content:
    body: bytes
    run: str = ""


@dataclass(slots=True)
class Known:
    """What the model knows of one object."""

    current: Content
    backups: list[tuple[str, Content]] = field(default_factory=list[tuple[str, Content]])
    """(run that replaced it, content), without trash."""


class Model:
    def __init__(self, world: World, engines: Engines, rng: random.Random) -> None:
        self.world, self.engines, self.rng = world, engines, rng
        self.known: dict[str, Known] = {}
        self.runs: list[str] = []
        self.held = ""
        self.done: list[str] = []

    def step(self) -> None:
        names = [
            "change",
            "change",
            "copy",
            "branch",
            "tag",
            "purge",
            "purge",
            "restore",
            "hold",
            "days",
            "night",
            "reap",
        ]
        name = self.rng.choice(names)
        self.done.append(name)
        getattr(self, name)()

    # ---- steps

    def change(self) -> None:
        branch = self._branch()
        for _ in range(self.rng.randrange(1, 4)):
            guests = [self.rng.choice(GUESTS) for _ in range(self.rng.randrange(0, 5))]
            if self.rng.random() < 0.3:
                path, body = f"faces/guest={self.rng.choice(GUESTS)}/{self.rng.randrange(2)}", _picture(self.rng)
            else:
                path, body = f"events/day={self.rng.randrange(2)}/{self.rng.randrange(2)}", _csv(guests)
            self.world.repo.upload(branch, path, body)
            self.known[self.world.repo.resolve(branch, path).entry.address] = Known(Content(body))
        if self.rng.random() < 0.8:
            self.world.repo.commit(branch, "change", allow_empty=True)

    def copy(self) -> None:
        source, branch = self._branch(), self._branch()
        paths = [path for path, _ in self.world.repo.list(source, prefix="events/")]
        if paths:
            self.world.repo.copy(source, self.rng.choice(paths), branch, f"events/day=9/{self.rng.randrange(2)}")
            self.world.repo.commit(branch, "copied", allow_empty=True)

    def branch(self) -> None:
        self.world.repo.create_branch(f"dev-{len(self.done)}", self._branch())

    def tag(self) -> None:
        self.world.repo.create_tag(f"v-{len(self.done)}", self._branch())

    def purge(self) -> None:
        guests = set(self.rng.sample(GUESTS, 2))
        names = list(self._names())
        file = self._ids(guests)
        made = run.run(self.world.repo, self.engines, Options(ids=file, share=1), lambda _: None)
        assert made.is_whole or self.held, made
        self.runs.append(made.run)
        held = {identity for path, identity in names if self.held and path.startswith(self.held)}
        for path, identity in names:
            known = self.known[identity]
            if identity in held or known.current.body == ERASED:
                continue
            body = _without(path, known.current.body, guests)
            if body != known.current.body:
                known.backups.append((made.run, known.current))
                known.current = Content(body, made.run)
        left = {each.path for each in verify.verify(self.world.repo, file)}
        assert left <= {path for path, identity in names if identity in held}

    def restore(self) -> None:
        if not self.runs:
            return
        which = self.rng.choice(self.runs)
        kept = {(each.identity, each.run) for each in purge_cleaning.backups(self.world.ctx) if not each.is_trash}
        try:
            restoring.restore(self.world.repo, Scope(run=which))
        except NotFound:
            return
        for identity, known in self.known.items():
            for backup in known.backups:
                if backup[0] == which and known.current.run == which and (identity, which) in kept:
                    known.backups.remove(backup)
                    known.current = backup[1]
                    break

    def hold(self) -> None:
        self.held = self.rng.choice(["", "events/day=0/"])
        rules = {"default_retention_days": 5, "grace_days": 1}
        holds = {"legal_holds": [{"prefix": self.held, "reason": "a case"}]} if self.held else {}
        self.world.repo.set_retention(json.dumps(rules | holds))

    def days(self) -> None:
        self.world.clock.sleep(self.rng.choice([1, 3]) * 86_400)

    def night(self) -> None:
        self.world.age(days=2)
        nightly.run(self.world.ctx, self.engines, GcOptions(full=self.rng.random() < 0.3))

    def reap(self) -> None:
        reap_all(self.world.repo)

    # ---- comparing

    def compare(self) -> None:
        for ref in self._refs():
            try:
                listed = list(self.world.repo.list(ref))
                for path, entry in listed:
                    assert entry is not None
                    known = self.known[self.world.repo.resolve(ref, path).entry.address]
                    if known.current.body == ERASED:
                        assert (entry.address, entry.size_bytes) == ("", 0)
                        with pytest.raises(Gone, match="erased"):
                            self.world.repo.read(ref, path)
                        continue
                    assert self.world.repo.read(ref, path) == known.current.body, (self.done, ref, path)
                    assert entry.size_bytes == len(known.current.body)
            except Gone:
                assert ref not in self._living(), (self.done, ref)

    def compare_store(self) -> None:
        """Behind complete runs the store has the contents and backups of what is named, and nothing else."""
        named = {identity for _, identity in self._names()}
        records = self.world.ctx.locations.get_many(sorted(named))
        wanted = set[str]()
        for identity, record in zip(sorted(named), records, strict=True):
            wanted |= {identity} if record is None else {address for address in record.addresses() if address}
        assert self.world.data() == wanted, self.done

    def _names(self) -> Iterator[tuple[str, str]]:
        """Yield every path of every version that can be read, with the object's identity."""
        for ref in self._refs():
            try:
                listed = list(self.world.repo.list(ref))
            except Gone:
                continue
            for path, _ in listed:
                try:
                    identity = self.world.repo.resolve(ref, path).entry.address
                    if self.known[identity].current.body != ERASED:
                        self.world.repo.read(ref, path)
                except Gone:
                    continue
                yield path, identity

    def _refs(self) -> list[str]:
        from refstore.operations.committed_names import landed_commits

        return [*self._living(), *(commit for commit, _ in landed_commits(self.world.ctx))]

    def _living(self) -> list[str]:
        return [name for name, _ in self.world.repo.branches()] + [name for name, _ in self.world.repo.tags()]

    def _branch(self) -> str:
        return self.rng.choice([name for name, _ in self.world.repo.branches()])

    def _ids(self, guests: set[str]) -> Path:
        file = self.world.folder / "ids.csv"
        file.write_text("guest\n" + "".join(f"{guest}\n" for guest in sorted(guests)))
        return file


def _csv(guests: list[str]) -> bytes:
    return b"guest,at\n" + b"".join(f"{guest},{number}\n".encode() for number, guest in enumerate(guests))


def _picture(rng: random.Random) -> bytes:
    return bytes(rng.randrange(256) for _ in range(20))


def _without(path: str, body: bytes, guests: set[str]) -> bytes:
    if path.startswith("faces/"):
        return ERASED if path.split("/")[1].removeprefix("guest=") in guests else body
    head, *rows = body.splitlines(keepends=True)
    return head + b"".join(row for row in rows if row.split(b",")[0].decode() not in guests)


@pytest.mark.parametrize("seed", range(2))
def test_every_version_has_the_rows_of_the_model(tmp_path: Path, both_engines: Engines, seed: int) -> None:
    play(tmp_path, both_engines, seed, STEPS)


def play(folder: Path, engines: Engines, seed: int, steps: int) -> None:
    world = World(folder, rules='{"default_retention_days": 5, "grace_days": 1}')
    world.repo.onboard_purge(json.dumps(DOCUMENT), by="tests")
    model = Model(world, engines, random.Random(seed))
    model.change()
    try:
        for _ in range(steps):
            model.step()
            model.compare()
        for _ in range(3):
            world.clock.sleep(2 * 86_400)
            world.age(days=4)
            model.reap()
            nightly.run(world.ctx, engines, GcOptions(full=True))
        model.compare()
        model.compare_store()
    except RefstoreError:
        print(model.done)
        raise
