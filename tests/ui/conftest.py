"""A running `refstore serve` over a lake with a bit of everything, and a real Chromium on its pages.

The marks, runs and purges that the pages show were made by the real commands, on Spark. Tests that change something
make a repository of their own.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest

import refstore_prune
from refstore.configuration.settings import ReaperSettings, embedded_urls
from refstore.core.ids import branch_name
from refstore.gc_marks import Marks, new_mark_id
from refstore.kv import open_kv
from refstore.lake import Lake, open_lake_at
from refstore.operations import multipart
from refstore.repository import Repository
from refstore.service import access_keys
from refstore.service.access_keys import Role
from refstore_reaper.daemon import Reaper
from tests.api.conftest import serving
from tests.durations import AT_ONCE, COLLECTOR
from tests.prune.folders import make_store, write_list
from tests.purge.tracking import PARTITION, PREFIX, event, onboard, parquet

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page

SECRET = "a-secret-that-only-these-tests-know"
KEYS = {role.name.lower(): f"UI-{role.name}" for role in Role}
RESTRICTED = "UI-RESTRICTED"
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
"""What users store; no page may render it."""
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium") or ""
"""Without the parts that only people at a screen need, it takes less than half of the processor time."""
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DAY_ZERO = {"default_retention_days": 0, "branches": [], "grace_days": 7}
SAFETY = replace(COLLECTOR, grace_seconds=3600.0)


@dataclass
class Site:
    """The service, and the lake behind it."""

    url: str
    folder: Path
    lake: Lake
    mark: str = ""
    """Of the repository `sales`: a mark that needs confirmation."""
    purge: str = ""
    """The run of the repository `events`; what it replaced can be restored."""
    prune: str = ""
    """A run over a store that is not the lake's."""

    def environment(self) -> dict[str, str]:
        kv, objects = embedded_urls(self.folder / "lake")
        return {
            **os.environ,
            "HOME": str(self.folder),
            "REFSTORE_KV": kv,
            "REFSTORE_REAPER_RESERVE": "0",
            "REFSTORE_OBJECTS": objects,
        }

    @contextmanager
    def command(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run a real command; it ends with the block."""
        with subprocess.Popen(
            [sys.executable, "-m", "refstore", *arguments],
            env=self.environment(),
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def repository(self) -> Repository:
        """Make a repository of the test's own."""
        return self.lake.create_repository("t-" + secrets.token_hex(6))

    def standing_mark(self, repo: Repository, *, question: str = "") -> str:
        """Mark the commits that the rules let expire, as if nobody else were at work."""
        kv, objects = embedded_urls(self.folder / "lake")
        with Lake(open_kv(kv), objects, safety=AT_ONCE) as alone:
            ctx = alone.repository(repo.name).context
            marks, mark_id = Marks(ctx), new_mark_id(ctx)
            expired = [each.id for each in repo.log("main")][1:]
            run = marks.mark_run.begin("digest", 7 * 86_400_000, expired, mark_id)
            marks.mark_run.wait(run)
            for _ in marks.mark_run.scan_live(run):
                pass
            marks.mark_run.finish(run, {"objects": 3, "bytes": 300}, question=question)
            return mark_id


def fill(repo: Repository, *, commits: int = 2) -> None:
    """Commit several times, so that old contents of a path are left."""
    for number in range(commits):
        for part in range(6):
            repo.upload("main", f"2026/part-{part}.csv", b"x" * (100 + 10 * number + part))
        repo.commit("main", f"Load {number}", committer="ada")


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("ui")
    (folder / "lake").mkdir()
    kv, objects = embedded_urls(folder / "lake")
    with open_lake_at(kv, objects, safety=SAFETY) as lake:
        for role in Role:
            access_keys.create_key(lake, role, id=KEYS[role.name.lower()], secret=SECRET)
        access_keys.create_key(lake, Role.OPERATOR, id=RESTRICTED, secret=SECRET, repositories=["sales"])
        made = Site("", folder, lake)
        _make_sales(lake)
        _make_events(lake)
        with Reaper(lake, ReaperSettings()) as reaper:
            reaper.run_once(lambda: False)  # references of what was committed keep it from being marked
        made.mark, made.purge = _run_jobs(made)
        pruned = make_store(folder / "pruned", ["a/1", "a/2", f"b/{HOSTILE.replace('/', '')}"])
        names = f"list:{write_list(folder / 'names.txt', ['a/1', 'a/2'])}"
        made.prune = refstore_prune.prune(pruned, names).run_id
        with serving(folder / "serve", kv, objects, "--prune-state", str(pruned)) as running:
            made.url = running.url
            yield made


def _make_sales(lake: Lake) -> None:
    repo = lake.create_repository("sales")
    fill(repo)
    repo.upload("main", f"2026/{HOSTILE}.csv", b"hostile", metadata={"note": HOSTILE})
    repo.commit("main", HOSTILE, committer=HOSTILE, metadata={"job": HOSTILE})
    repo.create_branch("dev/one", source="main")
    repo.create_tag("v1", ref="main~1")
    for number in range(3):
        repo.upload("dev/one", f"tmp/{number}.bin", b"z" * 500)
    repo.upload("dev/one", f"tmp/{HOSTILE}", b"q")
    repo.delete_many("dev/one", ["tmp/0.bin", f"tmp/{HOSTILE}"])
    upload = multipart.begin(repo.context, branch_name("dev/one"), f"tmp/parts-{HOSTILE}", seconds=86_400)
    multipart.write_part(repo.context, upload.name, 1, b"part")
    repo.set_retention(json.dumps({**DAY_ZERO, "pins": {"tags": False}}, indent=2), by=HOSTILE)


def _make_events(lake: Lake) -> None:
    repo = lake.create_repository("events")
    for name, guest in (("a", "bob"), ("b", "dan")):
        repo.upload("main", f"{PREFIX}{PARTITION}/{name}.parquet", parquet([event(guest, 1), event("ann", 2)]))
    repo.commit("main", "events")
    onboard(repo, mode="rewrite")


def _run_jobs(site: Site) -> tuple[str, str]:
    limits = ("--min-age", "6s", "--breaker-share", "0.01", "--breaker-floor", "1")
    with site.command("gc", "run", "sales", *limits) as marking:
        ids = site.folder / "bob.csv"
        ids.write_text("id\nbob\n")
        with site.command("purge", "run", "events", "--ids", str(ids), "--yes", "--json") as purging:
            out, _ = purging.communicate()
        assert purging.returncode == 0, out
        (run,) = re.findall(r'"run": ?"([^"]+)"', out)[:1]
        out, _ = marking.communicate()
    assert marking.returncode == 4, out
    (mark,) = [run.mark_id for run in Marks(site.lake.repository("sales").context).runs.scan()]
    return mark, run


@contextmanager
def stopped_deletion(site: Site) -> Iterator[Repository]:
    """Yield a repository whose hard deletion the breaker stopped."""
    repo = site.repository()
    for number in range(5):
        repo.upload("main", f"{number}", b"x")
    repo.reset("main")
    kv, objects = embedded_urls(site.folder / "lake")
    limits = ReaperSettings(breaker_share=0.1, breaker_floor_objects=1)
    with open_lake_at(kv, objects) as lake, Reaper(lake, limits, repositories=[repo.name], grace_seconds=0) as reaper:
        reaper.run_once(lambda: False)
    yield repo


# ---- a browser


# not of the session: while Playwright runs, no other test of the process can run an event loop
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("Chromium is not installed: make setup-system")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield started
        started.close()


@dataclass
class Visitor:
    """A person with a browser, and what their browser did."""

    site: Site
    context: BrowserContext
    page: Page
    javascript: bool
    hosts: set[str]
    trouble: list[str]
    """Errors of the console, and dialogs."""

    def sign_in(self, key_id: str, secret: str = SECRET) -> None:
        self.go("/sign-in")
        self.page.get_by_label("Access key id").fill(key_id)
        self.page.get_by_label("Secret").fill(secret)
        self.press("Sign in")

    def go(self, path: str) -> int:
        """Go to a page below `/ui`, and return the status of the answer."""
        answer = self.page.goto(f"{self.site.url}/ui{path}")
        assert answer is not None
        return answer.status

    def press(self, name: str) -> None:
        self.click(self.page.get_by_role("button", name=name))

    def follow(self, name: str) -> None:
        self.click(self.page.get_by_role("link", name=name).first)

    def click(self, what: Locator) -> None:
        """Click on what leads to another page, and wait until its text is there: Playwright's click does not."""
        with self.page.expect_event("domcontentloaded"):
            what.click()

    @property
    def heading(self) -> str:
        return self.page.get_by_role("heading", level=1).inner_text()

    def fact(self, name: str) -> str:
        """Return what a table of facts says."""
        header = self.page.get_by_role("rowheader", name=name, exact=True)
        return self.page.get_by_role("row").filter(has=header).get_by_role("cell").inner_text()

    def text(self) -> str:
        return self.page.locator("main").inner_text()


@pytest.fixture
def visit(browser: Browser, site: Site) -> Iterator[Callable[..., Visitor]]:
    """Return a function that begins a visit; every visit ends with the test, and must not have met trouble."""
    visitors: list[Visitor] = []

    def begin(role: str = "", *, javascript: bool = True, width: int = 1200) -> Visitor:
        context = browser.new_context(java_script_enabled=javascript, viewport={"width": width, "height": 900})
        context.set_default_timeout(20_000)
        page = context.new_page()
        visitor = Visitor(site, context, page, javascript, set(), [])
        context.on("request", lambda request: visitor.hosts.add(urlsplit(request.url).netloc))
        page.on("dialog", lambda dialog: (visitor.trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "console",
            lambda message: (
                visitor.trouble.append(message.text)
                if message.type == "error" and "status of 4" not in message.text
                else None
            ),
        )
        page.on("pageerror", lambda error: visitor.trouble.append(str(error)))
        visitors.append(visitor)
        if role:
            visitor.sign_in(KEYS.get(role, role))
        return visitor

    yield begin
    for visitor in visitors:
        visitor.context.close()
        assert visitor.hosts <= {urlsplit(site.url).netloc}
        assert not visitor.trouble


# ---- without a browser


class Client:
    """A signed-in client that sends what a test wants to send."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)

    def form_token(self, path: str) -> str:
        answer = self.http.get(path)
        found = re.search(r'name="form_token" value="([0-9a-f]+)"', answer.text)
        assert found is not None, answer.text
        return found[1]

    def sign_in(self, key_id: str, secret: str = SECRET, **fields: str) -> httpx.Response:
        form = {"form_token": self.form_token("/ui/sign-in"), "access_key_id": key_id, "secret_access_key": secret}
        headers = {"Origin": str(self.http.base_url).rstrip("/")}  # as browsers do
        return self.http.post("/ui/sign-in", data={**form, **fields}, headers=headers)


@pytest.fixture
def client(site: Site) -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def make(role: str = "") -> Client:
        made = Client(site.url)
        clients.append(made)
        if role:
            assert made.sign_in(KEYS.get(role, role)).status_code == 303
        return made

    yield make
    for each in clients:
        each.http.close()
