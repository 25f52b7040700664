"""The plan of the demo: the steps of each client, made from the sources and a seed.

    main      three clients upload every source; a fourth one commits all the while
    etl       overwrites, moves and deletes what is committed, then overwrites what it has just staged, and commits
              twice
    ml        links addresses that an external writer wrote to, and leaves some unlinked; takes what `doomed` moves over
    scratch   uploads; hands some of it to etl while it is staged only; is reset; uploads again, and leaves that staged
    doomed    uploads, moves some of it over to ml, and is deleted with the rest
    crash     one client is killed in the middle of its uploads; another one continues, and commits

No two clients write the same path of a branch. So the expected contents follow from the reports of each client.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from refstore.demo.steps import (
    AnyStep,
    CommitOftenStep,
    CommitStep,
    CopyStep,
    DeleteBranchStep,
    DeleteStep,
    Item,
    LinkStep,
    MoveStep,
    ResetStep,
    UploadStep,
    Way,
)

MAIN: Final = "main"
ETL: Final = "etl"
ML: Final = "ml"
SCRATCH: Final = "scratch"
DOOMED: Final = "doomed"
CRASH: Final = "crash"

VICTIM: Final = "victim"
VICTIM_BATCH: Final = 20
"""Small, so that it has many batches in whose middle it can be killed."""
VICTIM_ROUNDS: Final = 1000
"""How often it uploads the same paths: so often that it is killed before it ends."""

Steps = list[AnyStep]


class Plan(NamedTuple):
    uploaders: dict[str, Steps]
    """By the client's name."""
    committer: Steps
    """Works until its standard input ends."""
    branch_clients: dict[str, Steps]
    """VICTIM among them."""
    survivor: Steps
    """Continues on the branch of the killed client after its death."""
    last: Steps
    """The files that stay staged on main."""


def plan(names: Sequence[str], seed: int) -> Plan:
    """Make the plan. `names`: the names of the sources; a few dozen are needed so that each client has steps."""
    chosen = _Chooser(names, seed)
    every = [Item(f"lib/{name}", number) for number, name in enumerate(names)]
    return Plan(
        uploaders={f"uploader-{part + 1}": [UploadStep(MAIN, every[part::3])] for part in range(3)},
        committer=[CommitOftenStep(MAIN, every_seconds=0.7)],
        branch_clients={
            "etl": _etl(chosen),
            "ml": _ml(chosen),
            "scratch": _scratch(chosen),
            "doomed": _doomed(chosen),
            VICTIM: [UploadStep(CRASH, chosen.items(0.10, "victim/"), VICTIM_BATCH, VICTIM_ROUNDS)],
        },
        survivor=[UploadStep(CRASH, chosen.items(0.04, "survivor/")), CommitStep(CRASH, "what there is after a crash")],
        last=[UploadStep(MAIN, chosen.items(0.02, "inbox/"))],
    )


class _Chooser:
    def __init__(self, names: Sequence[str], seed: int) -> None:
        self._names = names
        self._rng = random.Random(seed)  # noqa: S311  # a choice that can be repeated, no secret
        self._fresh = list(range(len(names)))
        self._rng.shuffle(self._fresh)

    def items(self, share: float, folder: str) -> list[Item]:
        return [
            Item(folder + self._names[number], number)
            for number in self._rng.sample(range(len(self._names)), self._count(share))
        ]

    def others(self, items: Sequence[Item]) -> list[Item]:
        """Return the same paths with other content."""
        return [Item(item.path, self._rng.randrange(len(self._names))) for item in items]

    def committed(self, share: float) -> list[Item]:
        """Choose paths that main has committed; never the same path twice."""
        taken = [self._fresh.pop() for _ in range(min(self._count(share), len(self._fresh)))]
        return [Item(f"lib/{self._names[number]}", number) for number in taken]

    def _count(self, share: float) -> int:
        return max(2, round(share * len(self._names)))


def _etl(chosen: _Chooser) -> Steps:
    changed = chosen.committed(0.12)
    moved = chosen.committed(0.05)
    again = changed[: len(changed) // 2]
    return [
        UploadStep(ETL, chosen.others(changed)),
        MoveStep(ETL, [Way(item.path, item.path.replace("lib/", "archive/", 1)) for item in moved]),
        DeleteStep(ETL, [item.path for item in chosen.committed(0.03)]),
        CommitStep(ETL, "changed, moved and deleted"),
        UploadStep(ETL, chosen.others(again)),
        UploadStep(ETL, chosen.others(again)),  # what was just staged is released at once
        CommitStep(ETL, "changed again"),
    ]


def _ml(chosen: _Chooser) -> Steps:
    items = chosen.items(0.12, "linked/")
    part = max(1, len(items) // 6)
    return [
        LinkStep(ML, linked=items[2 * part :], abandoned=items[part : 2 * part], unused=items[:part]),
        CommitStep(ML, "linked"),
    ]


def _scratch(chosen: _Chooser) -> Steps:
    items = chosen.items(0.15, "scratch/")
    shared = items[: len(items) // 3]
    return [
        UploadStep(SCRATCH, items),
        CopyStep(ETL, SCRATCH, [Way(item.path, item.path.replace("scratch/", "shared/", 1)) for item in shared]),
        CopyStep(SCRATCH, MAIN, [Way(item.path, "borrowed/" + item.path) for item in chosen.committed(0.03)]),
        ResetStep(SCRATCH),
        UploadStep(SCRATCH, chosen.items(0.05, "kept/")),
    ]


def _doomed(chosen: _Chooser) -> Steps:
    items = chosen.items(0.10, "doomed/")
    rescued = items[: max(1, len(items) // 3)]
    return [
        UploadStep(DOOMED, items),
        MoveStep(
            ML, [Way(item.path, item.path.replace("doomed/", "rescued/", 1)) for item in rescued], from_branch=DOOMED
        ),
        DeleteBranchStep(DOOMED),
    ]
