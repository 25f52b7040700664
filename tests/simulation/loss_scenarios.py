"""The scenarios of a KV that loses writes (rule 21): those of the model that tell most, on the real code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tests.kit import guarded_reaping, purging
from tests.kit.domain import NO_AGES
from tests.simulation import calls as do
from tests.simulation.calls import COMMIT, COPY, OVERWRITE, RESET, Call
from tests.simulation.plans import Calls, Plan, plan
from tests.simulation.purge_scenarios import purge
from tests.simulation.worlds import Start, grace, m1

REAP = Call(guarded_reaping.reap(1), unbounded=True)
REAP_AGAIN = Call(guarded_reaping.reap(2), unbounded=True)
SCRUB = Call(guarded_reaping.scrub_all(1), unbounded=True)

END_BACKUPS = Call((purging.clean(1, fence=True),), unbounded=True)
END_BACKUPS_AGAIN = Call((purging.clean(2, fence=True),), unbounded=True)

WHOLE = ("rest",)
LOCATIONS = ("locations", "rest")
REFERENCES = ("references", "rest")
ENTRIES = ("entries", "rest")
MARKERS = ("markers", "rest")
BRANCHES = ("branches", "rest")


def lose(shard: str) -> Call:
    """Writes are lost, and another server answers."""
    marked, lost = back_up(shard), do.call("lose", lambda tools: tools.stores.lose(shard, "2"))
    return Call((*marked.stages, *lost.stages), unbounded=True)


def back_up(shard: str) -> Call:
    return do.call("mark", lambda tools: tools.stores.mark(shard))


def put_back(shard: str) -> Call:
    """The copy is put back, and nobody can tell from the server that it was."""
    return do.call("lose", lambda tools: tools.stores.lose(shard, ""))


def switch(shard: str) -> Call:
    return replace(do.call("switch", lambda tools: tools.stores.switch(shard, "2")), unbounded=True)


def losses() -> Iterator[Plan]:
    def losing(
        name: str,
        world: Callable[[], Start],
        shards: tuple[str, ...],
        tasks: Mapping[str, Calls],
        crash: str = "",
        **more: object,
    ) -> Plan:
        more = {"safety_only": True, "refused": "".join(tasks), **more}
        return plan(name, world, tasks, crash, shards=shards, **more)

    yield losing(
        "switch: reset; reap | switch", m1, WHOLE, {"R": [RESET, REAP], "W": [switch("rest")]}, safety_only=False
    )
    yield losing("loss: reset; reap", m1, WHOLE, {"R": [RESET, REAP], "W": [lose("rest")]})
    yield losing("loss: commit | reap", m1, WHOLE, {"C": [COMMIT], "G": [REAP], "W": [lose("rest")]}, "C")
    yield losing("loss: overwrite | reap", m1, WHOLE, {"U": [OVERWRITE], "G": [REAP, REAP_AGAIN], "W": [lose("rest")]})
    yield losing(
        "loss of references: copy; reset; reap",
        m1,
        REFERENCES,
        {"K": [COPY, RESET, REAP, REAP_AGAIN], "W": [lose("references")]},
    )
    yield losing(
        "loss of references: copy; reset | reap | reap",
        m1,
        REFERENCES,
        {"K": [COPY, RESET], "G": [REAP], "H": [REAP_AGAIN], "W": [lose("references")]},
    )
    yield losing(
        "loss of entries: overwrite; reap", m1, ENTRIES, {"U": [OVERWRITE, REAP, REAP_AGAIN], "W": [lose("entries")]}
    )
    yield losing(
        "loss of branches: reset; reap; scrub", m1, BRANCHES, {"R": [RESET, REAP, SCRUB], "W": [lose("branches")]}
    )
    yield losing(
        "loss of markers: commit; reap; scrub", m1, MARKERS, {"C": [COMMIT, REAP, SCRUB], "W": [lose("markers")]}
    )
    yield losing(
        "copy put back: of before a commit, reaped; reset; reap",
        m1,
        WHOLE,
        {"C": [back_up("rest"), COMMIT, REAP, put_back("rest"), RESET, REAP_AGAIN]},
    )
    yield losing(
        "copy put back: of before a commit; reset; reap",
        m1,
        WHOLE,
        {"C": [back_up("rest"), COMMIT, put_back("rest"), RESET, REAP]},
    )

    yield from purges_and_losses()

    def witnessed() -> Start:
        return grace(replace(NO_AGES, witness="always"))

    yield plan(
        "loss: witnessed restore | reap; reap",
        witnessed,
        lambda start: {
            "E": [do.restore("main", "z", start.addresses["P5"])],
            "G": [REAP, REAP_AGAIN],
            "W": [lose("rest")],
        },
        shards=WHOLE,
        safety_only=True,
        refused="EGW",
    )


def purges_and_losses() -> Iterator[Plan]:
    """Where the content of a purged object lies survives the KV before its backup ends (rule 22)."""
    yield plan(
        "loss of locations: purge; end of backups",
        m1,
        lambda start: {"P": [purge(start), END_BACKUPS], "W": [lose("locations")]},
        "P",
        shards=LOCATIONS,
        safety_only=True,
        refused="PW",
    )
    yield plan(
        "loss of locations: purge | end of backups; end of backups",
        m1,
        lambda start: {"P": [purge(start)], "X": [END_BACKUPS, END_BACKUPS_AGAIN], "W": [lose("locations")]},
        shards=LOCATIONS,
        safety_only=True,
        refused="PXW",
    )
    yield plan(
        "copy put back: of before a purge; end of backups",
        m1,
        lambda start: {"P": [back_up("rest"), purge(start), END_BACKUPS, put_back("rest"), END_BACKUPS_AGAIN]},
        shards=WHOLE,
        safety_only=True,
        refused="P",
    )
