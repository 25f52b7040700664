"""A KV, or one shard of it, that loses a suffix of its writes, and what a deleter does before it deletes (rule 21)."""

from __future__ import annotations

from typing import Any

from .calls import Do
from .incremental import Incremental
from .locations import Locations, addresses
from .manifest import Manifest
from .offline import STANDING, SWEEPING, SWEPT, Mark, Offline, Proto
from .pruning import Pruning
from .scenarios import Scenario
from .store import (
    DEAD,
    DELETED,
    EMPTY,
    ISSUED,
    NEW,
    QUIETLY,
    Branch,
    Entry,
    Key,
    Location,
    Ref,
    Steps,
    Witness,
    branch_of,
    each,
    listed,
    refs,
)  # fmt: skip

CONFIRMED = {"~m": "~a", "~p": "~pa"}
"""Where an entry of the manifest goes once losing it would be noticed by a position."""


class Losses(Manifest):
    # ---- losses

    """Rule 21: Look, mark, witness, look who answers, delete.

    A KV, or one server of it, may lose the last of its writes: in a failover, or by a restored copy. Every deleter (a
    reaper, a scrubber, the offline job) has a **position** in every server's part of the KV. It also has a **witness**,
    a file of its own in the object store, which says which positions it had written. A position is changed by `set_if`
    from the value that the deleter remembers, so that a server that went back cannot be written over unnoticed. No
    clock is read, and there is no number that other clients' writes could raise again.
    """

    def lose(self, shard: str) -> Steps:
        """All that the shard wrote between two moments is lost, in a failover or by a restored copy."""
        held = yield ("snap", shard)
        yield ("back", shard, held)

    def back_up(self, shard: str) -> Steps:
        yield ("set", ("~copy", shard), (yield ("snap", shard)))

    def put_back(self, shard: str) -> Steps:
        """Put the copy back, and nobody can tell from the server that it was: only while no other process runs."""
        yield ("back", shard, (yield ("get", ("~copy", shard))), QUIETLY)

    def switch(self, shard: str) -> Steps:
        """Another server answers for the shard; nothing is lost."""
        yield ("switch", shard)

    def retrying(self, steps: Steps) -> Steps:
        """A call that needs a record which the KV has lost ends with an error."""
        try:
            return (yield from super().retrying(steps))
        except (AttributeError, KeyError, TypeError):
            return "corrupt"

    # ---- the fence

    def identities(self) -> Steps:
        return tuple((yield from each(*(("get", ("~id", shard)) for shard in self.shards))))

    def witnesses_held(self) -> Steps:
        """Witnesses first, positions after: a deleter writes them the other way round."""
        for key in (yield ("scan", ("~w",))):
            witness = yield ("get", key)
            for shard, number in witness.positions:
                if ((yield ("get", ("at", shard, key[1]))) or 0) < number:
                    return False
        return True

    def positions(self) -> tuple[str, ...]:
        return self.shards

    def fence(self, deleter: str, identities: tuple[int, ...]) -> Steps:
        """Tell whether what was decided before may be deleted now.

        Rule 21, The fence: What is to be deleted is marked first (`deleting`, `sweeping`). Then the deleter advances
        its positions, writes its witness, and last checks that **the same servers answer** as when its pass began: a
        server that lost writes is another process, or another file. Only then it deletes. If the servers are read
        first, or the marks are made behind the fence, the model loses data. *Shown by* `DeletesWithoutWitness`,
        `WitnessesAfterwards`, `ForgetsAShard`, `ServersFirst`, `LooksBeforeItMarks`.

        What a witness covers cannot be lost unnoticed. What was marked before the fence and is lost after it may be
        gone although the KV names it again. No order of single steps can help that, but the next look tells.
        """
        own = yield ("get", ("~w", deleter))
        before = dict(own.positions) if own is not None else {}
        witnessed = []
        for shard in self.positions():
            number = before.get(shard)
            if not (yield ("cas", ("at", shard, deleter), number, (number or 0) + 1)):
                return False
            witnessed.append((shard, (number or 0) + 1))
        yield ("set", ("~w", deleter), Witness(tuple(witnessed), identities))
        return (yield from self.identities()) == identities

    keeps_positions = True

    def forget_deleters(self) -> Steps:
        """Remove the witnesses of others, as a later one of this deleter stands for them."""
        return Do((("guarded", ("forget_others",)),))
        yield

    def forget_others(self, identities: tuple[int, ...]) -> Steps:
        """Remove the witnesses and positions of deleters that ended.

        Rule 21, Deleters that ended are forgotten: Their witnesses are removed once a later witness stands for them:
        the one of whoever removes them. Their positions are removed much later. A deleter that was stopped before it
        wrote its witness creates it anew when it goes on; if the KV did not hold the position then, it would look as if
        it had gone back. *Shown by* `ForgetsPositionsAtOnce`, `ForgetsForNoLaterOne`.
        """
        others = [key for key in (yield ("scan", ("~w",))) if key[1] != self.me]
        if not (yield from self.fence(self.me, identities)):
            return
        for key in others:
            yield ("del", key)
        positions = {}
        for shard in self.positions():
            for key in (yield ("scan", ("at", shard))):
                positions[key] = yield ("get", key)
        if self.keeps_positions:
            yield ("barrier",)
        witnesses = {key[1] for key in (yield ("scan", ("~w",)))}
        for key, number in positions.items():
            if key[2] not in witnesses:
                yield ("cas", key, number, None)

    # ---- a pass

    settles = True

    def guarded(self, *then: tuple) -> Steps:
        """Begin a pass: `then` are its calls, each with the identities under which it may act.

        Rule 21, A pass begins with a look: Every server must hold what every witness says, and the KV must know what
        the **manifest** says. If not, the KV went back, and nothing is deleted until somebody has said what is to
        become of it. *Shown by* `ReadsNoWitness`, `ReadsNoManifest`.
        """
        identities = yield from self.identities()
        if not (yield from self.witnesses_held()) or not (yield from self.manifest_known()):
            return "went back"
        if not (yield from self.entries_known(others_answer=False)):
            return "went back"
        known = []
        for key in (yield ("scan", ("~w",))):
            witness = yield ("get", key)
            known.append(witness.identities)
        if identities not in known and self.settles:
            return Do((("settle_losses", *then),))
        return Do((name, *rest, identities) for name, *rest in then)

    def reap(self) -> Steps:
        names = [key[1] for key in (yield ("scan", ("b",)))]
        return Do((*(("drain", name) for name in names), ("guarded", ("process",))))

    def hard_delete(self) -> Steps:
        return Do((("guarded", ("delete_due",)),))
        yield

    def expire(self, address: str) -> Steps:
        return Do((("guarded", ("expire_issued", address)),))
        yield

    def expire_issued(self, address: str, _identities: tuple[int, ...]) -> Steps:
        yield from self.begin_deletion(address, ISSUED)

    def scrub(self) -> Steps:
        return Do((("guarded", ("scrub_all",)), ("guarded", ("delete_due",))))
        yield

    def process(self, identities: tuple[int, ...]) -> Steps:
        """Markers of either kind; then what waits in the manifest; then what is due."""
        deleted = yield ("scan", ("md",))
        committed = yield ("scan", ("mc",))
        waiting = yield ("scan", ("~m",))
        placed = yield ("scan", ("~p",))
        return Do((
            *(("process_token", key[1], identities) for key in deleted),
            *(("process_commit", key[1], identities) for key in committed),
            *(("process_entry", key[1], identities) for key in waiting),
            ("process_deleted", identities),
            ("delete_due", identities, *waiting, *placed),
        ))  # fmt: skip

    def process_deleted(self, identities: tuple[int, ...]) -> Steps:
        return Do(("process_token", key[1], identities) for key in (yield ("scan", ("md",))))

    def process_entry(self, commit: str, identities: tuple[int, ...]) -> Steps:
        """The marker may be lost, or what was made of it: the entry stands for it until both are witnessed."""
        entry = yield ("get", ("~m", commit))
        if entry is not None and (yield from self.identities()) == identities:
            yield from self.forget_added(entry.record.added)

    def process_commit(self, commit: str, identities: tuple[int, ...] | None = None) -> Steps:
        if identities is not None and (yield from self.identities()) != identities:
            return
        tokens = yield ("get", ("mc", commit))
        if tokens is None or (yield from self.any_live(tokens)) or (yield ("get", ("c", commit))) is None:
            return
        yield from super().process_commit(commit)

    def process_token(self, token: str, identities: tuple[int, ...] | None = None) -> Steps:
        if identities is not None and (yield from self.identities()) != identities:
            return
        if (yield from self.any_live((token,))):
            return
        yield from super().process_token(token)

    def any_live(self, tokens: tuple[str, ...]) -> Steps:
        """Tell whether the KV forgot the decision that the tokens' markers stand for.

        Rule 21, Lost decisions: A marker whose decision was lost (its token is live) is left alone. *Shown by*
        `ProcessesLiveTokens`.
        """
        for token in tokens:
            record = yield ("get", ("b", branch_of(token)))
            if isinstance(record, Branch) and token in (record.token, *record.sealed):
                return True
        return False

    def keeps_entries(self, token: str) -> Steps:
        """Whether a deleted marker stands for a decision that was lost: its token is live, or a commit took it. A fate
        travels from the branch to the markers.
        """
        record = yield ("get", ("b", branch_of(token)))
        if record is not None:
            live = (record.token, *record.sealed) if isinstance(record, Branch) else ()
            if token in live or any(token == other and fate != DELETED for other, fate in record.retired):
                return True
        for key in (yield ("scan", ("mc",))):
            if token in ((yield ("get", key)) or ()):
                return True
        return False

    def scrub_all(self, identities: tuple[int, ...]) -> Steps:
        addresses = yield ("scan", ("r",))
        tokens = yield ("scan", ("t",))
        calls = [("scrub_address", key[1], identities) for key in addresses]
        calls += [("scrub_token", key[1], identities) for key in tokens]
        return Do((*calls, *(("release_unnamed", key[1], identities) for key in addresses)))

    def scrub_address(self, address: str, identities: tuple[int, ...] | None = None) -> Steps:
        if identities is None or (yield from self.identities()) == identities:
            yield from super().scrub_address(address)

    def may_release(self, identities: tuple[int, ...]) -> Steps:
        """Behind the reads: an entry that was lost since the pass began looks as if it had never come. Its release
        would explain the loss to whoever settles.
        """
        return (yield from self.identities()) == identities

    def scrub_token(self, token: str, identities: tuple[int, ...] | None = None) -> Steps:
        if identities is None or (yield from self.identities()) == identities:
            yield from super().scrub_token(token)

    def delete_due(self, identities: tuple[int, ...], *processed: Key) -> Steps:
        """Mark, fence, delete. `processed`: manifest entries that this pass has processed."""
        due = []
        for key in (yield ("scan", ("d",))):
            held = yield ("get", ("r", key[1]))
            if held == EMPTY and (yield from self.begin_deletion(key[1], EMPTY)):
                held = DEAD
            if held == DEAD:
                due.append(key[1])
            elif held != ISSUED:
                yield ("del", key)
        if due or processed:
            yield from self.delete_behind_fence(due, processed, identities)

    def delete_behind_fence(self, due: list[str], processed: tuple[Key, ...], identities: tuple[int, ...]) -> Steps:
        if not (yield from self.fence(self.me, identities)):
            return
        for address in due:
            yield from self.remove_blob(address)
            yield ("cas", ("r", address), DEAD, None)
            yield ("del", ("d", address))
        for key in processed:
            entry = yield ("get", key)
            if entry is not None:
                yield ("set", (CONFIRMED[key[0]], *key[1:]), entry)
                yield ("del", key)

    # ---- other servers answer

    waits_to_settle = True

    def settle_losses(self, *then: tuple) -> Steps:
        """Put right what a loss of unwitnessed writes may have left, then go on.

        Rule 21, Settle: Other servers answer, and nothing that was witnessed is missing. It may have been a planned
        switch. Or one shard lost writes that nobody had witnessed: "copy added" and "original released" in references,
        while the entry is there. So a deleter waits until the operations that read what was lost have ended, and reads
        the manifest again: they may have acknowledged what the KV has lost. Then it settles, in this order, because a
        fate travels this way:

        1. It drops deleted markers of tokens that are live, or that a commit took.
        2. It registers live tokens.
        3. It puts back the reference of every live entry, whatever is there. (A missing key stays missing: it was
           committed, or is beyond the online path.)
        4. It publishes, processes committed markers, and processes the manifest.

        Whoever has settled says so in its witness, with the servers that it saw; others need not settle. Whoever has
        not deletes nothing. *Shown by* `LooksBeforeItWaits`, `NeverSettles`, `SettlesAtOnce`, `SettlesOnlyWhatIsLive`,
        `KeepsLostMarkers`.
        """
        if self.waits_to_settle:
            yield ("barrier",)  # operations that read what was lost have ended
        if not (yield from self.ended_known()):
            return "went back"
        identities = yield from self.identities()
        for key in (yield ("scan", ("md",))):
            if (yield from self.keeps_entries(key[1])):
                yield ("del", key)
        for key in (yield ("scan", ("b",))):
            record = yield ("get", key)
            for token in (record.token, *record.sealed) if isinstance(record, Branch) else ():
                if (yield ("get", ("t", token))) != NEW:
                    yield ("set", ("t", token), NEW)
                for name in (yield ("scan", ("e", token))):
                    entry = yield ("get", name)
                    if isinstance(entry, Entry):  # the code cannot tell one without a reference by its record
                        yield from self.hold_again(name, entry)
        yield from self.settle_commits()  # after what is live: a fate travels this way
        if (yield from self.identities()) == identities and (yield from self.fence(self.me, identities)):
            return Do((name, *rest, identities) for name, *rest in then)
        return None

    def ended_known(self) -> Steps:
        """Whether the KV knows what the operations have acknowledged that ended meanwhile."""
        return (yield from self.manifest_known()) and (yield from self.entries_known(others_answer=True))

    def settle_commits(self) -> Steps:
        """Put what a commit has taken beyond the reaper, wherever on its way it is found."""
        for key in (yield ("scan", ("b",))):
            yield from self.drain(key[1])
        for key in (yield ("scan", ("mc",))):
            yield from self.process_commit(key[1])
        for key in (yield ("scan", ("~m",))):
            entry = yield ("get", key)
            if entry is not None:
                yield from self.forget_added(entry.record.added)

    def hold_again(self, name: tuple[str, str, str], entry: Entry) -> Steps:
        """Put back the reference of a live entry. A missing key stays missing: the address is committed, or beyond the
        online path. What is empty or `deleting` is taken back only if the entry is live still: another deleter may have
        settled already, and gone on.
        """
        _, token, path = name
        ref = Ref(token, path, entry.id)
        while True:
            held = yield ("get", ("r", entry.address))
            if held is None or (listed(held) and ref in held[1]):
                return
            if (yield ("get", name)) != entry or not (yield from self.any_live((token,))):
                return
            if (yield ("cas", ("r", entry.address), held, refs(*(held[1] if listed(held) else ()), ref))):
                return

    # ---- the offline job

    def gc(self, *expired: str) -> Steps:
        return Do((("guarded", ("mark_and_sweep", *expired)),))
        yield

    def mark_and_sweep(self, *expired_and_identities: Any) -> Steps:
        *expired, identities = expired_and_identities
        known = yield ("scan", ("g",))
        run = f"{self.me}gc{len(known)}"
        return Do((("mark_between_fences", run, identities, *expired), ("sweep_all",)))

    def mark_between_fences(self, run: str, identities: tuple[int, ...], *expired: str) -> Steps:
        """A run stands only if its look was made, from its begin to its end, of a KV that lost nothing."""
        yield ("set", ("~run", run), identities)
        return (yield from super().mark(run, *expired))

    def may_stand(self, run: str) -> Steps:
        return (yield from self.fence(f"{self.me}{run}", (yield ("get", ("~run", run)))))

    sweeps_what_was_seen_before = False

    def sweep(self, run: str) -> Steps:
        identities = yield ("get", ("~run", run))
        if (yield from self.identities()) != identities and not self.sweeps_what_was_seen_before:
            yield from self.give_up_sweep(run)
            return
        yield from super().sweep(run)

    def may_sweep(self, run: str) -> Steps:
        identities = yield ("get", ("~run", run))
        if self.sweeps_what_was_seen_before:
            identities = yield from self.identities()
        return (yield from self.fence(f"{self.me}sweep.{run}", identities))

    def give_up_sweep(self, run: str) -> Steps:
        """Give up a sweep of what may not be so any more.

        Rule 21, A run of the offline job: It stands only if its look was made between two looks at the same servers,
        and is swept only while they answer. Otherwise it is given up. What its sweep had begun with stays marked as
        swept, and the next run finds what is left. *Shown by* `SweepsWhatWasSeenBefore`.
        """
        record = yield ("get", ("g", run))
        if record is None:
            return
        if record.state == STANDING:
            yield from self.unmark_run(run)
        elif record.state == SWEEPING and (yield ("cas", ("g", run), record, record._replace(state=SWEPT))):
            for commit in record.commits:
                yield ("cas", ("x", commit), Mark(run, SWEEPING), Mark(run, SWEPT))


class Purging(Locations, Proto):
    """The protocol with rule 22."""


class PurgingWithLosses(Locations, Losses):
    """The protocol with rules 21 and 22.

    Rule 22, A KV that lost writes: What was published is in the manifest, with its number, before the run is
    acknowledged and before a backup ends. A lower number in the KV means that it went back. So does another content
    under the same number, unless none of the objects is there any more: whoever deletes an identity takes its record
    off last. Backups end behind the fence of rule 21. *Shown by* `NoLocationsInTheManifest`. Two parts lose no object
    if dropped, but rows would come back untold: `TakesLostLocationsForDeleted`, `ComparesNumbersAlone`.
    """

    def publish(self, identity: str, intended: Location, published: Location) -> Steps:
        if not (yield from super().publish(identity, intended, published)):
            return False
        yield from self.record_location(identity, published)
        return True

    def record_location(self, identity: str, published: Location) -> Steps:
        """Never an older one over a newer one."""
        while True:
            told = yield ("get", ("~l", identity))
            if told is not None and told.n >= published.n:
                return
            if (yield ("cas", ("~l", identity), told, published)):
                return

    def manifest_known(self) -> Steps:
        return (yield from super().manifest_known()) and (yield from self.locations_known())

    def locations_known(self) -> Steps:
        for key in (yield ("scan", ("~l",))):
            told = yield ("get", key)
            record = yield ("get", ("loc", key[1]))
            if told is None or self.knows(record, told):
                continue
            for address in (key[1], *addresses(told)):  # whoever deletes an identity takes its record off last
                if (yield ("head", address)):
                    return False
        return True

    def knows(self, record: Location | None, told: Location) -> bool:
        """Whether a record is what was told, or follows it. Behind a loss another run may use its number again."""
        if record is None or record.n < told.n:
            return False
        return record.n > told.n or told.current in addresses(record)

    def end_backups(self, *identities: int) -> Steps:
        if not identities:
            return Do((("guarded", ("end_backups",)),))
        return (yield from super().end_backups(*identities))

    def may_end(self, identity: str, ending: Location, identities: Any) -> Steps:
        """What is current stands in the object store; and nothing that was witnessed is lost."""
        yield from self.record_location(identity, ending)
        return (yield from self.fence(self.me, identities[0]))


def protocol_of(scenario: Scenario) -> type[Offline | Pruning]:
    """The protocol with rules 21 and 22 only where something may be lost, or is purged, and with incremental runs where
    there are some: elsewhere they would add steps that show nothing.
    """
    if scenario.prunes:
        return Pruning
    if scenario.goes_on:
        return Incremental
    if scenario.purges:
        return PurgingWithLosses if scenario.shards else Purging
    return Losses if scenario.shards else Proto
