"""Share what plans of conditional uploads and links have in common: calls, the judge of a race, and planted faults."""

from __future__ import annotations

from collections.abc import Mapping

from tests.kit.domain import Tools
from tests.kit.replay import Stage
from tests.kit.steps import Interned
from tests.simulation.calls import BODIES, Call, Promise
from tests.simulation.judging import Judge, Outcomes
from tests.simulation.planting import Edit

STATES = 25_000
WALKS = 100
WALKS_OF_MUTANTS = 1000
PLACING = "refstore.operations.stage_entries:_place_one"

# Faults: each is an edit of the function that places one entry.
SAME_REFERENCE = Edit(PLACING, "            item = item.with_new_reference(ctx.ids.new_id(ctx.clock.now_ms()))\n", "")
NO_CHECK_OF_THE_TOKEN = Edit(
    PLACING, "if now.token == token:\n                if not is_placed", "if True:\n                if not is_placed"
)
OVER_ANYTHING = Edit(PLACING, "is_what_was_found(raw, current, token)", "True")
NO_LOOK_AT_THE_PATH = Edit(PLACING, "not is_own and not _fits(ctx, item, current)", "False")


def create(path: str, body: str) -> Call:
    def go(tools: Tools) -> None:
        tools.repo.upload("main", path, BODIES[body], if_absent=True)

    return Call((Stage(f"create {path} {body}", go),), (Promise("main", path, BODIES[body]),))


def one_winner(refusal: str) -> Judge:
    """Make the judge of two calls: one of them ends well, and the other hears this error."""

    def judge(said: Outcomes, _store: Mapping[int, int], _names: Interned) -> str | None:
        ends = sorted(str(one) for outcome in said.values() for one in outcome)
        return None if ends == [refusal, "ok"] else f"they ended so: {said}"

    return judge
