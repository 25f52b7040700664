"""`hide_marked`, and what an unmark says of the rules: through the SDK, the command and HTTP (rules of a day, marks of
the plain job).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from refstore.configuration.settings import embedded_urls
from refstore.core.ids import CommitId
from refstore.errors import Conflict, Gone
from refstore.gc_marks import Marks, OfflineRun
from refstore.lake import Lake, open_lake_at
from refstore.operations import read
from refstore.operations.log_and_diff import CommitLifetime
from refstore.operations.upload import Upload
from refstore.repository import Repository
from tests.api.pages import pages_of
from tests.commands import Command
from tests.kit import collecting
from tests.offline.world import SkippingClock
from tests.reaping import release_all

DAY_MS = 86_400_000


@pytest.fixture
def lake(refstore: Command) -> Iterator[Lake]:
    with open_lake_at(*embedded_urls(refstore.folder / "lake"), clock=SkippingClock()) as opened:
        yield opened


@pytest.fixture
def old(repo: Repository) -> CommitId:
    """A commit whose `a` nothing else names; `b` is on main."""
    repo.upload("main", "a", b"a")
    repo.upload("main", "b", b"b")
    made = repo.commit("main", "old").id
    repo.delete("main", "a")
    repo.commit("main", "new")
    release_all(repo)
    return made


def rules(repo: Repository, **fields: Any) -> None:
    repo.set_retention(json.dumps({"default_retention_days": 0} | fields))


def marked(repo: Repository, *commits: CommitId) -> OfflineRun:
    return collecting.mark(repo.context, commits, grace_ms=7 * DAY_MS)[0]


def reads(repo: Repository, ref: str) -> list[str]:
    """What of a ref is answered, by what is asked."""
    found: list[str] = []
    for name, ask in (
        ("read", lambda: repo.read(ref, "b")),
        ("stat", lambda: repo.stat(ref, "b")),
        ("stat_many", lambda: repo.stat_many(ref, ["b"])),
        ("list", lambda: list(repo.list(ref))),
        ("diff", lambda: list(repo.diff(ref, to="main"))),
        ("diff to it", lambda: list(repo.diff("main", to=ref))),
    ):
        with suppress(Gone):
            ask()
            found.append(name)
    return found


EVERYTHING = ["read", "stat", "stat_many", "list", "diff", "diff to it"]


class TestHiding:
    def test_off_it_reads_until_the_sweep(self, repo: Repository, old: CommitId) -> None:
        rules(repo)
        marked(repo, old)
        assert reads(repo, old) == EVERYTHING

    def test_on_it_hides_from_the_mark_on_and_an_unmark_shows_it_again(self, repo: Repository, old: CommitId) -> None:
        rules(repo, hide_marked=True)
        assert reads(repo, old) == EVERYTHING
        marked(repo, old)
        assert reads(repo, old) == []
        assert reads(repo, "main") == reads(repo, "main@") == EVERYTHING
        rules(repo)
        assert reads(repo, old) == EVERYTHING
        rules(repo, hide_marked=True)
        repo.unmark(old)
        assert reads(repo, old) == EVERYTHING

    def test_a_run_that_has_not_finished_hides_nothing(self, repo: Repository, old: CommitId) -> None:
        rules(repo, hide_marked=True)
        marks = Marks(repo.context)
        run = marks.mark_run.begin("", 7 * DAY_MS, [old], "m-on")
        assert reads(repo, old) == EVERYTHING
        marks.mark_run.wait(run)
        assert list(marks.mark_run.scan_live(run))
        assert reads(repo, old) == EVERYTHING
        marks.mark_run.finish(run, {})
        assert reads(repo, old) == []

    def test_what_turns_out_complete_is_never_hidden(self, repo: Repository, old: CommitId) -> None:
        rules(repo, hide_marked=True)
        repo.copy(old, "a", to_branch="main", to_path="again")
        marked(repo, old)
        assert reads(repo, old) == EVERYTHING
        assert next(line.lifetime for line in repo.history(old)) is CommitLifetime.NOTHING_TO_DELETE

    def test_of_a_part_only_what_has_expired(self, repo: Repository, old: CommitId) -> None:
        rules(repo, hide_marked=True)
        collecting.mark(repo.context, [], grace_ms=DAY_MS, partly=[(old, ("a",))])
        assert reads(repo, old) == EVERYTHING
        for ask in (repo.read, repo.stat):
            with pytest.raises(Gone, match="paths a"):
                ask(old, "a")

    def test_the_command_says_when_the_data_goes(self, repo: Repository, old: CommitId, refstore: Command) -> None:
        rules(repo, hide_marked=True)
        marked(repo, old)
        for words in (("cat", "sales", old, "b"), ("ls", "sales", old), ("diff", "sales", old, "--to", "main")):
            ran = refstore(*words)
            assert ran.code == 4
            assert "will be deleted from" in ran.err
        assert "will be deleted from" in refstore.ok("show", "sales", old).out
        assert refstore.json("show", "sales", "main")["changes"], "its parent is hidden, and nobody asked for that"
        why = refstore.json("why", "sales", f"{old}/b")
        assert (why["state"], why["now"]) == ("hidden", None)
        assert "will be deleted from" in why["meaning"]


class TestSwept:
    """Of a commit that was swept, or of which a part was, only what is there is shown."""

    def sweep(
        self, repo: Repository, *commits: CommitId, partly: Sequence[tuple[CommitId, tuple[str, ...]]] = ()
    ) -> None:
        run, found = collecting.mark(repo.context, commits, partly=partly)
        collecting.sweep(repo.context, run.mark_id, found.data)

    def test_what_is_gone_is_not_listed_and_why_says_so(
        self, repo: Repository, old: CommitId, refstore: Command
    ) -> None:
        self.sweep(repo, old)
        assert [row["path"] for row in refstore.json("ls", "sales", old)] == ["b"]
        assert refstore.ok("cat", "sales", old, "b").out == "b"
        for words in (("cat", "sales", old, "a"), ("stat", "sales", old, "a")):
            ran = refstore(*words)
            assert ran.code == 4
            assert "only a backup has it" in ran.err
        gone, left = (refstore.json("why", "sales", f"{old}/{path}") for path in "ab")
        assert (gone["state"], gone["now"], gone["versions"][0]["state"]) == ("gone", None, "gone")
        assert "only a backup has it" in gone["meaning"]
        assert gone["versions"][0]["commits"]["last"]["state"] == "swept"
        assert left["state"] == "committed"
        assert [change["path"] for change in refstore.json("diff", "sales", "main", "--to", old)] == ["a"], (
            "history stays"
        )

    def test_a_folder_of_which_everything_is_gone_is_not_listed(self, repo: Repository) -> None:
        for path in ("a/1", "a/2", "b/1", "b/2", "c"):
            repo.upload("main", path, path.encode())
        made = repo.commit("main", "folders").id
        repo.delete_many("main", ["a/1", "a/2", "b/1", "c"])
        repo.commit("main", "fewer")
        release_all(repo)
        self.sweep(repo, made)
        assert [item.path for item in repo.list(made, delimiter="/")] == ["b/"]
        assert [item.path for item in repo.list(made, prefix="b/", delimiter="/")] == ["b/2"]

    def test_a_page_ends_where_much_is_gone(
        self, lake: Lake, repo: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(read, "PAGE_SWEPT_MAX", 20)
        names = [f"{number:03d}" for number in range(100)]
        repo.upload_many("main", [Upload(path=name, body=name.encode()) for name in names])
        made = repo.commit("main", "many").id
        repo.delete_many("main", names[:-2])
        repo.commit("main", "few")
        release_all(repo)
        self.sweep(repo, made)
        first = repo.list_page(made)
        assert (first.results, first.has_more) == ((), True)
        assert [item.path for item in repo.list(made)] == names[-2:]
        (shown,) = pages_of(lake, f"/repositories/sales/objects?ref={made}")
        assert ("What was looked at so far is deleted." in shown, "Next page" in shown) == (True, True)

    @pytest.mark.parametrize("whole", [False, True])
    def test_its_state_has_one_name(
        self, lake: Lake, repo: Repository, old: CommitId, refstore: Command, whole: bool
    ) -> None:
        def states() -> set[str]:
            logged = next(row for row in refstore.json("log", "sales", "main") if row["commit"] == old)
            table = next(line for line in refstore.ok("log", "sales", "main").out.splitlines() if old[:12] in line)
            shown = refstore.json("show", "sales", old)["state"]
            words = refstore.ok("show", "sales", old).out
            assert logged["state"] in table
            assert logged["state"] in words
            assert ("A part of its data is gone" in words) == (logged["swept"] is not None)
            return {logged["state"], shown}

        part = () if whole else [(old, ("a",))]
        run, found = collecting.mark(repo.context, [old] if whole else [], partly=part)
        assert states() == {"marked" if whole else "partly marked"}
        collecting.sweep(repo.context, run.mark_id, found.data)
        assert states() == {"swept" if whole else "partly swept"}
        assert [row["path"] for row in refstore.json("ls", "sales", old)] == ["b"]
        page, listed, gone = pages_of(
            lake,
            f"/repositories/sales/commits/{old}",
            f"/repositories/sales/objects?ref={old}",
            f"/repositories/sales/object?ref={old}&path=a",
        )
        assert f"{'swept' if whole else 'partly swept'}: data has been deleted" in page
        assert ("marks/" + old not in page, " a " in listed) == (True, False)
        assert "It is gone" in gone
        if not whole:
            repo.delete("main", "b")
            repo.commit("main", "neither")
            release_all(repo)
            marked(repo, old)
            line = next(iter(repo.history(old)))
            assert line.lifetime is CommitLifetime.PARTLY_SWEPT_MARKED
            assert [row["path"] for row in refstore.json("ls", "sales", old)] == ["b"]
            repo.unmark(old)
            assert states() == {"partly swept"}


class TestUnmark:
    def test_a_commit_that_the_rules_call_expired_is_told(
        self, repo: Repository, old: CommitId, refstore: Command
    ) -> None:
        rules(repo)
        marked(repo, old)
        before = refstore.ok("gc", "unmark", "sales", old, "--dry-run")
        assert "the rules call 1 of 1 commits expired" in before.err
        assert f"refstore gc unmark sales {old} --pin" in before.err
        assert repo.unmark(old, dry_run=True).expired_commits == [old]
        with pytest.raises(Gone):
            repo.copy(old, "a", to_branch="main", to_path="z")
        ran = refstore.ok("gc", "unmark", "sales", old)
        assert "next run marks what they call so; amend them" in ran.err
        assert "retention explain sales" in ran.err
        marked(repo, old)
        rules(repo, default_retention_days=30)
        assert refstore.json("gc", "unmark", "sales", old) == {
            "repository": "sales",
            "unmarked": 1,
            "still_expired": 0,
            "pinned": 0,
        }

    def test_a_pin_keeps_the_rules_from_it(self, repo: Repository, old: CommitId, refstore: Command) -> None:
        rules(repo, keep_last=1, grace_days=3)
        run = marked(repo, old)
        ran = refstore.ok("gc", "unmark", "sales", run.mark_id, "--pin")
        assert ran.err == ""
        kept = repo.retention()
        assert kept is not None
        assert (kept.rules.pins.commits, kept.rules.keep_last, kept.rules.grace_days) == ((old,), 1, 3)
        assert repo.unmark(old, dry_run=True).expired_commits == []
        assert repo.read(old, "a") == b"a"

    def test_nothing_is_pinned_where_nothing_can_be_unmarked(self, repo: Repository, old: CommitId) -> None:
        rules(repo)
        with pytest.raises(Conflict, match="not marked"):
            repo.unmark(old, pin=True)
        run, found = collecting.mark(repo.context, [old])
        collecting.sweep(repo.context, run.mark_id, found.data)
        for which in (old, run.mark_id):
            with pytest.raises(Gone):
                repo.unmark(which, pin=True)
        kept = repo.retention()
        assert kept is not None
        assert kept.rules.pins.commits == ()
