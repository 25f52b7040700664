"""Trash: addresses that lost their last reference and can still be taken back.

    released   a reset or a branch deletion retired the token; the reaper has not processed it, so the grace window has
               not begun
    due        the reference list is empty: the address is in its grace window, and a due hint finds it

A listing reads them in this order, and tokens in the order in which a fate travels: branch records, then markers. So an
address that moves from one to the next during the listing is found in the next; it may then be listed in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from refstore.context import Context
from refstore.core import ids
from refstore.core.batches import split_batches
from refstore.core.ids import Address, BranchName, Path, Token, branch_of
from refstore.errors import Invalid, InvalidName
from refstore.kv.base import ABSENT, Key
from refstore.records import keys
from refstore.records.branch_records import DeletedToken
from refstore.records.reference_records import Emptied, Listed, Reference
from refstore.records.staging_records import StoredEntry, decode_staged_many
from refstore.versioning import due_hints
from refstore.versioning.address_state import may_delete_at_ms
from refstore.versioning.due_hints import DueHint
from refstore.versioning.markers import COMMITTED_CAUSE_PREFIX, commit_of

_PAGE: Final = 500

_RELEASED_PART: Final = "released"
_DUE_PART: Final = "due"


class LostName(NamedTuple):
    """The last name of an address whose blob is still there, as records have it (`TrashItem`)."""

    address: Address
    branch: BranchName
    path: Path
    token: Token
    """The token that the entry was staged under. Later tokens of a branch sort after earlier ones."""
    cause: str
    since_ms: int
    deletes_at_ms: int | None
    """None: the grace window begins when the reaper processes the token."""
    entry: StoredEntry | None
    cursor: str
    """Give this as `after` to continue the listing."""


def list_trash(
    ctx: Context, *, branch: BranchName | None = None, prefix: str = "", after: str = ""
) -> Iterator[LostName]:
    """Yield what could be restored now: by token and path, then by shard and time. Raises Invalid.

    `after`: the cursor of the last item that the caller has. Only staging areas of retired tokens and the due hints are
    read, never all references.
    """
    kind, within, name = _parse_cursor(after)
    if kind == _RELEASED_PART:
        yield from _released_entries(ctx, branch, prefix, within, name)
    for shard in range(int(within, 16) if kind == _DUE_PART else 0, keys.SHARDS):
        start = name if kind == _DUE_PART and shard == int(within, 16) else ""
        for page in split_batches(_hinted_addresses(ctx, shard, start), _PAGE):
            yield from _trash_of_hints(ctx, shard, page, branch, prefix)


def trash_sizes(ctx: Context) -> Iterator[int]:
    """Yield the size of each object that can be restored and of which no reaper has begun the grace window."""
    for item in _released_entries(ctx, None, "", "", "", first_names=True):
        yield item.entry.size_bytes if item.entry is not None else 0


def _released_entries(
    ctx: Context, branch: BranchName | None, prefix: str, from_token: str, after: str, *, first_names: bool = False
) -> Iterator[LostName]:
    """Yield the entries under retired tokens that no commit took and no live token names. `first_names`: of the names
    of one object only the first.
    """
    retired = _retired_tokens(ctx)
    for token in sorted(retired):
        if token < from_token or branch not in (None, branch_of(token)):
            continue
        area = ctx.kv.scan_all(
            keys.staging(ctx.repo, token), prefix=prefix, after=after if token == from_token else "", page=_PAGE
        )
        for page in split_batches(area, _PAGE):
            yield from _last_names_of(ctx, retired, token, page, first_names=first_names)


def _retired_tokens(ctx: Context) -> dict[Token, DeletedToken]:
    """Return the retired tokens that the reaper has not processed, each with its marker as it is or will be, without
    those that a commit took.

    The commit names most entries of the latter.
    """
    now = ctx.clock.now_ms()
    retired: dict[Token, DeletedToken] = {}
    for _, _, record in ctx.branches.scan():
        retired |= {token: DeletedToken(fate, now) for token, fate in record.retired_tokens if commit_of(fate) is None}
    for token, marker in ctx.markers.scan_deleted():
        if not marker.cause.startswith(COMMITTED_CAUSE_PREFIX):
            retired[token] = marker
    return retired


def _last_names_of(
    ctx: Context,
    retired: dict[Token, DeletedToken],
    token: Token,
    page: Sequence[tuple[str, bytes]],
    *,
    first_names: bool,
) -> Iterator[LostName]:
    records = decode_staged_many([value for _, value in page])
    entries = [
        (Path(path), record)
        for (path, _), record in zip(page, records, strict=True)
        if isinstance(record, StoredEntry) and ids.is_own(record.address)
    ]
    lists = ctx.references.get_many([entry.address for _, entry in entries])
    for (path, entry), names in zip(entries, lists, strict=True):
        own = Reference(token, path, entry.reference_id)
        # an address with an empty list is in its grace window already; a name under a live token keeps an address
        if (
            isinstance(names, Listed)
            and own in names.references
            and all(name.token in retired for name in names.references)
            and (not first_names or own == names.references[0])
        ):
            cause, since_ms = retired[token].cause, retired[token].at_ms
            cursor = f"{_RELEASED_PART}/{quote(token, safe='')}/{path}"
            yield LostName(entry.address, branch_of(token), path, token, cause, since_ms, None, entry, cursor)


class _HintedAddress(NamedTuple):
    """An address that a due hint names."""

    due_ms: int
    address: Address
    position: str
    """The hint's name, and the number of the address in it."""


def _hinted_addresses(ctx: Context, shard: int, after: str) -> Iterator[_HintedAddress]:
    """Yield what a shard's hints name, after the position."""
    name, _, number = after.partition("#")
    if number:  # the rest of the hint of which a caller has the first addresses; nothing if it went meanwhile
        key = Key(keys.due_hint_shard(ctx.repo, shard), name)
        value = ctx.kv.get(key)
        hints = [] if value is ABSENT else [due_hints.parse(key.partition, key.name, value)]
        yield from _first_hinted(hints, int(number) + 1)
    page = due_hints.scan_due(ctx.kv, ctx.repo, shard, now_ms=None, after=name, limit=due_hints.PAGE)
    while page:
        yield from _first_hinted(page, 0)
        page = due_hints.scan_due(ctx.kv, ctx.repo, shard, now_ms=None, after=page[-1].key.name, limit=due_hints.PAGE)


def _first_hinted(hints: Sequence[DueHint], first: int) -> Iterator[_HintedAddress]:
    for hint in hints:
        for number, address in enumerate(hint.addresses[first:], start=first):
            yield _HintedAddress(hint.due_ms, address, f"{hint.key.name}#{number}")


def _trash_of_hints(
    ctx: Context, shard: int, page: Sequence[_HintedAddress], branch: BranchName | None, prefix: str
) -> Iterator[LostName]:
    records = ctx.references.get_many([address for _, address, _ in page])
    delays = ctx.deletion_delays
    emptied = [
        (hint, record, may_delete_at_ms(record, delays))
        for hint, record in zip(page, records, strict=True)
        if isinstance(record, Emptied) and record.last_reference.path.startswith(prefix)
    ]
    # an address that was restored, and lost its name again, has a hint of each time: it is shown at the last one
    others = [(hint, (at_ms, hint.address)) for hint, _, at_ms in emptied if hint.due_ms != at_ms]
    known = due_hints.have_hints(ctx.kv, ctx.repo, [due for _, due in others])
    outdated = {hint for (hint, _), is_known in zip(others, known, strict=True) if is_known}
    for hint, record, at_ms in emptied:
        last = record.last_reference
        of = branch_of(last.token)
        if hint not in outdated and branch in (None, of):
            cursor = f"{_DUE_PART}/{shard:02x}/{hint.position}"
            yield LostName(
                hint.address, of, last.path, last.token, record.cause, record.since_ms, at_ms, record.entry, cursor
            )


def _parse_cursor(text: str) -> tuple[str, str, str]:
    """Parse a cursor: (released or due, the token or shard, the name in it). Raises Invalid."""
    if not text:
        return _RELEASED_PART, "", ""
    kind, _, rest = text.partition("/")
    within, _, name = rest.partition("/")
    try:
        if kind == _RELEASED_PART:
            return kind, ids.staging_token(unquote(within)), name
        if kind == _DUE_PART and 0 <= int(within, 16) < keys.SHARDS and int(name.partition("#")[2] or 0) >= 0:
            return kind, within, name
    except (ValueError, InvalidName):
        pass
    raise Invalid(
        f"{text[:120]!r} is not a position in a listing of the trash; give the cursor of the previous page, or nothing"
    )
