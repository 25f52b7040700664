"""The scenarios of multipart uploads (rule 23): over a store without any, where parts are objects of their own, and
over one that has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import cast

from refstore.core.ids import BranchName
from refstore.operations import complete_upload, multipart
from refstore.operations.complete_upload import RequestedPart
from refstore.versioning.multipart_uploads import UploadName
from tests.kit.domain import Tools
from tests.simulation import calls as do
from tests.simulation.calls import (
    BODIES,
    COMMIT,
    DELETE_P,
    HARD_DELETE,
    OVERWRITE,
    REAP,
    RESET,
    SCRUB_UPLOADS,
    Call,
    Promise,
)
from tests.simulation.plans import EXPIRED_MS, Calls, Plan, plan
from tests.simulation.race_scenarios import create
from tests.simulation.worlds import Start

MAIN = BranchName("main")
SECONDS = 3600


class Uploading(Start):
    """An upload to p on main is open; part 1 is P9, part 2 is P5. Something else is staged, so that a commit has
    something to commit.
    """

    def __init__(self, *, store_has_uploads: bool = False) -> None:
        super().__init__(store_has_uploads=store_has_uploads)
        self.repo.create_branch("side", source="main")
        self.staged("main", "q", "P0")
        self.name = multipart.begin(self.repo.context, MAIN, "p", seconds=SECONDS).name
        self.parts = {body: self._write(number, body) for number, body in ((1, "P9"), (2, "P5"))}

    def _write(self, number: int, body: str) -> RequestedPart:
        written = multipart.write_part(self.repo.context, self.name, number, BODIES[body])
        return RequestedPart(number, written.part.etag)


def begin_to_end(branch: str, path: str) -> Call:
    """Begin, write a part, complete."""

    def run(tools: Tools) -> None:
        name = multipart.begin(tools.ctx, BranchName(branch), path, seconds=SECONDS).name
        written = multipart.write_part(tools.ctx, name, 1, BODIES["P9"])
        complete_upload.complete(tools.ctx, name, [RequestedPart(1, written.part.etag)])

    return do.call(f"upload {branch} {path} in parts", run, Promise(branch, path, BODIES["P9"]))


def complete(start: Uploading, body: str = "P9", *, if_absent: bool = False) -> Call:
    name, part = start.name, start.parts[body]
    return do.call(
        f"complete with {body}{' if absent' if if_absent else ''}",
        lambda tools: complete_upload.complete(tools.ctx, name, [part], if_absent=if_absent),
        Promise(name.branch, name.path, BODIES[body]),
    )


def abort(name: UploadName) -> Call:
    return do.call("abort", lambda tools: multipart.abort(tools.ctx, name))


def write_part(name: UploadName) -> Call:
    return do.call("write a part", lambda tools: multipart.write_part(tools.ctx, name, 3, BODIES["P1"]))


def uploads_in_parts() -> Iterator[Plan]:
    yield from _uploads(store_has_uploads=False)
    yield from _uploads(store_has_uploads=True)


def _uploads(*, store_has_uploads: bool) -> Iterator[Plan]:
    def of(
        name: str,
        tasks: Callable[[Uploading], Mapping[str, Calls]],
        crash: str = "",
        *,
        world: Callable[[], Start] | None = None,
        **more: object,
    ) -> Plan:
        def made(start: Start) -> Mapping[str, Calls]:
            return tasks(cast("Uploading", start))

        where = ", in the store" if store_has_uploads else ""
        return plan(f"multipart: {name}{where}", world or uploading, made, crash, **more)

    uploading = partial(Uploading, store_has_uploads=store_has_uploads)
    empty = partial(Start, store_has_uploads=store_has_uploads)
    expired = {"X": EXPIRED_MS}
    yield of(
        "begin; part; complete (crash) | expire | scrub",
        lambda _: {"L": [begin_to_end("main", "p")], "X": [HARD_DELETE], "S": [SCRUB_UPLOADS]},
        "LX",
        world=empty,
        ahead_ms=expired,
        leaves=True,
        keeps="L",
    )
    yield of(
        "begin; part; complete (crash) | reset; reap",
        lambda _: {"L": [begin_to_end("main", "p")], "R": [RESET, REAP]},
        "LR",
        world=empty,
        leaves=True,
    )
    yield of("part (crash)", lambda start: {"L": [write_part(start.name)]}, "L")
    yield of(
        "part | abort; hard delete | scrub",
        lambda start: {"L": [write_part(start.name)], "X": [abort(start.name), HARD_DELETE], "S": [SCRUB_UPLOADS]},
        "LX",
        leaves=True,
        safety_only=True,  # without ages, a scrubber cannot know of a part that is still to be written
    )
    yield of(
        "complete | complete (replay) | commit",
        lambda start: {"L": [complete(start)], "M": [complete(start)], "C": [COMMIT]},
        "L",
        keeps="LM",
        leaves=True,
    )
    yield of(
        "complete | abort; hard delete | complete (replay)",
        lambda start: {"L": [complete(start)], "X": [abort(start.name), HARD_DELETE], "M": [complete(start)]},
        "X",
        keeps="LM",
        leaves=True,
    )
    yield of(
        "complete if absent | upload if absent",
        lambda start: {"A": [complete(start, if_absent=True)], "B": [create("p", "P1")]},
        "A",
        keeps="AB",
        leaves=True,
    )
    yield of(
        "complete if absent | complete (replay) | upload if absent",
        lambda start: {"A": [complete(start, if_absent=True)], "M": [complete(start)], "B": [create("p", "P1")]},
        keeps="M",
        leaves=True,
    )
    yield of(
        "complete | complete of other parts",
        lambda start: {"L": [complete(start)], "M": [complete(start, "P5")]},
        "L",
        keeps="LM",
    )
    yield of(
        "complete; complete (replay) | overwrite; hard delete",
        lambda start: {"L": [complete(start), complete(start)], "U": [OVERWRITE, HARD_DELETE]},
        leaves=True,
    )
    yield of(
        "complete | delete; hard delete | complete (replay)",
        lambda start: {"L": [complete(start)], "D": [DELETE_P, HARD_DELETE], "M": [complete(start)]},
        leaves=True,
    )
    yield of(
        "complete | reset; reap; scrub",
        lambda start: {"L": [complete(start)], "R": [RESET, REAP, SCRUB_UPLOADS]},
        "LR",
        leaves=True,
    )
    yield of(
        "complete (crash) | commit; complete (replay)",
        lambda start: {"L": [complete(start)], "C": [COMMIT, complete(start)]},
        "L",
        leaves=True,
    )
    yield of(
        "lost reply: complete | complete (replay)",
        lambda start: {"L": [complete(start)], "M": [complete(start)]},
        lossy="L",
        keeps="LM",
        leaves=True,
    )
    yield of(
        "lost reply: begin; part; complete | expire",
        lambda _: {"L": [begin_to_end("main", "p")], "X": [HARD_DELETE]},
        world=empty,
        lossy="L",
        keeps="L",
        ahead_ms=expired,
        leaves=True,
    )
    yield of(
        "complete | delete branch",
        lambda _: {"L": [begin_to_end("side", "p")], "D": [do.delete_branch("side"), HARD_DELETE]},
        "LD",
        leaves=True,
    )
