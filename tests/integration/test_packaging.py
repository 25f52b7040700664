"""The wheel, installed into an empty environment beside an application that has an `api` of its own.

No registry is asked: the build backend is in the lock, and the environment finds the dependencies of this one by their
folder. The project itself, which this environment holds by reference to the checkout, is not found that way.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import sysconfig
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import refstore
from refstore.configuration.settings import embedded_urls
from refstore.core.event_log import ROOTS as PACKAGES
from refstore.core.safety import Safety
from refstore.distribution import DISTRIBUTION
from tests.durations import AT_ONCE, AT_ONCE_ENVIRONMENT, set_agreed
from tests.servers.redis_servers import until
from tests.servers.s3_base import free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]

ROOT = Path(__file__).resolve().parents[2]
OF_THE_APPLICATION = ("api", "bench", "examples", "offline_gc", "purge", "reaper", "s3_gateway", "tests")

SDK = """
import api, refstore
assert api.OWNER == "application"
with refstore.create("lake") as lake:
    repo = lake.create_repository("sales")
    repo.upload("main", "a", b"1")
    repo.upload_many("main", [refstore.Upload(path="b", body=b"2")])
    made = repo.commit("main", "first")
    assert repo.read(made.id, "b") == b"2"
    repo.upload("main", "c", b"3")
    repo.reset("main")
print(refstore.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.iterdir()
    assert f"dist/{file.name}[" in (ROOT / "README.md").read_text()  # what it tells people to install
    return file


def test_the_wheel_holds_the_typed_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith("dist-info/METADATA")]
        described = archive.read(metadata).decode()
    assert {name.split("/")[0] for name in names} == {*PACKAGES, f"refstore_lake-{refstore.__version__}.dist-info"}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)
    pages = {name for name in names if name.startswith("refstore_api/ui/") and not name.endswith(".py")}
    assert {name.rsplit(".", 1)[-1] for name in pages} == {"html", "css", "js", "svg"}
    others = {name for name in names if ".dist-info/" not in name} - pages
    assert {name.rsplit(".", 1)[-1] for name in others} == {"py", "lua", "sql", "typed"}
    assert "Classifier: Typing :: Typed" in described
    assert "License-Expression: Apache-2.0" in described


def test_nothing_that_is_shipped_imports_what_is_not(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        sources = {name: archive.read(name) for name in archive.namelist() if name.endswith(".py")}
    assert len(sources) > 100
    imported = {
        (name, module.split(".")[0])
        for name, source in sources.items()
        for node in ast.walk(ast.parse(source))
        for module in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert ("refstore/cli/serve.py", "refstore_api") in imported
    assert [(name, module) for name, module in imported if module in OF_THE_APPLICATION] == []


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel, and an application's folder `app` in it."""
    folder = tmp_path_factory.mktemp("installed")
    run = subprocess.run
    run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, capture_output=True)
    install = ["pip", "install", "--offline", "--no-deps", "--no-config", "--quiet", "--python", "bin/python"]
    run([Path(sys.executable).with_name("uv"), *install, wheel], cwd=folder, check=True, capture_output=True)
    (site,) = folder.glob("lib/python*/site-packages")
    assert {entry.name for entry in site.iterdir() if not entry.name.endswith(".dist-info")} <= {
        *PACKAGES,
        "__pycache__",
    }
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in OF_THE_APPLICATION:
        package = folder / "app" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text('OWNER = "application"\n')
    return folder


def variables(environment: Path) -> dict[str, str]:
    """The application's own packages come first on the path, as they do when it is started from its folder."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("REFSTORE_", "PYTHON", "COV"))}
    return clean | {
        "PYTHONPATH": str(environment / "app"),
        "HOME": str(environment),
        "REFSTORE_DATA": "lake",
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


def start(environment: Path, *command: str, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [environment / "bin" / command[0], *command[1:]],
        cwd=environment / "app",
        env=dict(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return its output and what it wrote to standard error."""
    with process:
        try:
            out, errors = process.communicate()
        finally:
            process.kill()  # it may still run if the test was ended; otherwise this does nothing
    assert process.returncode == 0, errors[-3000:]
    return out, errors


def runner(environment: Path, names: Mapping[str, str]) -> Callable[..., str]:
    """Return what runs a command in the environment, and returns what it says."""

    def run(*command: str, **more: str) -> str:
        return finish(start(environment, *command, variables={**names, **more}))[0]

    return run


def test_beside_an_application_with_an_api_of_its_own_everything_runs(environment: Path) -> None:
    pytest.importorskip("pyspark")
    names = variables(environment)

    run = runner(environment, names)
    assert str(environment) in run("python", "-c", SDK)
    assert run("refstore", "--version") == f"refstore {refstore.__version__}\n"
    check_serve(environment, names)
    run("refstore", "reaper", "--once", "--grace", "0", "--yes")
    assert json.loads(run("refstore", "--json", "trash", "sales") or "[]") == []
    kv, _ = embedded_urls(environment / "app" / names["REFSTORE_DATA"])
    set_agreed(kv, AT_ONCE)
    run("refstore", "gc", "run", "--all", **AT_ONCE_ENVIRONMENT)
    set_agreed(kv, Safety())
    assert run("refstore", "cat", "sales", "main", "a") == "1"


BASE_ONLY = """
import os, sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["REFUSED"].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

if "REFUSED" in os.environ:
    sys.meta_path.insert(0, Refused())
"""


def modules_beyond_the_base() -> set[str]:
    """Return the modules of this environment that `pip install` without extras would not bring."""
    wanted, base = [DISTRIBUTION], set[str]()
    while wanted:
        name = wanted.pop()
        if name in base:
            continue
        base.add(name)
        for required in requires(name) or ():
            requirement = Requirement(required)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                wanted.append(canonicalize_name(requirement.name))
    modules = packages_distributions()
    return {name for name, of in modules.items() if base.isdisjoint(canonicalize_name(each) for each in of)}


def test_without_extras_the_nightly_job_runs_and_starts_no_java(environment: Path) -> None:
    refused = modules_beyond_the_base()
    assert {"pandas", "pyspark", "pyorc", "boto3", "redis", "fastapi"} <= refused
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "base_only.py").write_text(BASE_ONLY)
    (site / "base_only.pth").write_text("import base_only\n")
    names = variables(environment) | {
        "REFSTORE_DATA": "base",
        "REFUSED": ",".join(sorted(refused)),
        "PATH": str(environment / "bin"),  # no Java here
    }

    run = runner(environment, names)
    (environment / "app" / "rules.json").write_text('{"default_retention_days": 30, "grace_days": 0}')
    run("refstore", "repo", "create", "sales")
    run("refstore", "retention", "set", "sales", "rules.json")
    run("refstore", "upload", "sales", "main", "rules.json", "a")
    run("refstore", "commit", "sales", "main", "-m", "first")
    set_agreed(embedded_urls(environment / "app" / "base")[0], AT_ONCE)
    nightly = ("refstore", "gc", "run", "--all", "--min-age", "0", "--json")
    (ran,) = json.loads(run(*nightly, **AT_ONCE_ENVIRONMENT))["runs"]
    set_agreed(embedded_urls(environment / "app" / "base")[0], Safety())
    assert (ran["engine"], ran["kept"]["objects"] > 0, ran["marked"]["objects"]) == ("local", True, 0)
    assert run("refstore", "cat", "sales", "main", "a").startswith("{")


def check_serve(environment: Path, names: Mapping[str, str]) -> None:
    port = str(free_port())
    service = start(environment, "refstore", "serve", variables={**names, "REFSTORE_API_PORT": port})

    def answers() -> bool:
        assert service.poll() is None, service.communicate()[1][-3000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/healthcheck", timeout=5) as answer:
                return answer.status == 204
        except OSError:
            return False

    try:
        until(answers, "the service")
    finally:
        service.terminate()
        finish(service)
