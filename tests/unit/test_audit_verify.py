"""What `refstore audit verify` names, and the order in which `refstore audit log` reads: over chains that somebody
laid hands on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from refstore.audit import AuditLog, audit_reader
from refstore.audit.audit_entries import PREFIX, decode_entry, encode_entry, entry_key, sha256_of
from refstore.audit.audit_reader import entries_newest_first, entries_since
from refstore.audit.audit_verification import (
    DAMAGE,
    READ_BATCH,
    AuditVerification,
    FindingKind,
    accept_entries,
    find_unknown_entries,
)
from refstore.core.ids import RandomIds
from refstore.core.safety import FixedDurations, Safety
from refstore.kv.memory import MemoryKV
from refstore.objects.memory import MemoryObjects
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.lake_records import AuditHead
from tests.kit.clock import FakeClock

COUNT = 10
"""Acts in the chain under attack: an entry for each."""


class Log:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.kv = MemoryKV()
        self.store = MemoryObjects(clock=self.clock)
        self.own = self.process()
        self.write(self.own, COUNT)
        (self.chain,) = {info.key.removeprefix(PREFIX).partition("/")[0] for info in self.store.list(PREFIX)}
        self.write(self.process(), 2)

    def process(self) -> AuditLog:
        return AuditLog(self.kv, lambda: self.store, self.clock, RandomIds(), FixedDurations(Safety()))

    def write(self, process: AuditLog, count: int) -> None:
        for number in range(count):
            self.clock.advance(1)
            with process.act("branch.delete", repository="sales", target=f"b{number}"):
                pass

    def key(self, number: int) -> str:
        return entry_key(self.chain, number)

    def delete(self, *numbers: int) -> None:
        self.store.delete_many([self.key(number) for number in numbers])

    def change(self, number: int, **changes: object) -> None:
        entry = decode_entry(self.store.read(self.key(number)))
        self.store.put(
            self.key(number),
            encode_entry(msgspec.structs.replace(entry, act=msgspec.structs.replace(entry.act, **changes))),
        )

    def swap(self, one: int, other: int) -> None:
        bodies = self.store.read(self.key(one)), self.store.read(self.key(other))
        self.store.put(self.key(one), bodies[1])
        self.store.put(self.key(other), bodies[0])

    def add(self, chain: str, number: int, previous: str, like: int = 1) -> None:
        entry = decode_entry(self.store.read(self.key(like)))
        self.store.put(
            entry_key(chain, number),
            encode_entry(msgspec.structs.replace(entry, chain=chain, number=number, previous=previous)),
        )

    def named(self) -> list[tuple[FindingKind, str, int]]:
        """Of the chain under attack as `own`."""
        found = list(AuditVerification(self.kv, self.store).findings())
        return [
            (finding.kind, "own" if finding.chain == self.chain else finding.chain, finding.number) for finding in found
        ]


@pytest.fixture
def log() -> Log:
    return Log()


def last_hash(log: Log) -> str:
    return sha256_of(log.store.read(log.key(COUNT)))


ATTACKS: dict[str, tuple[Callable[[Log], object], list[tuple[FindingKind, str, int]]]] = {
    "nothing": (lambda _: None, []),
    "one changed": (lambda log: log.change(4, target="other"), [(FindingKind.CHANGED, "own", 4)]),
    "the first changed": (lambda log: log.change(1, outcome="failed"), [(FindingKind.CHANGED, "own", 1)]),
    "the last changed": (lambda log: log.change(COUNT, target="other"), [(FindingKind.CHANGED, "own", COUNT)]),
    "two neighbours changed": (
        lambda log: [log.change(n, target="x") for n in (4, 5)],
        [(FindingKind.CHANGED, "own", n) for n in (5, 4)],
    ),
    "overwritten": (lambda log: log.store.put(log.key(4), b"nothing"), [(FindingKind.CHANGED, "own", 4)]),
    "one deleted": (lambda log: log.delete(4), [(FindingKind.MISSING, "own", 4)]),
    "several deleted": (
        lambda log: log.delete(4, 5, 8),
        [(FindingKind.MISSING, "own", 8), (FindingKind.MISSING, "own", 5)],
    ),
    "the first deleted": (lambda log: log.delete(1), [(FindingKind.MISSING, "own", 1)]),
    "the tail cut": (lambda log: log.delete(COUNT), [(FindingKind.CUT, "own", COUNT)]),
    "a long tail cut": (lambda log: log.delete(*range(3, COUNT + 1)), [(FindingKind.CUT, "own", COUNT)]),
    "the chain deleted": (lambda log: log.delete(*range(1, COUNT + 1)), [(FindingKind.CUT, "own", COUNT)]),
    "two swapped": (lambda log: log.swap(3, 7), [(FindingKind.MOVED, "own", 7), (FindingKind.MOVED, "own", 3)]),
    "neighbours swapped": (lambda log: log.swap(3, 4), [(FindingKind.MOVED, "own", 4), (FindingKind.MOVED, "own", 3)]),
    "a chain forged": (lambda log: log.add("0forged", 1, ""), [(FindingKind.FORGED, "0forged", 0)]),
    "entries added at the end": (
        lambda log: [log.add(log.chain, COUNT + 1, "0" * 64), log.add(log.chain, COUNT + 2, "0" * 64)],
        [(FindingKind.FORGED, "own", COUNT + 1), (FindingKind.FORGED, "own", COUNT + 2)],
    ),
    # to look at each number up to it would keep whoever verifies busy for ever
    "one of a huge number added": (
        lambda log: log.add(log.chain, 10**12 - 1, "0" * 64),
        [(FindingKind.FORGED, "own", 10**12 - 1)],
    ),
    "one that links added at the end": (
        lambda log: log.add(log.chain, COUNT + 1, last_hash(log)),
        [(FindingKind.BEYOND, "own", COUNT + 1)],
    ),
    "a foreign file": (lambda log: log.store.put(f"{PREFIX}readme", b""), [(FindingKind.FORGED, "", 0)]),
    "the head lost": (lambda log: log.kv.delete(keys.audit_head(log.chain)), [(FindingKind.FORGED, "own", 0)]),
    "the head damaged": (lambda log: log.kv.set(keys.audit_head(log.chain), b"x"), [(FindingKind.HEAD, "own", 0)]),
    "the head of an older copy": (
        lambda log: log.kv.set(
            keys.audit_head(log.chain), encode(AuditHead(8, sha256_of(log.store.read(log.key(8))), 0))
        ),
        [(FindingKind.BEYOND, "own", 9), (FindingKind.FORGED, "own", 10)],
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_was_done_to_the_log_is_named(log: Log, attack: str) -> None:
    act, expected = ATTACKS[attack]
    act(log)
    assert log.named() == expected


def test_only_some_findings_are_damage() -> None:
    harmless = {FindingKind.UNKNOWN, FindingKind.BEYOND, FindingKind.WAITING, FindingKind.ACCEPTED}
    assert set(FindingKind) - DAMAGE == harmless


def test_a_long_chain_is_read_in_parts(log: Log) -> None:
    log.write(log.own, 2 * READ_BATCH + 1)
    for number in (1, READ_BATCH, COUNT + READ_BATCH):
        log.change(number, target="other")
    looking = AuditVerification(log.kv, log.store)
    assert [finding.number for finding in looking.findings()] == [COUNT + READ_BATCH, READ_BATCH, 1]
    assert (looking.chains, looking.entries) == (2, COUNT + 2 + 2 * READ_BATCH + 1)


def test_a_log_that_is_being_written_is_whole(log: Log) -> None:
    """A process goes on between the listing and the look at its head."""

    class Growing(MemoryKV):
        def get(self, key: object) -> object:
            log.write(log.own, 3)
            return log.kv.get(key)

        def scan(self, *args: object, **options: object) -> list[tuple[str, bytes]]:
            return log.kv.scan(*args, **options)

    assert list(AuditVerification(Growing(), log.store).findings()) == []


@pytest.mark.parametrize("chains_at_once", [1, 2, 1000])
def test_the_newest_entries_come_first(log: Log, monkeypatch: pytest.MonkeyPatch, chains_at_once: int) -> None:
    monkeypatch.setattr(audit_reader, "CHAINS_AT_ONCE", chains_at_once)
    for process in (log.own, log.process(), log.own, log.process(), log.own):
        log.write(process, 2)
    times = [read.entry.written_ms for read in entries_newest_first(log.kv, log.store) if read.entry]
    assert len(times) == COUNT + 12
    assert times == sorted(times, reverse=True)


def test_an_entry_before_which_the_clock_was_set_back_is_found_by_its_time(log: Log) -> None:
    log.clock.advance(3600)
    since_ms = log.clock.now_ms()
    log.write(log.own, 1)
    log.clock.jump(-30)
    log.write(log.own, 1)
    reads = entries_since(log.kv, log.store, since_ms, clock_skew_seconds=60)
    assert [read.number for read in reads] == [COUNT + 1]


def test_a_short_answer_reads_little(log: Log) -> None:
    asked: list[str] = []

    class Counted(MemoryObjects):
        def get(
            self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
        ) -> Iterator[bytes]:
            asked.append(key)
            return log.store.get(key, start=start, end=end, size_bytes=size_bytes)

    assert next(entries_newest_first(log.kv, Counted())).entry is not None
    assert len(asked) <= 2


def test_what_cannot_be_read_is_told_and_the_rest_shown(log: Log) -> None:
    log.delete(4)
    reads = list(entries_newest_first(log.kv, log.store))
    assert [read.number for read in reads if read.entry is None] == [4]
    assert len(reads) == COUNT + 2


def accept(log: Log) -> int:
    return accept_entries(log.kv, log.process(), list(find_unknown_entries(log.kv, log.store)))


@pytest.mark.parametrize("attack", ["the head of an older copy", "the head lost"])
def test_what_an_older_kv_does_not_know_is_accepted_once(log: Log, attack: str) -> None:
    ATTACKS[attack][0](log)
    assert accept(log) == (2 if attack == "the head of an older copy" else COUNT)
    found = list(AuditVerification(log.kv, log.store).findings())
    assert [finding.kind for finding in found] == [FindingKind.ACCEPTED]
    assert log.chain in found[0].message
    assert not found[0].is_damage
    assert list(find_unknown_entries(log.kv, log.store)) == []
    shown = [read.entry.act.target for read in entries_newest_first(log.kv, log.store) if read.entry is not None]
    assert f"b{COUNT - 1}" in shown, "the log shows what was accepted"
    log.change(COUNT, target="other")
    assert FindingKind.CHANGED in {kind for kind, _, _ in log.named()}, "what was accepted is verified as all others"


def test_what_does_not_follow_is_not_accepted(log: Log) -> None:
    ATTACKS["the head of an older copy"][0](log)
    log.change(10, target="other")  # it follows entry 9, and is the newest: nothing tells
    log.add(log.chain, 11, "0" * 64)
    log.add(log.chain, 10**12 - 1, "0" * 64)
    assert accept(log) == 2
    assert [(kind, number) for kind, _, number in log.named() if kind is not FindingKind.ACCEPTED] == [
        (FindingKind.FORGED, 11),
        (FindingKind.FORGED, 10**12 - 1),
    ]


@pytest.mark.parametrize("attack", ["one deleted", "one changed", "the tail cut", "a foreign file", "the head damaged"])
def test_other_damage_is_not_accepted(log: Log, attack: str) -> None:
    act, expected = ATTACKS[attack]
    act(log)
    assert accept(log) == 0
    assert log.named() == expected
