"""Every act of the pages in a real browser, and who may do it.

The one script of the pages brings a page that moves up to date; forms and links are plain HTML. So five acts run with
and without JavaScript, one for each way in which a page works: a session that begins and ends with a redirection; a
table of check boxes with a dry run; an editor that returns what was typed; a page that follows a run by itself, by the
script or by reloading; and an answer that is shown once. `test_pages.py` opens every page without JavaScript, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from refstore.audit.audit_reader import entries_newest_first
from refstore.gc_marks import Marks, RunState
from refstore.monitoring import run_control
from refstore.repository import Repository
from refstore.service import access_keys
from refstore_reaper import breaker
from tests.ui.conftest import DAY_ZERO, SECRET, Site, Visitor, fill, stopped_deletion

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

Visit = Callable[..., Visitor]


@pytest.fixture(params=[True, False], ids=["javascript", "no-javascript"])
def javascript(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def audited(site: Site, repository: str) -> list[tuple[str, str]]:
    """Return who did what in a repository, the newest first."""
    return [
        (read.entry.act.action, read.entry.act.actor.id)
        for read in entries_newest_first(site.lake.kv, site.lake.own_store)
        if read.entry is not None and read.entry.act.repository == repository and read.entry.act.outcome == "done"
    ]


def expiring(site: Site) -> Repository:
    """Make a repository whose first commit has expired."""
    repo = site.repository()
    fill(repo, commits=3)
    repo.set_retention(json.dumps(DAY_ZERO))
    return repo


def lossy(site: Site) -> Repository:
    """Make a repository that has lost three objects."""
    repo = site.repository()
    for number in range(3):
        repo.upload("main", f"lost/{number}", b"x" * 100)
    repo.delete_many("main", [f"lost/{number}" for number in range(3)])
    return repo


# ---- signing in and out


def test_signing_in_leads_back_and_signing_out_ends_it(visit: Visit, javascript: bool) -> None:
    visitor = visit(javascript=javascript)
    visitor.go("/repositories/sales/trash")
    assert visitor.heading == "Sign in"
    visitor.page.get_by_label("Access key id").fill("UI-READER")
    visitor.page.get_by_label("Secret").fill("a wrong secret, but long enough")
    visitor.press("Sign in")
    assert "no such access key, or not its secret" in visitor.page.get_by_role("alert").inner_text()
    visitor.page.get_by_label("Access key id").fill("UI-READER")
    visitor.page.get_by_label("Secret").fill(SECRET)
    visitor.press("Sign in")
    assert visitor.page.url.endswith("/ui/repositories/sales/trash")
    assert "UI-READER (reader)" in visitor.page.get_by_role("banner").inner_text()
    visitor.press("Sign out")
    visitor.go("/repositories/sales")
    assert visitor.heading == "Sign in"


# ---- the trash


def test_a_writer_restores_what_was_chosen(visit: Visit, site: Site, javascript: bool) -> None:
    repo = lossy(site)
    visitor = visit("writer", javascript=javascript)
    visitor.go(f"/repositories/{repo.name}/trash")
    visitor.page.get_by_label("Restore lost/0", exact=True).check()
    visitor.page.get_by_label("Restore lost/2", exact=True).check()
    visitor.press("Restore the chosen ones")
    assert visitor.fact("Restored") == "2 objects, 200 B"
    assert [item.path for item in repo.list("main")] == []  # it was a dry run
    visitor.press("Restore")
    assert visitor.fact("Restored") == "2 objects, 200 B"
    assert [item.path for item in repo.list("main")] == ["lost/0", "lost/2"]


def test_a_writer_chooses_all_that_a_page_shows_in_the_order_of_paths(
    visit: Visit, site: Site, javascript: bool
) -> None:
    repo = lossy(site)
    visitor = visit("writer", javascript=javascript)
    visitor.go(f"/repositories/{repo.name}/trash")
    shown = visitor.page.get_by_role("checkbox").all()
    assert [each.get_attribute("aria-label") for each in shown] == [f"Restore lost/{number}" for number in range(3)]
    visitor.follow("Choose all on this page")
    visitor.page.get_by_label("Restore lost/1", exact=True).uncheck()
    visitor.press("Restore the chosen ones")
    assert visitor.fact("Restored") == "2 objects, 200 B"
    visitor.press("Restore")
    assert [item.path for item in repo.list("main")] == ["lost/0", "lost/2"]


def test_a_writer_restores_everything_below_a_prefix_to_another_branch(visit: Visit, site: Site) -> None:
    repo = lossy(site)
    repo.create_branch("rescue", source="main")
    visitor = visit("writer")
    visitor.go(f"/repositories/{repo.name}/trash")
    visitor.page.get_by_label("Lost on branch").fill("main")
    visitor.page.get_by_label("Path begins with").fill("lost/")
    visitor.press("Show")
    visitor.page.get_by_label("Restore to branch").fill("rescue")
    visitor.press("Restore everything that main lost below lost/")
    assert visitor.fact("Restored") == "3 objects, 300 B"
    visitor.press("Restore")
    assert [item.path for item in repo.list("rescue")] == ["lost/0", "lost/1", "lost/2"]


def test_what_was_written_since_is_replaced_only_on_request(visit: Visit, site: Site) -> None:
    repo = lossy(site)
    repo.upload("main", "lost/1", b"newer")
    visitor = visit("writer")
    for force, body in ((False, b"newer"), (True, b"x" * 100)):
        visitor.go(f"/repositories/{repo.name}/trash")
        visitor.page.get_by_label("Restore lost/1", exact=True).check()
        visitor.press("Restore the chosen ones")
        assert "was written since" in visitor.text()
        if force:
            visitor.page.get_by_label("Replace what was written to these paths since").check()
        visitor.press("Restore")
        assert repo.read("main", "lost/1") == body


def test_a_reader_restores_nothing(visit: Visit, site: Site) -> None:
    repo = lossy(site)
    visitor = visit("reader")
    visitor.go(f"/repositories/{repo.name}/trash")
    assert visitor.page.get_by_role("checkbox").count() == 0
    assert visitor.page.get_by_role("button", name="Restore").count() == 0


# ---- marks


def test_an_operator_unmarks_one_commit(visit: Visit, site: Site) -> None:
    repo = expiring(site)
    mark = site.standing_mark(repo)
    commit = next(Marks(repo.context).commits.scan_marked(mark))
    visitor = visit("operator")
    visitor.go(f"/repositories/{repo.name}/commits/{commit}")
    visitor.follow("Unmark this commit")
    assert visitor.fact("Commits that become active again") == "1"
    visitor.page.get_by_label("Pin these commits").check()
    visitor.press("Unmark")
    assert visitor.fact("Pinned in the rules") == "1"
    assert Marks(repo.context).commits.read_marks([commit]) == [None]
    retention = repo.retention()
    assert retention is not None
    assert commit in retention.rules.pins.commits
    assert ("gc.unmark", "UI-OPERATOR") in audited(site, repo.name)


def test_an_operator_unmarks_a_whole_mark(visit: Visit, site: Site) -> None:
    repo = expiring(site)
    mark = site.standing_mark(repo)
    visitor = visit("operator")
    visitor.go(f"/repositories/{repo.name}/marks")
    visitor.follow("Unmark")
    assert "the next run marks them again" in visitor.text()
    visitor.press("Unmark")
    assert Marks(repo.context).runs.get(mark).state is RunState.ABANDONED
    visitor.go(f"/repositories/{repo.name}/runs")
    assert "unmarked" in visitor.text()


def test_an_operator_confirms_what_the_breaker_holds(visit: Visit, site: Site) -> None:
    repo = expiring(site)
    mark = site.standing_mark(repo, question="3 of 4 objects would go")
    visitor = visit("operator")
    visitor.go(f"/repositories/{repo.name}/marks/{mark}")
    assert "3 of 4 objects would go" in visitor.text()
    visitor.follow("Confirm the deletion")
    assert (visitor.fact("Objects"), visitor.fact("Bytes")) == ("3", "300 B")
    assert Marks(repo.context).runs.get(mark).state is RunState.NEEDS_CONFIRMATION
    visitor.press("Confirm the deletion")
    confirmed = Marks(repo.context).runs.get(mark)
    assert (confirmed.state, confirmed.record.confirmed_by) == (RunState.MARKED, "UI-OPERATOR")
    visitor.go(f"/repositories/{repo.name}/marks/{mark}/confirm")
    assert visitor.page.get_by_role("button", name="Confirm the deletion").count() == 0


# ---- rules


def test_an_operator_edits_the_rules_and_sees_their_effect_first(visit: Visit, site: Site, javascript: bool) -> None:
    repo = site.repository()
    fill(repo, commits=3)
    visitor = visit("operator", javascript=javascript)
    visitor.go(f"/repositories/{repo.name}/rules")
    assert "no commit ever expires" in visitor.text()
    visitor.follow("Make rules")
    editor = visitor.page.get_by_label("The rules, in JSON")
    editor.fill('{\n  "default_retention_days": 0,\n  "grace_day": 7\n}')
    visitor.press("Show what the rules would do")
    assert "did you mean 'grace_days'?" in visitor.page.get_by_role("alert").inner_text()
    assert '"grace_day": 7' in editor.input_value()  # what was typed is not lost
    editor.fill(json.dumps(DAY_ZERO))
    visitor.press("Show what the rules would do")
    row = visitor.page.get_by_role("row", name="Marked by the next run").get_by_role("cell")
    assert row.all_inner_texts() == ["0", "3"]
    assert repo.retention() is None
    visitor.press("Save these rules")
    retention = repo.retention()
    assert retention is not None
    assert (retention.rules.default_retention_days, retention.set_by) == (0, "UI-OPERATOR")
    visitor.go(f"/repositories/{repo.name}/rules/history")
    assert "rules.set by UI-OPERATOR" in visitor.text()


@pytest.mark.parametrize(
    ("rules", "danger"),
    [
        (
            {
                "rules": [{"filter": {"prefix": "2026/"}, "expiration": {"all": {"days": 1}}}],
                "allow_deletion_from_latest_view": True,
            },
            "may delete data that branches show now",
        ),
        ({"default_retention_days": 7, "keep_latest_view": False}, "may delete data of the latest view"),
    ],
)
def test_deletion_from_the_latest_view_needs_its_box(
    visit: Visit, site: Site, rules: dict[str, Any], danger: str
) -> None:
    repo = site.repository()
    fill(repo)
    visitor = visit("operator")
    visitor.go(f"/repositories/{repo.name}/rules/edit")
    visitor.page.get_by_label("The rules, in JSON").fill(json.dumps(rules))
    visitor.press("Show what the rules would do")
    assert "tick the box" in visitor.page.get_by_role("alert").inner_text()
    assert "data that is in use" in visitor.text()
    visitor.page.get_by_label("I have read this").check()
    visitor.press("Show what the rules would do")
    assert danger in visitor.text()
    visitor.press("Save these rules")
    retention = repo.retention()
    assert retention is not None
    assert retention.rules.allows_latest_view_expiry
    visitor.go(f"/repositories/{repo.name}/rules")
    assert danger.removeprefix("may ") in visitor.text()


def test_a_legal_hold_goes_only_when_its_box_is_ticked(visit: Visit, site: Site) -> None:
    repo = site.repository()
    repo.set_retention(json.dumps({**DAY_ZERO, "legal_holds": [{"prefix": "2026/", "reason": "case 4711"}]}))
    visitor = visit("operator")
    visitor.go(f"/repositories/{repo.name}/rules/edit")
    visitor.page.get_by_label("The rules, in JSON").fill(json.dumps(DAY_ZERO))
    visitor.press("Show what the rules would do")
    row = visitor.page.get_by_role("row", name="hold:2026/").get_by_role("cell")
    assert row.all_inner_texts() == ["removed", "legal hold", "hold:2026/", "case 4711", ""]
    visitor.press("Save these rules")
    assert "without hold:2026/ nothing was saved" in visitor.page.get_by_role("alert").inner_text()
    retention = repo.retention()
    assert retention is not None
    assert retention.rules.legal_holds
    visitor.page.get_by_label("Remove the legal hold hold:2026/").check()
    visitor.press("Save these rules")
    retention = repo.retention()
    assert retention is not None
    assert not retention.rules.legal_holds


def test_an_edit_that_another_overtook_changes_nothing(visit: Visit, site: Site) -> None:
    repo = site.repository()
    visitor = visit("operator")
    visitor.go(f"/repositories/{repo.name}/rules/edit")
    visitor.page.get_by_label("The rules, in JSON").fill(json.dumps(DAY_ZERO))
    repo.set_retention('{"default_retention_days": 99}')
    visitor.press("Show what the rules would do")
    assert "somebody changed the rules" in visitor.text()
    retention = repo.retention()
    assert retention is not None
    assert retention.rules.default_retention_days == 99


# ---- runs and reapers


def test_an_operator_watches_a_run_and_stops_it(visit: Visit, site: Site, javascript: bool) -> None:
    """Meanwhile a reader's page follows the run to its end by itself."""
    repo = expiring(site)
    visitor = visit("operator", javascript=javascript)
    reader = visit("reader", javascript=javascript)
    visitor.go(f"/repositories/{repo.name}/runs")
    assert "No run is under way." in visitor.text()
    with site.command("gc", "run", "--only", "mark", repo.name, "--min-age", "6s") as running:
        while not any(run_control.active_runs(repo.context)):
            assert running.poll() is None
            visitor.page.wait_for_timeout(100)
        visitor.go(f"/repositories/{repo.name}/runs")
        assert "running for" in visitor.text()
        reader.go(f"/repositories/{repo.name}/runs")
        assert "running for" in reader.text()
        assert reader.page.get_by_role("link", name="Stop this run").count() == 0
        visitor.follow("Stop this run")
        assert visitor.fact("Run").startswith("mark ")
        visitor.press("Stop the run")
        assert visitor.heading == "The run was asked to stop"
        out, _ = running.communicate()
    reader.page.get_by_text("No run is under way.").wait_for(timeout=90_000)
    assert running.returncode == 4
    assert "UI-OPERATOR stopped the run" in out
    (run,) = Marks(repo.context).runs.scan()
    assert run.state is RunState.ABANDONED
    assert not list(Marks(repo.context).commits.scan())
    visitor.go(f"/repositories/{repo.name}/runs")
    assert "No run is under way." in visitor.text()
    assert "UI-OPERATOR stopped the run" in visitor.text()


def test_an_operator_lets_stopped_deletion_go_on(visit: Visit, site: Site) -> None:
    with stopped_deletion(site) as repo:
        visitor = visit("operator")
        visitor.go(f"/repositories/{repo.name}")
        assert "Deletion is stopped" in visitor.text()
        visitor.go(f"/repositories/{repo.name}/resume")
        assert "5 objects are due for deletion" in visitor.fact("Stopped because")
        visitor.page.get_by_label("For how long").select_option("objects")
        visitor.page.get_by_label("How many hours, or objects").fill("3")
        visitor.press("Let it delete")
        assert "goes on" in visitor.fact("Result")
        state = breaker.read_state(repo.context.kv, repo.context.repo)
        assert state is not None
        assert (state.tripped_ms, state.allowed_objects) == (0, 3)


# ---- purges, keys


def test_an_operator_restores_what_a_purge_replaced(visit: Visit, site: Site) -> None:
    run = site.purge
    visitor = visit("operator")
    visitor.go(f"/repositories/events/purges/{run}")
    assert "Places that still have rows of the ids" in visitor.text()
    assert f"refstore purge restore events {run}" in visitor.text()
    visitor.follow("Restore what it replaced")
    assert visitor.fact("Objects restored") == "1"
    visitor.press("Restore")
    assert visitor.fact("Objects restored") == "1"
    visitor.go(f"/repositories/events/purges/{run}/restore")
    assert "There is nothing to do." in visitor.text()


def test_an_operator_makes_a_key_and_revokes_it(visit: Visit, site: Site, javascript: bool) -> None:
    visitor = visit("operator", javascript=javascript)
    visitor.go("/keys")
    visitor.page.get_by_label("Role").select_option("writer")
    visitor.page.get_by_label("Only these repositories").fill("sales, events")
    visitor.page.get_by_label("Days until it expires").fill("3")
    visitor.press("Create the key")
    secret = visitor.page.locator(".note code").all_inner_texts()
    key = next(each for each in access_keys.scan_keys(site.lake.kv) if each.id == secret[0])
    assert (key.role.name, key.repositories) == ("WRITER", ("events", "sales"))
    assert key.expires_ms
    other = visit(javascript=javascript)
    other.sign_in(*secret)
    assert other.heading == "Overview"
    visitor.go(f"/keys/{key.id}/revoke")
    assert visitor.fact("Role") == "writer"
    visitor.press("Revoke the key")
    assert all(each.id != key.id for each in access_keys.scan_keys(site.lake.kv))
    for _ in range(200):  # a service caches a key for some seconds
        if other.context.request.get(other.page.url).url.endswith("/ui/sign-in"):
            break
        other.page.wait_for_timeout(100)
    other.go("")
    assert other.heading == "Sign in"
