"""`refstore reaper`, `status`, `resume` and `why` on SQLite and local files; reapers as real processes that are stopped
and killed.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refstore.errors import ObjectsRefused, RefstoreError, StoreMisconfigured
from refstore.lake import Lake, open_lake_at
from refstore.objects.local import LocalObjects
from refstore.operations.upload import Upload
from refstore.records import keys
from refstore.records.branch_records import CommittedTokens
from refstore.records.encoding import encode
from tests.commands import Command
from tests.durations import set_constants
from tests.kit.short_durations import constants_environment

FAST = {
    "REFSTORE_SAFETY_GRACE": "0",
    "REFSTORE_REAPER_BREAKER_SHARE": "1",
    **constants_environment({"ReaperSettings": {"pause_seconds": 0.1, "lease_seconds": 2}}),
}
PATIENCE_SECONDS = 60


def lake_of(refstore: Command) -> Lake:
    root = refstore.folder / "lake"
    return open_lake_at(f"sqlite://{root}/kv.sqlite", f"file://{root}/objects")


def blobs(refstore: Command) -> set[str]:
    """The files, seen apart from the product's own code."""
    root = refstore.folder / "lake" / "objects"
    return {str(path.relative_to(root)).partition("/")[2] for path in root.glob("*/data/*/*")}


def references(refstore: Command) -> int:
    """How many addresses have a reference key."""
    with lake_of(refstore) as lake:
        repo = lake.repository("sales").context.repo
        return sum(lake.kv.count(keys.references(repo, shard), limit=10**6) for shard in range(keys.SHARDS))


def wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.05)


@contextmanager
def reaper(refstore: Command, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    log = Path(refstore.folder / f"reaper-{time.monotonic_ns()}.log").open("wb")  # noqa: SIM115  # closed below
    command = [sys.executable, "-m", "refstore", "reaper", "--json", *args]
    with (
        log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, **FAST}, cwd=refstore.folder
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def upload(refstore: Command, branch: str, count: int) -> None:
    with lake_of(refstore) as lake:
        lake.repository("sales").upload_many(
            branch, (Upload(path=f"{branch}/{number:04}", body=b"12") for number in range(count))
        )


# ---- the command


def test_once_deletes_what_is_due_and_says_so(sales: Command) -> None:
    upload(sales, "main", 3)
    sales.ok("reset", "sales", "main", "--yes")
    first = sales.json("reaper", "--once")
    assert (first["released"], first["emptied"], first["deleted"], first["errors"]) == (3, 3, 0, [])
    done = sales.json("reaper", "--once", "--grace", "0")
    assert (done["deleted"], done["bytes"]) == (3, 6)
    assert blobs(sales) == set()


def on_a_terminal(refstore: Command, answer: bytes, *args: str) -> tuple[int, bytes]:
    """Run the command with a terminal as its input, on which `answer` is typed; its exit code, and what it said on
    standard error.
    """
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "refstore", *args],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=refstore.folder,
        ) as process:
            os.write(ours, answer)
            _, err = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, err
    finally:
        os.close(ours)
        os.close(theirs)


class TestGraceOnATerminal:
    AT_ONCE = ("reaper", "--once", "--grace", "0")

    @pytest.fixture
    def lost(self, sales: Command) -> Command:
        """Objects of `sales` that can be restored."""
        upload(sales, "main", 3)
        sales.ok("reset", "sales", "main", "--yes")
        return sales

    def test_a_whole_lakes_undo_is_not_ended_before_somebody_says_so(self, lost: Command) -> None:
        code, err = on_a_terminal(lost, b"n\n", *self.AT_ONCE)
        assert (code, len(blobs(lost))) == (1, 3)
        assert b"in all repositories of this lake, released objects are deleted at once and cannot be restored" in err
        code, err = on_a_terminal(lost, b"y\n", *self.AT_ONCE)
        assert (code, blobs(lost)) == (0, set())

    def test_one_repository_is_what_was_asked_for(self, lost: Command) -> None:
        code, err = on_a_terminal(lost, b"", *self.AT_ONCE, "--repository", "sales")
        assert (code, blobs(lost)) == (0, set())
        assert b"Go on?" not in err

    @pytest.mark.parametrize("options", [("--yes",), ("--dry-run",)])
    def test_who_says_yes_or_only_looks_is_not_asked(self, lost: Command, options: tuple[str, ...]) -> None:
        code, err = on_a_terminal(lost, b"", *self.AT_ONCE, *options)
        assert (code, len(blobs(lost))) == (0, 0 if options == ("--yes",) else 3)
        assert b"Go on?" not in err


def test_a_dry_run_names_each_address_and_touches_nothing(sales: Command) -> None:
    upload(sales, "main", 3)
    sales.ok("reset", "sales", "main", "--yes")
    before = blobs(sales)
    planned = sales.json("reaper", "--dry-run", "--grace", "0")
    assert {row["address"] for row in planned["would_delete"]} == before
    assert {(row["repository"], row["cause"], row["size_bytes"]) for row in planned["would_delete"]} == {
        ("sales", "reset", 2)
    }
    assert blobs(sales) == before
    people = sales.ok("reaper", "--dry-run", "--grace", "0")
    assert people.out.count("would delete sales data/") == 3
    done = sales.json("reaper", "--once", "--grace", "0")
    assert {name: done[name] for name in planned["summary"]} == planned["summary"]


def test_only_the_repository_that_is_named(sales: Command) -> None:
    sales.ok("repo", "create", "other")
    upload(sales, "main", 2)
    sales.ok("reset", "sales", "main", "--yes")
    assert sales.json("reaper", "--once", "--grace", "0", "--repository", "other")["deleted"] == 0
    assert len(blobs(sales)) == 2
    unknown = sales("reaper", "--once", "--repository", "nosuch")
    assert unknown.code == 3


def test_the_breaker_stops_it_status_says_why_and_resume_lets_it_go_on(
    sales: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_constants(monkeypatch, ReaperSettings={"breaker_floor_objects": 2})
    upload(sales, "main", 10)
    sales.ok("reset", "sales", "main", "--yes")
    stopped = sales("reaper", "--once", "--grace", "0", "--json")
    assert (stopped.code, stopped.json["deleted"], stopped.json["blocked"]) == (4, 0, 1)
    (status,) = sales.json("reaper", "status")["repositories"]
    assert status["stopped"] == "10 objects are due for deletion, of 10 in the repository"
    people = sales.ok("reaper", "status").out
    assert "stopped" in people
    assert "refstore reaper resume sales" in people
    assert sales("reaper", "resume", "sales").code == 2  # nobody is there to be asked
    assert sales.json("reaper", "resume", "sales", "--count", "4", "--yes")["objects"] == 4
    partly = sales("reaper", "--once", "--grace", "0", "--json")
    assert (partly.code, partly.json["deleted"]) == (4, 4)
    sales.ok("reaper", "resume", "sales", "--for", "10m", "--yes")
    assert sales.json("reaper", "--once", "--grace", "0")["deleted"] == 6
    assert blobs(sales) == set()


def test_what_cannot_be_read_is_an_exit_code_of_its_own(sales: Command) -> None:
    with lake_of(sales) as lake:
        repo = lake.repository("sales").context.repo
        lake.kv.set(keys.Key(keys.committed_tokens(repo), "c" * 64), encode(CommittedTokens((), 0))[:-1])
    ran = sales("reaper", "--once")
    assert ran.code == 6
    assert "nothing that depends on it will be deleted" in ran.err


def test_resume_says_in_json_too_that_there_is_nothing_to_resume(sales: Command) -> None:
    assert sales.json("reaper", "resume", "sales") == {"repository": "sales", "until": None, "objects": None}


@pytest.mark.parametrize(("kind", "code"), [(StoreMisconfigured, 6), (ObjectsRefused, 6)])
def test_a_store_that_lets_nobody_in_is_an_operators_to_mend(
    sales: Command, monkeypatch: pytest.MonkeyPatch, kind: type[RefstoreError], code: int
) -> None:
    upload(sales, "main", 1)
    sales.ok("reset", "sales", "main", "--yes")

    def refuse(*_: object) -> None:
        raise kind("deleting failed: Permission denied; give user 7 read and write permission to the store's directory")

    with monkeypatch.context() as patch:
        patch.setattr(LocalObjects, "delete_many", refuse)
        ran = sales("reaper", "--once", "--grace", "0")
    assert (ran.code, "Permission denied" in ran.err) == (code, True)
    assert sales.json("reaper", "--once", "--grace", "0")["deleted"] == 1


def test_why_knows_the_living_the_deleted_and_nothing_else(sales: Command) -> None:
    upload(sales, "main", 1)
    (address,) = blobs(sales)
    assert sales.json("why", "sales", address)["state"] == "referenced"
    assert "it is staged" in sales.ok("why", "sales", address).out
    sales.ok("reset", "sales", "main", "--yes")
    assert sales.json("why", "sales", address)["meaning"].startswith("nothing names it any more")
    sales.ok("reaper", "--once", "--grace", "0")
    found = sales.json("why", "sales", address)
    assert found["state"] == "gone"
    (deletion,) = found["deletions"]
    assert (deletion["outcome"], deletion["cause"], deletion["path"]) == ("deleted", "reset", "main/0000")
    assert sales("why", "sales", address[:-1] + ("0" if address[-1] != "0" else "1")).code == 3
    assert sales("why", "sales", "data/../../etc/passwd").code == 2


def test_why_takes_a_path_also_of_what_is_gone(sales: Command) -> None:
    sales.ok("branch", "create", "sales", "team/try")
    sales.ok("upload", "sales", "team/try", "-", "data/a b.csv", stdin=b"x")
    (address,) = blobs(sales)
    words = ("sales", "team/try", "data/a b.csv")
    found = sales.json("why", *words)
    assert (found["ref"], found["path"], found["state"]) == ("team/try", "data/a b.csv", "staged")
    assert found["now"]["address"] == address
    sales.ok("branch", "delete", "sales", "team/try", "--yes")
    sales.ok("reaper", "--once", "--grace", "0")
    found = sales.json("why", *words)
    assert found["state"] == "not there: there is no such branch or ref any more"
    (version,) = found["versions"]
    assert [version["address"], version["state"]] == [address, "gone"]
    assert version["deletions"][0]["cause"] == "branch-deleted"
    shown = sales.ok("why", *words).out
    for text in (address, "branch-deleted", "nothing named it any more when its grace window was over"):
        assert text in shown
    assert sales("why", "sales", "team/try/data/a b.csv").code == 3, "in one word the ref ends at the first slash"
    assert sales("why", "sales", "main").code == 2
    assert sales("why", "sales", "main", "a", "b").code == 2
    assert sales("why", "nowhere", "main/a").code == 3


def test_why_says_which_branches_and_commits_name_a_committed_address(sales: Command) -> None:
    upload(sales, "main", 1)
    (address,) = blobs(sales)
    sales.ok("commit", "sales", "main", "-m", "first")
    sales.ok("branch", "create", "sales", "other")
    sales.ok("reaper", "--once")
    found = sales.json("why", "sales", address)
    assert found["state"] == "committed"
    assert found["committed"]["branches"] == ["main main/0000", "other main/0000"]
    assert [commit["path"] for commit in found["committed"]["commits"]] == ["main/0000"]
    assert found["committed"]["complete"] is True
    assert "other main/0000" in sales.ok("why", "sales", address).out


def test_why_says_what_keeps_a_committed_object(sales: Command) -> None:
    upload(sales, "main", 1)
    (address,) = blobs(sales)
    sales.ok("commit", "sales", "main", "-m", "first")
    assert sales.json("why", "sales", address)["meaning"].startswith("a commit keeps it; the reaper has not")
    sales.ok("reaper", "--once")
    assert sales.json("why", "sales", address)["meaning"].startswith("commits keep it; `refstore retention explain")
    shown = sales.ok("why", "sales", "main/main/0000").out.splitlines()
    assert ["at", "this", "path", "now", "committed"] in [line.split() for line in shown]
    assert [line.split()[1] for line in shown if line.startswith("state ")] == ["committed"]


def test_help_teaches(sales: Command) -> None:
    shown = sales.ok("reaper", "--help").out
    for word in (
        "--once",
        "--dry-run",
        "--grace",
        "--repository",
        "--rate",
        "--scrub",
        "--metrics-port",
        "status",
        "resume",
        "Example",
    ):
        assert word in shown, word


# ---- real processes


def test_two_reapers_share_the_work_and_end_when_they_are_asked_to(sales: Command) -> None:
    for name in ("one", "two", "three", "four"):
        sales.ok("branch", "create", "sales", name)
    upload(sales, "main", 30)
    sales.ok("commit", "sales", "main", "-m", "kept")
    kept = blobs(sales)
    with reaper(sales) as first, reaper(sales) as second:
        wait_for(lambda: sum(row["is_alive"] for row in sales.json("reaper", "status")["reapers"]) == 2)
        for name in ("one", "two", "three", "four"):
            upload(sales, name, 120)
            with lake_of(sales) as lake:
                lake.repository("sales").reset(name)
        wait_for(lambda: blobs(sales) == kept)
        answers = []
        for process in (first, second):
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=PATIENCE_SECONDS)
            assert process.returncode == 0
            answers.append(json.loads(out))
    assert sum(answer["deleted"] for answer in answers) == 480
    assert sum(answer["missing"] for answer in answers) == 0
    assert [answer["errors"] for answer in answers] == [[], []]
    assert sales.json("reaper", "status")["reapers"] == []


def test_one_that_is_killed_again_and_again_loses_nothing_and_the_last_one_finishes(sales: Command) -> None:
    upload(sales, "main", 20)
    sales.ok("commit", "sales", "main", "-m", "kept")
    kept = blobs(sales)
    sales.ok("reaper", "--once")
    upload(sales, "main", 800)
    sales.ok("reset", "sales", "main", "--yes")
    whole = len(blobs(sales))
    for part in (0.9, 0.7, 0.5, 0.3):
        with reaper(sales, "--rate", "100") as process:  # so that it takes several batches
            wait_for(lambda part=part: len(blobs(sales)) - len(kept) <= part * (whole - len(kept)))
            process.kill()

    def finished() -> bool:
        """What the dead had leased is free when their leases run out."""
        assert sales.json("reaper", "--once", "--grace", "0")["errors"] == []
        return blobs(sales) == kept and not references(sales)

    wait_for(finished)
    with lake_of(sales) as lake:
        repo = lake.repository("sales")
        assert len(list(repo.list("main"))) == 20
        assert all(repo.read("main", item.path) == b"12" for item in repo.list("main"))
    address = next(iter(kept))
    assert sales.json("why", "sales", address)["state"] == "committed"


def test_what_a_deleted_repository_leaves_can_be_let_go_on_too(sales: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped for good it could never be drained, nor its name be given again."""
    monkeypatch.setenv("REFSTORE_REAPER_BREAKER_PER_HOUR", "4")
    upload(sales, "main", 10)
    sales.ok("repo", "delete", "sales", "--yes")
    assert sales("reaper", "--once", "--grace", "0").code == 4
    (status,) = sales.json("reaper", "status", "sales")["repositories"]
    assert status["stopped"]
    sales.ok("reaper", "resume", "sales", "--yes")
    assert sales.json("reaper", "--once", "--grace", "0")["deleted"] == 6
    assert sales("reaper", "resume", "nosuch", "--yes").code == 3
