"""A diff of refs with three dots says what merging would do: random histories, against the merge itself and against
plain dictionaries.
"""

from __future__ import annotations

import random

import pytest

from refstore.errors import MergeConflict
from refstore.public_types import Entry
from refstore.records.staging_records import StoredEntry
from refstore.repository import Repository
from tests.api.service import Application

PATHS = [f"{folder}/{number}" for folder in ("a", "b", "c") for number in range(8)]
AMOUNT = 5
"""To a page: several of them."""


def edit(repo: Repository, branch: str, chance: random.Random) -> None:
    """Some paths are written, some go, and some take what another path had at first, which the other branch may come to
    as well.
    """
    for path in chance.sample(PATHS, 12):
        match chance.choice(("write", "delete", "copy")):
            case "write":
                repo.upload(branch, path, f"{branch} {chance.random()}".encode())
            case "delete":
                repo.delete(branch, path)
            case _:
                repo.copy("first", chance.choice(PATHS[:3]), to_branch=branch, to_path=path)
    repo.commit(branch, "edited", allow_empty=True)


def tree(repo: Repository, ref: str) -> dict[str, tuple[object, ...]]:
    return {path: what(entry) for path, entry in repo.list(ref) if entry is not None}


def what(entry: Entry | StoredEntry) -> tuple[object, ...]:
    return entry.address, entry.checksum, entry.content_type


def three_dot(asgi: Application) -> dict[str, str]:
    found: dict[str, str] = {}
    after = ""
    while True:
        page = asgi("GET", "/repositories/trees/refs/main/diff/dev", params={"amount": AMOUNT, "after": after}).json()
        found |= {row["path"]: row["type"] for row in page["results"]}
        assert list(found) == sorted(found)
        if not page["pagination"]["has_more"]:
            return found
        after = page["pagination"]["next_offset"]


@pytest.mark.parametrize("seed", range(12))
def test_it_is_what_the_merge_does_and_where_it_conflicts(asgi: Application, seed: int) -> None:
    chance = random.Random(seed)
    repo = asgi.lake.create_repository("trees")
    for path in PATHS[:16]:
        repo.upload("main", path, path.encode())
    repo.commit("main", "first")
    repo.create_tag("first", ref="main")
    repo.create_branch("dev", source="main")
    edit(repo, "dev", chance)
    if seed % 3:
        edit(repo, "main", chance)

    said = three_dot(asgi)
    base, ours, theirs = (tree(repo, ref) for ref in ("first", "main", "dev"))
    changed = {path for path in PATHS if theirs.get(path) not in (base.get(path), ours.get(path))}
    assert set(said) == changed
    conflicts = {path for path, kind in said.items() if kind == "conflict"}
    assert conflicts == {path for path in changed if ours.get(path) != base.get(path)}
    if conflicts:
        with pytest.raises(MergeConflict) as refused:
            repo.merge("dev", into="main")
        assert set(refused.value.paths) == conflicts
    repo.merge("dev", into="main", strategy="source-wins", allow_empty=True)
    merged = tree(repo, "main")
    assert {path for path in PATHS if merged.get(path) != ours.get(path)} == set(said)
    for path in set(said) - conflicts:
        assert said[path] == ("removed" if path not in merged else "added" if path not in ours else "changed")
