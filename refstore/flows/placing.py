"""Putting entries under a branch's current token, and following the token when it moves.

This is the heart of rules 1, 2 and 6, and the only place where entries are written:

    reference under T on the list  ->  entry under T  ->  is T still the branch's token?
        yes: the reference that the replaced entry carried may go, that one and no other
        no:  reference under the new token, entry there, look again; the old reference stays until T is processed
        the reply was lost: a new reference, an entry that carries it, look again
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

import msgspec

from refstore import deadline, keys
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import AlreadyExists, Contention, InvalidPath, OutcomeUnknown
from refstore.flows.reading import Resolved, resolve_many
from refstore.flows.refs import Ref, marked
from refstore.ids import BranchName, CommitId, Path, Token, is_own
from refstore.kv.base import ABSENT, Absent, Exchange, Get, Result, SetIf
from refstore.records import Entry, Listed, Mark, Reference, decode, decode_staged, encode
from refstore.references import Hold, References, Release
from refstore.staging import TOMBSTONE

ATTEMPTS: Final = 16
"""How often the token may move under one placement. Each move is a commit or reset of the branch."""

OVERWRITTEN: Final = "overwritten"
REFUSED: Final = "refused: something is at the path"
DELETED: Final = "deleted"


class Placement(msgspec.Struct, frozen=True):
    path: Path
    entry: Entry | None
    """None: a tombstone."""
    referenced: bool
    """Whether the entry needs a reference: it does unless its address is committed or outside the namespace."""
    if_absent: bool = False
    """Whether it may only go where nothing is. Such a placement has an entry, and a reference."""

    def again(self, reference_id: str) -> Placement:
        """The same, to be placed under a reference of its own: never twice under one that may have been released since."""
        if self.entry is None or not self.referenced:
            return self
        return msgspec.structs.replace(self, entry=msgspec.structs.replace(self.entry, reference_id=reference_id))

    @property
    def encoded(self) -> bytes:
        return TOMBSTONE if self.entry is None else encode(self.entry)


class Moved(Exception):  # not an error: the flow starts over, or says what became of it
    """A reference could not follow the branch to its new token: the address was committed, or released, meanwhile."""

    def __init__(self, placements: Sequence[Placement]) -> None:
        super().__init__("the address was committed or released meanwhile")
        self.placements = placements


def place(
    ctx: Context,
    branch: BranchName,
    token: Token,
    placements: Sequence[Placement],
    *,
    on_empty: bool,
    sources: Mapping[CommitId, Sequence[Path]] | None = None,
) -> None:
    """Write the entries under `token`, under which their references are listed already, and follow the branch.

    Over whatever is there: those with `if_absent` are for `place_where_nothing_is`.
    `on_empty`: whether a list that was emptied meanwhile takes the reference again (the writer's own retry, restore).
    `sources`: commits that entries without a reference were copied from, and the paths there; if these were marked meanwhile, the
    entries are taken back (rule 13). Raises Moved, BranchNotFound, Gone, Contention. After any of them nothing is lost: an entry under a
    token that is not live any more goes with its token.
    """
    check_distinct(placements)
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    references = References(ctx.kv, ctx.repo, ctx.clock)
    moved: list[Placement] = []
    for _ in range(ATTEMPTS):
        writes = [Exchange(keys.entry(ctx.repo, token, item.path), item.encoded) for item in placements]
        marks = [Get(keys.mark(ctx.repo, commit)) for commit in sources or ()]
        try:
            # one round trip: the entries, then, behind them, the marks and the branch (rules 2 and 13)
            results = ctx.kv.execute([*writes, *marks, branches.get_op(branch)])
        except OutcomeUnknown:
            # what landed may have been overwritten and released since, so nothing is placed again as it was
            released = _released(references, token, placements)
            seen = branches.open(branch)  # in this order
            if token == seen.record.token:
                placements = [item for item in placements if item.path not in released]
            placements = [item.again(ctx.ids.unique(ctx.clock.now_ms())) for item in placements]
        else:
            old = cast("list[bytes | Absent]", results[: len(writes)])
            _take_back_if_marked(ctx, writes, old, sources or {}, results[len(writes) : -1])
            seen = branches.seen(branch, results[-1])
            if seen.record.token == token:
                references.release(_overwritten(token, placements, old), grace_seconds=ctx.grace_seconds)
                break
        token = seen.record.token
        following = [(item.path, item.entry) for item in placements if item.entry is not None and item.referenced]
        wanted = [(entry.address, Reference(token, path, entry.reference_id)) for path, entry in following]
        held = references.hold(wanted, on_empty=on_empty)
        lost = {path for (path, _), hold in zip(following, held, strict=True) if hold is not Hold.HELD}
        moved += [item for item in placements if item.path in lost]
        placements = [item for item in placements if item.path not in lost]
        if not placements:
            break
    else:
        raise branches.contention(branch)
    if moved:
        raise Moved(moved)


def _released(references: References, token: Token, placements: Sequence[Placement]) -> set[Path]:
    """Placements whose reference is not listed any more: under a token that is current then, they landed and were replaced.

    No key says nothing (rule 4): the address may be committed under another name, which a copy or `restore` gave it.
    """
    placed = [(item.path, item.entry) for item in placements if item.entry is not None and item.referenced]
    records = references.get_many([entry.address for _, entry in placed])
    return {
        path
        for (path, entry), record in zip(placed, records, strict=True)
        if record is not None and not (isinstance(record, Listed) and Reference(token, path, entry.reference_id) in record.references)
    }


def there_already(ctx: Context, branch: BranchName, placements: Sequence[Placement]) -> dict[Path, AlreadyExists]:
    """What `place_where_nothing_is` would refuse, said before anything is written."""
    paths = [item.path for item in placements if item.if_absent]
    return {path: _there_already(branch, path) for path in _staged_or_committed(ctx, branch, paths)} if paths else {}


def place_where_nothing_is(
    ctx: Context, branch: BranchName, token: Token, placements: Sequence[Placement], *, on_empty: bool
) -> dict[Path, AlreadyExists | Contention]:
    """Those of the placements with `if_absent` that were refused, and why. Each stands for itself: the others are placed."""
    refused: dict[Path, AlreadyExists | Contention] = {}
    for item in placements:
        try:
            if item.if_absent:
                _place_where_nothing_is(ctx, branch, token, item, on_empty=on_empty)
        except (AlreadyExists, Contention) as error:
            refused[item.path] = error
        except Moved as moved:
            try:
                explain_moved(ctx, branch, moved)
            except Contention as error:
                refused[item.path] = error
    return refused


def _place_where_nothing_is(ctx: Context, branch: BranchName, token: Token, item: Placement, *, on_empty: bool) -> None:
    """Rule 2 with a `set_if` over nothing, or over a tombstone: what somebody else wrote first stays. Raises AlreadyExists, Moved.

    "Nothing" comes back, and so does a tombstone. Made again after a lost reply, the `set_if` could land twice: written, deleted by
    somebody (who releases its reference), and written again under the reference that is gone. So it is made `once`, and goes round
    under a new reference. When it is refused, the reference that it carried is released: under this token it was never placed.
    """
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    references = References(ctx.kv, ctx.repo, ctx.clock)
    seen = False
    for _ in range(ATTEMPTS):
        entry = cast("Entry", item.entry)
        key = keys.entry(ctx.repo, token, item.path)
        raw = ctx.kv.get(key)
        there = _staged_or_committed(ctx, branch, [item.path]).get(item.path)
        if there is not None and there.entry.address != entry.address:
            own = Reference(token, item.path, entry.reference_id)
            references.release([Release(entry.address, own, REFUSED, None)], grace_seconds=ctx.grace_seconds)
            if seen:  # others may have read it, a commit may have taken it: not a word on who was first
                raise Contention(f"{item.path!r} on {branch!r} was changed by others while it was written; look what is there now")
            raise _there_already(branch, item.path)
        record = None if raw is ABSENT else decode_staged(raw)
        # nobody else makes this address: an entry with it is one that landed although its reply was lost
        placed = isinstance(record, Entry) and record.address == entry.address
        try:
            if not placed and not isinstance(record, Entry):
                placed = ctx.kv.set_if(key, raw, encode(entry), once=True)
        except OutcomeUnknown:
            # it may have landed, and been taken away since, or land later: its reference stays until its token is processed
            released = _released(references, token, [item])
            now = branches.open(branch).record.token  # in this order
            if now == token and released:
                return  # it had landed; who took it away let go of its reference
            item = item.again(ctx.ids.unique(ctx.clock.now_ms()))
            token, seen = now, True
        else:
            now = branches.open(branch).record.token
            if now == token:
                if placed:
                    return
                continue  # somebody was faster: the next look tells
            token, seen = now, seen or placed
        reference = Reference(token, item.path, cast("Entry", item.entry).reference_id)
        if references.hold([(entry.address, reference)], on_empty=on_empty)[0] is not Hold.HELD:
            raise Moved([item])
    raise branches.contention(branch)


def _staged_or_committed(ctx: Context, branch: BranchName, paths: Sequence[Path]) -> dict[Path, Resolved]:
    return resolve_many(ctx, Ref(branch, branch, CommitId(""), from_history=False), paths)


def _there_already(branch: BranchName, path: Path) -> AlreadyExists:
    return AlreadyExists(f"{path!r} is on {branch!r} already; it was left as it is")


def replaced(token: Token, old: Sequence[tuple[Path, bytes | Absent]], cause: str) -> list[Release]:
    """The references that entries which were replaced or taken away carried; to be released if the token stood still (rule 6)."""
    found: list[Release] = []
    for path, value in old:
        record = None if value is ABSENT else decode_staged(value)
        if isinstance(record, Entry) and is_own(record.address):
            found.append(Release(record.address, Reference(token, path, record.reference_id), cause, record))
    return found


def explain_moved(ctx: Context, branch: BranchName, moved: Moved) -> None:
    """Tell the writer the truth about entries whose reference could not follow.

    If the path now resolves to the address, a commit took the entry: it is where it was meant to be. Otherwise the branch was
    reset, or the entry was replaced, after it had been written. Raises Contention then.
    """
    paths = [item.path for item in moved.placements]
    now = _staged_or_committed(ctx, branch, paths)
    for item in moved.placements:
        there = now.get(item.path)
        if there is None or item.entry is None or there.entry.address != item.entry.address:
            raise Contention(
                f"branch {branch!r} was committed or reset while {item.path!r} was written, and it is not there now; write it again"
            )


def _overwritten(token: Token, placements: Sequence[Placement], old: Sequence[bytes | Absent]) -> list[Release]:
    deletions = [(item.path, value) for item, value in zip(placements, old, strict=True) if item.entry is None]
    others = [(item.path, value) for item, value in zip(placements, old, strict=True) if item.entry is not None]
    return [*replaced(token, deletions, DELETED), *replaced(token, others, OVERWRITTEN)]


def check_distinct(placements: Sequence[Placement]) -> None:
    """One call writes a path once: two writes of one path in a batch would have no order."""
    if len({item.path for item in placements}) != len(placements):
        seen: set[Path] = set()
        twice = next(item.path for item in placements if item.path in seen or seen.add(item.path))
        raise InvalidPath(f"{twice!r} is written twice in one call; give each path once")


def _take_back_if_marked(
    ctx: Context,
    writes: Sequence[Exchange],
    replaced: Sequence[bytes | Absent],
    sources: Mapping[CommitId, Sequence[Path]],
    marks: Sequence[Result],
) -> None:
    """Undo entries that name what a commit marked meanwhile alone may hold (rule 13). Raises Gone.

    One that replaced itself had landed before, its reply lost: what it replaced then is not known, so that nothing is staged there.
    """
    for (commit, paths), mark in zip(sources.items(), marks, strict=True):
        if isinstance(mark, bytes) and decode(mark, Mark).covers(paths):
            with deadline.lifted():  # who comes that late may have outlived the wait of the run that marked
                ctx.kv.set_if_many(
                    [SetIf(op.key, op.value, ABSENT if old == op.value else old) for op, old in zip(writes, replaced, strict=True)]
                )
            raise marked(commit, decode(mark, Mark))
