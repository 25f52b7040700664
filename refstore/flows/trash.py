"""Trash: what lost its last name and can still be taken back, whether the reaper has passed or not.

    released   a reset or a branch deletion retired its token; the reaper has not processed it, so its grace window has not begun
    due        its reference list is empty: it is in its grace window, and a due hint finds it

Read in this order, and the tokens in the order in which a fate travels (branch records, then markers), so that what goes from one to
the next while somebody reads is found in the next. It may then be listed in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from refstore import ids, keys
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import Invalid, InvalidName
from refstore.ids import Address, BranchName, Path, Token, branch_of
from refstore.kv.base import ABSENT
from refstore.markers import COMMITTED, Markers, commit_of
from refstore.records import Emptied, Entry, Listed, Reference, decode_staged_many
from refstore.references import References

_PAGE: Final = 500

_RELEASED: Final = "released"
_DUE: Final = "due"


class InGrace(NamedTuple):
    """A name of an address that has no other name any more, and whose blob is still there."""

    address: Address
    branch: BranchName
    path: Path
    token: Token
    """What it was staged under. Of one branch, later tokens sort behind earlier ones."""
    cause: str
    since_ms: int
    deletes_at_ms: int | None
    """None: the reaper has not passed since; its grace window begins when it does."""
    entry: Entry | None
    cursor: str
    """A listing `after` this one goes on behind it."""


class _Retired(NamedTuple):
    """Why and when a token was given up."""

    cause: str
    at_ms: int


def in_grace(ctx: Context, *, branch: BranchName | None = None, prefix: str = "", after: str = "") -> Iterator[InGrace]:
    """What could be restored now: by token and path, then by shard and time. `after`: the cursor of the last one seen. Raises Invalid.

    Reads the areas of tokens that wait for the reaper, and the due hints; never the whole of the references.
    """
    kind, within, name = _cursor(after)
    if kind == _RELEASED:
        yield from _released(ctx, branch, prefix, within, name)
    for shard in range(int(within, 16) if kind == _DUE else 0, keys.SHARDS):
        start = name if kind == _DUE and shard == int(within, 16) else ""
        for page in _pages(ctx.kv.scan_all(keys.due_shard(ctx.repo, shard), after=start, page=_PAGE)):
            yield from _due(ctx, shard, [name for name, _ in page], branch, prefix)


def _released(ctx: Context, branch: BranchName | None, prefix: str, from_token: str, after: str) -> Iterator[InGrace]:
    """What tokens hold that no commit took, and nothing else names."""
    retired = _retired_tokens(ctx)
    for token in sorted(retired):
        if token < from_token or branch not in (None, branch_of(token)):
            continue
        area = ctx.kv.scan_all(keys.staging(ctx.repo, token), prefix=prefix, after=after if token == from_token else "", page=_PAGE)
        for page in _pages(area):
            yield from _last_names(ctx, retired, token, page)


def _retired_tokens(ctx: Context) -> dict[Token, _Retired]:
    """The tokens that were given up and are not processed. Those that a commit took are left out: most of what they hold it named."""
    now = ctx.clock.now_ms()
    found: dict[Token, _Retired] = {}
    for _, _, record in Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).scan():
        found |= {token: _Retired(fate, now) for token, fate in record.retired if commit_of(fate) is None}
    for token, marker in Markers(ctx.kv, ctx.repo, ctx.clock).deleted():
        if not marker.cause.startswith(COMMITTED):
            found[token] = _Retired(marker.cause, marker.at_ms)
    return found


def _last_names(ctx: Context, retired: dict[Token, _Retired], token: Token, page: Sequence[tuple[str, bytes]]) -> Iterator[InGrace]:
    records = decode_staged_many([value for _, value in page])
    entries = [
        (Path(path), record)
        for (path, _), record in zip(page, records, strict=True)
        if isinstance(record, Entry) and ids.is_own(record.address)
    ]
    lists = References(ctx.kv, ctx.repo, ctx.clock).get_many([entry.address for _, entry in entries])
    for (path, entry), names in zip(entries, lists, strict=True):
        own = Reference(token, path, entry.reference_id)
        # an empty list is in its window already; another name of a live token keeps it
        if isinstance(names, Listed) and own in names.references and all(name.token in retired for name in names.references):
            cause, at_ms = retired[token]
            cursor = f"{_RELEASED}/{quote(token, safe='')}/{path}"
            yield InGrace(entry.address, branch_of(token), path, token, cause, at_ms, None, entry, cursor)


def _due(ctx: Context, shard: int, names: Sequence[str], branch: BranchName | None, prefix: str) -> Iterator[InGrace]:
    page = [keys.parse_due(name) for name in names]
    records = References(ctx.kv, ctx.repo, ctx.clock).get_many([address for _, address in page])
    outdated = _outdated(ctx, page, records)
    for name, (due_ms, address), record in zip(names, page, records, strict=True):
        if not isinstance(record, Emptied) or not record.last.path.startswith(prefix) or (due_ms, address) in outdated:
            continue
        of = branch_of(record.last.token)
        if branch in (None, of):
            cursor = f"{_DUE}/{shard:02x}/{name}"
            last = record.last
            yield InGrace(address, of, last.path, last.token, record.cause, record.since_ms, due_ms, record.entry, cursor)


def _outdated(ctx: Context, page: Sequence[tuple[int, Address]], records: Sequence[object]) -> set[tuple[int, Address]]:
    """Hints of an earlier window: what was restored and lost its name again has one of each time, and only the last one's date is true."""
    grace_ms = int(ctx.grace_seconds * 1000)
    now_due = {
        (due_ms, address): keys.due(ctx.repo, record.since_ms + grace_ms, address)
        for (due_ms, address), record in zip(page, records, strict=True)
        if isinstance(record, Emptied) and due_ms != record.since_ms + grace_ms
    }
    there = ctx.kv.get_many(list(now_due.values())) if now_due else []
    return {hint for hint, value in zip(now_due, there, strict=True) if value is not ABSENT}


def _pages(pairs: Iterator[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    page: list[tuple[str, bytes]] = []
    for pair in pairs:
        page.append(pair)
        if len(page) == _PAGE:
            yield page
            page = []
    if page:
        yield page


def _cursor(text: str) -> tuple[str, str, str]:
    """(released or due, the token or shard, the name in it). Raises Invalid."""
    if not text:
        return _RELEASED, "", ""
    kind, _, rest = text.partition("/")
    within, _, name = rest.partition("/")
    try:
        if kind == _RELEASED:
            return kind, ids.staging_token(unquote(within)), name
        if kind == _DUE and 0 <= int(within, 16) < keys.SHARDS:
            return kind, within, name
    except (ValueError, InvalidName):
        pass
    raise Invalid(f"{text[:120]!r} is not where a listing of the trash can go on; give what the page before said, or nothing")
