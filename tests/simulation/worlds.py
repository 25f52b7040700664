"""The worlds that scenarios start from, each made by real calls: two branches, and the names of what is in them."""

from __future__ import annotations

from dataclasses import replace

from refstore.core.ids import Address, CommitId
from refstore.core.safety import Safety
from refstore.gc_marks import Marks
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.reaper_records import DueHintRecord
from tests.kit import collecting
from tests.kit.domain import NO_AGES, World, simulated
from tests.reaping import release_all
from tests.simulation.calls import BODIES


class Start:
    """A world with two branches, and the names of what is in it."""

    def __init__(self, safety: Safety = NO_AGES, *, store_has_uploads: bool = False) -> None:
        self.world = World(safety, store_has_uploads)
        self.repo = self.world.repo
        self.repo.create_branch("feat", source="main")
        self.addresses: dict[str, Address] = {}
        self.commits: dict[str, CommitId] = {}
        self.token = ""
        self.mark_id = ""
        self.candidates: tuple[str, ...] = ()
        self.earlier_mark: tuple[str, ...] = ("",)
        """The mark before, and what may go with it."""

    def staged(self, branch: str, path: str, body: str, *, hinted: bool = True) -> Start:
        """Staged on a branch; what has the body already is copied. `hinted`: with a hint left over from before."""
        if body in self.addresses:
            self.repo.copy(*self._where(body), to_branch=branch, to_path=path)
        else:
            self.addresses[body] = self.repo.upload(branch, path, BODIES[body]).address
        if hinted:
            self.hint(body)
        return self

    def hint(self, body: str) -> None:
        """Hard deletion may look at any address at any time: a hint decides nothing."""
        repo = self.repo.record.id
        self.world.contents[keys.due_hint(repo, self.world.clock.now_ms(), self.addresses[body])] = encode(
            DueHintRecord()
        )

    def committed(self, branch: str, name: str, *, processed: bool = True, **paths: str) -> Start:
        for path, body in paths.items():
            self.staged(branch, path, body, hinted=False)
        self.commits[name] = self.repo.commit(branch, name).id
        if processed:
            self.reap()
        return self

    def fork_again(self) -> None:
        """The other branch begins at the head of the first one."""
        self.repo.delete_branch("feat")
        self.reap()
        self.repo.create_branch("feat", source="main")

    def reap(self) -> Start:
        """Process what is retired, undisturbed."""
        release_all(self.repo)
        return self

    def issued(self) -> Start:
        given = self.repo.issue("main", "p")
        self.world.lake.open_store("").put(given.address, BODIES["P9"])
        self.addresses["P9"], self.token = given.address, given.token
        self.hint("P9")
        return self

    def in_grace(self, body: str) -> Start:
        """An address whose list is empty, and nothing else of it."""
        self.staged("feat", "gone", body)
        self.repo.reset("feat", path="gone")
        return self

    def expire(self, name: str) -> Start:
        """Mark a commit, to be swept at any time; what may go with it stands in `candidates`."""
        run, found = collecting.mark(self.repo.context, [self.commits[name]], folders=(collecting.DATA,))
        self.mark_id, self.candidates = run.mark_id, tuple(sorted(found.data))
        return self

    def begin(self, *names: str) -> Start:
        """A run has begun, and marked commits; it has not looked yet."""
        self.mark_id = (
            Marks(self.repo.context).mark_run.begin("", 0, [self.commits[name] for name in names], "begun").mark_id
        )
        return self

    def _where(self, body: str) -> tuple[str, str]:
        for branch in ("main", "feat"):
            for listed in self.repo.list(branch):
                if listed.entry is not None and listed.entry.address == self.addresses[body]:
                    return branch, listed.path
        raise AssertionError(f"{body} is on no branch")


def m1(*, hinted: bool = True) -> Start:
    return Start().staged("main", "p", "P0", hinted=hinted)


def two() -> Start:
    return Start().staged("main", "p", "P0").staged("feat", "q", "P0")


def issued() -> Start:
    return Start().issued()


def issued_with_ages(safety: Safety) -> Start:
    return Start(safety).issued()


def issued_to_copy() -> Start:
    return Start(replace(NO_AGES, copy_linked="always")).issued()


def pq() -> Start:
    return Start().staged("main", "p", "P0").staged("main", "q", "P5")


def pair() -> Start:
    return Start().staged("main", "p", "P0").staged("main", "q", "P0")


def old() -> Start:
    """c0 {p: P0} <- c1 {q: P1}; both branches at c1."""
    start = Start().committed("main", "c0", p="P0")
    start.repo.delete("main", "p")
    start.committed("main", "c1", q="P1")
    start.fork_again()
    return start


def old_marked() -> Start:
    with simulated():
        return old().expire("c0")


def old_begun() -> Start:
    return old().begin()


def old_line() -> Start:
    """c0 {p: P0} <- c1 {p: P0, q: P1} <- c2 {q: P1}, both branches at c2."""
    start = Start().committed("main", "c0", p="P0").committed("main", "c1", q="P1")
    start.repo.delete("main", "p")
    start.committed("main", "c2")
    start.fork_again()
    return start


def old_line_begun() -> Start:
    """As old_line, with a branch at c1; a run has marked c0 and c1, and has not looked yet."""
    start = old_line()
    start.repo.create_branch("late", source=start.commits["c1"])
    return start.begin("c0", "c1")


def old_complete() -> Start:
    """As old_line; a run has marked c0, found it complete, and unmarked it."""
    with simulated():
        return old_line().expire("c0")


def old_shared() -> Start:
    """c0 {p: P0, z: P5} <- c1 {p: P0, q: P1} <- c2 {q: P1}, both branches at c2; c0 is marked."""
    start = Start().committed("main", "c0", p="P0", z="P5")
    start.repo.delete("main", "z")
    start.committed("main", "c1", q="P1")
    start.repo.delete("main", "p")
    start.committed("main", "c2")
    start.fork_again()
    with simulated():
        return start.expire("c0")


def old_both_marked() -> Start:
    """As old_shared; c1 is marked by a later run."""
    start = old_shared()
    start.earlier_mark = (start.mark_id, *start.candidates)
    with simulated():
        return start.expire("c1")


def old_appended() -> Start:
    """c0 {p: P0} <- c1 {p: P0, q: P1}; both branches at c1."""
    start = Start().committed("main", "c0", p="P0").committed("main", "c1", q="P1")
    start.fork_again()
    return start


def old_parts() -> Start:
    """c0 {logs: P0, p: P5} <- c1 {q: P1}; both branches at c1."""
    start = Start().committed("main", "c0", logs="P0", p="P5")
    start.repo.delete_many("main", ["logs", "p"])
    start.committed("main", "c1", q="P1")
    start.fork_again()
    return start


def old_grace() -> Start:
    return old().in_grace("P5")


def old_head() -> Start:
    """As old, with a branch at c0."""
    start = old()
    start.repo.create_branch("late", source=start.commits["c0"])
    return start


def old_staged() -> Start:
    start = old()
    start.repo.copy(start.commits["c0"], "p", to_branch="feat", to_path="z")
    return start


def both() -> Start:
    """p is committed on both branches, q staged on feat."""
    start = Start().committed("main", "c0", p="P0")
    start.fork_again()
    return start.staged("feat", "q", "Q1")


def fresh() -> Start:
    """feat is one commit ahead, and its marker is not processed yet."""
    return both().committed("feat", "c1", processed=False)


def side() -> Start:
    """feat is one commit ahead of c1."""
    return old().committed("feat", "c2", z="P5")


def side_branch() -> Start:
    """As m1, with p on a branch that can be deleted."""
    start = Start()
    start.repo.create_branch("side", source="main")
    return start.staged("side", "p", "P0")


def committed_m1() -> Start:
    """p is committed, and its marker is not processed yet."""
    return m1(hinted=False).committed("main", "c1", processed=False)


def after_reset(start: Start) -> Start:
    start.repo.reset("main")
    return start


def grace(safety: Safety = NO_AGES) -> Start:
    return Start(safety).in_grace("P5")


def same(*, processed: bool) -> Start:
    """What is staged is what the head says; with references if the head's marker is not processed."""
    start = Start().committed("main", "c1", processed=processed, p="P0")
    start.repo.copy("main", "p", to_branch="main", to_path="z")
    start.repo.copy("main", "z", to_branch="main", to_path="p")
    start.repo.delete("main", "z")
    return start
