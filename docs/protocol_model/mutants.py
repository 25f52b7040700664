"""One rule dropped at a time, each with a scenario that shows what is lost; and the seed's proposal 4 as written.

A mutant that nothing catches would mean that its rule is not needed, or that the scenarios do not look for it.
"""

# ruff: noqa: ARG002  # an override keeps the arguments of what it drops

from __future__ import annotations

from typing import NamedTuple

from .explorer import HOLDS, STATES_MAX, Found, explore
from .mutants_creating import (
    DeletesOnceOnly,
    DeletesWhileSealed,
    KnowsItsReferenceOnly,
    LooksAtSealedFirst,
    LooksAtTheCurrent,
    LooksBeneathOnce,
    LooksOnce,
    MatchesAnything,
    PlacesAgain,
    PlacesBlindly,
    PlacesUnderAnyToken,
    PlacesUnderTheSame,
    ReleasesWhatMoved,
    ReplacesWhatCameSince,
)
from .mutants_locations import (
    AnnouncesNothing,
    ComparesNumbersAlone,
    DeletesTheIdentityOnly,
    EndsBackupsAtOnce,
    EndsBackupsUnderReaders,
    EndsBackupsUnmarked,
    ListsAddresses,
    LooksAtCommitsFirst,
    LooksAtNames,
    LooksAtTrash,
    LooksAtTrashFirst,
    LooksForLocationsFirst,
    LooksTwice,
    NoLocationsInTheManifest,
    PublishesBlindly,
    ReadsLocationsFirst,
    ReadsNoLocations,
    ReadsTheFlagFirst,
    SharesAttempts,
    TakesLostLocationsForDeleted,
    WritesBeforeItsIntent,
)
from .mutants_losses import (
    ConfirmsUnprocessed,
    DeletesWithoutWitness,
    ExplainsByAnyRelease,
    ExplainsEveryEntry,
    ForgetsAShard,
    KeepsLostMarkers,
    LooksBeforeItMarks,
    NeverSettles,
    ProcessesLiveTokens,
    ReadsNoManifest,
    ReadsNoWitness,
    ServersFirst,
    SettlesAtOnce,
    SettlesOnlyWhatIsLive,
    SweepsWhatWasSeenBefore,
    TagsUnlooked,
    WitnessesAfterwards,
    WitnessesCopiesOnly,
    WitnessesNoEntries,
    WritesNoManifest,
)
from .mutants_multipart import (
    AbortsPartsFirst,
    AnswersByTheRecordAlone,
    AnswersForWhatWasRefused,
    BelievesWhatMovedOn,
    CompletesAgain,
    EntersBeforeItTakes,
    ForgetsRecordsFirst,
    ForgetsUploadsAtOnce,
    ForgetsWhatTheStoreKnows,
    JoinsWhateverIsAsked,
    PartsWithoutAddresses,
    RegistersUploadsLater,
    TakesWhatIsDeleting,
)
from .mutants_names import BranchesLookFirst, KeepsRefusedTags, LeavesReservations, TagsLookFirst
from .mutants_offline import (
    GcCommitsFirst,
    GcCompleteBeforeTheLook,
    GcCompleteForEver,
    GcDisregardsAnyMark,
    GcDoesNotWait,
    GcDropsAllPins,
    GcKeepsReachable,
    GcListsLast,
    GcNeverNoticesTakeOver,
    GcPinsEarly,
    GcRechecksAnyMark,
    GcRechecksItsOwn,
    GcRechecksNothing,
    GcTakesAllForComplete,
    GcTakesBackSweeping,
    GcWithoutPins,
    GivesUpLandedFirst,
    HeadsUnchecked,
    TagsLookOnce,
)
from .mutants_times import HasItsOwnGrace, LeavesTheSkewOut, ReleasesAtOnce
from .offline import Offline, Proto
from .scenarios import Scenario
from .staging import ATTEMPTS, Item, Source
from .store import DEAD, DELETED, EMPTY, ISSUED, LOST, NEW, Ref, Steps, each, listed, refs


class NaiveOverwrite(Proto):
    """Rule 2 dropped: an overwrite releases the old reference without the token check."""

    def enter(self, branch: str, items: list[Item], token: str, *, own: bool) -> Steps:
        for item in items:
            old = yield item.written(token)
            yield from self.released(token, item.path, old)
        return "ok"


class DropsOwnReference(Proto):
    """Rule 2 dropped: the token moved on, and the operation takes its own stale reference off without knowing the
    token's fate.
    """

    def place_again(self, branch: str, item: Item, before: str, now: str, *, own: bool) -> Steps:
        placed = yield from super().place_again(branch, item, before, now, own=own)
        if item.ref is not None:
            yield from self.release(item.address, item.ref)
        return placed


class EntryFirst(Proto):
    """Rule 1 dropped: the entry is written before its reference stands."""

    def upload(self, branch: str, *items: tuple[str, str]) -> Steps:
        record = yield ("open", ("b", branch))
        placed = [Item(path, address, Ref(record.token, path, self.fresh())) for path, address in items]
        yield from each(*(("put", item.address) for item in placed))
        verdict = yield from self.enter(branch, placed, record.token, own=True)
        for item in placed:
            yield ("cas", ("r", item.address), None, refs(item.ref))
        return verdict


class MarkersAfterTheFact(Proto):
    """Rule 3 dropped: the fate is not in the branch record; the commit publishes its marker afterwards, if it lives."""

    def advance(self, branch: str, base: str, sealed: tuple[str, ...], head: str, fate: str) -> Steps:
        record = yield ("open", ("b", branch))
        if record is None or record.head != base or record.sealed[: len(sealed)] != sealed:
            return False
        if (yield ("cas", ("b", branch), record, record._replace(head=head, sealed=record.sealed[len(sealed) :]))):
            yield from each(("set", ("l", fate), True), ("set", ("mc", fate), sealed))
            return True
        return False


class MissingMeansCommitted(Proto):
    """Rule 4 dropped: a missing reference key counts as "committed", as the seed has it."""

    def committed_source(self, source: Source, branch: str, path: str) -> Steps:
        return True
        yield


class CopiesOntoEmpty(Proto):
    """Not a loss: rule 5 as far as copies go. A copy that revives an emptied list finds it either empty or `deleting`,
    never in between. The rule stands for its meaning (the source has changed), and so that only `restore` ends a grace
    window.
    """

    def hold(self, address: str, ref: Ref, *, own: bool) -> Steps:
        return (yield from super().hold(address, ref, own=True))


class SameReference(Proto):
    """References without an id of their own: (token, path) again is the same reference."""

    def fresh(self) -> str:
        return ""

    def new_token(self, branch: str) -> Steps:
        token = f"{branch}:{self.me}{super().fresh()}"
        yield ("set", ("t", token), NEW)
        return token


class SwapsAgain(Proto):
    """A swap whose reply was lost is made again as it is."""

    def retrying(self, steps: Steps) -> Steps:
        reply = None
        inner = super().retrying(steps)
        try:
            while True:
                op = inner.send(reply)
                reply = yield op
                while reply is LOST and op[0] == "swap":
                    reply = yield op
        except StopIteration as end:
            return end.value


class AnswersTooSoon(Proto):
    """After a lost swap: the reference is gone, so it had landed; without a look whether the token is still current by
    then.
    """

    def place_again(self, branch: str, item: Item, before: str, now: str, *, own: bool) -> Steps:
        if item.ref is not None and before == now:
            held = yield ("get", ("r", item.address))
            if not (listed(held) and item.ref in held[1]) and (own or held is not None):
                return "ok"
        return (yield from super().place_again(branch, item, before, now, own=own))


class ReleasesBlindly(Proto):
    """Rule 6 dropped: what was swapped out is released although the token moved on."""

    def enter(self, branch: str, items: list[Item], token: str, *, own: bool) -> Steps:
        for _ in range(ATTEMPTS):
            olds = yield from each(*(item.written(token) for item in items))
            for item, old in zip(items, olds, strict=True):
                yield from self.released(token, item.path, old)
            record = yield ("open", ("b", branch))
            if record is None:
                return "404"
            if record.token == token:
                return "ok"
            left = []
            for item in items:
                verdict = yield from self.place_again(branch, item, token, record.token, own=own)
                if isinstance(verdict, Item):
                    left.append(verdict)
                elif verdict != "ok":
                    return verdict
            items, token = left, record.token
        return "busy"


class DeletedFirst(Proto):
    """Rule 7 dropped: a commit's tokens are handed on before its added addresses are beyond the reaper."""

    def process_commit(self, commit: str) -> Steps:
        tokens = yield ("get", ("mc", commit))
        if tokens is None:
            return
        for token in tokens:
            yield ("set", ("md", token), True)
        record = yield ("get", ("c", commit))
        yield from self.forget_added(record.added)
        yield ("del", ("mc", commit))


class DeletesEmptyLists(Proto):
    """Rule 8 dropped: the blob of an empty list goes without `deleting` before it."""

    def finish(self, address: str) -> Steps:
        held = yield ("get", ("r", address))
        if held == EMPTY:
            yield ("rm", address)
            yield ("cas", ("r", address), EMPTY, None)
        yield ("del", ("d", address))


class DeletingUnconditionally(Proto):
    """Zero grace without set_if: the last reference goes to `deleting` by a plain set."""

    def release(self, address: str, ref: Ref) -> Steps:
        held = yield ("get", ("r", address))
        if listed(held) and ref in held[1]:
            left = held[1] - {ref}
            yield ("set", ("r", address), refs(*left) if left else ("dead",))
            yield ("set", ("d", address), True)


class ScrubMarkersFirst(Proto):
    """Rule 9 dropped: the scrubber reads the markers before the branch."""

    fate_order = "deleted committed branch"


class ScrubCommittedFirst(Proto):
    """Rule 9 dropped: the scrubber reads the committed markers before the branch."""

    fate_order = "committed branch deleted"


class ScrubDeletedEarly(Proto):
    """Not a loss: the place of the deleted marker in the scrubber's order does not matter, as long as the branch is
    read before the committed markers. By the time that a token has it, what its commit added is beyond the reaper.
    """

    fate_order = "deleted branch committed"


class ScrubsYoung(Proto):
    """Rule 9 dropped: a token is found to be over first and its area read afterwards, however young the token is."""

    area_first = False
    waits = False


class ForgetsUnseen(Proto):
    """Rule 9 dropped: an old registry record is removed although the token was processed since it was read."""

    forgets_unseen = True


class LinksTwice(Proto):
    """Rule 10 dropped: the id of an issued address is looked up, not taken by set_if."""

    def link(self, branch: str, path: str, address: str) -> Steps:
        record = yield ("open", ("b", branch))
        if (yield ("get", ("r", address))) != ISSUED:
            return "409"
        item = Item(path, address, Ref(record.token, path, self.fresh()))
        yield ("set", ("r", address), refs(item.ref))
        return (yield from self.enter(branch, [item], record.token, own=True))


class CopiesTwice(Proto):
    """Rule 10 dropped for copies: the issued address is looked up, and goes later, instead of being taken first."""

    def take_issued(self, address: str, own: Ref) -> Steps:
        if (yield ("get", ("r", address))) != ISSUED:
            return False
        yield ("set", ("r", address), DEAD)
        return True


class CopiesUnderNoReference(Proto):
    """Rule 1 dropped for copies: the copy has its entry before its reference."""

    def link_copy(self, branch: str, path: str, address: str, copy: str) -> Steps:
        record = yield ("open", ("b", branch))
        yield ("put", copy)
        if not (yield from self.take_issued(address, Ref(record.token, path, self.fresh()))):
            return "409"
        item = Item(path, copy, Ref(record.token, path, self.fresh()))
        verdict = yield from self.enter(branch, [item], record.token, own=True)
        yield ("cas", ("r", copy), None, refs(item.ref))
        return verdict


class LinksUnderOneReference(Proto):
    """Rule 10 dropped: the reference of a link has no id of its own, so that who came too late takes the winner's for
    his.
    """

    def link(self, branch: str, path: str, address: str) -> Steps:
        self.fresh, fresh = lambda: "", self.fresh
        try:
            return (yield from super().link(branch, path, address))
        finally:
            self.fresh = fresh


class TakesLinksUpAgain(Proto):
    """Rule 10 dropped: a link that finds the reference of an earlier one, and its path without the address, takes the
    earlier one for dead before its entry, and goes on under a reference of its own.
    """

    def link(self, branch: str, path: str, address: str) -> Steps:
        verdict = yield from super().link(branch, path, address)
        if verdict != "409":
            return verdict
        held = yield ("get", ("r", address))
        record = yield ("open", ("b", branch))
        if record is None or not listed(held):
            return "409"
        live = (record.token, *record.sealed)
        there = yield from self.resolve(branch, path)
        if (there is not None and there.address == address) or not any(
            ref.path == path and ref.token in live for ref in held[1]
        ):
            return "409"
        ref = Ref(record.token, path, self.fresh())
        if (yield from self.hold(address, ref, own=False)) != "held":
            return "409"
        return (yield from self.enter(branch, [Item(path, address, ref)], record.token, own=True))


class NeverLooksBack(Proto):
    """Not a loss: a long upload does not look at its reference before the entry. It looks at its token behind it. The
    look spares what a writer leaves that dies in between, under a token that is scrubbed already: time, which the model
    does not have.
    """

    def still_held(self, placed: list[Item]) -> Steps:
        return True
        yield


class WithdrawsAll(Proto):
    """Rule 11 overdone: an upload that has outlived its token removes its own blobs, also one that was restored
    meanwhile.
    """

    def withdraws(self, held: object) -> bool:
        return True


class WithdrawsWhatHasNoKey(Proto):
    """Rule 11 overdone: also one that was restored and committed meanwhile."""

    def withdraws(self, held: object) -> bool:
        return held in (DEAD, None)


class ReadsOnce(Proto):
    """Rule 12 dropped: what was not found is not looked for again under the branch as it is now."""

    def resolve(self, branch: str, path: str) -> Steps:
        record = yield ("open", ("b", branch))
        return None if record is None else (yield from self.look(record, path))


class TokenAgain(Proto):
    """Every attempt of an operation uses the same new token."""

    one_token = True


class CreatesAgain(Proto):
    """A create whose reply was lost is made again when nothing stands there."""

    create_again = True


class CreatesBranchesAgain(Proto):
    """The same for a branch that is created in one step."""

    create_again = True
    reserves = False


class DeletesAnyIncarnation(Proto):
    """delete_branch does not look whether the branch is still the one that it was asked to delete."""

    knows_incarnation = False


class AnswersByTheRecord(Proto):
    """A commit that lost the race for the record says "aborted", without looking whether it had landed."""

    answers_exactly = False


class AnyCommitId(Proto):
    """A commit named by its id need not have landed."""

    checks_landed = False


class MergesDirty(Proto):
    """A merge does not look whether what it sealed is empty."""

    demands_clean = False


class ResetsPathsBlindly(Proto):
    """Reset of a path releases the reference although the token moved on."""

    release_anyway = True


class NothingIsLeft(Proto):
    """A commit with nothing changed retires the current token too."""

    def advance(self, branch: str, base: str, sealed: tuple[str, ...], head: str, fate: str) -> Steps:
        if fate != DELETED:
            return (yield from super().advance(branch, base, sealed, head, fate))
        while True:
            record = yield ("open", ("b", branch))
            if record is None or record.head != base or record.sealed[: len(sealed)] != sealed:
                return False
            token = yield from self.new_token(branch)
            gone = tuple((old, DELETED) for old in (*record.sealed, record.token))
            if (
                yield (
                    "cas",
                    ("b", branch),
                    record,
                    record._replace(token=token, sealed=(), retired=record.retired + gone),
                )
            ):
                return True


class RestoresDeleting(Proto):
    """Restore takes an address back that is `deleting` already."""

    def restore(self, branch: str, path: str, address: str) -> Steps:
        if (yield ("get", ("r", address))) != DEAD:
            return (yield from super().restore(branch, path, address))
        record = yield ("open", ("b", branch))
        item = Item(path, address, Ref(record.token, path, self.fresh()))
        if not (yield ("cas", ("r", address), DEAD, refs(item.ref))):
            return "409"
        return (yield from self.enter(branch, [item], record.token, own=True))


class ForgetsAtOnce(Proto):
    """Registry keys and a closed repository's record go as soon as nothing is left, however young they are."""

    waits = False


class RegistersLater(Proto):
    """A token is registered after it became current."""

    register_first = False


class NoHintsAgain(Proto):
    """The scrubber leaves no hints."""

    hints_again = False


class ChecksTheFirst(Proto):
    """A batch checks the token after its first entry only."""

    def enter(self, branch: str, items: list[Item], token: str, *, own: bool) -> Steps:
        verdict = yield from super().enter(branch, items[:1], token, own=own)
        for item in items[1:]:
            yield item.written(token)
        return verdict


class MovesBlindly(Proto):
    """A move deletes whatever stands at its source by then."""

    def remove(self, branch: str, path: str, copied: Source) -> Steps:
        return (yield from self.delete(branch, path))


class MovesByAddress(Proto):
    """A move knows its source by its address only: the same object, copied back over it meanwhile, is deleted."""

    def still(self, source: Source, copied: Source) -> bool:
        return source.address == copied.address


class TombstoneOnce(Proto):
    """A move whose tombstone fell under a token that had moved on does not write it again, because the path looks
    deleted.
    """

    deletes_again = False


class SeedProto(Proto):
    """Proposal 4 as the seed writes it: a missing key means committed; only the staging area tells a token's addresses;
    nothing is released by overwrites; no scrubber; no commit is found complete and unmarked."""

    fast_release = False

    def committed_source(self, source: Source, branch: str, path: str) -> Steps:
        return True
        yield

    def scrub(self) -> Steps:
        return None
        yield

    def complete(self, expired: tuple[str, ...], candidates: tuple[str, ...]) -> Steps:
        return ()
        yield


class Mutant(NamedTuple):
    kind: type[Offline]
    scenario: str
    """A scenario that catches it."""
    verdict: str
    """What is violated there; HOLDS for a variant that is shown to be safe."""

    def show(self, scenario: Scenario, states_max: int = STATES_MAX) -> Found:
        """A loss is shown as it is, not by the invariant that foretells it."""
        foretold = self.verdict not in ("UNSAFE", "LEAK")
        return explore(
            scenario,
            self.kind,
            strict=foretold,
            seek="" if self.verdict == HOLDS else self.verdict,
            states_max=states_max,
        )


MUTANTS: tuple[Mutant, ...] = (
    Mutant(EntryFirst, "overwrite | commit | reap", "UNSAFE"),
    Mutant(NaiveOverwrite, "overwrite | commit | reap", "UNSAFE"),
    Mutant(DropsOwnReference, "late write | commit; reset | reap | hard delete", "UNSAFE"),
    Mutant(MarkersAfterTheFact, "commit | scrub | reap", "UNSAFE"),
    Mutant(MissingMeansCommitted, "copy main->feat | reset main | reap", "UNSAFE"),
    Mutant(CopiesOntoEmpty, "overwrite | copy p->feat | hard delete", HOLDS),
    Mutant(SameReference, "copy q->p; delete q | overwrite p | hard delete", "UNSAFE"),
    Mutant(SwapsAgain, "lost reply: overwrite | overwrite | hard delete", "UNSAFE"),
    Mutant(AnswersTooSoon, "lost reply: upload | commit; reap; scrub", "LIE"),
    Mutant(ReleasesBlindly, "overwrite | commit | reap", "UNSAFE"),
    Mutant(DeletedFirst, "markers: reap after commit | reap | hard delete", "UNSAFE"),
    Mutant(DeletesEmptyLists, "restore | hard delete | reset; reap", "UNSAFE"),
    Mutant(DeletingUnconditionally, "zero grace: overwrite | copy p->feat | hard delete", "UNSAFE"),
    Mutant(ScrubMarkersFirst, "commit | scrub | reap", "UNSAFE"),
    Mutant(ScrubCommittedFirst, "commit | scrub | reap", "UNSAFE"),
    Mutant(ScrubDeletedEarly, "commit | scrub | reap", HOLDS),
    Mutant(ScrubsYoung, "registry: commit (crash) | upload | scrub", "LIE"),
    Mutant(ForgetsUnseen, "registry: late write | reset; reap | scrub", "LITTER"),
    Mutant(LeavesTheSkewOut, "times: link | expire", "LIE"),
    Mutant(HasItsOwnGrace, "times: restore | hard delete | hard delete", "LIE"),
    Mutant(ReleasesAtOnce, "times: restore | reset; reap", "LIE"),
    Mutant(LinksTwice, "link | link (replay) | commit+reap", "LIE"),
    Mutant(CopiesTwice, "link of a copy | link (replay) | commit+reap", "LIE"),
    Mutant(CopiesUnderNoReference, "link of a copy | reset; reap; scrub", "LEAK"),
    Mutant(LinksUnderOneReference, "link | overwrite | link (replay)", "LIE"),
    Mutant(TakesLinksUpAgain, "link | overwrite | link (replay)", "LIE"),
    Mutant(NeverLooksBack, "registry: late write | reset; reap | scrub", HOLDS),
    Mutant(WithdrawsAll, "upload | reset; reap; scrub | restore what it wrote", "UNSAFE"),
    Mutant(WithdrawsWhatHasNoKey, "upload | reset; reap; scrub | restore what it wrote; commit; reap", "UNSAFE"),
    Mutant(ReadsOnce, "copy main->feat | commit main | reap", "LIE"),
    Mutant(TokenAgain, "lost reply: commit | commit | upload", "LIE"),
    Mutant(CreatesBranchesAgain, "lost reply: create branch | delete it | upload to it | reap", "UNSOUND"),
    Mutant(CreatesAgain, "lost reply: issue; link | expire | reset; reap", "UNSAFE"),
    Mutant(DeletesAnyIncarnation, "lost reply: delete branch | create it again | reap", "LIE"),
    Mutant(AnswersByTheRecord, "lost reply: commit | commit | reap", "LIE"),
    Mutant(AnyCommitId, "aborted commit | branch at it | reset; reap", "UNSAFE"),
    Mutant(AnyCommitId, "aborted commit | cherry-pick of it | reset; reap", "UNSAFE"),
    Mutant(MergesDirty, "merge feat->main | upload main | reap", "LIE"),
    Mutant(ResetsPathsBlindly, "reset path | commit | reap", "UNSAFE"),
    Mutant(NothingIsLeft, "nothing to commit | upload | reap", "LIE"),
    Mutant(RestoresDeleting, "restore | hard delete | reset; reap", "UNSAFE"),
    Mutant(ForgetsAtOnce, "repository deletion | create branch | reap; forget", "LITTER"),
    Mutant(RegistersLater, "registry: reset (crash) | upload | reset; reap", "LITTER"),
    Mutant(NoHintsAgain, "hints: overwrite (crash) | reap | scrub", "LEAK"),
    Mutant(ChecksTheFirst, "batch: overwrite p and q | commit | reap", "LIE"),
    Mutant(MovesBlindly, "move p->q | upload p | hard delete", "LIE"),
    Mutant(MovesByAddress, "move p->q | move q->p | hard delete", "LIE"),
    Mutant(TombstoneOnce, "move p->q | commit | reap", "LIE"),
    Mutant(HeadsUnchecked, "gc | branch at an expired commit (crash) | copy from it; delete it", "UNSAFE"),
    Mutant(GcDoesNotWait, "gc | branch at an expired commit", "UNSAFE"),
    Mutant(GcListsLast, "gc | upload; commit; reap", "UNSAFE"),
    Mutant(GcCommitsFirst, "gc | upload; commit; reap", "UNSAFE"),
    Mutant(GcWithoutPins, "gc | move of a reference-less staged entry", "UNSAFE"),
    Mutant(GcPinsEarly, "gc | move of a reference-less staged entry", "UNSAFE"),
    Mutant(GcKeepsReachable, "gc | copy from an unmarked commit | delete its branch", "UNSAFE"),
    Mutant(GcDoesNotWait, "mark | mark and sweep | copy from it", "UNSAFE"),
    Mutant(GcRechecksNothing, "gc | unmark; copy from it", "UNSAFE"),
    Mutant(GcRechecksItsOwn, "mark and sweep | unmark under the mark before; copy from it", "UNSAFE"),
    Mutant(GcRechecksAnyMark, "sweep | unmark; copy from it | mark by another run", "UNSAFE"),
    Mutant(GcTakesBackSweeping, "gc | unmark; copy from it", "UNSAFE"),
    Mutant(GcDisregardsAnyMark, "mark | mark and sweep of nothing | copy from it", "UNSAFE"),
    Mutant(GcDropsAllPins, "mark of nothing | mark and sweep | move of a reference-less staged entry", "UNSAFE"),
    Mutant(GcNeverNoticesTakeOver, "mark and sweep | mark and sweep | move of a reference-less staged entry", "UNSAFE"),
    Mutant(GcTakesAllForComplete, "gc | copy from an expired commit | commit+reap", "UNSAFE"),
    Mutant(
        GcCompleteBeforeTheLook,
        "mark and sweep of two, one a head | copy from the older | delete the head's branch",
        "UNSAFE",
    ),
    Mutant(GcCompleteForEver, "complete; mark and sweep with what held its data | copy from it", "UNSAFE"),
    Mutant(TagsLookOnce, "gc | tag at an expired commit (crash)", HOLDS),
    Mutant(GivesUpLandedFirst, "gc of what never landed | commit; overwrite; commit; reap", "UNSAFE"),
    Mutant(BranchesLookFirst, "tag | branch of its name", "LIE"),
    Mutant(TagsLookFirst, "tag | branch of its name", "LIE"),
    Mutant(LeavesReservations, "tag | branch of its name", "LIE"),
    Mutant(KeepsRefusedTags, "tag | branch of its name", "LIE"),
    Mutant(PlacesAgain, "lost reply: if absent: upload | delete | hard delete, over a tombstone", "UNSAFE"),
    Mutant(PlacesUnderTheSame, "lost reply: if absent: upload | delete | hard delete, over a tombstone", "UNSAFE"),
    Mutant(PlacesBlindly, "if absent: upload | upload, over a tombstone", "LIE"),
    Mutant(LooksAtTheCurrent, "if absent: upload | upload | commit", "LIE"),
    Mutant(LooksOnce, "if absent: upload | upload; commit; reap", "LIE"),
    Mutant(LooksAtSealedFirst, "if absent: upload | upload | commit", HOLDS),
    Mutant(PlacesUnderAnyToken, "if absent: upload | commit | reap", "LIE"),
    Mutant(KnowsItsReferenceOnly, "lost reply: if absent: upload", "LIE"),
    Mutant(LooksBeneathOnce, "if absent: link | late write | commit; reap", "LIE"),
    Mutant(LooksBeneathOnce, "if match: link | late write | commit; reap", "LIE"),
    Mutant(PlacesAgain, "lost reply: if match: upload | reset path | hard delete", "UNSAFE"),
    Mutant(PlacesUnderTheSame, "lost reply: if match: upload | reset path | hard delete", "UNSAFE"),
    Mutant(LooksAtTheCurrent, "if match: upload | upload | commit", "LIE"),
    Mutant(PlacesUnderAnyToken, "if match: upload | commit | reap", "LIE"),
    Mutant(ReleasesWhatMoved, "if match: upload | commit | reap", "UNSAFE"),
    Mutant(ReplacesWhatCameSince, "if match: upload | upload | hard delete", "LIE"),
    Mutant(MatchesAnything, "if match: upload | overwrite | hard delete", "LIE"),
    Mutant(DeletesOnceOnly, "if match: delete | commit | reap", "LIE"),
    Mutant(DeletesWhileSealed, "if match: delete | late write | commit; reap", "LIE"),
    Mutant(EntersBeforeItTakes, "multipart: complete | abort (crash) | complete (replay)", "UNSOUND"),
    Mutant(CompletesAgain, "multipart: complete | overwrite; hard delete | complete (replay)", "UNSAFE"),
    Mutant(JoinsWhateverIsAsked, "multipart: complete | complete of other parts | hard delete", "LIE"),
    Mutant(TakesWhatIsDeleting, "multipart: complete | complete (replay) | abort; hard delete", "UNSAFE"),
    Mutant(AbortsPartsFirst, "multipart: complete | abort (crash) | complete (replay)", "LIE"),
    Mutant(ForgetsWhatTheStoreKnows, "multipart: begin; part (crash) | delete branch; abort | hard delete", "LEAK"),
    Mutant(ForgetsRecordsFirst, "multipart: complete | reset; reap; scrub", "LEAK"),
    Mutant(PartsWithoutAddresses, "multipart: begin; part (crash) | delete branch; abort | hard delete", "LEAK"),
    Mutant(ForgetsUploadsAtOnce, "multipart: part | abort | scrub", "L"),
    Mutant(RegistersUploadsLater, "multipart: begin; part (crash) | delete branch; abort | hard delete", "LEAK"),
    Mutant(BelievesWhatMovedOn, "multipart: complete | complete (replay) | commit", "LIE"),
    Mutant(AnswersByTheRecordAlone, "multipart: complete (crash) | commit; reap; complete (replay)", "LIE"),
    Mutant(AnswersForWhatWasRefused, "multipart: complete if absent; complete (replay) | upload if absent", "LIE"),
    Mutant(DeletesWithoutWitness, "loss: reset; reap", "UNSAFE"),
    Mutant(ReadsNoWitness, "copy put back: of before a commit, reaped; reset; reap", "UNSAFE"),
    Mutant(ReadsNoManifest, "copy put back: of before a commit; reset; reap; gc", "UNSAFE"),
    Mutant(WitnessesAfterwards, "loss: reset; reap", "UNSAFE"),
    Mutant(ForgetsAShard, "loss of entries: overwrite; reap", "UNSAFE"),
    Mutant(ServersFirst, "loss of entries: overwrite; reap", "UNSAFE"),
    Mutant(LooksBeforeItMarks, "loss of entries: overwrite; reap", "UNSAFE"),
    Mutant(NeverSettles, "loss of references: copy; reset; reap", "UNSAFE"),
    Mutant(SettlesAtOnce, "loss: overwrite | reap", "UNSAFE"),
    Mutant(SettlesOnlyWhatIsLive, "loss of markers: commit; reap; scrub", "UNSAFE"),
    Mutant(ProcessesLiveTokens, "loss of entries: overwrite; reap", "UNSAFE"),
    Mutant(KeepsLostMarkers, "loss of branches: commit | copy from it by id; reset; reap", "UNSAFE"),
    Mutant(WritesNoManifest, "loss of markers: commit; reap; scrub", "UNSAFE"),
    Mutant(ConfirmsUnprocessed, "loss of references: commit | reap; reap; scrub", "UNSAFE"),
    Mutant(TagsUnlooked, "copy put back: of before a tag; gc", "UNSAFE"),
    Mutant(WitnessesNoEntries, "loss: witnessed link | expire; reap", "UNSAFE"),
    Mutant(WitnessesCopiesOnly, "copy put back: of before a witnessed link of a copy; expire; reap; gc", "UNSAFE"),
    Mutant(ExplainsEveryEntry, "loss: witnessed restore | reap; reap", "UNSAFE"),
    Mutant(ExplainsByAnyRelease, "loss: witnessed restore | reap; reap", "UNSAFE"),
    Mutant(SweepsWhatWasSeenBefore, "loss: gc | copy from an expired commit", "UNSAFE"),
    Mutant(LooksAtNames, "purge of all | restore | hard delete", "LIE"),
    Mutant(LooksAtCommitsFirst, "purge of all | commit; reap", "LIE"),
    Mutant(LooksAtTrash, "purge of all | restore | hard delete", "LIE"),
    Mutant(LooksAtTrashFirst, "purge of all | delete; restore; delete; restore", "LIE"),
    Mutant(LooksTwice, "purge of all | restore; delete; restore", "LIE"),
    Mutant(AnnouncesNothing, "purge | read | end of backups", "LIE"),
    Mutant(WritesBeforeItsIntent, "purge | gc", "UNSAFE"),
    Mutant(PublishesBlindly, "purge | purge of other rows | end of backups", "LIE"),
    Mutant(SharesAttempts, "purge (crash) | the same run again | end of backups", "UNSAFE"),
    Mutant(ReadsLocationsFirst, "purge | gc", "UNSAFE"),
    Mutant(ReadsNoLocations, "purge; end of backups | gc", "UNSAFE"),
    Mutant(ListsAddresses, "purge; mark; sweep | unmark; copy from it", "UNSAFE"),
    Mutant(DeletesTheIdentityOnly, "purge | reset; reap", "LEAK"),
    Mutant(ReadsTheFlagFirst, "purge | reset; reap", "LEAK"),
    Mutant(LooksForLocationsFirst, "purge | reset; reap", "LEAK"),
    Mutant(EndsBackupsUnmarked, "purge; end of backups | restore of the content | end of backups", "UNSAFE"),
    Mutant(EndsBackupsAtOnce, "purge | read | end of backups", HOLDS),
    Mutant(EndsBackupsUnderReaders, "purge | read | end of backups", "LIE"),
    Mutant(TakesLostLocationsForDeleted, "loss of locations: purge; end of backups | gc", HOLDS),
    Mutant(ComparesNumbersAlone, "loss of locations: purge of other rows; end of backups; gc", HOLDS),
    Mutant(NoLocationsInTheManifest, "loss of locations: purge; end of backups | gc", "UNSAFE"),
)
