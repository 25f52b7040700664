"""Retention rules: kept as one document, set whole; and the reading of what they are applied to.

The reading has an order. Commits come first and names after them: then no name is older than the commits that were read, and a
commit that landed meanwhile is found from its name. What that leaves (a branch that is made while the branches are read) the marks of
rule 13 answer for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from refstore import ids, keys
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import Conflict, Contention, CorruptRecord, InvalidRules, NotFound
from refstore.flows import branching, tagging
from refstore.flows.rule_filters import bind, read_filters
from refstore.ids import CommitId
from refstore.kv.base import ABSENT, Absent
from refstore.records import Commit, RetentionRecord, decode, encode, maybe
from refstore.retention.active import Refs
from refstore.retention.history import SNAPSHOT, TRANSACTION, CommitRow, History, HistoryBuilder
from refstore.retention.rules import GcRules, Parsed, Rules, read_rules, render, with_gc_rules

ATTEMPTS: Final = 16
FETCH: Final = 1000
ROUNDS: Final = 10_000
"""Of fetching what came behind the reading: each goes one commit further back."""


class Retention(NamedTuple):
    """The rules that are in force."""

    document: str
    """As it was set."""
    rules: Rules
    set_ms: int
    set_by: str


def get(ctx: Context) -> Retention | None:
    """None: nothing that was committed expires. Raises CorruptRecord: then no job may go on by other rules, or by none."""
    return _read(ctx)[1]


def set_rules(ctx: Context, document: str, *, by: str) -> Retention:
    """Replace the whole document. Raises InvalidRules, RepositoryNotFound, Contention."""
    parsed = check(ctx, document)
    record = _record(ctx, document, by, parsed.read_as)
    ctx.kv.set(keys.retention_rules(ctx.repo), encode(record))
    return _written(ctx, record, parsed.rules)


def set_gc_rules(ctx: Context, new: GcRules | None, *, by: str) -> Retention | None:
    """Replace lakeFS's part of the rules (None: take it out); what lakeFS's format cannot say stays as it was set.

    None, where nothing is left of the document. Raises InvalidRules, Contention.
    """
    key = keys.retention_rules(ctx.repo)
    for _ in range(ATTEMPTS):
        raw, old = _read(ctx)
        rules = with_gc_rules(old.rules if old is not None else None, new)
        if new is None and not rules.extended:
            if raw is ABSENT or ctx.kv.set_if(key, raw, ABSENT):
                return None
            continue
        record = _record(ctx, render(rules), by)
        if ctx.kv.set_if(key, raw, encode(record)):
            return _written(ctx, record, rules)
    raise Contention(f"others kept changing the retention rules of {ctx.name!r}; make the same call again")


def pin(ctx: Context, commits: Iterable[CommitId], *, by: str) -> Retention:
    """Add commits to `pins.commits`: they never expire from then on. All else stays. Raises InvalidRules (one never landed), Contention."""
    key, wanted = keys.retention_rules(ctx.repo), list(commits)
    for _ in range(ATTEMPTS):
        raw, old = _read(ctx)
        rules = old.rules if old is not None else Rules()
        pins = msgspec.structs.replace(rules.pins, commits=tuple(dict.fromkeys((*rules.pins.commits, *wanted))))
        document = render(msgspec.structs.replace(rules, pins=pins))
        parsed = check(ctx, document)
        record = _record(ctx, document, by)
        if ctx.kv.set_if(key, raw, encode(record)):
            return _written(ctx, record, parsed.rules)
    raise Contention(f"others kept changing the retention rules of {ctx.name!r}; make the same call again")


def delete(ctx: Context) -> Retention:
    """Take the rules away: from then on nothing that was committed expires. Raises NotFound, Conflict.

    Those that were read, and no others: a deletion whose reply was lost may have landed, and what stands there now may be a legal hold
    that somebody set behind it.
    """
    key = keys.retention_rules(ctx.repo)
    raw, found = _read(ctx)
    if found is None:
        raise no_rules(ctx)
    if not ctx.kv.set_if(key, raw, ABSENT) and ctx.kv.get(key) is not ABSENT:
        raise Conflict(
            f"the retention rules of {ctx.name!r} were changed while they were deleted; look at them, and delete again if need be"
        )
    return found


def check(ctx: Context, document: str) -> Parsed:
    """Whether a document can be this repository's rules, and what they are here (`rule_filters.py`).

    Raises InvalidRules: for a pinned commit that is not there, and for a prefix that can be read in two ways, too.
    """
    parsed = read_filters(ctx, read_rules(document))
    pinned = parsed.rules.pins.commits
    found = _rows_of(ctx, [CommitId(commit) for commit in pinned])
    there = {row.id for row in found if row.landed}
    for index, commit in enumerate(pinned):
        if commit not in there:
            raise parsed.located.error(
                ("pins", "commits", index), f"commit {commit} does not exist in {ctx.name!r}; pin one that the log shows"
            )
    return parsed


def check_no_holds(ctx: Context) -> None:
    """What a legal hold keeps outlives no repository: nobody would know its paths any more. Raises Conflict."""
    found = get(ctx)
    if found is not None and found.rules.legal_holds:
        prefix = found.rules.legal_holds[0].prefix
        raise Conflict(
            f"repository {ctx.name!r} has a legal hold on {prefix!r}; take it out of the retention rules before the repository goes"
        )


def no_rules(ctx: Context) -> NotFound:
    return NotFound(
        f"repository {ctx.name!r} has no retention rules, so nothing that was committed expires; set some with:"
        f" refstore retention set {ctx.name} FILE"
    )


def read_history(ctx: Context) -> tuple[History, Refs]:
    """All commits, then all names, for `refstore.retention`. Raises CorruptRecord: a commit that something names is missing."""
    builder = HistoryBuilder()
    for row in _scan(ctx):
        builder.add(row)
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    heads: dict[str, CommitId] = {name: record.head for name, record in branches.scan_open()}
    refs = Refs(heads, {name: tag.commit for name, tag in tagging.scan(ctx, prefix="", after="")})
    named = [*refs.heads.values(), *refs.tags.values()]
    for _ in range(ROUNDS):
        missing = builder.missing(named)
        if not missing:
            break
        fetched = _rows_of(ctx, missing)
        if not fetched:
            raise CorruptRecord(f"commit {missing[0]} is named and has no record; restore the KV from a backup before anything expires")
        for row in fetched:
            builder.add(row)
    return builder.done(), refs


def _scan(ctx: Context) -> Iterator[CommitRow]:
    """Every commit, with whether it landed: both partitions are in order of id, so neither is held."""
    landed = (name for name, _ in ctx.kv.scan_all(keys.landed_commits(ctx.repo)))
    mark = next(landed, None)
    for name, value in ctx.kv.scan_all(keys.commits(ctx.repo)):
        while mark is not None and mark < name:
            mark = next(landed, None)
        commit = decode(value, Commit)
        yield CommitRow(ids.commit_id(name), commit.parents, commit.created_ms, mark == name, _begins_view(commit))


def _rows_of(ctx: Context, commits: Iterable[CommitId]) -> list[CommitRow]:
    """Those that are there."""
    found: list[CommitRow] = []
    wanted = list(dict.fromkeys(commits))
    for start in range(0, len(wanted), FETCH):
        page = wanted[start : start + FETCH]
        records = ctx.kv.get_many([keys.commit(ctx.repo, commit) for commit in page])
        landed = ctx.kv.get_many([keys.landed(ctx.repo, commit) for commit in page])
        for commit, value, mark in zip(page, records, landed, strict=True):
            record = maybe(value, Commit)
            if record is not None:
                found.append(CommitRow(commit, record.parents, record.created_ms, mark is not ABSENT, _begins_view(record)))
    return found


def _begins_view(commit: Commit) -> bool:
    return commit.metadata.get(TRANSACTION) == SNAPSHOT


def _read(ctx: Context) -> tuple[bytes | Absent, Retention | None]:
    raw = ctx.kv.get(keys.retention_rules(ctx.repo))
    record = maybe(raw, RetentionRecord)
    if record is None:
        return raw, None
    try:
        rules = bind(read_rules(record.document).rules, record.read_as)
        return raw, Retention(record.document, rules, record.set_ms, record.set_by)
    except InvalidRules as error:
        raise CorruptRecord(
            f"the retention rules of {ctx.name!r} cannot be read ({error}); set them again before anything expires"
        ) from error


def _record(ctx: Context, document: str, by: str, read_as: Mapping[str, str] | None = None) -> RetentionRecord:
    now = ctx.clock.now_ms()
    return RetentionRecord(document, now, by, ctx.ids.unique(now), dict(read_as or {}))


def _written(ctx: Context, written: RetentionRecord, rules: Rules) -> Retention:
    """What was written, unless the repository was deleted meanwhile: nothing may be left of it then.

    The repository's record changes with its rules. So its deletion, which closes the record as it read it before it looked for legal
    holds, closes none behind whose back a hold was set.
    """
    for _ in range(ATTEMPTS):
        try:
            raw, record = branching.open_record(ctx)
        except NotFound:
            ctx.kv.delete(keys.retention_rules(ctx.repo))
            raise
        changed = msgspec.structs.replace(record, rules_id=written.write_id)
        if ctx.kv.set_if(keys.repository(ctx.name), raw, encode(changed)):
            return Retention(written.document, rules, written.set_ms, written.set_by)
    raise Contention(f"others kept changing repository {ctx.name!r}; make the same call again")
