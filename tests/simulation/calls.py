"""Calls of the real SDK as stages of a task, each with what it promises once it has answered.

Bodies are unique, so that what a path holds at the end tells whose write it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from refstore.errors import NotFound
from refstore.operations.upload import Upload
from tests.kit import reaping
from tests.kit.domain import Tools
from tests.kit.replay import Stage

BODIES = {"P0": b"P0", "P1": b"P1", "P2": b"P2", "P3": b"P3", "P5": b"P5", "P9": b"P9", "Q1": b"Q1"}


class Promise(NamedTuple):
    """A branch is there, and shows something at a path, and shows this body."""

    branch: str
    path: str = ""
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Call:
    stages: tuple[Stage, ...]
    promises: tuple[Promise, ...] = ()
    unbounded: bool = False
    """It is no operation with a deadline: barriers do not wait for it."""


def call(name: str, run: Callable[[Tools], object], *promises: Promise) -> Call:
    def go(tools: Tools) -> None:
        run(tools)

    return Call((Stage(name, go),), promises)


def upload(branch: str, *items: tuple[str, str]) -> Call:
    """(path, which body): one by `upload`, several in one batch."""
    promises = [Promise(branch, path, BODIES[body]) for path, body in items]
    name = f"upload {branch} {items}"
    if len(items) == 1:
        ((path, body),) = items
        return call(name, lambda tools: tools.repo.upload(branch, path, BODIES[body]), *promises)
    batch = [Upload(path=path, body=BODIES[body]) for path, body in items]
    return call(name, lambda tools: tools.repo.upload_many(branch, batch), *promises)


def copy(source: str, path: str, branch: str, destination: str) -> Call:
    return call(
        f"copy {source[:12]} {path} {branch} {destination}",
        lambda tools: tools.repo.copy(source, path, to_branch=branch, to_path=destination),
        Promise(branch, destination),
    )


def move(branch: str, path: str, destination: str) -> Call:
    return call(
        f"move {branch} {path} {destination}",
        lambda tools: tools.repo.move(branch, path, to_path=destination),
        Promise(branch, destination),
    )


def delete(branch: str, *paths: str) -> Call:
    return call(f"delete {branch} {paths}", lambda tools: tools.repo.delete_many(branch, paths))


def commit(branch: str, message: str) -> Call:
    return call(f"commit {branch} {message}", lambda tools: tools.repo.commit(branch, message))


def merge(source: str, branch: str) -> Call:
    return call(f"merge {source} {branch}", lambda tools: tools.repo.merge(source, into=branch))


def revert(branch: str, ref: str) -> Call:
    return call(f"revert {branch} {ref[:12]}", lambda tools: tools.repo.revert(ref, on=branch))


def cherry_pick(branch: str, ref: str) -> Call:
    return call(f"cherry-pick {branch} {ref[:12]}", lambda tools: tools.repo.cherry_pick(ref, onto=branch))


def reset(branch: str) -> Call:
    return call(f"reset {branch}", lambda tools: tools.repo.reset(branch))


def reset_path(branch: str, path: str) -> Call:
    return call(f"reset {branch} {path}", lambda tools: tools.repo.reset(branch, path=path))


def reset_prefix(branch: str, prefix: str = "") -> Call:
    return call(f"reset {branch} {prefix}*", lambda tools: tools.repo.reset(branch, prefix=prefix))


def create_branch(name: str, source: str) -> Call:
    return call(
        f"create {name} {source[:12]}", lambda tools: tools.repo.create_branch(name, source=source), Promise(name)
    )


def delete_branch(name: str) -> Call:
    return call(f"delete branch {name}", lambda tools: tools.repo.delete_branch(name))


def delete_repository() -> Call:
    return call("delete repository", lambda tools: tools.lake.delete_repository(tools.repo.name))


def link(branch: str, path: str, token: str) -> Call:
    return call(
        f"link {branch} {path}", lambda tools: tools.repo.link(branch, path, token), Promise(branch, path, BODIES["P9"])
    )


def issue_and_link(branch: str, path: str) -> Call:
    """Issue, write the data, link."""

    def run(tools: Tools) -> None:
        issued = tools.repo.issue(branch, path)
        tools.ctx.objects.put(issued.address, BODIES["P9"])
        tools.repo.link(branch, path, issued.token)

    return call(f"issue and link {branch} {path}", run, Promise(branch, path, BODIES["P9"]))


def restore(branch: str, path: str, address: str) -> Call:
    return call(
        f"restore {branch} {path}",
        lambda tools: tools.repo.restore(address, to=branch, path=path),
        Promise(branch, path),
    )


def create_tag(name: str, ref: str) -> Call:
    return call(f"tag {name} {ref[:12]}", lambda tools: tools.repo.create_tag(name, ref=ref))


def delete_tag(name: str) -> Call:
    return call(f"delete tag {name}", lambda tools: tools.repo.delete_tag(name))


def unmark(which: str) -> Call:
    return call(f"unmark {which[:30]}", lambda tools: tools.repo.unmark(which))


def read(ref: str, path: str) -> Call:
    """Of a path that is there all the time, whatever it holds: not to find it is a fault (rule 12)."""

    def run(tools: Tools) -> None:
        try:
            tools.repo.read(ref, path)
        except NotFound as error:
            raise AssertionError(f"{path!r} was there all the time and was not found") from error

    return call(f"read {ref} {path}", run)


def list_all(ref: str, *paths: str) -> Call:
    """The same for a listing: it shows these paths."""

    def run(tools: Tools) -> None:
        shown = [listed.path for listed in tools.repo.list(ref)]
        assert set(paths) <= set(shown), f"{paths} were there all the time and the listing shows {shown}"

    return call(f"list {ref}", run)


def set_clock(wall_ms: int, *, waits: bool) -> Call:
    """The clock goes on: at any moment, or, by more than the longest operation takes, while none is under way."""
    return call(f"clock {wall_ms}", lambda tools: tools.stores.set_clock(wall_ms, waits=waits))


REAP = Call(reaping.reap())
REAP_PAGED = Call(reaping.reap(page=1))
"""A page of one: what a large token is processed like."""
PROCESS = Call((*reaping.publish(), *reaping.process()))
HARD_DELETE = Call(reaping.hard_delete())
HARD_DELETE_ANY = Call(reaping.hard_delete(any_hint=True))
"""Looks at hints that are not due yet, too: a hint decides nothing."""
SCRUB = Call((*reaping.scrub_references(), *reaping.hard_delete()))
SCRUB_REFERENCES = Call(reaping.scrub_references())
SCRUB_UNNAMED = Call((*reaping.release_unnamed(), *reaping.hard_delete()))
SCRUB_TOKENS = Call(reaping.scrub_tokens())
SCRUB_UPLOADS = Call(reaping.scrub_uploads())

COMMIT = commit("main", "c1")
RESET = reset("main")
COPY = copy("main", "p", "feat", "q")
OVERWRITE = upload("main", ("p", "P1"))
MOVE = move("main", "p", "q")
UPLOAD_Q = upload("main", ("q", "P1"))
OVERWRITE_2 = upload("main", ("p", "P2"))
DELETE_P = delete("main", "p")
RESET_FEAT = reset("feat")
COMMIT_2 = commit("main", "c2")
MERGE = merge("feat", "main")


def stages_of(calls: Iterable[Call]) -> tuple[Stage, ...]:
    return tuple(stage for call in calls for stage in call.stages)
