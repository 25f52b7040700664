"""What a repository holds, as tests compare it."""

from __future__ import annotations

from refstore.repository import Repository


def contents(repo: Repository, ref: str = "main") -> dict[str, bytes]:
    return {item.path: repo.read(ref, item.path) for item in repo.list(ref)}


def paths(repo: Repository, ref: str = "main") -> list[str]:
    return [item.path for item in repo.list(ref)]


def blobs(repo: Repository) -> list[str]:
    """Return the addresses of the objects that are there."""
    return [info.key for info in repo.context.objects.list("data/")]
