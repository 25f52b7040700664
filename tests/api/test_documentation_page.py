"""The page at /docs: everything that it needs comes from the service, and its policy lets a browser ask nobody else."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import httpx
import pytest

from refstore_api.routes import documentation
from tests.api.service import Application

PAGE = "http://lake.test/docs"
FOREIGN = re.compile(r"""(?:src|href|url|action)\s*[=:(]\s*["']?\s*(?:[a-z]+:)?//""", re.IGNORECASE)


def get(asgi: Application, url: str) -> httpx.Response:
    found = asgi("GET", url, auth=None)
    assert found.status_code == 200, url
    return found


def named(page: str) -> list[str]:
    return re.findall(r'(?:src|href)="([^"]*)"', page)


def test_the_page_names_no_foreign_host(asgi: Application) -> None:
    for url in (PAGE, f"{PAGE}/start.js"):
        text = get(asgi, url).text
        assert "//" not in text.replace("// it would be asked", "")
        assert not FOREIGN.search(text)


def test_the_style_sheet_names_no_foreign_host(asgi: Application) -> None:
    sheet = get(asgi, f"{PAGE}/{documentation.STYLE}").text
    asked = re.findall(r"url\(\s*[\"']?([^\"')]*)", sheet) + re.findall(r"@import[^;]*", sheet)
    assert [found for found in asked if not found.startswith("data:")] == []


def test_every_file_that_the_page_names_is_here(asgi: Application) -> None:
    found = {
        name: get(asgi, urljoin(PAGE, name)) for name in named(get(asgi, PAGE).text) if not name.startswith("data:")
    }
    assert len(found) == 3
    assert {answered.headers["content-type"].partition(";")[0] for answered in found.values()} == {
        "text/css",
        "text/javascript",
    }
    assert "SwaggerUIBundle" in found[f"docs/{documentation.SCRIPT}"].text


def test_the_document_is_where_the_page_looks_for_it(asgi: Application) -> None:
    (name,) = re.findall(r'url: "([^"]*)"', get(asgi, f"{PAGE}/start.js").text)
    assert get(asgi, urljoin(PAGE, name)).json()["info"]["title"] == "refstore"


def test_it_works_below_a_path_of_a_proxy(asgi: Application) -> None:
    names = [name for name in named(get(asgi, PAGE).text) if not name.startswith("data:")]
    assert {urljoin("https://lake.example.org/below/docs", name).rpartition("/")[0] for name in names} == {
        "https://lake.example.org/below/docs"
    }


def test_the_policy_lets_the_browser_ask_nobody_else(asgi: Application) -> None:
    policy = dict(part.strip().split(" ", 1) for part in get(asgi, PAGE).headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert {source for sources in policy.values() for source in sources.split()} == {"'none'", "'self'", "data:"}


def test_the_page_has_no_script_in_it(asgi: Application) -> None:
    """The policy would not let it run."""
    assert re.findall(r"<script[^>]*>([^<]+)</script>|\son[a-z]+=", get(asgi, PAGE).text) == []


@pytest.mark.parametrize(
    "path", ["/docs/favicon.png", "/docs/redoc.standalone.js", "/docs/../app.py", "/docs/%2e%2e/core.py", "/redoc"]
)
def test_nothing_else_of_the_package_is_served(asgi: Application, path: str) -> None:
    assert asgi("GET", f"http://lake.test{path}", auth=None).status_code == 404
