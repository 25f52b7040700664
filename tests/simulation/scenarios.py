"""The scenarios, by the names they have in the protocol's model (`docs/protocol_model`), over real calls.

A scenario is a world made by real calls and a few tasks, each a list of calls that follow one another. What the model has as one
process is here one task. Tasks of the reaper have a clock of their own that is a millisecond ahead, so that in worlds without ages
(`NO_AGES`) nothing is too young for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from refstore import keys
from refstore.ids import Address, CommitId
from refstore.marks import Marks
from refstore.records import Due, encode
from refstore.safety import Safety
from refstore.testing import collecting
from refstore.testing.domain import NO_AGES, World, contents_of, simulated
from refstore.testing.explorer import Explorer, Scenario
from refstore.testing.replay import Task
from tests.simulation import calls as do
from tests.simulation.calls import (
    BODIES,
    HARD_DELETE,
    PROCESS,
    REAP,
    REAP_DIRECT,
    REAP_PAGED,
    REAP_PAGED_DIRECT,
    SCRUB,
    SCRUB_TOKENS,
    Call,
    stages_of,
)
from tests.simulation.collecting import collect, collect_given_up, collect_part, drop_late_pins, go_on, mark, mark_late, sweep
from tests.simulation.promises import Promised

Calls = Sequence[Call]

AHEAD_MS = 1
"""So much are the reaper's clocks ahead."""
EXPIRED_MS = 2 * 3_600_000
"""Past the expiry of an issued address."""

AGES = Safety(grace_seconds=600, issue_seconds=600)
"""As in production, but for the window: an operation may take longer than grace."""

EVERYTHING: Calls = [SCRUB, SCRUB_TOKENS]
TOKENS: Calls = [SCRUB_TOKENS]

BACKGROUND = {REAP, REAP_DIRECT, REAP_PAGED, REAP_PAGED_DIRECT, HARD_DELETE, SCRUB, SCRUB_TOKENS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A scenario before its world is made."""

    name: str
    world: Callable[[], Start]
    tasks: Callable[[Start], Mapping[str, Calls]]
    crash: str = ""
    """Labels that may die before any write."""
    lossy: str = ""
    """Labels whose writes may lose their reply; twice the label, two replies."""
    lossy_objects: str = ""
    keeps: str = ""
    """Labels whose promises must hold at the end."""
    somewhere: str = ""
    """Labels whose uploads must be readable at the end, under whatever path."""
    safety_only: bool = False
    """Leaks are not looked for: without ages, a scrubber cannot know of a blob that is still to be written."""
    nothing_marked: bool = False
    """No commit that landed may be marked in the end."""
    clock_moves: bool = False
    refused: str = ""
    """Labels whose calls are always refused here, as they should be."""
    group: str = "first 28"
    ahead_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    """Clocks of single tasks, if not that of the scenario or of the reaper."""

    def scenario(self) -> Scenario:
        start = self.world()
        wall_ms = start.world.clock.now_ms()
        per_label = {label: tuple(given) for label, given in self.tasks(start).items()}
        tasks = tuple(
            Task(
                label,
                stages_of(given),
                may_crash=label in self.crash,
                lost_replies=self.lossy.count(label),
                lost_object_replies=self.lossy_objects.count(label),
                clock_ms=self._clock_ms(label, given, wall_ms),
                bounded=not all(call in BACKGROUND or call.unbounded for call in given),
            )
            for label, given in per_label.items()
        )
        kept = {label: _promises(per_label[label]) for label in self.keeps}
        somewhere = {label: _promises(per_label[label]) for label in self.somewhere}
        repo = start.world.repo.record.id
        return start.world.scenario(
            self.name,
            *tasks,
            clock_moves=self.clock_moves,
            safety_only=self.safety_only,
            ends=(lambda private: Promised(repo, private, kept, somewhere, nothing_marked=self.nothing_marked))
            if kept or somewhere or self.nothing_marked
            else None,
            remembers=frozenset(self.keeps + self.somewhere),
        )

    def _clock_ms(self, label: str, given: Calls, wall_ms: int) -> int | None:
        if label in self.ahead_ms:
            return wall_ms + self.ahead_ms[label]
        if not self.clock_moves and all(call in BACKGROUND for call in given):
            return wall_ms + AHEAD_MS
        return None


def _promises(given: Calls) -> tuple[do.Promise, ...]:
    return tuple(promise for call in given for promise in call.promises)


# ---- worlds


class Start:
    """A world with two branches, and the names of what is in it."""

    def __init__(self, safety: Safety = NO_AGES) -> None:
        self.world = World(safety)
        self.repo = self.world.repo
        self.repo.create_branch("feat", "main")
        self.addresses: dict[str, Address] = {}
        self.commits: dict[str, CommitId] = {}
        self.token = ""
        self.mark_id = ""
        self.candidates: tuple[str, ...] = ()

    def staged(self, branch: str, path: str, body: str, *, hinted: bool = True) -> Start:
        """Staged on a branch; what has the body already is copied. `hinted`: with a hint left over from before."""
        if body in self.addresses:
            self.repo.copy(*self._where(body), branch, path)
        else:
            self.addresses[body] = self.repo.upload(branch, path, BODIES[body]).address
        if hinted:
            self.hint(body)
        return self

    def hint(self, body: str) -> None:
        """Hard deletion may look at any address at any time: a hint decides nothing."""
        repo = self.repo.record.id
        self.world.contents[keys.due(repo, self.world.clock.now_ms(), self.addresses[body])] = encode(Due())

    def committed(self, branch: str, name: str, *, processed: bool = True, **paths: str) -> Start:
        for path, body in paths.items():
            self.staged(branch, path, body, hinted=False)
        self.commits[name] = self.repo.commit(branch, name)
        if processed:
            self.reap()
        return self

    def reap(self) -> Start:
        """Process what is retired, undisturbed."""
        from reaper import processing
        from refstore.markers import Markers

        ctx = self.repo.context
        processing.publish(ctx)
        markers = Markers(ctx.kv, ctx.repo, ctx.clock)
        for commit, committed in list(markers.committed()):
            processing.process_committed(ctx, commit, committed)
        for token, deleted in list(markers.deleted()):
            processing.process_deleted(ctx, token, deleted, grace_seconds=ctx.grace_seconds)
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
        self.mark_id = Marks(self.repo.context).begin("", 0, [self.commits[name] for name in names], "begun").mark_id
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


def pq() -> Start:
    return Start().staged("main", "p", "P0").staged("main", "q", "P5")


def pair() -> Start:
    return Start().staged("main", "p", "P0").staged("main", "q", "P0")


def old() -> Start:
    """c0 {p: P0} <- c1 {q: P1}; both branches at c1."""
    start = Start().committed("main", "c0", p="P0")
    start.repo.delete("main", "p")
    start.committed("main", "c1", q="P1")
    start.repo.delete_branch("feat")
    start.reap()
    start.repo.create_branch("feat", "main")
    return start


def old_marked() -> Start:
    with simulated():
        return old().expire("c0")


def old_begun() -> Start:
    return old().begin()


def old_shared() -> Start:
    """c0 {p: P0} <- c1 {p: P0, q: P1} <- c2 {q: P1}, both branches at c2; c0 is marked."""
    start = Start().committed("main", "c0", p="P0").committed("main", "c1", q="P1")
    start.repo.delete("main", "p")
    start.committed("main", "c2")
    start.repo.delete_branch("feat")
    start.reap()
    start.repo.create_branch("feat", "main")
    with simulated():
        return start.expire("c0")


def old_parts() -> Start:
    """c0 {logs: P0, p: P5} <- c1 {q: P1}; both branches at c1."""
    start = Start().committed("main", "c0", logs="P0", p="P5")
    start.repo.delete_many("main", ["logs", "p"])
    start.committed("main", "c1", q="P1")
    start.repo.delete_branch("feat")
    start.reap()
    start.repo.create_branch("feat", "main")
    return start


def old_grace() -> Start:
    return old().in_grace("P5")


def old_head() -> Start:
    """As old, with a branch at c0."""
    start = old()
    start.repo.create_branch("late", start.commits["c0"])
    return start


def old_staged() -> Start:
    start = old()
    start.repo.copy(start.commits["c0"], "p", "feat", "z")
    return start


def both() -> Start:
    """p is committed on both branches, q staged on feat."""
    start = Start().committed("main", "c0", p="P0")
    start.repo.delete_branch("feat")
    start.reap()
    start.repo.create_branch("feat", "main")
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
    start.repo.create_branch("side", "main")
    return start.staged("side", "p", "P0")


def committed_m1() -> Start:
    """p is committed, and its marker is not processed yet."""
    return m1(hinted=False).committed("main", "c1", processed=False)


def after_reset(start: Start) -> Start:
    start.repo.reset("main")
    return start


def grace() -> Start:
    return Start().in_grace("P5")


def same(*, processed: bool) -> Start:
    """What is staged is what the head says; with references if the head's marker is not processed."""
    start = Start().committed("main", "c1", processed=processed, p="P0")
    start.repo.copy("main", "p", "main", "z")
    start.repo.copy("main", "z", "main", "p")
    start.repo.delete("main", "z")
    return start


def plan(
    name: str,
    world: Callable[[], Start],
    tasks: Mapping[str, Calls] | Callable[[Start], Mapping[str, Calls]],
    crash: str = "",
    **more: object,
) -> Plan:
    made = tasks if callable(tasks) else lambda _: tasks
    return Plan(name=name, world=world, tasks=made, crash=crash, **more)


COMMIT = do.commit("main", "c1")
RESET = do.reset("main")
COPY = do.copy("main", "p", "feat", "q")
OVERWRITE = do.upload("main", ("p", "P1"))
MOVE = do.move("main", "p", "q")
UPLOAD_Q = do.upload("main", ("q", "P1"))
OVERWRITE_2 = do.upload("main", ("p", "P2"))
DELETE_P = do.delete("main", "p")
RESET_FEAT = do.reset("feat")
COMMIT_2 = do.commit("main", "c2")
MERGE = do.merge("feat", "main")


def gc(start: Start) -> Call:
    return collect(start.commits["c0"])


def link(start: Start) -> Call:
    return do.link("main", "p", start.token)


def pick(start: Start) -> Call:
    return do.cherry_pick("main", start.commits["c1"])


def issued() -> Start:
    return Start().issued()


def foretold(start: Start, label: str, given: Calls) -> CommitId:
    """The id of the commit that a task makes if nobody comes in between."""
    explorer = Explorer(start.world.scenario("alone", Task(label, stages_of(given))))
    before = {key.name for key in start.world.contents if key.partition == keys.commits(start.repo.record.id)}
    end, _ = contents_of(explorer.alone(), explorer.names)
    (made,) = {key.name for key in end if key.partition == keys.commits(start.repo.record.id)} - before
    return CommitId(made)


def first_28() -> Iterator[Plan]:
    yield plan("upload | reset | reap", m1, {"U": [UPLOAD_Q], "R": [RESET], "G": [REAP]}, "U")
    yield plan("overwrite | commit | reap", m1, {"U": [OVERWRITE], "C": [COMMIT], "G": [REAP]}, "UC", keeps="U")
    yield plan("overwrite | commit+reset | reap", m1, {"U": [OVERWRITE], "C": [COMMIT, RESET], "G": [REAP]}, "C")
    late: Mapping[str, Calls] = {"U": [OVERWRITE], "C": [COMMIT, RESET], "G": [REAP], "H": [HARD_DELETE]}
    yield plan("late write | commit; reset | reap | hard delete", Start, late)
    yield plan("copy main->feat | reset main | reap", m1, {"K": [COPY], "R": [RESET], "G": [REAP]}, "K", keeps="K")
    yield plan("copy main->feat | commit main | reap", m1, {"K": [COPY], "C": [COMMIT], "G": [REAP]}, "KC", keeps="K")
    yield plan("copy main->feat | commit main; reset feat | reap", m1, {"K": [COPY], "C": [COMMIT, RESET_FEAT], "G": [REAP]})
    yield plan("copy main->feat | reset feat | scrub", m1, {"K": [COPY], "R": [RESET_FEAT, REAP], "S": [SCRUB]}, "K")
    from_side = do.copy("side", "p", "feat", "q")  # the default branch cannot be deleted
    yield plan(
        "copy main->feat | delete branch main | reap",
        side_branch,
        {"K": [from_side], "R": [do.delete_branch("side")], "G": [REAP]},
        "K",
        keeps="K",
    )
    yield plan("move p->q | commit | reap", m1, {"M": [MOVE], "C": [COMMIT], "G": [REAP]}, "M", keeps="M")
    yield plan("move p->q | commit; reset | reap", m1, {"M": [MOVE], "C": [COMMIT, RESET], "G": [REAP]})
    to_r = do.move("main", "p", "r")
    yield plan("move p->q | move p->r | hard delete", m1, {"M": [MOVE], "N": [to_r], "H": [HARD_DELETE]}, "M", keeps="MN")
    yield plan("move p->q | delete p | reap", m1, {"M": [MOVE], "D": [DELETE_P], "G": [REAP]}, "MD", keeps="M")
    yield plan("overwrite | overwrite | hard delete", m1, {"U": [OVERWRITE], "V": [OVERWRITE_2], "H": [HARD_DELETE]}, "U")
    yield plan("overwrite | copy p->feat | hard delete", m1, {"U": [OVERWRITE], "K": [COPY], "H": [HARD_DELETE]}, "UK", keeps="UK")
    yield plan("commit | commit | reap", m1, {"C": [COMMIT], "D": [COMMIT_2], "G": [REAP]}, "C")
    yield plan("commit | reset | reap", m1, {"C": [COMMIT], "R": [RESET], "G": [REAP]}, "CR")
    yield plan("commit | scrub | reap", m1, {"C": [COMMIT], "S": [SCRUB], "G": [REAP]}, "CG")
    yield plan(
        "upload; crash | commit | scrub (safety only)",
        m1,
        {"U": [UPLOAD_Q], "C": [COMMIT, REAP], "S": [SCRUB]},
        "U",
        keeps="U",
        safety_only=True,
    )
    yield plan("reap | reap (crash) after commit", committed_m1, {"G": [REAP], "H": [REAP], "R": [RESET]}, "G")
    yield plan("shared: commit main | reset feat | reap", two, {"C": [COMMIT], "R": [RESET_FEAT], "G": [REAP]}, "CG")
    from_feat = do.copy("feat", "q", "main", "z")
    yield plan("shared: reset main | copy feat->main | reap", two, {"R": [RESET], "K": [from_feat], "G": [REAP]}, "KR")
    yield plan(
        "link | link (replay) | commit+reap",
        issued,
        lambda start: {"L": [link(start)], "M": [link(start)], "C": [COMMIT, REAP]},
        "L",
        keeps="LM",
    )
    yield plan(
        "link | expire | reset",
        issued,
        lambda start: {"L": [link(start)], "X": [HARD_DELETE], "R": [RESET, REAP]},
        "LX",
        ahead_ms={"X": EXPIRED_MS},
    )


def collections() -> Iterator[Plan]:
    """The offline job: the product's marks, with the plain collection of `refstore.testing.collecting` around them."""
    more = {"group": "offline"}

    def from_commit(start: Start) -> Call:
        return do.copy(start.commits["c0"], "p", "feat", "z")

    yield plan(
        "gc | copy from an expired commit | commit+reap",
        old,
        lambda start: {"X": [gc(start)], "K": [from_commit(start)], "C": [do.commit("feat", "c2"), REAP]},
        "KX",
        **more,
    )
    yield plan(
        "gc | branch at an expired commit",
        old,
        lambda start: {"X": [gc(start)], "N": [do.create_branch("late", start.commits["c0"])], "U": [do.upload("main", ("p", "P2"))]},
        "XN",
        keeps="UN",
        **more,
    )
    yield plan(
        "gc | upload; commit; reap",
        old,
        lambda start: {"X": [gc(start)], "U": [do.upload("main", ("p", "P2")), COMMIT_2, REAP]},
        "XU",
        keeps="U",
        **more,
    )
    yield plan(
        "gc | commit of a reference-less copy; reap",
        old_staged,
        lambda start: {"X": [gc(start)], "C": [do.commit("feat", "c2"), REAP]},
        "XC",
        **more,
    )
    yield plan(
        "gc | merge feat->main; delete branch feat",
        side,
        lambda start: {"X": [gc(start)], "M": [MERGE], "D": [do.delete_branch("feat")]},
        "X",
        **more,
    )
    yield plan(
        "gc | cherry-pick of an unmarked commit | delete branch feat",
        side,
        lambda start: {"X": [gc(start)], "M": [do.cherry_pick("main", start.commits["c2"])], "D": [do.delete_branch("feat")]},
        "X",
        **more,
    )
    yield plan(
        "gc | revert to an expired commit's tree",
        old,
        lambda start: {"X": [gc(start)], "M": [do.revert("feat", start.commits["c1"])], "G": [REAP]},
        "X",
        **more,
    )
    yield plan(
        "gc | copy from an unmarked commit | delete its branch",
        side,
        lambda start: {"X": [gc(start)], "K": [do.copy(start.commits["c2"], "z", "main", "z")], "D": [do.delete_branch("feat")]},
        "X",
        keeps="K",
        **more,
    )


def marks() -> Iterator[Plan]:
    """Unmark, re-check, pins, heads and tags; runs that take over from one another."""
    more = {"group": "marks"}

    def copied(start: Start) -> Call:
        return do.copy(start.commits["c0"], "p", "feat", "z")

    def back(start: Start) -> Call:
        return do.unmark(start.commits["c0"])

    def swept(start: Start) -> Call:
        return sweep(start.mark_id, *start.candidates)

    moving: Calls = [do.move("feat", "z", "y")]
    late: Calls = [do.delete_branch("late")]
    yield plan(
        "gc | unmark; copy from it", old, lambda start: {"X": [gc(start)], "U": [back(start), copied(start)]}, "XU", keeps="U", **more
    )
    yield plan(
        "gc | unmark; branch at it",
        old,
        lambda start: {"X": [gc(start)], "U": [back(start), do.create_branch("late", start.commits["c0"])]},
        "XU",
        keeps="U",
        **more,
    )
    yield plan(
        "sweep | unmark; copy from it | mark by another run",
        old_marked,
        lambda start: {"X": [swept(start)], "U": [back(start), copied(start)], "Y": [mark(start.commits["c0"])]},
        "XY",
        keeps="U",
        **more,
    )
    yield plan(
        "sweep | unmark the run; copy from it",
        old_marked,
        lambda start: {"X": [swept(start)], "U": [do.unmark(start.mark_id), copied(start)]},
        "XU",
        keeps="U",
        **more,
    )
    yield plan(
        "sweep | sweep | unmark; copy from it",
        old_marked,
        lambda start: {"X": [swept(start)], "Y": [swept(start)], "U": [back(start), copied(start)]},
        "X",
        keeps="U",
        **more,
    )
    yield plan(
        "mark and sweep | unmark under the mark before; copy from it",
        old_shared,
        lambda start: {"X": [collect(start.commits["c1"])], "U": [back(start), copied(start)]},
        "X",
        keeps="U",
        **more,
    )
    yield plan(
        "mark and sweep | sweep of the mark before",
        old_shared,
        lambda start: {"X": [collect(start.commits["c1"])], "Y": [swept(start)]},
        "XY",
        **more,
    )
    yield plan(
        "mark and sweep | mark and sweep | move of a reference-less staged entry",
        old_staged,
        lambda start: {"X": [gc(start)], "Y": [collect()], "M": moving},
        "X",
        keeps="M",
        **more,
    )
    yield plan(
        "taken over: mark | mark and sweep of nothing | copy from it",
        old_begun,
        lambda start: {"X": [mark_late(start.mark_id, start.commits["c0"])], "Y": [collect()], "K": [copied(start)]},
        "X",
        keeps="K",
        **more,
    )
    yield plan(
        "taken over: mark and sweep | mark of nothing | move of a reference-less staged entry",
        lambda: old_staged().begin("c0"),
        lambda start: {"X": [go_on(start.mark_id)], "Y": [mark()], "M": moving},
        "X",
        keeps="M",
        refused="",
        **more,
    )
    yield plan(
        "taken over: drop pins | mark and sweep | move of a reference-less staged entry",
        lambda: old_staged().begin(),
        lambda start: {"X": [drop_late_pins()], "Y": [gc(start)], "M": moving},
        keeps="M",
        **more,
    )
    yield plan("gc | move of a reference-less staged entry", old_staged, lambda start: {"X": [gc(start)], "M": moving}, "XM", **more)
    yield plan(
        "gc | move of a reference-less staged entry | commit",
        old_staged,
        lambda start: {"X": [gc(start)], "M": moving, "C": [do.commit("feat", "c2")]},
        keeps="M",
        **more,
    )
    yield plan(
        "gc | branch at an expired commit (crash) | copy from it; delete it",
        old,
        lambda start: {
            "X": [gc(start)],
            "N": [do.create_branch("late", start.commits["c0"])],
            "K": [do.copy("late", "p", "main", "z"), *late],
        },
        "N",
        **more,
    )
    yield plan(
        "gc | tag at an expired commit | delete the tag",
        old,
        lambda start: {"X": [gc(start)], "N": [do.create_tag("v1", start.commits["c0"])], "D": [do.delete_tag("v1")]},
        "XN",
        **more,
    )
    yield plan(
        "gc of a head | delete the branch | copy from it",
        old_head,
        lambda start: {"X": [gc(start)], "D": late, "K": [do.copy("late", "p", "main", "z")]},
        "X",
        **more,
    )
    yield plan(
        "gc | restore | hard delete",
        old_grace,
        lambda start: {"X": [gc(start)], "E": [do.restore("main", "p", start.addresses["P5"])], "H": [HARD_DELETE]},
        "XE",
        keeps="E",
        **more,
    )
    yield plan(
        "gc of a part | copy of the part | copy of the rest",
        old_parts,
        lambda start: {
            "X": [collect_part(start.commits["c0"], "logs")],
            "K": [do.copy(start.commits["c0"], "logs", "feat", "z")],
            "L": [do.copy(start.commits["c0"], "p", "feat", "y")],
        },
        "X",
        keeps="KL",
        **more,
    )
    overwritten: Calls = [COMMIT, OVERWRITE, COMMIT_2]
    yield plan(
        "gc of what never landed | commit; overwrite; commit",
        m1,
        {"X": [collect_given_up()], "C": overwritten},
        "XC",
        keeps="C",
        nothing_marked=True,
        **more,
    )
    yield plan(
        "gc of what never landed | commit | reset",
        m1,
        {"C": [COMMIT], "R": [RESET], "X": [collect_given_up()]},
        "C",
        nothing_marked=True,
        **more,
    )


def same_path_again() -> Iterator[Plan]:
    back = [do.copy("main", "q", "main", "p"), do.delete("main", "q")]
    more = {"group": "same path again"}
    yield plan("copy q->p; delete q | overwrite p | hard delete", pair, {"K": back, "U": [OVERWRITE], "H": [HARD_DELETE]}, "KU", **more)
    yield plan("copy q->p; delete q | delete p | hard delete", pair, {"K": back, "D": [DELETE_P], "H": [HARD_DELETE]}, "D", **more)
    yield plan("copy q->p; delete q | overwrite p | commit; reap", pair, {"K": back, "U": [OVERWRITE], "C": [COMMIT, REAP]}, **more)
    yield plan("move p->q | upload p | hard delete", m1, {"M": [MOVE], "U": [OVERWRITE], "H": [HARD_DELETE]}, "M", somewhere="U", **more)
    yield plan("move p->q | upload p | commit", m1, {"M": [MOVE], "U": [OVERWRITE], "C": [COMMIT]}, somewhere="U", **more)


def lost_replies() -> Iterator[Plan]:
    def lost(name: str, world: Callable[[], Start], tasks: object, crash: str = "", **more: object) -> Plan:
        return plan(f"lost reply: {name}", world, tasks, crash, group="lost replies", **more)

    yield lost("upload | reset | reap", m1, {"U": [UPLOAD_Q], "R": [RESET], "G": [REAP]}, "U", lossy="UUR")
    yield lost("overwrite | overwrite | hard delete", m1, {"U": [OVERWRITE], "V": [OVERWRITE_2], "H": [HARD_DELETE]}, "U", lossy="UUV")
    yield lost("overwrite | commit | reap", m1, {"U": [OVERWRITE], "C": [COMMIT], "G": [REAP]}, lossy="UC", keeps="U")
    yield lost("overwrite | commit; reset | scrub", m1, {"U": [OVERWRITE], "C": [COMMIT, RESET, REAP], "S": [SCRUB]}, lossy="U")
    yield lost("copy main->feat | reset main | reap", m1, {"K": [COPY], "R": [RESET], "G": [REAP]}, "K", lossy="KK", keeps="K")
    over_copy = {"K": [COPY], "V": [do.upload("feat", ("q", "P2"))], "C": [COMMIT, REAP]}
    yield lost("copy main->feat | overwrite the copy | commit main; reap", m1, over_copy, lossy="K")
    yield lost(
        "move p->q | upload p | hard delete", m1, {"M": [MOVE], "U": [OVERWRITE], "H": [HARD_DELETE]}, "M", lossy="MU", somewhere="U"
    )
    yield lost("delete p | overwrite p | reap", m1, {"D": [DELETE_P], "U": [OVERWRITE], "G": [REAP]}, lossy="DDU")
    yield lost("commit | commit | reap", m1, {"C": [COMMIT], "D": [COMMIT_2], "G": [REAP]}, "D", lossy="CC")
    yield lost("commit | upload; commit | reset", m1, {"C": [COMMIT], "D": [UPLOAD_Q, COMMIT_2], "R": [RESET]}, lossy="CDR")
    yield lost("commit | reset | reap", m1, {"C": [COMMIT], "R": [RESET], "G": [REAP]}, "CR", lossy="CCRR")
    again = {"C": [do.commit("side", "c1")], "D": [do.delete_branch("side"), do.create_branch("side", "feat")], "G": [REAP]}
    yield lost("commit | delete branch; create it again | reap", side_branch, again, lossy="CCD")
    yield lost("reset | commit; upload | reap", m1, {"R": [RESET], "C": [COMMIT, UPLOAD_Q], "G": [REAP]}, lossy="RR")
    yield lost("reset | reset; upload | upload", m1, {"R": [RESET], "S": [RESET, UPLOAD_Q], "U": [OVERWRITE]}, lossy="RRS")
    recreate = {"D": [do.delete_branch("feat")], "N": [do.create_branch("feat", "main")], "G": [REAP]}
    yield lost("delete branch | create it again | reap", m1, recreate, "G", lossy="DDN", keeps="N")
    late = {"N": [do.create_branch("late", "main")], "D": [do.delete_branch("late"), REAP], "U": [do.upload("late", ("q", "P1"))]}
    yield lost("create branch | delete it | upload to it | reap", Start, late, "N", lossy="NND")
    yield lost(
        "link | link to the same path | overwrite it | hard delete",
        issued,
        lambda start: {"L": [link(start)], "M": [link(start)], "U": [OVERWRITE], "H": [HARD_DELETE]},
        lossy="LM",
    )
    linking = {"L": [do.issue_and_link("main", "p")], "X": [HARD_DELETE], "R": [RESET, REAP]}
    yield lost("issue; link | expire | reset; reap", Start, linking, "L", lossy="LLX", safety_only=True, ahead_ms={"X": EXPIRED_MS})
    yield lost("reap | upload; commit; reset", m1, {"G": [REAP], "U": [OVERWRITE, COMMIT, RESET]}, "G", lossy="GG")
    yield lost(
        "reap | reap | copy main->feat", lambda: after_reset(m1()), {"G": [REAP], "H": [REAP], "K": [COPY]}, "G", refused="K", lossy="GGH"
    )
    yield lost("reap | reap after commit | reset", committed_m1, {"G": [REAP], "H": [REAP], "R": [RESET]}, lossy="GGH")
    yield lost("scrub | copy main->feat | reset feat; reap", m1, {"S": [SCRUB], "K": [COPY], "R": [RESET_FEAT, REAP]}, lossy="SK")
    yield lost("commit | commit | upload", m1, {"C": [COMMIT], "D": [COMMIT_2], "U": [UPLOAD_Q]}, lossy="C", keeps="U")
    yield lost("commit | commit; upload; reap", m1, {"C": [COMMIT], "D": [COMMIT_2, UPLOAD_Q, REAP]}, lossy="C", keeps="D")
    issuing = {"L": [do.issue_and_link("main", "p")], "X": [HARD_DELETE], "Y": [HARD_DELETE]}
    expired = {"X": EXPIRED_MS, "Y": EXPIRED_MS}
    yield lost("issue; link | expire | expire", Start, issuing, lossy="L", safety_only=True, ahead_ms=expired)
    failing = {"U": [UPLOAD_Q], "C": [COMMIT], "G": [REAP]}
    yield lost("of the object store: upload | commit | reap", m1, failing, "U", lossy_objects="U", keeps="U")


def merges() -> Iterator[Plan]:
    more = {"group": "merges"}
    main_upload = do.upload("main", ("z", "P1"))
    main_commits: Calls = [main_upload, COMMIT_2]
    yield plan("merge feat->main | reap | reset feat", fresh, {"M": [MERGE], "G": [REAP], "R": [RESET_FEAT]}, "MG", **more)
    gone: Calls = [do.delete_branch("feat"), REAP]
    yield plan("merge feat->main | delete branch feat; reap | reap", fresh, {"M": [MERGE], "D": gone, "G": [REAP]}, "M", **more)
    committing: Calls = [do.commit("feat", "c1")]
    yield plan(
        "merge feat->main | commit feat | reset feat; reap", both, {"M": [MERGE], "C": committing, "R": [RESET_FEAT, REAP]}, "MC", **more
    )
    yield plan("merge feat->main | upload main | reap", fresh, {"M": [MERGE], "U": [main_upload], "G": [REAP]}, "U", keeps="U", **more)
    yield plan(
        "merge feat->main | upload main; commit main | reap", fresh, {"M": [MERGE], "C": main_commits, "G": [REAP]}, "M", keeps="C", **more
    )
    from_feat: Calls = [do.copy("feat", "q", "main", "z")]
    yield plan("merge feat->main | copy feat->main | reap", fresh, {"M": [MERGE], "K": from_feat, "G": [REAP]}, keeps="K", **more)
    without_q: Calls = [do.delete("feat", "q"), do.commit("feat", "c2")]
    yield plan("merge feat->main | delete q on feat; commit feat | reap", fresh, {"M": [MERGE], "C": without_q, "G": [REAP]}, "C", **more)
    yield plan("merge feat->main | reset main | scrub", fresh, {"M": [MERGE], "R": [RESET], "S": [SCRUB]}, "M", **more)
    yield plan(
        "lost reply: merge feat->main | commit main | reap",
        fresh,
        {"M": [MERGE], "C": main_commits, "G": [REAP]},
        lossy="MC",
        keeps="C",
        **more,
    )
    yield plan(
        "cherry-pick | delete branch feat; reap | reset main",
        fresh,
        lambda start: {"M": [pick(start)], "D": gone, "R": [RESET]},
        "M",
        **more,
    )

    def undo(start: Start) -> Calls:
        return [do.revert("feat", start.commits["c1"])]

    yield plan("revert on feat | reset feat | reap", fresh, lambda start: {"M": undo(start), "R": [RESET_FEAT], "G": [REAP]}, "M", **more)
    yield plan(
        "revert on feat | upload feat | commit feat; reap",
        fresh,
        lambda start: {"M": undo(start), "U": [do.upload("feat", ("z", "P1"))], "C": [do.commit("feat", "c2"), REAP]},
        keeps="U",
        **more,
    )
    yield plan(
        "aborted commit | cherry-pick of it | reset; reap",
        both,
        lambda start: {"C": committing, "M": [do.cherry_pick("main", foretold(start, "C", committing))], "R": [RESET_FEAT, REAP]},
        "C",
        **more,
    )
    yield plan(
        "aborted commit | branch at it | reset; reap",
        m1,
        lambda start: {"C": [COMMIT], "N": [do.create_branch("late", foretold(start, "C", [COMMIT]))], "R": [RESET, REAP]},
        "C",
        keeps="N",
        **more,
    )


def reset_paths() -> Iterator[Plan]:
    more = {"group": "reset of paths"}
    one: Calls = [do.reset_path("main", "p")]
    yield plan("reset path | commit | reap", m1, {"R": one, "C": [COMMIT], "G": [REAP]}, "RC", **more)
    yield plan("reset path | commit; reset | reap", m1, {"R": one, "C": [COMMIT, RESET], "G": [REAP]}, **more)
    yield plan("reset path | overwrite | hard delete", m1, {"R": one, "U": [OVERWRITE], "H": [HARD_DELETE]}, "RU", **more)
    yield plan("reset path | copy from it | hard delete", m1, {"R": one, "K": [COPY], "H": [HARD_DELETE]}, "RK", keeps="K", **more)
    yield plan("reset path | move from it | commit; reap", m1, {"R": one, "M": [MOVE], "C": [COMMIT, REAP]}, "R", **more)
    yield plan("reset path | reset path | delete path | reap", m1, {"R": one, "S": one, "D": [DELETE_P], "G": [REAP]}, "R", **more)
    prefix: Calls = [do.reset_prefix("main")]
    yield plan("reset prefix (two paths) | commit | scrub", pq, {"R": prefix, "C": [COMMIT, REAP], "S": [SCRUB]}, "R", **more)
    yield plan(
        "lost reply: reset path | overwrite | commit; reap", m1, {"R": one, "U": [OVERWRITE], "C": [COMMIT, REAP]}, lossy="RR", **more
    )


def nothing_changed() -> Iterator[Plan]:
    more = {"group": "nothing changed"}

    def bare() -> Start:
        return same(processed=True)

    def held() -> Start:
        return same(processed=False)

    def empty() -> Start:
        return Start().staged("feat", "q", "P0")

    yield plan("nothing to commit | upload | reap", bare, {"C": [COMMIT_2], "U": [UPLOAD_Q], "G": [REAP]}, "CU", keeps="U", **more)
    third: Calls = [do.commit("main", "c3")]
    yield plan("nothing to commit | commit | upload", bare, {"C": [COMMIT_2], "D": third, "U": [UPLOAD_Q]}, "C", keeps="U", **more)
    yield plan("nothing to commit (held) | reap | reset", held, {"C": [COMMIT_2], "G": [REAP], "R": [RESET]}, "CG", refused="C", **more)
    yield plan("nothing to commit (held) | reap | scrub", held, {"C": [COMMIT_2], "G": [REAP], "S": [SCRUB]}, "C", refused="C", **more)
    yield plan(
        "nothing to commit (held) | copy p->feat | reap",
        held,
        {"C": [COMMIT_2], "K": [COPY], "G": [REAP]},
        "C",
        keeps="K",
        refused="C",
        **more,
    )
    yield plan("nothing to commit (held) | overwrite | reap", held, {"C": [COMMIT_2], "U": [OVERWRITE], "G": [REAP]}, keeps="U", **more)
    copying: Calls = [do.copy("feat", "q", "main", "q")]
    yield plan(
        "nothing to commit | copy feat->main | reset feat; reap",
        empty,
        {"C": [COMMIT], "K": copying, "R": [RESET_FEAT, REAP]},
        "K",
        keeps="K",
        **more,
    )
    yield plan(
        "lost reply: nothing to commit | upload | reap",
        bare,
        {"C": [COMMIT_2], "U": [UPLOAD_Q], "G": [REAP]},
        lossy="CCU",
        keeps="U",
        **more,
    )


def restores() -> Iterator[Plan]:
    def restored(name: str, tasks: Callable[[Start], Mapping[str, Calls]], crash: str = "", **more: object) -> Plan:
        return plan(name, grace, tasks, crash, group="restore", **more)

    def back(start: Start) -> Call:
        return do.restore("main", "p", start.addresses["P5"])

    hard: Calls = [HARD_DELETE]
    yield restored("restore | hard delete | reset; reap", lambda start: {"E": [back(start)], "H": hard, "R": [RESET, REAP]}, "E")
    yield restored(
        "restore | commit; reap | hard delete", lambda start: {"E": [back(start)], "C": [COMMIT, REAP], "H": hard}, "E", keeps="E"
    )
    yield restored(
        "restore | restore elsewhere | hard delete",
        lambda start: {"E": [back(start)], "F": [do.restore("feat", "q", start.addresses["P5"])], "H": hard},
        "EF",
        keeps="EF",
    )
    yield restored(
        "restore; delete | restore again | hard delete", lambda start: {"E": [back(start), DELETE_P], "F": [back(start)], "H": hard}, "E"
    )
    yield restored("restore | reset; reap | scrub", lambda start: {"E": [back(start)], "R": [RESET, REAP], "S": [SCRUB]}, "E")
    yield plan(
        "delete p | restore | copy p->feat | hard delete",
        m1,
        lambda start: {"D": [DELETE_P], "E": [do.restore("main", "z", start.addresses["P0"])], "K": [COPY], "H": hard},
        "D",
        keeps="EK",
        group="restore",
    )
    yield restored(
        "lost reply: restore | hard delete | reset; reap", lambda start: {"E": [back(start)], "H": hard, "R": [RESET, REAP]}, lossy="EEH"
    )


def zero_grace() -> Iterator[Plan]:
    def zero(name: str, world: Callable[[], Start], tasks: Mapping[str, Calls], crash: str = "", **more: object) -> Plan:
        return plan(f"zero grace: {name}", world, tasks, crash, group="zero grace", **more)

    reap: Calls = [REAP_DIRECT]
    yield zero("overwrite | copy p->feat | hard delete", m1, {"U": [OVERWRITE], "K": [COPY], "H": [HARD_DELETE]}, "UK", keeps="UK")
    yield zero("overwrite | commit | reap", m1, {"U": [OVERWRITE], "C": [COMMIT], "G": reap}, "UC", keeps="U")
    yield zero("late write | commit; reset | reap", Start, {"U": [OVERWRITE], "C": [COMMIT, RESET], "G": reap}, "U")
    yield zero("copy main->feat | reset main | reap", m1, {"K": [COPY], "R": [RESET], "G": reap}, "KG", keeps="K")
    yield zero("delete p | delete p | reap", m1, {"D": [DELETE_P], "E": [DELETE_P], "G": reap}, "D")
    yield zero("shared: reset main | delete q on feat | reap", two, {"R": [RESET], "D": [do.delete("feat", "q")], "G": reap}, "RD")
    yield zero("reap | reap | scrub", lambda: after_reset(m1()), {"G": reap, "H": reap, "S": [SCRUB]}, "G")
    yield zero("lost reply: reap | reap", lambda: after_reset(m1()), {"G": reap, "H": reap}, "G", lossy="GGH")


def repository_deletion() -> Iterator[Plan]:
    more = {"group": "repository deletion"}
    gone: Calls = [do.delete_repository()]
    branch = do.create_branch("late", "main")
    yield plan("repository deletion | upload | reap", m1, {"D": gone, "U": [UPLOAD_Q], "G": [REAP]}, "DU", **more)
    and_upload: Calls = [branch, do.upload("late", ("q", "P1"))]
    yield plan("repository deletion | create branch; upload | reap", m1, {"D": gone, "N": and_upload, "G": [REAP]}, "DN", **more)
    yield plan("repository deletion | commit | reap", m1, {"D": gone, "C": [COMMIT], "G": [REAP]}, "DC", **more)
    yield plan("repository deletion | copy main->feat | reap", m1, {"D": gone, "K": [COPY], "G": [REAP]}, "DK", **more)
    yield plan("lost reply: repository deletion | create branch | reap", m1, {"D": gone, "N": [branch], "G": [REAP]}, lossy="DNN", **more)


def registry_markers_hints() -> Iterator[Plan]:
    more = {"group": "registry, markers, hints"}

    def bare() -> Start:
        return m1(hinted=False)

    yield plan("markers: commit | reset", m1, {"C": [COMMIT], "R": [RESET]}, "CR", **more)
    yield plan("markers: commit | reap | reap", m1, {"C": [COMMIT], "G": [REAP], "H": [REAP]}, **more)
    yield plan("long upload | reset; reap | scrub", Start, {"U": [OVERWRITE], "R": [RESET, REAP], "S": [SCRUB]}, **more)
    yield plan("markers: reap after commit | scrub", committed_m1, {"G": [REAP], "S": [SCRUB], "H": [REAP]}, "G", **more)

    def shared() -> Start:
        start = two()
        start.repo.commit("main", "c1")
        start.repo.reset("main")
        return start

    copying: Calls = [do.copy("feat", "q", "main", "z")]
    yield plan(
        "markers: reap after commit; reset | scrub | copy p->feat",
        shared,
        {"G": [REAP], "S": [SCRUB], "K": copying},
        "G",
        keeps="K",
        **more,
    )
    yield plan("hints: overwrite (crash) | reap | scrub", bare, {"U": [OVERWRITE], "G": [REAP], "S": [SCRUB]}, "UG", **more)
    yield plan("hints: reset | reap (crash) | reap", bare, {"R": [RESET], "G": [REAP], "H": [REAP]}, "G", **more)
    linking: Calls = [do.issue_and_link("main", "p")]
    yield plan(
        "hints: issue (crash); link | hard delete | scrub", Start, {"L": linking, "H": [HARD_DELETE], "S": [SCRUB]}, "L", keeps="L", **more
    )
    yield plan(
        "hints: issue; link | scrub | expire (safety only)",
        Start,
        {"L": linking, "S": [SCRUB], "X": [HARD_DELETE]},
        "LX",
        safety_only=True,
        ahead_ms={"X": EXPIRED_MS},
        **more,
    )
    yield plan(
        "hints: delete p | restore | hard delete | scrub",
        bare,
        lambda start: {"D": [DELETE_P], "E": [do.restore("main", "z", start.addresses["P0"])], "H": [HARD_DELETE], "S": [SCRUB]},
        "D",
        keeps="E",
        **more,
    )


def clocks() -> Iterator[Plan]:
    """Worlds with ages, in which the clock goes on: past grace at any moment, past the longest operation when none is under way."""

    def aged(
        name: str, world: Callable[[Safety], Start], tasks: Callable[[Start], Mapping[str, Calls]], crash: str = "", **more: object
    ) -> Plan:
        return plan(name, lambda: world(AGES), tasks, crash, clock_moves=True, group="clocks", **more)

    def bare(safety: Safety) -> Start:
        return Start(safety).staged("main", "p", "P0", hinted=False)

    def minutes(start: Start) -> Calls:
        return [do.set_clock(start.world.clock.now_ms() + 900_000, waits=False)]

    def hours(start: Start) -> Calls:
        return [do.set_clock(start.world.clock.now_ms() + 4 * 3_600_000, waits=True)]

    hard: Calls = [HARD_DELETE]
    yield aged(
        "clock past grace: delete p | restore | hard delete",
        bare,
        lambda start: {"D": [DELETE_P], "E": [do.restore("main", "z", start.addresses["P0"])], "H": hard, "T": minutes(start)},
        "D",
        keeps="E",
    )
    yield aged(
        "clock past grace: overwrite | copy p->feat | hard delete",
        bare,
        lambda start: {"U": [OVERWRITE], "K": [COPY], "H": hard, "T": minutes(start)},
        "U",
        keeps="UK",
    )
    yield aged(
        "clock past expiry: issue; link | hard delete",
        Start,
        lambda start: {"L": [do.issue_and_link("main", "p")], "H": hard, "T": minutes(start)},
        "L",
        keeps="L",
        safety_only=True,  # what is put after its address was reaped is the offline job's
    )
    yield aged(
        "clock past grace: upload | reset; process; scrub; clock; hard delete",
        Start,
        lambda start: {"U": [OVERWRITE], "R": [RESET, PROCESS, SCRUB, *minutes(start), HARD_DELETE]},
    )
    yield aged(
        "clock past all ages: upload | reset; reap | scrub",
        bare,
        lambda start: {"U": [UPLOAD_Q], "R": [RESET, REAP], "S": EVERYTHING, "T": hours(start)},
        "U",
    )
    yield aged(
        "registry: reset (crash) | scrub | upload",
        bare,
        lambda start: {"R": [RESET], "S": TOKENS, "U": [UPLOAD_Q], "T": hours(start)},
        "RU",
    )
    yield aged(
        "registry: commit (crash) | upload | scrub",
        bare,
        lambda start: {"C": [COMMIT], "U": [UPLOAD_Q], "S": TOKENS, "T": hours(start)},
        "C",
        keeps="U",
    )
    yield aged(
        "registry: late write | reset; reap | scrub",
        Start,
        lambda start: {"U": [OVERWRITE], "R": [RESET, REAP], "S": TOKENS, "T": hours(start)},
        "U",
    )
    yield aged(
        "registry: create branch (crash) | scrub | delete branch",
        bare,
        lambda start: {"N": [do.create_branch("late", "main")], "S": TOKENS, "D": [do.delete_branch("feat"), REAP], "T": hours(start)},
        "ND",
    )


def readers() -> Iterator[Plan]:
    """What is there all the time is found all the time (rule 12)."""
    more = {"group": "readers"}
    look: Calls = [do.read("main", "p")]
    listing: Calls = [do.list_all("main", "p")]
    yield plan("read p | commit; reap", m1, {"L": look, "C": [COMMIT, REAP]}, "C", **more)
    yield plan("list | commit; reap", m1, {"L": listing, "C": [COMMIT, REAP]}, "C", **more)
    yield plan("read p | overwrite | hard delete", m1, {"L": look, "U": [OVERWRITE], "H": [HARD_DELETE]}, "U", **more)
    yield plan("read p | overwrite | commit; reap", m1, {"L": look, "U": [OVERWRITE], "C": [COMMIT, REAP]}, "U", **more)
    yield plan("list | overwrite | commit; reap", m1, {"L": listing, "U": [OVERWRITE], "C": [COMMIT, REAP]}, **more)
    anew = committed_m1
    yield plan("read p | overwrite; reset; reap", anew, {"L": look, "U": [OVERWRITE, RESET, REAP]}, "U", **more)
    yield plan("list | overwrite; reset; reap", anew, {"L": listing, "U": [OVERWRITE, RESET, REAP]}, "U", **more)


def batches() -> Iterator[Plan]:
    more = {"group": "batches"}
    two_paths: Calls = [do.upload("main", ("p", "P1"), ("q", "P2"))]
    three = do.upload("main", ("q", "P3"))
    deletion: Calls = [do.delete("main", "p", "q")]
    yield plan("batch: overwrite p and q | commit | reap", pq, {"U": two_paths, "C": [COMMIT], "G": [REAP]}, "UC", keeps="U", **more)
    yield plan("batch: overwrite p and q | commit; reset | reap", pq, {"U": two_paths, "C": [COMMIT, RESET], "G": [REAP]}, **more)
    yield plan("batch: overwrite p and q | overwrite q | hard delete", pq, {"U": two_paths, "V": [three], "H": [HARD_DELETE]}, "UV", **more)
    yield plan("batch: delete p and q | commit | reap", pq, {"D": deletion, "C": [COMMIT], "G": [REAP]}, "D", **more)
    yield plan(
        "batch: delete p and q | copy p->feat | hard delete", pq, {"D": deletion, "K": [COPY], "H": [HARD_DELETE]}, "D", keeps="K", **more
    )
    yield plan("lost reply: batch: overwrite p and q | reset; reap", pq, {"U": two_paths, "R": [RESET, REAP]}, "U", lossy="UU", **more)
    yield plan(
        "lost reply: batch: overwrite p and q | overwrite q | hard delete",
        pq,
        {"U": two_paths, "V": [three], "H": [HARD_DELETE]},
        lossy="UUV",
        **more,
    )


def pages() -> Iterator[Plan]:
    """Tokens that take the reaper several pages."""
    more = {"group": "pages"}

    def reset_pq() -> Start:
        return after_reset(pq())

    def committed_pq() -> Start:
        start = pq()
        start.repo.commit("main", "c1")
        return start

    paged: Calls = [REAP_PAGED]
    yield plan("pages: reap | reap (crash) after reset", reset_pq, {"G": paged, "H": paged}, "G", **more)
    yield plan(
        "pages: reap (crash) | reap after commit | overwrite p",
        committed_pq,
        {"G": paged, "H": paged, "U": [OVERWRITE]},
        "G",
        keeps="U",
        **more,
    )
    yield plan("pages: zero grace: reap (crash) | reap after reset", reset_pq, {"G": [REAP_PAGED_DIRECT], "H": paged}, "G", **more)
    yield plan("pages: reap | late write | scrub", reset_pq, {"G": paged, "U": [OVERWRITE], "S": [SCRUB]}, keeps="U", **more)


def every() -> Iterator[Plan]:
    for group in (
        first_28,
        collections,
        marks,
        same_path_again,
        lost_replies,
        merges,
        reset_paths,
        nothing_changed,
        restores,
        zero_grace,
        repository_deletion,
        registry_markers_hints,
        clocks,
        readers,
        pages,
        batches,
    ):
        yield from group()
