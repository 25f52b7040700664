"""Rules 13 to 19 dropped, piece by piece: marks, sweeps, pins, and what may be unmarked."""

# ruff: noqa: ARG002  # an override keeps the arguments of what it drops

from __future__ import annotations

from .incremental import Incremental
from .offline import SWEPT, Mark, Proto
from .store import Steps, each


class HeadsUnchecked(Proto):
    """Rule 13 dropped: a copy from a branch does not look at the mark of its head."""

    checks_heads = False


class GcDoesNotWait(Proto):
    """Rule 13 dropped: the gc does not wait for operations that began before the mark."""

    waits_for_others = False


class GcListsLast(Proto):
    """Rule 13 dropped: the object listing is read last."""

    order = "heads commits staging references pins blobs"


class GcCommitsFirst(Proto):
    """Rule 13 dropped: commits are read before references and staging."""

    order = "blobs heads commits references staging pins"


class GcWithoutPins(Proto):
    """A reference-less entry is copied without a pin while the gc looks."""

    pins = False


class GcPinsEarly(Proto):
    """The gc reads the pins before the staging areas."""

    order = "blobs references pins staging heads commits"


class GcKeepsReachable(Proto):
    """The gc keeps what heads reach, and not every commit that is unmarked."""

    keeps_unreachable = False


class GcRechecksNothing(Proto):
    """Rule 13 dropped: the sweep does not look whether its commits are still marked."""

    rechecks = False


class GcRechecksItsOwn(Proto):
    """The sweep looks at the marks of its own run only, and not at older ones that the look disregarded as well."""

    rechecks_older = False


class GcRechecksAnyMark(Proto):
    """The sweep takes any mark for its own: a commit was unmarked and marked again by another run, and copied from in
    between.
    """

    rechecks_whose = False


class GcTakesBackSweeping(Proto):
    """A commit is unmarked although its sweep has begun."""

    unmarks_sweeping = True


class GcDisregardsAnyMark(Proto):
    """The look disregards what another run marks meanwhile, although nobody has waited since."""

    disregards_any_mark = True


class GcDropsAllPins(Proto):
    """A run that was taken over, and does not know yet, drops the pins of the one that took over."""

    drops_all_pins = True


class GcNeverNoticesTakeOver(Proto):
    """A run that was taken over stands all the same: others pinned for the one that took over, and it does not know of
    them.
    """

    checks_flag = False

    def give_up(self, run: str) -> Steps:
        return
        yield


class GcTakesAllForComplete(Proto):
    """A commit is unmarked as complete although something of what it names goes."""

    def complete(self, expired: tuple[str, ...], candidates: tuple[str, ...]) -> Steps:
        return (yield from super().complete(expired, ()))


class GcCompleteBeforeTheLook(Proto):
    """What is complete is decided by an earlier look: what kept its data then may have lost its own last name since."""

    def look_around(self, run: str, disregards: tuple[str, ...], expired: tuple[str, ...]) -> Steps:
        self.early = yield from super().look_around(run, disregards, expired)
        return (yield from super().look_around(run, disregards, expired))

    def complete(self, expired: tuple[str, ...], candidates: tuple[str, ...]) -> Steps:
        return (yield from super().complete(expired, self.early))


class GcCompleteForEver(Proto):
    """What an earlier run found complete is complete for a later one, without a look at what goes by then."""

    def complete(self, expired: tuple[str, ...], candidates: tuple[str, ...]) -> Steps:
        known: set[str] = set()
        for key in (yield ("scan", ("g",))):
            known.update((yield ("get", key)).complete)
        found = yield from super().complete(expired, candidates)
        return tuple(commit for commit in expired if commit in known or commit in found)


class GcUnmarksSwept(Proto):
    """What a sweep took nothing of is unmarked behind the sweep: a later mark's sweep has counted on it meanwhile."""

    def unmark_untouched(self, run: str) -> Steps:
        return
        yield

    def sweep(self, run: str) -> Steps:
        yield from super().sweep(run)
        record = yield ("get", ("g", run))
        dropped = yield from self.dropped(run, record)
        for commit in (yield from self.complete(record.commits, tuple({*record.candidates} - dropped))):
            yield ("cas", ("x", commit), Mark(run, SWEPT), None)


class GcForgetsUntouched(Proto):
    """What a sweep unmarks, because it takes nothing of it, leaves the run's list as well."""

    def unmark_untouched(self, run: str) -> Steps:
        yield from super().unmark_untouched(run)
        record = yield ("get", ("g", run))
        marks = yield from each(*(("get", ("x", commit)) for commit in record.commits))
        left = tuple(commit for commit, mark in zip(record.commits, marks, strict=True) if mark is not None)
        yield ("cas", ("g", run), record, record._replace(commits=left))


class TagsLookOnce(Proto):
    """Not a loss: the second look at the mark behind a tag does not matter as long as the gc waits."""

    looks_again = False


class GivesUpLandedFirst(Proto):
    """Whether a commit landed is read before its branch."""

    given_up_order = "landed branch"


class GcReadsLaterIds(Incremental):
    """A run that goes on from another one reads the commits whose ids come after all that were read then."""

    def read_anew(self, kept: set[str], before: frozenset[str]) -> set[str]:
        return {commit for commit in kept if commit > max(before, default="")}


class GivesUpNoRecord(Proto):
    """Who takes the flag of a run that has no record yet leaves it without one: nobody knows that it is over."""

    def give_up(self, run: str) -> Steps:
        if (yield ("get", ("g", run))) is not None:
            yield from super().give_up(run)
