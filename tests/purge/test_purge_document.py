"""The purge document: what it says, and what is refused, with line and column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refstore.core import json_documents
from refstore.errors import InvalidPurge
from refstore.purge_document import document
from refstore.purge_document.document import (
    COLUMNS_MAX,
    DAYS_MAX,
    VERSIONS_MAX,
    BackupPolicy,
    Dataset,
    PurgeDocument,
    TrashPolicy,
    json_schema,
    read_document,
)
from refstore.purge_document.purge_key import read_purge_key
from refstore_purge.formats import registry
from refstore_purge.verify_reader_process import READERS

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "purge.schema.json"


def test_the_published_schema_is_the_one_of_the_code() -> None:
    """`python scripts/purge_schema.py` writes it."""
    assert json.loads(SCHEMA.read_text()) == json.loads(json.dumps(document.json_schema()))


def test_a_run_and_verify_have_each_format_of_a_document() -> None:
    assert set(registry.MODULES) == set(READERS) == set(document.FILE_FORMATS)
    for name in document.FILE_FORMATS:
        module = registry.load_format(name)
        assert (callable(module.find), callable(module.rewrite)) == (True, True)


class TestTheKey:
    def test_a_setting_wins_and_without_one_and_a_folder_there_is_none(self, tmp_path: Path) -> None:
        assert read_purge_key("x" * 32, tmp_path) == b"x" * 32
        assert not list(tmp_path.iterdir())
        assert read_purge_key("", None) is None

    def test_a_folder_gets_one_key_of_its_own_which_its_owner_alone_may_read(self, tmp_path: Path) -> None:
        made = read_purge_key("", tmp_path)
        assert made is not None
        assert len(made) == 64
        assert read_purge_key("", tmp_path) == made
        (file,) = tmp_path.iterdir()
        assert (file.name, file.stat().st_mode & 0o777) == ("purge.key", 0o600)
        other = tmp_path / "other"
        other.mkdir()
        assert read_purge_key("", other) != made

    def test_a_file_that_is_no_key_is_refused(self, tmp_path: Path) -> None:
        from refstore.errors import InvalidSettings

        (tmp_path / "purge.key").write_text("short\n")
        with pytest.raises(InvalidSettings, match="has no key of at least 32 characters"):
            read_purge_key("", tmp_path)
        with pytest.raises(InvalidSettings, match="cannot be read or made"):
            read_purge_key("", tmp_path / "nowhere")


FULL = """{
  "whitelist": ["tracking.*", "orders"],
  "datasets": [
    {"name": "tracking.event", "prefix": "tracking/event/", "format": "parquet", "identifier": "metadata.guestid",
     "mode": "keep-history", "map_part": "key", "set_null": ["mail", "metadata.age"],
     "branches": ["main", "release/*"], "description": "clicks"},
    {"name": "orders", "prefix": "orders/", "identifier": "guest", "mode": "erase"}
  ],
  "backup": {"days": 3, "versions": 0},
  "trash": {"days": 0}
}"""
DATASET: dict[str, Any] = {"name": "a", "prefix": "a/", "identifier": "g", "mode": "rewrite", "format": "csv"}


def document_of(*datasets: dict[str, Any], whitelist: tuple[str, ...] = ("*",)) -> str:
    return json.dumps({"whitelist": whitelist, "datasets": datasets})


def refused(text: str) -> tuple[str, str]:
    """Return the place that the refusal names, and the reason."""
    with pytest.raises(InvalidPurge) as caught:
        read_document(text)
    where, _, reason = str(caught.value).partition(": ")
    assert where.startswith("purge document")
    return where.removeprefix("purge document").removeprefix(", "), reason


class TestReading:
    def test_all_that_can_be_said(self) -> None:
        event = Dataset(
            name="tracking.event",
            prefix="tracking/event/",
            identifier="metadata.guestid",
            mode="keep-history",
            format="parquet",
            map_part="key",
            set_null=("mail", "metadata.age"),
            branches=("main", "release/*"),
            description="clicks",
        )
        orders = Dataset(name="orders", prefix="orders/", identifier="guest", mode="erase")
        found = read_document(FULL)
        assert found.warnings == ()
        assert found.document == PurgeDocument(
            ("tracking.*", "orders"), (event, orders), BackupPolicy(3, 0), TrashPolicy(0)
        )

    def test_nothing_said_purges_nothing(self) -> None:
        found = read_document("{}").document
        assert found == PurgeDocument((), (), BackupPolicy(30, 2), TrashPolicy(7))
        assert found.onboarded_datasets == ()

    def test_a_byte_order_mark_is_passed_over(self) -> None:
        assert read_document("\ufeff" + FULL) == read_document(FULL)

    def test_what_is_onboarded_is_in_order_of_prefixes(self) -> None:
        described = [{**DATASET, "name": name, "prefix": f"{name}/"} for name in ("b.z", "b.a", "c")]
        found = read_document(document_of(*described, whitelist=("b.*", "d")))
        assert [dataset.name for dataset in found.document.onboarded_datasets] == ["b.a", "b.z"]
        assert found.warnings == (
            "data set 'c' is not on the whitelist: it is not purged",
            "nothing is described for 'd' of the whitelist",
        )

    def test_branches_are_names_and_globs_and_none_given_are_all(self) -> None:
        event, orders = read_document(FULL).document.datasets
        assert [event.has_branch(name) for name in ("main", "release/1", "release", "dev")] == [
            True,
            True,
            False,
            False,
        ]
        assert orders.has_branch("dev")

    def test_prefixes_that_only_begin_alike_lie_beside_one_another(self) -> None:
        assert read_document(document_of(DATASET, {**DATASET, "name": "ab", "prefix": "ab/"})).warnings == ()


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "place", "told"),
        [
            ({"name": "-a"}, "datasets[0].name", "'-a' is not a name of a data set; use up to 255 letters"),
            ({"name": ""}, "datasets[0].name", "'' is not a name of a data set"),
            ({"name": "a" * 256}, "datasets[0].name", f"'{'a' * 80}' is not a name of a data set"),
            ({"prefix": "a"}, "datasets[0].prefix", "prefix 'a' is no folder; end it with '/'"),
            ({"prefix": ""}, "datasets[0].prefix", "prefix '' is no folder"),
            ({"prefix": "../a/"}, "datasets[0].prefix", "a path must not contain '.' or '..'"),
            ({"identifier": ""}, "datasets[0].identifier", "'' is not a column; write its name"),
            ({"identifier": "a..b", "format": "avro"}, "datasets[0].identifier", "'a..b' is not a column"),
            ({"identifier": "." * 200, "format": "orc"}, "datasets[0].identifier", f"'{'.' * 80}' is not a column"),
            ({"mode": "delete"}, "datasets[0].mode", "Invalid enum value 'delete'; docs/purge.md shows the format"),
            ({"format": "xml"}, "datasets[0].format", "Invalid enum value 'xml'"),
            ({"format": None}, "datasets[0]", "mode 'rewrite' needs a format: parquet, orc, avro, json or csv"),
            ({"set_null": ["x", "y."], "format": "json"}, "datasets[0].set_null", "'y.' is not a column"),
            ({"set_null": ["x"] * (COLUMNS_MAX + 1)}, "datasets[0].set_null", "Expected `array` of length <= 100"),
            (
                {"mode": "erase", "set_null": ["x"]},
                "datasets[0].set_null",
                "mode 'erase' removes whole objects; leave set_null out",
            ),
            ({"branches": ["main"]}, "datasets[0].branches", "mode 'rewrite' purges every version; leave branches out"),
            (
                {"mode": "keep-history", "branches": ["main", "[x"]},
                "datasets[0].branches[1]",
                "'[x' is neither a branch's name nor a glob",
            ),
            ({"map_part": "both"}, "datasets[0].map_part", "Invalid enum value 'both'"),
            ({"idetifier": "x"}, "datasets[0]", "unknown field 'idetifier'; did you mean 'identifier'?"),
            ({"zzz": "x"}, "datasets[0]", "unknown field 'zzz'; docs/purge.md shows the format"),
            ({"description": 7}, "datasets[0].description", "Expected `str`, got `int`"),
        ],
    )
    def test_of_a_data_set(self, changes: dict[str, Any], place: str, told: str) -> None:
        found = refused(document_of({**DATASET, **changes}))
        assert found[0] == place
        assert told in found[1]

    @pytest.mark.parametrize("field", ["name", "prefix", "identifier", "mode"])
    def test_of_a_data_set_that_lacks_a_field(self, field: str) -> None:
        place, told = refused(document_of({name: DATASET[name] for name in DATASET if name != field}))
        assert place == "datasets[0]"
        assert f"Object missing required field `{field}`" in told

    def test_of_a_name_that_is_there_twice(self) -> None:
        assert refused(document_of(DATASET, {**DATASET, "prefix": "b/"})) == (
            "datasets[1].name",
            "data set 'a' is there twice (first in datasets[0]); keep one",
        )

    @pytest.mark.parametrize("prefix", ["a/", "a/b/"])
    @pytest.mark.parametrize("is_first", [True, False])
    def test_of_prefixes_within_one_another(self, prefix: str, *, is_first: bool) -> None:
        datasets = [DATASET, {**DATASET, "name": "b", "prefix": prefix}]
        place, told = refused(document_of(*(datasets if is_first else reversed(datasets))))
        assert place == "datasets[1].prefix"
        assert "lie within one another; an object can be in one data set only" in told

    @pytest.mark.parametrize(
        ("text", "place", "told"),
        [
            ("", "line 1, column 1", "Expecting value; correct the JSON there"),
            ("[]", "", "Expected `object`, got `array`"),
            ("{}\n{}", "line 2, column 1", "Extra data; correct the JSON there"),
            ('{\n  "whitelist": ["a" "b"]\n}', "line 2, column 21", "Expecting ',' delimiter; correct the JSON there"),
            ('{\n  "whitlist": []}', "", "unknown field 'whitlist'; did you mean 'whitelist'?"),
            ('{"whitelist": [],\n "whitelist": []}', "", "field 'whitelist' is there twice in one object"),
            ('{"whitelist": "a"}', "whitelist", "Expected `array`, got `str`"),
            ('{"whitelist": ["a",\n 7]}', "whitelist[1]", "Expected `str`, got `int`"),
            ('{"whitelist": ["a",\n  "[b]"]}', "whitelist[1]", "'[b]' is neither a data set's name nor a glob"),
            ('{"whitelist": [""]}', "whitelist[0]", "'' is neither a data set's name nor a glob"),
            (f'{{"backup": {{"days": {DAYS_MAX + 1}}}}}', "backup.days", "Expected `int` <= 36500"),
            ('{"backup": {"days": -1}}', "backup.days", "Expected `int` >= 0"),
            (f'{{"backup": {{"versions": {VERSIONS_MAX + 1}}}}}', "backup.versions", "Expected `int` <= 1000"),
            ('{"backup": {"versions": -1}}', "backup.versions", "Expected `int` >= 0"),
            ('{"trash": {"days": 1.5}}', "trash.days", "Expected `int`, got `float`"),
            ('{"trash": {"days": -1}}', "trash.days", "Expected `int` >= 0"),
            ('{"trash": {"versions": 1}}', "trash", "unknown field 'versions'"),
            ('{"trash": {"days": 9999999999999999999}}', "trash.days", "Expected `int` <= 36500"),
        ],
    )
    def test_of_the_document(self, text: str, place: str, told: str) -> None:
        found = refused(text)
        assert found[0] == place
        assert told in found[1]

    def test_of_a_document_that_is_too_long(self) -> None:
        text = "{}" + " " * json_documents.CHARACTERS_MAX
        assert refused(text) == ("", "the document has 262146 characters; it may have 262144")


def test_the_schema_knows_every_field_and_its_bounds() -> None:
    parts = json_schema()["$defs"]
    models: tuple[Any, ...] = (PurgeDocument, Dataset, BackupPolicy, TrashPolicy)
    for model in models:
        part = parts[model.__name__]
        assert set(part["properties"]) == set(model.__struct_fields__)
        assert part["additionalProperties"] is False
    assert parts["Dataset"]["required"] == ["name", "prefix", "identifier", "mode"]
    assert parts["BackupPolicy"]["properties"]["versions"]["maximum"] == VERSIONS_MAX
    assert parts["TrashPolicy"]["properties"]["days"]["maximum"] == DAYS_MAX
