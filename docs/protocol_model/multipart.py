"""Multipart uploads (rule 23): an issued address at which parts are joined, and which is linked once.

The store may have multipart uploads itself, or none: then a part is an object of its own, at an issued address that
expires with the upload's. The model's store is the worse of both: it keeps something of an upload that it began
(`pending`) until that is aborted, and its parts outlive the join.
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
        """Register the upload, issue its address, and only then begin the upload in the store: whoever finds the
        address asks the store.
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
        """Each attempt has an address of its own. The record comes last: what has none expires."""
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
        """Fix which parts are joined, join them, take the address, write the entry. Until it is taken, the same call
        may be made again by anybody; from then on nobody joins.
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
        """What a call hears that found the address taken, or other parts fixed: the same as who took it, if that
        landed with the same parts. "busy": it may still land. The address is read first, because an entry that is not
        there yet comes before its address leaves the list. `refusal`: what it hears if nobody has taken the address.
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
        """Remove what was written late to an upload that is over, then forget it, as a token is forgotten (rule 9).

        It may be about to be issued while its record is young, and about to be entered while its address was taken a
        short time ago. What is old and not issued is closed first; then its late writers are waited for.
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
