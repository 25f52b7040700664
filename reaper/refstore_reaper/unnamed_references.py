"""Release the references of current tokens whose entry does not name their address (rule 9).

A writer died between its reference and its entry; or whoever replaced an entry died before it released the reference of
the old one. The token is current, perhaps for years, so nothing else would find what was left. In this order:

1. The lists are read. A reference counts that is older than the longest operation: no entry of it is on its way.
2. The entries at the references' paths are read. One that does not name the address leaves its reference unnamed.
3. The branches are read. No commit can have read what stood under a token that is still current now. References of
   sealed tokens go with their token.
4. The servers are compared with those at the beginning of the pass: an entry that was lost meanwhile looks as if it had
   never been written, and the release would explain the loss (rule 21).
5. The references are released by `set_if` on the list as it was read, into the grace window, and never straight to
   deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from refstore.context import Context
from refstore.core.ids import Address, BranchName, Token, branch_of
from refstore.errors import CorruptRecord
from refstore.kv.base import ABSENT
from refstore.records import keys
from refstore.records.branch_records import Branch
from refstore.records.reference_records import Reference, decode_reference
from refstore.records.staging_records import Entry, decode_staged
from refstore_reaper.readable_records import OnCorrupt, raise_error, readable
from refstore_reaper.scrub import PAGE, ReadAddress, ScrubResult, drop_references, old_references

ATTEMPTS: Final = 8
"""How often references are released from a list that others change meanwhile; the next scrub tries again."""


def release_unnamed(
    ctx: Context,
    shard: int,
    *,
    check_servers: Callable[[], None],
    on_corrupt: OnCorrupt = raise_error,
    go_on: Callable[[], bool] = lambda: True,
) -> ScrubResult:
    """Release the unnamed references of one shard.

    What cannot be read is left: a reference record, and what an entry may name. A branch that cannot be read raises
    CorruptRecord. `check_servers` raises where the repository's KV is not served as it was when the pass began.
    """
    partition = keys.references(ctx.repo, shard)
    released = 0
    after = ""
    while page := ctx.kv.scan(partition, after=after, limit=PAGE):
        if not go_on():
            return ScrubResult(released, 0, 0, finished=False)
        after = page[-1][0]
        before = ctx.clock.now_ms() - int(ctx.waits.scrub_after_seconds * 1000)
        addresses = [
            ReadAddress(Address(name), value, record)
            for name, value, record in readable(page, decode_reference, on_corrupt)
        ]
        for _ in range(ATTEMPTS):
            old = {item.address: references for item in addresses if (references := old_references(item, before))}
            unnamed = _find_unnamed(ctx, old, on_corrupt)
            if not unnamed:
                break
            check_servers()
            dropped = drop_references(ctx, addresses, unnamed)
            released += sum(dropped.values())
            addresses = _read_again(ctx, sorted(unnamed.keys() - dropped.keys()))
    return ScrubResult(released, 0, 0)


def _find_unnamed(
    ctx: Context, old: Mapping[Address, set[Reference]], on_corrupt: OnCorrupt
) -> dict[Address, set[Reference]]:
    pairs = [(address, ref) for address, references in old.items() for ref in references]
    values = ctx.kv.get_many([keys.entry(ctx.repo, ref.token, ref.path) for _, ref in pairs]) if pairs else []
    left = [
        (address, ref)
        for (address, ref), value in zip(pairs, values, strict=True)
        if value is ABSENT or not _may_name(value, address, ref, on_corrupt)
    ]
    current = _current_tokens(ctx, {branch_of(ref.token) for _, ref in left})  # behind the entries
    unnamed: dict[Address, set[Reference]] = {}
    for address, ref in left:
        if ref.token in current:
            unnamed.setdefault(address, set()).add(ref)
    return unnamed


def _may_name(value: bytes, address: Address, reference: Reference, on_corrupt: OnCorrupt) -> bool:
    try:
        entry = decode_staged(value)
    except CorruptRecord as error:
        on_corrupt(f"{reference.token}/{reference.path}", error)
        return True
    return isinstance(entry, Entry) and entry.address == address


def _current_tokens(ctx: Context, branches: Iterable[BranchName]) -> set[Token]:
    names = sorted(branches)
    values = ctx.kv.get_many([ctx.branches.key(name) for name in names]) if names else []
    records = [ctx.branches.decode(value) for value in values]
    return {record.token for record in records if isinstance(record, Branch)}


def _read_again(ctx: Context, addresses: Sequence[Address]) -> list[ReadAddress]:
    values = ctx.kv.get_many(keys.reference_keys(ctx.repo, addresses)) if addresses else []
    return [
        ReadAddress(address, value, decode_reference(value))
        for address, value in zip(addresses, values, strict=True)
        if value is not ABSENT
    ]
