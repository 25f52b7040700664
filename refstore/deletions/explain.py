"""Explain a physical address or a path for `refstore why`, from all records of it.

    explain_address    its references now, the commits and branches that name it, its marks, and all its deletions
    explain_path       the entry at a path now, earlier entries, and what happened to each object that was there

It finds every deletion: by the reaper (its journal), by a sweep (the run's files), or by the clearing of a deleted
repository. The index says which files have it. Files that the index does not have yet are searched one by one. A store
that does not answer raises. `incomplete` lists what could not be searched. This module only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import ids, keys
from refstore.core.batches import batched
from refstore.core.ids import Address, BranchName, Path, Token
from refstore.core.records import Entry, decode_staged
from refstore.deletions import causes, index_format, journal_format
from refstore.deletions.address_meaning import explain_state
from refstore.deletions.index_format import JOURNAL, SWEEP, Match, path_text
from refstore.deletions.journal_format import Event, Sought
from refstore.deletions.naming_commits import Naming, Version, naming_commits, versions_of
from refstore.errors import AddressNotFound, Gone, NotFound, ObjectNotFound
from refstore.gc_marks import STANDING, Marks, Run, RunState, sweep_records
from refstore.gc_marks.commit_marks import PAGE
from refstore.gc_marks.sweep_records import RunFacts, RunFilesLost
from refstore.kv.base import ABSENT
from refstore.objects.object_keys import fault_of
from refstore.operations import address_info, hidden_commits, reading, refs, trash
from refstore.operations.address_info import OF_PURGED, UNNAMED, UNREFERENCED, AddressInfo, AddressState
from refstore.operations.committed_names import is_named_by
from refstore.operations.purge_roles import PurgeRole, Role, role_of_content, role_of_identity
from refstore.operations.swept_entries import swept_by
from refstore.operations.trash import InGrace
from refstore.versioning.commits import names

UNINDEXED_MAX: Final = 50
"""How many runs that are not in an index yet are searched one by one, the newest first."""
PATH_SEGMENTS_MAX: Final = 2_000
"""How many segments of the journal that are not in an index yet are searched for a path, the newest first."""
VERSIONS_MAX: Final = 20
"""For how many objects of a path deletions are searched, the newest first."""
_LOST: Final = b"lost"
_OLDER_RUNS: Final = (
    "older runs that are not in the index yet (the next `refstore gc run` or `refstore gc index` adds them)"
)

SWEPT_FOLDERS: Final = ("data/", names.RANGES, names.METARANGES, names.ADDED)
"""The prefixes of the keys that the offline job may delete."""

DELETED_REPOSITORY: Final = "deleted repository"
EXPIRED: Final = "expired"


class Deletion(NamedTuple):
    """One deletion of an address."""

    at_ms: int
    by: str
    """`reaper`, `sweep` for the offline job, or `cleaning` for that of what purges left behind."""
    run: str
    """The id of the reaper, of the mark, or of the cleaning."""
    outcome: str
    """deleted. missing, already gone: there was no blob. interrupted: a later deletion has the outcome, if any. failed:
    it will be tried again. tagged: the bucket's lifecycle rule deletes it.
    """
    cause: str
    """Why it was not needed: reset, overwritten, ... expired, orphan blob, ..."""
    rule: str
    """The rule by which it was deleted, as a text."""
    path: str
    """The last path that named it; '' if no record has it."""
    token: str
    size_bytes: int
    """-1: unknown."""
    reason: str
    """The store's reason, if it failed."""


class MarkedFor(NamedTuple):
    """An address in a mark that is not swept yet."""

    mark_id: str
    state: str
    deletes_at_ms: int
    cause: str
    rule: str
    question: str
    """What an operator has to confirm first; '' if nothing."""


class Why(NamedTuple):
    """What the records say about an address."""

    view: AddressInfo
    """Its references and its state now."""
    deletions: tuple[Deletion, ...]
    """Oldest first. There is more than one if the first was interrupted, or the store refused it."""
    marked: tuple[MarkedFor, ...]
    """The marks that contain it and are not swept yet; not those from which a commit that names it was taken back."""
    naming: Naming | None
    """The commits that name it, or named it; None if they were not searched."""
    incomplete: tuple[str, ...]
    """What could not be searched, as texts."""
    purged: PurgeRole | None = None
    """What a purge has to do with it."""

    @property
    def meaning(self) -> str:
        """What keeps the object, or what will happen to it; '' where the state says it."""
        return explain_state(self.view, self.purged)


class PathVersion(NamedTuple):
    """An object that is or was at a path."""

    address: str
    committed: Version | None
    """The commits that have it at the path. None: no searched commit has it there."""
    why: Why | None
    """What happened to it. None: it is a foreign object, which refstore never deletes."""


class PathWhy(NamedTuple):
    """What the records say about a path."""

    ref: str
    path: str
    ref_exists: bool
    now: Entry | None
    staged: bool
    """Whether the entry there now is staged."""
    unreadable: str
    """Why the ref's commit, which has an entry there, cannot be read at the path; '' if it can, or has none."""
    is_swept: bool
    """Whether that is because the object was swept; else the rules hide the commit."""
    versions: tuple[PathVersion, ...]
    """Newest first."""
    removed: tuple[Version, ...]
    """The commits that removed the path."""
    incomplete: tuple[str, ...]


_MAY_BE_COMMITTED: Final = frozenset((AddressState.COMMITTED, AddressState.UNKNOWN))


def explain_address(ctx: Context, address: str, *, commits: bool = False) -> Why:
    """Return what the records say about an address, or about the key of another object that a sweep may delete.

    `commits`: also find the commits that named a deleted address, which takes some more requests. Raises InvalidName,
    AddressNotFound (no record has it), Corrupt, Unavailable.
    """
    key = Address(address) if ids.is_own(Address(address)) else _other_key(address)
    found = _explain(ctx, key)
    if found.purged is None and found.view.state in (*UNNAMED, AddressState.GONE):
        found = _as_content(ctx, found)
    if not _is_known(found):
        raise AddressNotFound(
            f"{address} is not in {ctx.name!r}: nothing names it, there is no blob, and neither the journal nor a "
            f"sweep has deleted it; check that the repository is the right one{_also(found.incomplete)}"
        )
    if found.purged is not None and found.purged.role is not Role.IDENTITY:
        return found  # commits name the identity
    swept = any(deletion.by == SWEEP for deletion in found.deletions)
    if ids.is_own(key) and (found.view.state in _MAY_BE_COMMITTED or (commits and swept)):
        found = found._replace(naming=naming_commits(ctx, key))
    return found


def explain_path(ctx: Context, ref: str, path: str) -> PathWhy:
    """Return what the records say about a path. `ref`: any ref, or a deleted branch. Raises InvalidPath, ObjectNotFound
    (no record has it), Corrupt, Unavailable.
    """
    name = ids.object_path(path)
    incomplete: dict[str, None] = {}
    present = _now(ctx, ref, name)
    now, exists = present.entry, present.ref_exists
    committed, all_commits = versions_of(ctx, ref if exists else None, name)
    if not all_commits:
        incomplete["only the newest commits were searched for the path; ask about an address for older ones"] = None
    by_address: dict[Address, Version] = {}
    for version in committed:
        if version.address is not None:
            by_address.setdefault(version.address, version)
    order: dict[str, None] = {now.address: None} if now is not None else {}
    branch = BranchName(ref)
    order |= dict.fromkeys(_staged_before(ctx, branch, name))
    for item in _in_grace(ctx, branch, name):
        order[item.address] = None
    order |= dict.fromkeys(by_address)
    events = sorted(_path_events(ctx, branch, name, incomplete), key=lambda event: -event.at_ms)
    order |= {event.doomed.address: None for event in events}
    if len(order) > VERSIONS_MAX:
        incomplete[f"{len(order) - VERSIONS_MAX} more objects were at this path; ask about the address of one"] = None
    versions: list[PathVersion] = []
    for address in list(order)[:VERSIONS_MAX]:
        why = _explain(ctx, Address(address)) if ids.is_own(Address(address)) else None
        incomplete |= dict.fromkeys(why.incomplete if why is not None else ())
        versions.append(PathVersion(address, by_address.get(Address(address)), why))
    if not versions:
        raise ObjectNotFound(
            f"nothing is known of {path!r} on {ref!r} in {ctx.name!r}: it does not exist, no commit names it, and no "
            "object in its grace window or in the journal had it; check the ref and the path (an address is "
            f"data/<hour>/<id>){_also(tuple(incomplete))}"
        )
    removed = tuple(version for version in committed[:-1] if version.address is None)
    return PathWhy(
        ref,
        name,
        exists,
        now,
        present.staged,
        present.unreadable,
        present.is_swept,
        tuple(versions),
        removed,
        tuple(incomplete),
    )


# ---- an address


def _other_key(key: str) -> Address:
    """Return the key of another object that a sweep may delete: an object of a commit, or a foreign one below `data/`.
    Raises InvalidName.
    """
    if not key.startswith(SWEPT_FOLDERS) or fault_of(key):
        return ids.own_address(key)  # its error message describes a valid address
    return Address(key)


def _view(ctx: Context, key: Address) -> AddressInfo:
    if ids.is_own(key):
        return address_info.names_of(ctx, key)
    there = ctx.objects.head_many([key])[0] is not None
    return AddressInfo(key, AddressState.COMMITTED if there else AddressState.GONE, (), None, "", None)


def _explain(ctx: Context, address: Address) -> Why:
    view = _view(ctx, address)
    incomplete: dict[str, None] = {}
    indexed = _Indexed.of(ctx)  # read before the index is listed, so that the listing has every run named here
    matches = index_format.lookup(ctx.objects, [address])[address]
    deletions = [each for match in matches for each in _by_match(ctx, match, Sought(address), incomplete)]
    deletions += _by_journal(ctx, Sought(address), indexed.journal, incomplete)
    others, marked = _by_runs(ctx, address, indexed, view, incomplete)
    deletions = sorted(dict.fromkeys((*deletions, *others)), key=lambda deletion: deletion.at_ms)
    if any(segment >= _made_after(ctx, address) for segment in indexed.damaged):
        incomplete["segments of the journal that are damaged (the log names them)"] = None
    return Why(view, tuple(deletions), tuple(marked), None, tuple(incomplete), role_of_identity(ctx, address))


def _as_content(ctx: Context, why: Why) -> Why:
    """Return which object has its content, a backup or the like at the address. Reads all records of locations."""
    role = role_of_content(ctx, why.view.address).found
    if role is None:
        return why
    state = why.view.state if why.view.state is AddressState.GONE else OF_PURGED[role.role]
    return why._replace(view=why.view._replace(state=state), purged=role)


def _is_known(why: Why) -> bool:
    return why.view.state is not AddressState.GONE or bool(why.deletions or why.marked or why.purged)


def _also(incomplete: Iterable[str]) -> str:
    listed = "; ".join(incomplete)
    return f". Not looked at: {listed}" if listed else ""


class _Indexed(NamedTuple):
    """Which runs and segments the index has, as the KV says."""

    runs: dict[str, bytes]
    journal: str
    """The key of the last indexed segment."""
    damaged: tuple[str, ...]

    @classmethod
    def of(cls, ctx: Context) -> _Indexed:
        runs: dict[str, bytes] = {}
        damaged: list[str] = []
        for name, value in ctx.kv.scan_all(keys.gc_states(ctx.repo)):
            if name.startswith(keys.GC_INDEXED):
                runs[name.removeprefix(keys.GC_INDEXED)] = value
            elif name.startswith(keys.GC_JOURNAL_DAMAGED):
                damaged.append(name.removeprefix(keys.GC_JOURNAL_DAMAGED))
        journal = ctx.kv.get(keys.gc_journal_indexed(ctx.repo))
        return cls(runs, journal.decode() if isinstance(journal, bytes) else "", tuple(damaged))


def _made_after(ctx: Context, address: Address) -> str:
    """Return the key after which the journal may contain the address, which was not deleted before it was generated."""
    return journal_format.first_after(_made_ms(ctx, address))


def _made_ms(ctx: Context, address: Address) -> int:
    try:
        hour = datetime.strptime(address.split("/")[1], "%Y%m%d%H").replace(tzinfo=UTC)
    except ValueError:
        return 0  # an hour that no calendar has
    return max(0, int((hour.timestamp() - ctx.waits.clock_skew_seconds) * 1000))


def _by_journal(
    ctx: Context, sought: Sought, indexed: str, incomplete: dict[str, None], segments_max: int | None = None
) -> list[Deletion]:
    """Return the deletions in segments that the index does not have yet."""
    after = max(indexed, _made_after(ctx, sought.address) if sought.address is not None else "")
    on_unreadable = _collector(incomplete)
    found = journal_format.find(ctx.objects, sought, after=after, segments_max=segments_max, unreadable=on_unreadable)
    return [_of_event(event) for event in found]


def _collector(incomplete: dict[str, None]) -> Callable[[str], None]:
    """Return a function that adds its argument to `incomplete`."""
    return lambda unread: incomplete.update({unread: None})


def _of_event(event: Event) -> Deletion:
    pending, deleter = event.doomed, causes.deleter_of(event.reaper)
    return Deletion(
        event.at_ms,
        deleter.by,
        deleter.run,
        event.outcome,
        pending.cause,
        causes.rule_of(pending),
        pending.path,
        pending.token,
        pending.size_bytes,
        event.reason,
    )


def _by_match(ctx: Context, match: Match, sought: Sought, incomplete: dict[str, None]) -> Iterator[Deletion]:
    source = match.source
    if source.kind == JOURNAL:
        for event in journal_format.find_in(ctx.objects, source.file, sought, unreadable=_collector(incomplete)):
            yield _of_event(event)
    elif sought.address is not None:
        row = None
        if source.kind == SWEEP:
            try:
                row = sweep_records.outcome_row(ctx.objects, source.file, sought.address)
            except RunFilesLost:
                # An operator removed the run's files. The index still has the outcome.
                row = sweep_records.OutcomeRow(-1, match.reason, match.outcome, "")
            if row is None:
                return  # another address has the same hash
        outcome, cause, size = (row.outcome, row.reason, row.size_bytes) if row else (match.outcome, match.reason, -1)
        rule = _rule(sweep_records.run_facts(ctx.objects, source.run), cause)
        yield Deletion(
            source.at_ms, source.kind, source.run, outcome, cause, rule, "", "", size, row.why if row else ""
        )


def _by_runs(
    ctx: Context, address: Address, indexed: _Indexed, view: AddressInfo, incomplete: dict[str, None]
) -> tuple[list[Deletion], list[MarkedFor]]:
    """Return the deletions and marks in runs that the index does not have: runs that are not swept yet, and runs of
    earlier versions of refstore.
    """
    deletions: list[Deletion] = []
    marked: list[MarkedFor] = []
    made_ms = _made_ms(ctx, address)
    left = UNINDEXED_MAX
    for run in sorted(Marks(ctx).runs(), key=lambda run: run.record.began_ms, reverse=True):
        lost = indexed.runs.get(run.mark_id) == _LOST
        if run.record.finished_ms and run.record.finished_ms < made_ms:
            continue  # the address was generated after the run
        if (run.mark_id in indexed.runs and not lost) or run.state not in (*STANDING, RunState.SWEPT):
            continue
        if run.state in (RunState.MARKED, RunState.NEEDS_CONFIRMATION) and view.state not in UNREFERENCED:
            continue  # a mark that is not being swept contains only existing objects without references
        if not left:
            incomplete[_OLDER_RUNS] = None
            break
        left -= not lost
        try:
            if lost:
                raise RunFilesLost(run.mark_id)
            found = _in_run(ctx, run, address)
        except RunFilesLost:
            incomplete[f"mark {run.mark_id}, whose files were removed before they were indexed"] = None
            continue
        if isinstance(found, Deletion):
            deletions.append(found)
        elif found is not None:
            marked.append(found)
    return deletions, marked


def _in_run(ctx: Context, run: Run, address: Address) -> Deletion | MarkedFor | None:
    """Return the deletion or the mark of the address in one run. Raises RunFilesLost."""
    unit = sweep_records.unit_of(ctx.objects, run.mark_id, address)
    if unit is None:
        return None
    record = run.record
    if run.state in (RunState.SWEEPING, RunState.SWEPT):
        try:
            row = sweep_records.outcome_row(ctx.objects, sweep_records.outcome_key(unit), address)
        except RunFilesLost:
            if run.state is RunState.SWEPT:
                raise
        else:
            if row is None or row.outcome == "dropped out":
                return None
            rule = _rule(sweep_records.run_facts(ctx.objects, run.mark_id), row.reason)
            at_ms = record.swept_ms or record.sweep_began_ms
            return Deletion(at_ms, SWEEP, run.mark_id, row.outcome, row.reason, rule, "", "", row.size_bytes, row.why)
    marked = sweep_records.marked_row(ctx.objects, unit, address)
    if marked is None or is_named_by(ctx, address, Marks(ctx).taken_back(run)):
        return None  # the sweep leaves it
    rule = _rule(sweep_records.run_facts(ctx.objects, run.mark_id), marked.reason)
    return MarkedFor(run.mark_id, run.state.value, record.deletes_at_ms, marked.reason, rule, record.question)


def _rule(facts: RunFacts | None, cause: str) -> str:
    """Return the rule by which a run deletes for this cause, as a text."""
    if facts is None:
        return DELETED_REPOSITORY if cause == DELETED_REPOSITORY else "the run's summary was removed"
    if cause == EXPIRED:
        by = ", ".join(
            f"{rule} ({count} commits)"
            for rule, count in sorted(facts.expired_by.items(), key=lambda item: (-item[1], item[0]))
        )
        return (
            f"retention rules {facts.rules_digest[:12]}: {by or 'see the summary of the run'}; no active "
            "commit named it"
        )
    age_hours = facts.min_age_seconds / 3600
    return f"no commit and no branch named it, and it was older than {age_hours:g} hours"


# ---- a path


class _Present(NamedTuple):
    """What a reader of a path on a ref gets."""

    ref_exists: bool
    entry: Entry | None = None
    staged: bool = False
    unreadable: str = ""
    is_swept: bool = False


def _now(ctx: Context, ref: str, path: Path) -> _Present:
    try:
        resolved = refs.resolve(ctx, ref)
    except NotFound:
        return _Present(ref_exists=False)
    try:
        found = reading.resolve(ctx, resolved, path)
    except ObjectNotFound:
        return _Present(ref_exists=True)
    except Gone as error:
        entry = ctx.trees.get(refs.get_commit(ctx, resolved.commit).metarange, path)
        marks = hidden_commits.marks_of(ctx, resolved)
        is_swept = entry is not None and swept_by(ctx, marks, [(path, entry)])[0] is not None
        return _Present(ref_exists=True, unreadable=str(error) if entry is not None else "", is_swept=is_swept)
    return _Present(ref_exists=True, entry=found.entry, staged=found.token is not None)


def _staged_before(ctx: Context, branch: BranchName, path: Path) -> Iterator[Address]:
    """Yield the addresses that were staged at the path under tokens that the reaper has not processed yet. Right after
    a reset no other record has them.
    """
    tokens = [Token(name) for name, _ in ctx.kv.scan_all(keys.tokens(ctx.repo), prefix=f"{branch}:")]
    for page in batched(reversed(tokens), PAGE):
        for value in ctx.kv.get_many([keys.entry(ctx.repo, token, path) for token in page]):
            record = decode_staged(value) if value is not ABSENT else None
            if isinstance(record, Entry):
                yield record.address


def _in_grace(ctx: Context, branch: BranchName, path: Path) -> Iterator[InGrace]:
    return (item for item in trash.in_grace(ctx, branch=branch, prefix=path) if item.path == path)


def _path_events(ctx: Context, branch: BranchName, path: Path, incomplete: dict[str, None]) -> Iterator[Event]:
    """Yield the journal's events for the path on the branch."""
    sought = Sought(branch=branch, path=path)
    indexed = _Indexed.of(ctx).journal
    text = path_text(branch, path)
    on_unreadable = _collector(incomplete)
    events = [
        event
        for match in index_format.lookup(ctx.objects, [text])[text]
        for event in journal_format.find_in(ctx.objects, match.source.file, sought, unreadable=on_unreadable)
    ]
    events += journal_format.find(
        ctx.objects, sought, after=indexed, segments_max=PATH_SEGMENTS_MAX, unreadable=on_unreadable
    )
    for event in events:
        if not event.doomed.cause.startswith(causes.CONTENT_OF_DELETED):  # it was at no path; its object was
            yield event
