"""Every page, by role, with and without JavaScript, for people who see and who do not.

An operator, who sees all pages, opens each with and without JavaScript; the roles that see fewer open theirs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.purging import content_of, rewrite
from tests.ui.conftest import HOSTILE, RESTRICTED, Site, Visitor

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

FOR_OPERATORS = (
    "/keys",
    "/keys/UI-READER/revoke",
    "/audit",
    "/audit?action=rules.",
    "/prunes",
    "/prunes/1/{prune}",
    "/repositories/sales/marks/{mark}/unmark",
    "/repositories/sales/marks/{mark}/confirm",
    "/repositories/sales/marks/{commit}/unmark",
    "/repositories/sales/rules/edit",
    "/repositories/sales/rules/history",
    "/repositories/events/purges/{purge}/restore",
)
FOR_ALL = (
    "",
    "?q=sal&warned=true",
    "/reapers",
    "/repositories/sales",
    "/repositories/sales/commits",
    "/repositories/sales/commits?ref=dev/one",
    "/repositories/sales/commits/{commit}",
    "/repositories/sales/objects",
    "/repositories/sales/objects?ref=dev/one&prefix=tmp/",
    "/repositories/sales/object?ref=main&path=2026/part-1.csv",
    "/repositories/sales/address?address={address}",
    "/repositories/sales/trash",
    "/repositories/sales/trash?branch=dev/one&prefix=tmp",
    "/repositories/sales/marks",
    "/repositories/sales/marks/{mark}",
    "/repositories/sales/runs",
    "/repositories/sales/runs/{mark}",
    "/repositories/sales/rules",
    "/repositories/events/rules",
    "/repositories/events/trash",
    "/repositories/events/runs",
    "/repositories/events/marks",
    "/repositories/events/purges",
    "/repositories/events/purges/{purge}",
)


@pytest.fixture(scope="package")
def places(site: Site) -> dict[str, str]:
    """What stands in braces in the addresses of pages."""
    repo = site.lake.repository("sales")
    return {
        "mark": site.mark,
        "purge": site.purge,
        "prune": site.prune,
        "commit": str(list(repo.log("main"))[2].id),
        "address": repo.stat("main", "2026/part-1.csv").address,
    }


def problems(visitor: Visitor) -> Iterator[str]:
    """Yield what axe-core calls serious or critical."""
    from axe_playwright_python.sync_playwright import Axe

    for each in Axe().run(visitor.page).response["violations"]:
        if each["impact"] in ("serious", "critical"):
            yield f"{each['id']}: {each['nodes'][0]['html'][:200]}"


@pytest.mark.parametrize(
    ("role", "javascript"),
    [("reader", False), ("writer", True), ("operator", True), ("operator", False)],
    ids=["reader-no-javascript", "writer-javascript", "operator-javascript", "operator-no-javascript"],
)
def test_each_role_sees_its_pages(
    visit: Callable[..., Visitor], places: dict[str, str], role: str, javascript: bool
) -> None:
    visitor = visit(role, javascript=javascript)
    for path in FOR_ALL:
        assert visitor.go(path.format(**places)) == 200, path
        assert visitor.heading, path
    for path in FOR_OPERATORS:
        assert visitor.go(path.format(**places)) == (200 if role == "operator" else 403), path
        assert visitor.heading, path
    assert visitor.page.get_by_role("link", name="Audit log").count() == (role == "operator")


@pytest.mark.parametrize("width", [1200, 360], ids=["wide", "phone"])
def test_axe_finds_nothing_serious_on_any_page(
    visit: Callable[..., Visitor], places: dict[str, str], width: int
) -> None:
    visitor = visit(width=width)
    visitor.go("/sign-in")
    assert not [*problems(visitor)]
    visitor.sign_in("UI-OPERATOR")
    for path in (*FOR_ALL, *FOR_OPERATORS, "/no-such-page"):
        visitor.go(path.format(**places))
        assert not [*problems(visitor)], path
        wider = visitor.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, path


BROKEN_WORDS = """
() => {
  const broken = [];
  for (const cell of document.querySelectorAll("td, th")) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      for (const word of texts.currentNode.data.matchAll(/(?<![0-9A-Za-z])[A-Za-z]{2,24}(?![0-9A-Za-z])/g)) {
        const range = document.createRange();
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].map((each) => Math.round(each.top)));
        if (lines.size > 1) broken.push(word[0]);
      }
    }
  }
  return broken;
}
"""
"""Return the words of tables that stand on two lines. Ids and paths are no words; they may be broken."""


def test_no_word_of_a_table_is_broken_in_the_middle(visit: Callable[..., Visitor], places: dict[str, str]) -> None:
    visitor = visit("operator", width=1280)
    found = {}
    for path in (*FOR_ALL, *FOR_OPERATORS):
        visitor.go(path.format(**places))
        if words := visitor.page.evaluate(BROKEN_WORDS):
            found[path] = words
    assert not found


def test_pages_can_be_used_in_the_dark(visit: Callable[..., Visitor], places: dict[str, str]) -> None:
    visitor = visit("operator")
    visitor.page.emulate_media(color_scheme="dark")
    for path in ("", "/repositories/sales", "/repositories/sales/marks/{mark}", "/repositories/sales/rules/edit"):
        visitor.go(path.format(**places))
        assert not [*problems(visitor)], path


def test_a_page_is_used_by_the_keyboard(visit: Callable[..., Visitor]) -> None:
    visitor = visit("reader")
    visitor.go("/repositories/sales")
    visitor.page.keyboard.press("Tab")
    assert visitor.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    visitor.page.keyboard.press("Enter")
    assert visitor.page.url.endswith("#main")
    names: list[str] = []
    for _ in range(40):
        visitor.page.keyboard.press("Tab")
        names.append(visitor.page.evaluate("document.activeElement.textContent.trim()"))
    assert {"Commits", "Trash", "dev/one", "v1"} <= set(names)


def test_nothing_that_a_user_stored_is_rendered(visit: Callable[..., Visitor], places: dict[str, str]) -> None:
    visitor = visit("operator")
    shown = 0
    for path in (*FOR_ALL, *FOR_OPERATORS):
        visitor.go(path.format(**places))
        shown += HOSTILE in visitor.page.locator("body").inner_text()
        assert visitor.page.locator("img").count() == 0, path
        assert visitor.page.locator("script:not([src])").count() == 0, path
    assert shown >= 5  # it is shown as the text that it is


def test_the_commit_says_what_seed_003_says(visit: Callable[..., Visitor], places: dict[str, str]) -> None:
    visitor = visit("reader")
    visitor.go(f"/repositories/sales/commits/{places['commit']}")
    assert "This commit has been scheduled for deletion." in visitor.text()
    visitor.go("/repositories/sales/commits")
    assert "scheduled for deletion" in visitor.text()
    assert "active" in visitor.text()


def test_a_key_for_one_repository_sees_no_other(visit: Callable[..., Visitor]) -> None:
    visitor = visit(RESTRICTED)
    assert visitor.page.get_by_role("link", name="sales").count() == 1
    assert visitor.page.get_by_role("link", name="events").count() == 0
    for path in ("/repositories/events", "/keys", "/audit", "/prunes", "/repositories/events/trash"):
        assert visitor.go(path) == 403, path
    assert visitor.go("/repositories/sales/rules/edit") == 200
    visitor.go("/reapers")
    assert "not shown" in visitor.text()


def test_the_page_of_the_mark_says_what_goes_and_why(visit: Callable[..., Visitor], site: Site) -> None:
    visitor = visit("reader")
    visitor.go(f"/repositories/sales/marks/{site.mark}")
    text = visitor.text()
    assert "It waits for an operator" in text
    assert "expired" in text
    assert "data/" in text
    assert "How long each step took" in text
    assert visitor.page.get_by_role("link", name="Confirm the deletion").count() == 0


def test_an_unknown_page_says_what_to_do(visit: Callable[..., Visitor]) -> None:
    visitor = visit("reader")
    for path in ("/nowhere", "/repositories/none", "/repositories/sales/marks/01none", "/repositories/sales/runs/01no"):
        assert visitor.go(path) == 404, path
        assert "What to do" in visitor.text()
    assert visitor.go("/repositories/sales/commits?skip=x") == 400


def test_the_page_of_an_address_says_what_it_is_to_a_purged_object(visit: Callable[..., Visitor], site: Site) -> None:
    repo = site.repository()
    identity = repo.upload("main", "a", b"rows").address
    repo.commit("main", "a")
    content = content_of(rewrite(repo, "main", "a", b"fewer"))
    visitor = visit("reader", javascript=False)
    visitor.go(f"/repositories/{repo.name}/address?address={content}")
    assert f"it is the content of the object {identity}" in visitor.text()
    assert "orphan" not in visitor.text()
    visitor.follow(identity)
    assert f"the run run-1 has put its content at {content}" in visitor.text()
    visitor.go(f"/repositories/{repo.name}/object?ref=main&path=a")
    assert f"the run run-1 has put its content at {content}" in visitor.text()
