"""The audit finds what is lost and what is leaked, and nothing where nothing is: over the drivers themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import refstore
from refstore.core.ids import BranchName, CommitId
from refstore.kv.base import ABSENT
from refstore.lake import Lake
from refstore.records import keys
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode
from refstore.repository import Repository
from tests.kit.independent_audit import Audit, audit

DAY_MS = 86_400_000


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with refstore.create(str(tmp_path)) as opened:
        yield opened


@pytest.fixture
def repo(lake: Lake) -> Repository:
    made = lake.create_repository("audited")
    made.upload("main", "committed", b"1")
    made.commit("main", "first")
    made.upload("main", "staged", b"2")
    return made


def look(lake: Lake, repo: Repository, *, days: int = 0) -> Audit:
    ctx = repo.context
    return audit(
        lake.kv, ctx.objects, ctx.repo, now_ms=lake.clock.now_ms() + days * DAY_MS, grace_seconds=ctx.grace_seconds
    )


def test_counts_what_is_there(lake: Lake, repo: Repository) -> None:
    found = look(lake, repo)
    assert found.ok, found.findings()
    assert (found.branches, found.commits, found.staged, found.committed, found.objects) == (1, 2, 1, 1, 2)


@pytest.mark.parametrize("path", ["staged", "committed"])
def test_a_named_object_that_is_gone_is_lost(lake: Lake, repo: Repository, path: str) -> None:
    address = repo.stat("main", path).address
    repo.context.objects.delete_many([address])
    found = look(lake, repo)
    assert [lost.what for lost in found.lost] == [address]
    assert not found.ok


def test_an_object_that_nothing_names_is_leaked(lake: Lake, repo: Repository) -> None:
    address = repo.stat("main", "staged").address
    stranger = f"{address[:-4]}zzzz"
    repo.context.objects.put(stranger, b"3")
    assert [leaked.address for leaked in look(lake, repo).leaked] == [stranger]


def test_grace_ends(lake: Lake, repo: Repository) -> None:
    repo.delete("main", "staged")
    assert look(lake, repo).in_grace == 1
    assert look(lake, repo).ok
    assert len(look(lake, repo, days=2).leaked) == 1


def test_an_issued_address_counts_until_it_expires(lake: Lake, repo: Repository) -> None:
    issued = repo.issue("main", "later")
    repo.context.objects.put(issued.address, b"4")
    assert look(lake, repo).issued == 1
    assert [leaked.address for leaked in look(lake, repo, days=1).leaked] == [issued.address]


def test_a_missing_range_and_a_missing_commit_are_lost(lake: Lake, repo: Repository) -> None:
    ctx = repo.context
    head = repo.get_branch("main").head
    value = lake.kv.get(keys.commit(ctx.repo, head))
    assert value is not ABSENT
    metarange = decode(value, StoredCommit).metarange
    ctx.objects.delete_many([f"_refstore/metaranges/{metarange}.parquet"])
    assert [lost.what for lost in look(lake, repo).lost] == [f"_refstore/metaranges/{metarange}.parquet"]
    lake.kv.delete(keys.commit(ctx.repo, CommitId(head)))
    assert f"commit {head}" in [lost.what for lost in look(lake, repo).lost]


def test_what_cannot_be_read_is_told(lake: Lake, repo: Repository) -> None:
    ctx = repo.context
    token = repo.context.branches.read_open(BranchName("main")).record.token
    lake.kv.set(keys.entry(ctx.repo, token, "bad"), b"\xc1")
    found = look(lake, repo)
    assert len(found.unreadable) == 1
    assert not found.ok
