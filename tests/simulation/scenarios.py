"""The scenarios, by the names they have in the protocol's model (`docs/protocol_model`), over real calls.

A scenario is a world made by real calls (`worlds`) and a few tasks, each a list of calls that follow one another
(`plans`). Those of the reaper's own matters and those of the offline job stand beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from refstore.core.ids import Address, CommitId, new_address
from refstore.records import keys
from tests.kit.domain import contents_of
from tests.kit.explorer import Explorer
from tests.kit.ids import CountingIds
from tests.kit.replay import Task
from tests.simulation import calls as do
from tests.simulation.calls import (
    BODIES,
    COMMIT,
    COMMIT_2,
    COPY,
    DELETE_P,
    HARD_DELETE,
    MERGE,
    MOVE,
    OVERWRITE,
    OVERWRITE_2,
    PROCESS,
    REAP,
    RESET,
    RESET_FEAT,
    SCRUB,
    SCRUB_REFERENCES,
    UPLOAD_Q,
    Call,
    stages_of,
)
from tests.simulation.loss_scenarios import losses
from tests.simulation.multipart_scenarios import uploads_in_parts
from tests.simulation.offline_scenarios import collections, complete, marks
from tests.simulation.plans import EXPIRED_MS, Calls, Plan, plan
from tests.simulation.purge_scenarios import purges, purges_and_others, purges_of_all
from tests.simulation.race_scenarios import races
from tests.simulation.reaper_scenarios import clocks, pages, registry_markers_hints, times
from tests.simulation.transaction_scenarios import transactions
from tests.simulation.worlds import (
    Start,
    after_reset,
    both,
    committed_m1,
    fresh,
    grace,
    issued,
    issued_to_copy,
    m1,
    pair,
    pq,
    same,
    side_branch,
    two,
)


def link(start: Start) -> Call:
    return do.link("main", "p", start.token)


def pick(start: Start) -> Call:
    return do.cherry_pick("main", start.commits["c1"])


def foretold(start: Start, label: str, given: Calls) -> CommitId:
    """The id of the commit that a task makes if nobody comes in between."""
    explorer = Explorer(start.world.scenario("alone", Task(label, stages_of(given))))
    before = {key.name for key in start.world.contents if key.partition == keys.commits(start.repo.record.id)}
    end, _ = contents_of(explorer.alone(), explorer.names)
    (made,) = {key.name for key in end if key.partition == keys.commits(start.repo.record.id)} - before
    return CommitId(made)


def first() -> Iterator[Plan]:
    yield plan("upload | reset | reap", m1, {"U": [UPLOAD_Q], "R": [RESET], "G": [REAP]}, "U")
    yield plan("overwrite | commit | reap", m1, {"U": [OVERWRITE], "C": [COMMIT], "G": [REAP]}, "UC", keeps="U")
    yield plan("overwrite | commit+reset | reap", m1, {"U": [OVERWRITE], "C": [COMMIT, RESET], "G": [REAP]}, "C")
    late: Mapping[str, Calls] = {"U": [OVERWRITE], "C": [COMMIT, RESET], "G": [REAP], "H": [HARD_DELETE]}
    yield plan("late write | commit; reset | reap | hard delete", Start, late)
    yield plan("copy main->feat | reset main | reap", m1, {"K": [COPY], "R": [RESET], "G": [REAP]}, "K", keeps="K")
    yield plan("copy main->feat | commit main | reap", m1, {"K": [COPY], "C": [COMMIT], "G": [REAP]}, "KC", keeps="K")
    yield plan(
        "copy main->feat | commit main; reset feat | reap", m1, {"K": [COPY], "C": [COMMIT, RESET_FEAT], "G": [REAP]}
    )
    yield plan("copy main->feat | reset feat | scrub", m1, {"K": [COPY], "R": [RESET_FEAT, REAP], "S": [SCRUB]}, "K")
    from_side = do.copy("side", "p", "feat", "q")  # the default branch cannot be deleted
    yield plan(
        "copy main->feat | delete branch main | reap",
        side_branch,
        {"K": [from_side], "R": [do.delete_branch("side")], "G": [REAP]},
        "K",
        keeps="K",
    )
    yield plan("move p->q | commit | reap", m1, {"M": [MOVE], "C": [COMMIT], "G": [REAP]}, "M", keeps="M")
    yield plan("move p->q | commit; reset | reap", m1, {"M": [MOVE], "C": [COMMIT, RESET], "G": [REAP]})
    yield plan("move p->q | delete p | reap", m1, {"M": [MOVE], "D": [DELETE_P], "G": [REAP]}, "MD", keeps="M")
    yield plan(
        "overwrite | copy p->feat | hard delete",
        m1,
        {"U": [OVERWRITE], "K": [COPY], "H": [HARD_DELETE]},
        "UK",
        keeps="UK",
    )
    yield plan("commit | commit | reap", m1, {"C": [COMMIT], "D": [COMMIT_2], "G": [REAP]}, "C")
    yield plan("commit | scrub | reap", m1, {"C": [COMMIT], "S": [SCRUB], "G": [REAP]}, "CG")
    yield plan(
        "upload; crash | commit | scrub (safety only)",
        m1,
        {"U": [UPLOAD_Q], "C": [COMMIT, REAP], "S": [SCRUB]},
        "U",
        keeps="U",
        safety_only=True,
    )
    yield plan("reap | reap (crash) after commit", committed_m1, {"G": [REAP], "H": [REAP], "R": [RESET]}, "G")
    yield plan("shared: commit main | reset feat | reap", two, {"C": [COMMIT], "R": [RESET_FEAT], "G": [REAP]}, "CG")
    from_feat = do.copy("feat", "q", "main", "z")
    yield plan("shared: reset main | copy feat->main | reap", two, {"R": [RESET], "K": [from_feat], "G": [REAP]}, "KR")
    yield plan(
        "link | link (replay) | commit+reap",
        issued,
        lambda start: {"L": [link(start)], "M": [link(start)], "C": [COMMIT, REAP]},
        "L",
        keeps="LM",
        once="LM",
    )
    yield plan(
        "link | expire | reset",
        issued,
        lambda start: {"L": [link(start)], "X": [HARD_DELETE], "R": [RESET, REAP]},
        "LX",
        ahead_ms={"X": EXPIRED_MS},
    )


def first_address(start: Start, label: str) -> Address:
    """The address of the first thing that a task uploads."""
    return new_address(CountingIds(label.lower()), start.world.clock.now_ms())


def one_link() -> Iterator[Plan]:
    """The same address is linked again, to its own path, when another entry is there: while that one's reference goes,
    and while a commit that died has left the tokens sealed.
    """
    for name, at_it in (("overwrite", OVERWRITE), ("delete", DELETE_P), ("reset path", do.reset_path("main", "p"))):
        yield plan(
            f"link | {name} | link (replay)",
            issued,
            lambda start, at_it=at_it: {"L": [link(start)], "U": [at_it], "M": [link(start)]},
            "LU",
            once="LM",
        )
    for name, at_it in (("overwrite", OVERWRITE), ("delete", DELETE_P)):
        yield plan(
            f"link; commit (crash) | {name} | link (replay)",
            issued,
            lambda start, at_it=at_it: {"L": [link(start), COMMIT], "U": [at_it], "M": [link(start)]},
            "L",
            once="LM",
        )


def links_of_copies() -> Iterator[Plan]:
    """What was written to the issued address is copied to a new one, and that is linked."""
    yield plan(
        "link of a copy | link (replay) | commit+reap",
        issued_to_copy,
        lambda start: {"L": [link(start)], "M": [link(start)], "C": [COMMIT, REAP]},
        "L",
        keeps="LM",
        once="LM",
    )
    yield plan(
        "link of a copy | expire | reset",
        issued_to_copy,
        lambda start: {"L": [link(start)], "X": [HARD_DELETE], "R": [RESET, REAP]},
        "LX",
        ahead_ms={"X": EXPIRED_MS},
    )
    yield plan(
        "lost reply: link of a copy | link (replay) | hard delete",
        issued_to_copy,
        lambda start: {"L": [link(start)], "M": [link(start)], "H": [HARD_DELETE, SCRUB]},
        lossy="L",
        once="LM",
    )


def same_path_again() -> Iterator[Plan]:
    back = [do.copy("main", "q", "main", "p"), do.delete("main", "q")]
    yield plan(
        "copy q->p; delete q | overwrite p | hard delete", pair, {"K": back, "U": [OVERWRITE], "H": [HARD_DELETE]}, "KU"
    )
    yield plan(
        "copy q->p; delete q | delete p | hard delete", pair, {"K": back, "D": [DELETE_P], "H": [HARD_DELETE]}, "D"
    )
    yield plan(
        "copy q->p; delete q | overwrite p | commit; reap", pair, {"K": back, "U": [OVERWRITE], "C": [COMMIT, REAP]}
    )
    there = do.Call(MOVE.stages, (do.Promise("main", "q", BODIES["P0"]),))
    yield plan(
        "move p->q | move q->p | hard delete",
        m1,
        {"M": [there], "N": [do.move("main", "q", "p")], "H": [HARD_DELETE]},
        somewhere="M",
    )
    on_top = do.copy("main", "q", "main", "p")
    yield plan("move p->q | copy q->p | hard delete", m1, {"M": [MOVE], "K": [on_top], "H": [HARD_DELETE]}, keeps="MK")
    yield plan(
        "move p->q | upload p | hard delete",
        m1,
        {"M": [MOVE], "U": [OVERWRITE], "H": [HARD_DELETE]},
        "M",
        somewhere="U",
    )
    yield plan("move p->q | upload p | commit", m1, {"M": [MOVE], "U": [OVERWRITE], "C": [COMMIT]}, somewhere="U")


def lost_replies() -> Iterator[Plan]:
    def lost(name: str, world: Callable[[], Start], tasks: object, crash: str = "", **more: object) -> Plan:
        return plan(f"lost reply: {name}", world, tasks, crash, **more)

    yield lost("upload | reset | reap", m1, {"U": [UPLOAD_Q], "R": [RESET], "G": [REAP]}, "U", lossy="UUR")
    yield lost(
        "overwrite | overwrite | hard delete",
        m1,
        {"U": [OVERWRITE], "V": [OVERWRITE_2], "H": [HARD_DELETE]},
        "U",
        lossy="UUV",
    )
    yield lost("overwrite | commit | reap", m1, {"U": [OVERWRITE], "C": [COMMIT], "G": [REAP]}, lossy="UC", keeps="U")
    yield lost(
        "overwrite | commit; reset | scrub", m1, {"U": [OVERWRITE], "C": [COMMIT, RESET, REAP], "S": [SCRUB]}, lossy="U"
    )
    yield lost(
        "copy main->feat | reset main | reap", m1, {"K": [COPY], "R": [RESET], "G": [REAP]}, "K", lossy="KK", keeps="K"
    )
    over_copy = {"K": [COPY], "V": [do.upload("feat", ("q", "P2"))], "C": [COMMIT, REAP]}
    yield lost("copy main->feat | overwrite the copy | commit main; reap", m1, over_copy, lossy="K")
    yield lost(
        "move p->q | upload p | hard delete",
        m1,
        {"M": [MOVE], "U": [OVERWRITE], "H": [HARD_DELETE]},
        "M",
        lossy="MU",
        somewhere="U",
    )
    yield lost("delete p | overwrite p | reap", m1, {"D": [DELETE_P], "U": [OVERWRITE], "G": [REAP]}, lossy="DDU")
    yield lost("commit | commit | reap", m1, {"C": [COMMIT], "D": [COMMIT_2], "G": [REAP]}, "D", lossy="CC")
    yield lost(
        "commit | upload; commit | reset", m1, {"C": [COMMIT], "D": [UPLOAD_Q, COMMIT_2], "R": [RESET]}, lossy="CDR"
    )
    yield lost("commit | reset | reap", m1, {"C": [COMMIT], "R": [RESET], "G": [REAP]}, "CR", lossy="CCRR")
    again = {
        "C": [do.commit("side", "c1")],
        "D": [do.delete_branch("side"), do.create_branch("side", "feat")],
        "G": [REAP],
    }
    yield lost("commit | delete branch; create it again | reap", side_branch, again, lossy="CCD")
    yield lost("reset | commit; upload | reap", m1, {"R": [RESET], "C": [COMMIT, UPLOAD_Q], "G": [REAP]}, lossy="RR")
    yield lost(
        "reset | reset; upload | upload", m1, {"R": [RESET], "S": [RESET, UPLOAD_Q], "U": [OVERWRITE]}, lossy="RRS"
    )
    recreate = {"D": [do.delete_branch("feat")], "N": [do.create_branch("feat", "main")], "G": [REAP]}
    yield lost("delete branch | create it again | reap", m1, recreate, "G", lossy="DDN", keeps="N")
    late = {
        "N": [do.create_branch("late", "main")],
        "D": [do.delete_branch("late"), REAP],
        "U": [do.upload("late", ("q", "P1"))],
    }
    yield lost("create branch | delete it | upload to it | reap", Start, late, "N", lossy="NND")
    yield lost(
        "link | link to the same path | overwrite it | hard delete",
        issued,
        lambda start: {"L": [link(start)], "M": [link(start)], "U": [OVERWRITE], "H": [HARD_DELETE]},
        lossy="LM",
        once="LM",
    )
    linking = {"L": [do.issue_and_link("main", "p")], "X": [HARD_DELETE], "R": [RESET, REAP]}
    yield lost(
        "issue; link | expire | reset; reap",
        Start,
        linking,
        "L",
        lossy="LLX",
        safety_only=True,
        ahead_ms={"X": EXPIRED_MS},
    )
    yield lost("reap | upload; commit; reset", m1, {"G": [REAP], "U": [OVERWRITE, COMMIT, RESET]}, "G", lossy="GG")
    yield lost(
        "reap | reap | copy main->feat",
        lambda: after_reset(m1()),
        {"G": [REAP], "H": [REAP], "K": [COPY]},
        "G",
        refused="K",
        lossy="GGH",
    )
    yield lost("reap | reap after commit | reset", committed_m1, {"G": [REAP], "H": [REAP], "R": [RESET]}, lossy="GGH")
    yield lost(
        "scrub | copy main->feat | reset feat; reap",
        m1,
        {"S": [SCRUB], "K": [COPY], "R": [RESET_FEAT, REAP]},
        lossy="SK",
    )
    yield lost("commit | commit | upload", m1, {"C": [COMMIT], "D": [COMMIT_2], "U": [UPLOAD_Q]}, lossy="C", keeps="U")
    yield lost(
        "commit | commit; upload; reap", m1, {"C": [COMMIT], "D": [COMMIT_2, UPLOAD_Q, REAP]}, lossy="C", keeps="D"
    )
    issuing = {"L": [do.issue_and_link("main", "p")], "X": [HARD_DELETE], "Y": [HARD_DELETE]}
    expired = {"X": EXPIRED_MS, "Y": EXPIRED_MS}
    yield lost("issue; link | expire | expire", Start, issuing, lossy="L", safety_only=True, ahead_ms=expired)
    failing = {"U": [UPLOAD_Q], "C": [COMMIT], "G": [REAP]}
    yield lost("of the object store: upload | commit | reap", m1, failing, "U", lossy_objects="U", keeps="U")


def merges() -> Iterator[Plan]:
    main_upload = do.upload("main", ("z", "P1"))
    main_commits: Calls = [main_upload, COMMIT_2]
    yield plan("merge feat->main | reap | reset feat", fresh, {"M": [MERGE], "G": [REAP], "R": [RESET_FEAT]}, "MG")
    gone: Calls = [do.delete_branch("feat"), REAP]
    yield plan("merge feat->main | delete branch feat; reap | reap", fresh, {"M": [MERGE], "D": gone, "G": [REAP]}, "M")
    committing: Calls = [do.commit("feat", "c1")]
    yield plan(
        "merge feat->main | commit feat | reset feat; reap",
        both,
        {"M": [MERGE], "C": committing, "R": [RESET_FEAT, REAP]},
        "MC",
    )
    yield plan(
        "merge feat->main | upload main | reap", fresh, {"M": [MERGE], "U": [main_upload], "G": [REAP]}, "U", keeps="U"
    )
    yield plan(
        "merge feat->main | upload main; commit main | reap",
        fresh,
        {"M": [MERGE], "C": main_commits, "G": [REAP]},
        "M",
        keeps="C",
    )
    from_feat: Calls = [do.copy("feat", "q", "main", "z")]
    yield plan(
        "merge feat->main | copy feat->main | reap", fresh, {"M": [MERGE], "K": from_feat, "G": [REAP]}, keeps="K"
    )
    without_q: Calls = [do.delete("feat", "q"), do.commit("feat", "c2")]
    yield plan(
        "merge feat->main | delete q on feat; commit feat | reap",
        fresh,
        {"M": [MERGE], "C": without_q, "G": [REAP]},
        "C",
    )
    yield plan("merge feat->main | reset main | scrub", fresh, {"M": [MERGE], "R": [RESET], "S": [SCRUB]}, "M")
    yield plan(
        "lost reply: merge feat->main | commit main | reap",
        fresh,
        {"M": [MERGE], "C": main_commits, "G": [REAP]},
        lossy="MC",
        keeps="C",
    )
    yield plan(
        "cherry-pick | delete branch feat; reap | reset main",
        fresh,
        lambda start: {"M": [pick(start)], "D": gone, "R": [RESET]},
        "M",
    )

    def undo(start: Start) -> Calls:
        return [do.revert("feat", start.commits["c1"])]

    yield plan(
        "revert on feat | reset feat | reap",
        fresh,
        lambda start: {"M": undo(start), "R": [RESET_FEAT], "G": [REAP]},
        "M",
    )
    yield plan(
        "revert on feat | upload feat | commit feat; reap",
        fresh,
        lambda start: {"M": undo(start), "U": [do.upload("feat", ("z", "P1"))], "C": [do.commit("feat", "c2"), REAP]},
        keeps="U",
    )
    yield plan(
        "aborted commit | cherry-pick of it | reset; reap",
        both,
        lambda start: {
            "C": committing,
            "M": [do.cherry_pick("main", foretold(start, "C", committing))],
            "R": [RESET_FEAT, REAP],
        },
        "C",
    )
    yield plan(
        "aborted commit | branch at it | reset; reap",
        m1,
        lambda start: {
            "C": [COMMIT],
            "N": [do.create_branch("late", foretold(start, "C", [COMMIT]))],
            "R": [RESET, REAP],
        },
        "C",
        keeps="N",
    )


def reset_paths() -> Iterator[Plan]:
    one: Calls = [do.reset_path("main", "p")]
    yield plan("reset path | commit | reap", m1, {"R": one, "C": [COMMIT], "G": [REAP]}, "RC")
    yield plan("reset path | commit; reset | reap", m1, {"R": one, "C": [COMMIT, RESET], "G": [REAP]})
    yield plan("reset path | overwrite | hard delete", m1, {"R": one, "U": [OVERWRITE], "H": [HARD_DELETE]}, "RU")
    yield plan(
        "reset path | copy from it | hard delete", m1, {"R": one, "K": [COPY], "H": [HARD_DELETE]}, "RK", keeps="K"
    )
    yield plan("reset path | move from it | commit; reap", m1, {"R": one, "M": [MOVE], "C": [COMMIT, REAP]}, "R")
    yield plan(
        "reset path | reset path | delete path | reap", m1, {"R": one, "S": one, "D": [DELETE_P], "G": [REAP]}, "R"
    )
    prefix: Calls = [do.reset_prefix("main")]
    yield plan("reset prefix (two paths) | commit | scrub", pq, {"R": prefix, "C": [COMMIT, REAP], "S": [SCRUB]}, "R")
    yield plan(
        "lost reply: reset path | overwrite | commit; reap",
        m1,
        {"R": one, "U": [OVERWRITE], "C": [COMMIT, REAP]},
        lossy="RR",
    )


def nothing_changed() -> Iterator[Plan]:
    def bare() -> Start:
        return same(processed=True)

    def held() -> Start:
        return same(processed=False)

    def empty() -> Start:
        return Start().staged("feat", "q", "P0")

    yield plan(
        "nothing to commit | upload | reap", bare, {"C": [COMMIT_2], "U": [UPLOAD_Q], "G": [REAP]}, "CU", keeps="U"
    )
    third: Calls = [do.commit("main", "c3")]
    yield plan(
        "nothing to commit | commit | upload", bare, {"C": [COMMIT_2], "D": third, "U": [UPLOAD_Q]}, "C", keeps="U"
    )
    yield plan(
        "nothing to commit (held) | reap | reset", held, {"C": [COMMIT_2], "G": [REAP], "R": [RESET]}, "CG", refused="C"
    )
    yield plan(
        "nothing to commit (held) | reap | scrub", held, {"C": [COMMIT_2], "G": [REAP], "S": [SCRUB]}, "C", refused="C"
    )
    yield plan(
        "nothing to commit (held) | copy p->feat | reap",
        held,
        {"C": [COMMIT_2], "K": [COPY], "G": [REAP]},
        "C",
        keeps="K",
        refused="C",
    )
    yield plan(
        "nothing to commit (held) | overwrite | reap", held, {"C": [COMMIT_2], "U": [OVERWRITE], "G": [REAP]}, keeps="U"
    )
    copying: Calls = [do.copy("feat", "q", "main", "q")]
    yield plan(
        "nothing to commit | copy feat->main | reset feat; reap",
        empty,
        {"C": [COMMIT], "K": copying, "R": [RESET_FEAT, REAP]},
        "K",
        keeps="K",
    )
    yield plan(
        "lost reply: nothing to commit | upload | reap",
        bare,
        {"C": [COMMIT_2], "U": [UPLOAD_Q], "G": [REAP]},
        lossy="CCU",
        keeps="U",
    )


def restores() -> Iterator[Plan]:
    def restored(name: str, tasks: Callable[[Start], Mapping[str, Calls]], crash: str = "", **more: object) -> Plan:
        return plan(name, grace, tasks, crash, **more)

    def back(start: Start) -> Call:
        return do.restore("main", "p", start.addresses["P5"])

    hard: Calls = [HARD_DELETE]
    yield restored(
        "restore | hard delete | reset; reap", lambda start: {"E": [back(start)], "H": hard, "R": [RESET, REAP]}, "E"
    )
    yield restored(
        "restore | commit; reap | hard delete",
        lambda start: {"E": [back(start)], "C": [COMMIT, REAP], "H": hard},
        "E",
        keeps="E",
    )
    yield restored(
        "restore | restore elsewhere | hard delete",
        lambda start: {"E": [back(start)], "F": [do.restore("feat", "q", start.addresses["P5"])], "H": hard},
        "EF",
        keeps="EF",
    )
    yield restored(
        "restore; delete | restore again | hard delete",
        lambda start: {"E": [back(start), DELETE_P], "F": [back(start)], "H": hard},
        "E",
    )
    yield restored(
        "restore | reset; reap | scrub", lambda start: {"E": [back(start)], "R": [RESET, REAP], "S": [SCRUB]}, "E"
    )
    yield plan(
        "delete p | restore | copy p->feat | hard delete",
        m1,
        lambda start: {"D": [DELETE_P], "E": [do.restore("main", "z", start.addresses["P0"])], "K": [COPY], "H": hard},
        "D",
        keeps="EK",
    )
    yield plan(
        "upload | reset; reap | scrub | restore what it wrote",
        Start,
        lambda start: {
            "U": [UPLOAD_Q],
            "R": [RESET, PROCESS],
            "S": [SCRUB_REFERENCES],
            "E": [do.restore("feat", "z", first_address(start, "U"))],
        },
        keeps="E",
    )

    yield plan(
        "upload | reset; reap; scrub; restore what it wrote; commit; reap",
        Start,
        lambda start: {
            "U": [UPLOAD_Q],
            "R": [
                RESET,
                PROCESS,
                SCRUB_REFERENCES,
                do.restore("feat", "z", first_address(start, "U")),
                do.commit("feat", "c2"),
                PROCESS,
            ],
        },
        keeps="R",
        leaves=True,
    )

    def staged(start: Start) -> Call:
        return do.restore("feat", "q", start.addresses["P0"])

    for name, others, crash in (
        ("reset | restore what is staged | reap", {"R": [RESET], "G": [REAP]}, "R"),
        ("commit | restore what is staged | reap", {"C": [COMMIT], "G": [REAP]}, "C"),
        ("overwrite | restore what it replaces | hard delete", {"U": [OVERWRITE], "H": [HARD_DELETE]}, "U"),
    ):
        yield plan(name, m1, lambda start, others=others: {"E": [staged(start)], **others}, crash + "E", keeps="E")

    def where_it_is(start: Start) -> Call:
        return do.restore("main", "p", start.addresses["P0"])

    yield plan(
        "commit; reap | restore where it is",
        m1,
        lambda start: {"C": [COMMIT, REAP], "E": [where_it_is(start)]},
        "CE",
        keeps="E",
    )
    yield plan(
        "reset | restore where it was | reap | hard delete",
        m1,
        lambda start: {"R": [RESET], "E": [where_it_is(start)], "G": [REAP], "H": hard},
        "RE",
    )
    yield plan(
        "commit; reset | restore what is staged | reap; scrub",
        m1,
        lambda start: {"C": [COMMIT, RESET_FEAT], "E": [staged(start)], "G": [REAP, SCRUB]},
        "E",
    )
    yield plan(
        "lost reply: reset | restore what is staged | reap",
        m1,
        lambda start: {"R": [RESET], "E": [staged(start)], "G": [REAP]},
        lossy="RE",
        keeps="E",
    )
    yield plan(
        "lost reply: restore what is staged | commit; reap",
        m1,
        lambda start: {"E": [staged(start)], "C": [COMMIT, REAP]},
        lossy="E",
        keeps="E",
    )
    yield restored(
        "lost reply: restore | hard delete | reset; reap",
        lambda start: {"E": [back(start)], "H": hard, "R": [RESET, REAP]},
        lossy="EEH",
    )


def repository_deletion() -> Iterator[Plan]:
    gone: Calls = [do.delete_repository()]
    branch = do.create_branch("late", "main")
    yield plan("repository deletion | upload | reap", m1, {"D": gone, "U": [UPLOAD_Q], "G": [REAP]}, "DU")
    and_upload: Calls = [branch, do.upload("late", ("q", "P1"))]
    yield plan(
        "repository deletion | create branch; upload | reap", m1, {"D": gone, "N": and_upload, "G": [REAP]}, "DN"
    )
    yield plan("repository deletion | commit | reap", m1, {"D": gone, "C": [COMMIT], "G": [REAP]}, "DC")
    yield plan("repository deletion | copy main->feat | reap", m1, {"D": gone, "K": [COPY], "G": [REAP]}, "DK")
    yield plan(
        "lost reply: repository deletion | create branch | reap",
        m1,
        {"D": gone, "N": [branch], "G": [REAP]},
        lossy="DNN",
    )


def readers() -> Iterator[Plan]:
    """What is there all the time is found all the time (rule 12)."""
    look: Calls = [do.read("main", "p")]
    listing: Calls = [do.list_all("main", "p")]
    yield plan("read p | commit; reap", m1, {"L": look, "C": [COMMIT, REAP]}, "C")
    yield plan("list | commit; reap", m1, {"L": listing, "C": [COMMIT, REAP]}, "C")
    yield plan("read p | overwrite | commit; reap", m1, {"L": look, "U": [OVERWRITE], "C": [COMMIT, REAP]}, "U")
    yield plan("list | overwrite | commit; reap", m1, {"L": listing, "U": [OVERWRITE], "C": [COMMIT, REAP]})
    anew = committed_m1
    yield plan("read p | overwrite; reset; reap", anew, {"L": look, "U": [OVERWRITE, RESET, REAP]}, "U")
    yield plan("list | overwrite; reset; reap", anew, {"L": listing, "U": [OVERWRITE, RESET, REAP]}, "U")


def batches() -> Iterator[Plan]:
    two_paths: Calls = [do.upload("main", ("p", "P1"), ("q", "P2"))]
    three = do.upload("main", ("q", "P3"))
    deletion: Calls = [do.delete("main", "p", "q")]
    yield plan(
        "batch: overwrite p and q | commit | reap", pq, {"U": two_paths, "C": [COMMIT], "G": [REAP]}, "UC", keeps="U"
    )
    yield plan(
        "batch: overwrite p and q | commit; reset | reap", pq, {"U": two_paths, "C": [COMMIT, RESET], "G": [REAP]}
    )
    yield plan(
        "batch: overwrite p and q | overwrite q | hard delete",
        pq,
        {"U": two_paths, "V": [three], "H": [HARD_DELETE]},
        "UV",
    )
    yield plan("batch: delete p and q | commit | reap", pq, {"D": deletion, "C": [COMMIT], "G": [REAP]}, "D")
    yield plan(
        "batch: delete p and q | copy p->feat | hard delete",
        pq,
        {"D": deletion, "K": [COPY], "H": [HARD_DELETE]},
        "D",
        keeps="K",
    )
    yield plan(
        "lost reply: batch: overwrite p and q | reset; reap", pq, {"U": two_paths, "R": [RESET, REAP]}, "U", lossy="UU"
    )
    yield plan(
        "lost reply: batch: overwrite p and q | overwrite q | hard delete",
        pq,
        {"U": two_paths, "V": [three], "H": [HARD_DELETE]},
        lossy="UUV",
    )


def every() -> Iterator[Plan]:
    for group in (
        first,
        collections,
        complete,
        marks,
        one_link,
        links_of_copies,
        same_path_again,
        lost_replies,
        merges,
        reset_paths,
        nothing_changed,
        restores,
        repository_deletion,
        registry_markers_hints,
        clocks,
        times,
        readers,
        pages,
        uploads_in_parts,
        batches,
        purges,
        purges_of_all,
        purges_and_others,
        losses,
        races,
        transactions,
    ):
        yield from group()
