"""A transaction against the same by hand: what its lease costs."""

from __future__ import annotations

from collections.abc import Iterator

from bench import lakes
from bench.measure import Row, Series, at_most, in_turns, seconds_of
from bench.workshop import Workshop, make_lake
from refstore.repository import Repository

FACTOR = 1.1
UPLOADS = 100


def run(shop: Workshop) -> Iterator[Row]:
    folder = shop.in_memory("transactions")
    make_lake(folder)
    shop.say(f"transactions: {UPLOADS} uploads each")
    with lakes.open_lake(*lakes.stores_in(folder)) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        ours, other = in_turns(
            shop.scale.steps,
            lambda turn: seconds_of(lambda: _transaction(repo, turn)),
            lambda turn: seconds_of(lambda: _by_hand(repo, turn)),
        )
        yield Row(
            what=f"transaction of {UPLOADS} uploads, SQLite and a folder",
            ours=Series(ours, "s"),
            other=Series(other, "s"),
            other_name="a branch, uploads, commit, squashed merge and deletion by hand",
            bar=at_most(FACTOR),
        )
    shop.drop(folder)


def _transaction(repo: Repository, turn: int) -> None:
    with repo.transaction("main", "load") as tx:
        for number in range(UPLOADS):
            tx.upload(f"{turn}/transaction/{number}", b"x")


def _by_hand(repo: Repository, turn: int) -> None:
    name = f"load-{turn}"
    repo.create_branch(name, source="main")
    for number in range(UPLOADS):
        repo.upload(name, f"{turn}/by-hand/{number}", b"x")
    repo.commit(name, "load")
    repo.merge(name, into="main", message="load", squash=True)
    repo.delete_branch(name)
