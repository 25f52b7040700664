"""Which commits keep what they name: those that lakeFS's rules keep, those that a branch or a tag names, and those that
refstore's rules keep on top of that.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Final

from refstore.core.ids import CommitId
from refstore.errors import Corrupt, Invalid
from refstore.retention.active_commits import ExpiryState, Refs, compute_expiry
from refstore.retention.commit_arrays import CommitHistory, CommitRow, TransactionType
from refstore.retention.rules import Rules, read_rules
from refstore_prune.sources.lakefs.client import CommitRecord, LakefsClient
from refstore_prune.sources.lakefs.committed import RangeRef

_HEADER: Final = ["commit_id", "expired", "metarange_id"]
ID: Final = re.compile("[0-9a-f]{64}")
"""Of a commit, a metarange and a range alike: a SHA-256."""


def parse_commits(body: bytes, place: str) -> dict[str, str]:
    """Return the metarange of each commit that the file of lakeFS keeps. Raises Corrupt."""

    def refuse(reason: str) -> Corrupt:
        return Corrupt(f"{place}, the list of commits that lakeFS wrote, cannot be trusted: {reason}; run again")

    try:
        rows = list(csv.reader(StringIO(body.decode()), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise refuse(str(error)) from None
    if not rows or rows[0] != _HEADER:
        raise refuse(f"it does not begin with {','.join(_HEADER)}")
    if not body.endswith(b"\n"):
        raise refuse("it ends within a line")
    kept: dict[str, str] = {}
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(_HEADER) or not ID.fullmatch(row[0]) or (row[2] and not ID.fullmatch(row[2])):
            raise refuse(f"line {number} is not a commit with its metarange")
        if row[1] not in ("true", "false"):
            raise refuse(f"line {number} says that a commit's expiry is {row[1][:20]!r}")
        if kept.get(row[0], row[2]) != row[2]:
            raise refuse(f"line {number} names a commit again, with another metarange")
        if row[1] == "false":
            kept[row[0]] = row[2]
    if not kept:
        raise refuse("it keeps no commit at all")
    return kept


def read_history(client: LakefsClient, starts: Iterable[str]) -> dict[str, CommitRecord]:
    """Return these commits and all that led to them. Raises Corrupt: some commit is missing."""
    history: dict[str, CommitRecord] = {}
    for start in starts:
        wanted = {start} - history.keys()
        if not wanted:
            continue
        for commit in client.history(start):
            wanted.discard(commit.id)
            if commit.id not in history:
                history[commit.id] = commit
                wanted.update(parent for parent in commit.parents if parent not in history)
            if not wanted:
                break
        if wanted:
            raise Corrupt(f"lakeFS lists what led to commit {start} without commit {min(wanted)}; run again")
    return history


def read_extra_rules(document: bytes | None) -> Rules | None:
    """Raises InvalidRules, Invalid."""
    if document is None:
        return None
    try:
        rules = read_rules(document.decode()).rules
    except UnicodeDecodeError:
        raise Invalid("the retention rules are not UTF-8; save them as UTF-8") from None
    if rules.rules:
        raise Invalid(
            "`rules` for paths let data go that commits name, which is not done to a lakeFS repository; take them "
            "out of the document"
        )
    return rules


def keep_more(
    rules: Rules, history: Mapping[str, CommitRecord], heads: Mapping[str, str], tags: Mapping[str, str], now_ms: int
) -> set[str]:
    """Return the commits that refstore's rules keep."""
    rows = (
        CommitRow(
            CommitId(commit.id),
            [CommitId(parent) for parent in _order_parents(commit)],
            commit.creation_date * 1000,
            True,
            TransactionType.from_metadata(commit.metadata),
        )
        for commit in history.values()
    )
    refs = Refs(_with_ids(heads), _with_ids(tags))
    expiry = compute_expiry(CommitHistory.from_rows(rows), refs, rules, now_ms)
    return set(expiry.commits(ExpiryState.ACTIVE))


def _order_parents(commit: CommitRecord) -> Sequence[str]:
    """Return the parents; the one that the branch was on before is the first. Raises Invalid."""
    if commit.version is None and len(commit.parents) > 1:
        raise Invalid(
            f"this version of lakeFS does not say which parent of merge {commit.id} was on the branch before; leave "
            "the rules of refstore out, or update lakeFS"
        )
    return commit.parents if commit.version else commit.parents[::-1]


def _with_ids(refs: Mapping[str, str]) -> dict[str, CommitId]:
    return {name: CommitId(commit) for name, commit in refs.items()}


def overlaps(ref: RangeRef, prefixes: Sequence[bytes]) -> bool:
    """Return whether a range may have keys that start with one of the prefixes."""
    return any(ref.min_key[: len(each)] <= each <= ref.max_key[: len(each)] for each in prefixes)
