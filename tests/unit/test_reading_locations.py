"""Reading the bytes of objects whose content a purge has replaced (rule 22)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from refstore.core.ids import Address
from refstore.errors import Gone
from refstore.kv.base import Absent, Key
from refstore.operations import read
from refstore.operations.upload import Upload
from refstore.public_types import stored_entry
from refstore.records.location_records import Content
from refstore.records.s3_attributes import ContentDescription, S3Attributes
from refstore.versioning.locations import WrittenContent
from tests.purging import announce, content_of, intend, rewrite
from tests.reaper_world import World


def erase(world: World) -> None:
    announce(world.repo)
    intended = intend(world.repo, "main", "a", "run-7")
    assert intended is not None
    erased = Content(Address(""), 0, "", run="run-7")
    assert world.repo.context.locations.publish([WrittenContent(intended, erased)], "run-7") != [None]


def test_every_ref_reads_the_current_content() -> None:
    world = World()
    repo = world.repo
    world.upload("main", "a", "b")
    committed = repo.commit("main", "both")
    repo.create_tag("v1", ref=committed.id)
    kept = repo.read("main", "b")
    rewrite(repo, "main", "a", b"fewer rows")
    for ref in ("main", "main@", "v1", committed.id):
        assert repo.read(ref, "a") == b"fewer rows"
        assert b"".join(repo.get(ref, "a", start=2, end=5)) == b"wer"
        assert repo.read(ref, "b") == kept


def test_a_staged_object_is_read_at_its_location() -> None:
    world = World()
    (entry,) = world.upload("main", "a")
    published = rewrite(world.repo, "main", "a", b"fewer rows")
    assert world.repo.read("main", "a") == b"fewer rows"
    assert world.repo.stat("main", "a").address == content_of(published)
    assert world.repo.resolve("main", "a").entry == entry


def test_what_describes_the_content_is_not_shown_of_other_content() -> None:
    """S3 clients take an ETag or a checksum for that of the bytes that they get."""
    world = World()
    repo = world.repo
    uploaded = S3Attributes(ContentDescription("crc32", "x", etag="1-2"), {}, {"a": "1"})
    repo.upload_many("main", [Upload("a", b"1", {"owner": "ann"}, s3=lambda: uploaded)])
    rewrite(repo, "main", "a", b"fewer rows")
    kept = {"owner": "ann"}, S3Attributes(None, {}, {"a": "1"})
    ((_, listed),) = repo.list("main")
    assert listed is not None
    assert [(entry.metadata, stored_entry(entry).s3) for entry in (repo.stat("main", "a"), listed)] == [kept, kept]
    assert stored_entry(repo.resolve("main", "a").entry).s3 == uploaded


def test_an_intent_alone_changes_nothing() -> None:
    world = World()
    world.upload("main", "a")
    before = world.repo.read("main", "a")
    announce(world.repo)
    assert intend(world.repo, "main", "a") is not None
    assert world.repo.read("main", "a") == before


def test_erased_content_is_gone_and_the_run_is_named() -> None:
    world = World()
    world.upload("main", "a")
    erase(world)
    with pytest.raises(Gone, match="run-7"):
        world.repo.read("main", "a")


def test_stat_and_listings_show_the_content_and_operations_take_the_identity() -> None:
    world = World()
    repo = world.repo
    identity = world.upload("main", "a", "b")[0].address
    first = repo.commit("main", "both").id
    repo.create_branch("side", source="main")
    published = rewrite(repo, "main", "a", b"fewer rows")
    for ref in ("main", first):
        shown = repo.stat(ref, "a")
        assert (shown.address, shown.size_bytes) == (content_of(published), 10)
        assert repo.stat_many(ref, ["a"])["a"] == shown
        listed = {path: entry for path, entry in repo.list(ref) if entry is not None}
        assert listed["a"] == shown
        assert listed["b"].size_bytes == 1
        assert repo.resolve(ref, "a").entry.address == identity
    repo.copy("main", "a", to_branch="side", to_path="copy")
    assert repo.resolve("side", "copy").entry.address == identity
    repo.copy("main", "a", to_branch="side", to_path="a")
    assert [change.path for change in repo.diff("side")] == ["copy"]
    repo.commit("side", "a copy")
    repo.merge("side", into="main")
    assert repo.read("main", "copy") == b"fewer rows"
    repo.revert("main@", on="main", parent=1)
    assert [path for path, _ in repo.list("main")] == ["a", "b"]


def test_an_erased_object_is_listed_without_content() -> None:
    world = World()
    world.upload("main", "a")
    erase(world)
    assert world.repo.stat("main", "a").size_bytes == 0
    ((path, entry),) = world.repo.list("main")
    assert path == "a"
    assert entry is not None
    assert entry.size_bytes == 0


def test_a_reader_whose_content_was_replaced_and_deleted_reads_the_record_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    ctx = world.repo.context
    world.upload("main", "a")
    first = content_of(rewrite(world.repo, "main", "a", b"fewer"))
    contents = read.current_contents
    replaced: list[str] = []

    def then_replaced(*arguments: object) -> object:
        found = contents(*arguments)  # type: ignore[arg-type]  # passed on
        if not replaced:
            replaced.append(first)
            rewrite(world.repo, "main", "a", b"fewest", "run-2")
            ctx.objects.delete_many([first])
        return found

    monkeypatch.setattr(read, "current_contents", then_replaced)
    assert world.repo.read("main", "a") == b"fewest"
    assert replaced


def test_only_repositories_with_the_flag_pay_for_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.upload("main", "a")
    commit = world.repo.commit("main", "a").id
    calls: list[int] = []
    kv = world.repo.context.kv
    get, get_many = kv.get, kv.get_many

    def counted_get(key: Key) -> bytes | Absent:
        before = len(calls)
        value = get(key)
        calls[before:] = [1]  # the KV's own `get` may be made of its `get_many`
        return value

    def counted_get_many(keys: Sequence[Key]) -> list[bytes | Absent]:
        calls.append(len(keys))
        return get_many(keys)

    def round_trips(ref: str) -> int:
        calls.clear()
        world.repo.read(ref, "a")
        return len(calls)

    def round_trips_of_stat(ref: str) -> int:
        calls.clear()
        world.repo.stat(ref, "a")
        return len(calls)

    def round_trips_of_a_page(ref: str) -> int:
        calls.clear()
        world.repo.list_page(ref)
        return len(calls)

    monkeypatch.setattr(kv, "get", counted_get)
    monkeypatch.setattr(kv, "get_many", counted_get_many)
    without = [round_trips(ref) for ref in ("main", commit)]
    assert without == [5, 3]  # as many as before there were locations
    assert [round_trips_of_stat(ref) for ref in ("main", commit)] == [5, 3]
    assert [round_trips_of_a_page(ref) for ref in ("main", commit)] == [4, 3]
    announce(world.repo)
    assert [round_trips_of_stat(ref) for ref in ("main", commit)] == [6, 4]
    assert [round_trips_of_a_page(ref) for ref in ("main", commit)] == [5, 4]
    assert [round_trips(ref) for ref in ("main", commit)] == [6, 4]
