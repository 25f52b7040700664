"""Whole runs over stores of a lakeFS: what is left is what is named, and what is no data of lakeFS's."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import refstore_prune
from refstore.errors import Corrupt, PruneStopped
from refstore.objects import open_objects
from refstore_prune import PruneReport
from tests.prune.lakefs.lakefs_server import DAY, Answer, Entry, Lakefs, Repository, serve
from tests.prune.lakefs.test_source import fill
from tests.servers.s3_servers import S3Server

NOW = timedelta(0)


def age(store_url: str, days: float = 2) -> None:
    """Let all objects of a folder be so old."""
    at = time.time() - days * DAY
    for file in Path(unquote(urlsplit(store_url).path)).rglob("*"):
        os.utime(file, (at, at))


def data_keys(store_url: str) -> set[str]:
    """Return the keys that are neither refstore's nor lakeFS's own."""
    keys = {info.key for info in open_objects(store_url).list()}
    return {key for key in keys if "_refstore/" not in key and "_lakefs/" not in key}


def metadata_keys(store_url: str) -> set[str]:
    return {info.key for info in open_objects(store_url).list() if "_lakefs/" in info.key}


def prune(lakefs: Lakefs, store_url: str, *names: str, **options: object) -> PruneReport:
    sources = [f"lakefs:{name}" for name in names or ("sales",)]
    return refstore_prune.prune(store_url, sources, endpoint=lakefs.url, engine="local", **options)  # pyright: ignore[reportArgumentType]


def named_keys(repository: Repository) -> set[str]:
    commits = None if repository.rules is None else repository.active_commits() | set(repository.tags.values())
    return {f"{repository.prefix}{address}" for address in repository.named(commits)}


@pytest.mark.parametrize("has_rules", [True, False])
@pytest.mark.parametrize("below", ["", "/sales"])
def test_what_is_left(lakefs: Lakefs, sales: Repository, store_url: str, has_rules: bool, below: str) -> None:
    fill(sales)
    sales.put("old-object-at-the-root", b"x")
    sales.put("old-object-that-is-named", b"x")
    sales.stage("g/old", Entry("old-object-that-is-named", 0))
    sales.stage("h/far", Entry("s3://bucket/far", 2))
    sales.commit()
    if has_rules:
        sales.set_rules(1)
    age(store_url)
    young = sales.write_object()
    before = metadata_keys(store_url)
    store = store_url + below
    simulated = prune(lakefs, store, dry_run=True)
    marked = prune(lakefs, store)
    assert marked.waiting == simulated.waiting == marked.newly_marked
    assert marked.names.outside == 1
    assert marked.state == "marked"
    swept = prune(lakefs, store, grace=NOW)
    assert swept.state == "done"
    assert swept.outcomes["deleted"] == marked.waiting
    assert data_keys(store_url) == {*named_keys(sales), f"sales/{young}"} - {"sales/s3://bucket/far"}
    assert before <= metadata_keys(store_url)


def test_what_happens_between_two_runs(lakefs: Lakefs, sales: Repository, store_url: str) -> None:
    """What is unnamed at the first run, and named again before the second, stays."""
    addresses = fill(sales)
    sales.set_rules(1)
    age(store_url)
    prune(lakefs, store_url)
    sales.create_branch("back", addresses["first commit"])
    sales.stage("linked late", Entry(addresses["never named"]))
    sales.delete_branch("dev")
    swept = prune(lakefs, store_url, grace=NOW)
    left = data_keys(store_url)
    assert swept.named_again.objects >= 2
    assert {f"sales/{addresses[what]}" for what in ("old", "kept", "never named")} <= left
    assert f"sales/{addresses['overwritten']}" not in left
    assert named_keys(sales) <= left


def test_commits_and_uploads_while_a_run_reads(lakefs: Lakefs, sales: Repository, store_url: str) -> None:
    fill(sales)
    sales.set_rules(1)
    sales.page_names = 1
    for number in range(4):
        sales.upload(f"s/{number}")
    age(store_url)
    number = iter(range(1000))

    def go_on(request: str, answer: Answer) -> Answer:
        if request.startswith("POST") or request.endswith("/branches"):
            sales.upload(f"while/{next(number)}")
            sales.commit()
        elif request.endswith("/tags"):
            sales.create_branch(f"branch{next(number)}")
        return answer

    lakefs.change = go_on
    for grace in (timedelta(days=7), NOW, NOW):
        prune(lakefs, store_url, grace=grace)
        assert named_keys(sales) <= data_keys(store_url)


def test_a_repository_that_no_source_reads(lakefs: Lakefs, sales: Repository, store_url: str) -> None:
    fill(sales)
    other = Repository("logs", open_objects(store_url), "local://logs", "logs/")
    fill(other)
    age(store_url)
    with pytest.raises(PruneStopped, match="logs"):
        prune(lakefs, store_url)
    lakefs.repositories["logs"] = other
    prune(lakefs, store_url, "sales", "logs")
    prune(lakefs, store_url, "sales", "logs", grace=NOW)
    assert data_keys(store_url) == named_keys(sales) | named_keys(other)


def test_a_repository_of_which_only_the_server_knows(lakefs: Lakefs, sales: Repository, store_url: str) -> None:
    """It has staged objects, and an older server wrote nothing into its folder of metadata."""
    fill(sales)
    other = Repository("logs", open_objects(store_url), "local://logs", "logs/")
    other.upload("x")
    other.delete("_lakefs/dummy")
    lakefs.repositories["logs"] = other
    age(store_url)
    with pytest.raises(PruneStopped, match="logs"):
        prune(lakefs, store_url)


def test_what_is_beside_the_repository(lakefs: Lakefs, sales: Repository, store_url: str) -> None:
    """An import that is staged names an object there, and lakeFS does not list it among what is uncommitted."""
    addresses = fill(sales)
    root = unquote(urlsplit(store_url).path)
    sales.store.put("raw/imported", b"x")
    sales.store.put("salesman/x", b"x")
    sales.stage("imported", Entry(f"local://{root}/raw/imported", 2))
    age(store_url)
    report = prune(lakefs, store_url)
    prune(lakefs, store_url, grace=NOW)
    left = data_keys(store_url)
    assert {"raw/imported", "salesman/x"} <= left
    assert f"sales/{addresses['never named']}" not in left
    assert report.verdicts["never taken"].objects >= 2
    assert any("outside of sales/" in each for each in report.not_looked_at)


def test_an_error_marks_nothing(lakefs: Lakefs, sales: Repository, store_url: str) -> None:
    fill(sales)
    age(store_url)
    head = sales.commits[sales.branches["main"].head]
    body = sales.store.read(f"sales/_lakefs/{head.metarange}")
    sales.delete(f"_lakefs/{head.metarange}")
    with pytest.raises(Corrupt):
        prune(lakefs, store_url)
    assert [run.state for run in refstore_prune.status(store_url)] == ["failed"]
    sales.put(f"_lakefs/{head.metarange}", body)
    assert prune(lakefs, store_url, grace=NOW).state == "marked"


@pytest.fixture
def s3_sales(rclone_s3_server: S3Server) -> Repository:
    url = rclone_s3_server.url()
    bucket = urlsplit(url).netloc + urlsplit(url).path.rstrip("/")
    store = open_objects(url)
    return Repository("sales", store, f"s3a://{bucket}/ns", "ns/", now=int(time.time()) - 61 * DAY)


def test_a_store_across_a_network(s3_sales: Repository) -> None:
    addresses = fill(s3_sales)
    s3_sales.set_rules(1)
    s3_sales.stage("full", Entry(f"{s3_sales.namespace}/{addresses['overwritten']}", 2))
    store_url = s3_sales.store.url
    lakefs = Lakefs(s3_sales)
    with serve(lakefs):
        options: dict[str, object] = {"min_age": NOW, "consent": ["min-age"]}
        prune(lakefs, store_url, **options)
        assert prune(lakefs, store_url, **options, grace=NOW).state == "done"
    left = data_keys(store_url)
    assert f"ns/{addresses['overwritten']}" in left
    assert left == named_keys(s3_sales) - {f"ns/{s3_sales.namespace}/{addresses['overwritten']}"} | {
        f"ns/{addresses['overwritten']}"
    }
