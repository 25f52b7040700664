"""Create, read and delete tags: names of commits that do not move."""

from __future__ import annotations

from collections.abc import Iterator

from refstore.context import Context
from refstore.core import ids, keys
from refstore.core.ids import CommitId, TagName
from refstore.core.records import Tag, decode, encode, maybe
from refstore.errors import AlreadyExists, Conflict, Gone, TagNotFound
from refstore.kv.base import ABSENT
from refstore.operations import refs


def create(ctx: Context, name: TagName, source: str) -> CommitId:
    """Tag a ref's commit. Raises AlreadyExists, NotFound, Gone (the commit is marked), ObjectsUnavailable (the tag was
    created, and its entry in the manifest comes later).
    """
    commit = refs.resolve(ctx, source).commit
    refs.check_mark(ctx, commit)
    key = keys.tag(ctx.repo, name)
    ours = encode(Tag(commit, ctx.clock.now_ms()))
    if not ctx.kv.set_if(key, ABSENT, ours):
        raise AlreadyExists(f"tag already exists: {name!r}; a tag does not move, delete it first")
    try:
        refs.check_mark(ctx, commit)
    except Gone:  # a store's failure leaves the tag, as a crash would: others may have read it by then
        ctx.kv.set_if(key, ours, ABSENT)  # only our own record, not one that others wrote since
        raise
    ctx.manifest.keep(key, ours, f"tag {name!r} was created")
    return commit


def get(ctx: Context, name: TagName) -> Tag:
    """Raises TagNotFound."""
    tag = maybe(ctx.kv.get(keys.tag(ctx.repo, name)), Tag)
    if tag is None:
        raise _not_found(name)
    return tag


def delete(ctx: Context, name: TagName) -> None:
    """Delete the tag that is there now. Raises TagNotFound, Conflict (others made another one under its name
    meanwhile).
    """
    key = keys.tag(ctx.repo, name)
    raw = ctx.kv.get(key)
    if raw is ABSENT:
        raise _not_found(name)
    tag = decode(raw, Tag)
    before = {"commit": tag.commit, "created_ms": tag.created_ms}
    with ctx.audit.act("tag.delete", repository=ctx.name, target=name, before=before) as draft:
        ctx.manifest.give_up(key, raw)
        if not ctx.kv.set_if(key, raw, ABSENT):
            if ctx.kv.get(key) is not ABSENT:
                raise Conflict(
                    f"tag {name!r} was deleted and made again meanwhile; look at it, and delete it again if need be"
                )
            draft.happened = False


def scan(ctx: Context, *, prefix: str, after: str) -> Iterator[tuple[TagName, Tag]]:
    for name, value in ctx.kv.scan_all(keys.tags(ctx.repo), prefix=prefix, after=after):
        yield ids.tag_name(name), decode(value, Tag)


def _not_found(name: TagName) -> TagNotFound:
    return TagNotFound(f"tag {name!r} does not exist; list the tags to see which do")
