"""What starts quickly because of what it does not import: no test asserts on time, so these look at the modules.

Each case runs in a process of its own, with everything installed that the project knows: pandas, rich, boto3, Spark.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

PRODUCT: Final = ("refstore", "api", "reaper", "offline_gc", "purge", "prune", "s3_gateway")
SERVERS: Final = {"fastapi", "starlette", "uvicorn", "uvloop", "jinja2", "prometheus_client"}
CLIENTS: Final = {"redis", "boto3", "botocore", "httpx", "pyspark"}
PARQUET: Final = {"pyarrow", "numpy"}
CONSOLE: Final = {"typer", "rich", "pygments", "structlog"}
SLOW: Final = {"pandas", "pydantic", "asyncio", "importlib.metadata", "jwt", "email", "ssl", "tempfile"}

EMBEDDED: Final = """
import refstore
with refstore.open({data!r}) as lake:
    repo = lake.repository("sales")
"""


def imported_by(code: str, *, cwd: Path | None = None) -> set[str]:
    """Run the code in a new process, and return the modules that it has at its end."""
    ending = "\nimport sys, json; print('\\n' + json.dumps(sorted(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", code + ending], capture_output=True, text=True, check=False, timeout=120, cwd=cwd
    )
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stdout.splitlines()[-1]))


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A lake with a repository and ten staged files."""
    folder = str(tmp_path / "lake")
    imported_by(
        f"import refstore\nwith refstore.create({folder!r}) as lake:\n"
        "    repo = lake.create_repository('sales')\n"
        "    repo.upload_many('main', [refstore.Upload(path=f'{n}.csv', body=b'a') for n in range(10)])"
    )
    return folder


def test_the_package_alone_imports_next_to_nothing() -> None:
    modules = imported_by("import refstore")
    assert {name for name in modules if name.startswith("refstore")} == {
        "refstore",
        "refstore.distribution",
        "refstore.errors",
    }
    assert modules & {*SERVERS, *CLIENTS, *PARQUET, *CONSOLE, *SLOW, "msgspec", "apsw", "logging"} == set()


def test_a_lake_is_opened_and_a_staged_name_looked_up(data: str) -> None:
    modules = imported_by(EMBEDDED.format(data=data) + "    assert repo.stat('main', '3.csv').size_bytes == 1")
    assert modules & {*SERVERS, *CLIENTS, *PARQUET, *CONSOLE, *SLOW, "tomllib"} == set()
    operations = {name for name in modules if name.startswith("refstore.operations.")}
    assert operations == {f"refstore.operations.{name}" for name in ("hidden_commits", "read", "refs")}
    assert modules & {"refstore.retention", "refstore.versioning.commits.trees", "refstore.deletion_history"} == set()


def test_ls_of_staged_names(data: str) -> None:
    modules = imported_by(f"from refstore.cli import run\nassert run(['ls', 'sales', 'main', '--data', {data!r}]) == 0")
    assert modules & {*SERVERS, *CLIENTS, *PARQUET, *(CONSOLE - {"typer"}), *SLOW} == set()


def test_a_commit_and_what_follows_import_no_pandas(data: str) -> None:
    """Whatever is given to pyarrow: it would import pandas to see whether it is of pandas (`core/arrow_arrays.py`)."""
    code = """
    repo.commit("main", "ten files")
    assert len(list(repo.list("main"))) == 10
    repo.create_branch("more", source="main")
    repo.upload("more", "é.csv", b"b", metadata={"by": "me"})
    repo.delete("more", "3.csv")
    repo.commit("more", "another and one less")
    repo.upload("main", "8.csv", b"c")
    repo.commit("main", "a change")
    repo.merge("more", into="main")
    assert len(list(repo.list("main"))) == 10
    assert [change.path for change in repo.diff("main~1", to="main")] == ["3.csv", "é.csv"]
    repo.revert("main~1", on="main")
    repo.cherry_pick("main~2", onto="main")
    repo.set_retention('{"default_retention_days": 3, "branches": []}')
    repo.review_retention()
    assert list(repo.history("main"))
    repo.why_path("main", "8.csv")
"""
    modules = imported_by(EMBEDDED.format(data=data) + code)
    assert {"pyarrow", "numpy"} <= modules
    assert modules & {*SERVERS, *CLIENTS, *CONSOLE, "pandas", "pydantic"} == set()


def test_nightly_runs_on_this_machine_import_no_pandas(tmp_path: Path) -> None:
    """A full run that sweeps, one that builds on it, a simulation, and what is said of a deletion."""
    code = f"""
from pathlib import Path
from refstore_gc.engines.choice import EngineOptions, open_engines
from refstore_gc.gc_run import run_nightly
from refstore_gc.run_context import GcOptions
from refstore_gc.mark import simulate_mark
from tests.offline.world import World
from tests.reaping import release_all
world = World(Path({str(tmp_path)!r}))
world.commit(days_ago=9, a=b"old", b=b"kept")
world.commit(days_ago=8, a=b"new")
release_all(world.repo)
world.age()
with open_engines(EngineOptions()) as engines:
    assert simulate_mark(world.ctx, engines, GcOptions()).marked.objects > 0
    (swept,) = run_nightly(world.ctx, engines, GcOptions()).sweep_summaries
    assert swept.sweep.outcomes["deleted"].objects > 0
    world.commit(c=b"later")
    assert run_nightly(world.ctx, engines, GcOptions()).mark_summary.baseline_mark_id
assert world.repo.why_path("main", "a")
"""
    modules = imported_by(code, cwd=Path(__file__).parents[2])
    assert {"pyarrow", "numpy"} <= modules
    assert modules & {"pandas", "pyspark", "structlog", "rich", "pydantic"} == set()


def test_the_service_answers_before_it_has_imported_its_routes_and_pages(data: str) -> None:
    code = f"""
import asyncio, sys
from refstore.configuration.configured_lake import find_settings
from refstore_api import create_app
app = create_app(find_settings({{"data": {data!r}}}).settings)
async def status_of(path):
    sent = []
    async def receive():
        return {{"type": "http.request", "body": b"", "more_body": False}}
    async def send(message):
        sent.append(message)
    scope = {{"type": "http", "asgi": {{"version": "3.0"}}, "http_version": "1.1", "method": "GET", "scheme": "http",
             "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
             "headers": [(b"host", b"lake")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {{}}}}
    await app(scope, receive, send)
    return sent[0]["status"]
assert asyncio.run(status_of("/healthcheck")) == 204
early = set(sys.modules)
assert asyncio.run(status_of("/api/v1/repositories")) == 401
assert "refstore_api.routes.repositories" in sys.modules and "jinja2" not in sys.modules
assert asyncio.run(status_of("/ui")) == 303
assert "jinja2" in sys.modules and not {{"pandas", "pyspark", "structlog"}} & set(sys.modules)
assert asyncio.run(status_of("/readiness")) == 200
assert asyncio.run(status_of("/")) == 303
for name in set(sys.modules) - early:
    del sys.modules[name]
"""
    modules = imported_by(code)
    assert modules & {*CLIENTS, *PARQUET, *CONSOLE, "pandas", "jinja2", "pydantic.v1"} == set()
    assert not {name for name in modules if re.match(r"refstore_(gc|purge|reaper)\\b|refstore_api\\.ui\\.", name)}


def test_a_service_imports_structlog_with_its_first_record() -> None:
    log = "from refstore.core import event_log\nevent_log.get_logger('refstore.x').warning('seen')\n"
    code = (
        "import sys\nfrom refstore.configuration import logs\nfrom refstore.configuration.settings import LogSettings\n"
        "logs.configure_logs(LogSettings(), sys.stderr, service={service})\nassert 'structlog' not in sys.modules\n"
        + log
    )
    assert "structlog" in imported_by(code.format(service=True))
    assert not imported_by(code.format(service=False)) & {"structlog", "rich"}


FORBIDDEN: Final = re.compile(
    r"\b(pa|pyarrow)\.(array|scalar|asarray)\(|\.(from_pylist|from_pydict|to_pandas|from_pandas|to_numpy)\("
)


def test_no_source_makes_arrays_in_the_way_that_imports_pandas() -> None:
    """The purge is excepted, which runs on Spark, with pandas."""
    found = [
        f"{file}:{number}: {line.strip()}"
        for folder in PRODUCT
        for file in sorted(Path(folder).rglob("*.py"))
        if "refstore_purge" not in file.parts
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert found == []
