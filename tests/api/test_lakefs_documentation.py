"""What docs/api.md shows works as shown: its blocks are run against a service, its command lines are ones that
exist.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from refstore_api.routes.unsupported_routes import UNSUPPORTED
from tests.api.conftest import KEY_ID, SECRET, Running
from tests.api.service import Application
from tests.integration.test_documentation import code, lines, parse, words

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()
RUN = re.compile(r"<!-- run -->\n```(sh|python)\n(.*?)```", re.DOTALL)
HERE = "http://127.0.0.1:8000"


def test_the_blocks_run_one_after_the_other(embedded_service: Running, tmp_path: Path) -> None:
    blocks = RUN.findall(PAGE)
    assert [kind for kind, _ in blocks] == ["python", "python", "sh", "python"]
    script = "\n".join(body if kind == "sh" else f"python - <<'END'\n{body}END" for kind, body in blocks)
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LAKECTL_SERVER_ENDPOINT_URL": embedded_service.url,
        "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": KEY_ID,
        "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": SECRET,
    }
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace(HERE, embedded_service.url)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "[('removed', '2026/11/21.csv')]",
        ran.stdout.splitlines()[1],
        "4",
        "['orders/main/2026/11/21.csv', 'orders/main/2026/11/22.csv']",
        "False False",
        "[('mon',)]",
        "id,sum",
        "3,44",
        "id",
        "30",
    ]
    assert re.fullmatch(r"\['Merge transaction tx-[0-9a-f-]+ to branch', 'second day'\]", ran.stdout.splitlines()[1])


def test_every_command_line_exists() -> None:
    found = lines(code(PAGE))
    assert len(found) >= 7
    for line in found:
        parse(words(line))


def test_the_routes_that_are_named_are_there(asgi: Application) -> None:
    there = {
        (method.upper(), path)
        for path, operations in asgi("GET", "http://lake.test/openapi.json").json()["paths"].items()
        for method in operations
    }
    named = re.findall(r"`(GET|POST|PUT|DELETE) (/[a-z/{}.]*)`", PAGE)
    assert len(named) >= 10
    for method, path in named:
        full = (
            path
            if path.startswith("/api/")
            else f"/api/v1{'' if path.startswith('/auth') else '/repositories/{repository}'}{path}"
        )
        assert (method, full) in there, path


def test_what_is_not_there_is_said_to_who_may_ask(asgi: Application) -> None:
    for path, why in UNSUPPORTED:
        place = re.sub(r"\{\w+\}", "lake", path.replace("{rest:path}", "/x"))
        refused = asgi("POST", place)
        assert (refused.status_code, refused.json()) == (501, {"message": why, "code": "not_supported"}), path
        assert asgi("POST", place, auth=None).status_code == 401, path
