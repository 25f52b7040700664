"""Uploads in parts (rule 23), over a store that has them itself and over one that has not: what callers are told, what
is left, and what it costs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from refstore.core.ids import BranchName
from refstore.deletion_history.causes import rule_of
from refstore.errors import (
    AlreadyExists,
    BranchNotFound,
    Conflict,
    Contention,
    Invalid,
    InvalidParts,
    ObjectNotFound,
    ObjectsRefused,
    ObjectsUnavailable,
    UploadNotFound,
)
from refstore.kv.base import Exchange, Op, SetIf
from refstore.operations import complete_upload, multipart
from refstore.operations.complete_upload import PART_BYTES_MIN, RequestedPart
from refstore.public_types import stored_entry
from refstore.records import keys
from refstore.records.encoding import decode, encode
from refstore.records.reference_records import Issued
from refstore.records.s3_attributes import ContentDescription, S3Attributes, join_attributes
from refstore.records.staging_records import StoredEntry
from refstore.versioning.address_state import UPLOAD_EXPIRED
from refstore.versioning.multipart_uploads import UploadName
from tests.kit import collecting
from tests.kit.store_uploads import UPLOADS, StoreWithUploads
from tests.reaper_world import SCRUB_AFTER_SECONDS, Crash, World

MAIN = BranchName("main")
DAY = 86_400
BIG = b"b" * PART_BYTES_MIN


class UploadWorld(World):
    def __init__(self, *, store_has_uploads: bool) -> None:
        self.store_has_uploads = store_has_uploads
        super().__init__(grace_seconds=0)

    def _open(self, url: str) -> Any:
        opened = super()._open(url)
        new_id = iter(f"u{number}" for number in range(1000)).__next__
        return StoreWithUploads(opened, new_id) if self.store_has_uploads else opened

    def begin(self, path: str = "a/b", **details: Any) -> UploadName:
        self.clock.advance(0.001)
        return multipart.begin(self.repo.context, MAIN, path, seconds=7 * DAY, **details).name

    def write(self, name: UploadName, number: int, body: bytes) -> RequestedPart:
        self.clock.advance(0.001)
        return RequestedPart(number, multipart.write_part(self.repo.context, name, number, body).part.etag)

    def complete(self, name: UploadName, parts: Sequence[RequestedPart], **options: Any) -> StoredEntry:
        return complete_upload.complete(self.repo.context, name, parts, **options)

    def left(self) -> list[str]:
        """What there is of uploads: records, parts and what the store keeps."""
        repo = self.repo.record.id
        records = [
            key.name for key in self.kv.dump() if key.partition.startswith((f"{repo}/uploads", f"{repo}/parts/"))
        ]
        named = {entry.address for item in self.repo.list("main") if (entry := item.entry) is not None}
        blobs = [
            key for key in self.blobs() if key.startswith(UPLOADS) or (key.startswith("data/") and key not in named)
        ]
        return [*records, *blobs]

    def blobs(self) -> Iterator[str]:
        return (info.key for info in self.repo.context.objects.list())

    def settle(self) -> None:
        """Passes of a reaper, past everything that waits."""
        for _ in range(4):
            self.clock.advance(SCRUB_AFTER_SECONDS + 61)
            self.run_pass(scrub=True)


@pytest.fixture(params=[False, True], ids=["parts are objects", "the store has uploads"])
def world(request: pytest.FixtureRequest) -> UploadWorld:
    return UploadWorld(store_has_uploads=request.param)


def test_an_object_is_made_of_its_parts(world: UploadWorld) -> None:
    name = world.begin(metadata={"k": "v"}, content_type="text/plain")
    last = world.write(name, 9, b"tail")
    world.write(name, 2, b"replaced")
    first = world.write(name, 2, BIG)
    world.write(name, 5, b"not asked for")
    with pytest.raises(ObjectNotFound):
        world.repo.read("main", "a/b")
    entry = world.complete(name, [first, last])
    assert world.repo.read("main", "a/b") == BIG + b"tail"
    assert (entry.size_bytes, entry.metadata, entry.content_type) == (len(BIG) + 4, {"k": "v"}, "text/plain")
    assert first.etag == hashlib.md5(BIG, usedforsecurity=False).hexdigest()
    world.repo.commit("main", "c")
    world.settle()
    assert world.repo.read("main", "a/b") == BIG + b"tail"
    assert world.left() == []


def test_the_object_is_described_by_its_parts(world: UploadWorld) -> None:
    given = S3Attributes(headers={"expires": "0"})
    name = world.begin(metadata={"k": "v"}, s3=given)
    part = world.write(name, 1, b"x")
    entry = world.complete(
        name,
        [part],
        describe=lambda record, parts: join_attributes(
            record.s3, ContentDescription(part_runs=tuple((1, item.part.size_bytes) for item in parts))
        ),
    )
    assert entry.s3 == S3Attributes(ContentDescription(part_runs=((1, 1),)), {"expires": "0"})
    assert entry.metadata == {"k": "v"}
    assert stored_entry(world.repo.stat("main", "a/b")) == entry


def test_an_object_that_nobody_describes_keeps_what_its_upload_was_given(world: UploadWorld) -> None:
    given = S3Attributes(ContentDescription("crc32"), {"expires": "0"})
    name = world.begin(metadata={"k": "v"}, s3=given)
    entry = world.complete(name, [world.write(name, 1, b"x")])
    assert (entry.s3, entry.metadata) == (S3Attributes(headers={"expires": "0"}), {"k": "v"})


def test_a_repeated_completion_answers_the_same(world: UploadWorld) -> None:
    name = world.begin()
    parts = [world.write(name, 1, b"x")]
    entry = world.complete(name, parts)
    assert world.complete(name, parts) == entry
    world.repo.upload("main", "a/b", b"newer")
    assert world.complete(name, parts) == entry
    assert world.repo.read("main", "a/b") == b"newer", "it is not linked again"
    for other in ([RequestedPart(1, "0" * 32)], [*parts, RequestedPart(2, "0" * 32)]):
        with pytest.raises(UploadNotFound):
            world.complete(name, other)


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_repeated_completion_of_which_no_record_was_written(world: UploadWorld, is_committed: bool) -> None:
    """The first one died behind its entry."""
    name = world.begin()
    parts = [world.write(name, 1, b"x")]
    world.kv.crash_at(lambda op: "/staging/" in op.key.partition and name.path == op.key.name, behind=True)
    with pytest.raises(Crash):
        world.complete(name, parts)
    world.kv.behind = None
    if is_committed:
        world.repo.commit("main", "c")
        world.run_pass()
    assert world.complete(name, parts).address == name.address
    world.settle()
    assert world.left() == []
    assert world.repo.read("main", "a/b") == b"x"


def test_a_repeated_completion_does_not_count_an_entry_that_a_commit_may_have_missed(world: UploadWorld) -> None:
    """The first one wrote its entry under a token that was sealed by then, and died."""
    ctx, name = world.repo.context, world.begin()
    parts = [world.write(name, 1, b"x")]

    def is_entry(op: Op) -> bool:
        return "/staging/" in op.key.partition and op.key.name == name.path

    def seal(op: Op) -> None:
        if is_entry(op):
            world.kv.crash_at(is_entry, behind=True)
            ctx.branches.seal(MAIN, lambda: ctx.staging.new_token(MAIN, ctx.ids, ctx.clock))

    world.kv.before = seal
    with pytest.raises(Crash):
        world.complete(name, parts)
    with pytest.raises(Contention):
        world.complete(name, parts)
    world.repo.commit("main", "c")
    assert world.complete(name, parts).address == name.address


@pytest.mark.parametrize("died", ["before it took the address", "while the parts went"])
def test_an_abort_that_died(died: str) -> None:
    world = UploadWorld(store_has_uploads=False)
    name = world.begin()
    parts = [world.write(name, 1, b"x")]
    is_open = died == "before it took the address"
    world.kv.crash_at(
        lambda op: (
            isinstance(op, SetIf) and "/references/" in op.key.partition and (op.key.name == name.address) == is_open
        )
    )
    with pytest.raises(Crash):
        multipart.abort(world.repo.context, name)
    if is_open:
        assert world.complete(name, parts).size_bytes == 1
    world.settle()
    assert world.left() == [], "long before the deadline"


def test_what_is_wrong_with_the_parts_is_told(world: UploadWorld) -> None:
    name = world.begin()
    small, big = world.write(name, 1, b"small"), world.write(name, 2, BIG)
    for parts, fault in (
        ([], "missing"),
        ([RequestedPart(1, big.etag)], "missing"),
        ([small, big, RequestedPart(3, big.etag)], "missing"),
        ([big, small], "order"),
        ([small, small], "order"),
        ([small, big], "small"),
        ([RequestedPart(number, big.etag) for number in range(10_001)], "missing"),
    ):
        with pytest.raises(InvalidParts) as refused:
            world.complete(name, parts)
        assert refused.value.fault == fault
    for number in (0, 10_001):
        with pytest.raises(InvalidParts):
            world.write(name, number, b"x")
    assert world.complete(name, [big]).size_bytes == len(BIG), "nothing of it was fixed"


def test_other_parts_are_not_joined_once_some_are_fixed(world: UploadWorld) -> None:
    name = world.begin()
    one, other = world.write(name, 1, b"one"), world.write(name, 2, b"other")
    world.kv.crash_at(lambda op: "/references/" in op.key.partition and b"main:" in getattr(op, "value", b""))
    with pytest.raises(Crash):
        world.complete(name, [one])
    world.kv.before = None
    with pytest.raises(Conflict, match="same parts, or abort"):
        world.complete(name, [other])
    assert world.complete(name, [one]).size_bytes == 3


def test_parts_that_became_shorter_are_not_linked(world: UploadWorld) -> None:
    name = world.begin()
    parts = [world.write(name, 1, BIG), world.write(name, 2, b"tail")]
    objects = world.repo.context.objects
    (stored,) = (key for key in world.blobs() if key.startswith(("data/", UPLOADS)) and objects.read(key) == b"tail")
    objects.put(stored, b"ta")
    found, expected = (len(BIG) + 2, len(BIG) + 4) if world.store_has_uploads else (2, 4)
    for _ in range(2):  # what such a store has joined stands at the address for the second call
        with pytest.raises(InvalidParts, match=f"has {found} bytes.* had {expected}\\b.*begin the upload again"):
            world.complete(name, parts)
    assert world.store_has_uploads == (len(BIG) + 2 in [len(objects.read(key)) for key in world.blobs()])
    with pytest.raises(ObjectNotFound):
        world.repo.read("main", "a/b")
    multipart.abort(world.repo.context, name)
    world.settle()
    assert world.left() == []


def test_a_path_that_is_taken(world: UploadWorld) -> None:
    world.repo.upload("main", "a/b", b"there")
    name = world.begin()
    parts = [world.write(name, 1, b"x")]
    with pytest.raises(AlreadyExists):
        world.complete(name, parts, if_absent=True)
    assert world.repo.read("main", "a/b") == b"there"
    assert world.complete(name, parts).size_bytes == 1, "the upload stays open"


def test_a_path_that_is_taken_while_parts_are_joined(world: UploadWorld) -> None:
    """The upload is over then, and a repeated completion does not take the refused object for one that landed."""
    name = world.begin()
    parts = [world.write(name, 1, b"x")]

    def take(op: object) -> None:
        if isinstance(op, SetIf) and op.key.name == name.address and b"main:" in op.value:
            world.kv.before = None
            world.repo.upload("main", "a/b", b"faster")

    world.kv.before = take
    with pytest.raises(AlreadyExists):
        world.complete(name, parts, if_absent=True)
    assert world.kv.before is None
    with pytest.raises(UploadNotFound):
        world.complete(name, parts)
    assert world.repo.read("main", "a/b") == b"faster"
    world.settle()
    assert world.left() == []


def test_an_aborted_upload_leaves_nothing(world: UploadWorld) -> None:
    name = world.begin()
    parts = [world.write(name, number, b"x") for number in (1, 2)]
    multipart.abort(world.repo.context, name)
    world.run_pass()
    assert [key for key in world.blobs() if key.startswith(("data/", UPLOADS))] == []
    for attempt in (
        lambda: world.write(name, 3, b"x"),
        lambda: world.complete(name, parts),
        lambda: multipart.list_parts(world.repo.context, name, after=0, amount=10),
    ):
        with pytest.raises(UploadNotFound):
            attempt()
    world.settle()
    assert world.left() == []
    with pytest.raises(UploadNotFound):
        multipart.abort(world.repo.context, name)


def test_an_abort_that_others_kept_from_its_address_is_told_so(world: UploadWorld) -> None:
    """The upload is open still, so its caller must not hear that there is none."""
    name = world.begin()
    digests = map(str, range(100))

    def fix(op: object) -> None:
        if isinstance(op, SetIf) and op.key.name == name.address:
            issued = msgspec.structs.replace(decode(op.expected, Issued), parts_digest=next(digests))
            world.kv.inner.set(op.key, encode(issued))

    world.kv.before = fix
    with pytest.raises(Contention):
        multipart.abort(world.repo.context, name)
    world.kv.before = None
    multipart.abort(world.repo.context, name)
    world.settle()
    assert world.left() == []


def test_a_completed_upload_cannot_be_aborted(world: UploadWorld) -> None:
    name = world.begin()
    world.complete(name, [world.write(name, 1, b"x")])
    with pytest.raises(UploadNotFound):
        multipart.abort(world.repo.context, name)
    assert world.repo.read("main", "a/b") == b"x"


def test_an_upload_expires_with_its_parts(world: UploadWorld) -> None:
    name = world.begin()
    parts = [world.write(name, 1, b"x")]
    world.clock.advance(7 * DAY - 2)
    world.run_pass(scrub=True)
    assert len(world.left()) == (4 if world.store_has_uploads else 3), "it is open until its deadline, however old"
    world.clock.advance(3)
    for attempt in (lambda: world.write(name, 2, b"x"), lambda: world.complete(name, parts)):
        with pytest.raises(UploadNotFound):
            attempt()
    world.clock.advance(61)
    assert world.run_pass().expired == (1 if world.store_has_uploads else 2)
    assert "not completed in time" in rule_of(name.address, UPLOAD_EXPIRED)
    assert [key for key in world.blobs() if key.startswith(("data/", UPLOADS))] == []
    world.settle()
    assert world.left() == []


@pytest.mark.parametrize("end", ["reset", "delete_branch"])
def test_a_reset_or_deleted_branch_ends_its_uploads(world: UploadWorld, end: str) -> None:
    world.repo.create_branch("side", source="main")
    ctx = world.repo.context
    name = multipart.begin(ctx, BranchName("side"), "p", seconds=7 * DAY).name
    other = world.begin()
    part = world.write(name, 1, b"x")
    getattr(world.repo, end)("side")
    with pytest.raises((UploadNotFound, BranchNotFound)):
        world.complete(name, [part])
    assert world.complete(other, [world.write(other, 1, b"y")]).size_bytes == 1
    world.settle()
    assert world.left() == []


def test_what_only_the_store_knows_goes_with_its_address() -> None:
    """The process died between the store's beginning of the upload and our record of it."""
    world = UploadWorld(store_has_uploads=True)
    world.kv.crash_at(lambda op: op.key.partition.endswith("/uploads") and b"u0" in getattr(op, "value", b""))
    with pytest.raises(Crash):
        world.begin()
    world.kv.before = None
    assert [key for key in world.blobs() if key.startswith(UPLOADS)] != []
    world.clock.advance(7 * DAY + 61)
    world.run_pass()
    assert [key for key in world.blobs() if key.startswith(UPLOADS)] == []


def test_the_stores_own_sweep_leaves_open_uploads_alone(world: UploadWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    spared: list[str] = []

    def sweep(_: object, *, spared_keys: set[str], **_rest: object) -> int:
        spared.extend(spared_keys)
        return 0

    monkeypatch.setattr(type(world.repo.context.objects), "sweep_temporary", sweep)
    name = world.begin()
    world.run_pass(scrub=True)
    assert spared == [name.address]


def test_an_upload_that_the_store_does_not_abort_stops_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    world = UploadWorld(store_has_uploads=True)
    world.repo.upload("main", "other", b"x")
    name = world.begin()
    objects = type(world.repo.context.objects)

    def refuse(*_: object) -> int:
        raise ObjectsRefused("planted: no right to list uploads")

    with monkeypatch.context() as patch:
        patch.setattr(objects, "abort_uploads", refuse)
        with pytest.raises(ObjectsRefused):
            multipart.abort(world.repo.context, name)
        world.repo.delete("main", "other")
        summary = world.run_pass()
        assert (summary.deleted, summary.failed) == (1, 1)
    world.settle()
    assert world.left() == []


def test_what_is_left_of_one_upload_stays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = UploadWorld(store_has_uploads=True)
    not_aborted, unreadable, _ = names = [world.begin(path) for path in ("a", "b", "c")]
    world.clock.advance(7 * DAY + 61)
    world.corrupt(keys.upload(world.repo.record.id, *unreadable))
    objects = type(world.repo.context.objects)
    abort = objects.abort_uploads

    def fail_for_one(store: StoreWithUploads, key: str) -> int:
        if key == not_aborted.address:
            raise ObjectsUnavailable("planted: it could not be aborted")
        return abort(store, key)

    def registered() -> list[str]:
        return [name for name, _ in world.kv.scan(keys.uploads(world.repo.record.id))]

    with monkeypatch.context() as patch:
        patch.setattr(objects, "abort_uploads", fail_for_one)
        world.settle()
        summary = world.run_pass(scrub=True)
        left = [keys.upload(world.repo.record.id, *name).name for name in names[:2]]
        assert registered() == left
        units = {error.unit for error in summary.errors}
        assert units == {f"scrub/uploads/{not_aborted.upload_id}", f"scrub/uploads/{left[1]}"}, "all else is scrubbed"
    stamps = [name for name, _ in world.kv.scan(keys.reaper_states(world.repo.record.id), prefix="scrubbed/")]
    assert "scrubbed/temporary" in stamps
    assert "scrubbed/uploads" not in stamps, "the next pass tries again, and does not wait for the interval"
    world.clock.advance(SCRUB_AFTER_SECONDS + 61)
    world.run_pass(scrub=True)
    assert registered() == left[1:]


def test_a_body_that_fails_leaves_no_part(world: UploadWorld) -> None:
    name = world.begin()

    def body() -> Iterator[bytes]:
        yield b"x"
        raise Invalid("the client went away")

    with pytest.raises(Invalid, match="went away"):
        multipart.write_part(world.repo.context, name, 1, body())
    assert multipart.list_parts(world.repo.context, name, after=0, amount=10)[1].parts == ()
    world.run_pass()
    assert [key for key in world.blobs() if key.startswith("data/")] == []


def test_a_store_without_uploads_copies_no_parts() -> None:
    """The conformance suite of the stores copies into the uploads of those that have them."""
    world = UploadWorld(store_has_uploads=False)
    source = stored_entry(world.repo.upload("main", "source", b"0123456789"))
    name = world.begin()
    assert multipart.copy_part(world.repo.context, name, 1, source, 0, 10) is None
    multipart.abort(world.repo.context, name)
    with pytest.raises(UploadNotFound):
        multipart.copy_part(world.repo.context, name, 1, source, 0, 10)


def test_parts_are_listed(world: UploadWorld) -> None:
    name = world.begin()
    for number, body in ((3, b"c"), (1, b"old"), (2, b"bb"), (1, b"a")):
        world.write(name, number, body)
    ctx = world.repo.context
    record, page = multipart.list_parts(ctx, name, after=0, amount=2)
    assert record.name == name
    assert [(item.number, item.part.size_bytes) for item in page.parts] == [(1, 1), (2, 2)]
    assert page.has_more
    _, page = multipart.list_parts(ctx, name, after=2, amount=2)
    assert ([item.number for item in page.parts], page.has_more) == ([3], False)


def test_uploads_are_listed_in_the_order_of_their_paths(world: UploadWorld) -> None:
    paths = ["a", "a.b", "a/1", "a/2", "b/1", "b/1", "c"]
    names = [world.begin(path) for path in paths]
    ctx = world.repo.context
    multipart.begin(ctx, world_branch(world, "main-2"), "a", seconds=DAY)
    multipart.abort(ctx, world.begin("aborted"))
    page = multipart.list_uploads(ctx, MAIN)
    assert [item.name for item in page.uploads] == names
    page = multipart.list_uploads(ctx, MAIN, prefix="a/")
    assert [item.name.path for item in page.uploads] == ["a/1", "a/2"]
    seen: list[str] = []
    after_path = after_upload_id = ""
    while True:
        page = multipart.list_uploads(
            ctx, MAIN, delimiter="/", after_path=after_path, after_upload_id=after_upload_id, amount=1
        )
        if not page.uploads and not page.common_prefixes:
            break
        seen += [*(item.name.path for item in page.uploads), *page.common_prefixes]
        after_path, after_upload_id = seen[-1], page.uploads[-1].name.upload_id if page.uploads else ""
    assert seen == ["a", "a.b", "a/", "b/", "c"]
    page = multipart.list_uploads(ctx, MAIN, after_path="b/1", after_upload_id=names[4].upload_id)
    assert [item.name for item in page.uploads] == names[5:]
    page = multipart.list_uploads(ctx, MAIN, after_path="b/1")
    assert [item.name for item in page.uploads] == names[6:]


def world_branch(world: UploadWorld, name: str) -> BranchName:
    world.repo.create_branch(name, source="main")
    return BranchName(name)


def test_the_offline_job_keeps_parts_while_they_are_open_and_no_longer() -> None:
    world = UploadWorld(store_has_uploads=False)
    ctx = world.repo.context
    name = world.begin()
    world.write(name, 1, b"x")
    world.clock.advance(DAY)
    assert collecting.mark(ctx, [], folders=(collecting.DATA,))[1].data == {}
    (part,) = ctx.uploads.scan_parts(name.upload_id)
    ctx.kv.delete(keys.reference(ctx.repo, part.address))  # the KV lost it
    assert set(collecting.mark(ctx, [], folders=(collecting.DATA,))[1].data) == {part.address}


def test_a_completion_of_many_parts_costs_few_round_trips(world: UploadWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thousand parts costs a few more of them, and no part one of its own."""
    monkeypatch.setattr(complete_upload, "PART_BYTES_MIN", 0)

    def calls_of(parts: int) -> int:
        name = world.begin(f"{parts} parts")
        written = [world.write(name, number, b"x") for number in range(1, parts + 1)]
        with counting(world) as calls:
            assert world.complete(name, written).size_bytes == parts
        return len(calls)

    few, many = calls_of(50), calls_of(1_050)
    assert many - few <= 12


@contextmanager
def counting(world: UploadWorld) -> Generator[list[int]]:
    """Count the round trips to the KV."""
    calls: list[int] = []
    inner = world.kv.inner
    monkey = pytest.MonkeyPatch()
    for method in ("execute", "scan", "delete_range"):
        original = getattr(inner, method)

        def counted(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            calls.append(1)
            return original(*args, **kwargs)

        monkey.setattr(inner, method, counted)
    yield calls
    monkey.undo()


def test_an_upload_is_not_closed_while_its_entry_may_be_on_its_way(world: UploadWorld) -> None:
    name = world.begin()
    part = world.write(name, 1, b"x")
    world.clock.advance(SCRUB_AFTER_SECONDS + 1)
    world.kv.crash_at(lambda op: isinstance(op, Exchange) and "/staging/main:" in op.key.partition)
    with pytest.raises(Crash):
        world.complete(name, [part])
    world.run_pass(scrub=True)
    registered = world.repo.context.uploads.read(name)
    assert registered is not None
    assert not registered.record.closed_ms
    world.settle()
    assert world.left() == []
