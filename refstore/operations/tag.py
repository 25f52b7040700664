"""Create, read and delete tags: names of commits that do not move."""

from __future__ import annotations

from collections.abc import Iterator

from refstore.context import Context
from refstore.core import ids
from refstore.core.batches import split_batches
from refstore.core.ids import BranchName, CommitId, TagName
from refstore.errors import AlreadyExists, Conflict, Gone, TagNotFound
from refstore.kv.base import ABSENT, SCAN_LIMIT
from refstore.operations import refs
from refstore.records import keys
from refstore.records.branch_records import StoredBranch, StoredTag
from refstore.records.encoding import decode, decode_optional, encode


def create_tag(ctx: Context, name: TagName, source: str) -> CommitId:
    """Tag a ref's commit. Raises AlreadyExists (a tag or a branch has the name), NotFound, Gone (the commit is
    marked), ObjectsUnavailable (the tag was created, and its entry in the manifest comes later).

    Branches are looked at behind the tag, which goes again if one has its name (rule 19); and before it, so that a tag
    whose creator dies in between does not stand beside a branch that was there long since.
    """
    commit = refs.resolve(ctx, source).commit
    refs.check_mark(ctx, commit)
    _check_no_branch(ctx, name)
    key = keys.tag(ctx.repo, name)
    now = ctx.clock.now_ms()
    ours = encode(StoredTag(commit, now, ctx.ids.new_id(now)))
    if not ctx.kv.set_if(key, ABSENT, ours):
        raise AlreadyExists(f"tag already exists: {name!r}; a tag does not move, delete it first")
    try:
        refs.check_mark(ctx, commit)
        _check_no_branch(ctx, name)
    except (AlreadyExists, Gone):  # a store's failure leaves the tag, as a crash would: others may have read it by then
        ctx.kv.set_if(key, ours, ABSENT)  # only our own record, not one that others wrote since
        raise
    ctx.manifest.add_record(key, ours, f"tag {name!r} was created")
    return commit


def _check_no_branch(ctx: Context, name: TagName) -> None:
    if ctx.branches.has_branch(name):
        raise AlreadyExists(
            f"a branch is named {name!r}, and a ref could not tell them apart; choose another name for the tag, or"
            " delete the branch first"
        )


def tags_hidden_by_branches(ctx: Context) -> Iterator[TagName]:
    """Yield the tags whose name a branch has, too: a ref of that name means the branch.

    Such tags are refused when they are created; one whose creator died just then may be left.
    """
    for page in split_batches((name for name, _ in scan_tags(ctx, prefix="", after="")), SCAN_LIMIT):
        values = ctx.kv.get_many([ctx.branches.key(BranchName(name)) for name in page])
        for name, value in zip(page, values, strict=True):
            if isinstance(ctx.branches.decode(value), StoredBranch):
                yield name


def get_tag(ctx: Context, name: TagName) -> StoredTag:
    """Raises TagNotFound."""
    tag = decode_optional(ctx.kv.get(keys.tag(ctx.repo, name)), StoredTag)
    if tag is None:
        raise _tag_not_found(name)
    return tag


def delete_tag(ctx: Context, name: TagName) -> None:
    """Delete the tag that is there now. Raises TagNotFound, Conflict (others made another one under its name
    meanwhile).
    """
    key = keys.tag(ctx.repo, name)
    raw = ctx.kv.get(key)
    if raw is ABSENT:
        raise _tag_not_found(name)
    tag = decode(raw, StoredTag)
    before = {"commit": tag.commit, "created_ms": tag.created_ms}
    with ctx.audit.act("tag.delete", repository=ctx.name, target=name, before=before) as draft:
        ctx.manifest.add_record_removal(key, raw)
        if not ctx.kv.set_if(key, raw, ABSENT):
            if ctx.kv.get(key) is not ABSENT:
                raise Conflict(
                    f"tag {name!r} was deleted and made again meanwhile; look at it, and delete it again if need be"
                )
            draft.happened = False


def scan_tags(ctx: Context, *, prefix: str, after: str) -> Iterator[tuple[TagName, StoredTag]]:
    for name, value in ctx.kv.scan_all(keys.tags(ctx.repo), prefix=prefix, after=after):
        yield ids.tag_name(name), decode(value, StoredTag)


def _tag_not_found(name: TagName) -> TagNotFound:
    return TagNotFound(f"tag {name!r} does not exist; list the tags to see which do", unknown=name)
