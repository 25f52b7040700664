"""Compute the active commits from git's data, by the rules of docs/retention.md, without refstore's retention code.

- A commit is active if it was a branch's head at any time within that branch's period. It was head until the date of
  the next commit on the branch's line of first parents; of two dates the later one counts. A head is always active.
- If a commit is on several branches, the longest period counts. Second parents are not followed.
- A commit on no branch's line is kept as if a child of its own date were a head under the default period.
- A tag keeps its commit; `keep_last` keeps so many commits of each branch's line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from examples.git_history.plumbing import Git
from examples.git_history.replaying import History, Replayed

FOR_EVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    days: int
    branches: Mapping[str, int] = field(default_factory=dict[str, int])
    """Branch -> its own days."""
    keep_last: int = 0

    def document(self) -> dict[str, object]:
        """The rules as a document for refstore."""
        own = [{"branch_id": branch, "retention_days": days} for branch, days in self.branches.items()]
        return {"default_retention_days": self.days, "branches": own, "keep_last": self.keep_last, "grace_days": 0}

    def days_of(self, branch: str) -> int:
        return self.branches.get(branch, self.days)


def active(git: Git, history: History, done: Replayed, rules: Rules, now: datetime) -> set[str]:
    """Return the commits of refstore that must be complete."""
    until: dict[str, datetime] = {}
    dates = {done.commits[commit]: known.date for commit, known in history.commits.items()}
    dates |= {between: history.commits[commit].date for commit, between in done.between.items()}

    def hold(commit: str, end: datetime) -> None:
        until[commit] = max(until.get(commit, end), end)

    def walk(line: list[str], days: int) -> None:
        for after, before in pairwise(line):
            hold(before, _after(max(dates[after], dates[before]), days))

    on_lines: set[str] = set()
    for branch, head in done.heads.items():
        ids = _replayed(git.first_parents(head), history)
        on_lines.update(ids)
        line = _as_made(ids, done)
        for kept in (line[0], *line[: rules.keep_last]):
            hold(kept, FOR_EVER)
        walk(line, rules.days_of(branch))
    for commit in done.tags.values():
        hold(done.commits[commit], FOR_EVER)
    stood_on = {parent for commit in history.commits if (parent := history.parent(commit)) is not None}
    for commit, known in history.commits.items():
        if commit not in on_lines and commit not in stood_on:
            hold(done.commits[commit], _after(known.date, rules.days))
            walk(_as_made(_replayed(git.first_parents(commit), history), done), rules.days)
    return {commit for commit, end in until.items() if end > now}


def _after(date: datetime, days: int) -> datetime:
    try:
        return date + timedelta(days=days)
    except OverflowError:  # beyond the calendar
        return FOR_EVER


def _replayed(line: Iterable[str], history: History) -> list[str]:
    """Return the replayed part of the line. refstore has neither older commits nor their parents."""
    found: list[str] = []
    for commit in line:
        if commit not in history.commits:
            break
        found.append(commit)
    return found


def _as_made(line: Iterable[str], done: Replayed) -> list[str]:
    """Return the line with refstore's own intermediate merges."""
    return [made for commit in line for made in (done.commits[commit], done.between.get(commit)) if made is not None]
