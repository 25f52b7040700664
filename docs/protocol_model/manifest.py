"""What the object store knows of commits, branches, tags and witnessed entries, so that their loss is noticed."""

from __future__ import annotations

from typing import Any, NamedTuple

from .offline import Offline
from .staging import Entered
from .store import DEAD, EMPTY, ISSUED, Branch, Commit, Entry, Key, Ref, Steps, Tag


class ManifestEntry(NamedTuple):
    """An acknowledged commit, in the object store."""

    branch: str
    born: str
    """The branch's incarnation."""
    record: Commit


class Manifest(Offline):
    # ---- commits survive the KV

    def record_landing(self, branch: str, born: str, commit: str, *, published: bool) -> Steps:
        """Write a commit to the object store. `published`: by whoever publishes it, who need not be the committer.

        Rule 21, The manifest: A commit is written to the object store: its record, its branch, and the branch's
        incarnation. That happens after the branch moved, before its landed mark and its marker, and before it is
        acknowledged. Whoever publishes it for a dead committer does the same. A tag is written likewise, and so is the
        deletion of a branch or tag; deletions are written before the record is deleted. Each branch and tag has an id,
        so that a deletion explains no other one of its name.

        An entry **waits** until a deleter has put what the commit added beyond the reaper, and has witnessed that. Then
        a position would tell that it was lost. While it waits, it stands for the marker, which may be lost. A commit is
        known if its record and landed mark are there, and its branch's head is it or follows it. *Shown by*
        `WritesNoManifest`, `ConfirmsUnprocessed`, `TagsUnlooked`, `ExplainsAnyTag`.

        Access keys, rules, the purge document and durations are not in the manifest. The audit log has each change of
        them before the KV, so whoever settles takes from there what keeps more
        ([0197](decisions/0197-what-a-restored-kv-brings-back.md)). Deleters wait for that, too.
        """
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
        """Tell whether each entry of the manifest is there, or its loss is explained.

        Rule 21, Links and restores: They are witnessed if a setting asks for it (`safety.witness = "always"`). Such a
        call writes its entry to the manifest before it answers. The entry waits as a commit's does, and is dropped when
        it is confirmed: from then on a position tells.

        - While the same servers answer, the entry is known to be lost if its address waits to be linked, a state that
          never comes back. (For a copy, that is the address that was linked; the entry names it, too.)
        - When others answer, and the operations that began before have ended, an entry that is not staged must be
          explained. The address says that this reference was its last one, or its object is gone, or a commit of the
          manifest took its token. Otherwise the KV went back.

        *Shown by* `WitnessesNoEntries`, `WitnessesCopiesOnly`, `ExplainsEveryEntry`, `ExplainsByAnyRelease`.
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
