"""Find out whether a repository names any object: in a commit, under a tag, or in a staging area."""

from __future__ import annotations

from refstore.context import Context
from refstore.records import keys
from refstore.records.commit_records import Commit
from refstore.records.encoding import decode
from refstore.records.staging_records import Entry, decode_staged


def names_objects(ctx: Context) -> bool:
    """Return whether any commit, or any branch's staging area, names an object. A tag names a commit."""
    if any(decode(value, Commit).metarange for _, value in ctx.kv.scan_all(keys.commits(ctx.repo))):
        return True
    return any(
        isinstance(decode_staged(value), Entry)
        for _, branch in ctx.branches.scan_open()
        for _, value, _ in ctx.staging.scan_merged(branch.live_tokens)
    )
