"""A branch and a tag of one name, created at once, under every interleaving: never both stay, and both were told."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

import pytest

from refstore.records.branch_records import Branch, decode_branch
from tests.kit.domain import contents_of
from tests.kit.explore import explore, row, told
from tests.kit.explorer import Scenario
from tests.kit.steps import Interned
from tests.simulation import calls as do
from tests.simulation.calls import REAP
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


class NotBoth:
    """A plan that is judged by what has the name `v1` at its end, besides."""

    def __init__(self, judged: Plan) -> None:
        self._plan = judged
        self.name = judged.name

    def scenario(self) -> Scenario:
        made = self._plan.scenario()
        kept = made.ends
        taggers = {task.label for task in made.tasks if task.label in "TS"}

        def ends(said: Mapping[str, tuple[Hashable, ...]], store: Mapping[int, int], names: Interned) -> str | None:
            contents, _ = contents_of(store, names)
            tags = [key for key in contents if key.partition.endswith("/tags") and key.name == "v1"]
            branches = [
                key
                for key, value in contents.items()
                if key.partition.endswith("/branches") and key.name == "v1" and isinstance(decode_branch(value), Branch)
            ]
            of_tags = [said[label][0] for label in taggers]
            if tags and branches and ("ok" in of_tags or "crashed" not in of_tags):
                return f"v1 is a branch and a tag, and they ended so: {dict(said)}"
            return kept(said, store, names) if kept is not None else None

        return replace(made, ends=ends, remembers=made.remembers | frozenset("TSN"))


@pytest.mark.parametrize("judged", PLANS, ids=lambda each: each.name)
def test_a_branch_and_a_tag_never_share_a_name(judged: Plan) -> None:
    found, explorer = explore(NotBoth(judged), states_max=STATES, walks=WALKS)
    print(row(found))
    assert found.violation is None, told(found.violation, explorer)
    assert found.ends
    idle = {key for key, outcomes in explorer.program.ended.items() if "ok" not in outcomes}
    assert not idle, f"never ended well: {sorted(idle)}"


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
    with mutant.planted():
        found, _ = explore(NotBoth(BY_NAME[mutant.caught_by]), states_max=STATES, walks=WALKS)
    assert found.violation is not None, f"{mutant.caught_by!r} holds although this fault is in it: {mutant.name}"
