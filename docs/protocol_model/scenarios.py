"""The scenarios of `scenarios.txt`. They name calls only, so they can drive any implementation of the flows.

    name of the scenario
        from STORE[, then CALL; CALL]
        LABEL: CALL; CALL | LABEL: CALL
        crash LABELS, lossy LABELS, late LABELS, keeps LABELS, somewhere LABELS, zero grace, expired COMMIT+COMMIT,
        leaves ADDRESS+ADDRESS, verdict WORD, safety only

A process is a label and the calls it makes, one after the other; a call is the name of a flow and its arguments,
`path=address` or `branch,path,path` where an argument has parts. The last line is left out where there is nothing to
say.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .calls import Call
from .starts import Start, start

FILE = Path(__file__).with_name("scenarios.txt")
FIRST = "the first 28"
"""The group of scenarios that the protocol's first model had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    group: str
    start: Start
    procs: dict[str, tuple[Call, ...]]
    crash: str = ""
    """Labels that may die at any step."""
    lossy: str = ""
    """Labels that may lose a reply at any mutating step; twice the label, two replies."""
    late: str = ""
    """Labels of which one such write may also land at any time after, even when its process has long gone on, or ended.
    """
    keeps: str = ""
    """Labels whose acknowledged writes must be readable at the end: nobody in the scenario may take them away."""
    somewhere: str = ""
    """Labels whose acknowledged uploads must be readable at the end, under whatever path."""
    zero_grace: bool = False
    expired: tuple[str, ...] = ()
    """Commits that the offline gc has been told to expire."""
    leaves: tuple[str, ...] = ()
    """Addresses that the reaper may be through with before their blob comes: it is left to the offline job, with no
    key.
    """
    shards: tuple[str, ...] = ()
    """The parts of the KV that may lose writes apart from each other, as `store.in_shard` reads them."""
    purges: bool = False
    """Whether content may lie elsewhere than its identity says."""
    goes_on: bool = False
    """Whether a run of the gc goes on from the run before it."""
    verdict: str = ""
    """What is violated, of a scenario that shows what is not promised."""
    safety_only: bool = False
    """Leaks are not looked for: the scenario makes what only the offline job can know."""

    @property
    def prunes(self) -> bool:
        """Whether the store is one that refstore does not own, which is pruned."""
        return any(call[0] == "prune" for calls in self.procs.values() for call in calls)

    @property
    def loses(self) -> bool:
        """Whether writes are lost: then only safety is demanded, as what was lost may leak, and calls may fail."""
        return bool(self.shards) and self.safety_only


def every() -> list[Scenario]:
    return [scenario for scenario in parse(FILE.read_text()) if not scenario.verdict]


def unsafe() -> list[Scenario]:
    """What is not promised: each is violated as it says."""
    return [scenario for scenario in parse(FILE.read_text()) if scenario.verdict]


def parse(text: str) -> list[Scenario]:
    found: list[Scenario] = []
    group = ""
    block: list[str] = []
    for line in [*text.splitlines(), "end"]:
        if not line.strip() or line.startswith("# "):
            continue
        if not line.startswith(" "):
            if block:
                found.append(scenario(group, *block))
                block = []
            if line.startswith("## "):
                group = line[3:]
                continue
        block.append(line.strip())
    return found


def scenario(group: str, name: str, origin: str, procs: str, options: str = "") -> Scenario:
    store, _, before = origin.removeprefix("from ").partition(", then ")
    labelled = [process.split(": ", 1) for process in procs.split(" | ")]
    chosen = dict(option.strip().rsplit(" ", 1) for option in options.split(",") if option.strip())
    shards = tuple(chosen["shards"].split("/")) if "shards" in chosen else ()
    return Scenario(
        name=name,
        group=group,
        start=start(store, *calls(before), shards=shards),
        procs={label: calls(made) for label, made in labelled},
        crash=chosen.get("crash", ""),
        lossy=chosen.get("lossy", ""),
        late=chosen.get("late", ""),
        keeps=chosen.get("keeps", ""),
        somewhere=chosen.get("somewhere", ""),
        zero_grace="zero" in chosen,
        expired=tuple(chosen["expired"].split("+")) if "expired" in chosen else (),
        leaves=tuple(chosen["leaves"].split("+")) if "leaves" in chosen else (),
        shards=shards,
        purges="purge " in f"{origin} {procs}" or "purge_all " in f"{origin} {procs}",
        goes_on="gc_again" in f"{origin} {procs}",
        verdict=chosen.get("verdict", ""),
        safety_only="safety" in chosen,
    )


def calls(text: str) -> tuple[Call, ...]:
    return tuple(tuple(argument(word) for word in call.split()) for call in text.split(";") if call.strip())


def argument(word: str) -> str | tuple[str, ...]:
    for separator in "=,":
        if separator in word:
            return tuple(word.split(separator))
    return word
