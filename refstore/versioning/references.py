"""The reference list of each physical address: the only room where operations change it, and always by `set_if`.

What follows on what, and when, says `refstore.versioning.address_state`. Invariants: an entry in a live token has its
reference here before it is written (rule 1), or its address is committed. A missing key means nothing by itself (rule
4). What is given to these functions in one call is done in a few batched round trips; no two items of one call may name
the same address twice unless said so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import compress
from typing import Final, NamedTuple

import msgspec

from refstore.core import ids
from refstore.core.clock import Clock
from refstore.core.ids import Address, RepositoryId
from refstore.errors import Contention
from refstore.kv.base import ABSENT, KV, Get, Result, SetIf, set_ifs
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.reference_records import (
    Deleting,
    Emptied,
    Issued,
    Listed,
    Reference,
    ReferenceRecord,
    decode_reference,
    decode_reference_many,
)
from refstore.records.staging_records import StoredEntry
from refstore.versioning import address_state, due_hints
from refstore.versioning.address_state import (
    ENDED_CAUSES,
    AddOutcome,
    DeletionDelays,
    Unnamed,
    may_delete_at_ms,
)

ATTEMPTS: Final = 16
"""How often a lost `set_if` race over one list is run again. Each loss means that somebody else made progress."""
_KEPT_CHANGING: Final = "others kept changing the references of one address; make the same call again"


class Release(msgspec.Struct, frozen=True, gc=False):
    """One reference to remove from its address's list, and what is recorded if the list becomes empty."""

    address: Address
    reference: Reference
    cause: str
    entry: StoredEntry | None


class ReleaseResult(NamedTuple):
    """What `release` really did."""

    removed_references: int
    """How many references were removed."""
    emptied: int
    """How many addresses lost their last reference."""
    wrong_guesses: int
    """How many lists were not as `guess` assumed."""


class References:
    def __init__(self, kv: KV, repo: RepositoryId, clock: Clock, delays: Callable[[], DeletionDelays]) -> None:
        """`delays`: those of the repository, which may change while the process runs."""
        self._kv = kv
        self._repo = repo
        self._clock = clock
        self._delays = delays

    def get_many(self, addresses: Sequence[Address]) -> list[ReferenceRecord | None]:
        return decode_reference_many(self._kv.get_many(keys.reference_keys(self._repo, addresses)))

    def get_operations(self, addresses: Sequence[Address]) -> list[Get]:
        """Return the reads whose results `link` takes, so that an operation reads more in the same call."""
        return [Get(key) for key in keys.reference_keys(self._repo, addresses)]

    def create(self, items: Sequence[tuple[Address, Reference]]) -> None:
        """Write the first reference of new addresses, before blob and entry: a later one would be scrubbed (rule 1).

        `changed_ms` is the time at which the address was made, so that `release` can guess the list without reading it.
        Raises OutcomeUnknown: the caller makes new addresses then, and leaves these to the scrubber.
        """
        now = self._clock.now_ms()
        lists = [
            encode(Listed((reference,), now if (made_ms := ids.address_time_ms(address)) is None else made_ms))
            for address, reference in items
        ]
        names = keys.reference_keys(self._repo, [address for address, _ in items])
        self._create_many(set_ifs(names, [ABSENT] * len(items), lists))

    def issue(self, items: Sequence[tuple[Address, Issued]]) -> None:
        """Record issued addresses (rule 10), after the due hint that makes the reaper check them when they expire."""
        self._write_hints(dict(items))
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

        `values`: the results of `get_operations`.

        Return False for an address that was linked before, has expired, or was never issued. A retry after a lost reply
        finds its reference on the list, and returns True.
        """
        now = self._clock.now_ms()
        names = keys.reference_keys(self._repo, [address for address, _, _ in items])
        writes: list[SetIf] = []
        linkable: list[int] = []
        for index, (key, value, (_, token_id, ref)) in enumerate(zip(names, values, items, strict=True)):
            if not isinstance(value, bytes):
                continue
            linked_state = address_state.link(decode_reference(value), token_id, ref, now)
            if linked_state is not None:
                linkable.append(index)
                writes.append(SetIf(key, value, encode(linked_state)))
        linked = dict(zip(linkable, self._kv.set_if_many(writes), strict=True)) if writes else {}
        # a refused write may have landed unnoticed, and somebody added to the list since
        if unsure := [index for index, ok in linked.items() if not ok]:
            listed = self.are_listed([(items[index][0], items[index][2]) for index in unsure])
            linked |= zip(unsure, listed, strict=True)
        return [linked.get(index, False) for index in range(len(items))]

    def replace_issued(
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
        names = keys.reference_keys(self._repo, [address for address, _, _, _ in chosen])
        listed = self._kv.get_many(names)
        now = self._clock.now_ms()
        writes = [
            SetIf(key, value, encode(Deleting(now, ref, cause, -1)))
            for key, value, state, (_, _, ref, _) in zip(
                names, listed, decode_reference_many(listed), chosen, strict=True
            )
            if isinstance(state, Listed) and state.references == (ref,)
        ]
        if writes:
            self._kv.set_if_many(writes)
        due_hints.write(self._kv, self._repo, ((at_ms, address) for address, _, _, at_ms in chosen))
        return taken

    def fix_parts(self, address: Address, token_id: str, digest: str) -> bytes | None:
        """Fix which parts are joined at the address of an upload (rule 23), and return what stands in its key then;
        None if the upload is over, or other parts are fixed.
        """
        key = keys.reference(self._repo, address)
        for _ in range(ATTEMPTS):
            value = self._kv.get(key)
            if value is ABSENT:
                return None
            fixed = address_state.fix_parts(decode_reference(value), token_id, digest, self._clock.now_ms())
            if fixed is None:
                return None
            wanted = encode(fixed)
            if value == wanted or self._kv.set_if(key, value, wanted):
                return wanted
        raise Contention(_KEPT_CHANGING)

    def end_issued(self, items: Sequence[tuple[Address, str]], cause: str) -> list[bool]:
        """`issued -> deleting`, before its time: for uploads that are aborted, and for parts of those that are over.

        Each item is an address and the token id it was issued with. Return whether it is deleting now, by whomever. The
        hint follows the write, as in `release`. Raises Contention.
        """
        names = keys.reference_keys(self._repo, [address for address, _ in items])
        ended: dict[int, Deleting] = {}
        waiting = list(range(len(items)))
        for _ in range(ATTEMPTS):
            if not waiting:
                break
            now = self._clock.now_ms()
            values = self._kv.get_many([names[index] for index in waiting])
            writes: dict[int, SetIf] = {}
            planned: dict[int, Deleting] = {}
            for index, value in zip(waiting, values, strict=True):
                state = None if value is ABSENT else decode_reference(value)
                if isinstance(state, Deleting) and state.cause in ENDED_CAUSES:
                    ended[index] = state
                elif isinstance(state, Issued) and state.token_id == items[index][1]:
                    planned[index] = address_state.end_issued(state, now, cause)
                    writes[index] = SetIf(names[index], value, encode(planned[index]))
            written = self._kv.set_if_many(list(writes.values())) if writes else []
            waiting = [index for index, ok in zip(writes, written, strict=True) if not ok]
            ended |= {index: planned[index] for index, ok in zip(writes, written, strict=True) if ok}
        self._write_hints({items[index][0]: state for index, state in ended.items()})
        if waiting:
            raise Contention(_KEPT_CHANGING)
        return [index in ended for index in range(len(items))]

    def add(self, items: Sequence[tuple[Address, Reference]], *, on_empty: bool) -> list[AddOutcome]:
        """Add a reference to each list. Several items may name one address; they are added one after the other.

        `on_empty`: an emptied list takes it too; for the writer's own retry and restore, as it ends a grace (rule 5).
        """
        outcomes: dict[int, AddOutcome] = {}
        waiting = list(range(len(items)))
        for _ in range(ATTEMPTS + len(items)):
            if not waiting:
                return [outcomes[index] for index in range(len(items))]
            now = self._clock.now_ms()
            round_ = _first_of_each_address(waiting, items)
            names = keys.reference_keys(self._repo, [items[index][0] for index in round_])
            values = self._kv.get_many(names)
            writes: dict[int, SetIf] = {}
            for index, key, value, state in zip(round_, names, values, decode_reference_many(values), strict=True):
                after = address_state.add_reference(state, items[index][1], now, on_empty=on_empty)
                if isinstance(after, AddOutcome):
                    outcomes[index] = after
                else:
                    writes[index] = SetIf(key, value, encode(after))
            written = self._kv.set_if_many(list(writes.values()))
            outcomes |= {index: AddOutcome.LISTED for index, ok in zip(writes, written, strict=True) if ok}
            waiting = [index for index in waiting if index not in outcomes]
        raise Contention(_KEPT_CHANGING)

    def are_listed(self, items: Sequence[tuple[Address, Reference]]) -> list[bool]:
        """Return whether each reference is on its list now: if not, a long upload outlived its token (rule 11)."""
        records = self.get_many([address for address, _ in items])
        return [
            isinstance(record, Listed) and ref in record.references
            for record, (_, ref) in zip(records, items, strict=True)
        ]

    def release(
        self,
        items: Sequence[Release],
        *,
        whole_token: bool = False,
        guess: bool = False,
    ) -> ReleaseResult:
        """Remove references from their lists. An emptied list enters its grace window, with a due hint for the reaper.

        The hint follows the write: a crash in between leaves an empty list without a hint, which the scrubber finds.
        References that others keep racing for are left to the scrubber: leak, never lose.

        `whole_token`: remove every reference of the item's token, whose fate is decided: no entry under it is live any
        more. This also completes what a reaper left unfinished: an empty list gets its hint, and `deleting` counts as
        emptied.

        `guess`: assume that the list is as its upload made it, without reading it. The `set_if` tells whether it was;
        the other lists are read.
        """
        progress = _ReleaseProgress(self._clock.now_ms(), whole_token)
        waiting = self._release_unread(items, progress) if guess and items else items
        for _ in range(ATTEMPTS + len(items)):
            if not waiting:
                break
            waiting = self._release_read(waiting, progress)
        self._write_hints(progress.waiting_states())
        return progress.result()

    def _release_unread(self, items: Sequence[Release], progress: _ReleaseProgress) -> Sequence[Release]:
        """Release references from lists that are as their uploads made them, without reading these. Return the other
        items; `items` itself if nothing was tried.
        """
        untouched: list[bytes] = []
        for item in items:
            made_ms = ids.address_time_ms(item.address)
            if made_ms is None or item.reference.id:
                return items  # an entry was placed again: copied, moved or retried
            untouched.append(encode(Listed((item.reference,), made_ms)))
        addresses = [item.address for item in items]
        if len(set(addresses)) < len(addresses):
            return items  # a batch never names one key twice
        names = keys.reference_keys(self._repo, addresses)
        after = [progress.state_after_last(item) for item in items]
        written = self._kv.set_if_many(set_ifs(names, untouched, [encode(state) for state in after]))
        progress.note_emptied(dict(compress(zip(addresses, after, strict=True), written)))
        left = [] if all(written) else [item for item, ok in zip(items, written, strict=True) if not ok]
        progress.wrong_guesses = len(left)
        return left

    def _release_read(self, items: Sequence[Release], progress: _ReleaseProgress) -> Sequence[Release]:
        """Read the lists, and release one reference from each. Return the items that are to be tried again."""
        chosen, later = _one_per_address(items)
        names = keys.reference_keys(self._repo, [item.address for item in chosen])
        values = self._kv.get_many(names)
        writes: list[SetIf] = []
        planned: list[tuple[Release, int, ReferenceRecord]] = []
        for item, key, value, state in zip(chosen, names, values, decode_reference_many(values), strict=True):
            if not isinstance(state, Listed):
                progress.complete(item, state)
                continue
            left = _remove_reference(state.references, item.reference, progress.whole_token)
            if len(left) < len(state.references):
                after = progress.state_after(item, left)
                planned.append((item, len(state.references) - len(left), after))
                writes.append(SetIf(key, value, encode(after)))
            # else: it was released before: the token has no reference there
        written = self._kv.set_if_many(writes) if writes else []
        for plan, ok in zip(planned, written, strict=True):
            if ok:
                progress.note(*plan)
            else:
                later.append(plan[0])
        return later

    def _write_hints(self, states: Mapping[Address, Unnamed]) -> None:
        """Make the reaper look at the addresses when their objects may be deleted."""
        if states:
            delays = self._delays()
            due_hints.write(
                self._kv, self._repo, [(may_delete_at_ms(state, delays), each) for each, state in states.items()]
            )

    def delete_records(self, addresses: Collection[Address]) -> None:
        """Delete the keys of committed addresses. Processing their tokens first would release them (rule 7)."""
        self._kv.delete_many(keys.reference_keys(self._repo, addresses))


def _remove_reference(
    references: tuple[Reference, ...], reference: Reference, whole_token: bool
) -> tuple[Reference, ...]:
    if len(references) == 1:  # nearly always
        only = references[0]
        return () if only == reference or (whole_token and only.token == reference.token) else references
    if whole_token:
        return tuple([other for other in references if other.token != reference.token])
    return tuple([other for other in references if other != reference])


class _ReleaseProgress:
    """What one call of `release` has done so far."""

    def __init__(self, now_ms: int, whole_token: bool) -> None:
        self.whole_token = whole_token
        self.wrong_guesses = 0
        self._now_ms = now_ms
        self._removed = 0
        self._emptied: dict[Address, Unnamed] = {}
        self._completed: dict[Address, Unnamed] = {}
        """What another call had emptied, perhaps without a hint."""

    def state_after(self, item: Release, left: tuple[Reference, ...]) -> Listed | Emptied:
        """Return the state of the address after the item was removed from its list."""
        return address_state.after_release(left, item.reference, item.cause, item.entry, self._now_ms)

    def state_after_last(self, item: Release) -> Emptied:
        return Emptied(self._now_ms, item.reference, item.cause, item.entry)

    def note(self, item: Release, removed_references: int, state: ReferenceRecord) -> None:
        self._removed += removed_references
        if isinstance(state, Emptied):
            self._emptied[item.address] = state

    def note_emptied(self, states: Mapping[Address, Emptied]) -> None:
        """Note the lists whose only reference was removed."""
        self._removed += len(states)
        self._emptied |= states

    def complete(self, item: Release, state: ReferenceRecord | None) -> None:
        """Complete what a reaper left unfinished under the same token; else it was released before, or committed."""
        if not (self.whole_token and isinstance(state, Emptied | Deleting)):
            return
        if state.last_reference.token == item.reference.token:
            self._completed[item.address] = state

    def waiting_states(self) -> Mapping[Address, Unnamed]:
        """Return the states of the addresses that the reaper is to look at."""
        return self._completed | self._emptied

    def result(self) -> ReleaseResult:
        return ReleaseResult(self._removed, len(self._emptied), self.wrong_guesses)


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
