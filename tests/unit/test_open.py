"""`refstore.open` finds its settings as the commands do, and its arguments win."""

from __future__ import annotations

from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

import refstore
from refstore.configuration.settings import SETTINGS
from refstore.core.safety import Safety
from refstore.errors import DurationsDiffer, InvalidSettings, NotFound, WrongStore
from refstore.kv import open_kv
from refstore.lake import Lake
from tests.durations import MAIN_JOB


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.delenv("REFSTORE_CONFIG", raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "user"))
    (tmp_path / "place").mkdir()
    monkeypatch.chdir(tmp_path / "place")


def made_in(lake: Lake) -> str:
    with lake:
        return lake.namespace_url(lake.create_repository("sales").record)


def stores(folder: Path) -> tuple[str, str]:
    folder.mkdir(parents=True)
    return f"sqlite://{folder}/kv.sqlite", f"file://{folder}/objects"


def test_without_arguments_it_opens_the_lake_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFSTORE_DATA", str(tmp_path / "lake"))
    assert made_in(refstore.create()).startswith(f"file://{tmp_path}/lake/objects/")


def test_without_arguments_it_opens_the_lake_of_the_users_file(tmp_path: Path) -> None:
    folder = tmp_path / "user" / "refstore"
    folder.mkdir(0o700, parents=True)
    (folder / "refstore.toml").write_text(f"data = '{tmp_path}/lake'\n")
    (folder / "refstore.toml").chmod(0o600)
    Path("refstore.toml").write_text("data = 'not-this-one'\n")
    assert made_in(refstore.create()).startswith(f"file://{tmp_path}/lake/objects/")


def test_without_any_settings_it_opens_the_embedded_default(tmp_path: Path) -> None:
    assert made_in(refstore.create()).startswith(f"file://{tmp_path}/user/refstore/objects/")


def test_a_file_may_be_named(tmp_path: Path) -> None:
    Path("refstore.toml").write_text("data = 'not-this-one'\n")
    file = tmp_path / "other.toml"
    file.write_text("data = 'lake'\n")
    assert made_in(refstore.create(config=file)).startswith(f"file://{tmp_path}/lake/objects/")
    with pytest.raises(InvalidSettings, match=r"config .argument of refstore.open. names .*missing.toml"):
        refstore.open(config="missing.toml")


def test_arguments_win_over_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFSTORE_DATA", str(tmp_path / "environment"))
    Path("refstore.toml").write_text("data = 'file'\n")
    assert made_in(refstore.create(tmp_path / "argument")).startswith(f"file://{tmp_path}/argument/")
    kv, objects = stores(tmp_path / "urls")
    assert made_in(refstore.create(kv=kv, objects=objects)).startswith(objects)


def test_the_stores_are_one_choice_from_one_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv, objects = stores(tmp_path / "urls")
    monkeypatch.setenv("REFSTORE_KV", kv)
    monkeypatch.setenv("REFSTORE_OBJECTS", objects)
    with pytest.raises(InvalidSettings, match=r"kv \(argument of refstore.open\) is given without objects"):
        refstore.open(kv=kv)
    with pytest.raises(InvalidSettings, match=r"data \(argument of refstore.open\) and kv exclude each other"):
        refstore.create("lake", kv=kv)


def test_signing_keys_and_places_to_import_from_are_those_of_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFSTORE_SIGNING_KEYS", "k1:" + "s" * 32)
    monkeypatch.setenv("REFSTORE_IMPORT_FROM", "s3://bucket/prefix/")
    with refstore.create("lake") as lake:
        assert [key.kid for key in lake.current_signing_keys()] == ["k1"]
        assert list(lake.import_from) == ["s3://bucket/prefix/"]


def test_a_variable_that_is_no_setting_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFSTORE_SAFETY_GRACES", "1s")
    with pytest.warns(UserWarning, match="did you mean REFSTORE_SAFETY_GRACE"), refstore.create("lake"):
        pass


def test_an_application_without_durations_takes_the_agreed_ones() -> None:
    with refstore.create("lake", safety=MAIN_JOB):
        pass
    with refstore.create("lake") as lake, refstore.open("lake", safety={"grace": "2h"}) as other:
        assert lake.safety.operation_deadline_seconds == MAIN_JOB.operation_deadline_seconds
        assert (lake.safety.grace_seconds, other.safety.grace_seconds) == (Safety().grace_seconds, 7200)
        assert other.safety.operation_deadline_seconds == MAIN_JOB.operation_deadline_seconds
    with refstore.create("lake", safety={"grace": timedelta(days=2), "witness": "always"}) as lake:
        assert (lake.safety.grace_seconds, lake.safety.witness) == (2 * 86_400, "always")


def test_an_application_with_an_hour_is_refused_beside_a_reaper_that_scrubs_after_seconds() -> None:
    """The durations of both were in force before, each in its own process."""
    with refstore.create("lake", safety=MAIN_JOB):
        pass
    for given in (Safety(), {"operation_deadline": "1h"}):
        with pytest.raises(
            DurationsDiffer, match=r"operation_deadline is 1h \(argument of refstore.open\), .* agreed on 8s"
        ):
            refstore.create("lake", safety=given)


def test_the_first_application_decides_with_its_arguments() -> None:
    with refstore.create("lake", safety={"issue": "77s"}):
        pass
    with refstore.create("lake") as lake:
        assert lake.safety.issue_seconds == 77


@pytest.mark.parametrize(
    ("safety", "message"),
    [
        ({"grace_seconds": "1s"}, "safety has no 'grace_seconds'; it has operation_deadline"),
        ({"grace": "soon"}, "safety.grace 'soon' is no duration"),
        ({"grace": 1.0}, "safety.grace is 1.0; it must be a duration"),
        ({"grace": timedelta(days=-1)}, "safety.grace .* is no duration"),
        ({"witness": "never"}, "witness is 'never'"),
    ],
)
def test_durations_that_are_none(safety: Any, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        refstore.create("lake", safety=safety)


def test_what_is_opened_shows_what_it_is_and_no_secret(tmp_path: Path) -> None:
    with refstore.create("lake") as lake:
        repo = lake.create_repository("sales")
        assert repr(lake) == f"<Lake 'file://{tmp_path}/place/lake/objects'>"
        assert repr(repo) == "<Repository 'sales'>"
        assert repr(repo.branch("main")) == "Branch('main', repository='sales')"
        assert [repr(each) for each in lake.repositories()] == [repr(repo)]
    secret = Lake(open_kv("memory:"), "s3://bucket/a?token=hunter2")
    assert repr(secret) == "<Lake 's3://bucket/a?token=***'>"


def test_repositories_are_listed_in_order_and_none_is_opened_for_it() -> None:
    with refstore.create("lake") as lake:
        for name in ("one-c", "one-a", "one-b"):
            lake.create_repository(name, metadata={"of": name})
        assert [repo.name for repo in lake.repositories()] == ["one-a", "one-b", "one-c"]
        assert [repo.metadata["of"] for repo in lake.repositories(after="one-a")] == ["one-b", "one-c"]
        first = next(lake.repositories())
        Path(lake.namespace_url(first.record).removeprefix("file://"), "_refstore", "namespace").write_bytes(b"other")
        with refstore.open("lake") as again:
            (theirs, *_) = again.repositories()
            assert theirs.default_branch == "main"
            assert theirs.created.tzinfo is UTC
            with pytest.raises(WrongStore):
                theirs.read("main", "x")


class TestALakeThatIsNotThere:
    def test_a_typo_makes_nothing_and_names_the_nearest(self, tmp_path: Path) -> None:
        made_in(refstore.create("lake"))
        with pytest.raises(NotFound, match=r"there is no lake in .*/lkae; did you mean .*/place/lake\?"):
            refstore.open("lkae")
        with pytest.raises(NotFound, match=r"no lake in .*/nowhere/lake, nor is there .*/nowhere;"):
            refstore.open(tmp_path / "nowhere" / "lake")
        assert [path.name for path in Path().iterdir()] == ["lake"]

    def test_nor_does_one_to_read_only(self) -> None:
        Path("lake").mkdir()
        with pytest.raises(NotFound, match=r"there is no lake in .*/lkae; make"):
            refstore.open("lkae", read_only=True)
        with pytest.raises(NotFound, match=r"there is no lake in .*/place/lake; make"):
            refstore.open("lake", read_only=True)
        assert list(Path("lake").iterdir()) == []

    def test_a_folder_without_a_lake_stays_as_it_is(self) -> None:
        Path("lake").mkdir()
        with pytest.raises(NotFound, match=r"make it with: refstore\.create"):
            refstore.open("lake")
        assert list(Path("lake").iterdir()) == []

    def test_nor_is_one_made_in_stores_that_are_new(self, tmp_path: Path) -> None:
        kv, objects = stores(tmp_path / "urls")
        with pytest.raises(NotFound, match=r"there is no lake in file://.*/urls/objects"):
            refstore.open(kv=kv, objects=objects)
        assert not (tmp_path / "urls" / "objects").exists()
        made_in(refstore.open(kv=kv, objects=objects, create=True))
        with refstore.open(kv=kv, objects=objects) as lake:
            assert [repo.name for repo in lake.repositories()] == ["sales"]

    def test_half_of_a_lake_is_no_new_one(self, tmp_path: Path) -> None:
        kv, objects = stores(tmp_path / "urls")
        made_in(refstore.create(kv=kv, objects=objects))
        with pytest.raises(WrongStore):
            refstore.open(kv=f"sqlite://{tmp_path}/other.sqlite", objects=objects)

    def test_a_folder_may_be_named_by_its_url(self, tmp_path: Path) -> None:
        made_in(refstore.create(f"file://{tmp_path}/a%20b"))
        made = refstore.open(tmp_path / "a b")
        with made as lake:
            assert [repo.name for repo in lake.repositories()] == ["sales"]
        with pytest.raises(InvalidSettings, match="name other stores with kv= and objects="):
            refstore.open("s3://bucket/lake")
