"""Tell why nothing is deleted after other servers of the KV answer, and until when (rule 21).

A restart of Redis is enough: it is another process then. The wait itself is the fence's; what is told here decides
nothing, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from refstore.core.clock import Clock, format_utc
from refstore.core.safety import Safety
from refstore.errors import ObjectNotFound
from refstore.kv_recovery.fence import ServersFirstSeen, read_witnesses, servers_key
from refstore.objects.base import ObjectStore


class SettlementWait(NamedTuple):
    """Nothing is deleted in the whole lake."""

    until_ms: int
    """When the operations have ended that began under other servers. A deleter looks for lost writes then."""
    reason: str

    def describe(self, now_ms: int) -> str:
        until = format_utc(self.until_ms) if self.until_ms > now_ms else "a reaper has looked for lost writes"
        return f"settling until {until}, because {self.reason}"


def find_settlement_wait(
    store: ObjectStore, clock: Clock, waits: Safety, servers: Mapping[str, str]
) -> SettlementWait | None:
    """Return what deletion waits for; None: it does not wait. `store`: the lake's own. `servers`: those that answer
    (`read_servers`). Raises ObjectsUnavailable.
    """
    witnesses, _ = read_witnesses(store)
    if not witnesses or any(witness.servers == servers for witness in witnesses.values()):
        return None
    try:
        seen_ms = msgspec.json.decode(store.read(servers_key(servers)), type=ServersFirstSeen).at_ms
        seen = f"first seen at {format_utc(seen_ms)}"
    except (ObjectNotFound, msgspec.DecodeError):
        seen_ms, seen = clock.now_ms(), "no reaper has seen them yet"
    return SettlementWait(
        waits.operations_end_ms(seen_ms),
        f"other servers of the KV answer than before, as after its restart ({seen}), and operations that began before "
        "may be under way; nothing is deleted meanwhile, and then a reaper looks whether writes were lost",
    )
