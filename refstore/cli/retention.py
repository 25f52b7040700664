"""The commands `refstore retention`: set, check and explain the rules for how long committed data is kept."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated, Final

import msgspec
import typer

from refstore.cli.common import emit, invocation_of, repository_of, warn_of, who
from refstore.cli.confirmation import confirm
from refstore.cli.files import read_document
from refstore.cli.parameters import By, DryRun, Name, Yes
from refstore.cli.rows import format_when
from refstore.core.clock import to_ms
from refstore.errors import ConsentNeeded, RefstoreError
from refstore.gc_marks import Marks, RunState
from refstore.operations import refs as refs_
from refstore.operations import rules_document
from refstore.operations.rule_review import RuleReview, compare_with_current, review_history, review_rules
from refstore.operations.rules_in_force import RetentionRules
from refstore.repository import Repository
from refstore.retention import rule_explanation
from refstore.retention.active_commits import (
    FOREVER_MS,
    CommitExpiry,
    ExpiryState,
    Refs,
    RetentionReason,
    compute_expiry,
)
from refstore.retention.rule_changes import RuleChange
from refstore.retention.rules import ParsedRules, Rules, rule_warnings

app = typer.Typer(no_args_is_help=True)

REASONS_SHOWN: Final = 20
"""How many reasons are shown without --json; a commit can be on thousands of branches."""

Remove = Annotated[
    list[str] | None,
    typer.Option(
        "--remove",
        metavar="NAME",
        help="A legal hold or pin that goes: hold:PREFIX, pin:COMMIT, tag:GLOB. May be given several times.",
    ),
]


@app.callback()
def retention() -> None:
    """Set, check and explain the rules for how long committed data is kept."""


@app.command("get")
def get(ctx: typer.Context, repo_name: Name) -> None:
    """Print the rules as they were set; --json adds who set them, and when.

    \b
    Example: refstore retention get sales > rules.json
    """
    with repository_of(ctx, repo_name, read_only=True) as repo:
        stored_rules = _rules_of(repo)
        if invocation_of(ctx).json:
            emit(ctx, {**_row(repo, stored_rules), "document": msgspec.json.decode(stored_rules.document)})
        else:
            print(stored_rules.document, end="" if stored_rules.document.endswith("\n") else "\n")
            if stored_rules.withheld:
                typer.echo(f"Nothing expires by these rules: {stored_rules.withheld}. Set rules again.", err=True)


@app.command("set")
def set_(
    ctx: typer.Context,
    repo_name: Name,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The rules, in JSON; '-' for standard input.")],
    by: By = None,
    remove: Remove = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the effect of the rules, and set nothing.")] = False,
) -> None:
    """Set the rules, the whole document at once. The next garbage collection marks what they let expire.

    It lists what the document adds, removes and changes. A legal hold or a pin that it removes has to be named by
    --remove; otherwise nothing is set, and the exit code is 4. It warns of names that match nothing, and with --dry-run
    it also shows what `refstore retention explain` will show.

    A branch whose commits say their transaction types keeps its latest view, unless the rules lift that: with
    "keep_latest_view": false, or with "allow_deletion_from_latest_view": true. Then current data may be deleted.

    \b
    Example: refstore retention set sales rules.json
             refstore retention set sales rules.json --dry-run
             refstore retention set sales rules.json --remove hold:contracts/
    """
    document = read_document(file)
    with repository_of(ctx, repo_name) as repo:
        parsed = rules_document.parse_rules(repo.context, document)
        _tell_filters(parsed)
        if dry_run:
            _explain_all(ctx, repo, parsed.rules)
            return
        changes = compare_with_current(repo.context, parsed.rules)
        with _naming_what_goes(ctx, changes):
            new_rules = repo.set_retention(document, by=who() if by is None else by, remove=remove or ())
        findings = _review_or_none(repo, new_rules.rules)
        _warn_of_sweeps(repo)
        _emit_with_changes(
            ctx, {**_row(repo, new_rules), "expire_tonight": findings.unmarked_commits if findings else None}, changes
        )


def _change_row(change: RuleChange) -> dict[str, object]:
    return {
        "change": change.change.value,
        "what": change.subject,
        "name": change.name,
        "before": change.before,
        "after": change.after,
        "remove": change.name if change.needs_consent else None,
    }


def _emit_with_changes(ctx: typer.Context, row: dict[str, object], changes: Sequence[RuleChange]) -> None:
    """Emit a row, and the changes of the rules before it."""
    rows = [_change_row(change) for change in changes]
    if invocation_of(ctx).json:
        emit(ctx, {**row, "changes": rows})
        return
    if rows:
        emit(ctx, rows)
        print()
    emit(ctx, row)


@contextmanager
def _naming_what_goes(ctx: typer.Context, changes: Sequence[RuleChange]) -> Generator[None, None, None]:
    """Print the changes, and the options to give, where the block raises that removals have to be named."""
    try:
        yield
    except ConsentNeeded as error:
        if not invocation_of(ctx).json:
            for change in changes:
                print(f"refstore: {change.text}", file=sys.stderr)
            options = " ".join(f"--remove {shlex.quote(name)}" for name in error.names)
            print(f"refstore: to remove what keeps data, add: {options}", file=sys.stderr)
        raise


def _review_or_none(repo: Repository, rules: Rules) -> RuleReview | None:
    """Review the rules and print warnings; None: the history cannot be read. That must not prevent setting rules, above
    all a legal hold.
    """
    try:
        findings = review_rules(repo.context, rules)
    except RefstoreError as error:
        warn_of([*rule_warnings(rules), f"the effect of these rules could not be computed: {error}"])
        return None
    warn_of(findings.warnings)
    return findings


def _tell_filters(parsed: ParsedRules) -> None:
    """Print how prefixes that begin with a branch's name were read."""
    for prefix, branch in parsed.read_as.items():
        rest = prefix[len(branch) + 1 :]
        print(
            f"refstore: prefix {prefix!r} is read as {f'paths {rest}*' if rest else 'all paths'} on branch {branch!r};"
            f' if the path {prefix!r} on all branches is meant, write {{"branch": "*", "prefix": "{prefix}"}}',
            file=sys.stderr,
        )


def _warn_of_sweeps(repo: Repository) -> None:
    """Warn about running sweeps, because they continue by the rules that they began with."""
    for each in Marks(repo.context).runs.scan():
        if each.state is RunState.SWEEPING:
            print(
                f"refstore: warning: mark {each.mark_id} is being swept by the rules as they were; what a new legal "
                "hold covers may go with it unless you stop that job, which goes on by the new rules when it is run "
                "again",
                file=sys.stderr,
            )


@app.command("explain")
def explain(
    ctx: typer.Context,
    repo_name: Name,
    ref: Annotated[str, typer.Argument(metavar="REF", help="A commit; default: every branch.")] = "",
) -> None:
    """Show the rule and the active commits of each branch; or for one commit, until when it is active, and why.
    `refstore retention set --dry-run` shows it of other rules.

    \b
    Example: refstore retention explain sales
             refstore retention explain sales main~3
    """
    with repository_of(ctx, repo_name, read_only=True) as repo:
        rules = _rules_of(repo).rules
        if ref:
            _explain_one(ctx, repo, rules, ref)
        else:
            _explain_all(ctx, repo, rules)


@app.command("delete")
def delete(
    ctx: typer.Context, repo_name: Name, remove: Remove = None, dry_run: DryRun = False, yes: Yes = False
) -> None:
    """Delete all rules, pins and legal holds included. Then no committed data expires.

    Each legal hold and pin that goes with them has to be named by --remove; otherwise nothing is deleted, and the exit
    code is 4.

    \b
    Example: refstore retention delete sales --yes
             refstore retention delete sales --yes --remove hold:contracts/
    """
    with repository_of(ctx, repo_name) as repo:
        stored_rules = _rules_of(repo)
        changes = compare_with_current(repo.context, Rules())
        if not dry_run:
            confirm(ctx, f"the retention rules of {repo.name!r} will be deleted", yes=yes)
            with _naming_what_goes(ctx, changes):
                stored_rules = repo.delete_retention(remove=remove or ())
        _emit_with_changes(ctx, {**_row(repo, stored_rules), "deleted": not dry_run}, changes)


def _explain_all(ctx: typer.Context, repo: Repository, rules: Rules) -> None:
    lifetimes, refs = _lives(repo, rules)
    lines, totals = rule_explanation.branch_lines(lifetimes, refs, rules), rule_explanation.expiry_totals(lifetimes)
    rows = [
        {
            "branch": line.branch,
            "days": line.days,
            "rule": line.rule,
            "commits": line.commits,
            "active": line.active_commits,
            "expired": line.expired_commits,
            "next_expires": _moment(line.next_expires_ms),
            "latest_view": "kept" if line.keeps_latest_view else "not kept" if line.uses_types else None,
        }
        for line in lines
    ]
    whole: dict[str, object] = {
        "repository": repo.name,
        "at": format_when(lifetimes.now_ms),
        "commits": totals.commits,
        "active": totals.active_commits,
        "expired": totals.expired_commits,
        "unlanded": totals.unlanded_commits,
        "dangling": totals.dangling_commits,
        "next_expires": _moment(totals.next_expires_ms),
        **{f"expire_within_{days}_days": count for days, count in totals.expiring_soon.items()},
        "future_dated": totals.future_dated,
        "back_dated": totals.back_dated,
    }
    findings = review_history(repo.context, rules, lifetimes, refs)
    warn_of(findings.warnings)
    paths, changes = _path_rows(rules), [_change_row(change) for change in findings.changes]
    if invocation_of(ctx).json:
        emit(ctx, {**whole, "branches": rows, "paths": paths, "changes": changes})
        return
    emit(ctx, rows)
    for part in (paths, changes, whole):
        if part:
            print()
            emit(ctx, part)


def _explain_one(ctx: typer.Context, repo: Repository, rules: Rules, ref: str) -> None:
    commit = refs_.resolve(repo.context, ref).commit
    record = refs_.get_commit(repo.context, commit)
    lifetimes, refs = _lives(repo, rules)
    number = lifetimes.history.number(commit, f"{ref!r}")
    reasons = rule_explanation.hold_reasons(lifetimes, refs, rules, commit)
    rows = [
        {
            "why": _words(each.reason, each.name),
            "rule": each.rule,
            "until": _moment(each.until_ms),
            "over": each.until_ms <= lifetimes.now_ms,
        }
        for each in reasons
    ]
    whole: dict[str, object] = {
        "commit": commit,
        "date": _moment(record.created_ms),
        "counts_from": _moment(record.retention_date_ms),
        "state": lifetimes.state(number).name.lower(),
        "expires": None if lifetimes.state(number) == ExpiryState.UNLANDED else _moment(lifetimes.expires_ms[number]),
    }
    if invocation_of(ctx).json:
        emit(ctx, {**whole, "reasons": rows})
        return
    emit(ctx, whole)
    if rows:
        print()
        emit(ctx, rows[:REASONS_SHOWN])
    if len(rows) > REASONS_SHOWN:
        print(f"... and {len(rows) - REASONS_SHOWN} more that hold it no longer than these; --json shows all")


def _path_rows(rules: Rules) -> list[dict[str, object]]:
    """Return the rules for single paths, the deciding one first."""
    holds = sorted(rules.legal_holds, key=lambda hold: -len(hold.prefix))
    rows: list[dict[str, object]] = [{"paths": f"{hold.prefix}*", "rule": "legal hold", "days": None} for hold in holds]
    for rule in rules.path_rules:
        kinds = {
            "all": rule.expiration.all,
            "noncurrent": rule.expiration.noncurrent,
            "uncommitted": rule.expiration.uncommitted,
        }
        for kind, period in kinds.items():
            if period is not None:
                paths = f"{rule.filter.prefix}*{f' on {rule.filter.own_branch}' if rule.filter.own_branch else ''}"
                rows.append({"paths": paths, "rule": kind, "days": period.total_days})
    return rows


def _words(why: RetentionReason, name: str) -> str:
    match why:
        case RetentionReason.HEAD:
            return f"the head of branch {name!r}"
        case RetentionReason.TAG:
            return f"tag {name!r} names it"
        case RetentionReason.PIN:
            return "a pin names it"
        case RetentionReason.KEEP_LAST:
            return f"one of the last of branch {name!r}"
        case RetentionReason.LATEST_VIEW:
            return f"in the latest view of branch {name!r}"
        case RetentionReason.BRANCH:
            return f"was the head of branch {name!r}"
        case RetentionReason.DANGLING:
            return f"on a line without a branch, up to commit {name}"
        case RetentionReason.NOTHING:
            return "never landed"


def _lives(repo: Repository, rules: Rules) -> tuple[CommitExpiry, Refs]:
    history, refs = rules_document.read_history(repo.context)
    return compute_expiry(history, refs, rules, repo.context.clock.now_ms()), refs


def _rules_of(repo: Repository) -> rules_document.RetentionRules:
    """Return the rules in force. Raises NotFound if there are none."""
    stored_rules = repo.retention()
    if stored_rules is None:
        raise rules_document.no_rules_error(repo.context)
    return stored_rules


def _row(repo: Repository, stored_rules: RetentionRules) -> dict[str, object]:
    return {
        "repository": repo.name,
        "set": format_when(to_ms(stored_rules.set_at)),
        "by": stored_rules.set_by,
        "digest": stored_rules.rules.digest(),
        "extended": stored_rules.rules.is_extended,
        "withheld": stored_rules.withheld,
    }


def _moment(at_ms: int | None) -> str | None:
    """Return a time; None if it never comes."""
    return None if at_ms == FOREVER_MS else format_when(at_ms)
