"""What the S3 store does when the server or the way to it fails: the outcome is exact, or an error says that it is not
known.

A proxy before the server makes things go wrong by plan; moto answers quickly, Ceph RGW for real.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from refstore.conformance.objects_suite import MIB, fill, pattern
from refstore.core.clock import SystemClock
from refstore.errors import AlreadyExists, ObjectNotFound, ObjectsRefused, ObjectsUnavailable
from refstore.objects import ObjectStore, open_objects
from refstore.objects.base import DeleteResult, ObjectPage, SkippedKeys
from tests.kit.clock import FakeClock
from tests.servers.s3_base import BUCKET, S3Server
from tests.servers.s3_proxy import (
    ChangeBody,
    CutBody,
    DropReply,
    FailKeys,
    Fault,
    ProxiedRequest,
    RandomFaults,
    Refuse,
    Reply,
    Rewrite,
    S3FaultProxy,
    WithoutRange,
)

Which = Callable[[ProxiedRequest], bool]


class Bench:
    """A store behind a proxy, and the same store without it."""

    def __init__(self, server: S3Server, proxy: S3FaultProxy) -> None:
        url = server.url()
        self.server = server
        self.proxy = proxy
        self.clock = FakeClock()
        self.prefix = url.removeprefix(f"s3://{BUCKET}/").partition("?")[0]
        self.direct = open_objects(url)
        self.store = open_objects(
            url.replace(server.endpoint, proxy.endpoint), clock=self.clock, rng=random.Random(1), io_timeout_seconds=30
        )

    def close(self) -> None:
        self.store.close()
        self.direct.close()

    def always(self, fault: Fault, which: Which) -> None:
        self.proxy.plan = lambda request: fault if which(request) else None

    def once(self, fault: Fault, which: Which) -> None:
        self.times(1, fault, which)

    def times(self, count: int, fault: Fault, which: Which) -> None:
        left = itertools.count(count, -1)
        self.proxy.plan = lambda request: fault if which(request) and next(left) > 0 else None

    def asked(self, which: Which) -> list[ProxiedRequest]:
        return [request for request, _ in self.proxy.log if which(request)]

    def keys(self) -> list[str]:
        return [info.key for info in self.direct.list()]

    def full(self, keys: list[str]) -> frozenset[str]:
        return frozenset(f"{self.prefix}/{key}" for key in keys)

    def uploads(self) -> list[str]:
        with self.server.client() as client:
            try:
                found = client.list_multipart_uploads(Bucket=BUCKET, Prefix=self.prefix).get("Uploads", ())
            except client.exceptions.NoSuchUpload:  # rclone, when there are none
                return []
            return [upload["Key"] for upload in found if upload["Key"].startswith(self.prefix)]


@pytest.fixture(autouse=True)
def _boto_does_not_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)


def bench_before(server: S3Server) -> Iterator[Bench]:
    with S3FaultProxy(server.endpoint) as proxy:
        bench = Bench(server, proxy)
        yield bench
        bench.close()


@pytest.fixture(params=["moto", pytest.param("rgw", marks=[pytest.mark.server, pytest.mark.root, pytest.mark.slow])])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from bench_before(
        request.getfixturevalue(f"{request.param}{'_s3' if request.param == 'moto' else ''}_server")
    )


@pytest.fixture
def quick(moto_s3_server: S3Server) -> Iterator[Bench]:
    """For what the proxy answers by itself."""
    yield from bench_before(moto_s3_server)


@pytest.fixture
def on_rclone(rclone_s3_server: S3Server) -> Iterator[Bench]:
    yield from bench_before(rclone_s3_server)


def collect(chunks: Iterator[bytes], into: bytearray) -> None:
    for chunk in chunks:
        into += chunk


def any_request(request: ProxiedRequest) -> bool:
    return True


def bulk_delete(request: ProxiedRequest) -> bool:
    return request.is_bulk_delete


def get_object(request: ProxiedRequest) -> bool:
    return request.is_get_object


def put_object(request: ProxiedRequest) -> bool:
    return request.is_put_object


def listing(request: ProxiedRequest) -> bool:
    return request.is_list


# -- a server that is overloaded


def test_now_and_then_a_503_is_not_noticed(bench: Bench):
    number = itertools.count()
    bench.proxy.plan = lambda _: Refuse() if next(number) % 3 == 0 else None
    for key in ("a", "b", "c"):
        bench.store.put(key, key.encode())
    bench.store.put("large", pattern(9 * MIB))
    assert bench.store.read("b") == b"b"
    assert bench.store.head("large").size_bytes == 9 * MIB
    assert [info.key for info in bench.store.list()] == ["a", "b", "c", "large"]
    assert bench.store.delete_many(["a", "b", "large"]) == DeleteResult(("a", "b", "large"), (), ())
    assert bench.keys() == ["c"]
    assert len([fault for _, fault in bench.proxy.log if fault]) > 3


def test_a_server_that_always_answers_503(quick: Bench):
    quick.direct.put("a", b"x")
    quick.always(Refuse(), any_request)
    attempts: list[Callable[[], object]] = [
        lambda: quick.store.put("b", b"x"),
        lambda: quick.store.put("b", b"x", if_absent=True),
        lambda: quick.store.put("b", pattern(9 * MIB)),
        lambda: quick.store.get("a"),
        lambda: quick.store.head("a"),
        lambda: list(quick.store.list()),
        lambda: quick.store.delete_many(["a"]),
    ]
    for attempt in attempts:
        with pytest.raises(ObjectsUnavailable, match="try again later") as raised:
            attempt()
        assert raised.value.retryable
    assert quick.keys() == ["a"]


# -- deleting


def test_keys_that_fail_once_are_deleted_in_the_next_round(bench: Bench):
    keys = [f"data/1/{number:04}" for number in range(1000)]
    failing = [keys[0], keys[500], keys[999]]
    fill(bench.direct, [*failing, keys[1], keys[499], keys[998]])  # S3 says of what is not there that it was deleted
    bench.once(FailKeys(bench.full(failing)), bulk_delete)
    assert bench.store.delete_many(keys) == DeleteResult(tuple(keys), (), ())
    assert bench.keys() == []
    first, second = bench.asked(bulk_delete)
    assert len(first.delete_keys) == 1000
    assert frozenset(second.delete_keys) == bench.full(failing), "only what failed is asked for again"
    assert len(bench.clock.slept_seconds) == 1


def test_keys_that_keep_failing_are_told_and_are_still_there(bench: Bench):
    keys = [f"data/1/{number:04}" for number in range(1000)]
    failing = [keys[0], keys[500], keys[999]]
    fill(bench.direct, [*failing, keys[1], keys[499], keys[998]])  # S3 says of what is not there that it was deleted
    bench.always(FailKeys(bench.full(failing)), bulk_delete)
    deletion = bench.store.delete_many(keys)
    assert sorted(deletion.failed_keys) == [(key, "InternalError (by plan)") for key in failing]
    assert set(deletion.deleted_keys) == set(keys) - set(failing)
    assert deletion.missing_keys == ()
    assert bench.keys() == failing
    assert len(bench.asked(bulk_delete)) == 4, "a bounded number of rounds"
    assert all(0 <= pause <= 1 for pause in bench.clock.slept_seconds)
    assert len(set(bench.clock.slept_seconds)) == 3, "with jitter"


def test_a_key_that_may_not_be_deleted_is_not_asked_for_again(quick: Bench):
    fill(quick.direct, ["a", "b"])
    quick.always(FailKeys(quick.full(["a"]), code="AccessDenied"), bulk_delete)
    assert quick.store.delete_many(["a", "b"]) == DeleteResult(("b",), (), (("a", "AccessDenied (by plan)"),))
    assert len(quick.asked(bulk_delete)) == 1


def test_a_server_that_tells_what_is_missing(quick: Bench):
    quick.direct.put("a", b"x")
    quick.always(FailKeys(quick.full(["gone"]), code="NoSuchKey"), bulk_delete)
    assert quick.store.delete_many(["a", "gone"]) == DeleteResult(("a",), ("gone",), ())


def test_one_batch_of_three_that_fails_whole(quick: Bench):
    keys = [f"data/1/{number:04}" for number in range(2500)]
    fill(quick.direct, keys[995:1005])
    poisoned = f"{quick.prefix}/{keys[1500]}"
    quick.always(Refuse(), lambda request: poisoned in request.delete_keys)
    deletion = quick.store.delete_many(keys)
    assert [key for key, _ in deletion.failed_keys] == keys[1000:2000]
    assert all("SlowDown" in reason for _, reason in deletion.failed_keys)
    assert set(deletion.deleted_keys) == set(keys) - set(keys[1000:2000])
    assert quick.keys() == keys[1000:1005]


def test_a_store_that_is_down_is_not_asked_for_every_batch(quick: Bench):
    quick.direct.put("a", b"x")
    quick.always(Refuse(), bulk_delete)
    with pytest.raises(ObjectsUnavailable):
        quick.store.delete_many(["a", *(str(number) for number in range(30_000))])
    assert len(quick.asked(bulk_delete)) <= 4 * 2 * 3, "batches at once, rounds, attempts"
    assert quick.keys() == ["a"]


def test_a_server_that_takes_no_bulk_delete_at_all(quick: Bench):
    quick.always(Refuse(400, "MalformedXML"), bulk_delete)
    with pytest.raises(ObjectsRefused, match="MalformedXML"):
        quick.store.delete_many([str(number) for number in range(1000)])
    assert len(quick.asked(bulk_delete)) == 1


def test_an_error_about_a_key_that_was_not_asked_for_confirms_nothing(quick: Bench):
    quick.direct.put("a", b"x")
    error = b"<DeleteResult><Error><Key>%73omething-else</Key><Code>InternalError</Code></Error></DeleteResult>"
    quick.always(Reply(error), bulk_delete)
    deletion = quick.store.delete_many(["a", "b"])
    assert deletion.deleted_keys == deletion.missing_keys == ()
    assert [key for key, _ in deletion.failed_keys] == ["a", "b"]


@pytest.mark.parametrize(
    "fault",
    [
        DropReply(),
        CutBody(0),
        CutBody(10),
        Rewrite(lambda body: body[: len(body) // 2]),
        Reply(b""),
        Reply(b"<html>welcome</html>"),
    ],
    ids=["dropped", "cut to nothing", "cut", "half", "nothing", "a page of a proxy"],
)
def test_a_reply_that_is_lost_is_asked_for_again(bench: Bench, fault: Fault):
    fill(bench.direct, ["a", "b"])
    bench.once(fault, bulk_delete)
    assert bench.store.delete_many(["a", "b"]) == DeleteResult(("a", "b"), (), ())
    assert bench.keys() == []
    assert len(bench.asked(bulk_delete)) == 2


@pytest.mark.parametrize(
    "fault", [CutBody(0), Reply(b""), Reply(b"<html>welcome</html>")], ids=["cut", "nothing", "a page of a proxy"]
)
def test_only_the_servers_own_document_confirms_a_deletion(quick: Bench, fault: Fault):
    fill(quick.direct, ["a", "b"])
    quick.always(fault, bulk_delete)
    with pytest.raises(ObjectsUnavailable):
        quick.store.delete_many(["a", "b"])


# -- deleting what is unchanged


def list_page(store: ObjectStore) -> ObjectPage:
    (page,) = store.list_pages(skipped=SkippedKeys())
    return page


def test_a_deletion_names_the_etags_that_were_seen(bench: Bench):
    fill(bench.direct, ["a", "b"])
    listed = list_page(bench.direct)
    assert bench.store.delete_unchanged(listed) == DeleteResult(("a", "b"), (), ())
    (request,) = bench.asked(bulk_delete)
    assert [request.body.count(f"<ETag>{etag}</ETag>".encode()) for etag in listed.etags] == [2, 2]


def test_what_the_server_found_changed_after_the_look_stays(quick: Bench):
    fill(quick.direct, ["a", "b", "c"])
    listed = list_page(quick.direct)

    def change_meanwhile(request: ProxiedRequest) -> Fault | None:
        if not request.is_bulk_delete:
            return None
        quick.direct.put("a", b"longer")
        quick.direct.delete_many(["b"])
        return FailKeys(quick.full(["a", "b"]), code="PreconditionFailed")

    quick.proxy.plan = change_meanwhile
    assert quick.store.delete_unchanged(listed) == DeleteResult(("c",), ("b",), (), changed_keys=("a",))
    assert quick.keys() == ["a"]
    assert len(quick.asked(bulk_delete)) == 1, "another round would fail in the same way"


def test_a_server_that_does_not_know_its_own_etags_fails_the_keys(quick: Bench):
    fill(quick.direct, ["a", "b"])
    quick.always(FailKeys(quick.full(["a", "b"]), code="PreconditionFailed"), bulk_delete)
    deletion = quick.store.delete_unchanged(list_page(quick.direct))
    assert deletion.deleted_keys == deletion.changed_keys == deletion.missing_keys == ()
    assert [key for key, _ in deletion.failed_keys] == ["a", "b"]
    assert "lists this one" in deletion.failed_keys[0][1]


def test_a_server_that_takes_no_etags_in_deletions_says_so(quick: Bench):
    fill(quick.direct, ["a", "b"])
    listed = list_page(quick.direct)
    quick.always(Refuse(400, "MalformedXML"), lambda request: b"<ETag>" in request.body)
    with pytest.raises(ObjectsRefused, match="conditional_put=0"):
        quick.store.delete_unchanged(listed)
    assert quick.keys() == ["a", "b"]
    store = open_objects(f"{quick.server.url(quick.prefix, endpoint=quick.proxy.endpoint)}&conditional_put=0")
    try:
        assert store.delete_unchanged(listed) == DeleteResult(("a", "b"), (), ())
    finally:
        store.close()


@pytest.mark.parametrize("many", [True, False])
def test_without_a_look_nothing_is_deleted(quick: Bench, many: bool):
    keys = [f"data/{number:03}" for number in range(100)]
    fill(quick.direct, keys)
    listed = list_page(quick.direct).select([many or number < 3 for number in range(100)])
    quick.always(Refuse(), lambda request: request.method in ("GET", "HEAD"))
    with pytest.raises(ObjectsUnavailable):
        quick.store.delete_unchanged(listed)
    quick.always(CutBody(2000), listing)
    if many:
        with pytest.raises(ObjectsUnavailable):
            quick.store.delete_unchanged(listed)
    assert quick.keys() == keys
    assert not quick.asked(bulk_delete)


def test_an_object_that_is_overwritten_after_the_look_goes_where_the_server_has_no_condition(quick: Bench):
    """This is what the look cannot exclude; the documents say so."""
    fill(quick.direct, ["a"])
    listed = list_page(quick.direct)

    def overwrite(request: ProxiedRequest) -> Fault | None:
        if request.is_bulk_delete:
            quick.direct.put("a", b"longer")
        return None

    quick.proxy.plan = overwrite
    assert quick.store.delete_unchanged(listed) == DeleteResult(("a",), (), ())


# -- reading


def test_a_body_that_breaks_off_goes_on_where_it_did(bench: Bench):
    body = b"".join(pattern(5 * MIB))
    bench.direct.put("a", body)
    bench.once(CutBody(2 * MIB + 5000), get_object)
    assert bench.store.read("a") == body
    ranges = [request.headers.get("Range") for request in bench.asked(get_object)]
    assert ranges == [None, f"bytes={2 * MIB + 5000}-{5 * MIB - 1}"], "at the very byte"
    bench.proxy.log.clear()
    bench.once(CutBody(MIB + 1), get_object)
    assert b"".join(bench.store.get("a", start=100, end=4 * MIB)) == body[100 : 4 * MIB]
    ranges = [request.headers.get("Range") for request in bench.asked(get_object)]
    assert ranges == [f"bytes=100-{4 * MIB - 1}", f"bytes={MIB + 101}-{4 * MIB - 1}"]


def test_a_body_that_keeps_breaking_off_is_given_up(bench: Bench):
    body = b"".join(pattern(9 * MIB))
    bench.direct.put("a", body)
    bench.always(CutBody(MIB + 5000), get_object)
    got = bytearray()
    with pytest.raises(ObjectsUnavailable, match="broke off"):
        collect(bench.store.get("a"), got)
    assert 5 * MIB < len(got) < 6 * MIB, "each resumption went on"
    assert got == body[: len(got)], "what was given is right"
    assert len(bench.asked(get_object)) == 5


@pytest.mark.parametrize("same_size", [True, False])
def test_versions_are_never_mixed(bench: Bench, same_size: bool):
    bench.direct.put("a", b"1" * (5 * MIB))

    def replace(request: ProxiedRequest) -> Fault | None:
        if request.is_get_object and "If-Match" not in request.headers:
            return CutBody(2 * MIB)
        return None

    bench.proxy.plan = replace
    chunks = bench.store.get("a")
    got = bytearray(next(chunks))
    bench.direct.put("a", b"2" * (5 * MIB if same_size else 6 * MIB))
    with pytest.raises(ObjectsUnavailable, match="changed while it was read"):
        collect(chunks, got)
    assert set(got) == {ord("1")}


def test_an_object_that_grew_behind_the_answer_that_it_is_too_short(quick: Bench):
    quick.direct.put("a", b"abcdef")
    quick.once(Refuse(416, "InvalidRange"), get_object)
    with pytest.raises(ObjectsUnavailable, match="changed while it was read"):
        quick.store.get("a", start=2, end=4)
    assert b"".join(quick.store.get("a", start=2, end=4)) == b"cd"


def test_an_object_that_is_deleted_while_it_is_read(bench: Bench):
    bench.direct.put("a", bytes(5 * MIB))
    bench.once(CutBody(2 * MIB), get_object)
    chunks = bench.store.get("a")
    next(chunks)
    bench.direct.delete_many(["a"])
    with pytest.raises(ObjectNotFound):
        list(chunks)


@pytest.mark.parametrize("fault", [WithoutRange(), Rewrite(lambda body: body[:1])], ids=["whole", "shorter"])
def test_a_proxy_that_answers_another_range_is_found_out(quick: Bench, fault: Fault):
    quick.direct.put("a", b"0123456789")
    quick.always(fault, get_object)
    for size_bytes in (None, 10):
        with pytest.raises(ObjectsUnavailable, match="ignores ranges"):
            quick.store.get("a", start=3, end=5, size_bytes=size_bytes)
    assert quick.direct.read("a") == b"0123456789"


# -- listing


@pytest.mark.parametrize("body", [b"", b"<html>welcome</html>"], ids=["nothing", "a page of a proxy"])
def test_a_page_of_a_proxy_is_no_object(quick: Bench, body: bytes):
    quick.direct.put("a", b"a")
    quick.always(Reply(body), any_request)
    for look in (quick.store.head, quick.store.read, lambda key: list(quick.store.get(key, start=0, end=1))):
        with pytest.raises(ObjectsUnavailable):
            look("a")


@pytest.mark.parametrize("after_bytes", [0, 300, 5000])
def test_a_listing_that_is_cut_once_is_complete(bench: Bench, after_bytes: int):
    keys = [f"data/1/{number:03}" for number in range(100)]
    fill(bench.direct, keys)
    bench.once(CutBody(after_bytes), listing)
    assert [info.key for info in bench.store.list()] == keys
    assert len(bench.asked(listing)) == 2


@pytest.mark.parametrize(
    "fault",
    [CutBody(3000), DropReply(), Rewrite(lambda body: body[: len(body) // 2]), Rewrite(lambda _: b""), CutBody(0)],
    ids=["cut", "dropped", "half", "empty", "cut to nothing"],
)
def test_a_listing_that_is_always_cut_is_an_error_never_shorter(bench: Bench, fault: Fault):
    fill(bench.direct, [f"data/1/{number:03}" for number in range(100)])
    bench.always(fault, listing)
    with pytest.raises(ObjectsUnavailable):
        next(bench.store.list())


def without_last(body: bytes) -> bytes:
    """A well-formed listing that lost an object."""
    start, end = body.rindex(b"<Contents>"), body.rindex(b"</Contents>") + len(b"</Contents>")
    return body[:start] + body[end:]


def swapped(body: bytes) -> bytes:
    return body.replace(b"001<", b"###<").replace(b"002<", b"001<").replace(b"###<", b"002<")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without_last, "does not have as many keys as it says"),
        (swapped, "out of order"),
        (lambda body: body.replace(b"002<", b"001<"), "out of order"),
        (lambda body: body.replace(b"<IsTruncated>false</IsTruncated>", b""), "whether it is complete"),
        (lambda body: body.replace(b"<IsTruncated>false<", b"<IsTruncated>true<"), "does not say where"),
        (lambda body: body.replace(b"</Key>", b"</Key>", 1).replace(b"<Key>", b"<Key>elsewhere/", 1), "not requested"),
    ],
    ids=["lost one", "swapped", "doubled", "no end", "no token", "elsewhere"],
)
def test_a_listing_that_cannot_be_right_is_refused(bench: Bench, change: Callable[[bytes], bytes], says: str):
    fill(bench.direct, [f"data/1/{number:03}" for number in range(10)])

    def changed(body: bytes) -> bytes:
        other = change(body)
        assert other != body, "the fault was not planted"
        return other

    bench.always(Rewrite(changed), listing)
    with pytest.raises(ObjectsUnavailable, match=f"cannot be trusted: .*{says}"):
        list(bench.store.list())


def page(prefix: str, keys: list[str], token: str | None) -> Reply:
    """A page of a listing, `token` leading to the next."""
    contents = "".join(
        f"<Contents><Key>{prefix}/{key}</Key><LastModified>2026-11-21T00:00:00Z</LastModified><Size>1</Size></Contents>"
        for key in keys
    )
    more = (
        f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
        if token
        else "<IsTruncated>false</IsTruncated>"
    )
    return Reply(f"<ListBucketResult><KeyCount>{len(keys)}</KeyCount>{more}{contents}</ListBucketResult>".encode())


def serve(bench: Bench, pages: dict[str, Reply]) -> None:
    bench.proxy.plan = lambda request: (
        pages[request.query.get("continuation-token", [""])[0]] if request.is_list else None
    )


def test_pages_follow_each_other(quick: Bench):
    p = quick.prefix
    serve(quick, {"": page(p, ["a"], "1"), "1": page(p, [], "2"), "2": page(p, ["b"], None)})
    assert [info.key for info in quick.store.list()] == ["a", "b"]


def test_pages_that_go_round_are_refused(quick: Bench):
    p = quick.prefix
    serve(quick, {"": page(p, ["a", "b"], "1"), "1": page(p, ["a", "b"], "2")})
    with pytest.raises(ObjectsUnavailable, match="out of order"):
        list(quick.store.list())
    serve(quick, {"": page(p, ["a"], "1"), "1": page(p, ["b"], "1")})
    with pytest.raises(ObjectsUnavailable, match="does not say where"):
        list(quick.store.list())


def test_a_listing_that_begins_before_its_start_is_refused(quick: Bench):
    serve(quick, {"": page(quick.prefix, ["a", "b"], None)})
    with pytest.raises(ObjectsUnavailable, match="out of order"):
        list(quick.store.list(after="a"))


def test_empty_pages_without_end_are_refused(quick: Bench):
    number = itertools.count(1)
    quick.proxy.plan = lambda request: page(quick.prefix, [], str(next(number))) if request.is_list else None
    with pytest.raises(ObjectsUnavailable, match="empty pages"):
        list(quick.store.list())
    assert len(quick.asked(listing)) == 101


def test_a_thousand_and_more_keys_take_several_pages(bench: Bench):
    keys = [f"data/1/{number:04}" for number in range(1100)]
    fill(bench.direct, keys)
    assert [info.key for info in bench.store.list()] == keys
    assert len(bench.asked(listing)) == 2
    bench.always(Refuse(), lambda request: "continuation-token" in request.query)
    listed = bench.store.list()
    got = [next(listed).key for _ in range(1000)]
    with pytest.raises(ObjectsUnavailable):
        next(listed)
    assert got == keys[:1000]
    bench.proxy.plan = None
    assert [info.key for info in bench.store.list(after=got[-1])] == keys[1000:], "and it can be taken up from there"


# -- writing


def test_a_conditional_put_knows_its_own_landed_write(bench: Bench):
    bench.once(DropReply(), put_object)
    bench.store.put("a", b"mine", if_absent=True)
    assert len(bench.asked(put_object)) == 2
    assert bench.direct.read("a") == b"mine"


def test_a_large_conditional_put_knows_its_own_landed_write(bench: Bench):
    bench.once(DropReply(), put_object)
    bench.store.put("a", pattern(9 * MIB), if_absent=True)
    assert bench.direct.head("a").size_bytes == 9 * MIB


def test_a_conditional_put_does_not_take_anothers_write_for_its_own(bench: Bench):
    bench.direct.put("a", b"theirs", if_absent=True)
    bench.once(DropReply(), put_object)
    with pytest.raises(AlreadyExists):
        bench.store.put("a", b"mine", if_absent=True)
    assert bench.direct.read("a") == b"theirs"


def test_two_conditional_writes_at_once_are_told_to_try_again(quick: Bench):
    quick.times(2, Refuse(409, "ConditionalRequestConflict"), put_object)
    quick.store.put("a", b"mine", if_absent=True)
    assert len(quick.clock.slept_seconds) == 2
    quick.always(Refuse(409, "ConditionalRequestConflict"), put_object)
    with pytest.raises(ObjectsUnavailable):
        quick.store.put("b", b"mine", if_absent=True)
    assert quick.keys() == ["a"]


def flip(body: bytes) -> bytes:
    return bytes([body[0] ^ 1]) + body[1:]


def puts_in_part(store: ObjectStore) -> None:
    store.put_part("data/a", store.begin_upload("data/a"), 1, pattern(20 * MIB))


BODIES_SENT: dict[str, Callable[[ObjectStore], object]] = {
    "an object": lambda store: store.put("data/a", b"body"),
    "an own file": lambda store: store.put("_refstore/a", b"body"),
    "only if absent": lambda store: store.put("data/a", b"body", if_absent=True),
    "from a file": lambda store: store.put("data/a", pattern(9 * MIB), if_absent=True),
    "in parts": lambda store: store.put("data/a", pattern(9 * MIB)),
    "a part": puts_in_part,
}


@pytest.mark.parametrize("sent", BODIES_SENT)
def test_a_body_is_signed_by_what_the_server_checks(quick: Bench, sent: str):
    BODIES_SENT[sent](quick.store)
    for asked in quick.asked(lambda request: request.method == "PUT"):
        headers = {name.lower(): value for name, value in asked.headers.items()}
        assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD", "no second hash"
        assert "SignedHeaders=content-md5;" in headers["authorization"]


@pytest.mark.parametrize(
    "server",
    [
        pytest.param("rclone_s3_server", marks=pytest.mark.server),
        pytest.param("rgw_server", marks=[pytest.mark.server, pytest.mark.root, pytest.mark.slow]),
    ],
)
@pytest.mark.parametrize("sent", BODIES_SENT)
def test_a_body_that_is_changed_on_its_way_is_not_stored(request: pytest.FixtureRequest, server: str, sent: str):
    for bench in bench_before(request.getfixturevalue(server)):
        bench.always(ChangeBody(flip), lambda asked: asked.method == "PUT")
        with pytest.raises(ObjectsUnavailable, match="changed on its way"):
            BODIES_SENT[sent](bench.store)
        assert bench.keys() == []
        bench.proxy.plan = None
        BODIES_SENT[sent](bench.store)


def completes(bench: Bench) -> None:
    bench.once(DropReply(), lambda request: request.is_complete)
    bench.store.put("a", pattern(9 * MIB))
    assert len(bench.asked(lambda request: request.is_complete)) == 2
    assert bench.direct.head("a").size_bytes == 9 * MIB
    assert bench.uploads() == []


def test_a_completion_whose_reply_is_lost(bench: Bench):
    completes(bench)


@pytest.mark.server
def test_a_completion_whose_reply_is_lost_on_a_server_that_forgets_uploads(on_rclone: Bench):
    completes(on_rclone)


@pytest.mark.server
def test_a_completion_that_failed_is_not_taken_for_landed(on_rclone: Bench):
    on_rclone.direct.put("a", b"before")
    on_rclone.always(Refuse(404, "NoSuchUpload"), lambda request: request.is_complete)
    with pytest.raises(ObjectsRefused, match="NoSuchUpload"):
        on_rclone.store.put("a", pattern(9 * MIB))
    assert on_rclone.direct.read("a") == b"before"
    assert on_rclone.uploads() == []


@pytest.mark.parametrize("fault", [CutBody(0), Reply(b"<html>welcome</html>")], ids=["cut", "a page of a proxy"])
def test_only_the_servers_own_document_confirms_a_completion(quick: Bench, fault: Fault):
    quick.always(fault, lambda request: request.is_complete)
    with pytest.raises(ObjectsUnavailable):
        quick.store.put("a", pattern(9 * MIB))


@pytest.mark.parametrize("if_absent", [False, True])
@pytest.mark.parametrize("size", [1, 9 * MIB], ids=["small", "large"])
@pytest.mark.parametrize("body", [b"", b"<html>welcome</html>"], ids=["nothing", "a page of a proxy"])
def test_only_an_answer_with_an_etag_confirms_what_was_put(quick: Bench, body: bytes, size: int, if_absent: bool):
    quick.always(Reply(body), lambda request: request.method == "PUT")
    with pytest.raises(ObjectsUnavailable):
        quick.store.put("a", pattern(size), if_absent=if_absent)
    assert quick.keys() == []
    assert quick.uploads() == []


@pytest.mark.parametrize("what", ["part 2", "the completion"])
def test_an_upload_that_fails_leaves_no_object_and_no_parts(bench: Bench, what: str):
    bench.always(
        Refuse(), lambda request: request.query.get("partNumber") == ["2"] if what == "part 2" else request.is_complete
    )  # fmt: skip
    with pytest.raises(ObjectsUnavailable):
        bench.store.put("a", pattern(20 * MIB))
    bench.proxy.plan = None
    assert bench.keys() == []
    assert bench.uploads() == []


def test_parts_that_could_not_be_removed_are_left_to_the_sweep(bench: Bench):
    bench.always(Refuse(), lambda request: request.is_complete or request.method == "DELETE")
    with pytest.raises(ObjectsUnavailable):
        bench.store.put("a", pattern(9 * MIB))
    assert bench.uploads() == [f"{bench.prefix}/a"]
    bench.proxy.plan = None
    assert bench.store.sweep_temporary(older_than_seconds=-60, clock=SystemClock()) == 1
    assert bench.uploads() == []


# -- everything at once


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_faults_never_make_a_wrong_answer(quick: Bench, seed: int):
    quick.proxy.plan = RandomFaults(
        seed=seed, unavailable=0.15, delete_key=0.05, cut_get=0.2, cut_list=0.2, drop_reply=0.1
    )
    rng = random.Random(seed)
    certain: dict[str, bytes] = {}
    unsure: set[str] = set()
    outcomes = {"sure": 0, "unsure": 0}
    for turn in range(150):
        key, action = f"k/{rng.randrange(30):02}", rng.choice(("put", "get", "delete", "list"))
        try:
            answer = act(
                quick.store, action, key, turn, [f"k/{number:02}" for number in range(30) if rng.random() < 0.3]
            )
        except ObjectsUnavailable:
            outcomes["unsure"] += 1
            if action == "put":
                unsure.add(key)
            elif action == "delete":
                unsure.update(f"k/{number:02}" for number in range(30))
            continue
        outcomes["sure"] += 1
        if action == "put":
            certain[key] = b"%d" % turn
            unsure.discard(key)
        elif action == "get" and key not in unsure:
            assert answer == certain.get(key)
        elif action == "delete":
            deleted, failed = cast("tuple[set[str], set[str]]", answer)
            for gone in deleted:
                certain.pop(gone, None)
                unsure.discard(gone)
            unsure |= failed
        elif action == "list":
            assert set(cast("list[str]", answer)) - unsure == set(certain) - unsure
    quick.proxy.plan = None
    assert set(quick.keys()) - unsure == set(certain) - unsure
    faults = len([fault for _, fault in quick.proxy.log if fault])
    print(f"seed {seed}: {outcomes}, {faults} faults")
    assert outcomes["sure"] > 75
    assert faults > 40


def act(store: ObjectStore, action: str, key: str, turn: int, several: list[str]) -> object:
    if action == "put":
        return store.put(key, b"%d" % turn)
    if action == "get":
        try:
            return store.read(key)
        except ObjectNotFound:
            return None
    if action == "delete":
        deletion = store.delete_many(several)
        return set(deletion.deleted_keys), {key for key, _ in deletion.failed_keys}
    return [info.key for info in store.list()]
