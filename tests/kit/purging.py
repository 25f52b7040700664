"""Purges for the explorer: the product's replacing, cleaning and deletion. Contents say what was done to them.

The content `P0-a` is P0 without the rows of run a. What no protocol rests on is left out: which backups are due (all
are, once whoever may need them has ended), legal holds, and hidden branches.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

from refstore.core.ids import Address, own_address
from refstore.errors import Contention, Gone, NotFound, NothingToCommit, ObjectNotFound
from refstore.kv_recovery.fence import DryRunFence
from refstore.purge_document.document import BackupPolicy, Dataset, PurgeDocument, TrashPolicy
from refstore.records.location_records import Content
from refstore_purge import purge_cleanup, purge_plan
from refstore_purge.content_replacement import ReplacementAttempt, replace_contents
from tests.kit.replay import Stage
from tests.reaping import NoJournal

if TYPE_CHECKING:
    from tests.kit.domain import Tools


EVERYTHING = Dataset("everything", "", "id", "rewrite", "csv")


def purge(run: str, identity: str, body: bytes, *, then_read: str = "") -> Stage:
    """Take a run's rows out of an object: announce, then replace until nothing is busy, at most three times.
    `then_read`: a path on main that shows it.
    """
    return Stage(f"purge {run}", _purge, (run, own_address(identity), len(body), then_read))


def purge_all(run: str) -> Stage:
    """Take a run's rows out of every object that its plan finds."""
    return Stage(f"purge {run} of all", _purge_all, (run,))


def restore_and_read(run: str, path: str, identity: str) -> Stage:
    """Behind a run that was acknowledged, take an object back to main, if that can be done: it shows none of the rows.
    `path`: nobody uploads anything there.
    """
    return Stage(f"restore and read {path}", _restore_and_read, (run, path, own_address(identity)))


def upload_again(path: str, body: bytes) -> Stage:
    """Upload a body to main, commit what there is to commit, and read it."""
    return Stage(f"upload again {path}", _upload_again, (path, body))


def clean(number: int = 1, *, waits: bool = True, fence: bool = False) -> Stage:
    """End all backups. `number`: tells the cleanings of one task apart. `waits`: as a cleaning does, for those who may
    need them. `fence`: the KV may lose writes, so pass the fence of rule 21.
    """
    return Stage(f"clean-{number}", _clean, (waits, fence))


def restore_content(identity: str, address: str) -> Stage:
    return Stage("restore content", _restore, (own_address(identity), Address(address)))


def _purge(tools: Tools, run: str, identity: Address, size_bytes: int, then_read: str) -> None:
    tools.ctx.locations.announce()
    _replace(tools, run, [(identity, Content(identity, size_bytes, ""))])
    if then_read:
        body = tools.repo.read("main", then_read)
        assert f"-{run}".encode() in body, f"the run {run} was acknowledged, and its rows are there: {body!r}"


def _purge_all(tools: Tools, run: str) -> None:
    with mock.patch.object(purge_plan, "legal_hold_prefixes", return_value=()):
        planned = purge_plan.plan_versions(tools.repo, [EVERYTHING], {EVERYTHING.name: "ids"})
    originals = [
        (Address(each.address), each.original_content) for each in planned.objects if each.original_content is not None
    ]
    if originals:
        tools.ctx.locations.announce()
        _replace(tools, run, originals)


def _restore_and_read(tools: Tools, run: str, path: str, identity: Address) -> None:
    with suppress(NotFound, Gone, Contention):
        tools.repo.restore(identity, to="main", path=path)
    with suppress(NotFound):
        body = tools.repo.read("main", path)
        assert f"-{run}".encode() in body, f"the run {run} was acknowledged, and its rows are restored: {body!r}"


def _replace(tools: Tools, run: str, originals: Sequence[tuple[Address, Content]]) -> None:
    """Until nothing is busy, at most three times."""
    ctx, mark = tools.ctx, f"-{run}".encode()

    def write(attempts: Sequence[ReplacementAttempt]) -> list[Content | None]:
        made: list[Content | None] = []
        for attempt in attempts:
            try:
                body = ctx.objects.read(attempt.current.address)
            except ObjectNotFound:
                made.append(None)  # nobody names it any more
                continue
            if body.endswith(mark) or mark + b"-" in body:
                made.append(None)  # no rows of the run are left
                continue
            ctx.objects.put(attempt.target_address, body + mark, if_absent=True)
            made.append(Content(attempt.target_address, len(body + mark), "", run=run))
        return made

    for _ in range(3):
        if not replace_contents(ctx, run, originals, write, lambda _: None):
            return
    raise Contention("others kept changing it")  # a run reports it as not purged


def _upload_again(tools: Tools, path: str, body: bytes) -> None:
    tools.repo.upload("main", path, body)
    with suppress(NothingToCommit):
        tools.repo.commit("main", "uploaded again")
    there = tools.repo.read("main", path)
    assert there == body, f"the upload of {body!r} was acknowledged and committed, and {path!r} is {there!r}"


def _clean(tools: Tools, waits: bool, fence: bool) -> None:  # a stage's arguments are positional
    if waits:
        tools.stores.wait_for_others()
    with _only_the_protocol(), nullcontext() if fence else _without_a_fence():
        purge_cleanup.clean_up(tools.ctx)


def _restore(tools: Tools, identity: Address, address: Address) -> None:
    tools.ctx.locations.restore(identity, address, "restore")


@contextmanager
def _only_the_protocol() -> Generator[None]:
    everything = PurgeDocument(backup=BackupPolicy(0, 0), trash=TrashPolicy(0))
    results: dict[str, object] = {
        "read_document": everything,
        "find_held_addresses": set[str](),
        "JournalWriter": NoJournal(),
        "compute_wait_seconds": 0.0,
    }
    stand_ins: dict[str, Any] = {name: mock.Mock(return_value=result) for name, result in results.items()}
    with mock.patch.multiple(purge_cleanup, **stand_ins):
        yield


def _without_a_fence() -> AbstractContextManager[object]:
    return mock.patch.object(purge_cleanup.kv_guard, "begin_guarded_pass", return_value=DryRunFence())
