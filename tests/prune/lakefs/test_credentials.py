"""Where the server is and which key is used are found as lakectl finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from refstore.errors import Invalid
from refstore_prune.sources.lakefs.credentials import read_login

FILE = """\
# lakectl command line configuration
credentials:
    access_key_id: AKIAFILE     # of the job
    secret_access_key: "file/secret+with=signs # and more"
experimental: {local: {posix_permissions: {enabled: false}}}
server:
    retries:
        enabled: true
    Endpoint_URL: 'https://lakefs.example.com'
"""


def write(folder: Path, text: str, name: str = ".lakectl.yaml") -> dict[str, str]:
    (folder / name).write_text(text)
    return {"HOME": str(folder)}


def test_the_file_of_lakectl(tmp_path: Path) -> None:
    login = read_login("", write(tmp_path, FILE))
    assert login.api_url == "https://lakefs.example.com/api/v1"
    assert login.access_key_id == "AKIAFILE"
    assert login.secret_access_key == "file/secret+with=signs # and more"
    assert "file/secret" not in repr(login)


def test_the_environment_comes_first(tmp_path: Path) -> None:
    environ = write(tmp_path, FILE) | {
        "LAKECTL_SERVER_ENDPOINT_URL": "http://localhost:8000/api/v1/",
        "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": "AKIAENVIRONMENT",
    }
    login = read_login("", environ)
    assert (login.api_url, login.access_key_id) == ("http://localhost:8000/api/v1", "AKIAENVIRONMENT")
    assert login.secret_access_key.startswith("file/")
    assert read_login("https://other.example.com/lakefs", environ).api_url == "https://other.example.com/lakefs/api/v1"


def test_another_file(tmp_path: Path) -> None:
    environ = write(tmp_path, FILE, "other.yaml") | {"LAKECTL_CONFIG_FILE": str(tmp_path / "other.yaml")}
    assert read_login("", environ).access_key_id == "AKIAFILE"
    environ["LAKECTL_CONFIG_FILE"] += "x"
    with pytest.raises(Invalid, match="is not there; correct LAKECTL_CONFIG_FILE"):
        read_login("", environ)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    with pytest.raises(Invalid, match="set LAKECTL_SERVER_ENDPOINT_URL"):
        read_login("", environ)
    with pytest.raises(Invalid, match="set LAKECTL_CREDENTIALS_ACCESS_KEY_ID"):
        read_login("https://x", environ)


@pytest.mark.parametrize(
    ("written", "secret"),
    [
        ("012345", "012345"),
        ("yes", "yes"),
        ("&anchor x", "x"),
        ("'it''s'", "it's"),
        ('"a\\x41"', "aA"),
        (">-\n      a", "a"),
        ("[a, b]", None),
        ("{a: b}", None),
        ("|\n      a\n      b", None),
        ("'unended", None),
        ("!!python/object/apply:os.system [x]", None),
    ],
)
def test_forms_in_which_a_secret_may_be_written(tmp_path: Path, written: str, secret: str | None) -> None:
    environ = write(tmp_path, FILE.replace('"file/secret+with=signs # and more"', written))
    if secret is not None:
        assert read_login("", environ).secret_access_key == secret
        return
    with pytest.raises(Invalid, match=r"correct .*lakectl\.yaml|cannot be read") as raised:
        read_login("", environ)
    assert written not in str(raised.value)


@pytest.mark.parametrize("text", ["- a", "credentials", "Credentials: [a]", ""])
def test_a_file_without_the_settings(tmp_path: Path, text: str) -> None:
    with pytest.raises(Invalid, match="set LAKECTL_CREDENTIALS_ACCESS_KEY_ID"):
        read_login("https://x", write(tmp_path, text))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / ".lakectl.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="cannot be read"):
        read_login("https://x", {"HOME": str(tmp_path)})


@pytest.mark.parametrize(
    "endpoint",
    [
        "lakefs.example.com",
        "ftp://x",
        "https://",
        "https://user:word@x",
        "https://x?a=b",
        "https://x:port",
        "https://[x",
    ],
)
def test_endpoints_that_are_none(endpoint: str) -> None:
    with pytest.raises(Invalid) as raised:
        read_login(endpoint, {"LAKECTL_CREDENTIALS_ACCESS_KEY_ID": "x", "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": "y"})
    assert "word" not in str(raised.value)


@pytest.mark.parametrize(
    ("endpoint", "is_readable"),
    [
        ("https://x", False),
        ("http://x", True),
        ("http://10.0.0.1:8000", True),
        ("http://localhost:8000", False),
        ("http://127.0.0.1:8000", False),
        ("http://[::1]:8000", False),
    ],
)
def test_who_can_read_the_key(endpoint: str, is_readable: bool) -> None:
    keys = {"LAKECTL_CREDENTIALS_ACCESS_KEY_ID": "x", "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": "y"}
    assert read_login(endpoint, keys).is_readable_by_others == is_readable
