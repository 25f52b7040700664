"""A KV, or one shard of it, that loses a suffix of its writes (rule 21): what a deleter does before it deletes.

A deleter has a position in each shard and a witness in the object store that says which. Its pass begins with a look
whether every shard holds what every witness says, and what the manifest says. Before it deletes it advances its
positions, writes its witness, and looks whether the same servers answer as when its pass began. A commit is written to
the object store, its manifest entry, before it is acknowledged; it waits there until a deleter has processed it and has
witnessed that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .calls import Do
from .incremental import Incremental
from .locations import Locations, addresses
from .offline import STANDING, SWEEPING, SWEPT, Mark, Offline, Proto
from .scenarios import Scenario
from .staging import Entered
from .store import (
    DEAD,
    DELETED,
    EMPTY,
    ISSUED,
    NEW,
    QUIETLY,
    Branch,
    Commit,
    Entry,
    Key,
    Location,
    Ref,
    Steps,
    Tag,
    Witness,
    branch_of,
    each,
    listed,
    refs,
)  # fmt: skip

CONFIRMED = {"~m": "~a", "~p": "~pa"}
"""Where an entry of the manifest goes once losing it would be noticed by a position."""


class ManifestEntry(NamedTuple):
    """An acknowledged commit, in the object store."""

    branch: str
    born: str
    """The branch's incarnation."""
    record: Commit


class Losses(Offline):
    # ---- losses

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

    # ---- commits survive the KV

    def record_landing(self, branch: str, born: str, commit: str, *, published: bool) -> Steps:
        """Before the landed mark and the marker: what they cause is then never ahead of the entry."""
        if published and (yield ("get", ("l", commit))):
            return True
        record = yield ("get", ("c", commit))
        if record is None:
            return False
        yield ("set", ("~m", commit), ManifestEntry(branch, born, record))
        return True

    def record_deletion(self, branch: str, born: str) -> Steps:
        yield ("set", ("~gone", branch, born), True)

    def known(self, commit: str, entry: ManifestEntry) -> Steps:
        """Whether the KV still knows that the commit landed, and its branch."""
        if (yield ("get", ("l", commit))) is None or (yield ("get", ("c", commit))) is None:
            return False
        branch = yield ("get", ("b", entry.branch))
        if branch is None or branch.born != entry.born:
            return (yield ("get", ("~gone", entry.branch, entry.born))) is not None
        if not isinstance(branch, Branch):
            return True
        todo = [branch.head]
        while todo:
            head = todo.pop()
            if head == commit:
                return True
            record = yield ("get", ("c", head))
            if record is not None:
                todo += record.parents[:1]
        return False

    def record_tag(self, name: str, tag: Tag) -> Steps:
        yield ("set", ("~t", name, *tag), True)

    def record_untagged(self, name: str, tag: Tag) -> Steps:
        """Without the entry a tag that is not there is a tag that was lost."""
        yield ("set", ("~untagged", name, *tag), True)

    def tags_known(self) -> Steps:
        for key in (yield ("scan", ("~t",))):
            if (yield ("get", ("tag", key[1]))) != key[2:] and not (yield from self.was_untagged(key)):
                return False
        return True

    def was_untagged(self, key: Key) -> Steps:
        return (yield ("get", ("~untagged", *key[1:])))

    def manifest_known(self) -> Steps:
        if not (yield from self.tags_known()):
            return False
        for key in (yield ("scan", ("~m",))):
            entry = yield ("get", key)
            if entry is not None and not (yield from self.known(key[1], entry)):
                return False
        return True

    # ---- entries that are witnessed

    def link_witnessed(self, branch: str, path: str, address: str) -> Steps:
        """With the setting: acknowledged once the manifest has it."""
        entered: list[Entered] = []
        verdict = yield from self.link(branch, path, address, entered)
        return (yield from self.record_entered(verdict, entered))

    def link_copy_witnessed(self, branch: str, path: str, address: str, copy: str) -> Steps:
        """The entry of the manifest says which address was linked, too: the copy's own was never issued."""
        entered: list[Entered] = []
        verdict = yield from self.link_copy(branch, path, address, copy, entered)
        for item in entered if verdict == "ok" else ():
            yield from self.record_issued(item.address, address)
        return (yield from self.record_entered(verdict, entered))

    def record_issued(self, copy: str, address: str) -> Steps:
        yield ("set", ("~issued", copy), address)

    def restore_witnessed(self, branch: str, path: str, address: str) -> Steps:
        entered: list[Entered] = []
        verdict = yield from self.restore(branch, path, address, entered)
        return (yield from self.record_entered(verdict, entered))

    def record_entered(self, verdict: str, entered: list[Entered]) -> Steps:
        if verdict == "ok":
            for address, ref in entered:
                yield ("set", ("~p", address, ref.id), ref)
        return verdict

    def hint(self, address: str, last: Ref) -> Steps:
        """The list of an address says whose release emptied it."""
        yield ("set", ("d", address), last)

    def release(self, address: str, ref: Ref, *, whole_token: bool = False) -> Steps:
        yield ("set", ("~freed", address, ref.id), True)
        yield from super().release(address, ref, whole_token=whole_token)

    def entries_known(self, *, others_answer: bool) -> Steps:
        """Whether each entry of the manifest is there, or its loss is explained. While the same servers answer only a
        state that cannot come back tells of a loss; others must explain each entry that is missing.
        """
        for key in (yield ("scan", ("~p",))):
            ref = yield ("get", key)
            if ref is None:
                continue  # confirmed meanwhile
            address = key[1]
            if (yield ("get", ("e", ref.token, ref.path))) == Entry(address, ref.id):
                continue
            held = yield ("get", ("r", address))
            issued = yield ("get", ("~issued", address))
            linked = held if issued is None else (yield ("get", ("r", issued)))
            if linked == ISSUED or (others_answer and not (yield from self.is_explained(address, ref, held))):
                return False
        return True

    def is_explained(self, address: str, ref: Ref, held: Any) -> Steps:
        """Whether the entry was released, or taken by a commit that the manifest has."""
        if held in (EMPTY, DEAD) and (yield ("get", ("d", address))) == ref:
            return True
        if not (yield ("head", address)):
            return True
        for key in (yield ("scan", ("~m",))):
            entry = yield ("get", key)
            if entry is not None and ref.token in entry.record.tokens:
                return True
        return False

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
        """Whether what was decided before may be deleted now."""
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
        """Their positions go much later: one that stalled may write its witness yet, and then the KV must hold it."""
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
        """Begin a pass: `then` are its calls, each with the identities under which it may act."""
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
        """Whether the KV forgot the decision that the tokens' markers stand for."""
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

        Nothing is deleted meanwhile by anybody: whoever passes the fence has settled under the same identities.
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
        """What it saw may not be so any more. The next run looks again; what a sweep had begun with stays marked as
        swept.
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
    """Rule 22 in a KV that loses writes: the object store knows where content lies before a backup ends."""

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


def protocol_of(scenario: Scenario) -> type[Offline]:
    """The protocol with rules 21 and 22 only where something may be lost, or is purged, and with incremental runs where
    there are some: elsewhere they would add steps that show nothing.
    """
    if scenario.goes_on:
        return Incremental
    if scenario.purges:
        return PurgingWithLosses if scenario.shards else Purging
    return Losses if scenario.shards else Proto
