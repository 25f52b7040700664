"""Rule 21, one part dropped at a time."""

# ruff: noqa: ARG002  # an override keeps the arguments of what it drops

from __future__ import annotations

from .losses import Losses
from .staging import Entered
from .store import DEAD, EMPTY, Key, Ref, Steps


class DeletesWithoutWitness(Losses):
    """No positions and no witnesses; servers and manifest are still looked at."""

    def fence(self, deleter: str, identities: tuple[int, ...]) -> Steps:
        return (yield from self.identities()) == identities


class ReadsNoWitness(Losses):
    """Witnesses are written, and nobody reads them."""

    def witnesses_held(self) -> Steps:
        return True
        yield


class ReadsNoManifest(Losses):
    """Manifest entries are written, and nobody reads them."""

    def manifest_known(self) -> Steps:
        return True
        yield


class WitnessesAfterwards(Losses):
    """The witness is written after the deletion."""

    def delete_behind_fence(self, due: list[str], processed: tuple[Key, ...], identities: tuple[int, ...]) -> Steps:
        for address in due:
            yield ("rm", address)
        yield from super().delete_behind_fence(due, processed, identities)


class ForgetsAShard(Losses):
    """A deleter has no position in the first shard."""

    def positions(self) -> tuple[str, ...]:
        return self.shards[1:]


class LooksBeforeItMarks(Losses):
    """What is due is marked behind the fence."""

    def delete_due(self, identities: tuple[int, ...], *processed: Key) -> Steps:
        if not (yield from self.fence(self.me, identities)):
            return
        for key in (yield ("scan", ("d",))):
            held = yield ("get", ("r", key[1]))
            if held == DEAD or (held == EMPTY and (yield from self.begin_deletion(key[1], EMPTY))):
                yield ("rm", key[1])


class NeverSettles(Losses):
    """Other servers are taken for the same."""

    settles = False


class SettlesAtOnce(Losses):
    """Nobody waits for the operations that read what was lost."""

    waits_to_settle = False


class WritesNoManifest(Losses):
    """A commit is acknowledged with its record in the KV alone."""

    def record_landing(self, branch: str, born: str, commit: str, *, published: bool) -> Steps:
        return True
        yield


class ConfirmsUnprocessed(Losses):
    """An entry is confirmed although nobody has seen to it that its addresses are beyond the reaper."""

    def process_entry(self, commit: str, identities: tuple[int, ...]) -> Steps:
        return
        yield


class TagsUnlooked(Losses):
    """Nobody looks whether the KV still has the tags of the manifest."""

    def tags_known(self) -> Steps:
        return True
        yield


class ProcessesLiveTokens(Losses):
    """A marker is believed although its token is live."""

    def any_live(self, tokens: tuple[str, ...]) -> Steps:
        return False
        yield


class KeepsLostMarkers(Losses):
    """Settling leaves markers whose decision was lost."""

    def keeps_entries(self, token: str) -> Steps:
        return False
        yield


class SettlesOnlyWhatIsLive(Losses):
    """Settling does not look for what commits have taken."""

    def settle_commits(self) -> Steps:
        return
        yield


class ServersFirst(Losses):
    """The fence looks which servers answer before it writes its positions."""

    def fence(self, deleter: str, identities: tuple[int, ...]) -> Steps:
        if (yield from self.identities()) != identities:
            return False
        self_identities, self.identities = self.identities, lambda: _same(identities)
        try:
            return (yield from super().fence(deleter, identities))
        finally:
            self.identities = self_identities


def _same(identities: tuple[int, ...]) -> Steps:
    return identities
    yield


class SweepsWhatWasSeenBefore(Losses):
    """A run is swept although other servers answer than when it looked."""

    sweeps_what_was_seen_before = True


class WitnessesNoEntries(Losses):
    """A link is acknowledged with its entry in the KV alone; only the explorer notes it."""

    def record_entered(self, verdict: str, entered: list[Entered]) -> Steps:
        if verdict == "ok":
            for address, ref in entered:
                yield ("set", ("~pa", address, ref.id), ref)
        return verdict


class WitnessesCopiesOnly(Losses):
    """The manifest's entry of a link of a copy does not say which address was linked."""

    def record_issued(self, copy: str, address: str) -> Steps:
        return
        yield


class ExplainsEveryEntry(Losses):
    """Whatever is missing is taken for released, whoever answers."""

    def is_explained(self, address: str, ref: Ref, held: object) -> Steps:
        return True
        yield


class ExplainsByAnyRelease(Losses):
    """An address that waits to be deleted is taken for one whose witnessed entry was released."""

    def is_explained(self, address: str, ref: Ref, held: object) -> Steps:
        return held in (EMPTY, DEAD) or (yield from super().is_explained(address, ref, held))


class ReleasesUnderOtherServers(Losses):
    """The scrubber does not look whether the servers that showed it no entry are those with which its pass began."""

    def may_release(self, identities: tuple[int, ...]) -> Steps:
        return True
        yield


class ForgetsPositionsAtOnce(Losses):
    """A forgotten deleter's positions go with its witness. One that stalled before it wrote its witness creates a
    witness anew that the KV does not hold, so everybody takes the KV for one that went back.
    """

    keeps_positions = False


class ForgetsForNoLaterOne(Losses):
    """Witnesses are removed, and none that is later stands for them."""

    def forget_others(self, identities: tuple[int, ...]) -> Steps:
        for key in (yield ("scan", ("~w",))):
            yield ("del", key)


class ExplainsAnyTag(Losses):
    """That a tag was deleted explains the loss of any tag of its name and commit, also of one that was made again."""

    def was_untagged(self, key: Key) -> Steps:
        return bool((yield ("scan", ("~untagged", *key[1:3]))))


class LooksBeforeItWaits(Losses):
    """Who settles has looked at the manifest before the operations ended that read what was lost, and not behind."""

    def ended_known(self) -> Steps:
        return (yield from self.entries_known(others_answer=True))
