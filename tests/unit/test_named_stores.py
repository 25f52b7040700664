"""A namespace names the endpoint of its store, and a changed endpoint is used only where the repository really is."""

from __future__ import annotations

import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import refstore
from refstore.configuration.settings_loader import LoadedSettings, load_settings
from refstore.errors import InvalidName, InvalidSettings, WrongStore
from refstore.lake import Lake
from refstore.objects.named_stores import namespace_url, resolve_url
from tests.servers.s3_servers import BUCKET, S3FaultProxy, S3Server

NAMED = {"archive": {"endpoint": "https://s3.example", "profile": "cold"}, "aws": {"profile": "eu"}}
OWN = "s3://lake/a?conditional_put=0&endpoint=http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("url", "lake_url", "resolved"),
    [
        ("s3://b/p?endpoint=archive", OWN, "s3://b/p?endpoint=https://s3.example&profile=cold"),
        (
            "s3://b/p?endpoint=archive&delete_versions=1",
            OWN,
            "s3://b/p?delete_versions=1&endpoint=https://s3.example&profile=cold",
        ),
        ("s3://b/p?endpoint=aws", OWN, "s3://b/p?profile=eu"),
        ("s3://b/p", OWN, "s3://b/p?endpoint=http://127.0.0.1:9"),
        ("s3://b/p?conditional_put=0", "s3://lake?endpoint=http://h", "s3://b/p?conditional_put=0&endpoint=http://h"),
        ("s3://b/p", "s3://lake?endpoint=archive", "s3://b/p?endpoint=https://s3.example&profile=cold"),
        ("s3://b/p", "file:///lake", "s3://b/p"),
        ("lake:///p", "file:///lake?fsync=0", "file:///lake/p?fsync=0"),
        ("lake:///p/%C3%A4?fsync=1", "file:///lake/?fsync=0", "file:///lake/p/%C3%A4?fsync=1"),
        ("lake:///../p", "file:///lake/objects", "file:///lake/p"),
        ("lake:///../../../p", "file:///lake/objects", "file:///p"),
        ("lake:///p", OWN, "s3://lake/a/p?conditional_put=0&endpoint=http://127.0.0.1:9"),
        ("lake:///p", "s3://lake?endpoint=archive", "s3://lake/p?endpoint=https://s3.example&profile=cold"),
        (OWN, OWN, OWN),
        ("file:///lake?fsync=0", OWN, "file:///lake?fsync=0"),
    ],
)
def test_how_a_store_is_reached(url: str, lake_url: str, resolved: str) -> None:
    assert resolve_url(url, NAMED, lake_url) == resolved


@pytest.mark.parametrize(
    ("url", "recorded"),
    [
        (OWN.replace("/a?", "/a/repo?"), "s3://lake/a/repo?conditional_put=0"),
        ("s3://b/p?endpoint=archive", "s3://b/p?endpoint=archive"),
        ("s3://b/p", "s3://b/p"),
        ("file:///x", "file:///x"),
    ],
)
def test_a_record_has_no_endpoint(url: str, recorded: str) -> None:
    assert namespace_url(url, NAMED, OWN) == recorded


@pytest.mark.parametrize(
    ("path", "folder", "recorded"),
    [
        ("/lake/objects/p", "/lake", "lake:///p"),
        ("/lake/objects/p", None, "file:///lake/objects/p"),
        ("/lake/objects/p/q?fsync=0", "/lake", "lake:///p/q?fsync=0"),
        ("/lake/archive/p", "/lake", "lake:///../archive/p"),
        ("/lake/archive/p", None, "file:///lake/archive/p"),
        ("/lake/archive/p", "/else/where", "file:///lake/archive/p"),
        ("/lake/objects-of-old/p", "/lake/objects", "file:///lake/objects-of-old/p"),
        ("/lake/objects/../p", "/lake", "file:///lake/objects/../p"),
    ],
)
def test_a_record_is_relative_to_the_lake_below_its_folder(path: str, folder: str | None, recorded: str) -> None:
    url = namespace_url(f"file://{path}", NAMED, "file:///lake/objects", Path(folder) if folder else None)
    assert url == recorded
    assert resolve_url(url, NAMED, "file:///lake/objects") == f"file://{path}"
    assert namespace_url(recorded, NAMED, "file:///lake/objects", Path("/lake")) == namespace_url(
        f"file://{path}", NAMED, "file:///lake/objects", Path("/lake")
    )


def test_what_no_setting_names_is_refused_with_what_to_set() -> None:
    with pytest.raises(InvalidName, match=r"stores\.NAME\.endpoint"):
        namespace_url("s3://b/p?endpoint=http://127.0.0.1:1", NAMED, OWN)
    for call in (resolve_url, namespace_url):
        with pytest.raises(InvalidSettings, match=r"stores\.attic\.endpoint"):
            call("s3://b/p?endpoint=attic", NAMED, OWN)
    with pytest.raises(InvalidSettings, match=r"set stores\.NAME\.profile, and write \?endpoint=NAME"):
        resolve_url("s3://b/p?profile=admin", NAMED, OWN)


@pytest.mark.server
def test_a_changed_endpoint_is_used_only_where_the_repository_is(
    moto_s3_server: S3Server, rclone_s3_server: S3Server, tmp_path: Path
) -> None:
    """The lake's own objects, and a namespace elsewhere, each behind an endpoint of its own."""
    own, namespace = moto_s3_server.url(), f"s3://{BUCKET}/{tmp_path.name}"

    def open_lake(endpoint: str, lake_endpoint: str = moto_s3_server.endpoint) -> Lake:
        objects = own.replace(moto_s3_server.endpoint, lake_endpoint)
        stores = {"archive": {"endpoint": endpoint}}
        return refstore.create(kv=f"sqlite://{tmp_path}/kv.sqlite", objects=objects, stores=stores)

    with open_lake(moto_s3_server.endpoint) as lake:
        lake.create_repository("beside").upload("main", "a", b"1")
        lake.create_repository("far", namespace=f"{namespace}?endpoint=archive").upload("main", "a", b"2")
        records = [repo.record.namespace for repo in lake.repositories()]
        assert [urlsplit(each).query for each in records] == ["", "endpoint=archive"]
    with S3FaultProxy(moto_s3_server.endpoint) as moved:
        with open_lake(moved.endpoint, moved.endpoint) as lake:
            assert [lake.repository(name).read("main", "a") for name in ("beside", "far")] == [b"1", b"2"]
        assert moved.log
    with open_lake(rclone_s3_server.endpoint) as lake:
        assert lake.repository("beside").read("main", "a") == b"1"
        with pytest.raises(WrongStore, match="right endpoint"):
            lake.repository("far")
    with pytest.raises(WrongStore, match="does not hold that id"):
        open_lake(moto_s3_server.endpoint, rclone_s3_server.endpoint)


# ---- the settings


def load_stores(
    environ: dict[str, str] | None = None, flags: dict[str, object] | None = None, text: str = ""
) -> LoadedSettings:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "refstore.toml"
        file.write_text(text)
        return load_settings(flags or {}, environ or {}, file.parent, default_data=Path("/lake"))


def test_each_setting_of_a_store_comes_from_the_first_source_that_has_it() -> None:
    loaded = load_stores(
        {"REFSTORE_STORES_COLD_ARCHIVE_ENDPOINT": "https://environment", "REFSTORE_STORES_B_PROFILE": "x"},
        {"stores.cold_archive.profile": "p"},
        "[stores.cold_archive]\nendpoint = 'https://file'\nprofile = 'file'\n",
    )
    assert loaded.settings.named_stores == {
        "b": {"profile": "x"},
        "cold_archive": {"endpoint": "https://environment", "profile": "p"},
    }
    rows = {row.setting: (row.value, row.origin.split()[0]) for row in loaded.rows()}
    assert rows["stores.cold_archive.endpoint"] == ("https://environment", "environment")
    assert rows["stores.cold_archive.profile"] == ("p", "command")
    assert not loaded.warnings


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[stores.a]\nendpoint = 'localhost:9000'\n", "must be a URL"),
        ("[stores.a]\nendpoint = 'https://user:secret@host'\n", "without credentials"),
        ("[stores.a]\nendpoint = 7\n", "it must be a text"),
        ("[stores.a]\nendpint = 'https://host'\n", "its settings are endpoint, profile"),
        ("[stores.A-B]\nendpoint = 'https://host'\n", "lower-case letters"),
        ("[stores.a]\nregion = 'eu'\n", "its settings are endpoint, profile"),
        ("[stores]\na = 'https://host'\n", r"write \[stores.a\]"),
        ("stores = 'https://host'\n", r"write \[stores.NAME\]"),
    ],
)
def test_a_wrong_setting_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidSettings, match=reason) as refused:
        load_stores(text=text)
    assert "secret" not in str(refused.value)


def test_a_variable_that_names_no_setting_of_a_store_is_told() -> None:
    (warning,) = load_stores({"REFSTORE_STORES_ARCHIVE_ENDPONT": "https://host"}).warnings
    assert "REFSTORE_STORES_ARCHIVE_ENDPONT is not a setting" in warning
    with pytest.raises(InvalidSettings, match="is not a setting"):
        load_stores(flags={"stores.a.endpont": "https://host"})
