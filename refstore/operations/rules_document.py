"""The retention rules of a repository, set and kept as one document; and the history that they apply to.

The history is read in an order: commits first, branches and tags after them. Then no branch is older than the commits
that were read, and a commit that landed meanwhile is found from its branch. The marks of rule 13 protect the one case
that is left: a branch that is made while the branches are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from refstore.audit.audit_entries import Act
from refstore.audit.audit_reader import RecordHistory
from refstore.context import Context
from refstore.core import ids
from refstore.core.clock import to_datetime
from refstore.core.ids import CommitId
from refstore.errors import Conflict, ConsentNeeded, Contention, CorruptRecord, InvalidRules, NotFound
from refstore.kv.base import ABSENT, Absent
from refstore.operations import branch
from refstore.operations import tag as tag_operation
from refstore.operations.rule_filters import read_filters
from refstore.operations.rules_in_force import RetentionRules, decode_rules, get_rules, read_record
from refstore.records import keys
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.repository_records import RetentionRecord
from refstore.retention.active_commits import Refs
from refstore.retention.commit_arrays import CommitHistory, CommitHistoryBuilder, CommitRow, TransactionType
from refstore.retention.rule_changes import (
    NO_RULES,
    UNREADABLE,
    ChangeKind,
    add_protection,
    check_consent,
    compare_rules,
    may_delete_more,
)
from refstore.retention.rules import GcRules, ParsedRules, Rules, read_rules, render_rules, replace_gc_rules

ATTEMPTS: Final = 16
FETCH: Final = 1000
ROUNDS: Final = 10_000
"""How often missing parents are fetched; each round goes one commit further back."""


def set_rules(ctx: Context, document: str, *, by: str, remove: Collection[str] = ()) -> RetentionRules:
    """Replace the whole document. `remove`: the legal holds and pins that it removes, by their names
    (`retention/rule_changes.py`). Raises InvalidRules, ConsentNeeded, RepositoryNotFound, Contention.
    """
    parsed = parse_rules(ctx, document)
    for _ in range(ATTEMPTS):
        raw = ctx.kv.get(keys.retention_rules(ctx.repo))
        try:
            check_consent(decode_rules(ctx, raw), parsed.rules, remove)
        except CorruptRecord as error:  # they are replaced as well, but nobody can say what they protect
            if UNREADABLE not in remove:
                raise ConsentNeeded(
                    f"{error}; they may have legal holds and pins: name {UNREADABLE} in the parameter remove",
                    [UNREADABLE],
                ) from error
        done = _replace(ctx, "rules.set", raw, _new_record(ctx, document, by, parsed.read_as), parsed.rules)
        if done is not None:
            return done
    raise _contention(ctx)


def set_gc_rules(ctx: Context, new: GcRules | None, *, by: str) -> RetentionRules | None:
    """Replace lakeFS's part of the rules (None: remove it); what lakeFS's format cannot express stays as it was set.

    Return None where nothing is left of the document. Raises InvalidRules, Contention.
    """
    key = keys.retention_rules(ctx.repo)
    for _ in range(ATTEMPTS):
        raw, old = read_record(ctx)
        rules = replace_gc_rules(old.rules if old is not None else None, new)
        if new is None and not rules.is_extended:
            if raw is ABSENT:
                return None
            with ctx.audit.change("rules.delete", repository=ctx.name, before=_audit_values(raw)) as draft:
                draft.happened = ctx.kv.set_if(key, raw, ABSENT)
            if draft.happened:
                return None
            continue
        done = _replace(ctx, "rules.set", raw, _new_record(ctx, render_rules(rules), by), rules)
        if done is not None:
            return done
    raise _contention(ctx)


def pin_commits(ctx: Context, commits: Iterable[CommitId], *, by: str) -> RetentionRules:
    """Add commits to `pins.commits`: they never expire from then on. All else stays. Raises InvalidRules (one never
    landed), Contention.
    """
    pinned = list(commits)
    for _ in range(ATTEMPTS):
        raw, old = read_record(ctx)
        rules = old.rules if old is not None else Rules()
        pins = msgspec.structs.replace(rules.pins, commits=tuple(dict.fromkeys((*rules.pins.commits, *pinned))))
        document = render_rules(msgspec.structs.replace(rules, pins=pins))
        parsed = parse_rules(ctx, document)
        record = _new_record(ctx, document, by, withheld=old.withheld if old is not None else "")
        done = _replace(ctx, "rules.pin", raw, record, parsed.rules)
        if done is not None:
            return done
    raise _contention(ctx)


def put_back_protection(ctx: Context, history: RecordHistory, *, dry_run: bool) -> str:
    """Let the rules of a KV that was restored from an older copy keep what the audit log says that newer ones kept.
    Return what was done; '' where the KV has the newest rules.

    Legal holds and pins are added. The rest stays as it is in the KV, and is withheld from the offline job where it may
    let more expire than the newest rules did. Raises AuditUnavailable, Contention, Unavailable.
    """
    for _ in range(ATTEMPTS):
        raw = ctx.kv.get(keys.retention_rules(ctx.repo))
        last = history.find_newer(_audit_values(raw))
        if last is None:
            return ""
        try:
            own, logged = _decode_document(raw), read_logged_rules(last.act.after)
        except InvalidRules as error:
            return f"left: rules cannot be read ({error}); set them again"
        except KeyError:
            return "left: the audit log has no whole copy of the newest rules; set them again"
        kept, lost_pins = _drop_unknown_pins(ctx, add_protection(own, logged))
        withheld = ""
        if may_delete_more(own, logged):
            withheld = (
                f"its rules are those of an older KV, and may let more expire than the newest ones ({last.describe()})"
            )
        outcome = "; ".join(
            filter(
                None,
                (
                    f"older than {last.describe()}",
                    ", ".join(
                        f"put back {each.name}" for each in compare_rules(own, kept) if each.change is ChangeKind.ADDED
                    ),
                    f"pins of commits that are not there: {', '.join(lost_pins)}" if lost_pins else "",
                    "nothing expires until rules are set again" if withheld else "",
                ),
            )
        )
        if dry_run:
            return outcome
        read_as = decode(raw, RetentionRecord).read_as if isinstance(raw, bytes) else {}
        record = _new_record(ctx, render_rules(kept), "kv reconcile", read_as, withheld)
        if _replace(ctx, "rules.put-back", raw, record, kept, newest=last.act) is not None:
            return outcome
    raise _contention(ctx)


def read_logged_rules(logged: Mapping[str, Any] | None) -> Rules:
    """Return the rules of an entry of the audit log; NO_RULES where they were deleted. Raises InvalidRules; KeyError if
    the entry has not all of the document.
    """
    return read_rules(logged["document"]).rules if logged is not None else NO_RULES


def _decode_document(raw: bytes | Absent) -> Rules:
    """Return the rules as they were set, with their filters as they were written. Raises InvalidRules."""
    try:
        record = decode_optional(raw, RetentionRecord)
    except CorruptRecord as error:
        raise InvalidRules(str(error)) from error
    return read_rules(record.document).rules if record is not None else NO_RULES


def _drop_unknown_pins(ctx: Context, rules: Rules) -> tuple[Rules, list[str]]:
    """Return the rules without pins of commits that the KV does not know, and these."""
    landed = {row.id for row in _read_rows(ctx, map(CommitId, rules.pins.commits)) if row.has_landed}
    lost = [commit for commit in rules.pins.commits if commit not in landed]
    known = tuple(commit for commit in rules.pins.commits if commit in landed)
    return msgspec.structs.replace(rules, pins=msgspec.structs.replace(rules.pins, commits=known)), lost


def delete_rules(ctx: Context, *, remove: Collection[str] = ()) -> RetentionRules:
    """Delete the rules: from then on no commit expires. `remove`: see `set_rules`. Raises NotFound, ConsentNeeded,
    Conflict.

    Only the rules that were read are deleted. A deletion whose reply was lost may have landed, and the rules that stand
    now may have a legal hold that somebody set after it.
    """
    key = keys.retention_rules(ctx.repo)
    raw, rules = read_record(ctx)
    if rules is None:
        raise no_rules_error(ctx)
    check_consent(rules.rules, Rules(), remove)
    with ctx.audit.change("rules.delete", repository=ctx.name, before=_audit_values(raw)):
        if not ctx.kv.set_if(key, raw, ABSENT) and ctx.kv.get(key) is not ABSENT:
            raise Conflict(
                f"the retention rules of {ctx.name!r} were changed while they were deleted; look at them, and delete "
                "again if need be"
            )
    return rules


def parse_rules(ctx: Context, document: str) -> ParsedRules:
    """Parse a document and resolve its filters for this repository (`rule_filters.py`).

    Raises InvalidRules, also for a pinned commit that does not exist and for a prefix that can be read in two ways.
    """
    parsed = read_filters(ctx, read_rules(document))
    pinned = parsed.rules.pins.commits
    pinned_rows = _read_rows(ctx, [CommitId(commit) for commit in pinned])
    landed = {row.id for row in pinned_rows if row.has_landed}
    for index, commit in enumerate(pinned):
        if commit not in landed:
            raise InvalidRules(
                f"commit {commit} does not exist in {ctx.name!r}; pin one that the log shows",
                place=f"pins.commits[{index}]",
            )
    return parsed


def check_no_holds(ctx: Context) -> None:
    """Raise Conflict where a legal hold forbids to delete the repository: its paths would be unknown then."""
    in_force = get_rules(ctx)
    if in_force is not None and in_force.rules.legal_holds:
        prefix = in_force.rules.legal_holds[0].prefix
        raise Conflict(
            f"repository {ctx.name!r} has a legal hold on {prefix!r}; remove it from the retention rules before the "
            "repository goes"
        )


def _contention(ctx: Context) -> Contention:
    return Contention(f"others kept changing the retention rules of {ctx.name!r}; make the same call again")


def no_rules_error(ctx: Context) -> NotFound:
    return NotFound(
        f"repository {ctx.name!r} has no retention rules, so nothing that was committed expires; set some with"
        f" repo.set_retention, or: refstore retention set {ctx.name} FILE"
    )


def read_history(ctx: Context) -> tuple[CommitHistory, Refs]:
    """Read all commits, then all branches and tags. Raises CorruptRecord: a commit that something names is missing."""
    builder = CommitHistoryBuilder()
    for row in _scan_commits(ctx):
        builder.add(row)
    branches = ctx.branches
    heads: dict[str, CommitId] = {name: record.head for name, record in branches.scan_open()}
    refs = Refs(heads, {name: tag.commit for name, tag in tag_operation.scan_tags(ctx, prefix="", after="")})
    named = [*refs.heads.values(), *refs.tags.values()]
    for _ in range(ROUNDS):
        missing = builder.find_missing(named)
        if not missing:
            break
        fetched = _read_rows(ctx, missing)
        if not fetched:
            raise CorruptRecord(
                f"commit {missing[0]} is named and has no record; restore the KV from a backup before anything expires"
            )
        for row in fetched:
            builder.add(row)
    return builder.build(), refs


def _scan_commits(ctx: Context) -> Iterator[CommitRow]:
    """Yield every commit, with whether it landed; both partitions are read in order of id."""
    landed = (name for name, _ in ctx.kv.scan_all(keys.landed_commits(ctx.repo)))
    mark = next(landed, None)
    for name, value in ctx.kv.scan_all(keys.commits(ctx.repo)):
        while mark is not None and mark < name:
            mark = next(landed, None)
        commit = decode(value, StoredCommit)
        yield _commit_row(ids.commit_id(name), commit, landed=mark == name)


def _read_rows(ctx: Context, commits: Iterable[CommitId]) -> list[CommitRow]:
    """Return the rows of those commits that have a record."""
    rows: list[CommitRow] = []
    unique = list(dict.fromkeys(commits))
    for start in range(0, len(unique), FETCH):
        page = unique[start : start + FETCH]
        records = ctx.kv.get_many([keys.commit(ctx.repo, commit) for commit in page])
        landed = ctx.kv.get_many([keys.landed_mark(ctx.repo, commit) for commit in page])
        for commit, value, mark in zip(page, records, landed, strict=True):
            record = decode_optional(value, StoredCommit)
            if record is not None:
                rows.append(_commit_row(commit, record, landed=mark is not ABSENT))
    return rows


def _commit_row(name: CommitId, commit: StoredCommit, *, landed: bool) -> CommitRow:
    return CommitRow(
        name, commit.parents, commit.retention_date_ms, landed, TransactionType.from_metadata(commit.metadata)
    )


def _new_record(
    ctx: Context, document: str, by: str, read_as: Mapping[str, str] | None = None, withheld: str = ""
) -> RetentionRecord:
    now = ctx.clock.now_ms()
    return RetentionRecord(document, now, by, ctx.ids.new_id(now), dict(read_as or {}), withheld)


def _replace(
    ctx: Context,
    action: str,
    raw: bytes | Absent,
    record: RetentionRecord,
    rules: Rules,
    *,
    newest: Act | None = None,
) -> RetentionRules | None:
    """Write the record where the rules are still what was read; None: they are not. `newest`: what the audit log has of
    the rules that the KV lost.
    """
    before = _audit_values(raw) if newest is None else newest.after
    with ctx.audit.change(action, repository=ctx.name, before=before, after=_audit_values(encode(record))) as draft:
        draft.happened = ctx.kv.set_if(keys.retention_rules(ctx.repo), raw, encode(record))
        return _confirm_written(ctx, record, rules) if draft.happened else None


def _audit_values(raw: bytes | Absent) -> dict[str, object] | None:
    """The rules as the audit log shows them."""
    try:
        record = decode_optional(raw, RetentionRecord)
    except CorruptRecord:
        return {"unreadable": True}
    return (
        {
            "document": record.document,
            "set_by": record.set_by,
            "set_ms": record.set_ms,
            "write_id": record.write_id,
        }
        if record is not None
        else None
    )


def _confirm_written(ctx: Context, record: RetentionRecord, rules: Rules) -> RetentionRules:
    """Return the rules that were written; if the repository was deleted meanwhile, delete them and raise.

    The repository's record changes with its rules. A deletion of the repository reads the record before it looks for
    legal holds, and closes the record only if it is unchanged. So it cannot miss a hold that was set meanwhile.
    """
    for _ in range(ATTEMPTS):
        try:
            raw, repository = branch.open_record(ctx)
        except NotFound:
            ctx.kv.delete(keys.retention_rules(ctx.repo))
            raise
        changed = msgspec.structs.replace(repository, rules_id=record.write_id)
        if ctx.kv.set_if(keys.repository(ctx.name), raw, encode(changed)):
            return RetentionRules(record.document, rules, to_datetime(record.set_ms), record.set_by, record.withheld)
    raise Contention(f"others kept changing repository {ctx.name!r}; make the same call again")
