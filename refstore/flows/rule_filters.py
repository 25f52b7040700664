"""What the filters of a rules document are about, in this repository: a path on all branches, or, as lakeFS writes it, `branch/path`.

`main/logs/` can be either. It is `logs/` on main if there is a branch main and no branch shows anything at the path `main/logs/`; where
both are there it is refused, and the document has to say which is meant (`{"branch": "main", "prefix": "logs/"}`, or `"branch": "*"`).
The answer is kept with the document. What a rule takes then stays the same, whichever branches and paths there are later.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

import msgspec

from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import BranchNotFound, Contention
from refstore.flows import reading
from refstore.flows.refs import Ref
from refstore.ids import CommitId
from refstore.records import Branch
from refstore.retention.rules import Filter, Parsed, Rules
from refstore.staging import Staging

BRANCHES_MAX: Final = 1000
"""That are looked at for one prefix. What only others show is not known."""


def read_filters(ctx: Context, parsed: Parsed) -> Parsed:
    """The document with its `branch/path` prefixes taken apart. Raises InvalidRules for one that can be read in two ways."""
    names = {name for name, _ in Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).scan_open()}
    read_as: dict[str, str] = {}
    for index, rule in enumerate(parsed.rules.rules):
        prefix, place = rule.filter.prefix, ("rules", index, "filter", "prefix")
        candidates = [prefix[:at] for at, character in enumerate(prefix) if character == "/" and prefix[:at] in names]
        if rule.filter.branch or not candidates:
            continue
        as_branch = [f'{{"branch": "{name}", "prefix": "{prefix[len(name) + 1 :]}"}}' for name in candidates]
        if len(candidates) > 1 or shows(ctx, prefix) is not False:
            as_path = f'{{"branch": "*", "prefix": "{prefix}"}}'
            raise parsed.located.error(
                place, f"prefix {prefix!r} begins with the name of a branch, and may be a path; write {' or '.join([*as_branch, as_path])}"
            )
        read_as[prefix] = candidates[0]
    rules = bind(parsed.rules, read_as)
    seen: set[tuple[str, str]] = set()
    for index, rule in enumerate(rules.rules):
        own = (rule.filter.prefix, rule.filter.own_branch)
        if rule.status == "enabled":
            if own in seen:
                raise parsed.located.error(("rules", index), f"a second enabled rule for prefix {own[0]!r} on branch {own[1]!r}; keep one")
            seen.add(own)
    return parsed._replace(rules=rules, read_as=read_as)


def bind(rules: Rules, read_as: Mapping[str, str]) -> Rules:
    """`rules` with those prefixes taken as `branch/path` that were when the document was set."""
    bound = tuple(
        msgspec.structs.replace(rule, filter=Filter(rule.filter.prefix[len(branch) + 1 :], branch))
        if not rule.filter.branch and (branch := read_as.get(rule.filter.prefix)) is not None
        else rule
        for rule in rules.rules
    )
    return msgspec.structs.replace(rules, rules=bound)


def shows(ctx: Context, prefix: str, branch: str = "") -> bool | None:
    """Whether a branch (that one, or any) shows something at paths that start with `prefix`; None: not all of them were looked at.

    Branches with one head and nothing staged show the same, and are looked at once.
    """
    seen: set[CommitId] = set()
    every = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).scan_open()
    wanted = ((name, record) for name, record in every if branch in ("", name))
    for number, (name, record) in enumerate(islice(wanted, BRANCHES_MAX + 1)):
        if number == BRANCHES_MAX:
            return None
        if _same_as_seen(ctx, record, prefix, seen):
            continue
        try:
            page = reading.list_page(ctx, Ref(name, name, record.head, from_history=False), prefix=prefix, after="", amount=1, delimiter="")
        except (BranchNotFound, Contention):  # it was deleted meanwhile, or is being written to
            continue
        if page.results:
            return True
    return False


def _same_as_seen(ctx: Context, record: Branch, prefix: str, seen: set[CommitId]) -> bool:
    staging = Staging(ctx.kv, ctx.repo)
    if any(next(staging.scan(token, prefix=prefix, page=1), None) is not None for token in record.live):
        return False
    if record.head in seen:
        return True
    seen.add(record.head)
    return False
