"""Uploads and links that may only go where nothing is, under every interleaving: one of them wins, and what it wrote is
safe.

They write by a `set_if` over nothing, or over a tombstone. Both come back, which no other expected value does: made
again after a lost reply it could land twice, the second time under a reference that somebody has released in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from refstore.operations.upload import Link
from tests.kit.domain import Tools
from tests.kit.replay import Stage
from tests.kit.steps import Interned
from tests.simulation import calls as do
from tests.simulation.calls import BODIES, HARD_DELETE, REAP, Call, Promise
from tests.simulation.conditional_writes import (
    NO_CHECK_OF_THE_TOKEN,
    NO_LOOK_AT_THE_PATH,
    OVER_ANYTHING,
    PLACING,
    SAME_REFERENCE,
    STATES,
    WALKS,
    WALKS_OF_MUTANTS,
    create,
    one_winner,
)
from tests.simulation.judging import JudgedPlan, Outcomes, check_holds, check_is_caught, explore_safe
from tests.simulation.plans import Plan
from tests.simulation.planting import Edit, Mutant
from tests.simulation.worlds import Start, m1


def link(path: str, token: str) -> Call:
    def go(tools: Tools) -> None:
        tools.repo.link_many("main", [Link(path=path, token=token, if_absent=True)])

    return Call((Stage(f"link {path}", go),), (Promise("main", path, BODIES["P9"]),))


def deleted() -> Start:
    """p is committed, and deleted since: a tombstone is in the way."""
    start = Start().committed("main", "c0", p="P0")
    start.repo.delete("main", "p")
    return start


PLANS = [
    Plan(
        name="A | B",
        world=Start,
        tasks=lambda _: {"A": [create("n", "P1")], "B": [create("n", "P2")]},
        lossy="AB",
        keeps="AB",
    ),
    Plan(
        name="A | B over a tombstone",
        world=deleted,
        tasks=lambda _: {"A": [create("p", "P1")], "B": [create("p", "P2")]},
        lossy="A",
        keeps="AB",
    ),
    Plan(
        name="A | B | commit",
        world=m1,
        tasks=lambda _: {"A": [create("n", "P1")], "B": [create("n", "P2")], "C": [do.commit("main", "c1")]},
        keeps="AB",
        safety_only=True,
    ),
    Plan(
        name="A | commit | reap",
        world=m1,
        tasks=lambda _: {"A": [create("n", "P1")], "C": [do.commit("main", "c1")], "R": [REAP]},
        lossy="A",
        crash="A",
        keeps="A",
        safety_only=True,
    ),
    Plan(
        name="A | reset | reap",
        world=m1,
        tasks=lambda _: {"A": [create("n", "P1")], "S": [do.reset("main")], "R": [REAP]},
        lossy="A",
        safety_only=True,
    ),
    Plan(
        name="A | delete | hard delete, over a tombstone",
        world=deleted,
        tasks=lambda _: {"A": [create("p", "P1")], "D": [do.delete("main", "p")], "H": [HARD_DELETE]},
        lossy="A",
        safety_only=True,
    ),
    Plan(
        name="A | reset of the path | hard delete",
        world=m1,
        tasks=lambda _: {"A": [create("n", "P1")], "S": [do.reset_path("main", "n")], "H": [HARD_DELETE]},
        lossy="A",
        safety_only=True,
    ),
    Plan(
        name="A | overwrite; delete | hard delete",
        world=m1,
        tasks=lambda _: {
            "A": [create("n", "P1")],
            "O": [do.upload("main", ("n", "P2")), do.delete("main", "n")],
            "H": [HARD_DELETE],
        },
        lossy="A",
        safety_only=True,
    ),
    Plan(
        name="link L | A",
        world=lambda: Start().issued(),
        tasks=lambda start: {"L": [link("p", start.token)], "A": [create("p", "P1")]},
        lossy="L",
        keeps="LA",
    ),
]
BY_NAME = {plan.name: plan for plan in PLANS}
ALONE = ["A | B", "A | B over a tombstone", "link L | A"]
"""Where nobody else touches the path: one wins, and the other is told that something is there."""


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_a_conditional_placement_holds(plan: Plan) -> None:
    check_holds(plan, states_max=STATES, walks=WALKS)


@pytest.mark.parametrize("name", ALONE)
def test_one_wins_and_the_others_hear_that_something_is_there(name: str) -> None:
    """Without lost replies, which leave a caller without a word on who was first."""
    plan = JudgedPlan(replace(BY_NAME[name], lossy=""), one_winner("AlreadyExists"))
    found, _ = explore_safe(plan, states_max=STATES, walks=WALKS)
    assert found.exhausted


MUTANTS = [
    Mutant(
        name="made again after a lost reply",
        rule="A lost reply",
        edits=(Edit(PLACING, ", once=True", ""),),
        caught_by="A | delete | hard delete, over a tombstone",
    ),
    Mutant(
        name="placed again under the reference that it had",
        rule="6",
        edits=(SAME_REFERENCE,),
        caught_by="A | delete | hard delete, over a tombstone",
    ),
    Mutant(
        name="the token is not looked at behind the entry",
        rule="2",
        edits=(NO_CHECK_OF_THE_TOKEN,),
        caught_by="A | commit | reap",
    ),
    Mutant(
        name="what was written first is not looked for",
        rule="what somebody else wrote first stays",
        edits=(OVER_ANYTHING, NO_LOOK_AT_THE_PATH),
        caught_by="A | B",
    ),
    Mutant(
        name="its own landed write is not recognised",
        rule="A lost reply",
        edits=(
            Edit(PLACING, "isinstance(record, Entry) and record.address == entry.address", "raw == encode(entry)"),
            Edit(PLACING, "current.entry.address == entry.address", "raw == encode(entry)"),
        ),
        caught_by="A, whose reply is lost",
    ),
]
BY_NAME["A, whose reply is lost"] = Plan(
    name="A, whose reply is lost", world=Start, tasks=lambda _: {"A": [create("n", "P1")]}, lossy="A", keeps="A"
)


def always_told(said: Outcomes, _store: Mapping[int, int], _names: Interned) -> str | None:
    return None if said == {"A": ("ok",)} else f"nobody else was there, and it ended so: {said}"


def test_a_lost_reply_of_a_write_that_landed_is_not_taken_for_anothers() -> None:
    explore_safe(JudgedPlan(BY_NAME["A, whose reply is lost"], always_told), states_max=STATES, walks=WALKS_OF_MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_in_it_is_caught(mutant: Mutant) -> None:
    plan = BY_NAME[mutant.caught_by]
    judged = JudgedPlan(plan, always_told) if plan.name == "A, whose reply is lost" else plan
    check_is_caught(mutant, judged, states_max=STATES, walks=WALKS_OF_MUTANTS)
