"""The scenarios of transactions (rule 24): one is merged by its writer, or ended by the reaper, and never both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import cast

from refstore.core.ids import BranchName
from refstore.core.safety import Safety
from refstore.errors import Conflict
from refstore.operations import transaction
from refstore.operations.commit import CommitOptions
from refstore_reaper import reference_release
from tests.kit.domain import NO_AGES, Tools
from tests.kit.steps import Interned
from tests.simulation import calls as do
from tests.simulation.calls import BODIES, Call, Promise
from tests.simulation.plans import Calls, Plan, plan
from tests.simulation.promises import Outcomes
from tests.simulation.worlds import Start

LEASE_MS = 600_000
RUN_OUT = {"T": LEASE_MS // 2, "E": LEASE_MS + 10}
"""The lease as it was made has run out by the reaper's clock, and what the writer renews has not."""


class Begun(Start):
    """A transaction has begun on main, and has uploaded p."""

    def __init__(self, safety: Safety = NO_AGES) -> None:
        super().__init__(safety)
        self.begun = transaction.begin(self.repo.context, BranchName("main"), LEASE_MS)
        self.staged(self.begun.branch, "p", "P1", hinted=False)

    def finish(self) -> Call:
        options = CommitOptions(message="transaction")
        return do.call(
            "finish the transaction",
            lambda tools: transaction.finish(tools.ctx, self.begun, options),
            Promise("main", "p", BODIES["P1"]),
        )


def _end(tools: Tools) -> None:
    """Is refused where there is nothing to end."""
    left = reference_release.find_left_branches(tools.ctx)
    if not reference_release.end_transactions(tools.ctx, left.run_out):
        raise Conflict("nothing was ended")


END = do.call("end transactions", _end)


def _once(said: Outcomes, _store: Mapping[int, int], _names: Interned) -> str | None:
    both = all(said.get(label) == ("ok",) for label in "TE")
    return "the reaper was told that it has ended what its writer was told is merged" if both else None


def transactions() -> Iterator[Plan]:
    def of(
        name: str,
        more_tasks: Callable[[Begun], Mapping[str, Calls]] = lambda _: {},
        *,
        world: Callable[[], Start] = Begun,
        **more: object,
    ) -> Plan:
        def tasks(start: Start) -> Mapping[str, Calls]:
            begun = cast("Begun", start)
            return {"T": [begun.finish()], "E": [END], **more_tasks(begun)}

        return plan(name, world, tasks, keeps="T", remembers="TE", judge=_once, **more)

    yield of("transaction: finish (crash) | end of its lease (crash)", crash="TE", ahead_ms=RUN_OUT)
    yield of("lost reply: transaction: finish | end of its lease", lossy="TE", ahead_ms=RUN_OUT)

    def clock(start: Begun) -> Mapping[str, Calls]:
        now = start.world.clock.now_ms()
        past_lease = do.set_clock(now + LEASE_MS * 3 // 2, waits=False)
        return {"K": [past_lease, do.set_clock(now + 4 * 3_600_000, waits=True)]}

    yield of("clock past its lease: transaction: finish | end", clock, world=lambda: Begun(Safety()), clock_moves=True)
