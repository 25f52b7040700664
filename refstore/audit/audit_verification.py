"""Verify that the audit log is whole: find entries that are missing, changed, moved or forged, and tails that were
cut. And accept entries that the KV does not know.

A chain is read from its end. The head in the KV has the last entry's hash, and each entry has the hash of the one
before. So the report names the altered entry, not its neighbour. Then the store is listed for entries that no head
knows.

Whoever can write both the KV and the store can forge all of it (`docs/operating.md`).

The KV does not know entries if an older copy of it was restored, or it was made anew. Such entries follow the head that
the KV has, each with the hash of the one before; or they begin a chain of which the KV knows nothing. An operator who
has seen them accepts them: first that is written to the audit log, then their chains' heads are moved behind them. From
then on they are verified as all others are, `refstore audit log` shows them, and `refstore audit verify` tells of the
acceptance. What does not follow is not accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import groupby
from typing import Final, NamedTuple

import msgspec

from refstore.audit.audit_entries import (
    ACCEPT_ACTION,
    ENTRY_BYTES_MAX,
    PREFIX,
    Act,
    AuditEntry,
    EntryPosition,
    decode_act,
    decode_entry,
    entry_key,
    parse_key,
    sha256_of,
)
from refstore.audit.audit_log import AuditLog
from refstore.core.batches import split_batches
from refstore.errors import Corrupt, CorruptObject
from refstore.kv.base import ABSENT, KV, Absent
from refstore.objects.base import ObjectStore
from refstore.objects.parallel_reads import read_many
from refstore.records import keys
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.lake_records import AuditHead, WaitingAct

READ_BATCH: Final = 64
BEYOND_HEAD_MAX: Final = 1
"""How many entries a crash can leave: a process that could not write its head leaves its chain (`audit_log.py`)."""
ACCEPT: Final = "If you restored or rebuilt the KV, look at such entries and accept them with: refstore audit accept"


class FindingKind(Enum):
    MISSING = "missing"
    CHANGED = "changed"
    MOVED = "moved"
    """An entry that was written, under the key of another one."""
    CUT = "tail cut"
    FORGED = "forged"
    """refstore did not write it: its chain has no head, or it lies further beyond the head than a crash explains."""
    HEAD = "head unreadable"

    UNKNOWN = "outcome unknown"
    """The process died, or is still acting; no damage."""
    BEYOND = "beyond the head"
    """Its process died before the entry was confirmed, and so before the act; no damage."""
    WAITING = "waiting"
    """The entry waits for the store; no damage."""
    ACCEPTED = "accepted gap"
    """An operator accepted entries that the KV did not know; no damage."""


DAMAGE: Final = frozenset(
    {FindingKind.MISSING, FindingKind.CHANGED, FindingKind.MOVED, FindingKind.CUT, FindingKind.FORGED, FindingKind.HEAD}
)


class AuditFinding(NamedTuple):
    kind: FindingKind
    chain: str
    number: int
    """0: the chain as a whole."""
    message: str

    @property
    def is_damage(self) -> bool:
        return self.kind in DAMAGE


class AuditVerification:
    """One verification of the log. `entries` and `chains` count what was read; iterate over the findings to the end."""

    def __init__(self, kv: KV, store: ObjectStore) -> None:
        self._kv = kv
        self._store = store
        self.chains = 0
        self.entries = 0
        self._open: dict[EntryPosition, str] = {}
        """Entries that say `begun` and have no outcome in their chain, with their action."""
        self._ended_elsewhere: set[EntryPosition] = set()
        """Entries whose outcome is in another chain, or in a waiting record, because the store was down."""

    def findings(self) -> Iterator[AuditFinding]:
        """Yield what is wrong. Raises Unavailable. Memory grows only with damaged and unfinished entries, not with the
        log.
        """
        for chain, raw in self._kv.scan_all(keys.AUDIT_HEADS):
            yield from self._verify_chain(chain, raw)
        yield from self._find_unknown_chains()
        yield from self._find_waiting()
        for begun, action in self._open.items():
            if begun not in self._ended_elsewhere:
                yield AuditFinding(
                    FindingKind.UNKNOWN,
                    begun.chain,
                    begun.number,
                    f"{action} was begun, and whether it was done is not known",
                )

    def _verify_chain(self, chain: str, raw: bytes) -> Iterator[AuditFinding]:
        self.chains += 1
        # listed before the head is read, which a process may move on meanwhile
        last = max(self._list_numbers(chain), default=0)
        try:
            head = decode_optional(self._kv.get(keys.audit_head(chain)), AuditHead) or decode(raw, AuditHead)
        except Corrupt as error:
            yield AuditFinding(FindingKind.HEAD, chain, 0, str(error))
            return
        yield from self._verify_backward(chain, head)
        # those that are listed, and not each number up to the last one, which anybody may have put into a name
        for number in self._list_numbers(chain, after=entry_key(chain, head.number)):
            if number <= last:
                yield from self._find_beyond_head(chain, number, head)

    def _list_numbers(self, chain: str, *, after: str = "") -> Iterator[int]:
        """Yield the numbers of a chain's entries in the store."""
        for info in self._store.list(f"{PREFIX}{chain}/", after=after):
            if (parsed := parse_key(info.key)) is not None:
                yield parsed[1]

    def _verify_backward(self, chain: str, head: AuditHead) -> Iterator[AuditFinding]:
        """Verify the entries up to the head, the last one first."""
        expected: str | None = head.sha256
        ended: set[int] = set()
        gap = 0
        """The highest number of the current gap; 0: no gap."""
        for number, body in self._read_bodies(chain, head.number):
            if body is None:
                gap, expected = gap or number, None
                continue
            if gap:
                yield _missing_finding(chain, number + 1, gap, head.number)
                gap = 0
            self.entries += 1
            finding, entry = _verify_entry(chain, number, body, expected)
            if finding is not None:
                yield finding
            elif entry is not None:
                self._record_outcome(EntryPosition(chain, number), entry, ended)
                if entry.act.action == ACCEPT_ACTION and entry.act.outcome in ("done", "unknown"):
                    yield AuditFinding(FindingKind.ACCEPTED, chain, number, _describe_acceptance(entry.act))
            expected = entry.previous if entry is not None else None
        if gap:
            yield _missing_finding(chain, 1, gap, head.number)

    def _find_beyond_head(self, chain: str, number: int, head: AuditHead) -> Iterator[AuditFinding]:
        ((_, body),) = read_many(self._store, [entry_key(chain, number)], end=ENTRY_BYTES_MAX + 1)
        if body is None:
            return
        finding, entry = _verify_entry(chain, number, body, None)
        if (
            finding is None
            and entry is not None
            and number <= head.number + BEYOND_HEAD_MAX
            and entry.previous == head.sha256
        ):
            self.entries += 1
            yield AuditFinding(
                FindingKind.BEYOND,
                chain,
                number,
                f"{entry.act.action} was not confirmed: its process died before, or its store did",
            )
        else:
            yield AuditFinding(
                FindingKind.FORGED,
                chain,
                number,
                f"the KV knows of {head.number} entries; this one was added, or the KV is older. {ACCEPT}",
            )

    def _find_unknown_chains(self) -> Iterator[AuditFinding]:
        parsed_keys = ((parse_key(info.key), info.key) for info in self._store.list(PREFIX))
        for chain, entries in groupby(parsed_keys, key=lambda place: place[0][0] if place[0] else ""):
            if not chain:
                for _, key in entries:
                    yield AuditFinding(
                        FindingKind.FORGED, "", 0, f"{key!r} is not the key of an entry; look at it, and remove it"
                    )
                continue
            if self._kv.get(keys.audit_head(chain)) is not ABSENT:
                continue
            count = sum(1 for _ in entries)
            yield AuditFinding(
                FindingKind.FORGED,
                chain,
                0,
                f"the KV knows nothing of its {count} entries; they were added, or the KV lost its head. {ACCEPT}",
            )

    def _find_waiting(self) -> Iterator[AuditFinding]:
        for name, raw in self._kv.scan_all(keys.AUDIT_WAITING):
            try:
                act = decode_act(decode(raw, WaitingAct).act)
            except Corrupt as error:
                yield AuditFinding(FindingKind.HEAD, "", 0, f"waiting record {name}: {error}")
                continue
            if act.begin_entry is not None:
                self._ended_elsewhere.add(act.begin_entry)
            yield AuditFinding(
                FindingKind.WAITING, "", 0, f"{act.action} of {act.time} ({act.outcome}) waits to be written"
            )

    def _record_outcome(self, place: EntryPosition, entry: AuditEntry, ended: set[int]) -> None:
        """Record an outcome, or an act without one. `ended`: outcomes whose `begun` entries come later."""
        act = entry.act
        if act.begin_entry is not None:
            if act.begin_entry.chain == place.chain:
                ended.add(act.begin_entry.number)
            else:
                self._ended_elsewhere.add(act.begin_entry)
        elif act.outcome == "begun":
            if place.number in ended:
                ended.remove(place.number)
            else:
                self._open[place] = act.action

    def _read_bodies(self, chain: str, last: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield the bodies of the entries from the last to the first, each up to one byte more than the allowed size;
        None: missing.
        """
        for high in range(last, 0, -READ_BATCH):
            numbers = range(high, max(0, high - READ_BATCH), -1)
            found = read_many(self._store, [entry_key(chain, number) for number in numbers], end=ENTRY_BYTES_MAX + 1)
            yield from ((number, body) for number, (_, body) in zip(numbers, found, strict=True))


def _verify_entry(
    chain: str, number: int, body: bytes, expected: str | None
) -> tuple[AuditFinding | None, AuditEntry | None]:
    """Return what is wrong with an entry, and its contents; None: nothing, or not readable.

    `expected`: the hash that it should have; None: unknown, because the next entry is missing or changed.
    """
    is_expected = expected is not None and sha256_of(body) == expected
    try:
        entry = decode_entry(body)
    except CorruptObject:
        return (
            None
            if is_expected
            else AuditFinding(
                FindingKind.CHANGED, chain, number, "it cannot be read; restore it from a copy of the store"
            )
        ), None
    if is_expected:
        return None, entry
    if (entry.chain, entry.number) != (chain, number):
        return AuditFinding(
            FindingKind.MOVED, chain, number, f"here lies entry {entry.number} of chain {entry.chain[:64]}"
        ), None
    if expected is not None:
        return AuditFinding(
            FindingKind.CHANGED, chain, number, "it is not what was written; restore it from a copy of the store"
        ), entry
    return None, entry


def _describe_acceptance(act: Act) -> str:
    chains = (act.after or {}).get("chains", [])
    count = sum(each["last"] - each["first"] + 1 for each in chains)
    named = ", ".join(f"{each['chain']}/{each['first']}-{each['last']}" for each in chains[:5])
    more = ", ..." if len(chains) > 5 else ""
    who = f"{act.actor.kind}:{act.actor.id}"
    return f"{who} accepted {count} entries that the KV did not know, at {act.time}: {named}{more}"


def _missing_finding(chain: str, first: int, last: int, head: int) -> AuditFinding:
    what = f"entry {first} is" if first == last else f"entries {first} to {last} are"
    if last < head:
        return AuditFinding(
            FindingKind.MISSING, chain, last, f"{what} missing, with others after; restore from a copy of the store"
        )
    if first == 1:
        return AuditFinding(
            FindingKind.CUT, chain, last, f"the chain is gone: {what} missing; restore from a copy of the store"
        )
    return AuditFinding(FindingKind.CUT, chain, last, f"{what} missing at its end; restore from a copy of the store")


CHAINS_PER_ENTRY: Final = 500
"""So that an entry names them all (`audit_entries.VALUE_BYTES_MAX`)."""

NO_HEAD: Final = AuditHead(0, "", 0)


class UnknownEntries(NamedTuple):
    """Entries of a chain that the KV does not know, and that follow what it knows."""

    chain: str
    raw_head: bytes | Absent
    first: int
    acts: Sequence[Act]
    """Without their values."""
    new_head: AuditHead
    """The head behind them."""


def find_unknown_entries(kv: KV, store: ObjectStore) -> Iterator[UnknownEntries]:
    """Yield what may be accepted, by chain. One entry behind a head is none: a crash leaves it, before the act."""
    parsed_keys = (parsed for info in store.list(PREFIX) if (parsed := parse_key(info.key)) is not None)
    for chain, numbered in groupby(parsed_keys, key=lambda parsed: parsed[0]):
        raw = kv.get(keys.audit_head(chain))
        try:
            head = decode_optional(raw, AuditHead) or NO_HEAD
        except Corrupt:
            continue
        beyond = [number for _, number in numbered if number > head.number]
        if raw is ABSENT or beyond[BEYOND_HEAD_MAX:]:
            acts, new_head = _follow(store, chain, head, beyond)
            if acts:
                yield UnknownEntries(chain, raw, head.number + 1, acts, new_head)


def accept_entries(kv: KV, audit: AuditLog, found: Sequence[UnknownEntries]) -> int:
    """Accept them, and return how many entries that were. Raises AuditUnavailable, KVUnavailable.

    A chain that moved on meanwhile stays as it is: its process has begun another one.
    """
    accepted = 0
    for batch in split_batches(found, CHAINS_PER_ENTRY):
        chains = [
            {"chain": each.chain, "first": each.first, "last": each.new_head.number, "sha256": each.new_head.sha256}
            for each in batch
        ]
        with audit.change(ACCEPT_ACTION, after={"chains": chains}):
            for each in batch:
                if kv.set_if(keys.audit_head(each.chain), each.raw_head, encode(each.new_head)):
                    accepted += len(each.acts)
    return accepted


def _follow(store: ObjectStore, chain: str, head: AuditHead, beyond: Sequence[int]) -> tuple[list[Act], AuditHead]:
    """Return the acts of the entries that follow the head without a gap, each with the hash of the one before; and the
    head behind them. `beyond`: the numbers that there are.
    """
    acts: list[Act] = []
    wanted = [entry_key(chain, number) for number in beyond]
    for _, body in read_many(store, wanted, end=ENTRY_BYTES_MAX + 1):
        try:
            entry = decode_entry(body or b"")
        except Corrupt:
            break
        expected = chain, head.number + 1, head.sha256
        if body is None or (entry.chain, entry.number, entry.previous) != expected:
            break
        acts.append(msgspec.structs.replace(entry.act, before=None, after=None))
        head = AuditHead(entry.number, sha256_of(body), entry.written_ms)
    return acts, head
