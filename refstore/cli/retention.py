"""`refstore retention`: how long what was committed stays: set the rules, check them, and ask what they come to."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from refstore.cli.common import emit, invocation_of, repository_of
from refstore.cli.destroying import DryRun, Yes, confirm
from refstore.cli.files import local_errors
from refstore.cli.places import PlacedCommand, place, words
from refstore.cli.shapes import when
from refstore.errors import Invalid, RefstoreError
from refstore.flows import refs as refs_
from refstore.flows import retaining
from refstore.flows.rule_review import Review, review, review_history
from refstore.marks import Marks
from refstore.marks import State as RunState
from refstore.repository import Repository
from refstore.retention import explaining
from refstore.retention.active import FOREVER_MS, Lives, Refs, State, Why, lives
from refstore.retention.rules import DOCUMENT_CHARACTERS_MAX, Parsed, Rules, warnings

app = typer.Typer(no_args_is_help=True)

REASONS_SHOWN: Final = 20
"""Without --json; a commit can be on thousands of branches."""

Name = Annotated[str, typer.Argument(metavar="REPO", help="The repository.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who does this; left out: your user name.")]


@app.callback()
def retention() -> None:
    """How long what was committed stays: set the rules, check them, and ask what they come to."""


@app.command("get")
def get(ctx: typer.Context, repo_name: Name) -> None:
    """Print the rules as they were set; with --json also by whom and when.

    \b
    Example: refstore retention get sales > rules.json
    """
    with repository_of(ctx, repo_name) as repo:
        found = repo.retention()
        if found is None:
            raise retaining.no_rules(repo.context)
        if invocation_of(ctx).json:
            emit(ctx, {**_row(repo, found), "document": msgspec.json.decode(found.document)})
        else:
            print(found.document, end="" if found.document.endswith("\n") else "\n")


@app.command("set")
def set_(
    ctx: typer.Context,
    repo_name: Name,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The rules, in JSON; '-' for standard input.")],
    by: By = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what they would come to, and set nothing.")] = False,
) -> None:
    """Set the rules, the whole document at once. What they let expire is marked by the next collection, not at once.

    \b
    Example: refstore retention set sales rules.json
             refstore retention set sales rules.json --dry-run
    """
    document = read_document(file)
    with repository_of(ctx, repo_name) as repo:
        parsed = retaining.check(repo.context, document)
        _tell_filters(parsed)
        if dry_run:
            _explain_all(ctx, repo, parsed.rules)
            return
        done = repo.set_retention(document, by=who() if by is None else by)
        found = _reviewed(repo, done.rules)
        _warn_of_sweeps(repo)
        emit(ctx, {**_row(repo, done), "expire_tonight": found.unmarked if found else None})


def _reviewed(repo: Repository, rules: Rules) -> Review | None:
    """Warn of what may not be meant. None: the history cannot be read, which keeps nobody from setting rules, a legal hold above all."""
    try:
        found = review(repo.context, rules)
    except RefstoreError as error:
        _warn([*warnings(rules), f"what these rules come to could not be found out: {error}"])
        return None
    _warn(found.warnings)
    return found


def _tell_filters(parsed: Parsed) -> None:
    """How prefixes that begin with a branch's name were read."""
    for prefix, branch in parsed.read_as.items():
        rest = prefix[len(branch) + 1 :]
        print(
            f"refstore: prefix {prefix!r} is read as {f'paths {rest}*' if rest else 'all paths'} on branch {branch!r};"
            f' if the path {prefix!r} on all branches is meant, write {{"branch": "*", "prefix": "{prefix}"}}',
            file=sys.stderr,
        )


def _warn_of_sweeps(repo: Repository) -> None:
    """A sweep that has begun goes on by the rules that it began with."""
    for each in Marks(repo.context).runs():
        if each.state is RunState.SWEEPING:
            print(
                f"refstore: warning: mark {each.mark_id} is being swept by the rules as they were; what a new legal hold covers may go"
                " with it unless you stop that job, which goes on by the new rules when it is run again",
                file=sys.stderr,
            )


@app.command("validate")
def validate(
    ctx: typer.Context,
    repo_name: Name,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="The rules, in JSON; '-' for standard input; left out: those in force.")
    ] = "",
) -> None:
    """Check rules without setting them: whether they can be read, and whether what they name is there.

    \b
    Example: refstore retention validate sales rules.json
             refstore retention get sales | refstore retention validate sales -
    """
    with repository_of(ctx, repo_name) as repo:
        rules = _rules(repo, file)
        found = review(repo.context, rules)
        _warn(found.warnings)
        emit(
            ctx,
            {
                "repository": repo.name,
                "valid": True,
                "digest": rules.digest(),
                "extended": rules.extended,
                "unused": found.unused,
                "expire_tonight": found.unmarked,
            },
        )


@app.command("explain", cls=PlacedCommand)
def explain(
    ctx: typer.Context,
    given: Annotated[list[str], place("REPO [REF]")],
    rules_file: Annotated[
        str, typer.Option("--rules", metavar="FILE", help="Other rules than those in force; '-' for standard input.")
    ] = "",
) -> None:
    """Say which rule applies to each branch and how many commits are active; or of one commit, until when it is, and why.

    \b
    Example: refstore retention explain sales
             refstore retention explain sales main~3
             refstore retention explain sales --rules new.json
    """
    repo_name, ref = words(ctx, given, "REPO [REF]")
    with repository_of(ctx, repo_name) as repo:
        rules = _rules(repo, rules_file)
        if ref:
            _explain_one(ctx, repo, rules, ref)
        else:
            _explain_all(ctx, repo, rules)


@app.command("delete")
def delete(ctx: typer.Context, repo_name: Name, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Take all rules away, pins and legal holds among them. Nothing that was committed expires then.

    \b
    Example: refstore retention delete sales --yes
    """
    with repository_of(ctx, repo_name) as repo:
        found = repo.retention()
        if found is None:
            raise retaining.no_rules(repo.context)
        if not dry_run:
            confirm(ctx, f"the retention rules of {repo.name!r} go", yes=yes)
            found = repo.delete_retention()
        emit(ctx, {**_row(repo, found), "deleted": not dry_run})


def _explain_all(ctx: typer.Context, repo: Repository, rules: Rules) -> None:
    known, refs = _lives(repo, rules)
    lines, totals = explaining.lines(known, refs, rules), explaining.totals(known)
    rows = [
        {
            "branch": line.branch,
            "days": line.days,
            "rule": line.rule,
            "commits": line.commits,
            "active": line.active,
            "expired": line.expired,
            "next_expires": _moment(line.next_expires_ms),
        }
        for line in lines
    ]
    whole: dict[str, object] = {
        "repository": repo.name,
        "at": when(known.now_ms),
        "commits": totals.commits,
        "active": totals.active,
        "expired": totals.expired,
        "unlanded": totals.unlanded,
        "dangling": totals.dangling,
        "next_expires": _moment(totals.next_expires_ms),
        **{f"expire_within_{days}_days": count for days, count in totals.soon.items()},
        "dated_ahead": totals.dated_ahead,
        "dated_back": totals.dated_back,
    }
    _warn(review_history(repo.context, rules, known, refs).warnings)
    paths = _path_rows(rules)
    if invocation_of(ctx).json:
        emit(ctx, {**whole, "branches": rows, "paths": paths})
        return
    emit(ctx, rows)
    for part in (paths, whole):
        if part:
            print()
            emit(ctx, part)


def _explain_one(ctx: typer.Context, repo: Repository, rules: Rules, ref: str) -> None:
    commit = refs_.resolve(repo.context, ref).commit
    known, refs = _lives(repo, rules)
    number = known.history.number(commit, f"{ref!r}")
    found = explaining.reasons(known, refs, rules, commit)
    rows = [
        {"why": _words(each.why, each.name), "rule": each.rule, "until": _moment(each.until_ms), "over": each.until_ms <= known.now_ms}
        for each in found
    ]
    whole: dict[str, object] = {
        "commit": commit,
        "date": _moment(known.history.created_ms[number]),
        "state": known.state(number).name.lower(),
        "expires": None if known.state(number) == State.UNLANDED else _moment(known.expires_ms[number]),
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
    """What is said of single paths, the one that decides first."""
    held = sorted(rules.legal_holds, key=lambda hold: -len(hold.prefix))
    rows: list[dict[str, object]] = [{"paths": f"{hold.prefix}*", "rule": "legal hold", "days": None} for hold in held]
    for rule in rules.path_rules:
        kinds = {"all": rule.expiration.all, "noncurrent": rule.expiration.noncurrent, "uncommitted": rule.expiration.uncommitted}
        for kind, period in kinds.items():
            if period is not None:
                paths = f"{rule.filter.prefix}*{f' on {rule.filter.own_branch}' if rule.filter.own_branch else ''}"
                rows.append({"paths": paths, "rule": kind, "days": period.total_days})
    return rows


def _words(why: Why, name: str) -> str:
    match why:
        case Why.HEAD:
            return f"the head of branch {name!r}"
        case Why.TAG:
            return f"tag {name!r} names it"
        case Why.PIN:
            return "a pin names it"
        case Why.KEEP_LAST:
            return f"one of the last of branch {name!r}"
        case Why.LATEST_VIEW:
            return f"in the latest view of branch {name!r}"
        case Why.BRANCH:
            return f"was the head of branch {name!r}"
        case Why.DANGLING:
            return f"on a line without a branch, up to commit {name}"
        case Why.NOTHING:
            return "never landed"


def _lives(repo: Repository, rules: Rules) -> tuple[Lives, Refs]:
    history, refs = retaining.read_history(repo.context)
    return lives(history, refs, rules, repo.context.clock.now_ms()), refs


def _rules(repo: Repository, file: str) -> Rules:
    """Those of a file, or those in force. Raises NotFound where there are none."""
    if file:
        parsed = retaining.check(repo.context, read_document(file))
        _tell_filters(parsed)
        return parsed.rules
    found = repo.retention()
    if found is None:
        raise retaining.no_rules(repo.context)
    return found.rules


def read_document(file: str) -> str:
    """The text of a file of rules; '-' is standard input. Raises Invalid."""
    most = 4 * DOCUMENT_CHARACTERS_MAX + 4
    with local_errors():
        if file == "-":
            raw = sys.stdin.buffer.read(most)
        else:
            with Path(file).open("rb") as opened:
                raw = opened.read(most)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid(f"{file} is not UTF-8 (byte {error.start}); save it as UTF-8") from None


def _row(repo: Repository, found: retaining.Retention) -> dict[str, object]:
    return {
        "repository": repo.name,
        "set": when(found.set_ms),
        "by": found.set_by,
        "digest": found.rules.digest(),
        "extended": found.rules.extended,
    }


def _warn(found: Iterable[str]) -> None:
    for each in found:
        print(f"refstore: warning: {each}", file=sys.stderr)


def _moment(at_ms: int | None) -> str | None:
    """A time; None where it never comes."""
    return None if at_ms == FOREVER_MS else when(at_ms)


def who() -> str:
    """The user's name; '' where the user has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without users
        return ""
