"""Rule 23 dropped, piece by piece: multipart uploads."""

# ruff: noqa: ARG002  # an override keeps the arguments of what it drops

from __future__ import annotations

from .offline import Proto
from .staging import Item, Source
from .store import DEAD, DEAD_PARTS, ISSUED, UPLOADING, Ref, Steps, each, is_uploading, listed, pending, refs


class EntersBeforeItTakes(Proto):
    """Rule 23 dropped: Complete writes its entry before it takes the address."""

    def take_upload(self, address: str, fixed: tuple, own: Ref) -> Steps:
        yield ("set", ("e", own.token, own.path), Item(own.path, address, own).written(own.token)[2])
        return (yield from super().take_upload(address, fixed, own))


class CompletesAgain(Proto):
    """Rule 23 dropped: a repeated Complete links again what was linked, instead of answering the same."""

    def landed_upload(
        self, branch: str, path: str, address: str, numbers: tuple[str, ...], refusal: str = "409"
    ) -> Steps:
        if (yield ("get", ("u", address))) != ("completed", numbers):
            return (yield from super().landed_upload(branch, path, address, numbers, refusal))
        record = yield ("open", ("b", branch))
        item = Item(path, address, Ref(record.token, path, self.fresh()))
        yield from self.hold(address, item.ref, own=True)
        return (yield from self.enter(branch, [item], record.token, own=True))


class JoinsWhateverIsAsked(Proto):
    """Rule 23 dropped: which parts are joined is not fixed before they are, so two calls may mean different ones."""

    def fix_parts(self, address: str, held: tuple, fixed: tuple) -> Steps:
        return True
        yield

    def take_upload(self, address: str, fixed: tuple, own: Ref) -> Steps:
        return (yield from super().take_upload(address, UPLOADING, own))


class TakesWhatIsDeleting(Proto):
    """Rule 23 dropped: parts are joined and linked under an address that is `deleting`."""

    def may_join(self, held: object) -> bool:
        return held == DEAD_PARTS or super().may_join(held)

    def fix_parts(self, address: str, held: tuple, fixed: tuple) -> Steps:
        return held == DEAD_PARTS or (yield from super().fix_parts(address, held, fixed))

    def take_upload(self, address: str, fixed: tuple, own: Ref) -> Steps:
        if (yield ("cas", ("r", address), DEAD_PARTS, refs(own))):
            return True
        return (yield from super().take_upload(address, fixed, own))


class AbortsPartsFirst(Proto):
    """Rule 23 dropped: an abort lets the parts go before it takes the address."""

    def abort_upload(self, address: str) -> Steps:
        if is_uploading((yield ("get", ("r", address)))):
            yield from self.end_upload(address)
        return (yield from super().abort_upload(address))


class ForgetsWhatTheStoreKnows(Proto):
    """Rule 23 dropped: the reaper does not ask the store for uploads at the address."""

    def abort_in_store(self, address: str) -> Steps:
        return
        yield


class ForgetsRecordsFirst(Proto):
    """Rule 23 dropped: the record of a part goes before the part's address does."""

    def end_upload(self, address: str) -> Steps:
        parts = yield ("scan", ("p", address))
        yield from each(*(("del", key) for key in parts))
        for key in parts:
            if (yield ("cas", ("r", key[3]), ISSUED, DEAD)):
                yield ("set", ("d", key[3]), True)
        yield from self.abort_in_store(address)


class PartsWithoutAddresses(Proto):
    """Rule 10 dropped for parts: a part is written before its address is issued."""

    def write_part(self, address: str, number: str) -> Steps:
        if is_uploading((yield ("get", ("r", address)))):
            yield ("put", f"{address}/{number}.{self.me}1")
        return (yield from super().write_part(address, number))


class ForgetsUploadsAtOnce(Proto):
    """Rule 23 dropped: what is known of an upload goes while parts may still be under way to it."""

    waits_for_parts = False


class RegistersUploadsLater(Proto):
    """Rule 23 dropped: an upload is registered after the store has begun it."""

    def begin_upload(self, branch: str, path: str, address: str) -> Steps:
        yield ("put", pending(address))
        return (yield from super().begin_upload(branch, path, address))


class BelievesWhatMovedOn(Proto):
    """Rule 23 dropped: a repeated Complete answers ok by an entry under a token that moved on, which a commit may have
    read before the entry was there.
    """

    def is_owed(self, branch: str, source: Source) -> Steps:
        return False
        yield


class AnswersByTheRecordAlone(Proto):
    """Rule 23 dropped: who finds the address taken asks only the upload's record, which is written last."""

    def landed_upload(
        self, branch: str, path: str, address: str, numbers: tuple[str, ...], refusal: str = "409"
    ) -> Steps:
        held = yield ("get", ("r", address))
        if is_uploading(held):
            return refusal
        if (yield ("get", ("u", address))) == ("completed", numbers):
            return "ok"
        return "busy" if listed(held) else "409"


class AnswersForWhatWasRefused(Proto):
    """Rule 23 dropped: a completion that its condition refused behind the address is recorded as done."""

    def closed_as(self, verdict: str, numbers: tuple[str, ...]) -> object:
        return ("completed", numbers)
