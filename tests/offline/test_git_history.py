"""Real git histories, replayed and let expire: what is left is what git's own plumbing says that the active commits
reach.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from examples.git_history import __main__ as command
from examples.git_history import comparing, replaying
from examples.git_history.__main__ import Outcome, prove
from examples.git_history.expected import Rules
from examples.git_history.plumbing import Git
from refstore.configuration.settings import embedded_urls
from refstore.lake import open_lake_at
from refstore_gc import mark
from tests.git import need_clone
from tests.offline.git_repositories import Made, grown
from tests.simulation.mutants import mutants

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = {mutant.name: mutant for mutant in mutants()}


def silent(_what: str, _done: int, _of: int) -> None: ...


def proven(folder: Path, lake: Path, rules: Rules, *, most: int = 500, dangling: bool = True) -> Outcome:
    git = Git(folder)
    kv, objects = embedded_urls(lake)
    lake.mkdir()
    return prove(git, replaying.chosen(git, most=most, dangling=dangling), rules, kv, f"{objects}?fsync=0", silent)


@pytest.fixture
def plain(tmp_path: Path) -> Made:
    """Three commits, of which the first has expired with 5 days."""
    made = Made(tmp_path / "plain")
    made.commit("one", 20, {"a": "a1", "b": "b1"})
    made.commit("two", 10, {"a": "a2"})
    made.commit("three", 1, {"a": "a3"})
    return made


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return grown(tmp_path_factory.mktemp("grown") / "repository")


@pytest.fixture(scope="module")
def outcome(history: Made, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    rules = Rules(days=10, branches={"main": 32, "release/1.0": 36})
    return proven(history.folder, tmp_path_factory.mktemp("grown") / "lake", rules)


class TestAHistoryOfAllKinds:
    def test_what_is_left_is_what_git_says(self, outcome: Outcome) -> None:
        assert outcome.compared.findings == []
        assert outcome.compared.files > 50

    def test_the_active_commits_are_those_that_a_person_would_name(self, history: Made, outcome: Outcome) -> None:
        """Of main: what was head in the last 32 days, and of release/1.0 in the last 36; heads, tags, and what is 10
        days old or less.
        """
        active = {name for name, commit in history.named.items() if outcome.done.commits[commit] in outcome.active}
        assert active == {
            "first",  # v1
            "third",  # head of release/1.0 until 35 days ago
            "merge with conflicts", "back again", "merge without conflicts", "merge that takes nothing", "recent",
            "only a mode", "last",
            "feature two", "side", "unwanted",  # heads
            "never on a branch",  # 3 days old
        }  # fmt: skip

    def test_expired_data_is_gone_and_says_so(self, outcome: Outcome) -> None:
        assert outcome.collected.deleted_count.objects == len(outcome.done.blobs) - outcome.compared.objects
        assert outcome.compared.expired > 0
        assert outcome.compared.refused > 0

    def test_merges_that_a_person_resolved_were_among_them(self, history: Made, outcome: Outcome) -> None:
        assert outcome.done.between.keys() == {
            history.named["merge with conflicts"],
            history.named["merge that takes nothing"],
        }


def test_this_projects_own_history(tmp_path: Path) -> None:
    need_clone()
    outcome = proven(ROOT, tmp_path / "lake", Rules(days=0, keep_last=5), most=40, dangling=False)
    assert outcome.compared.findings == []
    assert len(outcome.history.commits) == 40
    assert (
        outcome.compared.expired == len(outcome.done.made) - 5
    )  # more than 40 were made where a merge had its conflicts resolved
    assert outcome.collected.deleted_count.objects > 0


@pytest.mark.parametrize("kind", ["bare", "shallow", "detached"])
def test_bare_repositories_and_shallow_clones_are_replayed_as_they_are(tmp_path: Path, kind: str) -> None:
    """Before anything expires: every commit's every file is git's."""
    source = grown(tmp_path / "source")
    options = {"bare": ["--bare"], "shallow": ["--depth=4", "--no-single-branch"], "detached": []}[kind]
    source.git("clone", "--quiet", *options, f"file://{source.folder}", str(tmp_path / "clone"))
    if kind == "detached":
        source.git("-C", str(tmp_path / "clone"), "checkout", "--quiet", "--detach")
        source.git("-C", str(tmp_path / "clone"), "branch", "--quiet", "-D", "main")
    git = Git(tmp_path / "clone")
    history = replaying.chosen(git, most=500, dangling=True)
    (tmp_path / "lake").mkdir()
    kv, objects = embedded_urls(tmp_path / "lake")
    with open_lake_at(kv, f"{objects}?fsync=0") as lake:
        done = replaying.replay(lake, "cloned", git, history, silent)
        every = {each.id for each in done.made}
        assert comparing.compare(git, history, done, every, silent).findings == []


class TestTheComparisonCanFail:
    def test_where_the_job_does_not_see_what_an_active_commit_names(self, plain: Made, tmp_path: Path) -> None:
        with MUTANTS["only what heads reach is kept"].planted():
            findings = proven(plain.folder, tmp_path / "lake", Rules(days=5)).compared.findings
        assert any(finding.startswith("lost: data/") for finding in findings)
        assert any(finding.startswith(f"files: {plain.named['two']} 'a'") for finding in findings)

    def test_where_the_job_takes_an_expired_commit_for_active(
        self, plain: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        decide = mark.decide_marks
        monkeypatch.setattr(
            mark, "decide_marks", lambda *args, **kwargs: dataclasses.replace(decide(*args, **kwargs), commits=[])
        )
        (finding,) = proven(plain.folder, tmp_path / "lake", Rules(days=5)).compared.findings
        assert finding.startswith("left over: data/")

    def test_where_a_blob_is_missing_changed_or_too_many(self, plain: Made, tmp_path: Path) -> None:
        git = Git(plain.folder)
        history = replaying.chosen(git, most=500, dangling=True)
        (tmp_path / "lake").mkdir()
        kv, objects = embedded_urls(tmp_path / "lake")
        with open_lake_at(kv, objects) as lake:
            done = replaying.replay(lake, "plain", git, history, silent)
            store = done.repo.context.objects
            every = {each.id for each in done.made}
            lost, changed = done.repo.stat("main~2", "a").address, done.repo.stat("main", "b").address
            store.delete_many([lost])
            store.put(changed, b"b2")
            store.put("data/2026010100/00000000000000000000000000", b"nobody's")
            findings = comparing.compare(git, history, done, every, silent).findings
        assert any(finding.startswith(f"lost: {lost}") for finding in findings)
        assert any(finding.startswith(f"files: {plain.named['one']} 'a'") for finding in findings)
        assert sum("corrupt_object: 'b'" in finding for finding in findings) == 3, "b is in all three"
        assert any(finding.startswith("left over: data/2026010100/") for finding in findings)


class TestTheCommand:
    def test_answers_as_json_and_ends_with_0(self, plain: Made, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main([str(plain.folder), "--days", "5", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["ok"]
        assert shown["swept"] == {"deleted": 1}
        assert (shown["active_commits"], shown["expired_commits"]) == (2, 1)

    def test_says_what_is_wrong_with_what_it_was_given(
        self, plain: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        empty = Made(tmp_path / "empty")
        for arguments, words in (
            ([str(tmp_path)], "give the folder of a git repository"),
            ([str(empty.folder)], "there is no branch with a commit"),
            ([str(plain.folder), "--branch-days", "main"], "write it as main=90"),
        ):
            assert command.main(arguments) == 2
            assert words in capsys.readouterr().err
