"""The scenarios of rule 22: objects get another content while commits, readers, reapers and the offline job go on."""

from __future__ import annotations

from collections.abc import Iterator

from tests.kit import purging
from tests.simulation import calls as do
from tests.simulation.calls import BODIES, COMMIT, DELETE_P, HARD_DELETE, REAP, RESET, Call
from tests.simulation.collecting import collect
from tests.simulation.plans import Plan, plan
from tests.simulation.worlds import Start, grace, m1, old, old_appended, side_branch


def purge(start: Start, run: str = "a", body: str = "P0") -> Call:
    return Call((purging.purge(run, start.addresses[body], BODIES[body]),))


def purge_and_read(start: Start, run: str) -> Call:
    """Behind a run that was acknowledged the path shows no rows of it."""
    return Call((purging.purge(run, start.addresses["P0"], BODIES["P0"], then_read="p"),))


def upload_again(body: str) -> Call:
    return Call((purging.upload_again("p", BODIES[body]),))


def purge_all(start: Start, path: str, body: str) -> list[Call]:
    """Whatever is restored behind it has no rows of the run."""
    restored = purging.restore_and_read("a", path, start.addresses[body])
    return [Call((purging.purge_all("a"),)), Call((restored,))]


END_BACKUPS = Call((purging.clean(),), unbounded=True)
READ = do.read("main", "p")


def purges() -> Iterator[Plan]:
    yield plan("purge | reset; reap", m1, lambda start: {"P": [purge(start)], "R": [RESET, REAP]})
    yield plan(
        "purge (crash) | reset; reap", m1, lambda start: {"P": [purge(start)], "R": [RESET, REAP]}, "P", leaves=True
    )
    yield plan(
        "purge | copy to feat; delete there | reset; reap",
        m1,
        lambda start: {
            "P": [purge(start)],
            "K": [do.copy("main", "p", "feat", "q"), do.delete("feat", "q")],
            "R": [RESET, REAP],
        },
    )
    yield plan("purge | commit | reap", m1, lambda start: {"P": [purge(start)], "C": [COMMIT], "G": [REAP]}, "P")
    yield plan(
        "purge; end of backups | read", m1, lambda start: {"P": [purge(start), END_BACKUPS], "U": [READ, READ]}, "P"
    )
    yield plan(
        "purge; read what was purged | purge of other rows | end of backups",
        m1,
        lambda start: {"P": [purge_and_read(start, "a")], "V": [purge(start, "b")], "X": [END_BACKUPS]},
    )
    yield plan(
        "purge | the same run again | end of backups",
        m1,
        lambda start: {"P": [purge(start)], "V": [purge(start)], "X": [END_BACKUPS]},
        "P",
    )
    yield plan(
        "lost reply: purge | end of backups | reset; reap",
        m1,
        lambda start: {"P": [purge(start)], "X": [END_BACKUPS], "R": [RESET, REAP]},
        lossy="P",
    )


def purges_of_all() -> Iterator[Plan]:
    """The run finds what is in the trash, and what goes there or comes back while it looks."""
    yield plan(
        "purge of all | restore; delete | hard delete",
        grace,
        lambda start: {
            "P": purge_all(start, "p", "P5"),
            "E": [do.restore("main", "p", start.addresses["P5"]), DELETE_P],
            "H": [HARD_DELETE],
        },
    )
    yield plan(
        "purge of all | delete; restore; commit; reap",
        m1,
        lambda start: {
            "P": purge_all(start, "p", "P0"),
            "E": [DELETE_P, do.restore("main", "p", start.addresses["P0"]), COMMIT, REAP],
        },
        "P",
    )
    yield plan(
        "purge of all | delete branch | reap",
        side_branch,
        lambda start: {"P": purge_all(start, "p", "P0"), "D": [do.delete_branch("side")], "G": [REAP]},
    )


def purges_and_others() -> Iterator[Plan]:
    """While the original is uploaded again, a content is restored, or the offline job lets another commit go."""
    yield plan(
        "purge; the original again | end of backups",
        old_appended,
        lambda start: {"P": [purge(start), upload_again("P0")], "X": [END_BACKUPS]},
    )
    yield plan(
        "purge; end of backups | restore of the content",
        m1,
        lambda start: {
            "P": [purge(start), END_BACKUPS],
            "E": [Call((purging.restore_content(start.addresses["P0"], start.addresses["P0"]),))],
            "U": [READ],
        },
        "P",
        refused="E",
    )
    yield plan(
        "purge | gc", old, lambda start: {"P": [purge(start, body="P1")], "X": [collect(start.commits["c0"])]}, "PX"
    )
    yield plan(
        "purge; end of backups | gc",
        old,
        lambda start: {"P": [purge(start, body="P1"), END_BACKUPS], "X": [collect(start.commits["c0"])]},
    )
