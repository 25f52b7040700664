"""Uploads in parts over a server that has them itself: joined and copied there, and aborted there by the reaper, also
where only the server knows of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from refstore.configuration.settings import ReaperSettings
from refstore.core.ids import BranchName
from refstore.core.safety import Safety
from refstore.deletion_history.deletion_journal import JournalWriter
from refstore.kv.memory import MemoryKV
from refstore.kv_recovery.fence import DryRunFence
from refstore.lake import Lake
from refstore.objects import ObjectStore
from refstore.operations import complete_upload, multipart
from refstore.operations.complete_upload import RequestedPart
from refstore.public_types import stored_entry
from refstore.repository import Repository
from refstore_reaper import reaper_pass
from refstore_reaper.throttle import Throttle
from tests.kit.clock import FakeClock
from tests.servers.s3_servers import S3Server

RGW = pytest.param("rgw_server", marks=[pytest.mark.server, pytest.mark.root, pytest.mark.slow])
MAIN = BranchName("main")
DAY = 86_400
BIG = bytes(range(256)) * (5 * 4096)


@pytest.fixture(params=["moto_s3_server", RGW])
def server(request: pytest.FixtureRequest) -> S3Server:
    return request.getfixturevalue(request.param)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def repo(server: S3Server, clock: FakeClock) -> Iterator[Repository]:
    with Lake(MemoryKV(), server.url(), clock=clock, safety=Safety(grace_seconds=0)) as lake:
        yield lake.create_repository("lake")


def run_pass(repo: Repository, *, scrub: bool = False) -> None:
    ctx = repo.context
    tools = reaper_pass.PassTools(
        settings=ReaperSettings(),
        reaper="r1",
        journal=JournalWriter(ctx.objects, "r1", ctx.clock, iter(range(1, 1000))),
        throttle=Throttle(0, ctx.clock),
        random=Random(1),
        should_stop=lambda: False,
        fence=DryRunFence(),
        scrub_requested_ms=ctx.clock.now_ms() if scrub else None,
    )
    reaper_pass.run_pass(ctx, repo.record, tools)


def pending(objects: ObjectStore, server: S3Server) -> list[str]:
    """The keys of uploads that the server has."""
    return server.pending_uploads(objects.url.removeprefix("s3://").partition("/")[2].partition("?")[0])


def test_the_server_joins_and_copies(repo: Repository, server: S3Server) -> None:
    ctx = repo.context
    repo.upload("main", "source", BIG + b"0123456789")
    name = multipart.begin(ctx, MAIN, "p", seconds=DAY).name
    written = [
        multipart.copy_part(ctx, name, 1, stored_entry(repo.stat("main", "source")), 3, len(BIG) + 10),
        multipart.write_part(ctx, name, 2, iter((b"ta", b"il"))),
    ]
    assert pending(ctx.objects, server) != []
    parts = [RequestedPart(item.number, item.part.etag) for item in written if item is not None]
    entry = complete_upload.complete(ctx, name, parts)
    assert repo.read("main", "p") == (BIG + b"0123456789")[3:] + b"tail"
    assert complete_upload.complete(ctx, name, parts) == entry
    assert pending(ctx.objects, server) == []
    repo.commit("main", "c")
    run_pass(repo, scrub=True)
    assert repo.read("main", "p")[-4:] == b"tail"


def test_the_reaper_aborts_what_only_the_server_knows(repo: Repository, server: S3Server, clock: FakeClock) -> None:
    ctx = repo.context
    name = multipart.begin(ctx, MAIN, "p", seconds=DAY).name
    ctx.objects.begin_upload(name.address)  # as after a request whose answer was lost
    multipart.write_part(ctx, name, 1, b"x")
    clock.advance(DAY - 60)
    run_pass(repo, scrub=True)
    assert len(pending(ctx.objects, server)) == 2, "it is open until its deadline"
    clock.advance(3 * 60)
    run_pass(repo)
    assert pending(ctx.objects, server) == []
    assert multipart.list_uploads(ctx, MAIN).uploads == ()
