"""Random histories with purges, restores, holds, expiry, killed runs and nightly runs, compared with a model that knows
only rows, and with a plain reader of all files.

The model has the rows of each object, by the address that commits name, and what each run replaced. After every step
each path of each version that can be read has the rows of the model; at the end the store has nothing else.

The plain reader knows nothing of refstore: it reads every file of the store below `data/`, as lines of CSV, and a file
that is none is a picture, of the guest under whose name it was uploaded. After every step and for each run that ended,
the places of its report are looked up again, and compared with the *files that were there when the run began, are there
now, and have rows of its ids*:

    a place with rows lists only such files, and each of them once
    each of them is listed: with rows, or as not looked into, which only earlier commits of the mode `keep-history` are,
    partitions that `--max-partitions` left, and what a later run wrote
    what `restore`, `purge restore`, the heads and earlier versions can show of them is listed as such a place
    a cleaning and the reaper delete what has a date by then, and nothing before

Files that were not there when the run began have no part in this: what a later run wrote from a file that a restore had
brought back is listed, as not looked into.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from refstore.core.ids import Address
from refstore.errors import Gone, NotFound, RefstoreError
from refstore.gc_marks.commit_marks import CommitMarks
from refstore_gc.gc_run import GcOptions
from refstore_purge import purge_cleanup, purge_run, remaining_places, restore_backups, verify
from refstore_purge.purge_report import PurgeReport
from refstore_purge.restore_backups import RestoreScope
from tests.offline.killed import Killed, killed_at
from tests.offline.purge_runs import DATASETS, options_of, purge_with, run_nightly
from tests.offline.world import World
from tests.reaping import delete_due, release_all

if TYPE_CHECKING:
    from pathlib import Path

    from refstore_gc.engines.choice import Engines

STEPS = 30
GUESTS = [f"guest-{number}" for number in range(8)]
ERASED = b"erased"
STEP_NAMES = [
    *("change", "change", "change", "copy", "branch", "tag", "delete", "reset", "undelete", "undelete"),
    *("purge", "purge", "purge_units", "kill", "restore", "restore", "hold", "days", "night", "clean", "reap"),
]
DOCUMENT = {
    "whitelist": ["*"],
    "datasets": DATASETS,
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

    path: str
    current: Content
    backups: list[tuple[str, Content]] = field(default_factory=list[tuple[str, Content]])
    """(run that replaced it, content), without trash."""


@dataclass(slots=True)
class Ran:
    """A run that ended."""

    report: PurgeReport
    guests: set[str]
    before: set[str]
    """The files that were there when it began."""


class Model:
    def __init__(self, world: World, engines: Engines, rng: random.Random) -> None:
        self.world, self.engines, self.rng = world, engines, rng
        self.known: dict[str, Known] = {}
        self.pictured: dict[str, str] = {}
        """By the address of a picture, whose it is."""
        self.runs: list[Ran] = []
        self.held = ""
        self.done: list[str] = []

    def step(self) -> None:
        name = self.rng.choice(STEP_NAMES)
        self.done.append(name)
        getattr(self, name)()

    # ---- steps

    def change(self) -> None:
        branch = self._branch()
        for _ in range(self.rng.randrange(1, 4)):
            guests = [self.rng.choice(GUESTS) for _ in range(self.rng.randrange(0, 5))]
            kind, number = self.rng.random(), self.rng.randrange(2)
            if kind < 0.3:
                guest = self.rng.choice(GUESTS)
                self._upload(branch, f"faces/guest={guest}/{number}", _picture(self.rng), guest)
            elif kind < 0.5:
                self._upload(branch, f"visits/{number}", _csv(guests))
            else:
                self._upload(branch, f"events/day={self.rng.randrange(2)}/{number}", _csv(guests))
        if self.rng.random() < 0.6:
            self.world.repo.commit(branch, "change", allow_empty=True)

    def _upload(self, branch: str, path: str, body: bytes, guest: str = "") -> None:
        self.world.repo.upload(branch, path, body)
        address = self.world.repo.resolve(branch, path).entry.address
        self.known[address] = Known(path, Content(body))
        if guest:
            self.pictured[address] = guest

    def delete(self) -> None:
        branch = self._branch()
        paths = [path for path, _ in self.world.repo.list(branch)]
        if paths:
            self.world.repo.delete(branch, self.rng.choice(paths))

    def reset(self) -> None:
        self.world.repo.reset(self._branch())

    def undelete(self) -> None:
        """Bring back from the trash."""
        lost = list(self.world.repo.list_trash())
        if lost:
            item = self.rng.choice(lost)
            branch = item.branch if item.branch in self.branches() else "main"
            self.world.repo.restore(item.address, to=branch, force=True)
            self._learn_visits()

    def copy(self) -> None:
        source, branch = self._branch(), self._branch()
        paths = [path for path, _ in self.world.repo.list(source, prefix="events/")]
        if paths:
            self.world.repo.copy(
                source, self.rng.choice(paths), to_branch=branch, to_path=f"events/day=9/{self.rng.randrange(2)}"
            )
            self.world.repo.commit(branch, "copied", allow_empty=True)

    def branch(self) -> None:
        self.world.repo.create_branch(f"dev-{len(self.done)}", source=self._branch())

    def tag(self) -> None:
        self.world.repo.create_tag(f"v-{len(self.done)}", ref=self._branch())

    def purge(self, max_partitions: int | None = None) -> None:
        guests = set(self.rng.sample(GUESTS, 2))
        before, names = self.world.data(), list(self._names())
        held = {identity for path, identity in names if self.held and path.startswith(self.held)}
        file = self._ids(guests)
        made = purge_with(self.world, self.engines, file, share=1, max_partitions=max_partitions)
        assert (
            self.held
            or max_partitions
            or all(each.path.startswith("visits/") or not each.path for each in made.skipped_objects)
        )
        self.runs.append(Ran(made, guests, before))
        self._learn(guests)
        if max_partitions is None:
            for path, identity in names:
                known = self.known[identity]
                if identity not in held and not path.startswith("visits/"):
                    assert known.current.body == _without(path, known.current.body, guests), (self.done, path)
            left = {each.path for each in verify(self.world.repo, file).findings}
            assert {each for each in left if not each.startswith("visits/")} <= {
                path for path, identity in names if identity in held
            }

    def purge_units(self) -> None:
        self.purge(max_partitions=self.rng.randrange(1, 3))

    def kill(self) -> None:
        """Kill a run at one of its writes."""
        guests = set(self.rng.sample(GUESTS, 2))
        options = options_of(self._ids(guests), share=1)
        try:
            with killed_at(self.world, self.rng.randrange(1, 30)):
                purge_run.run_purge(self.world.repo, self.engines, options, lambda _: None)
        except Killed:
            pass
        self._learn(guests)

    def _learn(self, guests: set[str]) -> None:
        """Learn which objects a run has replaced: each is without the guests' rows then."""
        identities = [Address(identity) for identity in sorted(self.known)]
        for identity, record in zip(identities, self.world.ctx.locations.get_many(identities), strict=True):
            known = self.known[identity]
            if record is not None and record.current is not None and record.current.run != known.current.run:
                body = _without(known.path, known.current.body, guests)
                assert body != known.current.body, (self.done, identity)
                known.backups.append((record.current.run, known.current))
                known.current = Content(body, record.current.run)
        self._learn_visits()

    def _learn_visits(self) -> None:
        """Learn the new objects of the mode `keep-history`: each is one that was there, without some of its rows. A run
        that was killed may have left one that shows up much later, by a restore from the trash of its hidden branch.
        """
        hidden = [each.name for each in self.world.repo.branches() if each.is_hidden]
        for ref in [*self._refs(), *hidden]:
            for path, _ in self.world.repo.list(ref, prefix="visits/"):
                address = self.world.repo.resolve(ref, path).entry.address
                if address not in self.known:
                    rows = set(self.world.repo.read(ref, path).splitlines())
                    sources = [known.current.body for known in self.known.values() if known.path == path]
                    assert any(rows <= set(body.splitlines()) for body in sources), (self.done, ref, path)
                    self.known[address] = Known(path, Content(self.world.repo.read(ref, path)))

    def restore(self) -> None:
        if not self.runs:
            return
        which = self.rng.choice(self.runs).report.run
        kept = {(each.identity, each.run) for each in purge_cleanup.scan_backups(self.world.ctx) if not each.is_trash}
        try:
            restore_backups.restore_backups(self.world.repo, RestoreScope(run=which))
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
        self.world.repo.set_retention(json.dumps(rules | holds), remove=["hold:events/day=0/"])

    def days(self) -> None:
        self.world.clock.sleep(self.rng.choice([1, 3]) * 86_400)

    def clean(self) -> None:
        with self._by_their_dates("refstore purge clean sales"):
            purge_cleanup.clean_up(self.world.ctx)

    def night(self) -> None:
        self.world.age(days=2)
        run_nightly(self.world.ctx, self.engines, GcOptions(is_full=self.rng.random() < 0.3))

    def reap(self) -> None:
        release_all(self.world.repo)
        with self._by_their_dates("refstore reaper"):
            delete_due(self.world.repo)

    @contextmanager
    def _by_their_dates(self, command: str) -> Generator[None]:
        """Check that what this command ends goes if it has a date by now, and else stays."""
        self._refresh()
        every = [place for ran in self.runs for place in ran.report.places if place.deletes_at_ms]
        told = [place for place in every if place.ending_command == command]
        before = self.world.clock.now_ms()
        yield
        after, there = self.world.clock.now_ms(), self.world.data()
        for place in told:
            if place.deletes_at_ms <= before:
                assert there.isdisjoint(place.addresses), (self.done, place)
            elif place.first_deletes_at_ms > after:
                assert there.issuperset(place.addresses), (self.done, place)

    # ---- comparing the places

    def _refresh(self) -> None:
        remaining_places.refresh_places(self.world.repo, [ran.report for ran in self.runs])

    def compare_places(self) -> None:
        self._refresh()
        there = {address: self._guests_of(address) for address in self.world.data()}
        shown = self._shown()
        for ran in self.runs:
            with_rows = {address for address in ran.before if there.get(address, set()) & ran.guests}
            certain = [address for place in ran.report.places if place.has_rows for address in place.addresses]
            unread = {address for place in ran.report.places if not place.has_rows for address in place.addresses}
            assert len(certain) == len(set(certain)), self.done
            assert set(certain) <= with_rows, (self.done, ran.report.places, set(certain) - with_rows)
            assert with_rows <= {*certain, *unread}, (self.done, ran.report, with_rows - {*certain, *unread})
            assert all(place.objects == len(place.addresses) for place in ran.report.places)
            unread_places = [place for place in ran.report.places if not place.has_rows]
            left = [place for place in unread_places if not ran.before.isdisjoint(place.addresses)]
            assert all(each.dataset == "visits" or ran.report.partitions_left for each in left), (self.done, left)
            for kinds, addresses in shown:
                of_kinds = {each for place in ran.report.places if place.kind in kinds for each in place.addresses}
                assert of_kinds & set(certain) == addresses & set(certain), (self.done, kinds, ran.report.places)

    def _shown(self) -> list[tuple[set[str], set[str]]]:
        """Return what the commands show that bring something back, with the kinds of its places."""
        heads, versions = set[str](), set[str]()
        living = [each for name in self.branches() for each in (name, self.world.repo.get_branch(name).head)]
        swept = {commit for commit, mark in CommitMarks(self.world.ctx).scan() if mark.swept_ms and not mark.prefixes}
        for ref in {*self._refs(), *(each.name for each in self.world.repo.branches())} - swept:
            with suppress(Gone):
                for path, entry in self.world.repo.list(ref):
                    address = self.world.repo.stat(ref, path).address if entry is not None else ""
                    (heads if ref in living else versions).add(address)
        lost = [item.address for item in self.world.repo.list_trash()]
        records = self.world.ctx.locations.get_many(lost)
        contents = {
            record.current.address if record is not None and record.current is not None else address
            for address, record in zip(lost, records, strict=True)
        }
        kept = {each.address for each in purge_cleanup.scan_backups(self.world.ctx)}
        return [
            ({"branches"}, heads),
            ({"tags and pins", "earlier commits", "hidden branches"}, versions - heads),
            ({"undo trash"}, contents - heads - versions),
            ({"backups", "trash of restores"}, kept),
        ]

    def _guests_of(self, address: str) -> set[str]:
        """Return whose rows a file has."""
        head, *rows = (self.world.blobs / address).read_bytes().splitlines()
        return {row.split(b",")[0].decode() for row in rows} if head == b"guest,at" else {self.pictured[address]}

    # ---- comparing

    def compare(self) -> None:
        for ref in self._refs():
            try:
                listed = list(self.world.repo.list(ref))
                for path, entry in listed:
                    assert entry is not None
                    known = self.known[self.world.repo.resolve(ref, path).entry.address]
                    if known.current.body == ERASED and not entry.address:
                        assert entry.size_bytes == 0
                        with pytest.raises(Gone, match="erased"):
                            self.world.repo.read(ref, path)
                        continue
                    assert self.world.repo.read(ref, path) == known.current.body, (self.done, ref, path)
                    assert entry.size_bytes == len(known.current.body)
            except Gone:
                assert ref not in self._living(), (self.done, ref)

    def compare_store(self) -> None:
        """Behind full runs the store has the contents and backups of what is named, and nothing else."""
        assert list(self.world.repo.list_trash()) == []
        named = {identity for _, identity in self._names()}
        records = self.world.ctx.locations.get_many(sorted(named))
        wanted = set[str]()
        for identity, record in zip(sorted(named), records, strict=True):
            wanted |= {identity} if record is None else {address for address in record.addresses() if address}
        assert self.world.data() == wanted, self.done

    def _names(self) -> Iterator[tuple[str, str]]:
        """Yield every path of every version that can be read, and of the trash, with the object's identity."""
        for item in self.world.repo.list_trash():
            yield item.path, item.address
        for ref in self._refs():
            try:
                listed = list(self.world.repo.list(ref))
            except Gone:
                continue
            for path, entry in listed:
                try:
                    identity = self.world.repo.resolve(ref, path).entry.address
                    if entry is not None and entry.address:  # else it was erased
                        self.world.repo.read(ref, path)
                except Gone:
                    continue
                yield path, identity

    def _refs(self) -> list[str]:
        from refstore.operations.committed_names import landed_commits

        return [*self._living(), *(commit for commit, _ in landed_commits(self.world.ctx))]

    def _living(self) -> list[str]:
        return self.branches() + [each.name for each in self.world.repo.tags()]

    def _branch(self) -> str:
        return self.rng.choice(self.branches())

    def branches(self) -> list[str]:
        """Return the branches but those that a run was killed over."""
        return [each.name for each in self.world.repo.branches() if not each.is_hidden]

    def _ids(self, guests: set[str]) -> Path:
        file = self.world.folder / "ids.csv"
        file.write_text("id\n" + "".join(f"{guest}\n" for guest in sorted(guests)))
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


@pytest.mark.parametrize("seed", range(4))
def test_every_version_has_the_rows_of_the_model(tmp_path: Path, engines: Engines, seed: int) -> None:
    play(tmp_path, engines, seed, STEPS)


def test_spark_does_the_same(tmp_path: Path, spark_engines: Engines) -> None:
    play(tmp_path, spark_engines, 7, 10)


def play(folder: Path, engines: Engines, seed: int, steps: int) -> None:
    rules = '{"default_retention_days": 5, "grace_days": 1}'
    world = World(folder, rules=rules, grace_seconds=2 * 86_400)
    world.repo.onboard_purge(json.dumps(DOCUMENT), by="tests")
    model = Model(world, engines, random.Random(seed))
    model.change()
    try:
        for _ in range(steps):
            model.step()
            model.compare()
            model.compare_places()
        for name in model.branches():
            world.repo.reset(name)
        for _ in range(4):
            world.clock.sleep(2 * 86_400)
            world.age(days=4)
            model.reap()
            run_nightly(world.ctx, engines, GcOptions(is_full=True))
            model.compare_places()
        model.compare()
        model.compare_store()
    except RefstoreError:
        print(model.done)
        raise
