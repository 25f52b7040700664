"""Marks: what the offline job decides in the KV. Marking, pins, the live scan, unmark, and what a sweep
excludes (rules 13 and 14).

    run      begin --> marking --finish_marking--> marked | needs confirmation --confirm--> marked
             marked --begin_sweep--> sweeping --finish_sweep--> swept
             unmark, abandon, or a run that takes over: --> abandoned (until the sweep)
    commit   active --begin--> marked --begin_sweep--> sweeping --finish_sweep--> swept
                                      --unmark, or unmark_complete--> active

A sweep that tags is sweeping until the bucket has deleted everything. `note_tagged` says since when everything is
tagged; the run is shown as "tagged".

    mark:    begin, wait, then the object listing, then scan_live, unmark_complete, finish_marking
    sweep:   begin_sweep, then excluded_commits, then the deletions, finish_sweep

The caller lists, reads the trees of commits, and deletes. These scale with objects; here only `scan_live` does. The
caller must read `excluded_commits` *after* `begin_sweep` returned, and must not delete what these commits name.

    runs.py          the records of runs, and the flag of the active run
    commit_marks.py  the marks of commits
    live_set.py      what must be kept, in the order in which it has to be read
    sweep_records.py the records of an address in the files of a run: its mark, and its outcome
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import ids, keys
from refstore.core.batches import batched
from refstore.core.ids import Address, CommitId
from refstore.core.records import Branch, Commit, Complete, GcFlag, GcRun, Mark, decode, decode_branch, maybe
from refstore.core.safety import Safety
from refstore.errors import Conflict, Gone, InvalidName
from refstore.gc_marks.commit_marks import PAGE, CommitMarks
from refstore.gc_marks.live_set import LiveBatch, LiveCommit, LiveSource, scan_live_set
from refstore.gc_marks.runs import STANDING, TAGGED, TAKE_OVER_MS, Run, Runs, RunState
from refstore.kv.base import ABSENT

__all__ = [
    "OBJECTS_EXPIRED",
    "STANDING",
    "TAGGED",
    "TAKE_OVER_MS",
    "LiveBatch",
    "LiveCommit",
    "LiveSource",
    "Marks",
    "Run",
    "RunState",
    "ShownMark",
    "barrier_seconds",
    "new_mark_id",
    "pin",
]

BEAT_SECONDS: Final = 60.0
PREFIX_MIN: Final = 6
"""How much of a mark id must be given at least."""
OBJECTS_EXPIRED: Final = "objects_expired"
"""The count of a run: how many of its objects expired commits named. The others are orphans."""
CHECK_SECONDS: Final = 1.0
"""How often a wait asks whether it is to end."""


def new_mark_id(ctx: Context) -> str:
    """Return a new mark id. Mark ids sort by time."""
    return ctx.ids.unique(ctx.clock.now_ms())


def barrier_seconds(waits: Safety) -> float:
    """Return how long to wait after the last mark, until every operation that did not see it has ended.

    This contains the time of a request twice: the mark may land so late where its first reply was lost, and so may the
    operation's last write.
    """
    return waits.operation_deadline_seconds + 2 * waits.io_timeout_seconds + waits.clock_skew_seconds


def pin(ctx: Context, addresses: Iterable[Address]) -> None:
    """Pin these addresses so that the active run keeps them.

    A copy of an entry without a reference calls this before it reads the source again (rule 13). The run may have
    scanned the copy's target already, and may not find its source any more.
    """
    held = maybe(ctx.kv.get(keys.gc_flag(ctx.repo)), GcFlag)
    if held is not None:
        ctx.kv.set_many([(keys.gc_pin(ctx.repo, held.mark_id, address), b"") for address in dict.fromkeys(addresses)])


class ShownMark(NamedTuple):
    """What is shown of a commit."""

    mark: Mark | None = None
    complete: Complete | None = None
    examined_by: str = ""
    """The run that has marked it for its look, and has yet to find whether anything of it goes."""


class Marks:
    """The marks of one repository. An instance is for one thread."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._clock = ctx.clock
        self._runs = Runs(ctx)
        self._commits = CommitMarks(ctx)

    # ---- a run of marking

    def begin(
        self,
        rules_digest: str,
        grace_ms: int,
        commits: Iterable[CommitId],
        mark_id: str,
        *,
        partly: Iterable[tuple[CommitId, tuple[str, ...]]] = (),
        owner: str = "",
        take_over: bool = False,
    ) -> Run:
        """Set the run flag and mark `commits`, except heads of branches and tags, and what is marked already.

        `partly`: commits of which only some paths have expired, with the prefixes of these paths. The active run is
        abandoned if it is dead, or with `take_over`; else this raises Conflict. Raises AlreadyExists: a mark id is for
        one run; after a crash, begin under a new one.
        """
        self._runs.check_new(mark_id)
        self._runs.take_flag(mark_id, owner, take_over=take_over)
        disregards = self._end_earlier(mark_id)
        now = self._clock.now_ms()
        deletes_at = now + grace_ms
        run = self._runs.create(
            mark_id, GcRun(self._runs.write_id(), RunState.MARKING, now, grace_ms, deletes_at, rules_digest, disregards)
        )
        heads = self._commits.heads()
        counts = {"commits_marked": 0, "commits_partly_marked": 0, "heads_left_out": 0}
        wanted = ((commit, Mark(now, deletes_at, mark_id)) for commit in commits)
        part = (
            (commit, Mark(now, deletes_at, mark_id, prefixes=tuple(sorted(set(prefixes)))))
            for commit, prefixes in partly
            if prefixes
        )
        for name, marks in (("commits_marked", wanted), ("commits_partly_marked", part)):
            for page in batched(marks, PAGE):
                self._runs.check_on(
                    mark_id
                )  # one that was taken over stops here; what it marked since is cleared by the next
                counts["heads_left_out"] += sum(commit in heads for commit, _ in page)
                counts[name] += self._commits.put({commit: mark for commit, mark in page if commit not in heads})
        run = self._runs.change(run, marked_ms=self._clock.now_ms(), counts=counts)
        return run._replace(marked_at_seconds=self._clock.monotonic_seconds())

    def barrier_over_at(self, run: Run) -> int:
        """Return when every operation that began before the last mark has ended. List and scan after that."""
        return run.record.marked_ms + math.ceil(barrier_seconds(self._ctx.waits) * 1000)

    def wait(self, run: Run, *, check: Callable[[float], None] | None = None) -> None:
        """Wait until the barrier is over. Raises Conflict if the run was taken over meanwhile.

        `check` is called every few seconds with the seconds that are left; what it raises ends the wait.
        """
        left = (self.barrier_over_at(run) - self._clock.now_ms()) / 1000
        if run.marked_at_seconds is not None:
            left = max(left, run.marked_at_seconds + barrier_seconds(self._ctx.waits) - self._clock.monotonic_seconds())
        since_beat = 0.0
        if check is not None and left > 0:
            check(left)
        while left > 0:
            step = min(left, BEAT_SECONDS if check is None else CHECK_SECONDS)
            self._clock.sleep(step)
            left -= step
            since_beat += step
            if check is not None:
                check(left)
            if left > 0 and since_beat >= BEAT_SECONDS:
                since_beat = 0.0
                self.beat(run)

    def beat(self, run: Run) -> None:
        """Say that the run is alive; its process calls this now and then. Raises Conflict if the run was taken over."""
        self._runs.beat(run.mark_id)

    def scan_live(self, run: Run, *, page: int = PAGE) -> Iterator[LiveBatch]:
        """Yield everything that must be kept, in the reading order of rule 13. The object listing must be *complete*
        before this begins.

        Read it to its end: only then is it known that the run was active throughout. Raises Conflict (too early, or
        taken over), Corrupt (nothing may be marked then).
        """
        if self._clock.now_ms() < self.barrier_over_at(run):
            raise Conflict(
                f"mark {run.mark_id} has to wait for operations that began before it; look again when they are over"
            )
        yield from scan_live_set(self._ctx, run, page)
        self._runs.check_on(run.mark_id)

    def finish_marking(self, run: Run, counts: Mapping[str, int], *, question: str = "") -> Run:
        """Let the mark stand. `question`: what an operator has to confirm before the sweep. Raises Conflict."""
        self._runs.check_on(run.mark_id)
        state = RunState.NEEDS_CONFIRMATION if question else RunState.MARKED
        counted = {**run.record.counts, **counts}
        after = {
            "state": state.value,
            "counts": counted,
            "question": question,
            "deletes_at_ms": run.record.deletes_at_ms,
        }
        with self._ctx.audit.act(
            "gc.mark", repository=self._ctx.name, target=run.mark_id, after=after, bounded_wait=False
        ):
            done = self._runs.change(
                run, state=state, finished_ms=self._clock.now_ms(), counts=counted, question=question
            )
        self._runs.end(run.mark_id)
        return done

    def may_be_complete(self, run: Run) -> Iterator[CommitId]:
        """Yield what this run marked, and may unmark where it names no garbage: no commit of which a part was swept."""
        for page in self._commits.by(run.mark_id):
            yield from (
                item.commit for item in page if item.mark and item.pending(run.mark_id) and not item.mark.earlier
            )

    def unmark_complete(self, run: Run, commits: Collection[CommitId]) -> int:
        """Make active again what this run marked and found complete: no mark takes anything that it names. Return how
        many of them were marked as a whole.

        Call this after the live scan, and before `finish_marking` (rule 13): only landed commits. Raises Conflict if
        the run was taken over.
        """
        self._runs.check_on(run.mark_id)
        whole = self._commits.take_off_complete(run.mark_id, commits)
        self._commits.note_complete(whole, Complete(self._clock.now_ms(), run.mark_id))
        return len(whole)

    def abandon(self, run: Run, why: str = "given up") -> None:
        """End a run that marks nothing: its commits are active again. A run whose sweep began stays as it is."""
        if self._runs.give_up(run.mark_id, why):
            self._commits.clear(run.mark_id)
        self._runs.end(run.mark_id)

    def abandon_of(self, owner: str) -> str:
        """End the run of an `owner` that is known to be dead, so that the next run need not wait. Return its mark id;
        '' if there is none.
        """
        flag = self._runs.on()
        if flag is None or flag.owner != owner:
            return ""
        if self._runs.give_up(flag.mark_id, "stopped", unfinished_only=True):
            self._commits.clear(flag.mark_id)
        self._runs.end(flag.mark_id)
        return flag.mark_id

    def _end_earlier(self, mark_id: str) -> tuple[str, ...]:
        """Clear what failed runs left; return the marks that stand. The flag is ours, so no other run will finish."""
        standing: list[str] = []
        for run in list(self._runs.all()):
            state = run.state
            if state is RunState.MARKING and self._runs.give_up(
                run.mark_id, f"taken over by {mark_id}", unfinished_only=True
            ):
                state = RunState.ABANDONED
            if state in STANDING:
                standing.append(run.mark_id)
            elif state is RunState.ABANDONED:
                self._commits.clear(run.mark_id)  # also what it marked after it was taken over
        self._runs.drop_late_pins()
        return tuple(standing)

    # ---- what stands

    def runs(self) -> Iterator[Run]:
        """Yield all runs in order of mark id: by time, where the ids are `new_mark_id`'s."""
        return self._runs.all()

    def run(self, mark_id: str) -> Run:
        """Raises NotFound."""
        return self._runs.get(mark_id)

    def full_id(self, text: str) -> str:
        """Return the id of the only mark that begins so; the text itself if none or several do."""
        matches = [run.mark_id for run in self._runs.all() if run.mark_id.startswith(text)]
        return matches[0] if len(text) >= PREFIX_MIN and len(matches) == 1 else text

    def knows(self, mark_id: str) -> bool:
        """Return whether there is such a mark."""
        return self._runs.knows(mark_id)

    def on(self) -> GcFlag | None:
        """Return the flag of the run that marks now."""
        return self._runs.on()

    def scan(self) -> Iterator[tuple[CommitId, Mark]]:
        """Yield every commit that is marked, being swept, or swept."""
        return self._commits.scan()

    def of(self, commits: Sequence[CommitId]) -> list[Mark | None]:
        return self._commits.of(commits)

    def complete(self, commits: Sequence[CommitId]) -> list[Complete | None]:
        """Return which of them have expired and were found complete by the last run."""
        return self._commits.complete(commits)

    def shown(self, commits: Sequence[CommitId]) -> list[ShownMark]:
        """Return what to show of each: its mark, or that it is complete. By the mark of a run that has yet to find what
        goes nothing is going to be deleted: such a commit is shown as before that run, or as examined by it.
        """
        marks, complete = self.of(commits), self.complete(commits)
        states = self._runs.states({mark.mark_id for mark in marks if mark is not None and not mark.sweeping_ms})
        return [
            self._shown(mark, found, states.get(mark.mark_id) if mark is not None else None)
            for mark, found in zip(marks, complete, strict=True)
        ]

    @staticmethod
    def _shown(mark: Mark | None, complete: Complete | None, state: RunState | None) -> ShownMark:
        if mark is None:
            return ShownMark(None, complete)
        if state not in (RunState.MARKING, RunState.ABANDONED):
            return ShownMark(mark)
        if complete is not None:
            return ShownMark(None, complete)
        if mark.earlier:
            return ShownMark(decode(mark.earlier, Mark))
        is_examined = state is RunState.MARKING and not mark.prefixes
        return ShownMark(examined_by=mark.mark_id if is_examined else "")

    def marked(self, mark_id: str) -> Iterator[CommitId]:
        """Yield what the run marked, whatever became of it since."""
        return (item.commit for page in self._commits.by(mark_id) for item in page)

    def marked_again(self, run: Run, commits: Iterable[CommitId]) -> list[CommitId]:
        """Return those of `commits`, which `run` marks, that an earlier mark had before. What they name drops out of
        that mark (rule 14), so it goes with this run or not at all.
        """
        wanted = dict.fromkeys(commits)
        earlier = set(run.record.disregards)
        for mark_id in run.record.disregards:
            earlier.update(self._runs.get(mark_id).record.disregards)
        if not wanted:
            return []
        listed = {commit for mark_id in earlier for commit in self._commits.listed_by(mark_id)}
        return [commit for commit in wanted if commit in listed]

    def heads(self) -> set[CommitId]:
        """Return what branches and tags name. Heads are active, marked or not."""
        return self._commits.heads()

    def given_up(self) -> Iterator[CommitId]:
        """Yield commits that never landed and never will. The next run marks them, so that a sweep deletes what they
        left.

        The branch is read before the landed mark, in the direction in which a commit moves. A commit whose tokens are
        not all sealed any more can never land, because a token is sealed once.
        """
        markers = self._ctx.markers
        for page in batched(self._ctx.kv.scan_all(keys.commits(self._ctx.repo)), PAGE):
            names = [CommitId(name) for name, _ in page]
            landed = self._ctx.kv.get_many([keys.landed(self._ctx.repo, name) for name in names])
            for name, (_, value), known, mark in zip(names, page, landed, self._commits.of(names), strict=True):
                tokens = decode(value, Commit).tokens
                if (
                    known is ABSENT
                    and mark is None
                    and tokens
                    and not self._may_land(tokens)
                    and not markers.landed(name)
                ):
                    yield name

    def _may_land(self, tokens: Sequence[str]) -> bool:
        value = self._ctx.kv.get(keys.branch(self._ctx.repo, ids.branch_of(ids.staging_token(tokens[0]))))
        record = decode_branch(value) if value is not ABSENT else None
        return isinstance(record, Branch) and set(tokens) <= {record.token, *record.sealed}

    # ---- unmark, confirm

    def confirm(self, mark_id: str, by: str) -> Run:
        """Confirm a mark that needs it. Raises NotFound, Conflict."""
        run = self._runs.get(mark_id)
        if run.state is not RunState.NEEDS_CONFIRMATION:
            raise Conflict(f"mark {mark_id} is {run.state}; only one that needs confirmation can be confirmed")
        before = {"state": run.state.value, "question": run.record.question}
        after = {"state": RunState.MARKED.value, "confirmed_by": by}
        with self._ctx.audit.change(
            "gc.confirm", repository=self._ctx.name, target=mark_id, before=before, after=after
        ):
            return self._runs.change(run, state=RunState.MARKED, confirmed_by=by, confirmed_ms=self._clock.now_ms())

    def pending(self, mark_id: str) -> Iterator[CommitId]:
        """Yield what this run marked and can still be unmarked."""
        return (item.commit for page in self._commits.by(mark_id) for item in page if item.pending(mark_id))

    def check_unmark(self, which: str) -> None:
        """Raise what `unmark` would raise now, and change nothing."""
        if _is_commit(which):
            self._commits.check_pending(CommitId(which))
        elif self._runs.get(which).state in (RunState.SWEEPING, RunState.SWEPT):
            raise _too_late(which)

    def unmark(self, which: str) -> int:
        """Make a commit, or all that a mark id marked, active again; return how many. Raises Gone once the sweep began
        (rule 14).

        Raises NotFound (no such mark), Conflict (the commit is not marked).
        """
        self.check_unmark(which)
        with self._ctx.audit.act("gc.unmark", repository=self._ctx.name, target=which, bounded_wait=False) as told:
            count = self._unmark(which)
            told.after = {"unmarked": count}
        return count

    def _unmark(self, which: str) -> int:
        if _is_commit(which):
            self._abandon_empty(self._commits.clear_one(CommitId(which)))
            return 1
        if self._runs.get(which).state in (RunState.SWEEPING, RunState.SWEPT) or not self._runs.give_up(
            which, "unmarked"
        ):
            raise _too_late(which)
        count = self._commits.clear(which)
        self._runs.end(which)
        return count

    def _abandon_empty(self, mark_id: str) -> None:
        """Abandon a mark of which the last commit was unmarked, if it holds nothing but what expired commits named."""
        if not self._runs.knows(mark_id):
            return
        run = self._runs.get(mark_id)
        counts = run.record.counts
        only_expired = OBJECTS_EXPIRED in counts and counts[OBJECTS_EXPIRED] == counts.get("objects")
        waits = run.state in (RunState.MARKED, RunState.NEEDS_CONFIRMATION)
        if waits and only_expired and next(self.pending(mark_id), None) is None:
            self._runs.give_up(mark_id, "unmarked")

    def unmark_where(self, mark_id: str, which: Callable[[CommitId, Mark], bool]) -> int:
        """Make active again what a mark marked and `which` chooses; return how many. What is being swept stays as it
        is.
        """
        return self._commits.clear(mark_id, which)

    # ---- the sweep

    def begin_sweep(self, mark_id: str) -> Run:
        """Begin the sweep: from here on the mark cannot be taken back. Heads are unmarked. Call it again after a crash.

        Raises Conflict (not due, not confirmed, not finished), Gone (unmarked), NotFound. A run that was swept is
        returned as it is.
        """
        run = self._start_sweeping(mark_id)
        if run.state is RunState.SWEEPING:
            self._commits.send(mark_id, self._commits.heads(), self._clock.now_ms())
        return run

    def excluded_commits(self, run: Run) -> Iterator[tuple[CommitId, Commit]]:
        """Yield commits that the live scan disregarded and that are not being swept: a sweep must not delete what they
        name.

        They were unmarked since, marked by a later run since, or stand under an older mark that is not swept yet. Read
        this after `begin_sweep`: from then on none can be added.
        """
        disregarded = (run.mark_id, *run.record.disregards)
        for mark_id in disregarded:
            for page in self._commits.by(mark_id):
                yield from self._commits.records(item.commit for item in page if not item.going(*disregarded))

    def taken_back(self, run: Run) -> Iterator[tuple[CommitId, Commit]]:
        """Yield the commits that the live scan disregarded and that are not marked by one of these runs any more: they
        were unmarked, or are marked by a later run. The sweep will exclude them, whatever becomes of them.
        """
        disregarded = (run.mark_id, *run.record.disregards)
        for mark_id in disregarded:
            for page in self._commits.by(mark_id):
                yield from self._commits.records(
                    item.commit for item in page if item.mark is None or item.mark.mark_id not in disregarded
                )

    def counts(self, run: Run) -> dict[str, int]:
        """Return what a run counted. Of a mark that stands, the commits are those that it still has, and
        `commits_unmarked` are the others: what these name stays, so the mark holds at most the objects that it counted.
        """
        if run.state not in STANDING:
            return run.record.counts
        whole = partly = unmarked = 0
        for page in self._commits.by(run.mark_id):
            for item in page:
                is_own = item.mark is not None and item.mark.mark_id == run.mark_id
                whole += is_own and item.mark is not None and not item.mark.prefixes
                partly += is_own and item.mark is not None and bool(item.mark.prefixes)
                unmarked += not is_own
        commits = {"commits_marked": whole, "commits_partly_marked": partly, "commits_unmarked": unmarked}
        return {**run.record.counts, **commits}

    def records(self, commits: Iterable[CommitId]) -> Iterator[tuple[CommitId, Commit]]:
        """Raises Corrupt where one is missing."""
        return self._commits.records(commits)

    def note_tagged(self, mark_id: str, counts: Mapping[str, int]) -> Run:
        """Note that everything is tagged, and the sweep waits for the bucket. Call it again after a crash."""
        run = self._runs.get(mark_id)
        if run.state is not RunState.SWEEPING:
            raise Conflict(f"mark {mark_id} is {run.shown}; begin its sweep first")
        if run.is_tagged:
            return run
        now = self._clock.now_ms()
        self._commits.tag(mark_id, now)
        return self._runs.change(run, tagged_ms=now, swept=dict(counts))

    def finish_sweep(self, mark_id: str, counts: Mapping[str, int]) -> Run:
        """Finish the sweep after all deletions: the commits are swept. Call it again after a crash."""
        run = self._runs.get(mark_id)
        if run.state is RunState.SWEPT:
            return run
        if run.state is not RunState.SWEEPING:
            raise Conflict(f"mark {mark_id} is {run.state}; begin its sweep first")
        now = self._clock.now_ms()
        self._commits.sweep(mark_id, now)
        return self._runs.change(run, state=RunState.SWEPT, swept_ms=now, swept=dict(counts))

    def _start_sweeping(self, mark_id: str) -> Run:
        run = self._runs.get(mark_id)
        match run.state:
            case RunState.SWEPT | RunState.SWEEPING:
                return run
            case RunState.MARKING:
                raise Conflict(f"mark {mark_id} was not finished; run the marking again")
            case RunState.ABANDONED:
                raise Gone(
                    f"mark {mark_id} is abandoned ({run.record.ended}) and will not be swept; run the marking again"
                )
            case RunState.NEEDS_CONFIRMATION:
                raise Conflict(f"mark {mark_id} needs confirmation: {run.record.question}; confirm it first")
            case RunState.MARKED:
                now = self._clock.now_ms()
                if now < run.record.deletes_at_ms:
                    raise Conflict(
                        f"mark {mark_id} is not due for another {(run.record.deletes_at_ms - now) // 1000} s; wait, or "
                        "unmark it"
                    )
                return self._runs.change(run, state=RunState.SWEEPING, sweep_began_ms=now)


def _too_late(mark_id: str) -> Gone:
    return Gone(f"mark {mark_id} cannot be undone any more; it has begun to delete")


def _is_commit(text: str) -> bool:
    try:
        ids.commit_id(text)
    except InvalidName:
        return False
    return True
