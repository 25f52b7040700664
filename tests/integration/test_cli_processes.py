"""The command as a real process: exit codes, what goes to which stream, pipes, and two processes on one lake."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.commands import Command

BODY = os.urandom(3 << 20)


def test_the_first_ten_minutes(refstore: Command) -> None:
    made = refstore.process("repo", "create", "sales")
    assert (made.code, made.err) == (0, "")
    sent = refstore.process("upload", "sales", "main", "-", "big", "--json", stdin=BODY)
    assert (sent.code, sent.err, sent.json["size_bytes"]) == (0, "", len(BODY))
    assert refstore.process("cat", "sales", "main", "big").out_bytes == BODY
    assert refstore.process("commit", "sales", "main", "-m", "one").code == 0
    shown = refstore.process("ls", "sales", "main", "--json")
    assert [row["path"] for row in shown.json] == ["big"]
    assert refstore.process("log", "sales", "--json").json[0]["message"] == "one"


def test_errors_go_to_standard_error_alone(refstore: Command) -> None:
    refstore.ok("repo", "create", "sales")
    missing = refstore.process("stat", "sales", "main", "x", "--json")
    assert (missing.code, missing.out) == (3, "")
    assert missing.error == {"code": "object_not_found", "message": "'x' is not on 'main'", "retryable": False}
    people = refstore.process("stat", "sales", "main", "x")
    assert (people.code, people.out, people.err) == (3, "", "refstore: 'x' is not on 'main'\n")
    assert refstore.process("stat", "sales").code == 2
    assert refstore.process("ls", "sales", "main", "--nonsense").code == 2


def test_nobody_is_asked_where_nobody_is(refstore: Command) -> None:
    refstore.ok("repo", "create", "sales")
    assert refstore.process("reset", "sales", "main").code == 0, "nothing was staged"
    refstore.ok("upload", "sales", "main", "-", "a", stdin=b"1")
    ran = refstore.process("reset", "sales", "main")
    assert (ran.code, ran.out) == (2, "")
    assert "--yes" in ran.err
    assert refstore.process("reset", "sales", "main", "--yes", "--json").json == {
        "branch": "main",
        "reset": "all that was staged",
    }


def test_a_reader_that_has_seen_enough(refstore: Command) -> None:
    refstore.ok("repo", "create", "sales")
    refstore.ok("upload", "sales", "main", "-", "big", stdin=BODY)
    cat = [sys.executable, "-m", "refstore", "cat", "sales", "main", "big"]
    with subprocess.Popen(
        cat, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ), cwd=refstore.folder
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10) == BODY[:10]
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


def test_two_processes_upload_to_one_branch_at_once(refstore: Command) -> None:
    refstore.ok("repo", "create", "sales")
    for name in ("x", "y"):
        folder = refstore.folder / name
        folder.mkdir()
        for number in range(150):
            (folder / f"{number:03}").write_text(f"{name}{number}")
    uploads = [
        subprocess.Popen(
            [sys.executable, "-m", "refstore", "upload", "-r", "sales", "main", name, f"{name}/", "--json"],
            stdout=subprocess.PIPE,
            env=dict(os.environ),
            cwd=refstore.folder,
        )
        for name in ("x", "y")
    ]
    answers = [json.loads(process.communicate(timeout=60)[0]) for process in uploads]
    assert [process.returncode for process in uploads] == [0, 0]
    assert [answer["objects"] for answer in answers] == [150, 150]
    assert len(refstore.json("ls", "sales", "main", "-r")) == 300
