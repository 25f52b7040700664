"""The offline gc of committed history (rules 13 and 14): marking, unmark, sweep; any number of runs, at once and one
after the other.

A run is taken over by whoever comes next: the flag says whose turn it is, and who has lost it marks nothing. The grace
window is not modelled: a sweep may begin as soon as the run is finished, or at any time after.
"""

# ruff: noqa: ARG002  # hooks for losses.py take arguments that are not used here

from __future__ import annotations

from typing import NamedTuple

from .calls import Do
from .store import Branch, Entry, Steps, Tag, branch_of, each
from .transactions import Transactions

MARKING, STANDING, SWEEPING, SWEPT, ABANDONED = "marking", "standing", "sweeping", "swept", "abandoned"


class Mark(NamedTuple):
    """On a commit. `set_if` on it decides between who unmarks it and who sweeps it."""

    run: str
    state: str
    """STANDING, SWEEPING or SWEPT."""


class Run(NamedTuple):
    state: str
    commits: tuple[str, ...]
    """Once it stands, without those that it found complete."""
    disregards: tuple[str, ...]
    """Runs that stood when it began: it keeps what their commits name no more than what its own do."""
    candidates: tuple[str, ...]
    complete: tuple[str, ...] = ()
    """Commits that it marked, found complete and unmarked: none of what they name is among the candidates."""


class Offline(Transactions):
    def gc(self, *expired: str) -> Steps:
        """What runs every night: mark, then sweep whatever stands."""
        known = yield ("scan", ("g",))
        run = f"{self.me}gc{len(known)}"
        return Do((("mark", run, *expired), ("sweep_all",)))

    def gc_given_up(self) -> Steps:
        """The same for commits that never landed and never will."""
        known = yield ("scan", ("g",))
        given_up = yield from self.given_up()
        return Do((("mark", f"{self.me}gc{len(known)}", *given_up), ("sweep_all",)))

    given_up_order = "branch landed"

    def given_up(self) -> Steps:
        """Find the commits that never landed and never will.

        Rule 13, What never landed is marked too: It is marked once it never will land, because its tokens are not all
        sealed on its branch any more. The job reads that *before* the landed mark. The other order marks a commit that
        lands in between. The tree of such a commit is deleted with its sweep; the tree of a commit that landed never
        is. So whoever reads the trees of all commits, and misses an object of one, reads its mark again and then its
        landed mark. If the mark says `sweeping` or swept, and the commit never landed, the rest of it is not read.
        Anything else means that the object is lost. *Shown by* `GivesUpLandedFirst`.
        """
        found = []
        for key in (yield ("scan", ("c",))):
            record = yield ("get", key)
            if not record.tokens:
                continue
            over = landed = False
            for what in self.given_up_order.split():
                if what == "branch":
                    branch = yield ("open", ("b", branch_of(record.tokens[0])))
                    over = branch is None or not {*record.tokens} <= {branch.token, *branch.sealed}
                else:
                    landed = (yield ("get", ("l", key[1]))) or (
                        yield from self.landed(key[1], branch_of(record.tokens[0]))
                    )
            if over and not landed:
                found.append(key[1])
        return found

    # ---- marking

    order = "blobs references staging heads commits pins"
    waits_for_others = True
    keeps_unreachable = True
    checks_flag = True
    disregards_any_mark = False

    def mark(self, run: str, *expired: str) -> Steps:
        """Mark commits, wait, look, and let the mark stand.

        Rule 13: Mark, wait, look, sweep.

        **Mark.** The offline job marks the expired commits. From then on nothing may copy from them, merge them, or
        branch or tag at them (410), whether a call names them by id or finds them as a branch's head. An entry that is
        made without a reference checks the mark of the commit *that was read* before and again after it is written, and
        takes itself back. What it replaced is put back under a new reference (rule 9).

        **Wait** until the operations that began before the mark have ended. Every operation has a deadline.

        **Look**, in this order: the **object listing, then references and staging, then heads, then commits, then
        pins**. What the listing has and none of the later reads names may be deleted, if it is old enough.

        **Sweep** it after the grace period, by rule 14.

        *Without the mark, the wait or the order* an object is deleted that something names: while the job looks, a name
        moves from what it has yet to read to what it has read already.

        *Shown by* `HeadsUnchecked`, `GcDoesNotWait`, `GcListsLast`, `GcCommitsFirst`; `TagsLookOnce` holds (the second
        look at the mark does not matter as long as the job waits).
        """
        held = yield ("get", ("gc",))
        if held is not None:
            yield from self.give_up(held)
        if not (yield ("cas", ("gc",), held, run)):
            return "busy"
        disregards = yield from self.end_earlier()
        marks = yield from each(*(("get", ("x", commit)) for commit in expired))
        expired = tuple(commit for commit, mark in zip(expired, marks, strict=True) if mark is None)
        record = Run(MARKING, expired, disregards, ())
        if not (yield ("cas", ("g", run), None, record)):
            return "busy"
        for commit in expired:
            yield ("cas", ("x", commit), None, Mark(run, STANDING))
        if self.waits_for_others:
            yield ("barrier",)
        candidates = yield from self.look_around(run, disregards, expired)
        if (self.checks_flag and (yield ("get", ("gc",))) != run) or not (yield from self.may_stand(run)):
            return "overtaken"
        complete = yield from self.complete(expired, candidates)
        for commit in complete:
            yield ("cas", ("x", commit), Mark(run, STANDING), None)
        left = tuple(commit for commit in expired if commit not in complete)
        if not (yield ("cas", ("g", run), record, Run(STANDING, left, disregards, candidates, complete))):
            return "overtaken"
        yield ("cas", ("gc",), run, None)
        for key in (yield ("scan", ("pin", run))):
            yield ("del", key)
        return "ok"

    def complete(self, expired: tuple[str, ...], candidates: tuple[str, ...]) -> Steps:
        """Find the expired commits that name nothing that may be deleted.

        Rule 13, Expired, with nothing to delete: Some expired commits lose nothing, because others keep all that they
        name. After its look, and before the run stands, the run unmarks each landed commit that it marked and that
        names nothing of what may be deleted.

        - It happens before the run stands, because a sweep may follow at once, and after the look, because an earlier
          one may have seen what has lost its last name since.
        - The run's record says which commits these were. Neither its sweep nor that of a later run has to read them
          again (rule 14), because nothing of theirs is among its candidates.
        - **The next run marks them again**, and looks again. In the night in which the last other name of an object
          expires, the commit must be marked, or it keeps the object.

        *Shown by* `GcTakesAllForComplete`, `GcCompleteBeforeTheLook`, `GcCompleteForEver`.
        """
        found = []
        for commit in expired:
            if (yield ("get", ("l", commit))) is None:
                continue
            record = yield ("get", ("c", commit))
            if not any(address in candidates for _, address in record.tree):
                found.append(commit)
        return tuple(found)

    def give_up(self, run: str) -> Steps:
        """A run that is taken over: it can never be finished, or even begin."""
        record = yield ("get", ("g", run))
        if record is None:
            yield ("cas", ("g", run), None, Run(ABANDONED, (), (), ()))
        elif record.state == MARKING:
            yield ("cas", ("g", run), record, record._replace(state=ABANDONED))

    drops_all_pins = False

    def end_earlier(self) -> Steps:
        """Clear what runs left that came to nothing; return those that stand.

        Rule 13, One run at a time, and none is waited for: A run's id is used once. Whoever takes the flag ends the run
        that had it (`set_if(marking -> abandoned)`), clears the marks of abandoned runs where they are still theirs,
        and drops the pins of runs that are over, but never those of another that may be on. If the run that had the
        flag has no record yet, it gets one that says abandoned, so that it can never begin. A run that finds the flag
        gone at the end of its look marks nothing: others may have pinned for the run that took over. *Shown by*
        `GivesUpNoRecord`, `GcDropsAllPins`, `GcNeverNoticesTakeOver`.
        """
        over = set()
        standing = []
        for key in (yield ("scan", ("g",))):
            yield from self.give_up(key[1])
            record = yield ("get", key)
            if record.state != MARKING:
                over.add(key[1])
            if record.state in (STANDING, SWEEPING):
                standing.append(key[1])
            if record.state == ABANDONED:
                for commit in record.commits:
                    yield ("cas", ("x", commit), Mark(key[1], STANDING), None)
        for key in (yield ("scan", ("pin",))):
            if key[1] in over or self.drops_all_pins:
                yield ("del", key)
        return tuple(standing)

    def disregarded(self, mark: Mark | None, run: str, disregards: tuple[str, ...]) -> bool:
        """Tell whether the look disregards a commit with this mark.

        Rule 13, Marks that a look disregards: They are its own, those of runs that stood when it began, and those
        beyond recall. It does not disregard a mark that another run makes meanwhile (a run that was taken over may
        write one late): nobody has waited since. *Shown by* `GcDisregardsAnyMark`.

        What a mark that stands holds already, a later one need not hold. But if this run marks a commit that an earlier
        mark had, what the commit names is deleted with this run: the commit was unmarked, or has expired further, and
        is out of the earlier mark for good (rule 14).
        """
        if mark is None:
            return False
        return self.disregards_any_mark or mark.state != STANDING or mark.run == run or mark.run in disregards

    def look_around(self, run: str, disregards: tuple[str, ...], expired: tuple[str, ...]) -> Steps:
        """Rule 13, Every unmarked commit keeps what it names: It does so whether a branch reaches it or not: a branch
        that is deleted during the look leaves a commit from which may still be copied. The head of a branch or tag is
        active, marked or not. *Shown by* `GcKeepsReachable`.

        """
        listing: tuple[str, ...] = ()
        keep: set[str] = set()
        for what in self.order.split():
            if what == "blobs":
                listing = yield ("blobs",)
            elif what == "references":
                keep.update(key[1] for key in (yield ("scan", ("r",))))
            elif what == "staging":
                for token in (yield ("scan", ("t",))):
                    for key in (yield ("scan", ("e", token[1]))):
                        entry = yield ("get", key)
                        if isinstance(entry, Entry):
                            keep.add(entry.address)
            elif what == "heads":  # a head is active, marked or not
                reached = list((yield from self.heads()))
                for commit in reached:
                    record = yield ("get", ("c", commit))
                    keep.update(address for _, address in record.tree)
                    if not self.keeps_unreachable:
                        reached += [parent for parent in record.parents[:1] if parent not in expired]
            elif what == "commits" and self.keeps_unreachable:
                for key in (yield ("scan", ("c",))):
                    if not self.disregarded((yield ("get", ("x", key[1]))), run, disregards):
                        record = yield ("get", key)
                        keep.update(address for _, address in record.tree)
            elif what == "pins":
                keep.update(key[2] for key in (yield ("scan", ("pin", run))))
        return (yield from self.of_nobody(listing, keep))

    def of_nobody(self, listing: tuple[str, ...], keep: set[str]) -> Steps:
        """What may go, of what was listed and of what is named."""
        return tuple(address for address in listing if address not in keep)
        yield

    def heads(self) -> Steps:
        """What branches and tags name."""
        found = []
        for key in (yield ("scan", ("b",))):
            record = yield ("get", key)
            if isinstance(record, Branch):
                found.append(record.head)
        for key in (yield ("scan", ("tag",))):
            tag = yield ("get", key)
            if tag is not None:
                found.append(tag.commit)
        return found

    # ---- unmark, sweep

    unmarks_sweeping = False

    def unmark(self, commit: str) -> Steps:
        while True:
            mark = yield ("get", ("x", commit))
            if mark is None:
                return "409"
            if mark.state != STANDING and not self.unmarks_sweeping:
                return "410"
            if (yield ("cas", ("x", commit), mark, None)):
                return "ok"

    def unmark_run(self, run: str) -> Steps:
        record = yield ("get", ("g", run))
        if record is None or record.state not in (MARKING, STANDING):
            return "410"
        if not (yield ("cas", ("g", run), record, record._replace(state=ABANDONED))):
            return "409"
        for commit in record.commits:
            yield ("cas", ("x", commit), Mark(run, STANDING), None)
        return "ok"

    def sweep_all(self) -> Steps:
        runs = yield ("scan", ("g",))
        return Do(("sweep", key[1]) for key in runs)

    rechecks = True
    rechecks_older = True
    rechecks_whose = True

    def sweep(self, run: str) -> Steps:
        """Delete what a mark that stands holds, but for what is active again.

        Rule 14: A marked commit is not gone.

        Until its sweep, a commit can be unmarked. After it, reads of what was deleted say 410, and the log says why.
        The commit's fate is decided in its own mark, by `set_if`: `marked(run) -> absent` by who unmarks, `marked(run)
        -> sweeping(run)` by the sweep. The sweep first does this to all its commits, and unmarks one that has become a
        head.

        Only then it **checks again**. Each commit that the look disregarded, its own and those of the older runs, must
        be sweeping or swept *under one of these very runs*. What any other of them names is excluded: it was unmarked;
        or it was unmarked, copied from, and marked again by a later run; or it is under an older mark that is not swept
        yet. From then on nothing can be added to what is excluded, and the blobs are deleted.

        *Without it* the sweep deletes what somebody copied from a commit that was unmarked in between.

        *Shown by* `GcRechecksNothing`, `GcRechecksItsOwn`, `GcRechecksAnyMark`, `GcTakesBackSweeping`.
        """
        record = yield ("get", ("g", run))
        if record is None or record.state not in (STANDING, SWEEPING):
            return
        if record.state == STANDING:
            sweeping = record._replace(state=SWEEPING)
            if not (yield ("cas", ("g", run), record, sweeping)):
                return
            record = sweeping
        heads = yield from self.heads()
        for commit in record.commits:
            yield ("cas", ("x", commit), Mark(run, STANDING), None if commit in heads else Mark(run, SWEEPING))
        dropped = yield from self.dropped(run, record)
        if not (yield from self.may_sweep(run)):
            return
        for address in record.candidates:
            if address not in dropped:
                yield from self.remove_blob(address)
        for commit in record.commits:
            yield ("cas", ("x", commit), Mark(run, SWEEPING), Mark(run, SWEPT))
        yield ("cas", ("g", run), record, record._replace(state=SWEPT))

    def dropped(self, run: str, record: Run, own_state: str = SWEEPING) -> Steps:
        """What commits name that the look disregarded, and that no sweep of these runs takes. `own_state`: STANDING, as
        long as the run's own marks say so.
        """
        found: set[str] = set()
        disregarded = (run, *record.disregards)
        for marked_by in disregarded if self.rechecks_older else (run,):
            other = record if marked_by == run else (yield ("get", ("g", marked_by)))
            for commit in other.commits if self.rechecks else ():
                mark = yield ("get", ("x", commit))
                gone = mark is not None and mark.state != STANDING and mark.run in disregarded
                gone = gone or mark == Mark(run, own_state)
                if not (gone or (mark is not None and not self.rechecks_whose)):
                    tree = yield ("get", ("c", commit))
                    found.update(address for _, address in tree.tree)
        return found

    def unmark_untouched(self, run: str) -> Steps:
        """Unmark the commits of which a sweep would take nothing, before it begins.

        Rule 14, What a sweep would leave whole is not swept: A commit may lose nothing after all, because what it names
        is named by others that were unmarked, or that a legal hold keeps. The sweep looks for such commits **before**
        it begins, and unmarks them as an operator would. They stay in the run's list.

        - *Not behind the sweep:* the sweep of a later mark, whose look disregarded the commit, may have begun
          meanwhile. It counts on it that the commit is swept, and deletes what the commit names.
        - *Not off the list:* who kept what the commit names may be swept itself before this sweep checks again. The
          commit is then the only one that says so.

        *Shown by* `GcUnmarksSwept`, `GcForgetsUntouched`.
        """
        record = yield ("get", ("g", run))
        if record is None or record.state != STANDING:
            return
        dropped = yield from self.dropped(run, record, STANDING)
        for commit in (yield from self.complete(record.commits, tuple({*record.candidates} - dropped))):
            yield ("cas", ("x", commit), Mark(run, STANDING), None)

    def may_stand(self, run: str) -> Steps:
        """Likewise, after the look."""
        return True
        yield

    def may_sweep(self, run: str) -> Steps:
        """Always; a KV that loses writes is asked first (losses.py)."""
        return True
        yield

    # ---- tags: heads that never move

    looks_again = True

    def create_tag(self, tag: str, commit: str) -> Steps:
        tree = yield from self.named(commit)
        if isinstance(tree, str):
            return tree
        if (yield from self.has_branch(tag)):  # so that a creator that dies leaves no tag where a branch had the name
            return "409"
        ours = Tag(commit, self.fresh())
        if not (yield ("cas", ("tag", tag), None, ours)):
            return "409"
        verdict = yield from self.tag_may_stay(tag, commit)
        if verdict == "ok":
            yield from self.record_tag(tag, ours)
        else:
            yield ("cas", ("tag", tag), ours, None)
        return verdict

    def record_tag(self, name: str, tag: Tag) -> Steps:
        """Before it is acknowledged, where the KV may lose it (losses.py)."""
        return
        yield

    def tag_may_stay(self, tag: str, commit: str) -> Steps:
        """What is looked at behind the tag."""
        if self.looks_again and (yield ("get", ("x", commit))):
            return "410"
        return "409" if (yield from self.has_branch(tag)) else "ok"

    def delete_tag(self, name: str) -> Steps:
        """Delete the tag that is there now, and no other one that comes in its place."""
        tag = yield ("get", ("tag", name))
        if tag is None:
            return "404"
        yield from self.record_untagged(name, tag)
        return "ok" if (yield ("cas", ("tag", name), tag, None)) else "409"

    def record_untagged(self, name: str, tag: Tag) -> Steps:
        """Likewise, before it is deleted."""
        return
        yield


class Proto(Offline):
    """The protocol, whole."""
