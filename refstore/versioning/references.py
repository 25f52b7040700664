"""The reference list of each physical address: the only room where it changes, and always by `set_if`.

    absent --create--> Listed --release--> Emptied --(grace)--> Deleting --> absent, blob gone
    absent --issue---> Issued --link-----> Listed
                       Issued --(expired, or take)-----------> Deleting
    Emptied --restore, or the writer's own retry--> Listed
    Listed | Emptied --forget (committed)--> absent, blob stays

Invariants: an entry in a live token has its reference here before it is written (rule 1), or its address is committed.
`Deleting` is one way (rule 8). A missing key means nothing by itself (rule 4). What is given to these functions in one
call is done in a few batched round trips; no two items of one call may name the same address twice unless said so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from refstore.core import ids, keys
from refstore.core.clock import Clock
from refstore.core.ids import Address, RepositoryId
from refstore.core.records import (
    Deleting,
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
from refstore.errors import Contention
from refstore.kv.base import ABSENT, KV, Get, Result, SetIf, set_ifs
from refstore.versioning import due_hints

ATTEMPTS: Final = 16
"""How often a lost `set_if` race over one list is run again. Each loss means that somebody else made progress."""


class AddOutcome(Enum):
    """The result of adding a reference to a list."""

    LISTED = "listed"
    EMPTY = "empty"
    """The list is empty, so it takes no new copy (rule 5)."""
    LEAVING = "leaving"
    """The address is `deleting`, or issued and not linked, so it must not be named."""
    MISSING = "missing"
    """There is no key: the address is committed or deleted. Only reading the source again tells (rule 4)."""


class Release(msgspec.Struct, frozen=True, gc=False):
    """One reference to remove from its address's list, and what is recorded if the list becomes empty."""

    address: Address
    reference: Reference
    cause: str
    entry: Entry | None


class ReleaseResult(NamedTuple):
    """What `release` really did."""

    removed: int
    """How many references were removed."""
    emptied: tuple[Address, ...]
    """Addresses whose list became empty: they are in grace now, or `deleting` with `direct`."""
    missed: int = 0
    """How many lists were not as `guess` assumed."""


class References:
    def __init__(self, kv: KV, repo: RepositoryId, clock: Clock) -> None:
        self._kv = kv
        self._repo = repo
        self._clock = clock

    def get_many(self, addresses: Sequence[Address]) -> list[ReferenceRecord | None]:
        values = self._kv.get_many(keys.reference_many(self._repo, addresses))
        return [None if value is ABSENT else decode_reference(value) for value in values]

    def get_ops(self, addresses: Sequence[Address]) -> list[Get]:
        """Return the reads whose results `link` takes, so that an operation reads more in the same call."""
        return [Get(key) for key in keys.reference_many(self._repo, addresses)]

    def create(self, items: Sequence[tuple[Address, Reference]]) -> None:
        """Write the first reference of new addresses (rule 1), which nobody else has a key for.

        `changed_ms` is the time at which the address was made, so that `release` can guess the list without reading it.
        Raises OutcomeUnknown: the caller makes new addresses then, and leaves these to the scrubber.
        """
        now = self._clock.now_ms()
        lists = [
            encode(Listed((reference,), now if (made_ms := ids.made_ms(address)) is None else made_ms))
            for address, reference in items
        ]
        names = keys.reference_many(self._repo, [address for address, _ in items])
        self._create_many(set_ifs(names, [ABSENT] * len(items), lists))

    def issue(self, items: Sequence[tuple[Address, Issued]]) -> None:
        """Record issued addresses (rule 10), after the due hint that makes the reaper check them when they expire."""
        due_hints.write(self._kv, self._repo, ((issued.expires_ms, address) for address, issued in items))
        self._create_many(
            [SetIf(keys.reference(self._repo, address), ABSENT, encode(issued)) for address, issued in items]
        )

    def _create_many(self, writes: Sequence[SetIf]) -> None:
        if not all(self._kv.set_if_many(writes)):
            raise Contention(
                "a newly made physical address already has a reference; the source of random ids is broken on this "
                "machine"
            )

    def link(self, items: Sequence[tuple[Address, str, Reference]], values: Sequence[Result]) -> list[bool]:
        """`issued -> [reference]`, once, for the token id it was issued with (rule 10).

        `values`: the results of `get_ops`.

        Return False for an address that was linked before, has expired, or was never issued. A retry after a lost reply
        finds its reference on the list, and returns True.
        """
        now = self._clock.now_ms()
        names = keys.reference_many(self._repo, [address for address, _, _ in items])
        writes: list[SetIf] = []
        linkable: list[int] = []
        for index, (key, value, (_, token_id, ref)) in enumerate(zip(names, values, items, strict=True)):
            if not isinstance(value, bytes):
                continue
            record = decode_reference(value)
            if isinstance(record, Issued) and record.token_id == token_id and record.expires_ms > now:
                linkable.append(index)
                writes.append(SetIf(key, value, encode(Listed((ref,), now))))
        linked = dict(zip(linkable, self._kv.set_if_many(writes), strict=True)) if writes else {}
        if unsure := [
            index for index, ok in linked.items() if not ok
        ]:  # or they landed unnoticed, and somebody added to the list since
            linked |= zip(
                unsure, self.are_listed([(items[index][0], items[index][2]) for index in unsure]), strict=True
            )
        return [linked.get(index, False) for index in range(len(items))]

    def take(
        self,
        items: Sequence[tuple[Address, str, Reference]],
        values: Sequence[Result],
        *,
        cause: str,
        due_ms: Sequence[int],
    ) -> list[bool]:
        """`issued -> [reference] -> deleting`, once, where nobody is to name or restore what was written there.

        As `link` returns. `due_ms`: when the reaper looks at each address, which should be after others can write to
        it. A crash in between leaves a reference without an entry, which the scrubber finds.
        """
        taken = self.link(items, values)
        chosen = [(*item, at_ms) for item, at_ms, ok in zip(items, due_ms, taken, strict=True) if ok]
        self.release(
            [Release(address, ref, cause, None) for address, _, ref, _ in chosen], grace_seconds=0, direct=True
        )
        due_hints.write(self._kv, self._repo, ((at_ms, address) for address, _, _, at_ms in chosen))
        return taken

    def add(self, items: Sequence[tuple[Address, Reference]], *, on_empty: bool) -> list[AddOutcome]:
        """Add a reference to each list. Several items may name one address; they are added one after the other.

        `on_empty`: add it to an emptied list too, for the writer's own retry and for restore (rule 5).
        """
        outcomes: dict[int, AddOutcome] = {}
        waiting = list(range(len(items)))
        for _ in range(ATTEMPTS + len(items)):
            if not waiting:
                return [outcomes[index] for index in range(len(items))]
            now = self._clock.now_ms()
            round_ = _first_of_each_address(waiting, items)
            values = self._kv.get_many([keys.reference(self._repo, items[index][0]) for index in round_])
            writes: list[tuple[int, SetIf]] = []
            for index, value in zip(round_, values, strict=True):
                address, reference = items[index]
                if value is ABSENT:
                    outcomes[index] = AddOutcome.MISSING
                    continue
                match decode_reference(value):
                    case Listed(references):
                        if (
                            reference in references
                        ):  # a retry, or a reply that was lost: it is there, which is all that is asked
                            outcomes[index] = AddOutcome.LISTED
                        else:
                            new = encode(Listed((*references, reference), now))
                            writes.append((index, SetIf(keys.reference(self._repo, address), value, new)))
                    case Emptied():
                        if on_empty:
                            writes.append(
                                (
                                    index,
                                    SetIf(
                                        keys.reference(self._repo, address), value, encode(Listed((reference,), now))
                                    ),
                                )
                            )
                        else:
                            outcomes[index] = AddOutcome.EMPTY
                    case Issued() | Deleting():
                        outcomes[index] = AddOutcome.LEAVING
            for (index, _op), written in zip(writes, self._kv.set_if_many([op for _, op in writes]), strict=True):
                if written:
                    outcomes[index] = AddOutcome.LISTED
            waiting = [index for index in waiting if index not in outcomes]
        raise Contention("others kept changing the references of one address; make the same call again")

    def are_listed(self, items: Sequence[tuple[Address, Reference]]) -> list[bool]:
        """Return whether each reference is on its list now: the re-check of a long upload (rule 11)."""
        records = self.get_many([address for address, _ in items])
        return [
            isinstance(record, Listed) and ref in record.references
            for record, (_, ref) in zip(records, items, strict=True)
        ]

    def release(
        self,
        items: Sequence[Release],
        *,
        grace_seconds: float,
        direct: bool = False,
        whole_token: bool = False,
        guess: bool = False,
    ) -> ReleaseResult:
        """Remove references from their lists. An emptied list enters its grace window, with a due hint for the reaper.

        The hint follows the write: a crash in between leaves an empty list without a hint, which the scrubber finds.
        References that others keep racing for are left to the scrubber: leak, never lose.

        `direct`: change a list with its last reference to `deleting` in one step, without a hint. The reaper does so
        where the window is zero, and then deletes the blobs itself.

        `whole_token`: remove every reference of the item's token, whose fate is decided: no entry under it is live any
        more. This also completes what a reaper left unfinished: an empty list gets its hint, and `deleting` counts as
        emptied.

        `guess`: assume that the list is as its upload made it, without reading it. The `set_if` tells whether it was;
        the other lists are read.
        """
        now = self._clock.now_ms()
        removed_count = missed = 0
        emptied: dict[Address, None] = {}
        hints: dict[tuple[int, Address], None] = {}
        waiting = items
        if guess and items:
            waiting = self._release_untouched(items, now, direct=direct)
            missed = len(waiting) if waiting is not items else 0
            removed_count = len(items) - len(waiting)
            remaining = {item.address for item in waiting}
            emptied = {item.address: None for item in items if item.address not in remaining} if removed_count else {}
        for _ in range(ATTEMPTS + len(items)):
            if not waiting:
                break
            round_, later = _one_per_address(waiting)
            names = keys.reference_many(self._repo, [item.address for item in round_])
            values = self._kv.get_many(names)
            records = decode_reference_many(values)
            writes: list[SetIf] = []
            planned: list[tuple[Release, int, bool]] = []
            for item, key, value, record in zip(round_, names, values, records, strict=True):
                if isinstance(record, Listed):
                    remaining = _without(record.references, item.reference, whole_token)
                    if len(remaining) < len(record.references):
                        planned.append((item, len(record.references) - len(remaining), not remaining))
                        writes.append(SetIf(key, value, encode(_after(item, remaining, now, direct=direct))))
                elif (
                    isinstance(record, Emptied | Deleting) and whole_token and record.last.token == item.reference.token
                ):
                    if isinstance(record, Emptied):
                        hints[record.since_ms + int(grace_seconds * 1000), item.address] = None
                    elif direct:
                        emptied[item.address] = None
                    else:
                        hints[record.since_ms, item.address] = None
                # else: it was released before, or committed: the token has no reference there
            written = self._kv.set_if_many(writes) if writes else []
            for (item, count, last_one), ok in zip(planned, written, strict=True):
                if ok:
                    removed_count += count
                    if last_one:
                        emptied[item.address] = None
                else:
                    later.append(item)
            waiting = later
        if not direct:
            due_ms = now + int(grace_seconds * 1000)
            hints |= {(due_ms, address): None for address in emptied}
        due_hints.write(self._kv, self._repo, hints)
        return ReleaseResult(removed_count, tuple(emptied), missed)

    def _release_untouched(self, items: Sequence[Release], now: int, *, direct: bool) -> Sequence[Release]:
        """Release references from lists that are as their uploads made them, without reading these.

        Return the items that are left; `items` itself if nothing was tried.
        """
        untouched: list[bytes] = []
        for item in items:
            made_ms = ids.made_ms(item.address)
            if made_ms is None or item.reference.id:
                return items  # an entry was placed again: copied, moved or retried
            untouched.append(encode(Listed((item.reference,), made_ms)))
        addresses = [item.address for item in items]
        if len(set(addresses)) < len(addresses):
            return items  # a batch never names one key twice
        names = keys.reference_many(self._repo, addresses)
        after = [encode(_after(item, (), now, direct=direct)) for item in items]
        written = self._kv.set_if_many(set_ifs(names, untouched, after))
        return [] if all(written) else [item for item, ok in zip(items, written, strict=True) if not ok]

    def forget(self, addresses: Collection[Address]) -> None:
        """Delete the keys of committed addresses; their blobs stay (rule 7)."""
        self._kv.delete_many(keys.reference_many(self._repo, addresses))


def _without(references: tuple[Reference, ...], reference: Reference, whole_token: bool) -> tuple[Reference, ...]:
    if len(references) == 1:  # nearly always
        return (
            () if references[0] == reference or (whole_token and references[0].token == reference.token) else references
        )
    if whole_token:
        return tuple([other for other in references if other.token != reference.token])
    return tuple([other for other in references if other != reference])


def _after(item: Release, remaining: tuple[Reference, ...], now: int, *, direct: bool) -> ReferenceRecord:
    """Return the record of the address after `item` was removed from its list."""
    if remaining:
        return Listed(remaining, now)
    if direct:
        return Deleting(now, item.reference, item.cause, item.entry.size_bytes if item.entry else -1)
    return Emptied(now, item.reference, item.cause, item.entry)


def _one_per_address(items: Sequence[Release]) -> tuple[Sequence[Release], list[Release]]:
    """Split into (the first item of each address, the rest), because a batch never names one key twice."""
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
    addresses: set[Address] = set()
    return [index for index in waiting if not (items[index][0] in addresses or addresses.add(items[index][0]))]
