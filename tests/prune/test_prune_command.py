"""`refstore prune`: what it says, what it does, and how it ends."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.commands import Command
from tests.prune.folders import make_store, stored_keys, write_list
from tests.servers.s3_proxy import FailKeys, ProxiedRequest, S3FaultProxy
from tests.servers.s3_servers import RcloneS3
from tests.unit.test_imports_at_start import imported_by

NAMED = {f"img/{number}.jpg" for number in range(8)}
UNNAMED = {"img/old.jpg", "tmp/upload", "tmp/other"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make_store(tmp_path / "media", ["img/new.jpg"], days_ago=1)
    return make_store(tmp_path / "media", NAMED | UNNAMED)


@pytest.fixture
def names(tmp_path: Path) -> Path:
    return write_list(tmp_path / "names.txt", NAMED)


def test_a_dry_run_tells_people_what_would_stop_the_run(refstore: Command, store: Path, tmp_path: Path) -> None:
    wrong = write_list(tmp_path / "wrong.txt", {f"lake/{key}" for key in NAMED})
    told = refstore("prune", "run", store, "--names", f"list:{wrong}", "--dry-run")
    assert told.code == 0
    assert "Without --dry-run a run stops here" in told.err
    assert "(few-found)" in told.err
    assert refstore("prune", "run", store, "--names", f"list:{wrong}").code == 4


def test_the_first_quarter_of_an_hour(refstore: Command, store: Path, names: Path) -> None:
    run = ("prune", "run", store, "--names", f"list:{names}")
    seen = refstore.json(*run, "--dry-run")
    assert seen["state"] == "simulated"
    assert {verdict: count["objects"] for verdict, count in seen["verdicts"].items() if count["objects"]} == {
        "named": 8, "young": 1, "unnamed": 3,
    }  # fmt: skip
    assert {each["key"] for each in seen["largest"]} == UNNAMED
    assert not (store / "_refstore").exists()

    marked = refstore.json(*run)
    assert (marked["state"], marked["newly_marked"]["objects"]) == ("marked", 3)
    write_list(names, NAMED)  # of now: the older one may lack what was named since
    waiting = refstore.json(*run)
    assert (waiting["state"], waiting["waiting"]["objects"], waiting["newly_marked"]["objects"]) == ("marked", 3, 0)
    assert stored_keys(store) == NAMED | UNNAMED | {"img/new.jpg"}

    write_list(names, [*NAMED, "tmp/other"])
    done = refstore.json(*run, "--grace", "0")
    assert (done["state"], done["outcomes"]["deleted"]["objects"]) == ("done", 2)
    assert done["named_again"]["objects"] == 1
    assert stored_keys(store) == NAMED | {"img/new.jpg", "tmp/other"}

    runs = refstore.json("prune", "status", store)
    assert [(each["state"], each["deleted"]) for each in runs] == [("marked", 0), ("marked", 0), ("done", 2)]
    assert refstore.json("prune", "report", store) == done
    assert refstore.json("prune", "report", store, marked["run_id"][:20]) == marked
    of_key = refstore.json("prune", "why", store, "tmp/upload")
    assert [each["found"] for each in of_key["events"]] == ["unnamed", "deleted"]
    assert not of_key["is_stored"]


def test_what_people_read(refstore: Command, store: Path, names: Path) -> None:
    write_list(names, [*NAMED, "img/lost.jpg"])
    ran = refstore.ok("prune", "run", store, "--names", f"list:{names}", "--dry-run")
    for line in (
        r"source +list:\S+: files 1, names 9",
        r"list:\S+: what was named after 20\S+Z, when it was written",
        r"listed +12 +\d+ B",
        r"  too young to say +1 ",
        r"  unnamed +3 ",
        r"      would be marked now +3 ",
        r"    would be deleted now +0 ",
        r"img/ +\d+ +\d+ B +1 +11 B",
        r"30 d ago +tmp/upload",
    ):
        assert re.search(f"^{line}|{line}$", ran.out, re.MULTILINE), (line, ran.out)
    assert "Nothing was changed" in ran.err
    refstore.ok("prune", "run", store, "--names", f"list:{names}")
    assert "What waits is due from" in refstore.ok("prune", "report", store).err
    assert re.search(r"marked .* 3 ", refstore.ok("prune", "status", store).out)
    said = refstore.ok("prune", "why", store, "tmp/upload").out
    assert "tmp/upload is in the store." in said
    assert re.search("^[0-9a-z]{12} .* unnamed .* 10 B", said, re.MULTILINE)
    assert "No run that is kept found it unnamed" in refstore.ok("prune", "why", store, "img/1.jpg").err


def test_a_run_that_looks_wrong_stops_and_asks(refstore: Command, store: Path, names: Path) -> None:
    write_list(names, [f"images/{number}.jpg" for number in range(8)])
    run = ("prune", "run", store, "--names", f"list:{names}")
    stopped = refstore(*run)
    assert stopped.code == 4
    assert "few-found" in stopped.err
    assert not list((store / "_refstore").rglob("mark.json"))
    error = refstore(*run, "--json").error
    assert (error["code"], error["consent"]) == ("prune_stopped", ["few-found"])
    refstore.ok(*run, "--consent", "few-found")
    write_list(names, [])
    assert refstore(*run, "--consent", "few-found").code in (2, 4)


def test_a_mark_is_taken_back(refstore: Command, store: Path, names: Path) -> None:
    run = ("prune", "run", store, "--names", f"list:{names}")
    marked = refstore.json(*run)
    assert refstore.json("prune", "unmark", store, marked["run_id"][:20])["run"] == marked["run_id"]
    write_list(names, NAMED)
    assert refstore.json(*run, "--grace", "0")["newly_marked"]["objects"] == 3
    refstore.ok("prune", "unmark", store, "all")
    write_list(names, NAMED)
    assert refstore.json(*run, "--grace", "0")["newly_marked"]["objects"] == 3
    assert refstore("prune", "unmark", store, "0000").code == 3
    assert refstore.json("prune", "unmark", store, "all") == {"run": "all", "unmarked": True}
    runs = refstore.json("prune", "status", store)
    assert [(each["unmarked"], each["due"]) for each in runs] == [(True, None)] * 3
    assert "Its mark was taken back" in refstore.ok("prune", "why", store, "tmp/upload").out


def test_what_is_not_known_is_not_told_as_none(refstore: Command, store: Path, names: Path) -> None:
    write_list(names, ["elsewhere"])
    assert refstore("prune", "run", store, "--names", f"list:{names}").code == 4
    (failed,) = refstore.json("prune", "status", store)
    assert [failed[each] for each in ("state", "listed", "unnamed", "deleted", "waiting")] == ["failed", *[None] * 4]
    told = refstore.ok("prune", "report", store)
    assert ("PruneStopped" in told.out, "listed  " in told.out) == (True, False)
    assert "before it had counted anything" in told.err


def test_a_key_that_was_deleted_and_is_there_again(refstore: Command, store: Path, names: Path) -> None:
    for _ in range(2):
        write_list(names, NAMED)
        refstore.ok("prune", "run", store, "--names", f"list:{names}", "--grace", "0")
    assert "tmp/upload is not in the store." in refstore.ok("prune", "why", store, "tmp/upload").out
    make_store(store, ["tmp/upload"])
    assert "is in the store, again" in refstore.ok("prune", "why", store, "tmp/upload").out


def test_names_of_several_sources_stay(refstore: Command, store: Path, names: Path, tmp_path: Path) -> None:
    command = f"exec:{sys.executable} -c \"print('id,path'); print('1,tmp/upload')\""
    write_list(tmp_path / "more.csv", ["id,path", *(f"1,{name}" for name in NAMED)])
    report = refstore.json(
        "prune", "run", store, "--names", f"list:{tmp_path}/more.csv", "--names", command, "--column", "path",
        "--protect", "img/old*",
    )  # fmt: skip
    assert {each["key"] for each in report["largest"]} == {"tmp/other"}
    assert report["verdicts"]["protected"]["objects"] == 1
    failing = f"exec:{sys.executable} -c \"print('tmp/upload'); raise SystemExit(1)\""
    ran = refstore("prune", "run", store, "--names", f"list:{names}", "--names", failing)
    assert (ran.code, "ended with code 1" in ran.err) == (5, True)


def test_the_files_of_runs_may_be_elsewhere(refstore: Command, store: Path, names: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    where = ("--state", tmp_path / "state")
    run = ("prune", "run", store, "--names", f"list:{names}", *where)
    refstore.ok(*run)
    write_list(names, NAMED)
    assert refstore.json(*run, "--grace", "0")["state"] == "done"
    assert not (store / "_refstore").exists()
    assert len(refstore.json("prune", "status", store, *where)) == 2
    assert refstore.json("prune", "why", store, "tmp/upload", *where)["events"][-1]["found"] == "deleted"


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--names", "list:none.txt"], 3, "none.txt"),
        (["--names", "names.txt"], 2, "no source of names"),
        (["--names", "list:names.txt", "--endpoint", "http://localhost"], 2, "'endpoint'"),
        (["--names", "list:names.txt", "--property", "x"], 2, "KEY=VALUE"),
        (["--names", "list:names.txt", "--min-age", "1"], 2, "--min-age"),
        (["--names", "list:names.txt", "--engine", "other"], 2, "not an engine"),
        ([], 2, "--names"),
    ],
)
def test_calls_that_are_wrong(
    refstore: Command, store: Path, names: Path, options: list[str], code: int, says: str
) -> None:
    ran = refstore("prune", "run", store, *options)
    assert ran.code == code
    assert says in ran.err
    assert stored_keys(store) == NAMED | UNNAMED | {"img/new.jpg"}


def test_a_store_that_is_not_there(refstore: Command, names: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "none", f"file://{tmp_path}/none"):
        assert refstore("prune", "run", place, "--names", f"list:{names}").code in (3, 5)
    assert not (tmp_path / "none").exists()


def test_a_store_that_does_not_delete_everything(
    refstore: Command, names: Path, tmp_path: Path, s3_credentials: None
) -> None:
    def fail(request: ProxiedRequest) -> FailKeys | None:
        stuck = frozenset(key for key in request.delete_keys if key.endswith("tmp/upload"))
        return FailKeys(stuck) if stuck else None

    with RcloneS3(tmp_path / "served") as server, S3FaultProxy(server.endpoint, fail) as proxy:
        url = server.url("media", endpoint=proxy.endpoint)
        make_store(tmp_path / "served" / url.removeprefix("s3://").partition("?")[0], NAMED | UNNAMED)
        run = ("prune", "run", url, "--names", f"list:{names}")
        refstore.ok(*run)
        write_list(names, NAMED)
        ran = refstore(*run, "--grace", "0")
        assert ran.code == 5
        assert re.search(r"failed +1 ", ran.out)
        assert re.search(r"deleted +2 ", ran.out)
        assert "tmp/upload" in ran.out


def test_a_folder_needs_no_other_client(store: Path, names: Path) -> None:
    modules = imported_by(
        "from refstore.cli import run\n"
        f"assert run(['prune', 'run', {str(store)!r}, '--names', 'list:{names}', '--dry-run']) == 0"
    )
    assert modules & {"pyspark", "deltalake", "pyiceberg", "boto3", "botocore", "redis", "pandas"} == set()


def test_it_needs_no_lake(refstore: Command, store: Path, names: Path) -> None:
    refstore.ok("prune", "run", store, "--names", f"list:{names}")
    assert not (refstore.folder / "lake").exists()
