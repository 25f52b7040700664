"""A branch and a tag of one name, created at once, under every interleaving: never both stay, and both were told."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from refstore.records.branch_records import Branch, decode_branch
from tests.kit.domain import contents_of
from tests.kit.steps import Interned
from tests.simulation import calls as do
from tests.simulation.calls import REAP
from tests.simulation.judging import JudgedPlan, Outcomes, check_holds, check_is_caught
from tests.simulation.plans import Plan, plan
from tests.simulation.planting import Edit, Mutant
from tests.simulation.worlds import Start

STATES = 4000
WALKS = 100
BRANCHES = "refstore.versioning.branches:Branches"

TAG = do.create_tag("v1", "main")
BRANCH = do.create_branch("v1", "main")


def named_v1() -> Start:
    start = Start()
    start.repo.create_branch("v1", "main")
    return start


PLANS = [
    plan("tag | branch", Start, {"T": [TAG], "N": [BRANCH]}, "TN", keeps="N"),
    plan("lost reply: tag | branch", Start, {"T": [TAG], "N": [BRANCH]}, lossy="TN", keeps="N"),
    plan(
        "tag; delete it | branch; delete it | reap",
        Start,
        {"T": [TAG, do.delete_tag("v1")], "N": [BRANCH, do.delete_branch("v1")], "G": [REAP]},
        "TN",
    ),
    plan("tag | delete the branch | branch", named_v1, {"T": [TAG], "D": [do.delete_branch("v1")], "N": [BRANCH]}, "D"),
    plan("tag | branch | tag", Start, {"T": [TAG], "N": [BRANCH], "S": [TAG]}, "N", keeps="N"),
    plan("tag | branch; upload", Start, {"T": [TAG], "N": [BRANCH, do.upload("v1", ("q", "P1"))]}, "TN", keeps="N"),
]
BY_NAME = {each.name: each for each in PLANS}


def not_both(said: Outcomes, store: Mapping[int, int], names: Interned) -> str | None:
    """Judge by what has the name `v1` at the end, and by what those who made a tag of it were told."""
    contents, _ = contents_of(store, names)
    tags = [key for key in contents if key.partition.endswith("/tags") and key.name == "v1"]
    branches = [
        key
        for key, value in contents.items()
        if key.partition.endswith("/branches") and key.name == "v1" and isinstance(decode_branch(value), Branch)
    ]
    of_tags = [said[label][0] for label in "TS" if label in said]
    if tags and branches and ("ok" in of_tags or "crashed" not in of_tags):
        return f"v1 is a branch and a tag, and they ended so: {dict(said)}"
    return None


def judge_names(plan: Plan) -> JudgedPlan:
    return JudgedPlan(plan, not_both, remembers="TSN")


@pytest.mark.parametrize("judged", PLANS, ids=lambda each: each.name)
def test_a_branch_and_a_tag_never_share_a_name(judged: Plan) -> None:
    check_holds(judge_names(judged), states_max=STATES, walks=WALKS)


MUTANTS = [
    Mutant(
        name="a branch looks for a tag before it reserves the name",
        rule="19",
        edits=(
            Edit(
                f"{BRANCHES}.create",
                "    if not self._kv.set_if(self.key(name), ABSENT, reserved)",
                "    tagged = self.has_tag(name)\n    if not self._kv.set_if(self.key(name), ABSENT, reserved)",
            ),
            Edit(f"{BRANCHES}.create", "if self.has_tag(name)", "if tagged"),
        ),
        caught_by="tag | branch",
    ),
    Mutant(
        name="a tag looks for a branch before it only",
        rule="19",
        edits=(
            Edit(
                "refstore.operations.tag:create_tag",
                "        _check_no_branch(ctx, name)\n    except",
                "    except",
            ),
        ),
        caught_by="tag | branch",
    ),
    Mutant(
        name="a refused tag stays",
        rule="19",
        edits=(Edit("refstore.operations.tag:create_tag", "ctx.kv.set_if(key, ours, ABSENT)", "pass"),),
        caught_by="tag | branch",
    ),
    Mutant(
        name="a reserved name counts as free",
        rule="19",
        edits=(
            Edit(
                f"{BRANCHES}.has_branch",
                "record.retired_tokens or self._kv.set_if(key, raw, ABSENT)",
                "True",
            ),
        ),
        caught_by="tag | branch",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_in_it_is_caught(mutant: Mutant) -> None:
    check_is_caught(mutant, judge_names(BY_NAME[mutant.caught_by]), states_max=STATES, walks=WALKS)
