"""Positions in the KV, and witnesses of them in the lake's object store (rule 21).

    _refstore/witnesses/<deleter>.json     the positions that a deleter had written, and the servers that answered
    _refstore/servers/<hash>.json          when somebody first saw these servers

A deleter's pass begins with `begin`: every server must hold what every witness says. Before it deletes what it has
marked it calls `pass_through`. Positions are changed by `set_if` from the one that this deleter remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Final, NamedTuple, NoReturn, Protocol

import msgspec

from refstore.core import event_log
from refstore.core.clock import Clock, format_utc, to_datetime, to_ms
from refstore.core.safety import Durations, Safety
from refstore.core.units import DAY_SECONDS
from refstore.errors import CorruptObject, KVReconciling, KVSettling, KVWentBack, ObjectNotFound
from refstore.kv.base import ABSENT, KV, Absent, Key, SetIf
from refstore.objects.base import ObjectStore
from refstore.objects.parallel_reads import read_many
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.lake_records import Position

WITNESSES_FOLDER: Final = "_refstore/witnesses/"
SERVERS_FOLDER: Final = "_refstore/servers/"

RECONCILE_WITNESS: Final = "kv-reconcile"
"""The witness of this name is one that no KV holds: while it is there, no pass begins."""

BLOCKED_POSITION: Final = 1 << 53

WITNESS_KEPT_SECONDS: Final = DAY_SECONDS
"""Witnesses of deleters that have written none for so long are removed, once a later witness stands for them."""

POSITION_KEPT_SECONDS: Final = 30 * WITNESS_KEPT_SECONDS
"""Positions without a witness are removed when they are so old. A deleter that was stopped between the two creates its
witness anew when it goes on. If the KV did not hold the position then, it would look as if it had gone back.
"""

_log = event_log.get_logger(__name__)


class PositionWitness(msgspec.Struct, frozen=True):
    """What one deleter had written to the KV."""

    deleter: str
    at_ms: int
    positions: dict[str, int]
    """By partition."""
    servers: dict[str, str]
    """The identity of the server that stores each of these partitions, when the deleter last settled."""


class ServersFirstSeen(msgspec.Struct, frozen=True):
    at_ms: int


class SettlementWait(NamedTuple):
    """Nothing is deleted in the whole lake."""

    until: datetime
    """When the operations have ended that began under other servers. A deleter looks for lost writes then."""
    reason: str

    def describe(self, now_ms: int) -> str:
        until_ms = to_ms(self.until)
        until = format_utc(until_ms) if until_ms > now_ms else "a reaper has looked for lost writes"
        return f"settling until {until}, because {self.reason}"


class DeletionFence(Protocol):
    """What a pass asks before it acts."""

    def check_servers(self) -> None:
        """Raise KVSettling if other servers answer than when the pass began."""

    def pass_through(self) -> None:
        """Let the caller delete what it has marked. Raises KVWentBack, KVSettling, KVUnavailable,
        ObjectsUnavailable; then nothing may be deleted.
        """


class DryRunFence:
    """Lets a dry run pass, which deletes nothing."""

    def check_servers(self) -> None: ...

    def pass_through(self) -> None: ...


class PositionFence:
    """What one deleter knows of the KV's history. Not for several threads."""

    def __init__(
        self, kv: KV, store: Callable[[], ObjectStore], clock: Clock, durations: Durations, deleter: str
    ) -> None:
        """`store`: the lake's own. `deleter`: an id that no other process ever has."""
        self._kv = kv
        self._store = store
        self._clock = clock
        self._durations = durations
        self._name = deleter
        self._deleter = deleter
        """The id of its positions and its witness; another one each time that it was forgotten."""
        self._forgotten = 0
        self._written: dict[str, bytes] = {}
        """The position in each partition, as this deleter wrote it last."""
        self._servers: dict[str, str] = {}
        """Those that answered when the pass began."""

    @property
    def servers(self) -> dict[str, str]:
        """The identity of each server of the KV when the pass began, by partition."""
        return dict(self._servers)

    def begin(self, settle: Callable[[], None]) -> None:
        """Look whether the KV holds what every witness says, and begin a pass.

        If other servers answer than anybody has settled under, and the operations that began before have ended,
        `settle` is called first. Raises KVWentBack, KVReconciling, KVSettling (it is too early to settle),
        CorruptObject, KVUnavailable, ObjectsUnavailable; then the pass must delete nothing.
        """
        self._servers = read_servers(self._kv)
        witnesses = self.witnesses()
        self._check_witnesses(witnesses)
        if any(witness.servers == self._servers for witness in witnesses.values()):
            return
        if witnesses:  # nothing was ever witnessed in a new lake
            self._wait_for_operations()
            _log.warning("kv_servers_changed", servers=self._servers, what_follows="settling")
            settle()
        self.pass_through()
        if witnesses:
            self._forget_servers()
            _log.warning("kv_settled", servers=self._servers)

    def check_servers(self) -> None:
        if read_servers(self._kv) != self._servers:
            raise KVSettling(
                "another server of the KV answers than when this pass began, so it deletes nothing more; the next pass "
                "looks whether writes were lost"
            )

    def pass_through(self) -> None:
        partitions = sorted(self._servers)
        now = self._clock.now_ms()
        before = [self._written.get(partition, ABSENT) for partition in partitions]
        after = [encode(Position(_parse_number(value) + 1, now)) for value in before]
        done = self._kv.set_if_many(
            [
                SetIf(Key(partition, self._deleter), old, new)
                for partition, old, new in zip(partitions, before, after, strict=True)
            ]
        )
        if not all(done):
            if self._written and self._deleter not in self.witnesses():
                raise KVSettling(
                    f"{self._deleter} was idle for so long that another deleter has just forgotten it, so it deletes "
                    "nothing in this pass; the next one begins anew"
                )
            lost = ", ".join(partition for partition, ok in zip(partitions, done, strict=True) if not ok)
            raise KVWentBack(
                f"the KV has lost the position of {self._deleter} ({lost}): it went back in time; nothing is deleted. "
                "See `refstore kv verify`"
            )
        self._written = dict(zip(partitions, after, strict=True))
        positions = {partition: _parse_number(value) for partition, value in self._written.items()}
        witness = PositionWitness(self._deleter, now, positions, self._servers)
        self._store().put(_witness_key(self._deleter), msgspec.json.encode(witness))
        self.check_servers()

    def witnesses(self) -> dict[str, PositionWitness]:
        """Read the witnesses of all deleters, by the deleter's id. Raises CorruptObject, ObjectsUnavailable."""
        found, unreadable = read_witnesses(self._store())
        for key, reason in unreadable.items():
            raise CorruptObject(
                f"the witness {key} cannot be read ({reason}); nothing is deleted. If the KV has lost nothing, "
                "`refstore kv reconcile --accept` removes it"
            )
        return found

    def find_lost(self, witnesses: Mapping[str, PositionWitness]) -> list[tuple[PositionWitness, str, Position | None]]:
        """Return what the KV does not hold of the witnesses: the partition, and the position that it does hold."""
        asked = [(witness, partition) for witness in witnesses.values() for partition in witness.positions]
        values = self._kv.get_many([Key(partition, witness.deleter) for witness, partition in asked])
        return [
            (witness, partition, position)
            for (witness, partition), value in zip(asked, values, strict=True)
            for position in (decode_optional(value, Position),)
            if position is None or position.number < witness.positions[partition]
        ]

    def forget_ended_deleters(self) -> None:
        """Remove the witnesses of deleters that ended long ago, as a new one of this deleter stands for them; much
        later their positions; and notes of other servers. Only in a pass.
        """
        before = self._clock.now_ms() - WITNESS_KEPT_SECONDS * 1000
        old = [
            witness
            for witness in self.witnesses().values()
            if witness.at_ms < before and witness.deleter != self._deleter
        ]
        if old:
            self.pass_through()  # else its own may be older than theirs
            self._store().delete_many([_witness_key(witness.deleter) for witness in old])
        known, orphans_before = self.witnesses(), self._clock.now_ms() - POSITION_KEPT_SECONDS * 1000
        orphans = [
            SetIf(Key(partition, deleter), value, ABSENT)
            for partition in self._servers
            for deleter, value in self._kv.scan_all(partition)
            if deleter not in known and decode(value, Position).at_ms < orphans_before
        ]
        self._kv.set_if_many(orphans)
        self._forget_servers()

    def block(self) -> int:
        """Keep every pass from beginning until `replace_lost`, also if this process dies. Return when this began."""
        servers = read_servers(self._kv)
        found, _ = read_witnesses(self._store())
        blocking = found.get(RECONCILE_WITNESS)
        if blocking is None or blocking.servers != servers:
            positions = dict.fromkeys(servers, BLOCKED_POSITION)
            blocking = PositionWitness(RECONCILE_WITNESS, self._clock.now_ms(), positions, servers)
            self._store().put(_witness_key(RECONCILE_WITNESS), msgspec.json.encode(blocking))
        return blocking.at_ms

    def replace_lost(self, settle: Callable[[], None]) -> int:
        """Settle, witness what the KV holds now, then remove the witnesses that it does not hold, the unreadable ones
        and the block. Return how many witnesses were removed. Raises KVSettling, and what `settle` raises.
        """
        self._servers = read_servers(self._kv)
        settle()
        self.pass_through()
        found, unreadable = read_witnesses(self._store())
        found.pop(RECONCILE_WITNESS, None)
        lost = {witness.deleter: witness for witness, _, _ in self.find_lost(found)}
        positions = [Key(partition, witness.deleter) for witness in lost.values() for partition in witness.positions]
        removed = [*unreadable, *(_witness_key(deleter) for deleter in lost)]
        if removed:
            self._store().delete_many(removed)
            self._kv.delete_many(positions)
        return len(removed)

    def unblock(self) -> None:
        """Let passes begin again."""
        self._store().delete_many([_witness_key(RECONCILE_WITNESS)])

    def _check_witnesses(self, witnesses: Mapping[str, PositionWitness]) -> None:
        if self._written and self._deleter not in witnesses:
            self._written.clear()  # forgotten after a long pause: it begins anew, under another id
            self._forgotten += 1
            self._deleter = f"{self._name}-{self._forgotten}"
        lost = self.find_lost(witnesses)
        if lost:
            if any(witness.deleter == RECONCILE_WITNESS for witness, _, _ in lost):
                raise KVReconciling(
                    "`refstore kv reconcile` has begun and not ended; nothing is deleted meanwhile. Run it again if it "
                    "was interrupted"
                )
            witness, partition, position = lost[0]
            held = (
                f"position {position.number} of {format_utc(position.at_ms)}" if position else "none of its positions"
            )
            server = f"its server of {partition}" if len(self._servers) > 1 else "it"
            raise KVWentBack(
                f"the KV went back in time: {witness.deleter} had written position {witness.positions[partition]} at "
                f"{format_utc(witness.at_ms)}, and {server} holds {held}; nothing is deleted. See `refstore kv verify`"
            )

    def _forget_servers(self) -> None:
        """Remove the notes of when others were seen: who answers now is settled, and who comes back is seen anew."""
        if keys := [info.key for info in self._store().list(SERVERS_FOLDER)]:
            self._store().delete_many(keys)

    def _wait_for_operations(self) -> None:
        """Raise KVSettling until the operations that began under other servers have ended."""
        now = self._clock.now_ms()
        first = _read_first_seen(self._store(), self._servers)
        if first is None:
            first = now
            self._store().put(_servers_key(self._servers), msgspec.json.encode(ServersFirstSeen(now)))
        ends = self._durations.waits.operations_end_ms(first)
        if now < ends:
            raise KVSettling(
                f"other servers of the KV answer than before (first seen at {format_utc(first)}), and operations that "
                f"began before may be under way; nothing is deleted until {format_utc(ends)}. Run the same again then",
                until=to_datetime(ends),
            )


def read_servers(kv: KV) -> dict[str, str]:
    """Return the identity of each server of the KV, by partition. Raises KVUnavailable."""
    return {server.partition: server.identity for server in kv.servers()}


def find_settlement_wait(
    store: ObjectStore, clock: Clock, waits: Safety, servers: Mapping[str, str]
) -> SettlementWait | None:
    """Return what deletion waits for after other servers answer, as after a restart of Redis; None: it does not wait.
    It decides nothing, and writes nothing. `store`: the lake's own. `servers`: those that answer (`read_servers`).
    Raises ObjectsUnavailable.
    """
    witnesses, _ = read_witnesses(store)
    if not witnesses or any(witness.servers == servers for witness in witnesses.values()):
        return None
    first = _read_first_seen(store, servers)
    seen = "no reaper has seen them yet" if first is None else f"first seen at {format_utc(first)}"
    return SettlementWait(
        to_datetime(waits.operations_end_ms(clock.now_ms() if first is None else first)),
        f"other servers of the KV answer than before, as after its restart ({seen}), and operations that began before "
        "may be under way; nothing is deleted meanwhile, and then a reaper looks whether writes were lost",
    )


def _read_first_seen(store: ObjectStore, servers: Mapping[str, str]) -> int | None:
    """Return when a deleter first saw these servers; None: none has noted it."""
    try:
        return msgspec.json.decode(store.read(_servers_key(servers)), type=ServersFirstSeen).at_ms
    except (ObjectNotFound, msgspec.DecodeError):
        return None


def _servers_key(servers: Mapping[str, str]) -> str:
    return f"{SERVERS_FOLDER}{sha256(msgspec.json.encode(sorted(servers.items()))).hexdigest()[:40]}.json"


def read_witnesses(store: ObjectStore) -> tuple[dict[str, PositionWitness], dict[str, str]]:
    """Return the witnesses by their deleters' ids; and why others cannot be read, by key. Raises ObjectsUnavailable."""
    found: dict[str, PositionWitness] = {}
    unreadable: dict[str, str] = {}
    for key, body in read_many(store, [info.key for info in store.list(WITNESSES_FOLDER)]):
        if body is None:
            continue  # its deleter has just been forgotten
        try:
            witness = msgspec.json.decode(body, type=PositionWitness)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            unreadable[key] = str(error)
        else:
            found[witness.deleter] = witness
    return found, unreadable


def refuse_to_settle() -> NoReturn:
    """Settle nothing: for those who leave that to a reaper. Raises KVSettling."""
    raise KVSettling(
        "other servers of the KV answer than before, and nobody has looked for losses since; run `refstore reaper "
        "--once`, then this again"
    )


def _witness_key(deleter: str) -> str:
    return f"{WITNESSES_FOLDER}{deleter}.json"


def _parse_number(value: bytes | Absent) -> int:
    position = decode_optional(value, Position)
    return position.number if position else 0
