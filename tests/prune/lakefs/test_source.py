"""What the lakeFS source names: everything that is staged or that a kept commit names, and nothing else."""

from __future__ import annotations

import pickle
from datetime import timedelta
from urllib.parse import unquote, urlsplit

import pytest

from refstore.errors import Invalid, NotFound
from refstore.objects import open_objects
from refstore_prune.sources import open_source
from refstore_prune.sources.base import MetadataPlace, NameSource, SourceOptions
from tests.prune.lakefs.lakefs_server import DAY, Answer, Entry, Lakefs, Repository


def read_names(source: NameSource, store_url: str) -> set[str]:
    """Return the names as keys of the store."""
    source.check(store_url)
    root = unquote(urlsplit(store_url).path).rstrip("/") + "/"
    base = unquote(urlsplit(source.base_url or store_url).path).rstrip("/") + "/"
    names = list[str]()
    for part in source.parts():
        batches = pickle.loads(pickle.dumps(part))() if callable(part) else [part]  # noqa: S301  # as an engine does it
        names += (name for batch in batches for name in batch.to_pylist())
    beginnings = (f"file://{root}", f"local://{root}", root)
    return {
        next((name.removeprefix(each) for each in beginnings if name.startswith(each)), "")
        or (name if "://" in name else (base + name).removeprefix(root))
        for name in names
    }


def keys(repository: Repository, addresses: set[str]) -> set[str]:
    return {f"{repository.prefix}{address}" for address in addresses}


def fill(repository: Repository) -> dict[str, str]:
    """Make commits that share ranges, on branches and tags; return what matters by what it is."""
    addresses = {"old": repository.upload("a/one"), "kept": repository.upload("b/two")}
    for number in range(5):
        repository.upload(f"c/{number}")
    addresses["first commit"] = repository.commit()
    repository.now += 30 * DAY
    addresses["new"] = repository.upload("a/one")
    addresses["second commit"] = repository.commit()
    repository.now += 30 * DAY
    repository.create_branch("dev")
    addresses["on dev"] = repository.upload("d/dev", branch="dev")
    addresses["third commit"] = repository.commit("dev")
    addresses["staged"] = repository.upload("e/staged")
    addresses["overwritten"] = repository.upload("f/again")
    addresses["staged again"] = repository.upload("f/again")
    addresses["never named"] = repository.write_object()
    return addresses


def test_without_rules_all_commits_count(lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str) -> None:
    addresses = fill(sales)
    assert read_names(source, store_url) == keys(sales, sales.named())
    assert keys(sales, {addresses["old"], addresses["staged again"]}) <= keys(sales, sales.named())
    assert not {addresses["overwritten"], addresses["never named"]} & sales.named()
    facts = source.facts()
    assert facts.source == "lakefs:sales"
    assert facts.read["commits"] == 4
    assert facts.read["metaranges"] == 3
    assert facts.read["uncommitted files"] == 1
    assert facts.read["ranges"] == len(_range_ids(sales))


def _range_ids(repository: Repository) -> set[str]:
    metaranges = {commit.metarange for commit in repository.commits.values()}
    prefix = f"{repository.prefix}_lakefs/"
    names = {info.key.removeprefix(prefix) for info in repository.store.list(prefix)}
    return {name for name in names if len(name) == 64} - metaranges


def test_without_rules_commits_of_no_branch_count(source: NameSource, sales: Repository, store_url: str) -> None:
    sales.create_branch("gone")
    address = sales.upload("x", branch="gone")
    sales.commit("gone")
    sales.delete_branch("gone")
    assert f"sales/{address}" in read_names(source, store_url)
    assert source.facts().read["files that no branch leads to"] == 2


def test_rules_let_old_commits_go(lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str) -> None:
    addresses = fill(sales)
    sales.set_rules(10, dev=1)
    kept = sales.active_commits()
    assert addresses["first commit"] not in kept
    names = read_names(source, store_url)
    assert names == keys(sales, sales.named(kept))
    assert f"sales/{addresses['old']}" not in names
    assert f"sales/{addresses['new']}" in names
    assert lakefs.requests.index("POST repositories/sales/gc/prepare_uncommited") < lakefs.requests.index(
        "POST repositories/sales/gc/prepare_commits/async"
    )


def test_an_older_server_without_tasks(lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str) -> None:
    fill(sales)
    sales.set_rules(10)
    lakefs.has_async = False
    assert read_names(source, store_url) == keys(sales, sales.named(sales.active_commits()))


def test_tags_and_hidden_branches_keep_commits(source: NameSource, sales: Repository, store_url: str) -> None:
    addresses = fill(sales)
    sales.tags["v1"] = addresses["first commit"]
    sales.create_branch("hidden", addresses["second commit"], hidden=True)
    sales.set_rules(0)
    names = read_names(source, store_url)
    assert keys(sales, {addresses["old"], addresses["new"]}) <= names


@pytest.mark.parametrize(
    ("document", "is_kept"),
    [
        (b'{"default_retention_days": 1}', False),
        (b'{"default_retention_days": 1, "keep_last": 3}', True),
        (b'{"default_retention_days": 1, "branches": [{"branch_id": "ma*", "retention_days": 90}]}', True),
        (b'{"default_retention_days": 1, "pins": {"commits": ["FIRST"]}}', True),
        (b'{"default_retention_days": 1, "legal_holds": [{"prefix": "a/"}]}', True),
        (b'{"default_retention_days": 1, "legal_holds": [{"prefix": "b/"}]}', False),
        (b"{}", True),
    ],
)
def test_rules_of_ours_keep_more(
    lakefs: Lakefs, sales: Repository, store_url: str, document: bytes, is_kept: bool
) -> None:
    addresses = fill(sales)
    sales.set_rules(1)
    options = SourceOptions(endpoint=lakefs.url, rules=document.replace(b"FIRST", addresses["first commit"].encode()))
    names = read_names(open_source("lakefs:sales", options), store_url)
    assert keys(sales, sales.named(sales.active_commits())) <= names
    assert (f"sales/{addresses['old']}" in names) == is_kept


@pytest.mark.parametrize("has_rules", [True, False])
@pytest.mark.parametrize("is_before", [True, False])
def test_what_is_committed_while_names_are_read(
    lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str, has_rules: bool, is_before: bool
) -> None:
    """All that is staged is committed just before or behind the reading of what is uncommitted, and would be lost if
    that came last.
    """
    fill(sales)
    if has_rules:
        sales.set_rules(1)
    staged = sales.named(set())

    def commit_then(request: str, answer: Answer) -> Answer:
        if request.endswith("gc/prepare_uncommited"):
            sales.commit()
            return (201, sales.prepare_uncommitted(""), {}) if is_before else answer
        return answer

    lakefs.change = commit_then
    assert staged
    assert keys(sales, staged) <= read_names(source, store_url)


def test_many_pages(lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str) -> None:
    fill(sales)
    for number in range(7):
        sales.create_branch(f"branch{number}")
        sales.upload(f"z{number}", branch=f"branch{number}")
        sales.tags[f"v{number}"] = sales.branches["main"].head
    lakefs.page_rows = sales.page_names = 2
    assert read_names(source, store_url) == keys(sales, sales.named())
    assert source.facts().read["uncommitted files"] > 3


def test_nothing_is_committed_or_staged(source: NameSource, store_url: str) -> None:
    assert read_names(source, store_url) == set()


def test_addresses_of_all_types(lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str) -> None:
    root = unquote(urlsplit(store_url).path)
    for path, entry in {
        "full": Entry("local://sales/data/full", 2),
        "absolute": Entry(f"local://{root}/sales/data/absolute", 2),
        "old relative": Entry("old-at-the-root", 0),
        "old full": Entry("local://sales/data/old-full", 0),
        "elsewhere": Entry("s3://bucket/elsewhere", 2),
    }.items():
        sales.stage(path, entry)
    sales.commit()
    assert read_names(source, store_url) == {
        "sales/data/full",
        "sales/data/absolute",
        "sales/old-at-the-root",
        "sales/data/old-full",
        "s3://bucket/elsewhere",
    }


def test_the_store_is_the_namespace_itself(source: NameSource, sales: Repository, store_url: str) -> None:
    addresses = fill(sales)
    names = read_names(source, f"{store_url}/sales")
    assert addresses["old"] in names
    assert source.never_taken_folders == ("_lakefs/",)
    assert source.reads_metadata(MetadataPlace("_lakefs", ""), f"{store_url}/sales")
    assert not source.reads_metadata(MetadataPlace("_delta_log", ""), f"{store_url}/sales")


def test_names_in_the_namespace_of_another_repository(
    lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str
) -> None:
    lakefs.repositories["logs"] = Repository("logs", open_objects(store_url), "local://logs", "logs/")
    sales.stage("imported", Entry("local://logs/data/x", 2))
    sales.commit()
    assert read_names(source, store_url) == {"logs/data/x"}
    assert any("other repositories" in each for each in source.facts().not_seen)


def test_what_stays_beside_the_names(source: NameSource, store_url: str) -> None:
    source.check(store_url)
    assert source.never_taken_folders == ("sales/_lakefs/",)
    assert source.min_age == timedelta(days=1)
    assert source.reads_metadata(MetadataPlace("_lakefs", "sales"), store_url)
    assert not source.reads_metadata(MetadataPlace("_lakefs", "other"), store_url)


def test_links_live_longer(lakefs: Lakefs, store_url: str) -> None:
    options = SourceOptions(endpoint=lakefs.url, properties={"longest_link_hours": "72"})
    assert open_source("lakefs:sales", options).min_age == timedelta(days=3)
    lakefs.change = lambda request, answer: (
        (200, {"grace_period": 5 * DAY}, {}) if request == "GET config/garbage-collection" else answer
    )
    source = open_source("lakefs:sales", options)
    source.check(store_url)
    assert source.min_age == timedelta(days=5)


def test_other_repositories_in_the_store_are_told(lakefs: Lakefs, source: NameSource, store_url: str) -> None:
    other = Repository("logs", open_objects(store_url), "local://logs/here/", "logs/here/")
    lakefs.repositories["logs"] = other
    lakefs.repositories["far"] = Repository("far", open_objects(store_url), "s3://bucket/far", "far/")
    source.check(store_url)
    assert source.metadata_elsewhere() == [MetadataPlace("_lakefs", "logs/here")]
    alone = open_source("lakefs:sales", SourceOptions(endpoint=lakefs.url))
    alone.check(f"{store_url}/sales")
    assert alone.metadata_elsewhere() == []


def test_two_repositories_of_one_namespace_are_refused(lakefs: Lakefs, source: NameSource, store_url: str) -> None:
    """lakeFS makes such a pair by restoring the refs of one into another."""
    lakefs.repositories["copy"] = Repository("copy", open_objects(store_url), "local://sales", "sales/")
    with pytest.raises(Invalid, match="'sales' and 'copy' have one namespace"):
        source.check(store_url)


@pytest.mark.parametrize(
    ("namespace", "store", "properties", "error"),
    [
        ("s3://bucket/sales", "", {}, "prune the store that has it"),
        ("local://other", "", {}, "nothing of lakeFS"),
        ("local://sales", "/sales/data", {}, "nothing of lakeFS"),
        ("local://sales//x", "", {}, "no place that is understood"),
        ("local://sales", "", {"known_as": "local://else"}, "nothing of lakeFS"),
        ("local://x/y/sales", "", {"known_as": "local://x/y"}, ""),
        ("gs://bucket/sales", "", {"known_as": "gs://bucket/"}, ""),
    ],
)
def test_where_the_namespace_lies(
    lakefs: Lakefs,
    sales: Repository,
    store_url: str,
    namespace: str,
    store: str,
    properties: dict[str, str],
    error: str,
) -> None:
    sales.write_object()
    sales.namespace = namespace
    source = open_source("lakefs:sales", SourceOptions(endpoint=lakefs.url, properties=properties))
    if not error:
        assert read_names(source, store_url + store) == set()
        return
    with pytest.raises(Invalid, match=error):
        source.check(store_url + store)


def test_another_repository(lakefs: Lakefs, store_url: str) -> None:
    with pytest.raises(NotFound, match="repositories/salse: not found; check the name"):
        open_source("lakefs:salse", SourceOptions(endpoint=lakefs.url)).check(store_url)


@pytest.mark.parametrize(
    "options",
    [
        SourceOptions(column="x"),
        SourceOptions(properties={"retries": "1"}),
        SourceOptions(properties={"longest_link_hours": "-1"}),
        SourceOptions(rules=b"{"),
        SourceOptions(rules=b"\xff"),
        SourceOptions(rules=b'{"rules": [{"filter": {"prefix": "x"}, "expiration": {"all": {"days": 1}}}]}'),
    ],
)
def test_options_that_it_does_not_know(options: SourceOptions) -> None:
    endpoint = SourceOptions(
        endpoint="http://127.0.0.1:1", column=options.column, rules=options.rules, properties=options.properties
    )
    with pytest.raises(Invalid):
        open_source("lakefs:sales", endpoint)
