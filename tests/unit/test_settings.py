"""Settings: which place wins, what is refused, and that secrets stay hidden."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import os
import re
from pathlib import Path
from typing import Any, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

import refstore
from refstore.configuration import object_store_settings
from refstore.configuration import settings as configuration_settings
from refstore.configuration.settings import (
    NO_SETTING,
    OPTIONS,
    SECTIONS,
    SETTINGS,
    ApiSettings,
    MetricsSettings,
    ReaperSettings,
    Settings,
    embedded_urls,
)
from refstore.configuration.settings_loader import LoadedSettings, load_settings
from refstore.core import safety
from refstore.core.redaction import redact_text, redact_url
from refstore.core.safety import Safety
from refstore.core.signing_keys import SigningKey
from refstore.errors import InvalidSettings
from refstore.kv.redis import url as redis_url
from refstore.lake import open_lake_at
from refstore.objects import s3

HOME = Path("/default")
SECRET = "s" * 32


def loaded(
    flags: dict[str, object] | None = None, environ: dict[str, str] | None = None, user_folder: Path | None = None
) -> LoadedSettings:
    return load_settings(flags or {}, environ or {}, user_folder, default_data=HOME)


@pytest.fixture
def toml(tmp_path: Path):
    def write(text: str, name: str = "refstore.toml") -> Path:
        file = tmp_path / name
        file.write_text(text, "utf-8")
        file.chmod(0o644)
        return file

    return write


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The file of the user's configuration directory, which nobody else may write."""
    folder = tmp_path / "config"
    folder.mkdir(0o700)
    file = folder / "refstore.toml"
    file.write_text("[log]\nlevel = 'debug'\n")
    file.chmod(0o600)
    return file


def test_defaults() -> None:
    found = loaded()
    assert found.settings == Settings(data=HOME, kv="sqlite:///default/kv.sqlite", objects="file:///default/objects")
    assert found.settings.safety == Safety()
    assert found.file.path is None
    assert {str(origin) for origin in found.origins.values()} == {"default"}


def test_each_place_wins_over_the_next(toml) -> None:
    file = toml("[log]\nlevel = 'debug'\n")
    environ = {"REFSTORE_LOG_LEVEL": "warning"}
    flags: dict[str, object] = {"log.level": "error"}
    seen = [
        (found.settings.log.level, str(found.origins["log.level"]))
        for found in (
            loaded(flags, environ, file.parent),
            loaded({}, environ, file.parent),
            loaded({}, {}, file.parent),
            loaded(),
        )
    ]
    assert seen == [
        ("error", "command line"),
        ("warning", "environment REFSTORE_LOG_LEVEL"),
        ("debug", str(file)),
        ("info", "default"),
    ]


def test_every_setting_may_be_given_in_a_file_and_as_a_variable(toml) -> None:
    """The table is made from the dataclasses; this says that every line of it can be set, whatever its type."""
    values = {
        "data": "elsewhere",
        "kv": "redis://h",
        "objects": "s3://b",
        "signing_keys": f"k1:{SECRET}",
        "purge_key": SECRET,
        "log.level": "debug",
        "api.public_url": "https://lake.example.org",
        "api.namespaces": "s3://bucket/team/",
        "api.tls_certificate": "chain.pem",
        "import_from": "s3://archive/raw/",
        "api.trusted_proxies": "10.0.0.0/8",
        "reaper.breaker_share": "0.25",
        "safety.grace": "2h",
        "safety.witness": "always",
        "safety.copy_linked": "always",
        "s3.domain": "s3.example.org",
        "s3.buckets": "warehouse=lake:main",
        "s3.redirect_reads": "true",
        "s3.secrets_key": SECRET,
    }
    for name, setting in SETTINGS.items():
        if name in ("kv", "objects"):
            continue
        text = values.get(name, "7")
        by_variable = loaded({}, {setting.variable: text})
        assert str(by_variable.origins[name]) == f"environment {setting.variable}"
        section, _, key = name.rpartition(".")
        literal = (
            f"['{text}']"
            if get_origin(setting.kind) is tuple
            else text
            if text == "true" or (text.replace(".", "").isdigit() and "host" not in name)
            else f"'{text}'"
        )
        by_file = loaded({}, {}, toml(f"{f'[{section}]' if section else ''}\n{key} = {literal}\n").parent)
        assert str(by_file.origins[name]).endswith("refstore.toml")
        if name != "data":
            assert by_variable.value(name) == by_file.value(name) != loaded().value(name)


def test_variables_have_names_that_are_told_apart() -> None:
    assert SETTINGS["safety.grace"].variable == "REFSTORE_SAFETY_GRACE"
    assert SETTINGS["reaper.breaker_share"].variable == "REFSTORE_REAPER_BREAKER_SHARE"
    assert SETTINGS["kv"].variable == "REFSTORE_KV"
    variables = [setting.variable for setting in SETTINGS.values()]
    assert len(set(variables)) == len(variables)
    assert "REFSTORE_CONFIG" not in variables


def test_an_empty_variable_is_not_set() -> None:
    assert loaded({}, {"REFSTORE_KV": "", "REFSTORE_LOG_LEVEL": "", "REFSTORE_CONFIG": ""}) == loaded()


class TestStores:
    def test_data_means_sqlite_and_files_below_it(self) -> None:
        found = loaded({"data": "/srv/lake"})
        assert (found.settings.kv, found.settings.objects) == (
            "sqlite:///srv/lake/kv.sqlite",
            "file:///srv/lake/objects",
        )
        assert [str(found.origins[name]) for name in ("data", "kv", "objects")] == ["command line"] * 3

    def test_a_directory_may_have_any_name(self) -> None:
        assert embedded_urls(Path("/a b/100%?#")) == (
            "sqlite:///a%20b/100%25%3F%23/kv.sqlite",
            "file:///a%20b/100%25%3F%23/objects",
        )

    def test_the_command_and_the_sdk_mean_the_same_lake(self, tmp_path: Path) -> None:
        folder = tmp_path / "a b%20c"
        with refstore.create(str(folder)) as lake:
            lake.create_repository("lake")
        settings = loaded({"data": str(folder)}).settings
        with open_lake_at(settings.kv, settings.objects) as lake:
            assert [repo.name for repo in lake.repositories()] == ["lake"]
        assert [path.name for path in tmp_path.iterdir()] == ["a b%20c"]

    @pytest.mark.parametrize("place", ["the command line", "a file", "the SDK"])
    def test_a_folder_may_be_named_from_where_one_is(
        self, toml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
    ) -> None:
        (tmp_path / "work").mkdir()
        monkeypatch.chdir(tmp_path / "work")
        toml("data = 'lake'\n")
        if place == "the SDK":
            opened = refstore.create("../lake")
        else:
            flags: dict[str, object] = (
                {"data": "../lake"} if place == "the command line" else {"config": "../refstore.toml"}
            )
            settings = loaded(flags).settings
            (tmp_path / "lake").mkdir(exist_ok=True)
            opened = open_lake_at(settings.kv, settings.objects)
        with opened as lake:
            made = lake.namespace_url(lake.create_repository("sales").record)
            assert made.startswith(f"file://{tmp_path}/lake/objects/sales.")

    def test_urls(self) -> None:
        found = loaded({"kv": "redis://h", "objects": "s3://b"})
        assert (found.settings.data, found.settings.kv, found.settings.objects) == (None, "redis://h", "s3://b")

    def test_the_first_place_that_names_any_decides_alone(self, toml) -> None:
        file = toml("data = '/from/file'\n")
        environ = {"REFSTORE_KV": "redis://h", "REFSTORE_OBJECTS": "s3://b"}
        assert loaded({"data": "/flag"}, environ, file.parent).settings.kv == "sqlite:///flag/kv.sqlite"
        assert loaded({}, environ, file.parent).settings.data is None
        assert loaded({}, {}, file.parent).settings.data == Path("/from/file")

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            ({"data": "/x", "kv": "redis://h"}, r"data \(command line\) and kv exclude each other"),
            ({"data": "/x", "kv": "redis://h", "objects": "s3://b"}, "and kv and objects exclude each other"),
            ({"kv": "redis://h"}, r"kv \(command line\) is given without objects"),
            ({"objects": "s3://b"}, "objects .* is given without kv"),
            ({"kv": "/a/path", "objects": "s3://b"}, "must be a URL such as redis://"),
            ({"kv": "redis://h", "objects": "bucket"}, "must be a URL such as s3://"),
        ],
    )
    def test_what_contradicts_itself(self, flags: dict[str, object], message: str) -> None:
        with pytest.raises(InvalidSettings, match=message):
            loaded(flags)

    def test_half_a_pair_is_never_completed_from_another_place(self, toml) -> None:
        """The KV of one lake with the objects of another looks like a lake full of blobs that nothing names."""
        file = toml("kv = 'redis://one'\nobjects = 's3://one'\n")
        with pytest.raises(InvalidSettings, match=r"kv \(environment REFSTORE_KV\) is given without objects"):
            loaded({}, {"REFSTORE_KV": "redis://other"}, file.parent)

    def test_a_file_means_its_own_directory(self, toml, tmp_path: Path) -> None:
        assert loaded({}, {}, toml("data = 'lake'\n").parent).settings.data == tmp_path / "lake"

    def test_a_flag_means_the_directory_it_is_given_in(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert loaded({"data": "lake"}).settings.data == tmp_path / "lake"


class TestFile:
    def test_one_that_is_named_wins_over_the_users_and_only_one_is_read(self, toml) -> None:
        named, other = (toml(f"[log]\nlevel = '{level}'\n", f"{level}.toml") for level in ("error", "debug"))
        own = toml("[log]\nlevel = 'warning'\n[api]\nport = 7\n")
        environ = {"REFSTORE_CONFIG": str(other)}
        seen = [
            (found.file.path, found.settings.log.level, found.settings.api.port)
            for found in (
                loaded({"config": str(named)}, environ, own.parent),
                loaded({}, environ, own.parent),
                loaded({}, {}, own.parent),
            )
        ]
        assert seen == [(named, "error", 8000), (other, "debug", 8000), (own, "warning", 7)]

    @pytest.mark.parametrize(
        ("flags", "environ"), [({"config": "/none.toml"}, {}), ({}, {"REFSTORE_CONFIG": "/none.toml"})]
    )
    def test_one_that_is_named_must_be_there(self, flags, environ) -> None:
        with pytest.raises(InvalidSettings, match=r"names /none.toml, which is not a file"):
            loaded(flags, environ)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("gracee = 1", "gracee is not a setting; .*allowed: data, kv, objects, signing_keys"),
            ("[safety]\ngrce = 1", "safety.grce is not a setting; did you mean safety.grace"),
            ("grace = 1", "did you mean safety.grace"),
            ("[safety]\noperation_deadline = '2h'", "all processes of a lake agree on it: refstore config --set"),
            ("issue_seconds = 60", "all processes of a lake agree on it: refstore config --set"),
            ("[reaper]\nbreakershare = 1", "did you mean reaper.breaker_share"),
            ("[wrong]\nx = 1", "wrong is not a setting"),
            ("reaper = 1", r"reaper must be a table; write \[reaper\]"),
            (
                "[reaper]\nbreaker_per_hour = 'many'",
                r"reaper.breaker_per_hour \(.*refstore.toml\) is 'many'; it must be a whole number",
            ),
            ("[reaper]\nbreaker_per_hour = '5'", "must be a whole number"),
            ("[reaper]\nbreaker_per_hour = 1.5", "must be a whole number"),
            ("[reaper]\nbreaker_per_hour = true", "must be a whole number"),
            ("[safety]\ngrace = 'a day'", r"safety.grace \(.*\) 'a day' is no duration that fits"),
            ("[safety]\ngrace = 7200", "is 7200; it must be a duration, such as '30s'"),
            ("[safety]\ngrace = {a = 1}", "must be a duration"),
            ("[safety]\noperation_deadline = '2h'", "safety.operation_deadline is not a setting"),
            ("[api]\nworkers = 4", "api.workers is not a setting; give it as an option of the command"),
            ("[log]\nlevel = 'loud'", "must be one of debug, info, warning, error"),
            ("data = 1", "must be a directory"),
            ("kv = 1\nobjects = 's3://b'", "must be a text"),
            ("x = ", "is not TOML in UTF-8"),
        ],
    )
    def test_what_is_wrong_is_named_with_what_is_allowed(self, toml, text: str, message: str) -> None:
        with pytest.raises(InvalidSettings, match=message) as raised:
            loaded({}, {}, toml(text).parent)
        assert "refstore.toml" in str(raised.value)

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        file = tmp_path / "refstore.toml"
        file.write_bytes(b"data = '\xff'")
        with pytest.raises(InvalidSettings, match="is not TOML in UTF-8"):
            loaded({}, {}, file.parent)

    @pytest.mark.parametrize(("mode", "folder_mode"), [(0o664, 0o700), (0o646, 0o700), (0o600, 0o770), (0o600, 0o1707)])
    def test_the_users_own_that_others_may_write_is_refused(self, own, mode: int, folder_mode: int) -> None:
        own.chmod(mode)
        own.parent.chmod(folder_mode)
        place = own if mode & 0o022 else own.parent
        with pytest.raises(InvalidSettings, match=f"others may write {place}, .*run: chmod go-w {place}$"):
            loaded({}, {}, own.parent)
        place.chmod(0o700)
        assert loaded({}, {}, own.parent).file.path == own

    @pytest.mark.parametrize("place", ["the file", "its folder"])
    def test_the_users_own_that_belongs_to_another_is_refused(
        self, own, monkeypatch: pytest.MonkeyPatch, place: str
    ) -> None:
        another = own if place == "the file" else own.parent
        if os.geteuid() == 0:
            os.chown(another, 12345, -1)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 0)
        with pytest.raises(
            InvalidSettings, match=r"belongs to the user .*name a file with --config or REFSTORE_CONFIG"
        ):
            loaded({}, {}, own.parent)

    def test_the_users_own_may_be_a_link_to_a_file_that_is_theirs(self, own, toml) -> None:
        target = own.rename(own.with_name("settings.toml"))
        own.symlink_to(target)
        assert loaded({}, {}, own.parent).settings.log.level == "debug"
        target.chmod(0o666)
        with pytest.raises(InvalidSettings, match="others may write"):
            loaded({}, {}, own.parent)

    def test_what_was_opened_is_checked_not_what_has_its_name(self, own, monkeypatch: pytest.MonkeyPatch) -> None:
        """Others put a good file in the place of theirs between the two steps."""
        own.chmod(0o666)
        opened = os.open

        def open_and_replace(path: str | Path, *how: Any, **more: Any) -> int:
            descriptor = opened(path, *how, **more)
            if str(path) == own.name:
                own.unlink()
                own.write_text("")
                own.chmod(0o600)
            return descriptor

        monkeypatch.setattr(os, "open", open_and_replace)
        with pytest.raises(InvalidSettings, match="others may write"):
            loaded({}, {}, own.parent)

    def test_one_that_is_named_is_taken_with_a_warning_if_everybody_may_write_it(self, own) -> None:
        for mode, folder_mode, warned in ((0o666, 0o700, 1), (0o664, 0o777, 0), (0o600, 0o700, 0)):
            own.chmod(mode)
            own.parent.chmod(folder_mode)
            for flags, environ in (({"config": str(own)}, {}), ({}, {"REFSTORE_CONFIG": str(own)})):
                found = loaded(flags, environ)
                assert found.settings.log.level == "debug"
                assert [f"everybody may write {own}" in warning for warning in found.warnings] == [True] * warned

    def test_a_folder_or_a_pipe_is_no_file(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "refstore.toml")
        assert loaded({}, {}, tmp_path).file.path is None
        for place in (tmp_path, tmp_path / "refstore.toml"):
            with pytest.raises(InvalidSettings, match=f"--config names {place}, which is not a file"):
                loaded({"config": str(place)})


class TestRules:
    @pytest.mark.parametrize(
        ("name", "text", "told"),
        [
            pytest.param(
                "REFSTORE_SAFETY_GRACE",
                "soon",
                r"safety.grace \(environment REFSTORE_SAFETY_GRACE\) 'soon' is no duration that fits",
                id="no duration",
            ),
            *(
                ("REFSTORE_SAFETY_GRACE", text, "from 0 to 3660d")
                for text in ("nan", "inf", "-1s", "1e12s", "3661d", "7200")
            ),
        ],
    )
    def test_a_duration_in_the_environment_that_cannot_be_is_told_with_its_name(
        self, name: str, text: str, told: str
    ) -> None:
        with pytest.raises(InvalidSettings, match=told):
            loaded({}, {name: text})

    @pytest.mark.parametrize(
        "wrong",
        [
            {"rate_per_second": -1},
            {"rate_per_second": float("nan")},
            {"breaker_share": 1.1},
            {"breaker_per_hour": -1},
        ],
        ids=str,
    )
    def test_the_reapers_settings_are_bounded(self, wrong: dict[str, float]) -> None:
        with pytest.raises(InvalidSettings, match=f"reaper.{next(iter(wrong))} is .*; it must be between"):
            ReaperSettings(**wrong)

    @pytest.mark.parametrize("kind", [ReaperSettings, MetricsSettings, ApiSettings])
    def test_every_number_is_bounded(self, kind: type[ReaperSettings | MetricsSettings | ApiSettings]) -> None:
        numbers = [
            field.name
            for field in dataclasses.fields(kind)
            if not isinstance(field.default, str | tuple) and NO_SETTING not in field.metadata
        ]
        assert numbers
        for name in numbers:
            with pytest.raises(InvalidSettings, match=name):
                kind(**{name: float("inf")})

    @pytest.mark.parametrize(
        "url", ["archive/raw", "/srv/landing", "file://landing", "gs://bucket/x", "s3://", "s3://bucket/#x"]
    )
    def test_what_may_be_imported_from_is_named_by_urls(self, url: str) -> None:
        with pytest.raises(InvalidSettings, match=r"import_from has .*; it must be URLs such as"):
            loaded({"import_from": ("s3://archive/raw/?endpoint=http://h", url)}, {})

    def test_several_places_to_import_from_are_shown_as_a_list(self) -> None:
        found = loaded({}, {"REFSTORE_IMPORT_FROM": "s3://archive/raw/, file:///srv/landing/"})
        assert {row.setting: row.value for row in found.rows()}["import_from"] == [
            "s3://archive/raw/",
            "file:///srv/landing/",
        ]

    def test_a_flag_that_is_no_setting(self) -> None:
        with pytest.raises(InvalidSettings, match="no such setting: dta"):
            loaded({"dta": "/x"})

    def test_a_mistyped_variable_is_told(self) -> None:
        warnings = loaded(
            {}, {"REFSTORE_SAFETY_GRACES": "1s", "REFSTORE_PORT": "tcp://10.0.0.1:80", "REFSTORE_SERVICE_HOST": "x"}
        ).warnings
        assert warnings == (
            "REFSTORE_SAFETY_GRACES is not a setting and has no effect; did you mean REFSTORE_SAFETY_GRACE?",
        )

    @pytest.mark.parametrize("name", ["REFSTORE_GRACE", "REFSTORE_GRACE_SECONDS", "REFSTORE_SAFETY_GRACE_SECONDS"])
    def test_a_variable_without_its_section_or_with_a_unit_is_told(self, name: str) -> None:
        (warning,) = loaded({}, {name: "7d"}).warnings
        assert warning == f"{name} is not a setting and has no effect; did you mean REFSTORE_SAFETY_GRACE?"


class TestSecrets:
    def test_they_are_in_no_row_and_no_repr(self) -> None:
        found = loaded(
            {"kv": "redis://user:hunter2@h:1/0", "objects": "s3://b?secret_key=hunter2&region=x"},
            {
                "REFSTORE_SIGNING_KEYS": f"k1:hunter2{SECRET}, k2:hunter2{SECRET}",
                "REFSTORE_PURGE_KEY": f"hunter2{SECRET}",
            },
        )
        rows = {row.setting: row for row in found.rows()}
        assert rows["kv"].value == "redis://user:***@h:1/0"
        assert rows["objects"].value == "s3://b?secret_key=***&region=x"
        assert rows["signing_keys"].value == ["k1:***", "k2:***"]
        assert rows["purge_key"].value == "***"
        assert [*rows] == ["config", *SETTINGS]
        assert found.settings.kv == "redis://user:hunter2@h:1/0"
        assert found.settings.parsed_signing_keys == (
            SigningKey("k1", f"hunter2{SECRET}".encode()),
            SigningKey("k2", f"hunter2{SECRET}".encode()),
        )
        assert "hunter2" not in repr(found) + str(list(found.rows()))

    @pytest.mark.parametrize(
        ("flags", "environ"),
        [
            ({"kv": "redis://u:hunter2@h"}, {}),
            ({"kv": "redis://u:hunter2@h x", "objects": "s3://b"}, {}),
            ({"kv": "://u:hunter2@h", "objects": "s3://b"}, {}),
            ({}, {"REFSTORE_SIGNING_KEYS": "hunter2"}),
            ({}, {"REFSTORE_SIGNING_KEYS": "k:hunter2"}),
            ({}, {"REFSTORE_PURGE_KEY": "hunter2"}),
            ({}, {"REFSTORE_SIGNING_KEYS": f"bad id:hunter2{SECRET}"}),
            ({}, {"REFSTORE_SIGNING_KEYS": f"k:{SECRET}hunter2,k:{SECRET}hunter2"}),
        ],
    )
    def test_they_are_in_no_message(self, flags, environ) -> None:
        with pytest.raises(InvalidSettings) as raised:
            loaded(flags, environ)
        assert "hunter2" not in str(raised.value)
        assert raised.value.__cause__ is None

    def test_a_file_with_a_wrong_key_does_not_show_it(self, toml) -> None:
        with pytest.raises(InvalidSettings, match="is not valid; it must be a list of kid:secret texts") as raised:
            loaded({}, {}, toml("signing_keys = 'hunter2'").parent)
        assert "hunter2" not in str(raised.value)

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("redis://h:6379/0", "redis://h:6379/0"),
            ("redis://:pw@h", "redis://:***@h"),
            ("redis://u:p/w?x#y@h/0", "redis://u:***@h/0"),
            ("redis://u:p@w@h", "redis://u:***@h"),
            ("rediss://u:pw@h/0?ssl_password=pw&x=1", "rediss://u:***@h/0?ssl_password=***&x=1"),
            ("file:///a/b", "file:///a/b"),
            ("sqlite:///a:b@c/kv.sqlite", "sqlite:///a:***@c/kv.sqlite"),
            ("no url", "no url"),
        ],
    )
    def test_urls_as_they_are_shown(self, url: str, shown: str) -> None:
        assert redact_url(url) == shown

    def test_urls_in_text(self) -> None:
        assert (
            redact_text("lost redis://u:pw@h and s3://b?token=t (sorry)")
            == "lost redis://u:***@h and s3://b?token=*** (sorry)"
        )

    @given(st.text(st.characters(codec="utf-8", exclude_characters=" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85"), min_size=1))
    def test_no_password_is_shown_whatever_it_is(self, password: str) -> None:
        shown = redact_url(f"redis://user:{password}hunter2{password}@host:1/0")
        assert "hunter2" not in shown
        assert shown.startswith("redis://user:")


def descriptions() -> dict[str, str]:
    """What stands below each field of a class of settings, by name of class and field."""
    found: dict[str, str] = {}
    for module in (configuration_settings, safety):
        for cls in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(cls, ast.ClassDef):
                for declared, text in itertools.pairwise(cls.body):
                    if isinstance(declared, ast.AnnAssign) and isinstance(text, ast.Expr):
                        found[f"{cls.name}.{ast.unparse(declared.target)}"] = ast.literal_eval(text.value)
    return found


class TestTheSettingsAreFew:
    """Whoever adds one says here which goes."""

    def test_those_of_files_and_variables_of_named_stores_and_of_urls(self) -> None:
        """`endpoint` is one, which stands in the URL or in `[stores.NAME]`."""
        connections = {*redis_url.OPTIONS, *s3.OPTIONS, "fsync", *object_store_settings.FIELDS}
        assert len(SETTINGS) + len(connections) <= 34

    def test_each_says_in_which_situation_somebody_would_change_it(self) -> None:
        """Its description has a sentence, mostly the last one, that begins with `For` or `Where`."""
        texts = descriptions()
        classes = {"": "Settings", **{name: kind.__name__ for name, kind in SECTIONS.items()}}
        untold = [
            setting.name
            for setting in SETTINGS.values()
            if not re.search(
                r"\b(For|Where)\s", texts.get(f"{classes[setting.name.rpartition('.')[0]]}.{setting.field}", "")
            )
        ]
        assert untold == []

    @pytest.mark.parametrize("name", OPTIONS)
    def test_how_one_process_runs_is_an_option_of_its_command_only(self, name: str) -> None:
        others = {"log.format": "json", "metrics.host": "::1", "api.host": "::1", "s3.create_buckets": True}
        value = {**others, "api.prune_states": ("s3://lake/sales",)}.get(name, 7)
        assert loaded({name: value}).value(name) == value
        variable = {OPTIONS[name].variable: str(value)}
        assert loaded({}, variable).value(name) != value
        assert f"{OPTIONS[name].variable} is not a setting" in str(loaded({}, variable).warnings)
