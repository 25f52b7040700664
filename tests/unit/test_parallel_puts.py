"""Bodies of one batch: each under its own address, several at a time, and a failure is told whatever its kind."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

import refstore
from refstore.core.ids import Address
from refstore.operations.upload import Upload
from refstore.operations.upload_bodies import put_all
from refstore.repository import Repository


@pytest.fixture
def repo() -> Iterator[Repository]:
    with refstore.create(kv="memory:", objects=f"memory://{secrets.token_hex(8)}") as lake:
        yield lake.create_repository("put-all")


def test_each_body_is_stored_under_its_own_address(repo: Repository) -> None:
    bodies = [(Address(f"data/2026112107/{number:026d}"), b"%d" % number) for number in range(50)]
    stored = put_all(repo.context, bodies)
    assert [repo.context.objects.read(address) for address, _ in bodies] == [body for _, body in bodies]
    assert [each.size_bytes for each in stored] == [len(body) for _, body in bodies]


@pytest.mark.parametrize("kind", [IndexError, ValueError, KeyError, StopAsyncIteration])
def test_what_a_body_raises_ends_the_batch(repo: Repository, kind: type[Exception]) -> None:
    """IndexError above all: it is also how a writer learns that no body is left."""

    def broken() -> Iterator[bytes]:
        yield b"the beginning"
        raise kind("by plan")

    begun: list[int] = []

    def counted(number: int) -> Iterator[bytes]:
        begun.append(number)
        yield b"body"

    uploads = [
        Upload(path="broken", body=broken()),
        *(Upload(path=f"p/{number:03d}", body=counted(number)) for number in range(400)),
    ]
    with pytest.raises(kind, match="by plan"):
        repo.upload_many("main", uploads)
    assert not list(repo.list("main"))
    assert len(begun) < 400, "bodies were written for a batch that had failed"
