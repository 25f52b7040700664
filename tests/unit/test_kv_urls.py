"""KV URLs: which driver, what is missing, what may be shown; and what a Redis URL says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from refstore.errors import InvalidSettings, MissingExtra
from refstore.kv import open_kv
from refstore.kv.redis.url import ServerAddress, parse_redis_url


@pytest.mark.parametrize(
    "url",
    ["", "kv.db", "/var/lib/kv.db", "postgres://user:secret@host/db", "http://host", "sqlite3:///x", "redis+x://h"],
)
def test_an_unknown_scheme_names_the_known_ones(url: str) -> None:
    with pytest.raises(InvalidSettings, match=r"sqlite:.*redis\+cluster:.*") as caught:
        open_kv(url)
    assert "secret" not in str(caught.value)


def test_a_driver_whose_package_is_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "refstore.kv.redis", raising=False)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra, match=r"redis\+sentinel:// KV needs.* 'refstore-lake\[redis\]'"):
        open_kv("redis+sentinel://host/main")
    open_kv("memory:").close()  # the others do not need it


def test_nothing_is_connected_before_the_first_use(tmp_path: Path) -> None:
    for url in (
        "redis://192.0.2.1:1",
        "redis+sentinel://192.0.2.1:1/main",
        "redis+cluster://192.0.2.1:1",
        f"sqlite://{tmp_path}/nowhere/kv.db",
    ):
        open_kv(url).close()
    assert list(tmp_path.iterdir()) == []


def test_a_plain_redis_url() -> None:
    settings = parse_redis_url("redis://us%40er:p%40ss%2Fw%3A%23@example.org:7000/3?timeout=2.5s&wait=2&prefix=mine")
    assert settings.kind == "single"
    assert settings.addresses == (ServerAddress("example.org", 7000),)
    assert (settings.username, settings.password, settings.db) == ("us@er", "p@ss/w:#", 3)
    assert (settings.timeout_seconds, settings.connect_seconds, settings.wait_seconds) == (2.5, 1.25, 1.25)
    assert settings.wait_replicas == 2
    assert (settings.prefix, settings.tls) == ("mine", False)
    assert str(settings) == "redis://example.org:7000/3"


def test_defaults_and_forms_of_hosts() -> None:
    assert parse_redis_url("redis://localhost").addresses == (ServerAddress("localhost", 6379),)
    assert parse_redis_url("redis://[::1]").addresses == (ServerAddress("::1", 6379),)
    assert parse_redis_url("REDISS://[::1]:7/").addresses == (ServerAddress("::1", 7),)
    assert parse_redis_url("redis://:only@host").username is None
    assert parse_redis_url("redis://:only@host").password == "only"
    assert (
        str(parse_redis_url("rediss+sentinel://s1,s2:5,[::1]:6/main/2"))
        == "rediss+sentinel://s1:26379,s2:5,[::1]:6/main/2"
    )
    assert parse_redis_url("rediss+cluster://u:p@a:1,b:2").tls
    usual = parse_redis_url("rediss://h?certificates=/ca.pem")
    assert (usual.timeout_seconds, usual.connect_seconds, usual.wait_seconds) == (10, 5, 5)
    assert usual.certificates == "/ca.pem"
    by_sentinel = "redis+sentinel://u:p@h/main?sentinel_credentials="
    logins = [parse_redis_url(by_sentinel + text) for text in ("me:se%3Acret", ":secret", "")]
    assert [(login.sentinel_username, login.sentinel_password) for login in logins] == [
        ("me", "se:cret"),
        (None, "secret"),
        (None, None),
    ]


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"certificates=.*/none.pem cannot be read .*; name a PEM file"):
        open_kv(f"rediss://h?certificates={tmp_path}/none.pem")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://", "names no host"),
        ("redis://:6379", "names no host"),
        ("redis://host:port", "names no host and port"),
        ("redis://host:0", "names no host and port"),
        ("redis://host:65536", "names no host and port"),
        ("redis://a,b", r"one host.*redis\+sentinel"),
        ("redis+sentinel://a,b", "names no master"),
        ("redis+sentinel://a,b/main/x", "number of a database"),
        ("redis+cluster://a/1", "only database 0"),
        ("redis://host/zero", "number of a database"),
        ("redis://host?sockettimeout=1", "unknown field `sockettimeout`.*known are timeout"),
        ("redis://host?timeout=soon", "timeout of the redis:// URL 'soon' is no duration"),
        ("redis://host?timeout=10", "'10' is no duration that fits; write a number and s, m, h or d"),
        ("redis://host?timeout=0", "is no duration that fits"),
        ("redis://host?timeout=2h", "is no duration that fits"),
        ("redis://host?wait=-1", r">= 0.*\$.wait"),
        ("redis://host?certificates=/x", "need a rediss"),
        ("redis://host?sentinel_credentials=u:secret", r"of the Sentinels in a redis\+sentinel:// URL"),
        ("redis+sentinel://host/main?sentinel_credentials=u", "user:password, or :password"),
        ("redis://host?prefix={a}", "prefix must not contain"),
        ("redis://u:se/cret@host", "%2F.*%3F"),
        ("redis://u:se?cret@host", "%2F.*%3F"),
        ("redis://u:se?cret=x@host", "%2F.*%3F"),
    ],
)
def test_malformed_redis_urls(url: str, reason: str) -> None:
    with pytest.raises(InvalidSettings, match=reason) as caught:
        open_kv(url)
    assert "cret" not in str(caught.value)
