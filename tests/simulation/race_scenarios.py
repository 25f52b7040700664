"""The scenarios of races for one thing: a free path, the place of an entry, a path that is moved, a name of a ref.

Of those who are after it one gets it at most, the others hear so, and what is written since stays (rules 6, 19, 20).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from refstore.operations.upload import Link
from refstore.public_types import Entry
from refstore.records.branch_records import StoredBranch, decode_branch
from tests.kit.domain import contents_of
from tests.kit.steps import Interned
from tests.simulation import calls as do
from tests.simulation.calls import BODIES, COMMIT, HARD_DELETE, MOVE, OVERWRITE_2, REAP, Call, Promise
from tests.simulation.plans import Plan, plan
from tests.simulation.promises import Judge, Outcomes
from tests.simulation.worlds import Start, issued, m1


def races() -> Iterator[Plan]:
    yield from _for_free_paths()
    yield from _for_places_of_entries()
    yield from _for_moves()
    yield from _for_names()


def create(path: str, body: str) -> Call:
    return do.call(
        f"create {path} {body}",
        lambda tools: tools.repo.upload("main", path, BODIES[body], if_absent=True),
        Promise("main", path, BODIES[body]),
    )


def put(start: Start, body: str) -> Call:
    expected = _read(start)
    return do.call(
        f"put p {body}",
        lambda tools: tools.repo.upload("main", "p", BODIES[body], if_entry=expected),
        Promise("main", "p", BODIES[body]),
    )


def link(start: Start, *, if_absent: bool = False) -> Call:
    """Of the issued address, if nothing is at the path, or what was there."""
    given = Link(path="p", token=start.token, if_absent=if_absent, if_entry=None if if_absent else _read(start))
    return do.call("link p", lambda tools: tools.repo.link_many("main", [given]), Promise("main", "p", BODIES["P9"]))


def remove(start: Start) -> Call:
    expected = _read(start)
    return do.call("remove p", lambda tools: tools.repo.delete_if_entry("main", "p", expected), Promise("main"))


def change() -> Call:
    def change_type(entry: Entry) -> Entry:
        return entry.replace(content_type="a/b")

    return do.call("change p", lambda tools: tools.repo.change_metadata("main", "p", change_type))


def _read(start: Start) -> Entry:
    return start.repo.resolve(start.repo.default_branch, "p").entry


def committed() -> Start:
    return Start().committed("main", "c0", p="P0")


def deleted() -> Start:
    """p is committed, and deleted since: a tombstone is in the way."""
    start = committed()
    start.repo.delete("main", "p")
    return start


def one_winner(refusal: str) -> Judge:
    """Make the judge of two calls: one of them ends well, and the other hears this error."""

    def judge(said: Outcomes, _store: Mapping[int, int], _names: Interned) -> str | None:
        ends = sorted(str(one) for outcome in said.values() for one in outcome)
        return None if ends == [refusal, "ok"] else f"they ended so: {said}"

    return judge


def one_at_most(labels: str) -> Judge:
    def judge(said: Outcomes, _store: Mapping[int, int], _names: Interned) -> str | None:
        winners = [name for name in said if "ok" in said[name] and name in labels]
        return None if len(winners) < 2 else f"they ended so: {said}"

    return judge


def _and_alone(two: Plan, judge: Judge) -> Iterator[Plan]:
    """Two of whom one wins; and without lost replies, which leave a caller without a word on who was first."""
    yield two
    yield replace(two, name=f"{two.name}, one wins", lossy="", judge=judge, visited_whole=True)


def _for_free_paths() -> Iterator[Plan]:
    """They write by a `set_if` over nothing, or over a tombstone. Both come back, which no other expected value does:
    made again after a lost reply it could land twice, the second time under a reference that somebody has released in
    between.
    """
    new, over = create("n", "P1"), create("p", "P1")
    judge = one_winner("AlreadyExists")
    both = {"A": [new], "B": [create("n", "P2")]}
    yield from _and_alone(plan("if absent: A | B", Start, both, lossy="AB", keeps="AB"), judge)
    over_both = {"A": [over], "B": [create("p", "P2")]}
    over_tombstone = plan("if absent: A | B over a tombstone", deleted, over_both, lossy="A", keeps="AB")
    yield from _and_alone(over_tombstone, judge)
    linked = plan(
        "if absent: link L | A",
        issued,
        lambda start: {"L": [link(start, if_absent=True)], "A": [over]},
        lossy="L",
        keeps="LA",
    )
    yield from _and_alone(linked, judge)
    yield plan("if absent: A | B | commit", m1, {**both, "C": [COMMIT]}, keeps="AB", safety_only=True)
    committing = {"A": [new], "C": [COMMIT], "R": [REAP]}
    yield plan("if absent: A | commit | reap", m1, committing, "A", lossy="A", keeps="A", safety_only=True)
    for name, world, tasks in (
        ("A | reset | reap", m1, {"A": [new], "S": [do.reset("main")], "R": [REAP]}),
        (
            "A | delete | hard delete, over a tombstone",
            deleted,
            {"A": [over], "D": [do.delete("main", "p")], "H": [HARD_DELETE]},
        ),
        (
            "A | reset of the path | hard delete",
            m1,
            {"A": [new], "S": [do.reset_path("main", "n")], "H": [HARD_DELETE]},
        ),
        (
            "A | overwrite; delete | hard delete",
            m1,
            {"A": [new], "O": [do.upload("main", ("n", "P2")), do.delete("main", "n")], "H": [HARD_DELETE]},
        ),
    ):
        yield plan(f"if absent: {name}", world, tasks, lossy="A", safety_only=True)

    def always_told(said: Outcomes, _store: Mapping[int, int], _names: Interned) -> str | None:
        return None if said == {"A": ("ok",)} else f"nobody else was there, and it ended so: {said}"

    yield plan("if absent: A, whose reply is lost", Start, {"A": [new]}, lossy="A", keeps="A", judge=always_told)


def _for_places_of_entries() -> Iterator[Plan]:
    def both(start: Start) -> dict[str, list[Call]]:
        return {"A": [put(start, "P1")], "B": [put(start, "P2")]}

    judge = one_winner("PathChanged")
    for two in (
        plan("if entry: A | B", m1, both, lossy="A", keeps="AB"),
        plan("if entry: A | B over a commit", committed, both, lossy="AB", keeps="AB"),
        plan(
            "if entry: link L | A",
            lambda: committed().issued(),
            lambda start: {"L": [link(start)], "A": [put(start, "P1")]},
            lossy="L",
            keeps="LA",
        ),
        plan(
            "if entry: D | A", m1, lambda start: {"D": [remove(start)], "A": [put(start, "P1")]}, lossy="D", keeps="DA"
        ),
        plan(
            "if entry: D | D over a commit",
            committed,
            lambda start: {"D": [remove(start)], "E": [remove(start)]},
            keeps="DE",
        ),
    ):
        yield from _and_alone(two, judge)
    yield plan(
        "if entry: A | B | commit",
        m1,
        lambda start: {**both(start), "C": [COMMIT]},
        keeps="AB",
        safety_only=True,
        judge=one_at_most("AB"),
    )
    yield plan(
        "if entry: A | create", m1, lambda start: {"A": [put(start, "P1")], "N": [create("n", "P2")]}, keeps="AN"
    )
    yield plan(
        "if entry: A | overwrite | hard delete",
        m1,
        lambda start: {"A": [put(start, "P1")], "O": [OVERWRITE_2], "H": [HARD_DELETE]},
        keeps="O",
        safety_only=True,
    )
    yield plan(
        "if entry: A | reset of the path | hard delete, over a commit",
        committed,
        lambda start: {"A": [put(start, "P1")], "S": [do.reset_path("main", "p")], "H": [HARD_DELETE]},
        lossy="A",
        safety_only=True,
    )
    yield plan(
        "if entry: M | overwrite, over a commit", committed, {"M": [change()], "O": [OVERWRITE_2]}, lossy="M", keeps="O"
    )
    yield plan(
        "if entry: M | overwrite | hard delete",
        m1,
        {"M": [change()], "O": [OVERWRITE_2], "H": [HARD_DELETE]},
        lossy="M",
        keeps="O",
        safety_only=True,
    )
    for label, keeps in (("A", "A"), ("D", ""), ("M", "")):
        yield plan(
            f"if entry: {label} | commit | reap",
            m1,
            lambda start, label=label: {
                label: [{"A": lambda: put(start, "P1"), "D": lambda: remove(start), "M": change}[label]()],
                "C": [COMMIT],
                "R": [REAP],
            },
            label,
            lossy=label,
            keeps=keeps,
            safety_only=True,
        )


def _for_moves() -> Iterator[Plan]:
    """Of several moves of one path one moves it, and the others take their copies back (rule 6)."""
    both = {"M": [MOVE], "N": [do.move("main", "p", "r")]}
    one_moves: dict[str, Any] = {"keeps": "MN", "judge": one_at_most("MN")}
    yield plan("moves: M | N", m1, both, lossy="MN", **one_moves)
    yield plan("moves: M | N over a commit", committed, both, **one_moves)
    yield plan("moves: M | N | hard delete", m1, {**both, "H": [HARD_DELETE]}, "M", **one_moves)
    yield plan("moves: M | N | commit", m1, {**both, "C": [COMMIT]}, safety_only=True, **one_moves)


def _for_names() -> Iterator[Plan]:
    """A branch and a tag of one name, created at once: never both stay, and both were told (rule 19)."""
    tag, branch = do.create_tag("v1", "main"), do.create_branch("v1", "main")
    gone = do.delete_branch("v1")

    def named_v1() -> Start:
        start = Start()
        start.repo.create_branch("v1", source="main")
        return start

    more: dict[str, Any] = {"judge": not_both, "remembers": "TSN"}
    two = {"T": [tag], "N": [branch]}
    yield plan("tag | branch", Start, two, "TN", keeps="N", **more)
    yield plan("lost reply: tag | branch", Start, two, lossy="TN", keeps="N", **more)
    both_gone = {"T": [tag, do.delete_tag("v1")], "N": [branch, gone], "G": [REAP]}
    yield plan("tag; delete it | branch; delete it | reap", Start, both_gone, "TN", **more)
    yield plan("tag | delete the branch | branch", named_v1, {**two, "D": [gone]}, "D", **more)
    yield plan("tag | branch | tag", Start, {**two, "S": [tag]}, "N", keeps="N", **more)
    uploading = {"T": [tag], "N": [branch, do.upload("v1", ("q", "P1"))]}
    yield plan("tag | branch; upload", Start, uploading, "TN", keeps="N", **more)


def not_both(said: Outcomes, store: Mapping[int, int], names: Interned) -> str | None:
    """Judge by what has the name `v1` at the end, and by what those who made a tag of it were told."""
    contents, _ = contents_of(store, names)
    tags = [key for key in contents if key.partition.endswith("/tags") and key.name == "v1"]
    branches = [
        key
        for key, value in contents.items()
        if key.partition.endswith("/branches") and key.name == "v1" and isinstance(decode_branch(value), StoredBranch)
    ]
    of_tags = [said[label][0] for label in "TS" if label in said]
    if tags and branches and ("ok" in of_tags or "crashed" not in of_tags):
        return f"v1 is a branch and a tag, and they ended so: {dict(said)}"
    return None
