"""Reset and deletion of a branch: how long they take must not depend on how much is staged."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench import lakes
from bench.measure import Row, Series, at_most, in_turns, seconds_of
from bench.workshop import Workshop
from refstore.core.ids import BranchName
from refstore.kv.base import ABSENT
from refstore.records import keys
from refstore.repository import Repository

FACTOR = 3
BIG = BranchName("big")
SMALL = BranchName("small")


def run(shop: Workshop) -> Iterator[Row]:
    count = shop.scale.staged
    for name, kv_url in (("Redis", shop.redis().url), ("SQLite", lakes.stores_in(shop.on_disk("branches"))[0])):
        shop.say(f"branches: staging {count:,} objects on {name}")
        with lakes.open_lake(kv_url, f"memory://branches-{name}", lakes.nowhere) as lake:
            repo = lake.create_repository(lakes.REPOSITORY)
            for branch, objects in ((BIG, count), (SMALL, 1)):
                repo.create_branch(branch, source="main")
                lakes.upload(repo, branch, range(objects))
            for what, operation in (("reset", repo.reset), ("delete", repo.delete_branch)):
                big, small = in_turns(
                    shop.scale.steps,
                    lambda _turn, repo=repo, do=operation: undone(repo, BIG, do),
                    lambda _turn, repo=repo, do=operation: undone(repo, SMALL, do),
                )
                yield Row(
                    what=f"{what} of a branch with {count:,} staged objects on {name}",
                    ours=Series(tuple(seconds * 1000 for seconds in big), "ms"),
                    other=Series(tuple(seconds * 1000 for seconds in small), "ms"),
                    other_name="the same with 1",
                    bar=at_most(FACTOR),
                )


def undone(repo: Repository, branch: BranchName, operation: Callable[[str], object]) -> float:
    """Seconds for an operation that retires the branch's token, and then, beside the clock, the branch as it was
    before.

    That saves staging 240,000 objects for every turn: no reaper is near, so the token's entries are where they were.
    """
    kv, repo_id = repo.context.kv, repo.context.repo
    key = keys.branch(repo_id, branch)
    before = kv.get(key)
    assert before is not ABSENT
    token = repo.context.branches.read_open(BranchName(branch)).record.token
    seconds = seconds_of(lambda: operation(branch))
    marker = keys.deleted_token(repo_id, token)
    assert kv.get(marker) is not ABSENT, f"{branch}'s token was not retired"
    kv.delete(marker)
    kv.set(key, before)
    return seconds
