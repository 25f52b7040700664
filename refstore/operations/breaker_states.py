"""The breaker's record of one repository: whether hard deletion is stopped, or how much an operator lets it delete.

Nothing else writes it. When to stop decides the reaper (`refstore_reaper.breaker`), or a recovery (rule 21).
"""

from __future__ import annotations

from typing import Final

import msgspec

from refstore.context import Context
from refstore.errors import Contention
from refstore.kv.base import Absent
from refstore.records import keys
from refstore.records.encoding import decode_optional, encode
from refstore.records.reaper_records import BreakerState

ATTEMPTS: Final = 16

KV_WENT_BACK_REASON: Final = "kv-went-back"
"""Why hard deletion is stopped when the KV lost writes. `refstore kv reconcile` ends that."""


class BreakerStates:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._key = keys.reaper_state(ctx.repo, "breaker")

    def read(self) -> tuple[bytes | Absent, BreakerState]:
        """Return the record as it is stored, and decoded. Raises CorruptRecord."""
        raw = self._ctx.kv.get(self._key)
        return raw, decode_optional(raw, BreakerState) or BreakerState("")

    def replace(self, raw: bytes | Absent, state: BreakerState) -> bool:
        """Write a state in place of the one that was read. Return whether that one was still there."""
        return self._ctx.kv.set_if(self._key, raw, encode(self._with_new_id(state)))

    def allow(self, *, until_ms: int, objects: int) -> BreakerState:
        """Let hard deletion go on, whatever was stored, and return the state."""
        state = self._with_new_id(BreakerState("", allowed_until_ms=until_ms, allowed_objects=objects))
        self._ctx.kv.set(self._key, encode(state))
        return state

    def stop(self) -> None:
        """Stop hard deletion because the KV went back, unless it is stopped already. Raises Contention."""
        for _ in range(ATTEMPTS):
            raw, state = self.read()
            if state.tripped_ms or self.replace(raw, self.make_tripped(KV_WENT_BACK_REASON)):
                return
        raise self._contention()

    def end_stop(self) -> bool:
        """Let hard deletion go on if it was stopped because the KV went back, and return whether it was."""
        for _ in range(ATTEMPTS):
            raw, state = self.read()
            if not state.tripped_ms or state.reason != KV_WENT_BACK_REASON:
                return False
            if self.replace(raw, BreakerState("")):
                return True
        raise self._contention()

    def make_tripped(self, reason: str, due: int = 0, live: int = 0) -> BreakerState:
        """Return the state in which hard deletion is stopped now."""
        return BreakerState("", max(1, self._ctx.clock.now_ms()), reason, due, live)

    def _with_new_id(self, state: BreakerState) -> BreakerState:
        return msgspec.structs.replace(state, write_id=self._ctx.ids.new_id(self._ctx.clock.now_ms()))

    def _contention(self) -> Contention:
        return Contention(f"others kept changing the breaker of {self._ctx.name!r}; run the same again")
