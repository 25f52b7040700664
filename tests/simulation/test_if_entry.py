"""Uploads, links and deletions that may only take the place of the entry that their caller read, under every
interleaving: one of them wins, and what others wrote since stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from refstore.operations.read import resolve
from refstore.operations.refs import ResolvedRef
from refstore.operations.upload import Link
from refstore.records.staging_records import Entry
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
from tests.simulation.judging import Judge, JudgedPlan, Outcomes, check_holds, check_is_caught, explore_safe
from tests.simulation.plans import Plan
from tests.simulation.planting import Edit, Mutant
from tests.simulation.worlds import Start

DELETING = "refstore.operations.delete:delete_if_entry"
CHANGING = "refstore.operations.change_metadata:change_metadata"
ONE_WINNER = one_winner("PathChanged")


def read(start: Start, path: str = "p") -> Entry:
    return resolve(start.repo.context, ResolvedRef.of_branch(start.repo.default_branch), path).entry


def put(body: str, expected: Entry, path: str = "p") -> Call:
    def go(tools: Tools) -> None:
        tools.repo.upload("main", path, BODIES[body], if_entry=expected)

    return Call((Stage(f"put {path} {body}", go),), (Promise("main", path, BODIES[body]),))


def link(token: str, expected: Entry) -> Call:
    def go(tools: Tools) -> None:
        tools.repo.link_many("main", [Link(path="p", token=token, if_entry=expected)])

    return Call((Stage("link p", go),), (Promise("main", "p", BODIES["P9"]),))


def remove(expected: Entry) -> Call:
    return Call(
        (Stage("remove p", lambda tools: tools.repo.delete_if_entry("main", "p", expected)),), (Promise("main"),)
    )


def change() -> Call:
    def go(tools: Tools) -> None:
        tools.repo.change_metadata("main", "p", lambda entry: msgspec.structs.replace(entry, content_type="a/b"))

    return Call((Stage("change p", go),))


def staged() -> Start:
    return Start().staged("main", "p", "P0")


def committed() -> Start:
    return Start().committed("main", "c0", p="P0")


PLANS = [
    Plan(
        name="A | B",
        world=staged,
        tasks=lambda start: {"A": [put("P1", read(start))], "B": [put("P2", read(start))]},
        lossy="A",
        keeps="AB",
    ),
    Plan(
        name="A | B over a commit",
        world=committed,
        tasks=lambda start: {"A": [put("P1", read(start))], "B": [put("P2", read(start))]},
        lossy="AB",
        keeps="AB",
    ),
    Plan(
        name="A | B | commit",
        world=staged,
        tasks=lambda start: {
            "A": [put("P1", read(start))],
            "B": [put("P2", read(start))],
            "C": [do.commit("main", "c1")],
        },
        keeps="AB",
        safety_only=True,
    ),
    Plan(
        name="A | commit | reap",
        world=staged,
        tasks=lambda start: {"A": [put("P1", read(start))], "C": [do.commit("main", "c1")], "R": [REAP]},
        lossy="A",
        crash="A",
        keeps="A",
        safety_only=True,
    ),
    Plan(
        name="A | overwrite | hard delete",
        world=staged,
        tasks=lambda start: {
            "A": [put("P1", read(start))],
            "O": [do.upload("main", ("p", "P2"))],
            "H": [HARD_DELETE],
        },
        keeps="O",
        safety_only=True,
    ),
    Plan(
        name="A | reset of the path | hard delete, over a commit",
        world=committed,
        tasks=lambda start: {
            "A": [put("P1", read(start))],
            "S": [do.reset_path("main", "p")],
            "H": [HARD_DELETE],
        },
        lossy="A",
        safety_only=True,
    ),
    Plan(
        name="link L | A",
        world=lambda: committed().issued(),
        tasks=lambda start: {"L": [link(start.token, read(start))], "A": [put("P1", read(start))]},
        lossy="L",
        keeps="LA",
    ),
    Plan(
        name="A | create",
        world=staged,
        tasks=lambda start: {"A": [put("P1", read(start))], "N": [create("n", "P2")]},
        keeps="AN",
    ),
    Plan(
        name="D | A",
        world=staged,
        tasks=lambda start: {"D": [remove(read(start))], "A": [put("P1", read(start))]},
        lossy="D",
        keeps="DA",
    ),
    Plan(
        name="D | D over a commit",
        world=committed,
        tasks=lambda start: {"D": [remove(read(start))], "E": [remove(read(start))]},
        keeps="DE",
    ),
    Plan(
        name="D | commit | reap",
        world=staged,
        tasks=lambda start: {"D": [remove(read(start))], "C": [do.commit("main", "c1")], "R": [REAP]},
        lossy="D",
        crash="D",
        safety_only=True,
    ),
    Plan(
        name="M | overwrite, over a commit",
        world=committed,
        tasks=lambda _start: {"M": [change()], "O": [do.upload("main", ("p", "P2"))]},
        lossy="M",
        keeps="O",
    ),
    Plan(
        name="M | overwrite | hard delete",
        world=staged,
        tasks=lambda _start: {"M": [change()], "O": [do.upload("main", ("p", "P2"))], "H": [HARD_DELETE]},
        lossy="M",
        keeps="O",
        safety_only=True,
    ),
    Plan(
        name="M | commit | reap",
        world=staged,
        tasks=lambda _start: {"M": [change()], "C": [do.commit("main", "c1")], "R": [REAP]},
        lossy="M",
        crash="M",
        safety_only=True,
    ),
]
BY_NAME = {plan.name: plan for plan in PLANS}
ALONE = ["A | B", "A | B over a commit", "link L | A", "D | A", "D | D over a commit"]
"""Where nobody else touches the path: one wins, and the other is told that the path changed."""


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_a_write_in_the_place_of_an_entry_holds(plan: Plan) -> None:
    check_holds(plan, states_max=STATES, walks=WALKS)


def one_at_most(said: Outcomes, _store: Mapping[int, int], _names: Interned) -> str | None:
    winners = [name for name in said if "ok" in said[name] and name in "ABDE"]
    return None if len(winners) < 2 else f"they ended so: {said}"


@pytest.mark.parametrize("name", ALONE)
def test_one_wins_and_the_others_hear_that_the_path_changed(name: str) -> None:
    """Without lost replies, which leave a caller without a word on who was first."""
    found, _ = explore_safe(JudgedPlan(replace(BY_NAME[name], lossy=""), ONE_WINNER), states_max=STATES, walks=WALKS)
    assert found.exhausted


def test_one_wins_while_others_commit() -> None:
    explore_safe(JudgedPlan(BY_NAME["A | B | commit"], one_at_most), states_max=STATES, walks=WALKS)


MUTANTS = [
    (
        Mutant(
            name="placed again under the reference that it had",
            rule="6",
            edits=(SAME_REFERENCE,),
            caught_by="A | reset of the path | hard delete, over a commit",
        ),
        None,
    ),
    (
        Mutant(
            name="the token is not looked at behind the entry",
            rule="2",
            edits=(NO_CHECK_OF_THE_TOKEN,),
            caught_by="A | commit | reap",
        ),
        None,
    ),
    (
        Mutant(
            name="what came since is replaced",
            rule="20",
            edits=(
                OVER_ANYTHING,
                Edit(PLACING, "set_if(key, raw, encode(entry), once=True)", "set(key, encode(entry)) is None"),
            ),
            caught_by="A | B",
        ),
        ONE_WINNER,
    ),
    (
        Mutant(
            name="the path is not compared with what was read",
            rule="20",
            edits=(NO_LOOK_AT_THE_PATH,),
            caught_by="A | overwrite | hard delete",
        ),
        None,
    ),
    (
        Mutant(
            name="a deletion does not compare the path with what was read",
            rule="20",
            edits=(
                Edit(DELETING, "(current is not None and not is_unchanged(ctx, current, entry))", "False"),
            ),
            caught_by="D | A",
        ),
        ONE_WINNER,
    ),
    (
        Mutant(
            name="a deletion does not look at the token behind the tombstone",
            rule="2",
            edits=(
                Edit(
                    DELETING,
                    "if is_deleted and branches.read_open(branch).record.token == record.token:",
                    "if is_deleted:",
                ),
            ),
            caught_by="D | commit | reap",
        ),
        None,
    ),
    (
        Mutant(
            name="a change of the metadata replaces what came since",
            rule="20",
            edits=(
                Edit(
                    CHANGING,
                    "ctx.kv.set_if(key, replaced, encode(entry), once=True)",
                    "ctx.kv.set(key, encode(entry)) is None",
                ),
            ),
            caught_by="M | overwrite, over a commit",
        ),
        None,
    ),
    (
        Mutant(
            name="a changed entry has no reference",
            rule="1",
            edits=(Edit(CHANGING, "current.token is not None and is_own(entry.address)", "False"),),
            caught_by="M | overwrite | hard delete",
        ),
        None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("mutant", "judge"), MUTANTS, ids=lambda value: getattr(value, "name", ""))
def test_a_fault_in_it_is_caught(mutant: Mutant, judge: Judge | None) -> None:
    plan = BY_NAME[mutant.caught_by]
    judged = plan if judge is None else JudgedPlan(replace(plan, lossy=""), judge)
    check_is_caught(mutant, judged, states_max=STATES, walks=WALKS_OF_MUTANTS)
