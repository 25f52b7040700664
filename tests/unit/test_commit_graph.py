"""The commit graph, against plain sets."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore.core.ids import CommitId
from refstore.errors import CommitNotFound, CorruptRecord
from refstore.records.commit_records import StoredCommit
from refstore.versioning.commits import graph


class Graph:
    """Commits by name; counts what is asked for."""

    def __init__(self) -> None:
        self.commits: dict[CommitId, StoredCommit] = {}
        self.asked: list[CommitId] = []

    def add(self, message: str, *parents: CommitId, at_ms: int = 0) -> CommitId:
        generation = graph.next_generation(self.commits[parent] for parent in parents)
        commit = StoredCommit(tuple(parents), "", "", (), at_ms, "", message, {}, generation)
        self.commits[graph.commit_id(commit)] = commit
        return graph.commit_id(commit)

    def get(self, commit: CommitId) -> StoredCommit:
        self.asked.append(commit)
        if commit not in self.commits:
            raise CommitNotFound(f"commit {commit} does not exist")
        return self.commits[commit]

    def ancestors(self, commit: CommitId) -> set[CommitId]:
        found, waiting = {commit}, [commit]
        while waiting:
            for parent in self.commits[waiting.pop()].parents:
                if parent not in found:
                    found.add(parent)
                    waiting.append(parent)
        return found


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, list[CommitId]]:
    """Any acyclic graph of up to a dozen commits, with several roots, criss-crosses and dates in any order."""
    built, ids = Graph(), list[CommitId]()
    for number in range(draw(st.integers(1, 12))):
        parents = draw(st.lists(st.sampled_from(ids), unique=True, max_size=3)) if ids else []
        ids.append(built.add(str(number), *parents, at_ms=draw(st.integers(0, 3))))
    return built, ids


@settings(deadline=None)
@given(graphs(), st.data())
def test_log_gives_every_ancestor_once_and_none_before_its_descendants(
    drawn: tuple[Graph, list[CommitId]], data: st.DataObject
) -> None:
    built, ids = drawn
    head = data.draw(st.sampled_from(ids))
    seen = [found for found, _ in graph.log(built.get, head)]
    assert len(seen) == len(set(seen))
    assert set(seen) == built.ancestors(head)
    place = {found: at for at, found in enumerate(seen)}
    assert all(place[parent] > place[child] for child in seen for parent in built.commits[child].parents)
    assert all(commit == built.commits[found] for found, commit in graph.log(built.get, head))
    assert len(built.asked) == 2 * len(seen)


@settings(deadline=None)
@given(graphs(), st.data())
def test_the_line_of_first_parents(drawn: tuple[Graph, list[CommitId]], data: st.DataObject) -> None:
    built, ids = drawn
    head = data.draw(st.sampled_from(ids))
    line = [head]
    while parents := built.commits[line[-1]].parents:
        line.append(parents[0])
    assert [found for found, _ in graph.log(built.get, head, first_parent=True)] == line


@settings(deadline=None)
@given(graphs(), st.data())
def test_merge_base_is_a_best_common_ancestor_whichever_side_is_which(
    drawn: tuple[Graph, list[CommitId]], data: st.DataObject
) -> None:
    built, ids = drawn
    left, right = data.draw(st.sampled_from(ids)), data.draw(st.sampled_from(ids))
    common = built.ancestors(left) & built.ancestors(right)
    best = {each for each in common if not any(each in built.ancestors(other) for other in common - {each})}
    found = graph.merge_base(built.get, left, right)
    assert found == graph.merge_base(built.get, right, left)
    assert (found in best) if best else found is None


def test_after_a_criss_cross_the_newest_best_ancestor_is_taken() -> None:
    built = Graph()
    root = built.add("root")
    one, two = built.add("one", root, at_ms=1), built.add("two", root, at_ms=2)
    left, right = built.add("left", one, two), built.add("right", two, one)
    assert graph.merge_base(built.get, left, right) == two


def test_a_log_reads_no_further_than_it_is_asked_for() -> None:
    built = Graph()
    head = built.add("0")
    for number in range(1, 1000):
        head = built.add(str(number), head)
    log = graph.log(built.get, head)
    assert [next(log)[1].message for _ in range(3)] == ["999", "998", "997"]
    assert len(built.asked) <= 4


def test_an_id_is_of_the_content() -> None:
    commit = StoredCommit((), "m", "", (), 1, "me", "message", {"b": "1", "a": "2"})
    assert graph.commit_id(commit) == graph.commit_id(msgspec.structs.replace(commit, metadata={"a": "2", "b": "1"}))
    assert len(graph.commit_id(commit)) == 64
    for change in (
        {"metarange": "n"},
        {"message": ""},
        {"created_ms": 2},
        {"generation": 1},
        {"added_addresses_id": "x"},
        {"metadata": {}},
    ):
        assert graph.commit_id(msgspec.structs.replace(commit, **change)) != graph.commit_id(commit)


def test_a_missing_parent_is_not_found() -> None:
    built = Graph()
    lost = CommitId("0" * 64)
    child = StoredCommit((lost,), "", "", (), 0, "", "child", {}, 1)
    built.commits[graph.commit_id(child)] = child
    head = graph.commit_id(child)
    for walk in (
        lambda: list(graph.log(built.get, head)),
        lambda: graph.merge_base(built.get, head, built.add("root")),
    ):
        with pytest.raises(CommitNotFound):
            walk()


def test_a_cycle_ends_in_an_error() -> None:
    """It cannot be made, an id being the hash of what it names; but a store can be tampered with."""
    built = Graph()
    one, two = CommitId("1" * 64), CommitId("2" * 64)
    built.commits[one] = StoredCommit((two,), "", "", (), 0, "", "one", {}, 5)
    built.commits[two] = StoredCommit((one,), "", "", (), 0, "", "two", {}, 4)
    for walk in (
        lambda: list(graph.log(built.get, one)),
        lambda: graph.merge_base(built.get, one, built.add("root")),
    ):
        with pytest.raises(CorruptRecord, match="generation"):
            walk()


def test_generations() -> None:
    built = Graph()
    root = built.add("root")
    child = built.add("child", root)
    assert [built.commits[each].generation for each in (root, child, built.add("merge", root, child))] == [0, 1, 2]
