"""A commit of few changes on a large branch, against the first commit of all of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from bench import lakes
from bench.measure import Row, Series, at_most, seconds_of
from bench.workshop import Workshop, make_lake
from refstore.repository import Repository

FACTOR = 0.05
CHANGES = 100


def run(shop: Workshop) -> Iterator[Row]:
    count = shop.scale.committed
    folder = shop.in_memory("commits")
    make_lake(folder)
    kv_url, objects_url = lakes.stores_in(folder)
    shop.say(f"commits: staging {count:,} objects")
    with lakes.open_lake(kv_url, objects_url, lakes.nowhere) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        lakes.upload(repo, "main", range(count))
        shop.say(f"commits: committing {count:,} objects")
        first = seconds_of(lambda: repo.commit("main", "everything"))
        rng = random.Random(1)
        for what, choose in (
            ("in one directory", lambda: in_one_directory(rng, count)),
            ("evenly at random", lambda: rng.sample(range(count), CHANGES)),
        ):
            shop.say(f"commits: {CHANGES} changes {what}")
            small = [_change(repo, choose) for _ in range(shop.scale.turns)]
            yield Row(
                what=f"commit of {CHANGES} changes {what} on a branch of {count:,}",
                ours=Series(tuple(small), "s"),
                other=Series((first,), "s"),
                other_name="the first commit of them all",
                bar=at_most(FACTOR),
            )
    shop.drop(folder)


def _change(repo: Repository, choose: Callable[[], Sequence[int]]) -> float:
    """Objects of the branch uploaded anew, then committed: the commit's seconds."""
    lakes.upload(repo, "main", choose())
    return seconds_of(lambda: repo.commit("main", "a few"))


def in_one_directory(rng: random.Random, count: int) -> range:
    directory = rng.randrange(count // lakes.DIRECTORY_ENTRIES) * lakes.DIRECTORY_ENTRIES
    return range(directory, directory + CHANGES)
