"""Uploads and links that may only go where nothing is (rule 20): one of them wins, what somebody else wrote first
stays.

Expected are nothing or a tombstone. Both come back, which no other expected value does, so the write is made once: its
reply lost, the flow goes round under a new reference, and knows its own landed entry by its address, which nobody else
makes.
"""

from __future__ import annotations

from .calls import Do
from .staging import ATTEMPTS, Item, Source, Staging
from .store import ISSUED, LOST, ONCE, Entry, Op, Ref, Steps, listed, refs


class Creating(Staging):
    def upload_if_absent(self, branch: str, item: tuple[str, str]) -> Steps:
        """Refused early where something is: only to spare the body. What was seen then is not relied on."""
        return (yield from self.unless_there(branch, item[0], ("uploading_if_absent", branch, item)))

    def link_if_absent(self, branch: str, path: str, address: str) -> Steps:
        return (yield from self.unless_there(branch, path, ("linking_if_absent", branch, path, address)))

    def unless_there(self, branch: str, path: str, then: tuple) -> Steps:
        return Do((then,)) if (yield from self.standing(branch, path)) is None else "exists"

    def uploading_if_absent(self, branch: str, wanted: tuple[str, str]) -> Steps:
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        item = yield from self.create(*wanted, record.token)
        if item is None:
            return "busy"
        yield ("put", item.address)
        if not (yield from self.still_held([item])):
            return "lost"
        return (yield from self.enter_where_nothing_is(branch, item, record.token))

    def linking_if_absent(self, branch: str, path: str, address: str) -> Steps:
        record = yield ("open", ("b", branch))
        if record is None:
            return "404"
        item = Item(path, address, Ref(record.token, path, self.fresh()))
        if not (yield ("cas", ("r", address), ISSUED, refs(item.ref))):
            held = yield ("get", ("r", address))
            if not listed(held) or item.ref not in held[1]:
                return "409"
        return (yield from self.enter_where_nothing_is(branch, item, record.token))

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
    takes_another_reference = True

    def enter_where_nothing_is(self, branch: str, item: Item, token: str) -> Steps:
        """Rule 2, with a `cas` in place of the swap. "exists": somebody was first. "conflict": others may have read
        ours, a commit may have taken it, so there is not a word on who was.
        """
        path, address, _ = item
        seen = False
        for _ in range(ATTEMPTS):
            old = yield ("get", ("e", token, path))
            there: Source | None = yield from self.standing(branch, path)
            if there is not None and there.address != address:
                yield from self.release(address, item.ref)  # under this token it was never placed
                return "conflict" if seen else "exists"
            placed = isinstance(old, Entry) and self.is_own(old, item)
            done = placed
            if not isinstance(old, Entry):
                done = yield self.written_once(item, token, old)
            if done is True and not self.looks_at_the_token:
                return "ok"
            held = (yield ("get", ("r", address))) if done is LOST else None
            record = yield ("open", ("b", branch))
            if record is None:
                return "404"
            ref = item.ref.id
            if (
                done is LOST
                and record.token == token
                and held is not None
                and not (listed(held) and item.ref in held[1])
            ):
                return "ok"  # it had landed: only who takes the entry away takes its reference off a live token
            if done is LOST:
                # it may have landed, and been replaced and released since, or land later: its reference stays until its
                # token is processed
                seen, ref = True, self.fresh() if self.takes_another_reference else ref
            elif record.token == token:
                if done:
                    return "ok"
                continue  # somebody was faster: the next look tells
            else:
                seen = seen or done
            token = record.token
            item = Item(path, address, Ref(token, path, ref))
            if (yield from self.hold(address, item.ref, own=True)) != "held":
                there = yield from self.resolve(branch, path)
                return (
                    "ok" if there is not None and there.address == address else "lost"
                )  # committed with the entry in it
        return "busy"
