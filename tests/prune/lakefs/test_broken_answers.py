"""What lakeFS answers is trusted only as far as its description goes: anything else ends the reading with an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refstore.errors import Corrupt, Invalid, NotFound, RefstoreError, Unavailable
from refstore.objects import open_objects
from refstore_prune.sources.base import NameSource
from refstore_prune.sources.lakefs.client import LakefsClient
from refstore_prune.sources.lakefs.credentials import LakefsLogin
from refstore_prune.sources.lakefs.source import READINGS_MAX, LakefsSource
from tests.api.test_tls import Pair
from tests.kit.clock import FakeClock
from tests.prune.lakefs.lakefs_server import ACCESS_KEY, SECRET_KEY, Answer, Lakefs, Repository, encode_mark, serve
from tests.prune.lakefs.test_source import fill, keys, read_names

UNCOMMITTED = "POST repositories/sales/gc/prepare_uncommited"
COMMITS = "POST repositories/sales/gc/prepare_commits"
ASYNC = f"{COMMITS}/async"
STATUS = "GET repositories/sales/gc/prepare_commits/status"
BRANCHES = "GET repositories/sales/branches"
REPOSITORY = "GET repositories/sales"

Change = Callable[[Any], Any]


def without(name: str) -> Change:
    return lambda content: {key: value for key, value in content.items() if key != name}


def with_(**values: object) -> Change:
    return lambda content: {**content, **values}


def in_result(change: Change) -> Change:
    return lambda content: {**content, "result": change(content["result"])} if "result" in content else content


def page_with(**values: object) -> Change:
    return lambda content: {**content, "pagination": {**content["pagination"], **values}}


CASES: dict[str, tuple[str, Change, type[RefstoreError], str]] = {
    "no JSON": (REPOSITORY, lambda _: b"<html>", Corrupt, "not what lakeFS's API describes"),
    "half an answer": (UNCOMMITTED, lambda content: json.dumps(content).encode()[:30], Corrupt, "prepare_uncommited"),
    "a repository without a namespace": (REPOSITORY, without("storage_namespace"), Corrupt, "storage_namespace"),
    "a page without a run": (UNCOMMITTED, without("run_id"), Corrupt, "run_id"),
    "a page without a location": (UNCOMMITTED, without("gc_uncommitted_location"), Corrupt, "gc_uncommitted_location"),
    "a page of another run": (
        UNCOMMITTED,
        with_(continuation_token=encode_mark("x")),
        Corrupt,
        "belongs to the run 'x'",
    ),
    "a page that comes again": (
        UNCOMMITTED,
        lambda content: {**content, "continuation_token": encode_mark(content["run_id"])},
        Corrupt,
        "read before",
    ),
    "a location elsewhere": (
        UNCOMMITTED,
        with_(gc_uncommitted_location="local://other/_lakefs/x/"),
        Corrupt,
        "in 'local://sales/'",
    ),
    "another folder of metadata": (
        UNCOMMITTED,
        with_(gc_uncommitted_location="local://sales/_meta/retention/gc/uncommitted/x/uncommitted/"),
        Corrupt,
        "block_storage_prefix",
    ),
    "branches without a page": (BRANCHES, without("pagination"), Corrupt, "pagination"),
    "a page of branches that is cut off": (BRANCHES, page_with(results=3), Corrupt, "has 3 rows, and has 2"),
    "branches that go on without end": (BRANCHES, page_with(has_more=True, next_offset="main"), Corrupt, "read before"),
    "branches that go on nowhere": (BRANCHES, page_with(has_more=True, next_offset=""), Corrupt, "read before"),
    "a branch without a commit": (
        BRANCHES,
        lambda content: {**content, "results": [{"id": "main"}, {"id": "dev"}]},
        Corrupt,
        "commit_id",
    ),
    "a task without an id": (ASYNC, without("id"), Corrupt, "id"),
    "a task that ends without a result": (STATUS, with_(completed=True), Corrupt, "has no result"),
    "a task that fails": (STATUS, with_(completed=True, error={"message": "out of disk"}), Unavailable, "out of disk"),
    "another task": (STATUS, with_(task_id="other"), Corrupt, "'other'"),
    "a result without a location": (STATUS, in_result(without("gc_commits_location")), Corrupt, "gc_commits_location"),
    "commits elsewhere": (
        STATUS,
        in_result(with_(gc_commits_location="local://sales/data/commits.csv")),
        Corrupt,
        "which should be",
    ),
    "commits of another run": (STATUS, in_result(with_(run_id="x")), Corrupt, "which should be"),
}


@pytest.mark.parametrize("case", CASES)
def test_broken_answers(lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str, case: str) -> None:
    request, change, error, message = CASES[case]
    fill(sales)
    sales.set_rules(1)
    lakefs.change = lambda asked, answer: (
        (answer[0], change(answer[1]), answer[2]) if asked == request and answer[0] < 300 else answer
    )
    with pytest.raises(error, match=message) as raised:
        read_names(source, store_url)
    assert SECRET_KEY not in str(raised.value)
    assert "; " in str(raised.value)


FILES: dict[str, tuple[Callable[[bytes, Repository], bytes], str]] = {
    "no header": (lambda body, _: body.partition(b"\n")[2], "does not begin with"),
    "an empty file": (lambda _body, _: b"", "does not begin with"),
    "cut off in a line": (lambda body, _: body[:-5], "within a line|not a commit"),
    "cut off behind a line": (lambda body, _: b"".join(body.splitlines(keepends=True)[:-1]), "is cut off"),
    "only a header": (lambda body, _: body.splitlines(keepends=True)[0], "keeps no commit"),
    "an unknown expiry": (lambda body, _: body.replace(b",false,", b",maybe,"), "'maybe'"),
    "everything has expired": (lambda body, _: body.replace(b",false,", b",true,"), "keeps no commit"),
    "an id that is none": (lambda body, _: body.replace(b",false,", b",false,../"), "not a commit"),
    "a column more": (lambda body, _: body.replace(b",false,", b",false,,"), "not a commit"),
    "bytes that are no text": (lambda body, _: body + b"\xff\n", "cannot be trusted"),
    "the first commit's metarange for all": (
        lambda body, _: b"".join(line.rpartition(b",")[0] + b",\n" if n else line for n, line in _lines(body)),
        "said to name nothing",
    ),
}


def _lines(body: bytes) -> list[tuple[int, bytes]]:
    return list(enumerate(body.splitlines(keepends=True)))


@pytest.mark.parametrize("case", FILES)
def test_broken_lists_of_commits(
    lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str, case: str
) -> None:
    change, message = FILES[case]
    fill(sales)
    sales.delete_branch("dev")
    sales.set_rules(1)

    def change_file(request: str, answer: Answer) -> Answer:
        if request == STATUS and "result" in answer[1]:
            key = answer[1]["result"]["gc_commits_location"].removeprefix("local://")
            body = sales.store.read(key)
            head = sales.branches["main"].head.encode()
            lines = body.splitlines(keepends=True)
            ordered = [lines[0], *sorted(lines[1:], key=lambda line: line.startswith(head))]
            sales.store.put(key, change(b"".join(ordered), sales))
        return answer

    lakefs.change = change_file
    with pytest.raises(Corrupt, match=message):
        read_names(source, store_url)


def test_a_list_of_commits_that_is_not_there(
    lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str
) -> None:
    fill(sales)
    sales.set_rules(1)

    def remove_file(request: str, answer: Answer) -> Answer:
        if request == STATUS and "result" in answer[1]:
            sales.store.delete_many([answer[1]["result"]["gc_commits_location"].removeprefix("local://")])
        return answer

    lakefs.change = remove_file
    with pytest.raises(Corrupt, match="is not there"):
        read_names(source, store_url)


def test_a_head_that_moves_while_commits_are_listed(
    lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str
) -> None:
    addresses = fill(sales)
    sales.set_rules(0)

    def move(request: str, answer: Answer) -> Answer:
        if request == ASYNC:
            sales.now += 1000
            sales.commit()
            sales.now += 1000
            sales.branches["main"].staged.clear()
        return answer

    lakefs.change = move
    head = sales.branches["main"].head
    assert keys(sales, sales.named({head}) - {addresses["staged"]}) <= read_names(source, store_url)


def test_a_history_that_lacks_a_commit(lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str) -> None:
    fill(sales)

    def drop_the_oldest(request: str, answer: Answer) -> Answer:
        if not request.endswith("/commits"):
            return answer
        commits = answer[1]["results"][:-1]
        return 200, {"pagination": {**answer[1]["pagination"], "results": len(commits)}, "results": commits}, {}

    lakefs.change = drop_the_oldest
    with pytest.raises(Corrupt, match="without commit"):
        read_names(source, store_url)


@pytest.mark.parametrize("has_rules", [True, False])
@pytest.mark.parametrize("what", ["metarange", "range"])
def test_metadata_that_is_gone(
    source: NameSource, sales: Repository, store_url: str, what: str, has_rules: bool
) -> None:
    fill(sales)
    if has_rules:
        sales.set_rules(1)
    head = sales.commits[sales.branches["main"].head]
    gone = {head.metarange}
    if what == "range":
        gone = {
            info.key.rpartition("/")[2]
            for info in sales.store.list("sales/_lakefs/")
            if b"metaranges" not in sales.store.read(info.key) and len(info.key.rpartition("/")[2]) == 64
        }
    for name in gone:
        sales.delete(f"_lakefs/{name}")
    with pytest.raises(Corrupt, match=f"{what}.*put it back"):
        read_names(source, store_url)


def test_a_range_of_no_branch_that_is_gone(source: NameSource, sales: Repository, store_url: str) -> None:
    sales.create_branch("gone")
    sales.upload("x", branch="gone")
    sales.commit("gone")
    sales.delete_branch("gone")
    for info in list(sales.store.list("sales/_lakefs/")):
        if b"metaranges" not in sales.store.read(info.key) and len(info.key.rpartition("/")[2]) == 64:
            sales.store.delete_many([info.key])
    with pytest.raises(Corrupt, match="of the metarange"):
        read_names(source, store_url)


def test_a_file_that_is_neither(source: NameSource, sales: Repository, store_url: str) -> None:
    sales.put(f"_lakefs/{'a' * 64}", b"something else")
    with pytest.raises(Corrupt):
        read_names(source, store_url)


@pytest.mark.parametrize("body", [None, b"", b"PAR1", b"no Parquet at all"])
def test_files_of_what_is_uncommitted(
    lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str, body: bytes | None
) -> None:
    sales.upload("x")

    def break_file(request: str, answer: Answer) -> Answer:
        if request == UNCOMMITTED:
            for info in list(sales.store.list("sales/_lakefs/retention/gc/uncommitted/")):
                if body is None:
                    sales.store.delete_many([info.key])
                else:
                    sales.store.put(info.key, body)
        return answer

    lakefs.change = break_file
    with pytest.raises(Corrupt, match="0 are there" if body is None else "no whole Parquet"):
        read_names(source, store_url)


def answer_nothing(sales: Repository, answer: Answer, next_branch: str = "") -> Answer:
    """Return the answer of a lakeFS that has written no file."""
    sales.store.delete_many([info.key for info in list(sales.store.list("sales/_lakefs/retention/gc/uncommitted/"))])
    token = encode_mark(answer[1]["run_id"], next_branch) if next_branch else ""
    return 201, {**answer[1], "gc_uncommitted_location": "", "continuation_token": token}, {}


def test_lakefs_overlooks_what_is_uncommitted(
    lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str
) -> None:
    """It does if a branch is deleted while it makes the list."""
    address = sales.upload("x")
    lakefs.change = lambda request, answer: (
        answer_nothing(sales, answer) if request == UNCOMMITTED and lakefs.requests.count(request) == 1 else answer
    )
    assert f"sales/{address}" in read_names(source, store_url)


def test_lakefs_overlooks_it_again_and_again(
    lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str
) -> None:
    sales.upload("x")
    lakefs.change = lambda request, answer: answer_nothing(sales, answer) if request == UNCOMMITTED else answer
    with pytest.raises(Unavailable, match="on branch 'main'; run again while no branches are deleted"):
        read_names(source, store_url)
    assert lakefs.requests.count(UNCOMMITTED) == READINGS_MAX


def test_a_part_of_the_branches_has_nothing_uncommitted(
    lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str
) -> None:
    address = sales.upload("x")
    sales.create_branch("a")
    sales.remove("y", branch="a")
    lakefs.change = lambda request, answer: (
        answer_nothing(sales, answer, "main")
        if request == UNCOMMITTED and lakefs.requests.count(request) == 1
        else answer
    )
    assert f"sales/{address}" in read_names(source, store_url)
    assert lakefs.requests.count(UNCOMMITTED) == 2
    assert [request for request in lakefs.requests if "diff" in request] == ["GET repositories/sales/branches/a/diff"]


# ---- the server as such


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The clock by which the client waits."""
    clock = FakeClock()
    monkeypatch.setattr("urllib3.util.retry.time.sleep", clock.sleep)
    return clock


@pytest.fixture
def client(lakefs: Lakefs, clock: FakeClock) -> LakefsClient:
    login = LakefsLogin(f"{lakefs.url}/api/v1", ACCESS_KEY, SECRET_KEY)
    return LakefsClient(login, "sales", clock=clock)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(
    lakefs: Lakefs, client: LakefsClient, sales: Repository, store_url: str, status: int
) -> None:
    fill(sales)
    sales.set_rules(1)
    seen = set[str]()

    def refuse_once(request: str, answer: Answer) -> Answer:
        if request in seen:
            return answer
        seen.add(request)
        return status, {"message": "busy"}, {"Retry-After": "7"}

    lakefs.change = refuse_once
    names = read_names(LakefsSource("sales", client), store_url)
    assert names == keys(sales, sales.named(sales.active_commits()))


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_stays_busy(lakefs: Lakefs, client: LakefsClient, clock: FakeClock, status: int) -> None:
    lakefs.change = lambda _request, _answer: (status, {"message": "come back later"}, {})
    began = clock.monotonic_seconds()
    with pytest.raises(Unavailable, match=f"answers {status} .come back later"):
        client.repository()
    assert 30 <= clock.monotonic_seconds() - began <= 120


def test_a_server_that_is_not_there(clock: FakeClock) -> None:
    client = LakefsClient(LakefsLogin("http://127.0.0.1:1/api/v1", ACCESS_KEY, SECRET_KEY), "sales", clock=clock)
    with pytest.raises(Unavailable, match="Connection refused") as raised:
        client.repository()
    assert SECRET_KEY not in str(raised.value)


def test_a_proxy_that_the_environment_names(lakefs: Lakefs, sales: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    login = LakefsLogin("http://lakefs.example/api/v1", ACCESS_KEY, SECRET_KEY)
    monkeypatch.setenv("http_proxy", lakefs.url.replace("://", "://user:word%20@"))
    monkeypatch.setenv("no_proxy", "localhost")
    assert LakefsClient(login, "sales").repository().storage_namespace == sales.namespace


def test_an_answer_that_breaks_off(lakefs: Lakefs, client: LakefsClient) -> None:
    lakefs.change = lambda _request, answer: (answer[0], b"{", {"Content-Length": "400"})
    with pytest.raises(Unavailable, match="IncompleteRead"):
        client.repository()


def test_a_task_that_never_ends(lakefs: Lakefs, client: LakefsClient, sales: Repository) -> None:
    sales.set_rules(1)
    lakefs.change = lambda request, answer: (
        (200, {**answer[1], "completed": False, "result": None}, {}) if request == STATUS else answer
    )
    with pytest.raises(Unavailable, match="has not said within 3600 s"):
        client.prepare_commits()


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (301, Invalid, "redirects are not followed"),
        (400, Invalid, "its version"),
        (401, Invalid, "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY"),
        (403, Invalid, "permission"),
        (404, NotFound, "check the name"),
    ],
)
def test_a_server_that_refuses(
    lakefs: Lakefs, client: LakefsClient, status: int, error: type[RefstoreError], message: str
) -> None:
    lakefs.change = lambda _request, _answer: (status, {"message": "why"}, {"Location": "http://127.0.0.1:1/"})
    with pytest.raises(error, match=f"answers {status} .*: why; .*{message}") as raised:
        client.link_seconds() if status != 404 else next(client.tags())
    assert SECRET_KEY not in str(raised.value)


def test_a_certificate_that_is_not_trusted(sales: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path / "certificate.pem", tmp_path / "key.pem")
    pair.renew()
    lakefs = Lakefs(sales)
    with serve(lakefs, *pair):
        login = LakefsLogin(f"{lakefs.url}/api/v1", ACCESS_KEY, SECRET_KEY)
        with pytest.raises(Invalid, match="give SSL_CERT_FILE"):
            LakefsClient(login, "sales").repository()
        assert lakefs.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(pair.certificate))
        assert LakefsClient(login, "sales").repository().storage_namespace == sales.namespace


def test_a_key_that_others_can_read_is_told(caplog: pytest.LogCaptureFixture) -> None:
    LakefsClient(LakefsLogin("http://lakefs.example.com/api/v1", ACCESS_KEY, SECRET_KEY), "sales")
    assert "access_key_sent_without_tls" in caplog.text
    assert SECRET_KEY not in caplog.text
    caplog.clear()
    LakefsClient(LakefsLogin("http://localhost/api/v1", ACCESS_KEY, SECRET_KEY), "sales")
    assert not caplog.text


def test_a_key_that_is_wrong(lakefs: Lakefs) -> None:
    client = LakefsClient(LakefsLogin(f"{lakefs.url}/api/v1", ACCESS_KEY, "wrong"), "sales")
    with pytest.raises(Invalid, match="401"):
        client.repository()


def test_a_key_that_may_not_list_repositories(
    lakefs: Lakefs, source: NameSource, sales: Repository, store_url: str
) -> None:
    fill(sales)
    lakefs.change = lambda request, answer: (403, {"message": "no"}, {}) if request == "GET repositories" else answer
    assert read_names(source, store_url) == keys(sales, sales.named())
    assert any("other repositories" in each for each in source.facts().not_seen)


def test_nothing_is_written_through_the_store(source: NameSource, sales: Repository, store_url: str) -> None:
    fill(sales)
    before = {info.key for info in open_objects(store_url).list()}
    read_names(source, store_url)
    new = {info.key for info in open_objects(store_url).list()} - before
    assert all(key.startswith("sales/_lakefs/retention/gc/uncommitted/") for key in new)
