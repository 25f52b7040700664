"""Decide what a filter of a rules document means in this repository: a path on all branches, or lakeFS's `branch/path`.

`main/logs/` can be either. It is `logs/` on main if there is a branch main and no branch shows anything at the path
`main/logs/`; where both are there it is refused, and the document has to say which is meant (`{"branch": "main",
"prefix": "logs/"}`, or `"branch": "*"`). The answer is kept with the document. What a rule takes then stays the same,
whichever branches and paths there are later.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from refstore.context import Context
from refstore.core.ids import CommitId
from refstore.errors import BranchNotFound, Contention, InvalidRules
from refstore.operations import read
from refstore.operations.refs import ResolvedRef
from refstore.operations.rules_in_force import bind_filters
from refstore.records.branch_records import StoredBranch
from refstore.retention.rules import ParsedRules, check_own_filters

BRANCHES_MAX: Final = 1000
"""How many branches are searched for one prefix; what only the others show is not known."""


def read_filters(ctx: Context, parsed: ParsedRules) -> ParsedRules:
    """Split the document's `branch/path` prefixes. Raises InvalidRules for a prefix that can be read in two ways."""
    names = {name for name, _ in ctx.branches.scan_open()}
    read_as: dict[str, str] = {}
    for index, rule in enumerate(parsed.rules.rules):
        prefix = rule.filter.prefix
        candidates = [prefix[:at] for at, character in enumerate(prefix) if character == "/" and prefix[:at] in names]
        if rule.filter.branch or not candidates:
            continue
        as_branch = [f'{{"branch": "{name}", "prefix": "{prefix[len(name) + 1 :]}"}}' for name in candidates]
        if len(candidates) > 1 or has_path_with_prefix(ctx, prefix) is not False:
            as_path = f'{{"branch": "*", "prefix": "{prefix}"}}'
            raise InvalidRules(
                f"prefix {prefix!r} begins with the name of a branch, and may be a path; write "
                f"{' or '.join([*as_branch, as_path])}",
                place=f"rules[{index}].filter.prefix",
            )
        read_as[prefix] = candidates[0]
    rules = bind_filters(parsed.rules, read_as)
    check_own_filters(rules)
    return parsed._replace(rules=rules, read_as=read_as)


def has_path_with_prefix(ctx: Context, prefix: str, branch: str = "") -> bool | None:
    """Return whether a branch (that one, or any) has a path that starts with `prefix`; None: not all were searched.

    Branches with the same head and nothing staged show the same, and are searched once.
    """
    heads: set[CommitId] = set()
    every = ctx.branches.scan_open()
    chosen = ((name, record) for name, record in every if branch in ("", name))
    for number, (name, record) in enumerate(islice(chosen, BRANCHES_MAX + 1)):
        if number == BRANCHES_MAX:
            return None
        if _is_same_filter(ctx, record, prefix, heads):
            continue
        try:
            if _has_path(ctx, ResolvedRef.of_branch(name, record.head), prefix):
                return True
        except (BranchNotFound, Contention):  # it was deleted meanwhile, or is being written to
            continue
    return False


def _has_path(ctx: Context, ref: ResolvedRef, prefix: str) -> bool:
    after = ""
    while True:
        page = read.list_page(ctx, ref, prefix=prefix, after=after, amount=1, delimiter="")
        if page.results or not page.has_more:
            return bool(page.results)
        after = page.next_after


def _is_same_filter(ctx: Context, record: StoredBranch, prefix: str, heads: set[CommitId]) -> bool:
    staging = ctx.staging
    if any(next(staging.scan(token, prefix=prefix, page=1), None) is not None for token in record.live_tokens):
        return False
    if record.head in heads:
        return True
    heads.add(record.head)
    return False
