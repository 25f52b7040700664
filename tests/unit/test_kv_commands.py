"""`refstore kv`: a SQLite file is put back to an older copy, or lost; the commands bring back what was committed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from refstore.context import Context
from refstore.core.ids import CommitId, TagName
from refstore.kv_recovery.fence import RECONCILE_WITNESS, WITNESSES_FOLDER
from refstore.records import keys
from refstore.records.branch_records import StoredTag
from refstore.records.encoding import encode
from refstore.versioning.manifest import CONFIRMED_FOLDER, WAITING_FOLDER
from tests.commands import Command
from tests.unit.losing_lake import Losing, make_losing_lake


@pytest.fixture
def losing(refstore: Command, monkeypatch: pytest.MonkeyPatch) -> Losing:
    return make_losing_lake(refstore, monkeypatch)


def found_of(run: Command, kind: str) -> list[dict[str, str]]:
    return [item for item in run("kv", "verify", "--json").json["findings"] if item["kind"] == kind]


def test_a_whole_kv_misses_nothing(losing: Losing) -> None:
    losing.commit("main", "a")
    losing.run.ok("reaper", "--once")
    ran = losing.run.ok("kv", "verify")
    assert "Nothing is missing." in ran.out
    assert "nothing to reconcile" in losing.run.ok("kv", "reconcile", "--clients-stopped").out
    assert not losing.run.json("kv", "verify")["has_losses"]


@pytest.mark.parametrize("reaped", [False, True], ids=["unwitnessed", "witnessed"])
def test_what_was_lost_is_put_back_and_deletion_goes_on(losing: Losing, reaped: bool) -> None:
    """The issue: reset, copy the KV, restore and commit, put the copy back, reap."""
    run = losing.run
    first = losing.commit("main", "a")
    run.ok("reaper", "--once")
    run.ok("upload", "sales", "main", "-", "b", stdin=b"b")
    run.ok("reset", "sales", "main", "--yes")
    losing.copy()

    run.ok("restore", "sales", "b", "--to", "main")
    restored = run.json("commit", "sales", "main", "-m", "restored")["commit"]
    second = losing.commit("main", "c")
    run.ok("tag", "create", "sales", "v1", "--from", "main")
    run.ok("branch", "create", "sales", "dev", "--from", "main")
    third = losing.commit("dev", "d", b"d")
    before = losing.contents()
    if reaped:
        run.ok("reaper", "--once")
    losing.put_back()
    blobs = losing.blobs()

    assert run("reaper", "--once").code in (5, 6)
    assert losing.blobs() == blobs
    ran = run("kv", "verify")
    assert ran.code == 6
    for name in (restored[:12], second[:12], third[:12], "tag 'v1'", "branch 'dev'"):
        assert name in ran.out
    assert ("lost position: " in ran.out) == reaped
    assert bool(found_of(run, "lost position")) == reaped
    assert losing.head("main") == first

    planned = run.json("kv", "reconcile", "--dry-run")
    assert losing.head("main") == first
    done = run.json("kv", "reconcile")  # it waits for operations that began before
    assert done["restored_records"] == planned["restored_records"]
    assert done["not_restored"] is None
    assert done["settled"]["settled"] == 1
    assert {(item["kind"], item["name"], item["outcome"]) for item in done["restored_records"]} == {
        *(("commit", commit, "put back") for commit in (restored, second, third)),
        ("branch", "main", "moved on"),
        ("branch", "dev", "put back"),
        ("tag", "v1", "put back"),
    }
    assert losing.contents() == before
    assert run("reaper", "--once", "--scrub").code == 0
    for ref, path, body in (("main", "b", b"b"), ("dev", "d", b"d"), ("v1", "c", b"x")):
        assert run.ok("cat", "sales", ref, path).out_bytes == body
    assert run.ok("kv", "verify")
    assert "nothing to reconcile" in run.ok("kv", "reconcile", "--clients-stopped").out
    for action in ("kv.reconcile", "kv.settle"):
        assert [row["outcome"] for row in run.json("audit", "log", "--action", action)] == ["done", "begun"]


def test_a_branch_that_has_moved_elsewhere_stays(losing: Losing) -> None:
    run = losing.run
    losing.commit("main", "a")
    losing.copy()
    lost = losing.commit("main", "b", b"lost")
    run.ok("tag", "create", "sales", "v1", "--from", lost)
    losing.put_back()
    kept = losing.commit("main", "b", b"kept")
    run.ok("tag", "create", "sales", "v1", "--from", kept)
    run.ok("kv", "reconcile", "--clients-stopped")
    assert losing.head("main") == kept
    assert losing.head(f"lost/main-{lost[:12]}") == lost
    assert run.ok("cat", "sales", "main", "b").out_bytes == b"kept"
    assert run.ok("cat", "sales", f"lost/main-{lost[:12]}", "b").out_bytes == b"lost"
    assert run.ok("cat", "sales", f"lost/v1-{lost[:12]}", "b").out_bytes == b"lost"
    assert run("reaper", "--once").code == 0
    assert run("kv", "verify").code == 0
    before = losing.contents()
    losing.lose()
    run.ok("kv", "rebuild", "--yes")
    assert losing.contents() == before


def test_a_name_of_the_other_kind_stays(losing: Losing) -> None:
    """A tag or a branch that was lost does not come back beside a branch or a tag that has its name by now."""
    run = losing.run
    losing.commit("main", "a")
    losing.copy()
    run.ok("branch", "create", "sales", "one", "--from", "main")
    lost = losing.commit("one", "b", b"lost")
    run.ok("tag", "create", "sales", "two", "--from", lost)
    losing.put_back()
    kept = losing.commit("main", "b", b"kept")
    run.ok("tag", "create", "sales", "one", "--from", kept)
    run.ok("branch", "create", "sales", "two", "--from", "main")
    planned = run.json("kv", "reconcile", "--dry-run")
    assert {(row["kind"], row["name"]): row["outcome"] for row in planned["restored_records"]} == {
        ("commit", lost): "put back",
        ("branch", "one"): f"put back as lost/one-{lost[:12]}",
        ("tag", "two"): f"put back as lost/two-{lost[:12]}",
    }
    run.ok("kv", "reconcile", "--clients-stopped")
    assert [run.ok("cat", "sales", ref, "b").out for ref in ("one", "two")] == ["kept", "kept"]
    assert [run.ok("cat", "sales", f"lost/{ref}-{lost[:12]}", "b").out for ref in ("one", "two")] == ["lost", "lost"]
    assert run("reaper", "--once").code == 0
    before = losing.contents()
    losing.lose()
    run.ok("kv", "rebuild", "--yes")
    assert losing.contents() == before


def test_a_tag_beside_a_branch_of_its_name_is_rebuilt_under_another(losing: Losing) -> None:
    head = losing.commit("main", "a")
    with losing.lake() as lake:
        ctx = lake.repository("sales").context
        key, tag = keys.tag(ctx.repo, TagName("main")), encode(StoredTag(CommitId(head), 1))
        ctx.kv.set(key, tag)
        ctx.manifest.add_record(key, tag, "planted")
    losing.lose()
    losing.run.ok("kv", "rebuild", "--yes")
    assert losing.head("main") == head
    assert [(row["tag"], row["commit"]) for row in losing.run.json("tag", "list", "sales")] == [
        (f"lost/main-{head[:12]}", head)
    ]


def test_what_was_deleted_stays_deleted_or_counts_as_new(losing: Losing) -> None:
    run = losing.run
    run.ok("branch", "create", "sales", "old", "--from", "main")
    run.ok("tag", "create", "sales", "t", "--from", "main")
    losing.copy()
    run.ok("branch", "create", "sales", "short", "--from", "main")
    gone = losing.commit("short", "a")
    for words in (("branch", "delete", "sales", "short"), ("branch", "delete", "sales", "old")):
        run.ok(*words, "--yes")
    run.ok("tag", "delete", "sales", "t", "--yes")
    run.ok("reaper", "--once")
    losing.put_back()
    (gap,) = found_of(run, "not in the manifest")
    assert gap["name"] == (
        "0 commits, 0 branches, 0 tags, deleted branch 'old', which is there, deleted tag 't', which is there"
    )
    run.ok("kv", "reconcile", "--clients-stopped")
    assert run.ok("cat", "sales", gone, "a").out == "x"
    assert {row["branch"] for row in run.json("branch", "list", "sales")} == {"main", "old"}
    assert run("reaper", "--once").code == 0
    assert not found_of(run, "not in the manifest")
    before = losing.contents()
    losing.lose()
    run.ok("kv", "rebuild", "--yes")
    assert losing.contents() == before


def test_missing_objects_are_named_and_given_up_on_request(losing: Losing) -> None:
    run = losing.run
    run.ok("upload", "sales", "main", "-", "a", stdin=b"a")
    losing.copy()
    run.ok("rm", "sales", "main", "a", "--yes")
    run.ok("reaper", "--once")
    run.ok("reaper", "--once")
    assert not losing.blobs()
    losing.put_back()
    ran = run("kv", "verify")
    assert ran.code == 6
    assert "missing object: sales: branch main, 'a'" in ran.out
    ran = run("kv", "reconcile", "--clients-stopped")
    assert ran.code == 6
    assert "missing object: sales: branch main, 'a'" in ran.out
    assert "--accept" in ran.err
    assert run("reaper", "--once").code == 6
    assert run("kv", "reconcile", "--clients-stopped", "--accept").code == 2, "without a terminal it needs --yes"
    run.ok("kv", "reconcile", "--clients-stopped", "--accept", "--yes")
    assert run("reaper", "--once").code == 0


def test_a_witness_that_cannot_be_read_is_given_up(losing: Losing) -> None:
    run = losing.run
    run.ok("reaper", "--once")
    (losing.root / "objects" / WITNESSES_FOLDER / "broken.json").write_bytes(b"{")
    assert run("reaper", "--once").code == 6
    assert "unreadable witness" in run("kv", "verify").out
    assert run("kv", "reconcile", "--clients-stopped").code == 6
    run.ok("kv", "reconcile", "--clients-stopped", "--accept", "--yes")
    assert run("reaper", "--once").code == 0


def test_a_lost_repository_is_put_back(losing: Losing) -> None:
    run = losing.run
    losing.copy()
    run.ok("repo", "create", "other")
    run.ok("upload", "other", "main", "-", "a", stdin=b"a")
    run.ok("commit", "other", "main", "-m", "one")
    before = losing.contents()
    losing.put_back()
    assert "repository 'other'" in run("kv", "verify").out
    run.ok("kv", "reconcile", "--clients-stopped")
    assert losing.contents() == before
    assert run.ok("cat", "other", "main", "a").out == "a"
    assert run("reaper", "--once").code == 0


@pytest.mark.parametrize("written_since", [False, True])
def test_what_was_linked_is_staged_again_where_links_are_witnessed(
    losing: Losing, monkeypatch: pytest.MonkeyPatch, written_since: bool
) -> None:
    monkeypatch.setenv("REFSTORE_SAFETY_WITNESS", "always")
    run = losing.run
    losing.commit("main", "first")
    run.ok("reaper", "--once")
    losing.copy()
    issued = run.json("issue", "sales", "main", "a/b")
    Path(issued["file"]).parent.mkdir(parents=True, exist_ok=True)
    Path(issued["file"]).write_bytes(b"linked")
    run.ok("link", "sales", "main", "a/b", "--token", issued["token"])
    losing.put_back()
    if written_since:
        run.ok("upload", "sales", "main", "-", "a/b", stdin=b"other")

    assert run("kv", "verify").code == 6
    assert [item["name"] for item in found_of(run, "lost")] == ["'a/b' on branch 'main', linked or restored"]
    told = run.ok("kv", "reconcile", "--dry-run").out
    where = "would be: sales: object a/b: put back"
    assert where in told
    done = run.ok("kv", "reconcile", "--clients-stopped").out
    assert "deletion goes on" in done
    path = re.search(r"put back as (\S+)", done)[1] if written_since else "a/b"
    assert run.ok("cat", "sales", "main", path).out == "linked"
    if written_since:
        assert run.ok("cat", "sales", "main", "a/b").out == "other"
    for _ in range(2):
        run.ok("reaper", "--once", "--scrub")
    assert run.ok("cat", "sales", "main", path).out == "linked"
    assert not run.json("kv", "verify")["has_losses"]


def failing(_ctx: Context) -> None:
    raise ZeroDivisionError


def test_an_interrupted_reconcile_keeps_deletion_stopped(losing: Losing, monkeypatch: pytest.MonkeyPatch) -> None:
    run = losing.run
    losing.copy()
    losing.commit("main", "a")
    losing.put_back()
    with monkeypatch.context() as patch:
        patch.setattr("refstore.kv_recovery.reconciliation.settle_lake", failing)
        assert run("kv", "reconcile", "--clients-stopped").code == 1
    assert (losing.root / "objects" / WITNESSES_FOLDER / f"{RECONCILE_WITNESS}.json").exists()
    assert run("reaper", "--once").code == 6
    assert "has not ended" in run("kv", "verify").err
    run.ok("kv", "reconcile", "--clients-stopped")
    assert run("reaper", "--once").code == 0


@pytest.mark.parametrize("reaped", [False, True], ids=["waiting", "confirmed"])
def test_a_kv_made_from_the_object_store_equals_the_lost_one(losing: Losing, reaped: bool) -> None:
    run = losing.run
    losing.commit("main", "a")
    run.ok("branch", "create", "sales", "dev", "--from", "main")
    losing.commit("dev", "b")
    losing.commit("main", "c")
    run.ok("merge", "sales", "dev", "--into", "main", "-m", "merged")
    run.ok("tag", "create", "sales", "v1", "--from", "main~1")
    run.ok("branch", "create", "sales", "gone", "--from", "main")
    run.ok("branch", "delete", "sales", "gone", "--yes")
    for name in ("other", "deleted"):
        run.ok("repo", "create", name)
    run.ok("repo", "delete", "deleted", "--yes")
    if reaped:
        run.ok("reaper", "--once")
    before = losing.contents()
    assert run("kv", "rebuild", "--yes").code == 4
    losing.lose()
    planned = run.json("kv", "rebuild", "--dry-run")
    made = run.json("kv", "rebuild", "--yes")
    assert made == planned
    assert (made["repositories"], made["deleted_repositories"], made["branches"], made["tags"]) == (2, 1, 3, 1)
    assert losing.contents() == before
    assert run("kv", "verify").code == 0
    assert run("reaper", "--once").code == 0
    losing.commit("dev", "after")
    assert run.ok("cat", "sales", "main", "b").out == "x"
    assert [row["repository"] for row in run.json("repo", "list")] == ["other", "sales"]


def test_a_commit_without_its_metarange_is_put_back_and_reported(losing: Losing) -> None:
    run = losing.run
    lost = losing.commit("main", "a")
    for file in (losing.root / "objects").glob("*/_refstore/metaranges/*"):
        file.unlink()
    losing.lose()
    ran = run("kv", "rebuild", "--yes")
    assert ran.code == 6
    assert f"missing metarange: sales: commit {lost}" in ran.out
    assert losing.head("main") == lost
    assert "missing metarange" in run("kv", "verify").out


def test_a_lake_without_a_manifest_gets_one(losing: Losing) -> None:
    run = losing.run
    losing.commit("main", "a")
    run.ok("branch", "create", "sales", "dev", "--from", "main")
    losing.commit("dev", "b")
    run.ok("tag", "create", "sales", "v1", "--from", "dev")
    run.ok("branch", "create", "sales", "gone", "--from", "main")
    gone = losing.commit("gone", "c")
    run.ok("branch", "delete", "sales", "gone", "--yes")
    run.ok("reaper", "--once")
    for folder in (WAITING_FOLDER, CONFIRMED_FOLDER):
        for place in (losing.root / "objects", *(losing.root / "objects").glob("sales*")):
            shutil.rmtree(place / folder, ignore_errors=True)
    ran = run.ok("kv", "verify")
    assert "not in the manifest: sales: 4 commits, 2 branches, 1 tags, the repository itself" in ran.out
    assert "refstore kv reconcile" in ran.err
    planned = run.ok("kv", "reconcile", "--dry-run").out
    assert "would be: recorded in the manifest: sales: 4 commits" in planned
    (row,) = run.json("kv", "reconcile")["recorded"]
    # the first commit of a repository is one
    assert row["name"] == "4 commits, 2 branches, 1 tags, the repository itself"
    assert run.json("kv", "reconcile")["recorded"] == []
    assert not found_of(run, "not in the manifest")
    before = losing.contents()
    losing.lose()
    run.ok("kv", "rebuild", "--yes")
    assert losing.contents() == before
    assert run.ok("cat", "sales", gone, "c").out == "x"
