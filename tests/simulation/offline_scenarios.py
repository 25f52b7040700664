"""The scenarios of the offline job: the product's marks, with the plain collection of `tests.kit.collecting` around
them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation import calls as do
from tests.simulation.calls import COMMIT, COMMIT_2, HARD_DELETE, MERGE, OVERWRITE, REAP, RESET, Call
from tests.simulation.collecting import (
    collect,
    collect_given_up,
    collect_part,
    drop_late_pins,
    go_on,
    mark,
    mark_late,
    sweep,
    unmark_untouched_and_sweep,
)
from tests.simulation.plans import Calls, Plan, plan
from tests.simulation.worlds import (
    Start,
    m1,
    old,
    old_appended,
    old_begun,
    old_both_marked,
    old_complete,
    old_grace,
    old_head,
    old_line_begun,
    old_marked,
    old_parts,
    old_shared,
    old_staged,
    side,
)


def gc(start: Start) -> Call:
    return collect(start.commits["c0"])


def copy_old(start: Start) -> Call:
    return do.copy(start.commits["c0"], "p", "feat", "z")


def collections() -> Iterator[Plan]:
    """The offline job: the product's marks, with the plain collection of `tests.kit.collecting` around them."""

    yield plan(
        "gc | copy from an expired commit | commit+reap",
        old,
        lambda start: {"X": [gc(start)], "K": [copy_old(start)], "C": [do.commit("feat", "c2"), REAP]},
        "KX",
    )
    yield plan(
        "gc | branch at an expired commit",
        old,
        lambda start: {
            "X": [gc(start)],
            "N": [do.create_branch("late", start.commits["c0"])],
            "U": [do.upload("main", ("p", "P2"))],
        },
        "XN",
        keeps="UN",
    )
    yield plan(
        "gc | upload; commit; reap",
        old,
        lambda start: {"X": [gc(start)], "U": [do.upload("main", ("p", "P2")), COMMIT_2, REAP]},
        "XU",
        keeps="U",
    )
    yield plan(
        "gc | commit of a reference-less copy; reap",
        old_staged,
        lambda start: {"X": [gc(start)], "C": [do.commit("feat", "c2"), REAP]},
        "XC",
    )
    yield plan(
        "gc | merge feat->main; delete branch feat",
        side,
        lambda start: {"X": [gc(start)], "M": [MERGE], "D": [do.delete_branch("feat")]},
        "X",
    )
    yield plan(
        "gc | cherry-pick of an unmarked commit | delete branch feat",
        side,
        lambda start: {
            "X": [gc(start)],
            "M": [do.cherry_pick("main", start.commits["c2"])],
            "D": [do.delete_branch("feat")],
        },
        "X",
    )
    yield plan(
        "gc | revert to an expired commit's tree",
        old,
        lambda start: {"X": [gc(start)], "M": [do.revert("feat", start.commits["c1"])], "G": [REAP]},
        "X",
    )
    yield plan(
        "gc | copy from an unmarked commit | delete its branch",
        side,
        lambda start: {
            "X": [gc(start)],
            "K": [do.copy(start.commits["c2"], "z", "main", "z")],
            "D": [do.delete_branch("feat")],
        },
        "X",
        keeps="K",
    )


def complete() -> Iterator[Plan]:
    """Commits that have expired, and of which nothing goes: their run unmarks them."""

    yield plan(
        "gc of a complete commit | copy from it | delete; commit",
        old_appended,
        lambda start: {
            "X": [gc(start)],
            "K": [copy_old(start)],
            "D": [do.delete("main", "p"), do.commit("main", "c2")],
        },
        "X",
    )
    yield plan(
        "complete; mark and sweep with what held its data | copy from it",
        old_complete,
        lambda start: {"X": [collect(start.commits["c0"], start.commits["c1"])], "K": [copy_old(start)]},
        "X",
    )
    yield plan(
        "sweep of the mark before | unmark what a sweep leaves; sweep | copy from it",
        old_both_marked,
        lambda start: {
            "X": [unmark_untouched_and_sweep(start.mark_id, *start.candidates)],
            "Y": [sweep(*start.earlier_mark)],
            "K": [do.copy(start.commits["c1"], "p", "feat", "a")],
        },
        "X",
    )
    yield plan(
        "gc of two, one a head | copy from the older | delete the head's branch",
        old_line_begun,
        lambda start: {"X": [go_on(start.mark_id)], "K": [copy_old(start)], "D": [do.delete_branch("late")]},
    )


def marks() -> Iterator[Plan]:
    """Unmark, re-check, pins, heads and tags; runs that take over from one another."""

    def back(start: Start) -> Call:
        return do.unmark(start.commits["c0"])

    def swept(start: Start) -> Call:
        return sweep(start.mark_id, *start.candidates)

    moving: Calls = [do.move("feat", "z", "y")]
    late: Calls = [do.delete_branch("late")]
    yield plan(
        "gc | unmark; copy from it",
        old,
        lambda start: {"X": [gc(start)], "U": [back(start), copy_old(start)]},
        "XU",
        keeps="U",
    )
    yield plan(
        "gc | unmark; branch at it",
        old,
        lambda start: {"X": [gc(start)], "U": [back(start), do.create_branch("late", start.commits["c0"])]},
        "XU",
        keeps="U",
    )
    yield plan(
        "sweep | unmark; copy from it | mark by another run",
        old_marked,
        lambda start: {"X": [swept(start)], "U": [back(start), copy_old(start)], "Y": [mark(start.commits["c0"])]},
        "XY",
        keeps="U",
    )
    yield plan(
        "sweep | unmark the run; copy from it",
        old_marked,
        lambda start: {"X": [swept(start)], "U": [do.unmark(start.mark_id), copy_old(start)]},
        "XU",
        keeps="U",
    )
    yield plan(
        "sweep | sweep | unmark; copy from it",
        old_marked,
        lambda start: {"X": [swept(start)], "Y": [swept(start)], "U": [back(start), copy_old(start)]},
        "X",
        keeps="U",
    )
    yield plan(
        "mark and sweep | unmark under the mark before; copy from it",
        old_shared,
        lambda start: {"X": [collect(start.commits["c1"])], "U": [back(start), copy_old(start)]},
        "X",
        keeps="U",
    )
    yield plan(
        "mark and sweep | sweep of the mark before",
        old_shared,
        lambda start: {"X": [collect(start.commits["c1"])], "Y": [swept(start)]},
        "XY",
    )
    yield plan(
        "mark and sweep | mark and sweep | move of a reference-less staged entry",
        old_staged,
        lambda start: {"X": [gc(start)], "Y": [collect()], "M": moving},
        "X",
        keeps="M",
    )
    yield plan(
        "taken over: mark | mark and sweep of nothing | copy from it",
        old_begun,
        lambda start: {
            "X": [mark_late(start.mark_id, start.commits["c0"])],
            "Y": [collect()],
            "K": [copy_old(start)],
        },
        "X",
        keeps="K",
    )
    yield plan(
        "taken over: mark and sweep | mark of nothing | move of a reference-less staged entry",
        lambda: old_staged().begin("c0"),
        lambda start: {"X": [go_on(start.mark_id)], "Y": [mark()], "M": moving},
        "X",
        keeps="M",
        refused="",
    )
    yield plan(
        "taken over: drop pins | mark and sweep | move of a reference-less staged entry",
        lambda: old_staged().begin(),
        lambda start: {"X": [drop_late_pins()], "Y": [gc(start)], "M": moving},
        keeps="M",
    )
    yield plan(
        "gc | move of a reference-less staged entry", old_staged, lambda start: {"X": [gc(start)], "M": moving}, "XM"
    )
    yield plan(
        "gc | move of a reference-less staged entry | commit",
        old_staged,
        lambda start: {"X": [gc(start)], "M": moving, "C": [do.commit("feat", "c2")]},
        keeps="M",
    )
    yield plan(
        "gc | branch at an expired commit (crash) | copy from it; delete it",
        old,
        lambda start: {
            "X": [gc(start)],
            "N": [do.create_branch("late", start.commits["c0"])],
            "K": [do.copy("late", "p", "main", "z"), *late],
        },
        "N",
    )
    yield plan(
        "gc | tag at an expired commit | delete the tag",
        old,
        lambda start: {"X": [gc(start)], "N": [do.create_tag("v1", start.commits["c0"])], "D": [do.delete_tag("v1")]},
        "XN",
    )
    yield plan(
        "gc of a head | delete the branch | copy from it",
        old_head,
        lambda start: {"X": [gc(start)], "D": late, "K": [do.copy("late", "p", "main", "z")]},
        "X",
    )
    yield plan(
        "gc | restore | hard delete",
        old_grace,
        lambda start: {"X": [gc(start)], "E": [do.restore("main", "p", start.addresses["P5"])], "H": [HARD_DELETE]},
        "XE",
        keeps="E",
    )
    yield plan(
        "gc of a part | copy of the part | copy of the rest",
        old_parts,
        lambda start: {
            "X": [collect_part(start.commits["c0"], "logs")],
            "K": [do.copy(start.commits["c0"], "logs", "feat", "z")],
            "L": [do.copy(start.commits["c0"], "p", "feat", "y")],
        },
        "X",
        keeps="KL",
    )
    overwritten: Calls = [COMMIT, OVERWRITE, COMMIT_2]
    yield plan(
        "gc of what never landed | commit; overwrite; commit",
        m1,
        {"X": [collect_given_up()], "C": overwritten},
        "XC",
        keeps="C",
        nothing_marked=True,
    )
    yield plan(
        "gc of what never landed | commit | reset",
        m1,
        {"C": [COMMIT], "R": [RESET], "X": [collect_given_up()]},
        "C",
        nothing_marked=True,
    )
