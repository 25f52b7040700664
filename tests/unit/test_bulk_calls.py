"""A call for many acts when it is made, whoever looks at its result; what acts as its result is read says so by its
name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from refstore.core import deadline
from refstore.errors import ObjectNotFound
from refstore.operations.copy import Copy
from refstore.operations.restore import RestoreRequest
from refstore.operations.upload import BATCH, Link, Stage, Upload
from refstore.repository import Repository

COUNT = BATCH + 1
PATHS = [f"{number:04}" for number in range(COUNT)]


def links(repo: Repository, paths: list[str]) -> list[Link]:
    issued = repo.issue_many("main", paths)
    for each in issued:
        repo.context.objects.put(each.address, b"1")
    return [Link(path=each.path, token=each.token) for each in issued]


def stages() -> Iterator[Stage]:
    return (Stage(path=path, url=f"s3://elsewhere/{path}", size_bytes=1) for path in PATHS)


def uploads() -> Iterator[Upload]:
    return (Upload(path=path, body=b"1") for path in PATHS)


def shown(repo: Repository) -> list[str]:
    return [item.path for item in repo.list("main")]


@pytest.mark.parametrize(
    "call",
    [
        lambda repo: repo.upload_many("main", uploads()),
        lambda repo: repo.stage_many("main", stages()),
        lambda repo: repo.link_many("main", links(repo, PATHS)),
        lambda repo: repo.copy_many("source", (Copy("source", path) for path in PATHS), to_branch="main"),
    ],
    ids=["upload", "stage", "link", "copy"],
)
def test_nobody_needs_to_look_at_what_a_call_for_many_returns(
    repo: Repository, call: Callable[[Repository], object]
) -> None:
    repo.create_branch("source", source="main")
    repo.upload("source", "source", b"1")
    call(repo)
    assert shown(repo) == PATHS


def test_results_come_in_the_order_of_what_was_given(repo: Repository) -> None:
    entries = repo.upload_many("main", (Upload(path=path, body=path.encode()) for path in reversed(PATHS)))
    assert [repo.context.objects.read(entry.address).decode() for entry in entries] == PATHS[::-1]


def test_an_error_names_the_first_that_failed_and_leaves_earlier_batches_done(repo: Repository) -> None:
    repo.upload("main", "source", b"1")
    copies = [*(Copy("source", path) for path in PATHS[:BATCH]), Copy("nothing", "x")]
    with pytest.raises(ObjectNotFound):
        repo.copy_many("main", copies, to_branch="main")
    assert shown(repo) == [*PATHS[:BATCH], "source"]


def restores(repo: Repository) -> list[RestoreRequest]:
    repo.upload_many("main", uploads())
    repo.reset("main")
    return [RestoreRequest(item.address) for item in repo.list_trash(branch="main")]


Each = Callable[[Repository, Iterator[Any]], Iterator[object]]
EACH: dict[str, tuple[Callable[[Repository], Iterable[Any]], Each]] = {
    "upload": (lambda _: uploads(), lambda repo, items: repo.upload_each("main", items)),
    "link": (lambda repo: links(repo, PATHS), lambda repo, items: repo.link_each("main", items)),
    "restore": (restores, lambda repo, items: repo.restore_each(items, to="main")),
}
"""The items, and the call that acts as its outcomes are read."""


@pytest.mark.parametrize("form", EACH)
def test_a_call_for_each_reads_and_acts_no_further_than_a_batch_ahead(repo: Repository, form: str) -> None:
    make_items, call = EACH[form]
    items, given = list(make_items(repo)), 0

    def counted() -> Iterator[object]:
        nonlocal given
        for item in items:
            given += 1
            yield item

    outcomes = call(repo, counted())
    assert (given, shown(repo)) == (0, [])
    next(outcomes)
    assert (given, len(shown(repo))) == (BATCH, BATCH)
    assert sum(1 for _ in outcomes) == COUNT - 1
    assert shown(repo) == PATHS


@pytest.mark.parametrize("form", EACH)
def test_each_batch_has_the_operations_deadline_to_itself(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    make_items, call = EACH[form]
    limit_seconds = repo.context.safety.operation_deadline_seconds
    outcomes = call(repo, iter(list(make_items(repo))))
    for _ in range(BATCH):
        next(outcomes)
    entered: list[float] = []
    limit_operation = deadline.limit_operation

    def recorded(clock: Any, seconds: float) -> Any:
        entered.append(seconds)
        return limit_operation(clock, seconds)

    monkeypatch.setattr(deadline, "limit_operation", recorded)
    next(outcomes)
    assert entered == [limit_seconds]
