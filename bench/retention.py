"""Which commits are active: a million of them, with branches, merges and deleted branches, from plain rows and read
from SQLite.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from bench import lakes
from bench.measure import Row, Series, at_most, in_fresh_process
from bench.workshop import Workshop, make_lake
from refstore.core.ids import CommitId
from refstore.kv.base import Key
from refstore.records import keys
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import encode
from refstore.retention.active_commits import ExpiryState, Refs, compute_expiry
from refstore.retention.commit_arrays import CommitHistory, CommitRow
from refstore.retention.rules import BranchRule, Rules

SECONDS = 30.0
MIB = 2048.0
PAGE = 1000
BRANCHES = 1000
MINUTE_MS = 60_000
RULES = Rules(
    default_retention_days=21, branches=(BranchRule("branch-1*", 28), BranchRule("branch-7", 365)), keep_last=3
)


def run(shop: Workshop) -> Iterator[Row]:
    count = shop.scale.history
    shop.say(f"retention: {count:,} commits")
    plain = [in_fresh_process("retain", commits=count) for _ in range(shop.scale.long_turns)]
    yield from _rows(f"which of {count:,} commits are active, from rows in memory", plain)
    shop.say(f"retention: writing {count:,} commits to SQLite")
    folder = shop.in_memory("retention")
    make_lake(folder)
    fill(folder, count)
    shop.say(f"retention: reading {count:,} commits")
    read = [in_fresh_process("retain_from", data=str(folder), commits=count) for _ in range(shop.scale.long_turns)]
    yield from _rows(f"the same, with the commits read from SQLite on tmpfs, {count:,}", read)
    shop.drop(folder)


def _rows(what: str, measured: list[dict[str, float]]) -> Iterator[Row]:
    note = f"{measured[0]['active']:,} active, {measured[0]['expired']:,} expired"
    yield Row(what=what, ours=Series(tuple(each["seconds"] for each in measured), "s"), bar=at_most(SECONDS), note=note)
    peak = max(each["peak_mib"] for each in measured)
    yield Row(what=f"{what}: peak memory", ours=Series((peak,), "MiB"), bar=at_most(MIB))


def history(count: int) -> tuple[list[CommitRow], Refs]:
    """A history in which every commit but few stands on a recent one, a tenth are merges, and most lines have lost
    their branch.
    """
    rng = random.Random(1)
    ids = [CommitId(sha256(str(number).encode()).hexdigest()) for number in range(count)]
    rows = [CommitRow(ids[0], (), 0)]
    for number in range(1, count):
        parents = [ids[max(0, number - rng.choice((1, 1, 1, 2, 3, 50)))]]
        if rng.random() < 0.1:
            parents.append(ids[rng.randrange(number)])
        rows.append(CommitRow(ids[number], parents, number * MINUTE_MS))
    rng.shuffle(rows)
    tail = ids[-count // 10 :]
    heads = {f"branch-{at}": rng.choice(tail) for at in range(min(BRANCHES, count))}
    return rows, Refs(heads, {f"v{at}": rng.choice(ids) for at in range(100)})


def active_of(read: CommitHistory, refs: Refs, commits: int) -> dict[str, int]:
    """Seen at the time of the last commit."""
    states = compute_expiry(read, refs, RULES, commits * MINUTE_MS).states()
    return {"active": states.count(ExpiryState.ACTIVE), "expired": states.count(ExpiryState.EXPIRED)}


def fill(folder: Path, count: int) -> None:
    """The same history as records of the lake in a folder, with its branches and without its tags."""
    kv_url, objects_url = lakes.stores_in(folder)
    rows, refs = history(count)
    with lakes.open_lake(f"{kv_url}?fsync=0", objects_url) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        kv, repo_id = lake.kv, repo.context.repo
        for start in range(0, count, PAGE):
            pairs: list[tuple[Key, bytes]] = []
            for row in rows[start : start + PAGE]:
                record = StoredCommit(
                    tuple(row.parents),
                    "m" * 64,
                    "a" * 64,
                    (),
                    row.created_ms,
                    "somebody",
                    "a message of usual length, say",
                )
                pairs += [(keys.commit(repo_id, row.id), encode(record)), (keys.landed_mark(repo_id, row.id), b"")]
            kv.set_many(pairs)
        for branch, head in refs.heads.items():
            repo.create_branch(branch, source=head)
