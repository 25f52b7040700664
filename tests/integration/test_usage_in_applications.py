"""What docs/usage.md says of threads, asyncio, processes and forks holds: its blocks are run, as one program."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

import refstore

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def test_the_blocks_run_one_after_the_other(tmp_path: Path) -> None:
    section = (ROOT / "docs/usage.md").read_text("utf-8").partition("## In an application\n")[2].partition("\n## ")[0]
    blocks = [textwrap.dedent(body) for _, body in BLOCK.findall(section)]
    assert len(blocks) == 6
    # a child of a pool imports the program again, and must not do its work again
    functions, *works = "\n".join(blocks[5:]), *blocks[:5]
    imports, _, first = works[0].partition("\n\nPath(")
    program = f"{imports}\n\n{functions.partition('if __name__')[0]}\nif __name__ == '__main__':\n" + textwrap.indent(
        "\n".join([f"Path({first}", *works[1:], "if True:" + functions.partition('__main__":')[2]]), "    "
    )
    (tmp_path / "program.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REFSTORE_")}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=tmp_path,
        env=environment | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (ran.returncode, ran.stdout) == (0, "True\n['2026/11/23.csv']\n['dev', 'main']\n1\n"), ran.stderr[-3000:]
    with refstore.open(tmp_path / "lake") as lake:
        folders = [item.path.partition("/")[0] for item in lake.repository("sales").list("main")]
    assert {name: folders.count(name) for name in folders} == {
        "2026": 3,
        "async": 8,
        "latest.csv": 1,
        "processes": 4,
        "threads": 8,
        "transactions": 2,
    }


def test_the_application_of_fastapi_answers_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    httpx = pytest.importorskip("httpx")
    page = (ROOT / "docs/usage.md").read_text("utf-8")
    section = page.partition("## In an asynchronous application\n")[2].partition("\n## ")[0]
    ((_, block),) = BLOCK.findall(section)
    monkeypatch.chdir(tmp_path)
    with refstore.create(tmp_path / "lake") as lake:
        lake.create_repository("sales", grace_seconds=0)
    (tmp_path / "fastapi_program.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    program = import_module("fastapi_program")

    async def use() -> None:
        transport = httpx.ASGITransport(program.app)
        async with (
            program.app.router.lifespan_context(program.app),
            httpx.AsyncClient(transport=transport, base_url="http://app") as client,
        ):
            for body in (b"old", b"new"):
                written = await asyncio.gather(*(client.put(f"/days/{n}", content=body) for n in range(8)))
                assert {answer.status_code for answer in written} == {200}
            read = await asyncio.gather(*(client.get(f"/days/{n}") for n in range(8)))
            assert {answer.content for answer in read} == {b"new"}
            missing = await client.get("/days/9")
            assert (missing.status_code, "days/9.csv" in missing.text) == (404, True)
            assert (await client.post("/reap")).json() == {"deleted": 8, "errors": 0}

    asyncio.run(use())


def test_a_lake_that_was_opened_before_a_fork_works_on_both_sides(tmp_path: Path) -> None:
    with refstore.create(tmp_path / "lake") as lake:
        repo = lake.create_repository("sales")
        repo.upload("main", "before", b"x")
        child = os.fork()
        if child == 0:
            right = False
            try:
                repo.upload_many("main", [refstore.Upload(f"child/{n}", b"c") for n in range(20)])
                right = repo.read("main", "child/19") == b"c"
            finally:
                os._exit(0 if right else 1)
        repo.upload_many("main", [refstore.Upload(f"parent/{n}", b"p") for n in range(20)])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sum(1 for _ in repo.list("main")) == 41
