"""One rule about staging dropped at a time: references, tokens, releases, links, restores, names of branches."""

# ruff: noqa: ARG002  # an override keeps the arguments of what it drops

from __future__ import annotations

from .offline import Proto
from .staging import ATTEMPTS, Entered, Item, Overwrite, Source
from .store import DEAD, DELETED, EMPTY, ISSUED, LOST, NEW, TOMB, Entry, Ref, Steps, Tomb, branch_of, each, listed, refs


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


class KeepsUnnamed(Proto):
    """Rule 9 dropped: references of a live token stay until the token is processed."""

    def release_unnamed(self, address: str, *guard: object) -> Steps:
        return
        yield


class NeverWaitsForEntries(Proto):
    """Rule 9 dropped: a reference is released, and an upload closed, however young the reference is."""

    waits_for_entries = False


class ReadsTheBranchBeforeTheEntry(Proto):
    """Rule 9 dropped: a token that was current before its entry was read may be sealed when the entry is replaced."""

    def is_unnamed(self, address: str, ref: Ref) -> Steps:
        record = yield ("open", ("b", branch_of(ref.token)))
        entry = yield ("get", ("e", ref.token, ref.path))
        is_named = isinstance(entry, Entry) and entry.address == address
        return not is_named and record is not None and record.token == ref.token


class ReleasesSealed(Proto):
    """Rule 9 dropped: references of sealed tokens are released, too."""

    def is_unnamed(self, address: str, ref: Ref) -> Steps:
        entry = yield ("get", ("e", ref.token, ref.path))
        if isinstance(entry, Entry) and entry.address == address:
            return False
        record = yield ("open", ("b", branch_of(ref.token)))
        return record is not None and ref.token in (record.token, *record.sealed)


class WritesOverTheList(Proto):
    """Rule 9 dropped: the list is written without the condition that it is as it was read."""

    def release_as_read(self, address: str, held: tuple, unnamed: list[Ref]) -> Steps:
        yield ("set", ("r", address), refs(*(held[1] - {*unnamed})))
        yield from self.hint(address, unnamed[-1])


class DeletesUnnamed(Proto):
    """Rule 9 dropped: what has lost its last reference so has no grace window."""

    def release_as_read(self, address: str, held: tuple, unnamed: list[Ref]) -> Steps:
        left = held[1] - {*unnamed}
        if (yield ("cas", ("r", address), held, refs(*left) if left else DEAD)) and not left:
            yield from self.hint(address, unnamed[-1])


class PutsBackAsItWas(Proto):
    """Rule 13 dropped: an entry that is put back has the reference that it had, which may have been released."""

    def put_back(self, token: str, item: Item, old: Entry | str | None) -> Steps:
        mine = item.written(token)[2]
        yield ("cas", ("e", token, item.path), mine, None if old in (LOST, mine) else old)


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


class MovesWhatOthersMoved(Proto):
    """Rule 6 dropped: a move that did not delete its source answers ok."""

    answers_by_the_deletion = False


class KeepsItsCopy(Proto):
    """Rule 6 dropped: a move that did not delete its source leaves its copy."""

    takes_copies_back = False


class TombstonesAlike(Proto):
    """A move's tombstone has no id: where a reply was lost, another's is taken for it."""

    def tombstone_of_a_move(self) -> Tomb | str:
        return TOMB


class TakesBackWhatMovedOn(Proto):
    """A move takes its copy back although it wrote it under several tokens."""

    def may_take_back(self, overwrites: list[Overwrite]) -> bool:
        return overwrites[-1].old is not LOST


class ReleasesBeforeItDeletes(Proto):
    """A move releases what its copy replaced before it knows that it has moved the source."""

    def enter(
        self,
        branch: str,
        items: list[Item],
        token: str,
        *,
        own: bool,
        entered: list[Entered] | None = None,
        source: str | None = None,
        overwrites: list[Overwrite] | None = None,
    ) -> Steps:
        verdict = yield from super().enter(
            branch, items, token, own=own, entered=entered, source=source, overwrites=overwrites
        )
        for written, item, old in overwrites or ():
            yield from self.released(written, item.path, old)
        return verdict


class TombstoneOnce(Proto):
    """A move whose tombstone fell under a token that had moved on does not write it again, because the path looks
    deleted.
    """

    deletes_again = False
