"""Ways in which rows lie in a lake while a purge runs, and come to a path behind it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final, NamedTuple

from refstore.core.ids import branch_name
from refstore.operations import complete_upload, multipart
from refstore.operations.complete_upload import RequestedPart
from refstore.operations.upload import Upload
from refstore.public_types import stored_entry
from refstore.records.s3_attributes import add_sources
from refstore.records.staging_records import sources_of_copy
from refstore.versioning.multipart_uploads import UploadName, WrittenPart
from tests.offline.world import World

DAY_SECONDS: Final = 86_400

Move = Callable[[], object]


class MovingBytes(NamedTuple):
    """Where the bytes are before a run, and what moves them to a path."""

    name: str
    lay: Callable[[World, str, bytes], Move]
    """Lays the bytes where a run finds them, for a path; returns what moves them to it."""


def _issue(world: World, path: str, body: bytes) -> Move:
    issued = world.repo.issue("main", path)
    world.ctx.objects.put(issued.address, body)
    return lambda: world.repo.link("main", path, issued.token)


def _issue_to_be_copied(world: World, path: str, body: bytes) -> Move:
    world.lake.safety = dataclasses.replace(world.lake.safety, copy_linked="always")
    world.repo = world.lake.repository("sales")
    return _issue(world, path, body)


def _begin_upload(world: World, path: str, body: bytes) -> Move:
    name = _begin(world, path)
    part = multipart.write_part(world.ctx, name, 1, body)
    return lambda: _complete(world, name, part)


def _begin_upload_without_parts(world: World, path: str, body: bytes) -> Move:
    """As where the store keeps the parts, and shows none of them."""
    name = _begin(world, path)
    return lambda: _complete(world, name, multipart.write_part(world.ctx, name, 1, body))


def _begin(world: World, path: str) -> UploadName:
    return multipart.begin(world.ctx, branch_name("main"), path, seconds=DAY_SECONDS).name


def _complete(world: World, name: UploadName, part: WrittenPart) -> None:
    complete_upload.complete(world.ctx, name, [RequestedPart(1, part.part.etag)])


def _stage_and_delete(world: World, path: str, body: bytes) -> Move:
    address = world.repo.upload("main", path, body).address
    world.repo.delete("main", path)
    return lambda: world.repo.restore(address, to="main", path=path)


def _stage_to_be_copied(world: World, path: str, body: bytes) -> Move:
    """As S3 clients copy under a condition: by bytes. The source is deleted behind it."""
    other = f"{path}-before"
    world.repo.upload("main", other, body)

    def copy() -> None:
        shown, read = stored_entry(world.repo.stat("main", other)), world.repo.read("main", other)
        world.repo.upload_many("main", [Upload(path, read, s3=lambda: add_sources(None, sources_of_copy(shown)))])
        world.repo.delete("main", other)

    return copy


def _stage_to_be_copied_in_parts(world: World, path: str, body: bytes) -> Move:
    """As S3 clients copy large objects. The source is deleted behind it."""
    other = f"{path}-before"
    world.repo.upload("main", other, body)

    def copy() -> None:
        shown, read = stored_entry(world.repo.stat("main", other)), world.repo.read("main", other)
        name = _begin(world, path)
        _complete(world, name, multipart.write_part(world.ctx, name, 1, read, sources=sources_of_copy(shown)))
        world.repo.delete("main", other)

    return copy


MOVING: Final = [
    MovingBytes("linked", _issue),
    MovingBytes("linked as a copy", _issue_to_be_copied),
    MovingBytes("completed", _begin_upload),
    MovingBytes("completed from parts of the store", _begin_upload_without_parts),
    MovingBytes("restored", _stage_and_delete),
    MovingBytes("copied", _stage_to_be_copied),
    MovingBytes("copied in parts", _stage_to_be_copied_in_parts),
]
