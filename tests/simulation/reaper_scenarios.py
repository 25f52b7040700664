"""The scenarios of the reaper: markers and hints, the ages of things, tokens of several pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from refstore.core.safety import Safety
from tests.simulation import calls as do
from tests.simulation.calls import (
    COMMIT,
    COPY,
    DELETE_P,
    HARD_DELETE,
    HARD_DELETE_ANY,
    OVERWRITE,
    PROCESS,
    REAP,
    REAP_PAGED,
    RESET,
    SCRUB,
    SCRUB_TOKENS,
    SCRUB_UNNAMED,
    UPLOAD_Q,
)
from tests.simulation.plans import EXPIRED_MS, Calls, Plan, plan
from tests.simulation.worlds import Start, after_reset, committed_m1, grace, issued_with_ages, m1, pq, two

AGES = Safety(grace_seconds=600, issue_seconds=600)
"""As in production, but for the window: an operation may take longer than grace."""

NO_GRACE = Safety(grace_seconds=0, issue_seconds=600)

EVERYTHING: Calls = [SCRUB, SCRUB_TOKENS]
TOKENS: Calls = [SCRUB_TOKENS]
UNNAMED: Calls = [SCRUB_UNNAMED]


def registry_markers_hints() -> Iterator[Plan]:
    def bare() -> Start:
        return m1(hinted=False)

    yield plan("delete p | delete p | reap", m1, {"D": [DELETE_P], "E": [DELETE_P], "G": [REAP]}, "D")
    yield plan(
        "shared: reset main | delete q on feat | reap",
        two,
        {"R": [RESET], "D": [do.delete("feat", "q")], "G": [REAP]},
        "RD",
    )
    reaping: Mapping[str, Calls] = {"G": [REAP], "H": [REAP], "S": [SCRUB]}
    yield plan("reap | reap | scrub", lambda: after_reset(m1()), reaping, "G")
    yield plan("markers: commit | reset", m1, {"C": [COMMIT], "R": [RESET]}, "CR")
    yield plan("markers: commit | reap | reap", m1, {"C": [COMMIT], "G": [REAP], "H": [REAP]})
    yield plan(
        "long upload | reset; reap | scrub", Start, {"U": [OVERWRITE], "R": [RESET, REAP], "S": [SCRUB]}, leaves=True
    )
    yield plan("markers: reap after commit | scrub", committed_m1, {"G": [REAP], "S": [SCRUB], "H": [REAP]}, "G")

    def shared() -> Start:
        start = two()
        start.repo.commit("main", "c1")
        start.repo.reset("main")
        return start

    copying: Calls = [do.copy("feat", "q", "main", "z")]
    yield plan(
        "markers: reap after commit; reset | scrub | copy p->feat",
        shared,
        {"G": [REAP], "S": [SCRUB], "K": copying},
        "G",
        keeps="K",
    )
    yield plan("hints: overwrite (crash) | reap | scrub", bare, {"U": [OVERWRITE], "G": [REAP], "S": [SCRUB]}, "UG")
    yield plan("hints: reset | reap (crash) | reap", bare, {"R": [RESET], "G": [REAP], "H": [REAP]}, "G")
    linking: Calls = [do.issue_and_link("main", "p")]
    yield plan(
        "hints: issue (crash); link | hard delete | scrub",
        Start,
        {"L": linking, "H": [HARD_DELETE], "S": [SCRUB]},
        "L",
        keeps="L",
    )
    yield plan(
        "hints: issue; link | scrub | expire (safety only)",
        Start,
        {"L": linking, "S": [SCRUB], "X": [HARD_DELETE]},
        "LX",
        safety_only=True,
        ahead_ms={"X": EXPIRED_MS},
    )
    yield plan(
        "hints: delete p | restore | hard delete | scrub",
        bare,
        lambda start: {
            "D": [DELETE_P],
            "E": [do.restore("main", "z", start.addresses["P0"])],
            "H": [HARD_DELETE],
            "S": [SCRUB],
        },
        "D",
        keeps="E",
    )


def clocks() -> Iterator[Plan]:
    """Worlds with ages, in which the clock goes on: past grace at any moment, past the longest operation when none is
    under way.
    """

    def aged(
        name: str,
        world: Callable[[Safety], Start],
        tasks: Callable[[Start], Mapping[str, Calls]],
        crash: str = "",
        safety: Safety = AGES,
        **more: object,
    ) -> Plan:
        return plan(name, lambda: world(safety), tasks, crash, clock_moves=True, **more)

    def bare(safety: Safety) -> Start:
        return Start(safety).staged("main", "p", "P0", hinted=False)

    def minutes(start: Start) -> Calls:
        return [do.set_clock(start.world.clock.now_ms() + 900_000, waits=False)]

    def hours(start: Start) -> Calls:
        return [do.set_clock(start.world.clock.now_ms() + 4 * 3_600_000, waits=True)]

    hard: Calls = [HARD_DELETE]
    yield aged(
        "clock past grace: delete p | restore | hard delete",
        bare,
        lambda start: {
            "D": [DELETE_P],
            "E": [do.restore("main", "z", start.addresses["P0"])],
            "H": hard,
            "T": minutes(start),
        },
        "D",
        keeps="E",
    )
    yield aged(
        "clock past grace: overwrite | copy p->feat | hard delete",
        bare,
        lambda start: {"U": [OVERWRITE], "K": [COPY], "H": hard, "T": minutes(start)},
        "U",
        keeps="UK",
    )
    yield aged(
        "clock past expiry: issue; link | hard delete",
        Start,
        lambda start: {"L": [do.issue_and_link("main", "p")], "H": hard, "T": minutes(start)},
        "L",
        keeps="L",
        safety_only=True,  # what is put after its address was reaped is the offline job's
    )
    yield aged(
        "clock past grace: upload | reset; process; scrub; clock; hard delete",
        Start,
        lambda start: {"U": [OVERWRITE], "R": [RESET, PROCESS, SCRUB, *minutes(start), HARD_DELETE]},
    )
    yield aged(
        "clock past all ages: upload | reset; reap | scrub",
        bare,
        lambda start: {"U": [UPLOAD_Q], "R": [RESET, REAP], "S": EVERYTHING, "T": hours(start)},
        "U",
    )
    yield aged(
        "registry: reset (crash) | scrub | upload",
        bare,
        lambda start: {"R": [RESET], "S": TOKENS, "U": [UPLOAD_Q], "T": hours(start)},
        "RU",
    )
    yield aged(
        "registry: commit (crash) | upload | scrub",
        bare,
        lambda start: {"C": [COMMIT], "U": [UPLOAD_Q], "S": TOKENS, "T": hours(start)},
        "C",
        keeps="U",
    )
    yield aged(
        "registry: late write | reset; reap | scrub",
        Start,
        lambda start: {"U": [OVERWRITE], "R": [RESET, REAP], "S": TOKENS, "T": hours(start)},
        "U",
    )
    yield aged(
        "registry: create branch (crash) | scrub | delete branch",
        bare,
        lambda start: {
            "N": [do.create_branch("late", "main")],
            "S": TOKENS,
            "D": [do.delete_branch("feat"), REAP],
            "T": hours(start),
        },
        "ND",
    )
    yield aged(
        "unnamed: upload (crash) | scrub",
        bare,
        lambda start: {"U": [UPLOAD_Q], "S": UNNAMED, "T": hours(start)},
        "U",
        keeps="U",
    )
    yield aged(
        "unnamed: overwrite | scrub | commit",
        bare,
        lambda start: {"T": hours(start), "U": [OVERWRITE], "S": UNNAMED, "C": [COMMIT]},
        safety=NO_GRACE,
        keeps="U",
    )
    yield aged(
        "unnamed: overwrite (crash) | scrub | copy p->feat",
        bare,
        lambda start: {"U": [OVERWRITE], "S": UNNAMED, "K": [COPY], "T": hours(start)},
        "UK",
        keeps="K",
    )
    yield aged(
        "unnamed: delete p (crash) | scrub | restore",
        bare,
        lambda start: {
            "D": [DELETE_P],
            "S": UNNAMED,
            "E": [do.restore("main", "z", start.addresses["P0"])],
            "T": hours(start),
        },
        "DE",
        keeps="E",
    )
    yield aged(
        "unnamed: move p->q (crash) | scrub",
        bare,
        lambda start: {"M": [do.move("main", "p", "q")], "S": UNNAMED, "T": hours(start)},
        "M",
        keeps="M",
    )
    yield aged(
        "unnamed: issue; link (crash) | scrub",
        bare,
        lambda start: {"L": [do.issue_and_link("main", "q")], "S": UNNAMED, "T": minutes(start), "V": hours(start)},
        "L",
        safety_only=True,  # what is put after its address was reaped is the offline job's
    )


def times() -> Iterator[Plan]:
    """The reaper's clock is past the expiry of an issued address, by less than two clocks may be apart; or not past the
    grace window. Then no link and no restore is refused (rule 8).
    """
    expired_ms = int((AGES.issue_seconds + AGES.clock_skew_seconds / 2) * 1000)
    in_window_ms = int(AGES.grace_seconds / 2 * 1000)

    def timed(
        name: str, world: Callable[[], Start], tasks: Callable[[Start], Mapping[str, Calls]], label: str, ahead_ms: int
    ) -> Plan:
        reapers = dict.fromkeys("GHS", ahead_ms)
        return plan(
            f"times: {name}",
            world,
            tasks,
            accepted=label,
            keeps=label,
            safety_only=True,  # nothing is over yet
            ahead_ms=reapers,
        )

    def restoring(start: Start) -> Calls:
        return [do.restore("feat", "z", start.addresses["P5"])]

    yield timed(
        "link | hard delete | scrub",
        lambda: issued_with_ages(AGES),
        lambda start: {"L": [do.link("main", "p", start.token)], "H": [HARD_DELETE_ANY], "S": [SCRUB]},
        "L",
        expired_ms,
    )
    yield timed(
        "restore | hard delete | scrub",
        lambda: grace(AGES),
        lambda start: {"E": restoring(start), "H": [HARD_DELETE_ANY], "S": [SCRUB]},
        "E",
        in_window_ms,
    )
    yield timed(
        "restore | reset; reap",
        lambda: Start(AGES).staged("main", "p", "P5"),
        lambda start: {"E": restoring(start), "R": [RESET], "G": [REAP], "H": [HARD_DELETE_ANY]},
        "E",
        in_window_ms,
    )


def pages() -> Iterator[Plan]:
    """Tokens that take the reaper several pages."""

    def reset_pq() -> Start:
        return after_reset(pq())

    def committed_pq() -> Start:
        start = pq()
        start.repo.commit("main", "c1")
        return start

    paged: Calls = [REAP_PAGED]
    yield plan("pages: reap | reap (crash) after reset", reset_pq, {"G": paged, "H": paged}, "G")
    yield plan(
        "pages: reap (crash) | reap after commit | overwrite p",
        committed_pq,
        {"G": paged, "H": paged, "U": [OVERWRITE]},
        "G",
        keeps="U",
    )
    yield plan("pages: reap | late write | scrub", reset_pq, {"G": paged, "U": [OVERWRITE], "S": [SCRUB]}, keeps="U")
