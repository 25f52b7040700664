"""Multipart uploads (rule 23).

The store may have multipart uploads itself, or none. The model's store is the worse of both: it keeps something of an
upload that it began (`pending`) until that is aborted, and its parts outlive the join.
"""

from __future__ import annotations

from .replacing import Replacing
from .staging import ATTEMPTS, Entered, Item, Source
from .store import (
    CLOSED,
    DEAD,
    DEAD_PARTS,
    ISSUED,
    OPEN,
    UPLOADING,
    Ref,
    Steps,
    each,
    is_issued,
    is_uploading,
    listed,
    pending,
    refs,
)


class Multipart(Replacing):
    def begin_upload(self, branch: str, path: str, address: str) -> Steps:
        """Register the upload, issue its address, and begin the upload in the store.

        Rule 23: An upload is an issued address with a deadline of its own.

        Beginning an upload registers it, issues its address P (rule 10), and only then begins an upload in the store,
        if the store has such. Whether an upload is open, the reference key of P decides alone: while it says `issued`,
        parts may be written, and the upload completed or aborted. It expires as any issued address does.

        *Without it* two calls link one upload, an entry names what an abort deletes, a caller is told that parts were
        joined which were not, or parts stay in the store, where no listing shows them.

        *Shown by* `RegistersUploadsLater`.
        """
        del path
        if (yield ("open", ("b", branch))) is None:
            return "404"
        yield ("set", ("u", address), OPEN)
        yield ("set", ("d", address), True)
        if not (yield ("cas", ("r", address), None, UPLOADING)):
            return "busy"
        yield ("put", pending(address))
        return "ok"

    def write_part(self, address: str, number: str) -> Steps:
        """Write a part as an object of its own.

        Rule 23, A part: It is a part of the store's own upload. In a store that has none (a folder), it is an object at
        an issued address of its own, which expires with P: hint, `issued`, blob, and the part's record last. Each
        attempt has an address of its own; of several with one number, the one written last counts. So a part that
        nobody recorded is deleted at its time. *Shown by* `PartsWithoutAddresses`.
        """
        if not is_uploading((yield ("get", ("r", address)))):
            return "404"
        part = f"{address}/{number}.{self.fresh()}"
        yield ("set", ("d", part), True)
        if not (yield ("cas", ("r", part), None, ISSUED)):
            return "busy"
        yield ("put", part)
        yield ("set", ("p", address, number, part), True)
        return "ok"

    def complete_upload(
        self, branch: str, path: str, address: str, parts: str | tuple[str, ...], entered: list[Entered] | None = None
    ) -> Steps:
        """Join the parts, and link the address.

        Rule 23, A completion: It does four things, in this order:

        1. It fixes which parts are joined: `set_if(issued -> issued, these parts)`. From then on no others may be.
        2. It joins them at P, where nothing was before: what is there already was joined from the same parts. After a
           crash the upload is open, and anybody may make the call again. What lies at P must be as long as the parts
           were, or P is not taken. A join that lands after P was reaped is left to the offline job.
        3. It takes P as a link does, `set_if(that -> [(T, path, id)])`, and writes the entry, with rule 2's check. Who
           has not taken P writes no entry. A condition on the path is rule 20's; one that refuses here has ended the
           upload.
        4. It records that it is done, or that it was refused, and ends what is left.

        *Shown by* `EntersBeforeItTakes`, `JoinsWhateverIsAsked`, `TakesWhatIsDeleting`.
        """
        return (yield from self.completing(branch, path, address, parts, entered))

    def complete_if_absent(self, branch: str, path: str, address: str, parts: str | tuple[str, ...]) -> Steps:
        """The same where nothing is (rule 20). Who is refused behind the address has ended the upload."""
        return (yield from self.completing(branch, path, address, parts, None, if_absent=True))

    def completing(
        self,
        branch: str,
        path: str,
        address: str,
        parts: str | tuple[str, ...],
        entered: list[Entered] | None,
        *,
        if_absent: bool = False,
    ) -> Steps:
        numbers = (parts,) if isinstance(parts, str) else parts
        held = yield ("get", ("r", address))
        if not self.may_join(held):
            return (yield from self.landed_upload(branch, path, address, numbers))
        found = yield from each(*(("scan", ("p", address, number)) for number in numbers))
        if if_absent and (yield from self.standing(branch, path)) is not None:
            return "exists"
        fixed = (*UPLOADING, numbers)
        if not all(found) or not (yield from self.fix_parts(address, held, fixed)):
            return (yield from self.landed_upload(branch, path, address, numbers, refusal="400"))
        if not (yield ("join", address, tuple(keys[-1][3] for keys in found), numbers)):
            return (yield from self.landed_upload(branch, path, address, numbers, refusal="torn"))
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        item = Item(path, address, Ref(record.token, path, self.fresh()))
        if not (yield from self.take_upload(address, fixed, item.ref)):
            return (yield from self.landed_upload(branch, path, address, numbers))
        if if_absent:
            verdict = yield from self.enter_conditionally(branch, item, record.token, None)
        else:
            verdict = yield from self.enter(branch, [item], record.token, own=True, entered=entered)
        if verdict == "ok" or if_absent:
            yield ("set", ("u", address), self.closed_as(verdict, numbers))
            yield from self.end_upload(address)
        return verdict

    def closed_as(self, verdict: str, numbers: tuple[str, ...]) -> object:
        """What the registry says of an upload that a completion ended."""
        return ("completed", numbers) if verdict == "ok" else CLOSED

    def may_join(self, held: object) -> bool:
        return is_uploading(held)

    def fix_parts(self, address: str, held: tuple, fixed: tuple) -> Steps:
        """Whether these are the parts that are joined, by whoever joins."""
        if held == UPLOADING and (yield ("cas", ("r", address), UPLOADING, fixed)):
            return True
        return (yield ("get", ("r", address))) == fixed

    def take_upload(self, address: str, fixed: tuple, own: Ref) -> Steps:
        """Whether this call is the one that links the address."""
        if not (yield ("cas", ("r", address), fixed, refs(own))):
            held = yield ("get", ("r", address))
            return listed(held) and own in held[1]
        return True

    def landed_upload(
        self, branch: str, path: str, address: str, numbers: tuple[str, ...], refusal: str = "409"
    ) -> Steps:
        """Answer a call that found the address taken, or other parts fixed. "busy": it may still land. `refusal`: the
        answer if nobody has taken the address.

        Rule 23, A call that finds P taken: It answers the same if the record says so, or if the path shows P, committed
        or under the branch's current token. (Under a token that moved on the entry may have to be written again.) P is
        read before that: an entry that is not there yet comes before P leaves the list. Otherwise, while P is on a
        list, the other call may still be under way. *Shown by* `CompletesAgain`, `BelievesWhatMovedOn`,
        `AnswersByTheRecordAlone`, `AnswersForWhatWasRefused`.
        """
        held = yield ("get", ("r", address))
        if is_uploading(held):
            return refusal
        state = yield ("get", ("u", address))
        if state == ("completed", numbers):
            return "ok"
        source = yield from self.resolve(branch, path)
        if source is None or source.address != address:
            # who took it may put its reference on an emptied list, too
            return "busy" if listed(held) and state != CLOSED else "409"
        if (yield from self.is_owed(branch, source)):
            return "busy"
        return "ok" if (yield ("get", ("~joined", address))) == numbers else "409"

    def is_owed(self, branch: str, source: Source) -> Steps:
        """Whether the entry stands under a token that moved on, from where its writer may have to write it again (rule
        2): a commit may have read that token before.
        """
        record = yield ("open", ("b", branch))
        return source.token is not None and (record is None or record.token != source.token)

    def abort_upload(self, address: str) -> Steps:
        """Rule 23, An abort: It is `set_if(issued -> deleting)` with the hint; then it ends what is left. A branch's
        reset and deletion abort what is open on it. *Shown by* `AbortsPartsFirst`.

        """
        for _ in range(ATTEMPTS):
            held = yield ("get", ("r", address))
            if is_uploading(held) and not (yield ("cas", ("r", address), held, DEAD_PARTS)):
                continue
            if is_uploading(held) or held == DEAD_PARTS:
                yield ("set", ("d", address), True)
                yield from self.end_upload(address)
                return "ok"
            return "404"
        return "busy"

    def expire_upload(self, address: str) -> Steps:
        held = yield ("get", ("r", address))
        if is_uploading(held) and (yield from self.begin_deletion(address, held)):
            yield from self.finish(address)

    def finish(self, address: str) -> Steps:
        raise NotImplementedError

    def end_upload(self, address: str) -> Steps:
        """Let the parts go, of an upload that is over. Their records go last."""
        yield from self.abort_in_store(address)
        for key in (yield ("scan", ("p", address))):
            if (yield ("cas", ("r", key[3]), ISSUED, DEAD)):
                yield ("set", ("d", key[3]), True)
            yield ("del", key)

    def abort_in_store(self, address: str) -> Steps:
        """Ask the store what it keeps of the upload, whatever the records say of it."""
        yield ("rm", pending(address))

    waits_for_parts = True
    waits_for_entries = True

    def scrub_upload(self, address: str) -> Steps:
        """Remove what was written late to an upload that is over, then forget it.

        Rule 23, Ending what is left: This asks the store for pending uploads at P and aborts them, then turns the
        parts' addresses from `issued` to `deleting`, with hints, and removes their records last. Whoever deletes an
        aborted or expired P asks the store as well: after a crash only the store may know of the upload. The scrubber
        finds an upload that is registered and not issued. If that is older than the longest operation, and was taken as
        long ago, it closes the upload and ends what is left. When that is as old, it does so again, for parts that were
        written late, and forgets the upload by `set_if`. *Shown by* `ForgetsWhatTheStoreKnows`, `ForgetsRecordsFirst`,
        `ForgetsUploadsAtOnce`, `NeverWaitsForEntries`.

        To rule 21 a completion is a link. To rule 13 a part is an issued address: without its key it is garbage.
        """
        state = yield ("get", ("u", address))
        before = yield ("get", ("r", address))
        yield ("barrier",)  # `state` and `before` are older than the longest operation
        held = yield ("get", ("r", address))
        if state is None or is_issued(held) or (self.waits_for_entries and listed(held) and not listed(before)):
            return
        if state == OPEN:
            if not (yield ("cas", ("u", address), OPEN, CLOSED)):
                return
            state = CLOSED
        if self.waits_for_parts:
            yield ("barrier",)
        yield from self.end_upload(address)
        yield ("cas", ("u", address), state, None)
