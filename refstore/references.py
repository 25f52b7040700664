"""The reference list of each physical address: the only room where it changes, and always by `set_if`.

    absent --create--> Listed --release--> Emptied --(grace)--> Deleting --> absent, blob gone
    absent --issue---> Issued --link-----> Listed
                       Issued --(expired)--------------------> Deleting
    Emptied --restore, or the writer's own retry--> Listed
    Listed | Emptied --forget (committed)--> absent, blob stays

Invariants: an entry in a live token has its reference here before it is written (rule 1), or its address is committed.
`Deleting` is one way (rule 8). A missing key means nothing by itself (rule 4). What is given to these functions in one
call is done in a few batched round trips; no two items of one call may name the same address twice unless said so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from refstore import ids, keys
from refstore.clock import Clock
from refstore.errors import Contention
from refstore.ids import Address, RepositoryId
from refstore.kv.base import ABSENT, KV, Key, SetIf
from refstore.records import (
    Deleting,
    Due,
    Emptied,
    Entry,
    Issued,
    Listed,
    Reference,
    ReferenceRecord,
    decode_reference,
    decode_reference_many,
    encode,
)

ATTEMPTS: Final = 16
"""How often a lost `set_if` race over one list is run again. Each loss means that somebody else made progress."""

_DUE: Final = encode(Due())


class Hold(Enum):
    """What became of an attempt to put a reference on a list."""

    HELD = "held"
    EMPTY = "empty"
    """The list is empty and takes no new copy (rule 5)."""
    LEAVING = "leaving"
    """`deleting`, or issued and not linked: not to be named."""
    MISSING = "missing"
    """No key: committed, or gone; only reading the source again tells (rule 4)."""


class Release(NamedTuple):
    """One reference to take off its address's list, and what is remembered if the list becomes empty."""

    address: Address
    reference: Reference
    cause: str
    entry: Entry | None


class Released(NamedTuple):
    """What `release` saw happen, not what it was asked."""

    removed: int
    """References taken off."""
    emptied: tuple[Address, ...]
    """Addresses whose list became empty: in grace, or `deleting` where that was asked for."""
    missed: int = 0
    """How many lists were not as they were guessed to be."""


class References:
    def __init__(self, kv: KV, repo: RepositoryId, clock: Clock) -> None:
        self._kv = kv
        self._repo = repo
        self._clock = clock

    def get_many(self, addresses: Sequence[Address]) -> list[ReferenceRecord | None]:
        values = self._kv.get_many([keys.reference(self._repo, address) for address in addresses])
        return [None if value is ABSENT else decode_reference(value) for value in values]

    def create(self, items: Sequence[tuple[Address, Reference]]) -> None:
        """A new address's first reference (rule 1). The address was just made, so nobody else has a key there.

        The list says that it changed when the address was made: `release` may then know it without reading it. Raises
        OutcomeUnknown: the caller goes on with addresses that are new again, and leaves these to the scrubber.
        """
        now = self._clock.now_ms()
        lists = [Listed((reference,), now if (made_ms := ids.made_ms(address)) is None else made_ms) for address, reference in items]
        names = keys.reference_many(self._repo, [address for address, _ in items])
        won = self._kv.set_if_many([SetIf(key, ABSENT, encode(new)) for key, new in zip(names, lists, strict=True)])
        if not all(won):
            raise Contention("a newly made physical address already has a reference; the source of random ids is broken on this machine")

    def issue(self, items: Sequence[tuple[Address, Issued]]) -> None:
        """Give addresses out (rule 10). The hint that makes the reaper look after the expiry is written first."""
        self._kv.set_many([(keys.due(self._repo, issued.expires_ms, address), _DUE) for address, issued in items])
        won = self._kv.set_if_many([SetIf(keys.reference(self._repo, address), ABSENT, encode(issued)) for address, issued in items])
        if not all(won):
            raise Contention("a newly made physical address already has a reference; the source of random ids is broken on this machine")

    def link(self, items: Sequence[tuple[Address, str, Reference]]) -> list[bool]:
        """`issued -> [reference]`, once, for the token id it was issued with (rule 10).

        False: it was linked before, has expired and is being taken, or was never issued. A link that was overtaken by its own
        lost reply finds its reference on the list, which is all that is asked.
        """
        now = self._clock.now_ms()
        found = self._kv.get_many([keys.reference(self._repo, address) for address, _, _ in items])
        writes: list[SetIf] = []
        asked: list[int] = []
        for index, (value, (address, token_id, ref)) in enumerate(zip(found, items, strict=True)):
            record = None if value is ABSENT else decode_reference(value)
            if isinstance(record, Issued) and record.token_id == token_id and record.expires_ms > now:
                asked.append(index)
                writes.append(SetIf(keys.reference(self._repo, address), value, encode(Listed((ref,), now))))
        won = dict(zip(asked, self._kv.set_if_many(writes), strict=True)) if writes else {}
        if lost := [index for index, ok in won.items() if not ok]:  # or they landed unnoticed, and somebody added to the list since
            won |= zip(lost, self.holds([(items[index][0], items[index][2]) for index in lost]), strict=True)
        return [won.get(index, False) for index in range(len(items))]

    def hold(self, items: Sequence[tuple[Address, Reference]], *, on_empty: bool) -> list[Hold]:
        """Put a reference on each list. `on_empty`: an emptied list takes it too: the writer's own retry, and restore (rule 5).

        Several items may name one address; they are then done one after the other.
        """
        outcomes: dict[int, Hold] = {}
        waiting = list(range(len(items)))
        for _ in range(ATTEMPTS + len(items)):
            if not waiting:
                return [outcomes[index] for index in range(len(items))]
            now = self._clock.now_ms()
            round_ = _first_of_each_address(waiting, items)
            found = self._kv.get_many([keys.reference(self._repo, items[index][0]) for index in round_])
            writes: list[tuple[int, SetIf]] = []
            for index, value in zip(round_, found, strict=True):
                address, reference = items[index]
                if value is ABSENT:
                    outcomes[index] = Hold.MISSING
                    continue
                match decode_reference(value):
                    case Listed(references):
                        if reference in references:  # a retry, or a reply that was lost: it is there, which is all that is asked
                            outcomes[index] = Hold.HELD
                        else:
                            new = encode(Listed((*references, reference), now))
                            writes.append((index, SetIf(keys.reference(self._repo, address), value, new)))
                    case Emptied():
                        if on_empty:
                            writes.append((index, SetIf(keys.reference(self._repo, address), value, encode(Listed((reference,), now)))))
                        else:
                            outcomes[index] = Hold.EMPTY
                    case Issued() | Deleting():
                        outcomes[index] = Hold.LEAVING
            for (index, _op), won in zip(writes, self._kv.set_if_many([op for _, op in writes]), strict=True):
                if won:
                    outcomes[index] = Hold.HELD
            waiting = [index for index in waiting if index not in outcomes]
        raise Contention("others kept changing the references of one address; make the same call again")

    def holds(self, items: Sequence[tuple[Address, Reference]]) -> list[bool]:
        """Whether each reference is on its list now: the re-check of a long upload (rule 11)."""
        found = self.get_many([address for address, _ in items])
        return [isinstance(record, Listed) and ref in record.references for record, (_, ref) in zip(found, items, strict=True)]

    def release(
        self, items: Sequence[Release], *, grace_seconds: float, direct: bool = False, whole_token: bool = False, guess: bool = False
    ) -> Released:
        """Take references off. A list that becomes empty enters its grace window, with a due hint for the reaper.

        The hint follows the write: a crash in between leaves an empty list without one, which the scrubber finds. References
        that others keep racing for are left to the scrubber: leak, never lose.

        `direct`: the list goes from its last reference to `deleting` in one step, without a hint: for the reaper, where the
        window is zero, which then deletes the blobs itself. `whole_token`: every reference of the item's token goes: for a token
        whose fate is decided, under which no entry is live any more. What a reaper that died had made of such a token's
        references is then finished: an empty list gets its hint, and `deleting` counts as emptied now.

        `guess`: a new upload's list that nothing has touched is known without reading it; the `set_if` says whether it was so, and
        what was not is read after all.
        """
        now = self._clock.now_ms()
        removed = missed = 0
        emptied: dict[Address, None] = {}
        hints: dict[Key, bytes] = {}
        waiting = items
        if guess:
            waiting = self._release_untouched(items, now, direct=direct)
            missed = len(waiting) if waiting is not items else 0
            removed = len(items) - len(waiting)
            left = {item.address for item in waiting}
            emptied = {item.address: None for item in items if item.address not in left} if removed else {}
        for _ in range(ATTEMPTS + len(items)):
            if not waiting:
                break
            round_, later = _one_per_address(waiting)
            names = keys.reference_many(self._repo, [item.address for item in round_])
            found = self._kv.get_many(names)
            records = decode_reference_many(found)
            writes: list[SetIf] = []
            asked: list[tuple[Release, int, bool]] = []
            for item, key, value, record in zip(round_, names, found, records, strict=True):
                if isinstance(record, Listed):
                    left = _without(record.references, item.reference, whole_token)
                    if len(left) < len(record.references):
                        asked.append((item, len(record.references) - len(left), not left))
                        writes.append(SetIf(key, value, encode(_after(item, left, now, direct=direct))))
                elif isinstance(record, Emptied | Deleting) and whole_token and record.last.token == item.reference.token:
                    if isinstance(record, Emptied):
                        hints[keys.due(self._repo, record.since_ms + int(grace_seconds * 1000), item.address)] = _DUE
                    elif direct:
                        emptied[item.address] = None
                    else:
                        hints[keys.due(self._repo, record.since_ms, item.address)] = _DUE
                # else: released before, or committed: nothing of ours is left there
            won = self._kv.set_if_many(writes) if writes else []
            for (item, count, last_one), ok in zip(asked, won, strict=True):
                if ok:
                    removed += count
                    if last_one:
                        emptied[item.address] = None
                else:
                    later.append(item)
            waiting = later
        if not direct:
            due_ms = now + int(grace_seconds * 1000)
            hints |= {keys.due(self._repo, due_ms, address): _DUE for address in emptied}
        if hints:
            self._kv.set_many(list(hints.items()))
        return Released(removed, tuple(emptied), missed)

    def _release_untouched(self, items: Sequence[Release], now: int, *, direct: bool) -> Sequence[Release]:
        """Release what is on a list as its upload made it, without reading the list; what is left over, `items` if nothing was tried."""
        untouched: list[bytes] = []
        for item in items:
            made_ms = ids.made_ms(item.address)
            if made_ms is None or item.reference.id:
                return items  # placed again, so copied, moved or retried
            untouched.append(encode(Listed((item.reference,), made_ms)))
        addresses = [item.address for item in items]
        if len(set(addresses)) < len(addresses):
            return items  # a batch never names one key twice
        names = keys.reference_many(self._repo, addresses)
        after = [encode(_after(item, (), now, direct=direct)) for item in items]
        won = self._kv.set_if_many(list(map(SetIf, names, untouched, after)))
        return [] if all(won) else [item for item, ok in zip(items, won, strict=True) if not ok]

    def forget(self, addresses: Iterable[Address]) -> None:
        """The addresses are committed: their keys go, and the blobs stay (rule 7)."""
        self._kv.delete_many(keys.reference_many(self._repo, addresses))


def _without(references: tuple[Reference, ...], reference: Reference, whole_token: bool) -> tuple[Reference, ...]:
    if len(references) == 1:  # nearly always
        return () if references[0] == reference or (whole_token and references[0].token == reference.token) else references
    if whole_token:
        return tuple([other for other in references if other.token != reference.token])
    return tuple([other for other in references if other != reference])


def _after(item: Release, left: tuple[Reference, ...], now: int, *, direct: bool) -> ReferenceRecord:
    """The record once `item` is off its list."""
    if left:
        return Listed(left, now)
    if direct:
        return Deleting(now, item.reference, item.cause, item.entry.size_bytes if item.entry else -1)
    return Emptied(now, item.reference, item.cause, item.entry)


def _one_per_address(items: Sequence[Release]) -> tuple[Sequence[Release], list[Release]]:
    """(the first item of each address, the rest): a batch never names one key twice."""
    if len({item.address for item in items}) == len(items):
        return items, []
    first: dict[Address, Release] = {}
    rest: list[Release] = []
    for item in items:
        if item.address in first:
            rest.append(item)
        else:
            first[item.address] = item
    return list(first.values()), rest


def _first_of_each_address(waiting: Sequence[int], items: Sequence[tuple[Address, Reference]]) -> list[int]:
    seen: set[Address] = set()
    return [index for index in waiting if not (items[index][0] in seen or seen.add(items[index][0]))]
