"""Uploads and links that may only go where nothing is (rule 20)."""

from __future__ import annotations

from .calls import Do
from .copying import Copying
from .staging import ATTEMPTS, Item, Source
from .store import ISSUED, LOST, ONCE, Branch, Entry, Op, Ref, Steps, listed, refs


class Creating(Copying):
    def upload_if_absent(self, branch: str, item: tuple[str, str]) -> Steps:
        """Refused early where something is: only to spare the body. What was seen then is not relied on."""
        return (yield from self.unless_there(branch, item[0], ("uploading_if_absent", branch, item)))

    def link_if_absent(self, branch: str, path: str, address: str) -> Steps:
        return (yield from self.unless_there(branch, path, ("linking_if_absent", branch, path, address)))

    def unless_there(self, branch: str, path: str, then: tuple) -> Steps:
        return Do((then,)) if (yield from self.standing(branch, path)) is None else "exists"

    def uploading_if_absent(self, branch: str, wanted: tuple[str, str]) -> Steps:
        return (yield from self.uploading_conditionally(branch, wanted, None))

    def linking_if_absent(self, branch: str, path: str, address: str) -> Steps:
        return (yield from self.linking_conditionally(branch, path, address, None))

    def uploading_conditionally(self, branch: str, wanted: tuple[str, str], expected: Source | None) -> Steps:
        """`expected`: the entry that the caller read, and whose place it wants to take; None: nothing may be there."""
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        item = yield from self.create(*wanted, record.token)
        if item is None:
            return "busy"
        yield ("put", item.address)
        if not (yield from self.still_held([item])):
            return "lost"
        return (yield from self.enter_conditionally(branch, item, record.token, expected))

    def linking_conditionally(self, branch: str, path: str, address: str, expected: Source | None) -> Steps:
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        item = Item(path, address, Ref(record.token, path, self.fresh()))
        if not (yield ("cas", ("r", address), ISSUED, refs(item.ref))):
            held = yield ("get", ("r", address))
            if not listed(held) or item.ref not in held[1]:
                return "409"
        return (yield from self.enter_conditionally(branch, item, record.token, expected))

    def standing(self, branch: str, path: str) -> Steps:
        """What is at the path: staged under any live token, sealed ones too, or committed. None also where there is no
        such branch: what is then written under its token is found out by the check behind it.
        """
        return (yield from self.resolve(branch, path))

    def written_once(self, item: Item, token: str, old: object) -> Op:
        return ("cas", ("e", token, item.path), old, Entry(item.address, item.ref.id), ONCE)

    def is_own(self, there: Entry, item: Item) -> bool:
        """Nobody else makes this address: an entry with it is one that landed although its reply was lost."""
        return there.address == item.address

    looks_at_the_token = True
    releases_only_if_current = True
    takes_another_reference = True

    def may_be_placed(self, there: Source | None, expected: Source | None) -> bool:
        """Whether what was found at the path, and is not this call's own, may be replaced. `expected`: the entry that
        the caller read; None: nothing may be there.
        """
        return there is None if expected is None else there is not None and self.still(there, expected)

    def may_replace(self, old: object, there: Source | None, token: str) -> bool:
        """Whether what lies under the token is what was found at the path, and not what came since."""
        if there is None:
            return not isinstance(old, Entry)
        return old == (Entry(there.address, there.id) if there.token == token else None)

    looks_beneath = True

    def still_beneath(self, item: Item, expected: Source | None, before: Branch | None, now: Branch) -> Steps:
        """Tell whether nothing came under the entry that it must not lie over. `before`: the branch when the path was
        looked at, if the entry lies over nothing under its token.

        Rule 20, What is sealed is looked at again: A writer that began before may put its entry under a sealed token
        late, and hear ok when it finds the entry in the commit (rule 2); it writes nothing under the current token
        then, where the `set_if` would meet it. So if something was sealed when the flow looked, and its entry lies over
        nothing under its token, it reads the branch again behind the entry. If the branch stands as it did, nobody was
        told ok of such a commit yet, and whoever asks from now on finds this entry on top. Otherwise the flow reads
        what lies beneath. If something came there, it takes its entry away again, by `set_if` on that entry, and says
        conflict. So it does where the token moved on meanwhile, because a commit may have taken the entry unlooked.
        *Shown by* `LooksBeneathOnce`.
        """
        if before is None or not before.sealed or before[:3] == now[:3] or not self.looks_beneath:
            return True
        there = yield from self.look_under(tuple(reversed(now.sealed)), now.head, item.path)
        return (there is not None and there.address == item.address) or self.may_be_placed(there, expected)

    def withdraw_entry(self, branch: str, item: Item, token: str, stored: Entry) -> Steps:
        """Take the own entry away again, and its references if no commit can have seen it. `stored`: as it was written,
        perhaps under the reference before, whose reply was lost.
        """
        if (yield ("cas", ("e", token, item.path), stored, None)):
            record = yield ("open", ("b", branch))
            if record is not None and record.token == token:
                yield from self.release(item.address, Ref(token, item.path, stored.id))
                yield from self.release(item.address, item.ref)
        return "conflict"

    def enter_conditionally(self, branch: str, item: Item, token: str, expected: Source | None) -> Steps:
        """Write the entry if nothing, or the expected entry, is at the path. "exists", "changed": somebody was first.
        "conflict": nobody can tell who was.

        Rule 20: Only where nothing is (`If-None-Match: *`), or in the place of what was read (`If-Match`).

        This is an upload or link as any other, but its entry is written by `set_if` over what was read under the
        current token: nothing, or a tombstone. Before that it reads **all that counts, the sealed tokens and the head
        too, until the branch stood still meanwhile**. An entry moves from one to the next while it looks, and after its
        token is processed it is in the commit only. Behind the entry follows rule 2's check. If the token moved on, the
        flow looks again and goes on under the new one. So of any number of such calls one wins, until somebody takes
        the path away.

        - **The write is not retried.** A second landing after a deletion would name a blob under a reference that was
          released. After a lost reply the flow goes round under a **new reference**, as an `exchange` does. The old one
          stays until its token is processed, because the write may still land. The flow knows its own landed entry by
          its **address**, which nobody else makes. If its old reference is off the list of a token that is current when
          it is read *after* the list, the write had landed and was taken away: ok.
        - **If it is refused**, because something else is there, it releases the reference that it holds under this
          token: it was never placed with that one. If an entry of its own may have been seen, or taken by a commit, it
          says conflict and not "exists": it cannot tell who was first.

        *Without it* two callers both hear that they created the path, or an entry names a blob without a reference.

        *Shown by* `PlacesBlindly`, `LooksAtTheCurrent`, `LooksOnce`, `PlacesUnderAnyToken`, `PlacesAgain`,
        `PlacesUnderTheSame`, `KnowsItsReferenceOnly`; `LooksAtSealedFirst` holds.
        """
        path, address, _ = item
        seen = False
        replaced: object = None
        before: Branch | None = None
        for _ in range(ATTEMPTS):
            looked = yield ("open", ("b", branch))
            old = yield ("get", ("e", token, path))
            there: Source | None = yield from self.standing(branch, path)
            own = there is not None and there.address == address
            if not own and not self.may_be_placed(there, expected):
                yield from self.release(address, item.ref)  # under this token it was never placed
                return "conflict" if seen else "exists" if expected is None else "changed"
            done = isinstance(old, Entry) and self.is_own(old, item)
            stored = old if done else Entry(address, item.ref.id)
            stands = own and there is not None and there.token == token
            if not done and not stands and self.may_replace(old, there, token):
                is_over_nothing = old is None and looked is not None and looked.token == token
                replaced, before = old, looked if is_over_nothing else None
                done = yield self.written_once(item, token, old)
            if done is True and not self.looks_at_the_token:
                return "ok"
            held = (yield ("get", ("r", address))) if done is LOST else None
            record = yield ("open", ("b", branch))
            if record is None:
                return "404"
            if done is True and not self.releases_only_if_current:
                yield from self.released(token, path, replaced)
            if done is True and record.token == token:
                if not (yield from self.still_beneath(item, expected, before, record)):
                    return (yield from self.withdraw_entry(branch, item, token, stored))
                yield from self.released(token, path, replaced)
                return "ok"
            uncertain = before is not None and before.sealed and self.looks_beneath
            ref = item.ref.id
            if (
                done is LOST
                and record.token == token
                and held is not None
                and not (listed(held) and item.ref in held[1])
            ):  # it had landed: only who takes the entry away takes its reference off a live token
                yield from self.released(token, path, replaced)
                return "conflict" if uncertain else "ok"
            if done is LOST:
                # it may have landed, and been replaced and released since, or land later: its reference stays until its
                # token is processed
                seen, ref = True, self.fresh() if self.takes_another_reference else ref
            elif record.token == token:
                continue  # somebody was faster: the next look tells
            else:
                seen = seen or done
            if record.token != token:
                if done and uncertain:
                    return "conflict"  # a commit may have taken it, over what nobody has looked at
                replaced = before = None
            token = record.token
            item = Item(path, address, Ref(token, path, ref))
            if (yield from self.hold(address, item.ref, own=True)) != "held":
                there = yield from self.resolve(branch, path)
                return (
                    "ok" if there is not None and there.address == address else "lost"
                )  # committed with the entry in it
        return "busy"
