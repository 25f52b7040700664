"""What a run of the purge does to an object's location, step by step, for the tests of what reads or deletes it."""

from __future__ import annotations

import hashlib

from refstore.core import ids
from refstore.core.ids import Address
from refstore.public_types import stored_entry
from refstore.records.location_records import Content
from refstore.repository import Repository
from refstore.versioning.locations import LocatedIdentity, RewriteIntent, WrittenContent


def announce(repo: Repository) -> None:
    repo.context.locations.announce()


def intend(repo: Repository, ref: str, path: str, run: str = "run-1") -> LocatedIdentity | None:
    """Write the intent of an attempt at the object; None: it goes."""
    ctx = repo.context
    entry = stored_entry(repo.resolve(ref, path).entry)
    original = Content(entry.address, entry.size_bytes, entry.checksum, entry.md5)
    (located,) = ctx.locations.intend(
        [RewriteIntent(entry.address, original, ids.new_address(ctx.ids, ctx.clock.now_ms()))], run
    )
    return located


def write(repo: Repository, intended: LocatedIdentity, body: bytes) -> None:
    """Write what the attempt has made of the content."""
    repo.context.objects.put(content_to_be(intended), body, if_absent=True)


def publish(repo: Repository, intended: LocatedIdentity, body: bytes, run: str = "run-1") -> LocatedIdentity | None:
    """Publish it; None: the record has changed since."""
    ctx = repo.context
    content = Content(
        content_to_be(intended),
        len(body),
        hashlib.sha256(body).hexdigest(),
        hashlib.md5(body, usedforsecurity=False).hexdigest(),
        run,
        ctx.clock.now_ms(),
    )
    (published,) = ctx.locations.publish([WrittenContent(intended, content)], run)
    return published


def rewrite(repo: Repository, ref: str, path: str, body: bytes, run: str = "run-1") -> LocatedIdentity:
    """Give an object another content, as a run does that nobody disturbs."""
    announce(repo)
    intended = intend(repo, ref, path, run)
    assert intended is not None
    write(repo, intended, body)
    published = publish(repo, intended, body, run)
    assert published is not None
    return published


def content_of(located: LocatedIdentity) -> Address:
    assert located.location.current is not None
    return located.location.current.address


def content_to_be(intended: LocatedIdentity) -> Address:
    """Where the attempt writes."""
    assert intended.location.intent is not None
    return intended.location.intent.address
