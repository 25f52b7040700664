"""Foreign objects are read below the allowed prefixes only: whoever may write can stage any URL, and somebody with
other rights reads the branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from refstore.configuration.settings import embedded_urls
from refstore.core.ids import Address
from refstore.errors import ForeignNotAllowed, InvalidName, StoreMisconfigured
from refstore.lake import Lake, open_lake_at
from refstore.operations.upload import Stage
from refstore.records.repository_records import ImportSource

S3 = ("s3://archive/raw/", "s3://whole")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that is allowed, others beside it, and links between them."""
    for name in ("allowed/a", "allowed/%2e%2e/x", "allowed-evil/a", "secret"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("data")
    (tmp_path / "allowed/link").symlink_to(tmp_path / "secret")
    (tmp_path / "allowed/folder").symlink_to(tmp_path)
    (tmp_path / "into").symlink_to(tmp_path / "allowed")
    return tmp_path


Opened = Callable[..., Lake]


@pytest.fixture
def opened(outside: Path) -> Iterator[Opened]:
    (outside / "lake").mkdir()
    lakes: list[Lake] = []

    def open_(*prefixes: str) -> Lake:
        kv, objects = embedded_urls(outside / "lake")
        lakes.append(open_lake_at(kv, f"{objects}?fsync=0", import_from=prefixes))
        return lakes[-1]

    yield open_
    for lake in lakes:
        lake.close()


def test_a_staged_url_is_read_below_an_allowed_prefix_only(outside: Path, opened: Opened) -> None:
    repo = opened().create_repository("sales")
    items = [Stage(path=name, url=f"file://{outside}/{name}", size_bytes=4) for name in ("secret", "allowed/a")]
    repo.stage_many("main", items)
    repo.commit("main", "staged")
    for read in (lambda: repo.read("main", "secret"), lambda: next(iter(repo.get("main", "secret", start=1)))):
        with pytest.raises(ForeignNotAllowed, match=r"import_from.*--allow-foreign PREFIX"):
            read()
    allowed = opened(f"file://{outside}/allowed").repository("sales")
    assert allowed.read("main", "allowed/a") == b"data"
    with pytest.raises(ForeignNotAllowed, match="below none of the places"):
        allowed.read("main", "secret")


def test_an_import_by_the_sdk_names_what_its_caller_names_and_reads_nothing(outside: Path, opened: Opened) -> None:
    repo = opened().create_repository("sales")
    repo.import_objects("main", [ImportSource(f"file://{outside}/allowed/", "in/")], "import")
    with pytest.raises(ForeignNotAllowed):
        repo.read("main", "in/a")


@pytest.mark.parametrize(
    "name",
    [
        "secret",
        "allowed",
        "allowed-evil/a",
        "Allowed/a",
        "allowed/../secret",
        "allowed/%2e%2e/secret",
        "allowed%2f..%2fsecret",
        "allowed/./a",
        "allowed/link",
        "allowed/folder/secret",
        "allowed/folder/allowed-evil/a",
        "allowed/a?x=1",
    ],
)
def test_no_name_leads_out_of_an_allowed_folder(outside: Path, opened: Opened, name: str) -> None:
    with pytest.raises(ForeignNotAllowed):
        opened(f"file://{outside}/allowed").foreign.get(Address(f"file://{outside}/{name}"), 4, 0, 4)


@pytest.mark.parametrize("name", ["allowed/a", "allowed%2fa", "allowed//a", "into/a", "allowed/%252e%252e/x"])
def test_what_is_below_an_allowed_folder_is_read_in_every_spelling(outside: Path, opened: Opened, name: str) -> None:
    got = opened(f"file://{outside}/into/").foreign.get(Address(f"file://{outside}/{name}"), 4, 0, 4)
    assert b"".join(got) == b"data"


@pytest.mark.parametrize("pattern", ["kv.sqlite", "kv.sqlite-*", "objects/_refstore/manifest/*/*"])
def test_what_is_the_lakes_own_is_no_foreign_data(outside: Path, opened: Opened, pattern: str) -> None:
    lake = opened(f"file://{outside}")
    lake.create_repository("sales")
    found = list((outside / "lake").glob(pattern))
    assert found
    for path in (*found, outside / "allowed/folder" / found[0].relative_to(outside)):
        with pytest.raises(ForeignNotAllowed, match="the lake's own"):
            lake.foreign.check(Address(f"file://{path}"))
    assert lake.foreign.check(Address(f"file://{outside}/allowed/a")).kind == "file"


def test_a_link_that_was_put_there_after_the_check_is_not_followed(outside: Path, opened: Opened) -> None:
    foreign = opened(f"file://{outside}/allowed").foreign
    address = Address(f"file://{outside}/allowed/a")
    folder = foreign.check(address)
    store, key = foreign.stores.find_store(folder._replace(path=f"{folder.path}a"), folder)
    (outside / "allowed/a").unlink()
    (outside / "allowed/a").symlink_to(outside / "secret")
    with pytest.raises(StoreMisconfigured, match="link"):
        store.get(key)


@pytest.mark.parametrize(
    "url",
    [
        "s3://archive-evil/raw/a",
        "s3://archive/rawest/a",
        "s3://archive/raw",
        "s3://archive/RAW/a",
        "s3://Archive/raw/a",
        "s3://archive/raw/../secret/a",
        "s3://archive/raw/%2e%2e/secret/a",
        "s3://archive/raw%2f..%2fsecret",
        "s3://archive//raw/a",
        "s3://archive/%2Fraw/a",
        "s3://user@archive/raw/a",
        "s3://archive:443/raw/a",
        "s3://wholesome/a",
        "https://archive.s3.amazonaws.com/raw/a",
        "file:///archive/raw/a",
        "gs://archive/raw/a",
        "local://archive/raw/a",
    ],
)
def test_no_other_bucket_or_key_passes_for_an_allowed_one(opened: Opened, url: str) -> None:
    with pytest.raises(ForeignNotAllowed):
        opened(*S3).foreign.check(Address(url))


@pytest.mark.parametrize(
    "url", ["s3://archive/raw/a", "s3a://archive/raw/a", "s3://archive/raw%2Fa", "s3://archive/raw//a", "s3://whole/x"]
)
def test_keys_below_an_allowed_prefix_may_be_read(opened: Opened, url: str) -> None:
    assert opened(*S3).foreign.check(Address(url)).kind == "s3"


def test_a_wrong_prefix_is_refused_when_the_lake_is_opened(opened: Opened) -> None:
    with pytest.raises(InvalidName, match="cannot be read from here"):
        opened("gs://bucket/x")
