"""`refstore.open` finds its settings as the commands do, and its arguments win."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import refstore
from refstore.configuration.settings import SETTINGS
from refstore.core.safety import Safety
from refstore.errors import DurationsDiffer, InvalidSettings
from refstore.lake import Lake
from tests.durations import MAIN_JOB


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.delenv("REFSTORE_CONFIG", raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "user"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def made_in(lake: Lake) -> str:
    with lake:
        return lake.create_repository("sales").record.namespace


def stores(folder: Path) -> tuple[str, str]:
    folder.mkdir(parents=True)
    return f"sqlite://{folder}/kv.sqlite", f"file://{folder}/objects"


def test_without_arguments_it_opens_the_lake_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFSTORE_DATA", str(tmp_path / "lake"))
    assert made_in(refstore.open()).startswith(f"file://{tmp_path}/lake/objects/")


def test_without_arguments_it_opens_the_lake_of_the_users_file(tmp_path: Path) -> None:
    folder = tmp_path / "user" / "refstore"
    folder.mkdir(0o700, parents=True)
    (folder / "refstore.toml").write_text(f"data = '{tmp_path}/lake'\n")
    (folder / "refstore.toml").chmod(0o600)
    Path("refstore.toml").write_text("data = 'not-this-one'\n")
    assert made_in(refstore.open()).startswith(f"file://{tmp_path}/lake/objects/")


def test_without_any_settings_it_opens_the_embedded_default(tmp_path: Path) -> None:
    assert made_in(refstore.open()).startswith(f"file://{tmp_path}/user/refstore/objects/")


def test_a_file_may_be_named(tmp_path: Path) -> None:
    Path("refstore.toml").write_text("data = 'not-this-one'\n")
    file = tmp_path / "other.toml"
    file.write_text("data = 'lake'\n")
    assert made_in(refstore.open(config=file)).startswith(f"file://{tmp_path}/lake/objects/")
    with pytest.raises(InvalidSettings, match=r"config .argument of refstore.open. names .*missing.toml"):
        refstore.open(config="missing.toml")


def test_arguments_win_over_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFSTORE_DATA", str(tmp_path / "environment"))
    Path("refstore.toml").write_text("data = 'file'\n")
    assert made_in(refstore.open(tmp_path / "argument")).startswith(f"file://{tmp_path}/argument/")
    kv, objects = stores(tmp_path / "urls")
    assert made_in(refstore.open(kv=kv, objects=objects)).startswith(objects)


def test_the_stores_are_one_choice_from_one_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv, objects = stores(tmp_path / "urls")
    monkeypatch.setenv("REFSTORE_KV", kv)
    monkeypatch.setenv("REFSTORE_OBJECTS", objects)
    with pytest.raises(InvalidSettings, match=r"kv \(argument of refstore.open\) is given without objects"):
        refstore.open(kv=kv)
    with pytest.raises(InvalidSettings, match=r"data \(argument of refstore.open\) and kv exclude each other"):
        refstore.open("lake", kv=kv)


def test_signing_keys_and_places_to_import_from_are_those_of_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFSTORE_SIGNING_KEYS", "k1:" + "s" * 32)
    monkeypatch.setenv("REFSTORE_IMPORT_FROM", "s3://bucket/prefix/")
    with refstore.open("lake") as lake:
        assert [key.kid for key in lake.current_signing_keys()] == ["k1"]
        assert list(lake.import_from) == ["s3://bucket/prefix/"]


def test_a_variable_that_is_no_setting_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFSTORE_SAFETY_GRACES", "1s")
    with pytest.warns(UserWarning, match="did you mean REFSTORE_SAFETY_GRACE"), refstore.open("lake"):
        pass


def test_an_application_without_durations_takes_the_agreed_ones() -> None:
    with refstore.open("lake", safety=MAIN_JOB):
        pass
    with refstore.open("lake") as lake, refstore.open("lake", safety={"grace": "2h"}) as other:
        assert lake.safety.operation_deadline_seconds == MAIN_JOB.operation_deadline_seconds
        assert (lake.safety.grace_seconds, other.safety.grace_seconds) == (Safety().grace_seconds, 7200)
        assert other.safety.operation_deadline_seconds == MAIN_JOB.operation_deadline_seconds
    with refstore.open("lake", safety={"grace": timedelta(days=2), "witness": "always"}) as lake:
        assert (lake.safety.grace_seconds, lake.safety.witness) == (2 * 86_400, "always")


def test_an_application_with_an_hour_is_refused_beside_a_reaper_that_scrubs_after_seconds() -> None:
    """The durations of both were in force before, each in its own process."""
    with refstore.open("lake", safety=MAIN_JOB):
        pass
    for given in (Safety(), {"operation_deadline": "1h"}):
        with pytest.raises(
            DurationsDiffer, match=r"operation_deadline is 1h \(argument of refstore.open\), .* agreed on 8s"
        ):
            refstore.open("lake", safety=given)


def test_the_first_application_decides_with_its_arguments() -> None:
    with refstore.open("lake", safety={"issue": "77s"}):
        pass
    with refstore.open("lake") as lake:
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
        refstore.open("lake", safety=safety)
