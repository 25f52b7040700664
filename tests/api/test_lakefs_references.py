"""lakeFS's high-level client: tags, commits, log, diff, merge, and every way to name a commit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import lakefs
import pytest
from lakefs.client import Client
from lakefs.exceptions import BadRequestException, ConflictException, NotFoundException

from tests.api.conftest import upload_all


@pytest.fixture
def history(main: lakefs.Branch) -> list[str]:
    """Five commits on main, c0 to c4, each with an object of its own; their ids."""
    ids: list[str] = []
    for number in range(5):
        main.object(f"{'even' if number % 2 == 0 else 'odd'}/{number}").upload(str(number))
        ids.append(main.commit(f"c{number}", date=1_700_000_000 + number * 60).id)
    return ids


def messages(ref: lakefs.Reference, **options: object) -> list[str]:
    return [commit.message for commit in ref.log(**options)]


def test_a_tag_stays_where_it_was_created(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    tag = repo.tag("v1")
    with pytest.raises(NotFoundException):
        tag.get_commit()
    assert tag.create("main") == tag
    before = tag.get_commit()
    main.commit("later", allow_empty=True)
    assert repo.tag("v1").get_commit() == before
    with pytest.raises(ConflictException):
        tag.create("main")
    assert repo.tag("v1").create("main", exist_ok=True).get_commit() == before
    tag.delete()
    with pytest.raises(NotFoundException):
        tag.get_commit()
    with pytest.raises(NotFoundException):
        tag.delete()


def test_a_tag_of_nothing_is_refused(repo: lakefs.Repository) -> None:
    with pytest.raises(NotFoundException):
        repo.tag("v1").create("no-such-ref")


def test_every_way_to_name_a_commit_leads_to_it(repo: lakefs.Repository, history: list[str]) -> None:
    repo.tag("v1").create(history[2])
    for expression, number in {
        "main": 4, "main@": 4, "main~": 3, "main^": 3, "main~2": 2, "main~1~1": 2, "main^^": 2, "v1": 2, "v1~2": 0,
        history[1]: 1, history[1][:10]: 1, f"{history[4]}~3": 1,
    }.items():  # fmt: skip
        assert repo.ref(expression).get_commit().id == history[number], expression
    assert repo.ref("main~5").get_commit().message == "Repository created"
    for wrong in ("main~9", "nobody", "0123456789abcdef", "v1~7"):
        with pytest.raises(NotFoundException):
            repo.ref(wrong).get_commit()


def test_a_caret_with_a_number_names_that_parent(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    dev = repo.branch("dev").create("main")
    upload_all(dev, ["dev"])
    second = dev.commit("dev").id
    upload_all(main, ["main"])
    first = main.commit("main").id
    merged = dev.merge_into(main)
    assert repo.ref(f"{merged}^1").get_commit().id == first
    assert repo.ref(f"{merged}^2").get_commit().id == second
    assert repo.ref("main^2~1").get_commit().message == "Repository created"
    with pytest.raises(NotFoundException):
        repo.ref("main^3").get_commit()


def test_what_is_committed_and_what_is_staged_are_told_apart(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    main.object("a").upload("committed")
    main.commit("a")
    main.object("a").upload("staged")
    assert repo.ref("main").object("a").reader("r").read() == "staged"
    assert repo.ref("main@").object("a").reader("r").read() == "committed"
    assert repo.commit(main.head.id).object("a").reader("r").read() == "committed"


def test_a_log_pages_and_filters(repo: lakefs.Repository, main: lakefs.Branch, history: list[str]) -> None:
    everything = ["c4", "c3", "c2", "c1", "c0", "Repository created"]
    assert messages(main) == everything
    assert messages(main, amount=2) == everything
    assert messages(main, max_amount=3, amount=2) == everything[:3]
    assert messages(main, limit=True, amount=2) == everything[:2]
    assert messages(main, after=history[3]) == ["c2", "c1", "c0", "Repository created"]
    assert messages(repo.commit(history[1])) == everything[3:]
    assert messages(main, objects=["odd/1", "even/4"]) == ["c4", "c1"]
    assert messages(main, prefixes=["odd/"]) == ["c3", "c1"]
    assert messages(main, objects=["even/0"], prefixes=["odd/"], amount=1) == ["c3", "c1", "c0"]
    assert messages(main, stop_at=history[3]) == ["c4", "c3"]
    assert messages(main, since=datetime.fromtimestamp(1_700_000_000, UTC) + timedelta(minutes=3)) == ["c4", "c3"]


def test_a_log_since_a_time_goes_on_beside_an_older_line(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    """A merge brings in a long line that is older than what the branch did meanwhile."""
    dev = repo.branch("dev").create("main")
    for number in range(3):
        dev.object(f"dev/{number}").upload("x")
        dev.commit(f"old {number}", date=1_600_000_000 + number)
    upload_all(main, ["main"])
    main.commit("new", date=1_700_000_000)
    dev.merge_into(main, message="merged")
    assert messages(main, since=datetime.fromtimestamp(1_650_000_000, UTC)) == ["merged", "new", "Repository created"]
    assert messages(main, since=datetime.fromtimestamp(1_650_000_000, UTC), amount=1) == [
        "merged",
        "new",
        "Repository created",
    ]


def test_a_log_follows_first_parents_when_it_is_told_to(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    dev = repo.branch("dev").create("main")
    upload_all(dev, ["dev"])
    dev.commit("on dev")
    dev.merge_into(main, message="merged")
    assert messages(main) == ["merged", "on dev", "Repository created"]
    assert messages(main, first_parent=True) == ["merged", "Repository created"]


def test_a_diff_has_two_dots_or_three(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    upload_all(main, ["both", "gone"])
    main.commit("base")
    dev = repo.branch("dev").create("main")
    upload_all(dev, ["dir/1", "dir/2", "both"], lambda path: path * 2)
    dev.object("gone").delete()
    dev.commit("dev")
    upload_all(main, ["only main"])
    main.commit("main")
    three = [("changed", "both"), ("added", "dir/1"), ("added", "dir/2"), ("removed", "gone")]
    assert [(item.type, item.path) for item in main.diff(dev)] == three
    assert [(item.type, item.path) for item in main.diff(dev, type="two_dot")] == [*three, ("removed", "only main")]
    assert [(item.type, item.path) for item in main.diff(dev, amount=1)] == three
    assert [item.path for item in main.diff("dev", prefix="dir/", max_amount=1)] == ["dir/1"]
    assert [(item.type, item.path, item.path_type) for item in main.diff(dev, delimiter="/", after="both")] == [
        ("prefix_changed", "dir/", "common_prefix"), ("removed", "gone", "object"),
    ]  # fmt: skip
    assert list(main.diff(main.get_commit().id)) == []


def test_a_merge_has_two_parents_and_what_it_was_given(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    dev = repo.branch("dev").create("main")
    upload_all(dev, ["a"])
    theirs = dev.commit("dev").id
    ours = main.commit("ours", allow_empty=True).id
    merged = dev.merge_into(main, message="together", metadata={"k": "v"})
    commit = repo.commit(merged).get_commit()
    assert (commit.parents, commit.message, commit.metadata["k"]) == ([ours, theirs], "together", "v")
    assert main.head.id == merged
    assert main.object("a").reader("r").read() == "a"


def test_a_merge_of_a_commit_or_a_tag_says_what_it_merged(
    repo: lakefs.Repository, main: lakefs.Branch, history: list[str]
) -> None:
    other = repo.branch("other").create("main~5")
    repo.commit(history[1]).merge_into(other)
    repo.tag("v1").create(history[3])
    repo.tag("v1").merge_into(other.id)
    assert [found.path for found in other.objects()] == ["even/0", "even/2", "odd/1", "odd/3"]
    assert other.get_commit().message == "Merge 'v1' into 'other'"


def test_a_merge_of_nothing_new_is_refused_unless_it_is_meant(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    dev = repo.branch("dev").create("main")
    with pytest.raises(BadRequestException, match=r".+no changes.+"):
        dev.merge_into(main)
    assert repo.commit(dev.merge_into(main, allow_empty=True)).get_commit()


def test_a_squashed_merge_is_one_commit(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    dev = repo.branch("dev").create("main")
    for path in ("a", "b"):
        upload_all(dev, [path])
        dev.commit(path)
    dev.merge_into(main, message="squashed", squash_merge=True)
    assert messages(main) == ["squashed", "Repository created"]
    assert [found.path for found in main.objects()] == ["a", "b"]


@pytest.mark.parametrize(("strategy", "kept"), [("source-wins", "dev"), ("dest-wins", "main")])
def test_a_conflict_is_told_and_decided_by_a_strategy(
    repo: lakefs.Repository, main: lakefs.Branch, strategy: str, kept: str
) -> None:
    dev = repo.branch("dev").create("main")
    for branch in (dev, main):
        branch.object("both").upload(branch.id)
        branch.commit(branch.id)
    with pytest.raises(ConflictException) as refused:
        dev.merge_into(main)
    assert refused.value.body["paths"] == ["both"]
    assert main.object("both").reader("r").read() == "main"
    dev.merge_into(main, strategy=strategy)
    assert main.object("both").reader("r").read() == kept


def test_a_strategy_that_does_not_exist_is_refused(repo: lakefs.Repository, main: lakefs.Branch) -> None:
    with pytest.raises(BadRequestException, match="strategy"):
        repo.branch("dev").create("main").merge_into(main, strategy="ours")


def test_what_leads_nowhere_is_not_found(client: Client, main: lakefs.Branch) -> None:
    nowhere = lakefs.Repository("no-such-repository", client)
    for call in (
        lambda: list(nowhere.ref("main").log()),
        lambda: list(nowhere.branch("main").objects()),
        lambda: list(nowhere.branch("main").uncommitted()),
        lambda: list(nowhere.branches()),
        lambda: list(main.diff("no-such-branch")),
        lambda: main.merge_into("no-such-branch"),
        lambda: nowhere.metadata,
    ):
        with pytest.raises(NotFoundException):
            call()
