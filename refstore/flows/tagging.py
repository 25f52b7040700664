"""Tags: names of commits that do not move."""

from __future__ import annotations

from collections.abc import Iterator

from refstore import ids, keys
from refstore.context import Context
from refstore.errors import AlreadyExists, Gone, TagNotFound
from refstore.flows import refs
from refstore.ids import CommitId, TagName
from refstore.kv.base import ABSENT
from refstore.records import Tag, decode, encode, maybe


def create(ctx: Context, name: TagName, source: str) -> CommitId:
    """Raises AlreadyExists, NotFound, Gone (the commit is marked)."""
    commit = refs.resolve(ctx, source).commit
    refs.check_mark(ctx, commit)
    key = keys.tag(ctx.repo, name)
    ours = encode(Tag(commit, ctx.clock.now_ms()))
    if not ctx.kv.set_if(key, ABSENT, ours):
        raise AlreadyExists(f"tag already exists: {name!r}; a tag does not move, delete it first")
    try:
        refs.check_mark(ctx, commit)
    except Gone:  # trouble of a store is as a crash here, and others may have read the tag by then
        ctx.kv.set_if(key, ours, ABSENT)  # not what others have made under the name since
        raise
    return commit


def get(ctx: Context, name: TagName) -> Tag:
    """Raises TagNotFound."""
    found = maybe(ctx.kv.get(keys.tag(ctx.repo, name)), Tag)
    if found is None:
        raise TagNotFound(f"tag {name!r} does not exist; list the tags to see which do")
    return found


def delete(ctx: Context, name: TagName) -> None:
    """Raises TagNotFound."""
    key = keys.tag(ctx.repo, name)
    found = ctx.kv.get(key)
    if found is ABSENT:
        raise TagNotFound(f"tag {name!r} does not exist; list the tags to see which do")
    ctx.kv.set_if(key, found, ABSENT)


def scan(ctx: Context, *, prefix: str, after: str) -> Iterator[tuple[TagName, Tag]]:
    for name, value in ctx.kv.scan_all(keys.tags(ctx.repo), prefix=prefix, after=after):
        yield ids.tag_name(name), decode(value, Tag)
