"""The whole SDK and the reaper against a plain model, with crashes and concurrency at once.

The model is a dict per branch and a dict per commit. After every rule the branch's listing must be what the model says;
where two operations ran at once, or one died in the middle, it must be what one of the possible orders and outcomes
says, and the model takes that one over. What must never happen, whatever happened before, is checked last: every name
resolves to the bytes that were uploaded under it; and at the end, when the reaper has had its time, no blob is left
that nobody names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from refstore.core.ids import BranchName, is_own
from refstore.core.safety import Safety
from refstore.errors import (
    AlreadyExists,
    Conflict,
    Gone,
    InvalidPath,
    MergeConflict,
    NotFound,
    NothingToCommit,
    ObjectNotFound,
)
from refstore.kv.base import KV
from refstore.lake import Lake
from refstore.objects.base import ObjectStore
from refstore.operations.address_info import token_of
from refstore.operations.upload import Upload
from refstore.records import keys
from refstore.repository import Repository
from tests.kit.clock import FakeClock
from tests.kit.ids import CountingIds
from tests.properties.interleaving import Outcome, SteppedKV, SteppedObjects, Stepper, together
from tests.reaping import delete_due, release_all, scrub_all

Tree = dict[str, bytes]

PATHS = ("a", "a/b", "a/c", "d", "é/ü", "z z")
BRANCHES = ("main", "one", "two")

GRACE_SECONDS = 3600.0


@dataclass
class Branch:
    head: Tree
    staged: dict[str, bytes | None] = field(default_factory=dict)

    def view(self) -> Tree:
        return {path: body for path, body in {**self.head, **self.staged}.items() if body is not None}

    def copy(self) -> Branch:
        return Branch(dict(self.head), dict(self.staged))


World = dict[str, Branch]


def clone(world: World) -> World:
    return {name: branch.copy() for name, branch in world.items()}


@dataclass(frozen=True)
class Step:
    """One operation: what to call, and what it does to the model. `effect` returns False where the real call must
    fail.
    """

    label: str
    branch: str
    call: Callable[[], Any]
    effect: Callable[[World], bool]
    parts: Callable[[World], Iterable[World]] | None = None
    """What it may leave if it dies halfway, besides nothing and everything."""
    having_read: Callable[[World], Step] | None = None
    """The same operation once it has read what it copies: it writes that, whatever others have made of its source
    since.
    """


EXPECTED = (InvalidPath, NotFound, NothingToCommit, Conflict, AlreadyExists, Gone, MergeConflict)
"""What an operation may answer when the state does not allow it."""


def stage(branch: str, path: str, body: bytes | None) -> Callable[[World], bool]:
    """Return the effect of staging an entry, or None: a deletion."""

    def effect(world: World) -> bool:
        if branch not in world:
            return False
        world[branch].staged[path] = body
        return True

    return effect


class Machine(RuleBasedStateMachine):
    """Subclasses say where data is kept."""

    COPIES_ONTO_ITSELF = False
    """Whether an object may be copied onto itself, for its metadata. If not, that is refused."""

    def open_kv(self) -> KV:
        raise NotImplementedError

    def open_objects(self, url: str) -> ObjectStore:
        raise NotImplementedError

    def finish(self) -> None:
        """Close what the subclass opened."""

    @initialize()
    def start(self) -> None:
        self.clock = FakeClock()
        self.stepper = Stepper()
        self.stores: dict[str, ObjectStore] = {}
        self.kv = SteppedKV(self.open_kv(), self.stepper)
        safety = Safety(grace_seconds=GRACE_SECONDS)
        self.lake = Lake(
            self.kv, self.objects_url(), clock=self.clock, ids=CountingIds("m"), safety=safety, open_store=self._stepped
        )
        self.repo: Repository = self.lake.create_repository("machine")
        self.world: World = {"main": Branch({})}
        self.commits: dict[str, Tree] = {}
        self.bodies: dict[str, bytes] = {}
        self.count = 0

    def objects_url(self) -> str:
        return "memory://machine"

    def _stepped(self, url: str) -> ObjectStore:
        if url not in self.stores:
            self.stores[url] = self.open_objects(url)
        return SteppedObjects(self.stores[url], self.stepper)

    # ---- the operations

    def _body(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    def _upload(self, branch: str, path: str) -> Step:
        body = self._body()

        label = f"upload {branch} {path} {body!r}"
        return Step(label, branch, lambda: self.repo.upload(branch, path, body), stage(branch, path, body))

    def _link(self, branch: str, path: str) -> Step:
        body = self._body()

        def call() -> None:
            issued = self.repo.issue(branch, path)
            self.repo.context.objects.put(issued.address, body)
            self.repo.link(branch, path, issued.token)

        return Step(f"issue, put, link {branch} {path} {body!r}", branch, call, stage(branch, path, body))

    def _delete(self, branch: str, path: str) -> Step:
        label = f"delete {branch} {path}"
        return Step(label, branch, lambda: self.repo.delete(branch, path), stage(branch, path, None))

    def _copy(self, source: str, path: str, branch: str, destination: str) -> Step:
        is_onto_itself = (source, path) == (branch, destination)

        def effect(world: World) -> bool:
            if source not in world or branch not in world or path not in world[source].view():
                return False
            if is_onto_itself and not self.COPIES_ONTO_ITSELF:
                return False
            world[branch].staged[destination] = world[source].view()[path]
            return True

        def having_read(world: World) -> Step:
            body = world[source].view().get(path) if source in world else None

            def write(later: World) -> bool:
                if body is None or branch not in later:
                    return False
                later[branch].staged[destination] = body
                return True

            return replace(step, effect=write, having_read=None)

        label = f"copy {source} {path} -> {branch} {destination}"
        step = Step(label, branch, lambda: self.repo.copy(source, path, to_branch=branch, to_path=destination), effect)
        # what is copied onto itself stays what it is then, whatever was read before
        return step if is_onto_itself else replace(step, having_read=having_read)

    def _move(self, branch: str, path: str, destination: str) -> Step:
        def effect(world: World) -> bool:
            if branch not in world or path not in world[branch].view() or path == destination:
                return False
            world[branch].staged[destination] = world[branch].view()[path]
            world[branch].staged[path] = None
            return True

        def halfway(world: World) -> Iterable[World]:
            if branch in world and path in world[branch].view():
                world = clone(world)
                world[branch].staged[destination] = world[branch].view()[path]
                yield world

        def having_read(world: World) -> Step:
            body = world[branch].view().get(path) if branch in world else None

            def write(later: World) -> bool:
                if body is None or branch not in later or path == destination:
                    return False
                later[branch].staged[destination] = body
                if later[branch].view().get(path) == body:
                    later[branch].staged[path] = None  # what was written over it since stays (rule 6)
                return True

            def written(later: World) -> Iterable[World]:
                if body is not None and branch in later and path != destination:
                    later = clone(later)
                    later[branch].staged[destination] = body
                    yield later

            return replace(step, effect=write, parts=written, having_read=None)

        label = f"move {branch} {path} -> {destination}"
        step = Step(
            label, branch, lambda: self.repo.move(branch, path, to_path=destination), effect, halfway, having_read
        )
        return step

    def _commit(self, branch: str) -> Step:
        def call() -> None:
            commit = self.repo.commit(branch, "c").id
            self.commits.setdefault(commit, {})

        def effect(world: World) -> bool:
            if branch not in world:
                return False
            changed = world[branch].view() != world[branch].head
            world[branch] = Branch(world[branch].view())
            return changed

        return Step(f"commit {branch}", branch, call, effect)

    def _reset(self, branch: str) -> Step:
        def effect(world: World) -> bool:
            if branch not in world:
                return False
            world[branch].staged.clear()
            return True

        return Step(f"reset {branch}", branch, lambda: self.repo.reset(branch), effect)

    def _reset_path(self, branch: str, path: str) -> Step:
        def effect(world: World) -> bool:
            if branch not in world:
                return False
            world[branch].staged.pop(path, None)
            return True

        return Step(f"reset {branch} {path}", branch, lambda: self.repo.reset(branch, path=path), effect)

    def _create_branch(self, branch: str, source: str) -> Step:
        def effect(world: World) -> bool:
            if branch in world or source not in world:
                return False
            world[branch] = Branch(dict(world[source].head))
            return True

        def having_read(world: World) -> Step:
            head = dict(world[source].head) if source in world else None

            def write(later: World) -> bool:
                if head is None or branch in later:
                    return False
                later[branch] = Branch(dict(head))
                return True

            return replace(step, effect=write, having_read=None)

        label = f"create branch {branch} at {source}"
        step = Step(
            label, branch, lambda: self.repo.create_branch(branch, source=source), effect, having_read=having_read
        )
        return step

    def _delete_branch(self, branch: str) -> Step:
        def effect(world: World) -> bool:
            return branch != "main" and world.pop(branch, None) is not None

        return Step(f"delete branch {branch}", branch, lambda: self.repo.delete_branch(branch), effect)

    def _reap(self) -> Step:
        def call() -> None:
            release_all(self.repo)
            delete_due(self.repo)

        return Step("reap", "", call, lambda _world: True)

    def _scrub(self) -> Step:
        return Step("scrub", "", lambda: scrub_all(self.repo), lambda _world: True)

    # ---- rules

    branches = st.sampled_from(BRANCHES)
    paths = st.sampled_from(PATHS)

    @rule(branch=branches, path=paths)
    def upload(self, branch: str, path: str) -> None:
        self._one(self._upload(branch, path))

    @rule(branch=branches, path=paths)
    def link(self, branch: str, path: str) -> None:
        self._one(self._link(branch, path))

    @rule(branch=branches, path=paths)
    def delete(self, branch: str, path: str) -> None:
        self._one(self._delete(branch, path))

    @rule(source=branches, path=paths, branch=branches, destination=paths)
    def copy(self, source: str, path: str, branch: str, destination: str) -> None:
        self._one(self._copy(source, path, branch, destination))

    @rule(branch=branches, path=paths, destination=paths)
    def move(self, branch: str, path: str, destination: str) -> None:
        self._one(self._move(branch, path, destination))

    @rule(branch=branches)
    def commit(self, branch: str) -> None:
        self._one(self._commit(branch))

    @rule(branch=branches)
    def reset(self, branch: str) -> None:
        self._one(self._reset(branch))

    @rule(branch=branches, path=paths)
    def reset_path(self, branch: str, path: str) -> None:
        if branch in self.world and self.repo.context.branches.read_open(BranchName(branch)).record.sealed_tokens:
            return  # a crashed commit left it sealed: a conflict, as other tests show
        self._one(self._reset_path(branch, path))

    @rule(branch=branches, source=branches)
    def create_branch(self, branch: str, source: str) -> None:
        self._one(self._create_branch(branch, source))

    @rule(branch=branches)
    def delete_branch(self, branch: str) -> None:
        self._one(self._delete_branch(branch))

    @rule(branch=branches, items=st.lists(paths, min_size=1, max_size=4, unique=True))
    def upload_many(self, branch: str, items: list[str]) -> None:
        if branch not in self.world:
            return
        uploads = [Upload(path=path, body=self._body()) for path in items]
        self.repo.upload_many(branch, uploads)
        self.world[branch].staged |= {item.path: item.body for item in uploads}

    @rule(branch=branches, prefix=st.sampled_from(("a", "a/", "", "nothing")))
    def delete_prefix(self, branch: str, prefix: str) -> None:
        if branch not in self.world:
            return
        under = [path for path in self.world[branch].view() if path.startswith(prefix)]
        assert self.repo.delete_prefix(branch, prefix) == len(under)
        self.world[branch].staged |= dict.fromkeys(under)

    @rule(branch=branches, prefix=st.sampled_from(("a", "a/", "nothing")))
    def reset_prefix(self, branch: str, prefix: str) -> None:
        if branch not in self.world or self.repo.context.branches.read_open(BranchName(branch)).record.sealed_tokens:
            return
        self.repo.reset(branch, prefix=prefix)
        staged = self.world[branch].staged
        self.world[branch].staged = {path: body for path, body in staged.items() if not path.startswith(prefix)}

    @rule(source=branches, branch=branches)
    def merge(self, source: str, branch: str) -> None:
        if source not in self.world or branch not in self.world:
            return
        before = self.world[branch].view()
        dirty = bool(self.world[branch].staged)
        theirs = self.world[source].head
        try:
            self.repo.merge(source, into=branch, strategy="source-wins")
        except Conflict:
            assert self._listing(branch) == before
            return
        assert not dirty
        after = self._listing(branch)
        # whatever the base was: each path is as one of the two sides had it
        assert all(after.get(path) in (before.get(path), theirs.get(path)) for path in {*before, *theirs, *after})
        self.world[branch] = Branch(after)

    @rule(branch=branches)
    def revert(self, branch: str) -> None:
        if branch not in self.world or self.world[branch].staged:
            return
        parents = self.repo.get_commit(branch).parents
        if len(parents) != 1:
            return
        expected = self._listing(parents[0])
        try:
            self.repo.revert(f"{branch}@", on=branch)
        except NothingToCommit:
            assert expected == self.world[branch].head
            return
        self.world[branch] = Branch(expected)

    @rule(branch=branches, data=st.data(), path=paths, force=st.booleans())
    def restore(self, branch: str, data: st.DataObject, path: str, force: bool) -> None:
        waiting = list(self.repo.list_trash())
        if not waiting or branch not in self.world:
            return
        item = waiting[data.draw(st.integers(0, 99)) % len(waiting)]
        try:
            body = self.repo.context.objects.read(item.address)
        except ObjectNotFound:
            assert item.entry is None, (
                "an entry named it, so it was written"
            )  # else an upload died before it wrote its blob
            with pytest.raises(ObjectNotFound):
                self.repo.restore(item.address, to=branch, path=path)
            return
        try:
            self.repo.restore(item.address, to=branch, path=path, force=force)
        except AlreadyExists:
            assert not force
            assert path in self.world[branch].view()
            return
        self.world[branch].staged[path] = body

    @rule()
    def reap(self) -> None:
        release_all(self.repo)
        delete_due(self.repo)

    @rule()
    def scrub(self) -> None:
        scrub_all(self.repo)

    @rule(seconds=st.sampled_from((1.0, 600.0, 3700.0, 8000.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(
        data=st.data(),
        choices=st.lists(st.integers(0, 1), max_size=60),
        crash=st.tuples(st.none() | st.integers(0, 30), st.none() | st.integers(0, 30)),
    )
    def two_at_once(self, data: st.DataObject, choices: list[int], crash: tuple[int | None, int | None]) -> None:
        """Any two operations, in any order of their steps, each of which may die at any step."""
        steps = [self._draw(data), self._draw(data)]
        note(f"at once: {steps[0].label} | {steps[1].label}, choices {choices}, crashes {crash}")
        outcomes = together(self.stepper, [step.call for step in steps], choices, crash)
        self._reconcile(steps, outcomes)

    def _draw(self, data: st.DataObject) -> Step:
        # few names, so that operations that run at once meet
        branch, other = data.draw(st.sampled_from(BRANCHES[:2])), data.draw(st.sampled_from(BRANCHES[:2]))
        path, destination = data.draw(st.sampled_from(PATHS[:2])), data.draw(st.sampled_from(PATHS[:2]))
        kinds: list[Callable[[], Step]] = [
            lambda: self._upload(branch, path),
            lambda: self._link(branch, path),
            lambda: self._delete(branch, path),
            lambda: self._copy(other, path, branch, destination),
            lambda: self._move(branch, path, destination),
            lambda: self._commit(branch),
            lambda: self._reset(branch),
            lambda: self._create_branch(branch, other),
            lambda: self._delete_branch(branch),
            self._reap,
            self._scrub,
        ]
        return data.draw(st.sampled_from(kinds))()

    # ---- what must hold

    def _one(self, step: Step) -> None:
        expected = clone(self.world)
        fine = step.effect(expected)
        try:
            step.call()
        except EXPECTED as error:
            assert not fine, f"{step.label}: {error!r}"  # noqa: PT017  # which error it may be is not the point
            if isinstance(error, NothingToCommit):
                self.world = expected
            return
        # a path that was copied over itself has its bytes and another entry: a commit of that changes something
        same_bytes = step.label.startswith("commit") and bool(self.world[step.branch].staged)
        assert fine or same_bytes, f"{step.label} should have been refused"
        self.world = expected

    def _reconcile(self, steps: list[Step], outcomes: list[Outcome]) -> None:
        """Take over the one of the allowed worlds that is the real one; fail if none is."""
        for step, outcome in zip(steps, outcomes, strict=True):
            if outcome.error is not None and not isinstance(outcome.error, EXPECTED):
                raise AssertionError(f"{step.label}: {outcome.error!r}") from outcome.error
        seen = self._all_listings()
        allowed: list[World] = []
        # what copies may have read its source before the other began, and write behind it
        variants = product(
            *([step] if step.having_read is None else [step, step.having_read(self.world)] for step in steps)
        )
        for chosen, order in product(variants, permutations(range(2))):
            for world in self._worlds(
                [chosen[index] for index in order], [outcomes[index] for index in order], self.world
            ):
                if {name: branch.view() for name, branch in world.items()} == seen:
                    allowed.append(world)  # noqa: PERF401  # three loops read better
        assert allowed, f"{[step.label for step in steps]} came to {seen}, which no order allows; {outcomes}"
        matching = [
            world for world in allowed if self._heads() == {name: branch.head for name, branch in world.items()}
        ]
        assert matching, f"heads {self._heads()} are those of no allowed world"
        self.world = matching[0]
        for name, branch in self.world.items():
            # a path staged as what it is already, or not at all: only the staging area itself tells
            branch.staged = {path: branch.view().get(path) for path in self._staged_paths(name)}

    def _worlds(self, steps: list[Step], outcomes: list[Outcome], world: World) -> Iterable[World]:
        options: list[list[str]] = []
        for outcome in outcomes:
            if outcome.crashed:
                options.append(["nothing", "all", "part"])
            elif outcome.error is not None:
                options.append(["refused"])
            else:
                options.append(["all"])
        for choice in product(*options):
            current: list[World] = [clone(world)]
            for step, what in zip(steps, choice, strict=True):
                following: list[World] = []
                for each in current:
                    after = clone(each)
                    fine = step.effect(after)
                    if what == "nothing" or (
                        what == "refused" and not isinstance(outcomes[steps.index(step)].error, NothingToCommit)
                    ):
                        following.append(each)
                    elif what == "refused":
                        following += [each, after]
                    elif what == "part" and step.parts is not None:
                        following += step.parts(each)
                    elif what == "all":
                        following.append(after if fine or step.label.startswith("commit") else each)
                current = following
            yield from current

    @invariant()
    def every_name_resolves_to_its_bytes(self) -> None:
        if not hasattr(self, "repo"):
            return
        assert self._all_listings() == {name: branch.view() for name, branch in self.world.items()}

    @invariant()
    def history_keeps_its_bytes(self) -> None:
        if not hasattr(self, "repo"):
            return
        for commit in [commit for commit in self.commits if not self.commits[commit]]:
            self.commits[commit] = self._listing(commit)
        if self.count % 7 == 0:
            for commit, tree in self.commits.items():
                assert self._listing(commit) == tree

    def teardown(self) -> None:
        if not hasattr(self, "repo"):
            return
        try:
            for commit, tree in self.commits.items():
                if tree:
                    assert self._listing(commit) == tree
            self._settle()
            assert self._all_listings() == {name: branch.view() for name, branch in self.world.items()}
            named = self._named()
            stored = {info.key for info in self.repo.context.objects.list("data/")}
            assert named <= stored, f"named and gone: {named - stored}"
            assert not self._unaccounted(stored - named), f"left and not named: {self._unaccounted(stored - named)}"
        finally:
            self.lake.close()
            self.finish()

    def _settle(self) -> None:
        for _ in range(3):
            self.clock.advance(GRACE_SECONDS * 4)
            release_all(self.repo)
            scrub_all(self.repo)
            delete_due(self.repo)

    def _unaccounted(self, addresses: set[str]) -> set[str]:
        """Of blobs nobody names: those that no live token's reference holds either (an upload that died before its
        entry).
        """
        live = {token for _, branch in self.repo.context.branches.scan_open() for token in branch.live_tokens}
        views = {address: self.repo.address(address) for address in addresses}
        return {
            address for address, view in views.items() if not any(token_of(each) in live for each in view.references)
        }

    def _named(self) -> set[str]:
        """Every own address that a branch or a commit names; a commit whose caller died before it heard of it is one,
        too.
        """
        landed = [name for name, _ in self.repo.context.kv.scan_all(keys.landed_commits(self.repo.context.repo))]
        refs: list[str] = [*self.world, *self.commits, *landed, *(f"{name}@" for name in self.world)]
        return {
            item.entry.address
            for ref in refs
            for item in self.repo.list(ref)
            if item.entry is not None and is_own(item.entry.address)
        }

    def _listing(self, ref: str) -> Tree:
        return {
            item.path: self._bytes(item.entry.address) for item in self.repo.list(ref, page=3) if item.entry is not None
        }

    def _bytes(self, address: str) -> bytes:
        return self.repo.context.objects.read(address)

    def _all_listings(self) -> dict[str, Tree]:
        return {each.name: self._listing(each.name) for each in self.repo.branches()}

    def _heads(self) -> dict[str, Tree]:
        return {each.name: self._listing(f"{each.name}@") for each in self.repo.branches()}

    def _staged_paths(self, branch: str) -> list[str]:
        record = self.repo.context.branches.read_open(BranchName(branch)).record
        partitions = [keys.staging(self.repo.context.repo, token) for token in record.live_tokens]
        return sorted({path for partition in partitions for path, _ in self.kv.scan_all(partition)})
