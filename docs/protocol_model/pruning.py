"""A store that refstore does not own, pruned beside those who write to it (rule 25). They write as lakeFS does.

The clock goes in ticks. A request, and the deletion of a batch, may see one tick, and no second one; the time between
requests has no bound. A run is a call `prune`, then a call `delete_due` for each object that is due.
"""

# ruff: noqa: ARG002  # a hook for mutants takes arguments that are not used here

from __future__ import annotations

from typing import NamedTuple

from .calls import Do
from .invariants import named
from .store import Branch, Commit, Entry, Retry, Steps, Store

MIN_AGE = 2
"""In ticks. What is younger may be named for the first time; a link is valid as long."""
GRACE = 2
"""Between the run that marks an object and one that may delete it. It is longer than any request."""
READING_AGE = 1
"""As long as a run may delete by what it read."""


class Object(NamedTuple):
    """What a listing shows of an object."""

    version: str
    """Its ETag and size."""
    written: int
    """Of an upload in parts: when it began."""


class Marked(NamedTuple):
    """An object that was found unnamed, by this run and each before it since then."""

    key: str
    object: Object
    since: int


class Lock(NamedTuple):
    run: int
    """Runs have numbers in the order in which they begin."""
    read: int | None
    """When the run began to read names. `status` shows it."""


class Lake(Retry):
    """The requests that change names, each bounded.

    Rule 25, What no run can make safe: The scenarios whose names begin with "unsafe" show the following, and
    [prune.md](prune.md#what-is-safe-while-others-write) says what to do instead.

    - An object is named for the first time later than the least age allows: by a link that is valid for longer.
    - An object that nothing names, or only an expired commit, is named after the second reading has begun. Nobody
      unmarked it.
    - A branch is renamed (created at the head of another one, which is then deleted) in the very moment of a reading,
      and again in the very moment of the next one. Or once, if what it names was brought back without unmarking.
    """

    def __init__(self, me: str, *, zero_grace: bool = False, shards: tuple[str, ...] = ()) -> None:
        del zero_grace, shards
        self.me = me
        self._made = 0

    def fresh(self) -> str:
        self._made += 1
        return f"{self.me}{self._made}"

    def put(self, address: str) -> Steps:
        """Write an object through a link, or over one that is there."""
        now = yield ("get", ("~clock",))
        yield ("set", ("o", address), Object(self.fresh(), now))
        return "ok"

    def begin_parts(self, address: str) -> Steps:
        yield ("set", ("began", address), (yield ("get", ("~clock",))))

    def complete_parts(self, branch: str, path: str, address: str) -> Steps:
        """The store shows the object with the time at which its upload began."""
        began = yield ("get", ("began", address))
        yield ("set", ("o", address), Object(self.fresh(), began))
        return (yield from self.stage(branch, path, address))

    def upload(self, branch: str, path: str, address: str) -> Steps:
        yield from self.put(address)
        return (yield from self.stage(branch, path, address))

    def get_link(self, address: str, ticks: str = "2") -> Steps:
        """Issue an address that may be named within so many ticks."""
        now = yield ("get", ("~clock",))
        yield ("set", ("link", address), now + int(ticks))
        return "ok"

    def link(self, branch: str, path: str, address: str) -> Steps:
        expires = yield ("get", ("link", address))
        if (yield ("get", ("~clock",))) >= expires:
            return "expired"
        return (yield from self.stage(branch, path, address))

    def stage(self, branch: str, path: str, address: str) -> Steps:
        """Name an address, whatever it is, and whoever named it before."""
        while True:
            record = yield ("open", ("b", branch))
            if record is None:
                return "404"
            yield ("set", ("e", record.token, path), Entry(address, None))
            after = yield ("open", ("b", branch))
            if after is not None and after.token == record.token:
                return "ok"

    def unstage(self, branch: str, path: str) -> Steps:
        record = yield ("open", ("b", branch))
        yield ("del", ("e", record.token, path))
        return "ok"

    def commit(self, branch: str, commit: str) -> Steps:
        """Seal, write the commit, move the head, and only then drop what was staged."""
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        sealing = record._replace(token=self.fresh(), sealed=(*record.sealed, record.token))
        if not (yield ("cas", ("b", branch), record, sealing)):
            return "conflict"
        tree = dict((yield ("get", ("c", record.head))).tree)
        staged = []
        for token in sealing.sealed:
            for key in (yield ("scan", ("e", token))):
                staged.append(key)
                address = (yield ("get", key)).address
                if not is_same_content(tree.get(key[2]), address):
                    tree[key[2]] = address
        yield ("set", ("c", commit), Commit((record.head,), frozenset(tree.items()), frozenset(), ()))
        if not (yield ("cas", ("b", branch), sealing, sealing._replace(head=commit, sealed=()))):
            return "conflict"
        for key in staged:
            yield ("del", key)
        return "ok"

    def create_branch(self, branch: str, source: str) -> Steps:
        """`source`: a branch, or a commit, expired or not."""
        record = yield ("open", ("b", source))
        if record is None and not (yield from self.has_objects(source)):
            return "410"
        token = self.fresh()
        made = Branch(source if record is None else record.head, token, (), (), token)
        return "ok" if (yield ("cas", ("b", branch), None, made)) else "409"

    def delete_branch(self, branch: str) -> Steps:
        yield ("set", ("b", branch), None)
        return "ok"

    def cherry_pick(self, branch: str, picked: str, commit: str) -> Steps:
        if not (yield from self.has_objects(picked)):
            return "410"
        record = yield ("open", ("b", branch))
        tree = dict((yield ("get", ("c", record.head))).tree) | dict((yield ("get", ("c", picked))).tree)
        yield ("set", ("c", commit), Commit((record.head,), frozenset(tree.items()), frozenset(), ()))
        return "ok" if (yield ("cas", ("b", branch), record, record._replace(head=commit))) else "conflict"

    def stage_again(self, branch: str, path: str, address: str) -> Steps:
        if (yield ("get", ("o", address))) is None:
            return "410"
        return (yield from self.stage(branch, path, address))

    def restore(self, branch: str, commit: str, address: str) -> Steps:
        """Bring back what a run deleted, as it was, and create a branch at a commit that names it."""
        if (yield ("get", ("o", address))) is not None:
            return "409"
        (first, *_) = sorted((yield ("snap", "marks")))
        yield ("set", ("o", address), next(mark.object for mark in first[1] if mark.key == address))
        return (yield from self.create_branch(branch, commit))

    def has_objects(self, commit: str) -> Steps:
        """Who uses an old commit looks whether its objects are there."""
        for _, address in sorted((yield ("get", ("c", commit))).tree):
            if (yield ("get", ("o", address))) is None:
                return False
        return True

    def expire(self, commit: str) -> Steps:
        yield ("set", ("x", commit), True)
        return "ok"

    def tick(self) -> Steps:
        now = yield ("get", ("~clock",))
        yield ("set", ("~clock",), now + 1)
        yield ("barrier",)


class Pruning(Lake):
    """A run lists the store, reads all names, marks what is unnamed, and deletes what is due.

    Rule 25: Two listings, two readings, a look.

    `refstore prune` works on a store whose writers know nothing of it. No run deletes what it is the first to find
    unnamed. A run, in this order:

    1. **lists** the store, and leaves out what is younger than the longest time between the writing of an object and
       its first name (`--min-age`);
    2. **reads names: what is uncommitted, then what commits name**, because names move from there to there, and stay
       where they are staged until their commit is a head;
    3. **marks** what it listed and found unnamed, with the time at which its reading ended. If the run before had
       marked the same object (key, ETag, size, time), the mark keeps its time. An object that was named meanwhile,
       written again, or deleted by that run and restored, begins anew;
    4. **deletes** what was marked a grace period before this run began. Just before each deletion it looks whether the
       object is the one that was marked, and where the store can, the deletion itself has this condition.

    A reading takes time, so it may miss names that move meanwhile: a branch is created at the head of another one,
    and that one is deleted. That is why one reading marks, and another one, a grace period later, deletes.

    *Without it* the store loses what is uploaded and not named yet, what moved during a reading, what was named again
    in the grace period, or the new content of a key. *Shown by* `ReadsNamesFirst`, `ReadsCommitsFirst`,
    `TakesWhatIsYoung`, `MarksAndDeletes`, `DeletesByOldNames`, `MarksByKey`, `DeletesUnseen`, `LooksThenDeletes`,
    `CountsFromTheBegin`, `MarksWhatWasDeleted`.
    """

    order = "listing uncommitted commits"
    least_age = MIN_AGE
    marks_first = True
    compares_marks = True
    reads_names_again = True
    counts_from_begin = False
    drops_marks = True

    def prune(self) -> Steps:
        run = yield from self.take_lock()
        if run is None:
            return "busy"
        listed: frozenset = frozenset()
        names: set[str] = set()
        began = now = 0
        for what in self.order.split():
            if what == "listing":
                now = yield ("get", ("~clock",))
                listed = yield ("snap", "o")
            elif not began:
                began = yield ("get", ("~clock",))
                if not (yield ("cas", ("lock",), Lock(run, None), Lock(run, began))):
                    return "overtaken"
            if what == "uncommitted":
                yield from self.read_uncommitted(names)
            elif what == "commits":
                yield from self.read_commits(names)
        marks = yield from self.last_marks()
        ended = now if self.counts_from_begin else (yield ("get", ("~clock",)))
        unnamed = frozenset(
            self.mark(key[1], found, marks.get(key[1]), ended)
            for key, found in listed
            if key[1] not in names and found.written + self.least_age <= now
        )
        if not (yield from self.has_lock(run)):
            return "overtaken"
        yield ("set", ("marks", run), unnamed)
        candidates = unnamed if self.reads_names_again else frozenset(marks.values())
        due = sorted(mark for mark in candidates if not self.marks_first or mark.since + GRACE <= now)
        return Do(("delete_due", mark.key, mark.object, run, began) for mark in due)

    def mark(self, key: str, found: Object, before: Marked | None, now: int) -> Marked:
        if before is not None and (before.object == found or not self.compares_marks):
            return Marked(key, found, before.since)
        return Marked(key, found, now)

    def read_uncommitted(self, names: set[str]) -> Steps:
        for key in (yield ("scan", ("b",))):
            record = yield ("open", key)
            if record is not None:
                for token in (*record.sealed, record.token):
                    for entry in (yield ("scan", ("e", token))):
                        staged = yield ("get", entry)
                        if staged is not None and not (yield from self.overlooks(record, entry[2], staged.address)):
                            names.add(staged.address)

    def overlooks(self, record: Branch, path: str, address: str) -> Steps:
        """Tell whether the reading leaves a staged entry out.

        Rule 25, What is staged counts, whatever it says: lakeFS's own list of what is uncommitted is a difference. It
        leaves out an entry whose content is the same as in the head, although its object is another one. Where a run
        has no other list, such an object may be deleted before its entry is committed or reset. *Shown by*
        `ReadsTheDifference`.
        """
        return False
        yield

    def read_commits(self, names: set[str]) -> Steps:
        """Branch by branch: its head, and the ancestors that have not expired."""
        for key in (yield ("scan", ("b",))):
            record = yield ("open", key)
            commit = None if record is None else record.head
            while commit is not None:
                found = yield ("get", ("c", commit))
                names.update(address for _, address in found.tree)
                commit = found.parents[0] if found.parents else None
                if commit is not None and (yield ("get", ("x", commit))):
                    break

    def last_marks(self) -> Steps:
        """The marks of the last run that has any."""
        runs = yield ("snap", "marks")
        return {mark.key: mark for mark in max(runs, default=((), frozenset()))[1]}

    # ---- one run at a time

    checks_lock = True
    bounds_reading = True
    looks = True
    deletes_if_unchanged = True

    def take_lock(self) -> Steps:
        """Become the run that is on.

        Rule 25, One run at a time: A run has a number, which it takes by a conditional put. Who takes the next number
        takes over: nobody can know whether the run before is dead. That run finds out before its mark stands, and
        before each batch that it deletes. *Without it* a run goes on by marks that were dropped meanwhile. *Shown by*
        `IgnoresTheLock`.
        """
        before = yield ("get", ("lock",))
        run = 1 if before is None else before.run + 1
        return run if (yield ("cas", ("lock",), before, Lock(run, None))) else None

    def has_lock(self, run: int) -> Steps:
        return not self.checks_lock or (yield ("get", ("lock",))).run == run

    def delete_due(self, key: str, marked: Object, run: int, began: int) -> Steps:
        """Delete one object.

        Rule 25, A paused run deletes nothing: A process may be paused at any time, for any time. It does not delete by
        names that it began to read more than 6 hours ago. A pause between its last look and the store's deletion,
        which are one request apart, is the one that it cannot notice. *Shown by* `DeletesByAnOldReading`.

        Before it deletes an object, the run writes down that its mark is used up. So an object that is restored as it
        was begins anew, also if the run was killed before it heard what became of it.
        """
        if self.drops_marks:
            marks = yield ("get", ("marks", run))
            yield ("set", ("marks", run), frozenset(mark for mark in marks if mark.key != key))
        if not (yield from self.has_lock(run)):
            return "overtaken"
        if self.bounds_reading and (yield ("get", ("~clock",))) >= began + READING_AGE:
            return "too late"
        if self.looks and (yield ("get", ("o", key))) != marked:
            return "changed"
        if not self.deletes_if_unchanged:
            yield ("del", ("o", key))
            return "deleted"
        return "deleted" if (yield ("cas", ("o", key), marked, None)) else "changed"

    # ---- what an operator does

    def unmark(self) -> Steps:
        """Drop all marks, and wait until what was being deleted is gone.

        Rule 25, Unmark before you bring back: Who names an object that only an expired commit names, or nothing, drops
        the marks first. The next run begins anew: it marks, and a grace period later another one reads again. Without
        that, an object that is named after the second reading has begun may be deleted.
        """
        while True:
            run = yield from self.take_lock()
            if run is not None:
                yield ("set", ("marks", run), frozenset())
                if (yield from self.has_lock(run)):  # or a run that began in between has read the marks before
                    break
        yield ("barrier",)
        return "ok"

    def bring_back_when_idle(self, branch: str, commit: str, run: str) -> Steps:
        """Create a branch when no run can delete any more: the reading of `run`, the last one, is too old."""
        lock = yield ("get", ("lock",))
        if lock.run != int(run) or lock.read is None:
            return "later"
        return Do((("tick",), ("create_branch", branch, commit)))

    def gc(self) -> Steps:
        """Runs until everything that is unnamed has gone."""
        return Do((*(("tick",),) * (MIN_AGE + 2), ("prune",), *(("tick",),) * GRACE, ("prune",)))
        yield


def is_same_content(committed: str | None, address: str) -> bool:
    """P1' is another object with the content of P1."""
    return committed is not None and committed.rstrip("'") == address.rstrip("'")


def unpruned(store: Store) -> str | None:
    """What is left that nothing names."""
    for key in sorted({key[1] for key in store.kv if key[0] == "o"} - named(store)):
        return f"LEAK: {key} is left"
    return None
