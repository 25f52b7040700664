"""Random histories of a repository, which goes on while runs read it: what is named is never lost, and what is left
when it rests is what is named.
"""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from tests.prune.lakefs.lakefs_server import DAY, Answer, Lakefs, Repository
from tests.prune.lakefs.test_prune_of_lakefs import NOW, age, data_keys, named_keys, prune

ROUNDS = 5
STEPS = 12
CONSENT = ["fewer-names", "few-found"]  # much is named and removed while a run goes on


def change_something(repository: Repository, rng: random.Random) -> None:
    """Do what a user may do at any time. Commits that have expired are not brought back: that is not safe."""
    branch = rng.choice(sorted(repository.branches))
    path = f"{rng.choice('abc')}/{rng.randrange(6)}"
    match rng.randrange(8):
        case 0 | 1:
            repository.upload(path, branch=branch)
        case 2:
            repository.remove(path, branch=branch)
        case 3 | 4:
            repository.commit(branch)
        case 5:
            repository.create_branch(f"branch{rng.randrange(100)}", branch)
        case 6 if branch != "main":
            if rng.random() < 0.5:
                repository.merge(branch)
            repository.delete_branch(branch)
        case _:
            repository.tags.setdefault(f"tag{rng.randrange(9)}", repository.branches[branch].head)


@pytest.mark.parametrize("seed", range(6))
def test_random_histories(lakefs: Lakefs, sales: Repository, store_url: str, seed: int) -> None:
    rng = random.Random(seed)
    sales.upload("named/always")
    sales.commit()
    if seed % 2:
        sales.set_rules(rng.randrange(3), main=rng.randrange(9))
    sales.page_names = lakefs.page_rows = 3
    is_busy = True

    def go_on(_request: str, answer: Answer) -> Answer:
        if is_busy and rng.random() < 0.5:
            with sales.lock:
                change_something(sales, rng)
        return answer

    lakefs.change = go_on
    for _ in range(ROUNDS):
        for _ in range(STEPS):
            change_something(sales, rng)
        sales.write_object()
        sales.now += rng.randrange(4) * DAY
        age(store_url)
        prune(lakefs, store_url, grace=rng.choice([NOW, timedelta(days=7)]), consent=CONSENT)
        assert named_keys(sales) <= data_keys(store_url)
    is_busy = False
    age(store_url)
    for _ in range(2):
        prune(lakefs, store_url, grace=NOW, consent=CONSENT)
    assert data_keys(store_url) == named_keys(sales)
