"""A small offline collection over the real records, for the scenarios only: the product's own one is another program.

It keeps to rules 13 and 14 of `docs/protocol.md`: mark, wait until operations that began before have ended, then read the
object listing, then references and staging, then branches and commits; what nothing names goes.
"""

from __future__ import annotations

from refstore import keys
from refstore.ids import Address, CommitId, Token
from refstore.kv.base import ABSENT
from refstore.records import Branch, Commit, Entry, Mark, decode, decode_branch, decode_staged, encode
from refstore.testing.domain import Tools
from refstore.testing.replay import Stage
from tests.simulation.calls import Call


def collect(expired: CommitId, *, order: str = "listing staged commits", waits: bool = True) -> Call:
    def run(tools: Tools) -> None:
        ctx = tools.ctx
        ctx.kv.set(keys.mark(ctx.repo, expired), encode(Mark(ctx.clock.now_ms(), ctx.clock.now_ms())))
        if waits:
            tools.stores.wait_for_others()
        listing: list[str] = []
        keep: set[str] = set()
        for what in order.split():
            if what == "listing":
                listing = [info.key for info in ctx.objects.list("data/")]
            elif what == "staged":
                keep |= _staged(tools)
            else:
                keep |= _committed(tools)
        if ctx.kv.get(keys.mark(ctx.repo, expired)) is not ABSENT:  # rule 13: sweeping re-checks the marks
            ctx.objects.delete_many([key for key in listing if key not in keep])

    return Call((Stage(f"collect {order} {waits}", run),))


def _staged(tools: Tools) -> set[str]:
    ctx = tools.ctx
    keep = {name for name, _ in ctx.kv.scan_all(keys.references(ctx.repo, 0))}
    for token, _ in ctx.kv.scan_all(keys.tokens(ctx.repo)):
        for _, value in ctx.kv.scan_all(keys.staging(ctx.repo, Token(token))):
            entry = decode_staged(value)
            if isinstance(entry, Entry):
                keep.add(entry.address)
    return keep


def _committed(tools: Tools) -> set[str]:
    """What branch heads and unmarked commits name, whether these can still be reached or not."""
    ctx = tools.ctx
    records = [decode_branch(value) for _, value in ctx.kv.scan_all(keys.branches(ctx.repo))]
    wanted = {record.head for record in records if isinstance(record, Branch)}
    wanted |= {
        CommitId(commit)
        for commit, _ in ctx.kv.scan_all(keys.commits(ctx.repo))
        if ctx.kv.get(keys.mark(ctx.repo, CommitId(commit))) is ABSENT
    }
    keep: set[Address] = set()
    for commit in sorted(wanted):
        value = ctx.kv.get(keys.commit(ctx.repo, commit))
        if value is not ABSENT:
            for page in ctx.trees.addresses(decode(value, Commit).metarange):
                keep.update(page)
    return set(keep)
