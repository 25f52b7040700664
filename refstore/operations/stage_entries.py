"""Put entries under a branch's current token, and follow the token when it moves.

Rules 1, 2 and 6 are implemented here, and entries are written nowhere else:

    reference under T on the list  ->  entry under T  ->  is T still the branch's token?
        yes: release the reference that the replaced entry carried, that one and no other
        no:  reference under the new token, entry there, check again; the old reference stays until T is processed
        the reply was lost: a new reference, an entry that carries it, check again
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final, NamedTuple, cast

import msgspec

from refstore.context import Context
from refstore.core import deadline
from refstore.core.ids import Address, BranchName, CommitId, Path, Token, is_own
from refstore.errors import AlreadyExists, Contention, InvalidPath, OutcomeUnknown, PathChanged
from refstore.kv.base import ABSENT, Absent, Exchange, Get, Result, set_ifs
from refstore.kv.unknown_outcomes import UnknownOutcomes
from refstore.operations.read import ResolvedEntry, is_unchanged, resolve_beneath, resolve_many
from refstore.operations.reference_lookup import have_content
from refstore.operations.refs import ResolvedRef, marked_error
from refstore.records import keys
from refstore.records.branch_records import StoredBranch
from refstore.records.encoding import decode, encode
from refstore.records.mark_records import StoredMark
from refstore.records.reference_records import Listed, Reference
from refstore.records.staging_records import StoredEntry, decode_staged
from refstore.versioning.address_state import AddOutcome
from refstore.versioning.manifest import EntriesPlaced, PlacedEntry
from refstore.versioning.references import Release
from refstore.versioning.staging import TOMBSTONE

ATTEMPTS: Final = 16
"""How often the token may move under one placement. Each move is a commit or reset of the branch."""

OVERWRITTEN_CAUSE: Final = "overwritten"
REFUSED_CAUSE: Final = "refused: something is at the path"
DELETED_CAUSE: Final = "deleted"
TAKEN_BACK_CAUSE: Final = "taken back: others moved or changed its source"


class PlannedPlacement(msgspec.Struct, frozen=True, gc=False):
    """What is to be placed once its object is written, and on which condition."""

    path: Path
    if_absent: bool = False
    """Whether to refuse the entry where the path has one."""
    if_entry: StoredEntry | None = None
    """The entry whose place it may take, as the caller read it; otherwise as with `if_absent`."""

    @property
    def is_conditional(self) -> bool:
        """Whether the entry depends on what is at the path (rule 20)."""
        return self.if_absent or self.if_entry is not None

    def with_entry(self, entry: StoredEntry, *, issued_address: Address | None = None) -> Placement:
        """Return the placement of the entry, whose reference is listed."""
        return Placement(
            self.path,
            self.if_absent,
            self.if_entry,
            entry=entry,
            is_referenced=True,
            issued_address=issued_address or Address(""),
        )


class Placement(PlannedPlacement, frozen=True, gc=False, kw_only=True):
    """An entry to be placed. A conditional placement has an entry, and a reference."""

    entry: StoredEntry | None
    """None: a tombstone."""
    is_referenced: bool
    """Whether the entry needs a reference: it does unless its address is committed or outside the namespace."""
    issued_address: Address = Address("")
    """The issued address that is linked, where the entry names a copy."""

    def with_new_reference(self, reference_id: str) -> Placement:
        """Return the placement with a new reference, because the old one may have been released since."""
        if self.entry is None or not self.is_referenced:
            return self
        return msgspec.structs.replace(self, entry=msgspec.structs.replace(self.entry, reference_id=reference_id))

    @property
    def encoded_entry(self) -> bytes:
        return TOMBSTONE if self.entry is None else encode(self.entry)


class Overwrite(NamedTuple):
    """One write of a placement whose caller may take it back, and releases itself what it replaced."""

    token: Token
    placement: Placement
    replaced: bytes | Absent | None
    """None: the reply was lost, so nobody knows."""
    was_current: bool
    """Whether the token was the branch's behind the write: then no commit has what was replaced (rule 6)."""


class TokenMoved(Exception):  # not an error: the operation starts over, or tells the caller what happened
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
    witness: bool = False,
    overwrites: list[Overwrite] | None = None,
) -> None:
    """Write the entries under `token`, under which their references are listed already, and follow the branch.

    They replace whatever is there: conditional placements are for `place_each`.

    `on_empty`: whether a list that was emptied meanwhile takes the reference again (the writer's own retry, restore).
    `sources`: the commits, and the paths there, that entries without a reference were copied from. If one of these was
    marked meanwhile, the entries are taken back (rule 13). `witness`: whether the manifest is to have the entries.
    `overwrites` takes each write: then the caller releases what they replaced (`release_replaced`).

    Raises TokenMoved, BranchNotFound, Gone, Contention. After any of them nothing is lost: an entry under a token that
    is not live any more is removed with its token.
    """
    check_distinct([item.path for item in placements])
    branches = ctx.branches
    references = ctx.references
    moved: list[Placement] = []
    unknown = UnknownOutcomes(ctx.clock)
    for _ in range(ATTEMPTS):
        names = keys.entries(ctx.repo, token, [item.path for item in placements])
        writes = [Exchange(key, item.encoded_entry) for key, item in zip(names, placements, strict=True)]
        marks = [Get(keys.mark(ctx.repo, commit)) for commit in sources or ()]
        try:
            # entries first: a commit or a mark that missed them is seen by the reads behind them (rules 2 and 13)
            results = ctx.kv.execute([*writes, *marks, branches.get_operation(branch)])
        except OutcomeUnknown as error:
            unknown.wait(error)
            if overwrites is not None:
                overwrites += [Overwrite(token, item, None, was_current=False) for item in placements]
            # an entry that landed may have been overwritten and released since, so none is written again as it was
            released = _find_released(ctx, token, placements)
            open_branch = branches.read_open(branch)  # in this order
            if token == open_branch.record.token:
                placements = _drop_placed(placements, released)
            placements = [item.with_new_reference(ctx.ids.new_id(ctx.clock.now_ms())) for item in placements]
        else:
            old = cast("list[bytes | Absent]", results[: len(writes)])
            _undo_if_marked(ctx, token, placements, old, sources or {}, results[len(writes) : -1])
            open_branch = branches.parse_open(branch, results[-1])
            is_current = open_branch.record.token == token
            if overwrites is not None:
                overwrites += [
                    Overwrite(token, item, value, is_current) for item, value in zip(placements, old, strict=True)
                ]
            elif is_current:
                references.release(_releases_of_overwritten(token, placements, old), guess=True)
            if is_current:
                if witness:
                    _write_witness(ctx, [(token, item) for item in placements])
                break
        token = open_branch.record.token
        following = [(item.path, item.entry) for item in placements if item.entry is not None and item.is_referenced]
        new_references = [(entry.address, Reference(token, path, entry.reference_id)) for path, entry in following]
        outcomes = references.add(new_references, on_empty=on_empty)
        unlisted = {path for (path, _), hold in zip(following, outcomes, strict=True) if hold is not AddOutcome.LISTED}
        moved += [item for item in placements if item.path in unlisted]
        placements = _drop_placed(placements, unlisted)
        if not placements:
            break
    else:
        raise branches.contention(branch)
    if moved:
        raise TokenMoved(moved)


def release_replaced(ctx: Context, overwrites: Sequence[Overwrite]) -> None:
    """Release what was replaced under tokens that stayed current; under others a commit may have read it (rule 6)."""
    releases: list[Release] = []
    for token, item, replaced, was_current in overwrites:
        if was_current and replaced is not None:
            releases += _releases_of_overwritten(token, [item], [replaced])
    ctx.references.release(releases, guess=True)


def take_back(ctx: Context, branch: BranchName, token: Token, overwrites: Sequence[Overwrite]) -> bool:
    """Put back what was replaced under a token, and return whether the token is current behind that.

    If it is not, a commit may have the entries. What somebody else wrote over them stays. The caller releases what was
    replaced: where it is back, it has a new reference.
    """
    placements = [item.placement for item in overwrites]
    replaced = [ABSENT if item.replaced is None else item.replaced for item in overwrites]
    returned = _put_back(ctx, token, placements, replaced)
    if ctx.branches.read_open(branch).record.token != token:
        return False
    paths = [item.path for item in placements]
    refused = [(path, value) for path, (value, is_back) in zip(paths, returned, strict=True) if not is_back]
    own_entries = [(item.path, item.encoded_entry) for item in placements if item.is_referenced]
    ctx.references.release(
        [
            *releases_of_replaced(token, own_entries, TAKEN_BACK_CAUSE),
            *releases_of_replaced(token, refused, TAKEN_BACK_CAUSE),
        ],
        guess=True,
    )
    return True


def _drop_placed(placements: Sequence[Placement], paths: Container[Path]) -> list[Placement]:
    return [item for item in placements if item.path not in paths]


def _find_released(ctx: Context, token: Token, placements: Sequence[Placement]) -> set[Path]:
    """Return the paths of placements whose reference is not listed any more.

    If the token is current after that, these entries landed and were replaced. A missing key tells nothing (rule 4):
    the address may be committed under another name, which a copy or `restore` gave it.
    """
    own_entries = [(item.path, item.entry) for item in placements if item.entry is not None and item.is_referenced]
    records = ctx.references.get_many([entry.address for _, entry in own_entries])
    return {
        path
        for (path, entry), record in zip(own_entries, records, strict=True)
        if record is not None
        and not (isinstance(record, Listed) and Reference(token, path, entry.reference_id) in record.references)
    }


def find_refused(
    ctx: Context, branch: BranchName, planned: Sequence[PlannedPlacement]
) -> dict[Path, AlreadyExists | PathChanged]:
    """Return what `place_each` would refuse, before anything is written."""
    conditional = [item for item in planned if item.is_conditional]
    current = _read_current(ctx, branch, [item.path for item in conditional]) if conditional else {}
    return {item.path: _refusal(branch, item) for item in conditional if not _fits(ctx, item, current.get(item.path))}


def _write_witness(ctx: Context, placed: Sequence[tuple[Token, Placement]]) -> None:
    """Write to the manifest which entries stand under which tokens (rule 21)."""
    if placed:
        entries = tuple(
            PlacedEntry(token, item.path, item.encoded_entry, item.issued_address) for token, item in placed
        )
        call = EntriesPlaced(ctx.ids.new_id(ctx.clock.now_ms()), entries)
        more = f" and {len(entries) - 1} more of the same call" if len(entries) > 1 else ""
        ctx.manifest.add_landed(call, f"{placed[0][1].path!r}{more} was staged")


def place_each(
    ctx: Context, branch: BranchName, token: Token, placements: Sequence[Placement], *, witness: bool = False
) -> dict[Path, AlreadyExists | PathChanged | Contention]:
    """Place new entries of the caller, and return why some of them were refused. `witness`: as in `place`. Raises what
    `place` does, but TokenMoved.
    """
    refused: dict[Path, AlreadyExists | PathChanged | Contention] = {}
    placed: list[tuple[Token, Placement]] = []
    for item in placements:
        try:
            if item.is_conditional:
                placed += _place_one(ctx, branch, token, item)
        except (AlreadyExists, PathChanged, Contention) as error:
            refused[item.path] = error
        except TokenMoved as moved:
            refused |= find_uncommitted(ctx, branch, moved)
    if witness:
        _write_witness(ctx, placed)
    others = [item for item in placements if not item.is_conditional]
    if others:
        try:
            place(ctx, branch, token, others, on_empty=True, witness=witness)
        except TokenMoved as moved:
            refused |= find_uncommitted(ctx, branch, moved)
    return refused


def _place_one(ctx: Context, branch: BranchName, token: Token, item: Placement) -> list[tuple[Token, Placement]]:
    """Place one entry by a `set_if` over exactly what its condition found (rules 2 and 20): what others write stays.
    Return it with its token, or nothing if it was placed and removed again meanwhile.

    Nothing, and a tombstone, can return. If the `set_if` were repeated after a lost reply it could land twice: written,
    deleted by somebody (who releases its reference), and written again under the released reference. So it is made
    `once`, and repeated under a new reference. When the entry is refused its reference is released, because under this
    token it was never placed. Raises AlreadyExists, PathChanged, Contention, TokenMoved.
    """
    branches = ctx.branches
    references = ctx.references
    was_visible = False
    replaced: bytes | Absent = ABSENT
    over_nothing: StoredBranch | None = (
        None  # the branch as it was then, if the entry lies over nothing under its token
    )
    unknown = UnknownOutcomes(ctx.clock)
    for _ in range(ATTEMPTS):
        entry = cast("StoredEntry", item.entry)
        key = keys.entry(ctx.repo, token, item.path)
        raw, raw_branch = ctx.kv.execute([Get(key), branches.get_operation(branch)])  # in any order, before the look
        before = branches.parse_open(branch, raw_branch).record
        raw = cast("bytes | Absent", raw)
        current = _read_current(ctx, branch, [item.path]).get(item.path)
        # nobody else makes this address: an entry with it landed although its reply was lost
        is_own = current is not None and current.entry.address == entry.address
        if not is_own and not _fits(ctx, item, current):
            own = Reference(token, item.path, entry.reference_id)
            references.release([Release(entry.address, own, REFUSED_CAUSE, None)])
            # others may have read it, or a commit taken it, so nobody can tell which entry was first
            raise _uncertain(branch, item.path) if was_visible else _refusal(branch, item)
        record = None if raw is ABSENT else decode_staged(raw)
        is_placed = isinstance(record, StoredEntry) and record.address == entry.address
        stored = record if is_placed and isinstance(record, StoredEntry) else entry
        is_there = current is not None and is_own and current.token == token
        try:
            if not is_placed and not is_there and is_what_was_found(raw, current, token):
                replaced, over_nothing = raw, before if raw is ABSENT and before.token == token else None
                is_placed = ctx.kv.set_if(key, raw, encode(entry), once=True)
        except OutcomeUnknown as error:
            unknown.wait(error)
            # it may have landed and been removed since, or it may land later: its reference stays until its token is
            # processed
            released = _find_released(ctx, token, [item])
            now = branches.read_open(branch).record  # in this order
            if now.token == token and released:  # it had landed; the client that removed it released its reference
                if over_nothing is not None and over_nothing.sealed_tokens:
                    raise _uncertain(branch, item.path) from error
                references.release(releases_of_replaced(token, [(item.path, replaced)], OVERWRITTEN_CAUSE), guess=True)
                return []
            item = item.with_new_reference(ctx.ids.new_id(ctx.clock.now_ms()))
            is_placed = was_visible = True
        else:
            now = branches.read_open(branch).record
            if now.token == token:
                if not is_placed:
                    continue  # another client was faster: read again
                if not _is_still_beneath(ctx, item, over_nothing, now):
                    _withdraw_entries(ctx, branch, token, item.path, (stored, entry))
                    raise _uncertain(branch, item.path)
                references.release(releases_of_replaced(token, [(item.path, replaced)], OVERWRITTEN_CAUSE), guess=True)
                return [(token, item)]
            was_visible = was_visible or is_placed
        if now.token != token:
            if is_placed and over_nothing is not None and over_nothing.sealed_tokens:
                raise _uncertain(branch, item.path)  # a commit may have taken it, over what nobody has looked at
            replaced, over_nothing = ABSENT, None
        token = now.token
        reference = Reference(token, item.path, cast("StoredEntry", item.entry).reference_id)
        if references.add([(entry.address, reference)], on_empty=True)[0] is not AddOutcome.LISTED:
            raise TokenMoved([item])
    raise branches.contention(branch)


def _fits(ctx: Context, item: PlannedPlacement, current: ResolvedEntry | None) -> bool:
    """Return whether the condition of a placement holds of what is at its path."""
    if item.if_entry is None:
        return current is None
    return current is not None and is_unchanged(ctx, current, item.if_entry)


def is_what_was_found(raw: bytes | Absent, current: ResolvedEntry | None, token: Token) -> bool:
    """Return whether what lies under the token is what was found at the path, and not what came since."""
    if current is None:
        return raw is ABSENT or not isinstance(decode_staged(raw), StoredEntry)
    return raw == encode(current.entry) if current.token == token else raw is ABSENT


def _is_still_beneath(ctx: Context, item: Placement, before: StoredBranch | None, now: StoredBranch) -> bool:
    """Return whether nothing came under the entry that it must not lie over. `before`: the branch when the path was
    looked at, if the entry lies over nothing under its token.

    What is sealed changes: by writers that began before, whose entry the commit under way takes, and who hear that it
    is done when they find it in the head. They write nothing under the current token, where the `set_if` would meet
    them.
    """
    if before is None or not before.sealed_tokens:
        return True
    if (before.head, before.sealed_tokens) == (now.head, now.sealed_tokens):
        return True
    beneath = resolve_beneath(ctx, now, item.path)
    is_own = beneath is not None and beneath.entry.address == cast("StoredEntry", item.entry).address
    return is_own or _fits(ctx, item, beneath)


def _withdraw_entries(
    ctx: Context, branch: BranchName, token: Token, path: Path, entries: tuple[StoredEntry, StoredEntry]
) -> None:
    """Take the entry away again, and its references if no commit can have seen it: it was written under the first one
    of its entries, and has the reference of the second one as well if a reply was lost.
    """
    if ctx.kv.set_if(keys.entry(ctx.repo, token, path), encode(entries[0]), ABSENT) and (
        ctx.branches.read_open(branch).record.token == token
    ):
        own = dict.fromkeys(entry.reference_id for entry in entries)
        ctx.references.release(
            [Release(entries[0].address, Reference(token, path, each), REFUSED_CAUSE, None) for each in own]
        )


def _read_current(ctx: Context, branch: BranchName, paths: Sequence[Path]) -> dict[Path, ResolvedEntry]:
    return resolve_many(ctx, ResolvedRef.of_branch(branch), paths)


def _refusal(branch: BranchName, item: PlannedPlacement) -> AlreadyExists | PathChanged:
    if item.if_entry is None:
        return AlreadyExists(f"{item.path!r} is on {branch!r} already; it was not changed")
    return PathChanged(
        f"{item.path!r} on {branch!r} is not what was read there, and was not changed; look what is there now"
    )


def _uncertain(branch: BranchName, path: Path) -> Contention:
    return Contention(f"{path!r} on {branch!r} was changed by others while it was written; look what is there now")


def releases_of_replaced(token: Token, old: Sequence[tuple[Path, bytes | Absent]], cause: str) -> list[Release]:
    """Return releases of the references that replaced or removed entries carried.

    The caller releases them if the token stayed current; if not, a commit may have read the entries (rule 6).
    """
    releases: list[Release] = []
    for path, value in old:
        record = None if value is ABSENT else decode_staged(value)
        if isinstance(record, StoredEntry) and is_own(record.address):
            releases.append(Release(record.address, Reference(token, path, record.reference_id), cause, record))
    return releases


def find_uncommitted(ctx: Context, branch: BranchName, moved: TokenMoved) -> dict[Path, Contention]:
    """Return an error for each entry whose reference could not follow and that no commit took.

    If the path now resolves to the address, a commit took the entry, as the caller meant. Otherwise the branch was
    reset, or the entry was replaced, after it had been written.
    """
    now = _read_current(ctx, branch, [item.path for item in moved.placements])
    return {
        item.path: Contention(
            f"branch {branch!r} was committed or reset while {item.path!r} was written, and it is not there now; "
            "write it again"
        )
        for item in moved.placements
        if item.path not in now or item.entry is None or now[item.path].entry.address != item.entry.address
    }


def _releases_of_overwritten(
    token: Token, placements: Sequence[Placement], old: Sequence[bytes | Absent]
) -> list[Release]:
    deletions = [(item.path, value) for item, value in zip(placements, old, strict=True) if item.entry is None]
    others = [(item.path, value) for item, value in zip(placements, old, strict=True) if item.entry is not None]
    return [
        *releases_of_replaced(token, deletions, DELETED_CAUSE),
        *releases_of_replaced(token, others, OVERWRITTEN_CAUSE),
    ]


def check_distinct(paths: Sequence[Path]) -> None:
    """Raise InvalidPath if a path is written twice in one call: two writes in one batch would have no order."""
    if len(set(paths)) != len(paths):
        seen: set[Path] = set()
        twice = next(path for path in paths if path in seen or seen.add(path))
        raise InvalidPath(f"{twice!r} is written twice in one call; give each path once")


def _undo_if_marked(
    ctx: Context,
    token: Token,
    placements: Sequence[Placement],
    replaced: Sequence[bytes | Absent],
    sources: Mapping[CommitId, Sequence[Path]],
    marks: Sequence[Result],
) -> None:
    """Undo copies from a commit that was marked meanwhile: its sweep deletes their objects (rule 13). Raises Gone."""
    for (commit, paths), mark in zip(sources.items(), marks, strict=True):
        if isinstance(mark, bytes) and decode(mark, StoredMark).covers(paths):
            # an operation that comes this late may have outlived the wait of the marking run, so its undo has a time of
            # its own
            with deadline.lift(), deadline.limit_operation(ctx.clock, ctx.safety.operation_deadline_seconds):
                _put_back(ctx, token, placements, replaced)
            raise marked_error(commit, decode(mark, StoredMark))


def _put_back(
    ctx: Context, token: Token, placements: Sequence[Placement], replaced: Sequence[bytes | Absent]
) -> list[tuple[bytes | Absent, bool]]:
    """Put back what the placements replaced, each entry under a new reference: while it was not there, the scrubber may
    have released the one that it had (rule 9). Return what was to be put back, and whether it was.

    An address without a key is committed if it has content, because whoever deletes an object deletes its key last. An
    entry that replaced itself had landed before, and its reply was lost. What it replaced then is not known, so nothing
    stays staged at its path.
    """
    now = ctx.clock.now_ms()
    values = [ABSENT if old == item.encoded_entry else old for item, old in zip(placements, replaced, strict=True)]
    entries: dict[int, StoredEntry] = {}
    for index, value in enumerate(values):
        record = None if value is ABSENT else decode_staged(value)
        if isinstance(record, StoredEntry) and is_own(record.address):
            entries[index] = msgspec.structs.replace(record, reference_id=ctx.ids.new_id(now))
    references = [
        (entry.address, Reference(token, placements[index].path, entry.reference_id))
        for index, entry in entries.items()
    ]
    for (index, entry), outcome in zip(entries.items(), ctx.references.add(references, on_empty=True), strict=True):
        if outcome is AddOutcome.LISTED:
            values[index] = encode(entry)
        elif outcome is not AddOutcome.NO_RECORD or not have_content(ctx, [entry.address])[0]:
            values[index] = ABSENT
    names = keys.entries(ctx.repo, token, [item.path for item in placements])
    outcomes = ctx.kv.set_if_many(set_ifs(names, [item.encoded_entry for item in placements], values))
    return list(zip(values, outcomes, strict=True))
