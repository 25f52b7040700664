"""Names of ours in metadata: no caller of the SDK gives them, and what they said stands in fields that stay."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import pytest

from refstore.core.ids import BranchName
from refstore.core.user_metadata import OBJECT_METADATA_BYTES_MAX, TRANSACTION
from refstore.errors import Invalid
from refstore.kv.memory import MemoryKV
from refstore.kv_recovery import reconciliation
from refstore.lake import Lake
from refstore.operations import multipart
from refstore.operations.copy import Copy
from refstore.operations.move import Move
from refstore.operations.upload import Link, Stage, Upload
from refstore.public_types import Entry, stored_entry
from refstore.records.repository_records import ImportSource
from refstore.records.s3_attributes import ContentDescription, S3Attributes, content_of
from refstore.repository import Repository
from tests.kit.names_of_ours import ATTACK, NAMES
from tests.reaper_world import World
from tests.unit.test_kv_losses import Losing, losing

__all__ = ["losing"]

ATTRIBUTES: Final = S3Attributes(
    ContentDescription("crc32", "AAAAAA==-2", True, "e-2", ((1, 5 << 20), (1, 3)), ("AAAAAA==", "AAAAAQ==")),
    {"cache-control": "no-store"},
    {"team": "blue"},
)


def _token(repo: Repository) -> str:
    issued = repo.issue("main", "new")
    repo.context.objects.put(issued.address, b"x")
    return issued.token


def _changed(metadata: dict[str, str]) -> Callable[[Entry], Entry]:
    return lambda entry: entry.replace(metadata=metadata)


def _write(repo: Repository, metadata: dict[str, str]) -> None:
    with repo.open("main", "new", "wb", metadata=metadata) as file:
        file.write(b"1")


def _commit_at_once(repo: Repository, metadata: dict[str, str]) -> None:
    with repo.transaction("main", "m", metadata=metadata) as tx:
        tx.upload("new", b"1")


def _import(repo: Repository, metadata: dict[str, str]) -> object:
    return repo.import_objects("main", [ImportSource("s3://b/x/", "in/")], "m", metadata=metadata)


WAYS: Final[dict[str, Callable[[Lake, Repository, dict[str, str]], object]]] = {
    "Repository.upload": lambda _, repo, given: repo.upload("main", "new", b"1", metadata=given),
    "Repository.upload_many": lambda _, repo, given: repo.upload_many("main", [Upload("new", b"1", given)]),
    "Repository.upload_each": lambda _, repo, given: list(repo.upload_each("main", [Upload("new", b"1", given)])),
    "Repository.open": lambda _, repo, given: _write(repo, given),
    "Repository.stage": lambda _, repo, given: repo.stage("main", "new", "s3://b/x", size_bytes=1, metadata=given),
    "Repository.stage_many": lambda _, repo, given: repo.stage_many("main", [Stage("new", "s3://b/x", 1, "", given)]),
    "Repository.link": lambda _, repo, given: repo.link("main", "new", _token(repo), metadata=given),
    "Repository.link_many": lambda _, repo, given: repo.link_many("main", [Link("new", _token(repo), metadata=given)]),
    "Repository.link_each": lambda _, repo, given: list(
        repo.link_each("main", [Link("new", _token(repo), metadata=given)])
    ),
    "Repository.copy_many": lambda _, repo, given: repo.copy_many(
        "main", [Copy("a", "new", _changed(given))], to_branch="main"
    ),
    "Repository.move_many": lambda _, repo, given: repo.move_many("main", [Move("a", "new", _changed(given))]),
    "Repository.change_metadata": lambda _, repo, given: repo.change_metadata("main", "a", _changed(given)),
    "Repository.commit": lambda _, repo, given: repo.commit("main", "m", metadata=given, allow_empty=True),
    "Repository.transaction": lambda _, repo, given: _commit_at_once(repo, given),
    "Repository.merge": lambda _, repo, given: repo.merge("dev", into="main", metadata=given),
    "Repository.revert": lambda _, repo, given: repo.revert("main", on="main", metadata=given),
    "Repository.cherry_pick": lambda _, repo, given: repo.cherry_pick("dev", onto="main", metadata=given),
    "Repository.import_objects": lambda _, repo, given: _import(repo, given),
    "Lake.create_repository": lambda lake, _, given: lake.create_repository("other", metadata=given),
    "Lake.set_metadata": lambda lake, _, given: lake.set_metadata("lake", put=given),
    "multipart.begin": lambda _, repo, given: multipart.begin(
        repo.context, BranchName("main"), "new", seconds=60, metadata=given
    ),
}
TAKE_ITEMS: Final = ("Upload", "Stage", "Link", "Copy", "Move", "Callable[[Entry], Entry]")
"""What an annotation has whose argument brings metadata."""


def filled() -> World:
    world = World()
    world.upload("main", "a")
    world.repo.commit("main", "first")
    world.repo.create_branch("dev", source="main")
    world.upload("dev", "b")
    world.repo.commit("dev", "second")
    return world


@pytest.mark.parametrize("way", WAYS)
def test_no_way_in_takes_a_name_of_ours(way: str) -> None:
    world = filled()
    writes: list[object] = []
    for metadata in [*({name: "x"} for name in NAMES), *({"owner": "ann", name: "x"} for name in NAMES), ATTACK]:
        world.kv.before = lambda op: writes.append(op) if type(op).__name__.startswith("Set") else None
        with pytest.raises(Invalid, match="refstore's own; give it another name"):
            WAYS[way](world.lake, world.repo, metadata)
        world.kv.before = None
    assert world.repo.stat("main", "a").metadata == {}
    assert not world.repo.stat_many("main", ["new"])
    if "link" not in way and way not in ("Repository.copy_many", "Repository.move_many"):
        assert writes == []  # what these issue, or read in vain, writes; nothing else does


def test_every_method_that_takes_metadata_is_a_way_in() -> None:
    """A method with a new parameter must be given its line in the table."""
    found: set[str] = set()
    for kind in (Repository, Lake):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith(("_", "iter_")):
                continue
            parameters = inspect.signature(method).parameters.values()
            texts = {str(each.annotation) for each in parameters}
            if {"metadata", "details", "put"} & {each.name for each in parameters} or any(
                item in text for item in TAKE_ITEMS for text in texts
            ):
                found.add(f"{kind.__name__}.{name}")
    assert found - WAYS.keys() == set()


def test_the_name_that_callers_give_is_taken() -> None:
    world = filled()
    world.repo.commit("main", "m", metadata={TRANSACTION: "SNAPSHOT"}, allow_empty=True)
    assert world.repo.get_commit("main").metadata == {TRANSACTION: "SNAPSHOT"}
    for way in ("Repository.upload", "Repository.stage", "Lake.set_metadata"):
        with pytest.raises(Invalid, match="refstore's own"):
            WAYS[way](world.lake, world.repo, {TRANSACTION: "SNAPSHOT"})
    world.repo.upload("main", "b", b"1", metadata={"s3": "1", "refstore": "1", "my.s3:x": "1", "::lakefs::x": "1"})


def test_no_caller_says_what_refstore_says_of_a_commit() -> None:
    world = filled()
    notes: Any = {"notes": {"purge": "run-1"}}
    with pytest.raises(TypeError):
        world.repo.commit("main", "m", allow_empty=True, **notes)


def with_attributes(path: str = "a") -> World:
    world = World()
    world.repo.upload_many("main", [Upload(path, b"data", {"owner": "ann"}, s3=lambda: ATTRIBUTES)])
    return world


@pytest.mark.parametrize("way", ["change_metadata", "copy_many"])
def test_a_change_keeps_the_description_of_the_content(way: str) -> None:
    """Otherwise a caller could give an object the ETag of another one, and If-Match would hold for other bytes."""
    world = with_attributes()
    forged = S3Attributes(ContentDescription(etag="forged"), {"expires": "0"}, {})

    def change(entry: Entry) -> Entry:
        record = msgspec.structs.replace(stored_entry(entry), s3=forged, md5="f" * 32, checksum="f", size_bytes=1)
        return Entry(entry.path, record)

    if way == "copy_many":
        world.repo.copy_many("main", [Copy("a", "b", change)], to_branch="main")
    else:
        world.repo.change_metadata("main", "a", change)
    changed = stored_entry(world.repo.stat("main", "b" if way == "copy_many" else "a"))
    assert changed.s3 == S3Attributes(ATTRIBUTES.content, {"expires": "0"}, {})
    assert (changed.md5, changed.size_bytes) == ("8d777f385d3dfec8815d20f7496026dc", 4)


def _copied(repo: Repository) -> tuple[str, str]:
    repo.copy_many("main", [Copy("a", "b")], to_branch="main")
    return "main", "b"


def _moved(repo: Repository) -> tuple[str, str]:
    repo.move_many("main", [Move("a", "b")])
    return "main", "b"


def _merged(repo: Repository) -> tuple[str, str]:
    repo.create_branch("other", source="main~1")
    repo.upload("other", "x", b"1")
    repo.commit("other", "x")
    repo.merge("main", into="other")
    return "other", "a"


def _picked(repo: Repository) -> tuple[str, str]:
    repo.create_branch("other", source="main~1")
    repo.cherry_pick("main", onto="other")
    return "other", "a"


def _reverted_twice(repo: Repository) -> tuple[str, str]:
    repo.revert("main", on="main")
    repo.revert("main", on="main")
    return "main", "a"


def _restored(repo: Repository) -> tuple[str, str]:
    repo.upload_many("main", [Upload("c", b"data", {"owner": "ann"}, s3=lambda: ATTRIBUTES)])
    repo.delete("main", "c")
    (item,) = repo.list_trash()
    repo.restore(item.address, to="main")
    return "main", "c"


OPERATIONS: Final[Mapping[str, Callable[[Repository], tuple[str, str]]]] = {
    "commit": lambda _: ("main@", "a"),
    "copy": _copied,
    "move": _moved,
    "merge": _merged,
    "cherry-pick": _picked,
    "two reverts": _reverted_twice,
    "restore": _restored,
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_keeps_what_s3_says_of_an_object(operation: str) -> None:
    world = with_attributes()
    world.repo.commit("main", "first")
    ref, path = OPERATIONS[operation](world.repo)
    kept = world.repo.stat(ref, path)
    assert (stored_entry(kept).s3, kept.metadata) == (ATTRIBUTES, {"owner": "ann"})
    listed = dict(world.repo.list(ref))
    assert listed[path] == kept


def test_a_rebuilt_kv_has_what_refstore_says(losing: Losing) -> None:
    world = losing.world
    world.repo.upload_many("main", [Upload("a", b"data", s3=lambda: ATTRIBUTES)])
    world.repo.commit("main", "first")
    world.lake.create_repository("bucket", is_bucket=True)
    losing.put_back(MemoryKV())
    reconciliation.rebuild_kv(world.lake)
    assert stored_entry(world.lake.repository("lake").stat("main", "a")).s3 == ATTRIBUTES
    assert world.lake.repository("bucket").record.is_bucket
    assert not world.lake.repository("lake").record.is_bucket


def test_other_metadata_of_a_repository_leaves_it_a_bucket() -> None:
    world = World()
    world.lake.create_repository("bucket", is_bucket=True)
    assert world.lake.set_metadata("bucket", put={"a": "b"}, remove=["s3:created-bucket"]) == {"a": "b"}
    assert world.lake.repository("bucket").record.is_bucket


def test_an_upload_in_parts_keeps_what_it_was_begun_with() -> None:
    world = World()
    given = S3Attributes(ContentDescription("crc32"), {"expires": "0"}, {"a": "1"})
    begun = multipart.begin(world.repo.context, BranchName("main"), "p", seconds=60, metadata={"k": "v"}, s3=given)
    assert (begun.record.s3, begun.record.metadata) == (given, {"k": "v"})
    assert content_of(begun.record.s3) == ContentDescription("crc32")


def test_metadata_of_the_largest_size_is_taken() -> None:
    world = World()
    world.repo.upload("main", "a", b"1", metadata={"k": "v" * (OBJECT_METADATA_BYTES_MAX - 1)})
