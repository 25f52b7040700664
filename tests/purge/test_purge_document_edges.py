"""The purge document says where it is wrong: line and column of each refusal; and what it means when it is right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refstore.core import json_positions
from refstore.errors import InvalidPurge
from refstore.purging.document import (
    COLUMNS_MAX,
    DAYS_MAX,
    VERSIONS_MAX,
    Backup,
    Dataset,
    PurgeDocument,
    Trash,
    read_document,
    schema,
)

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


def document(*datasets: dict[str, Any], whitelist: tuple[str, ...] = ("*",)) -> str:
    """Return a document whose data sets begin a line each, and each field of theirs the next one."""
    shown = [
        "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in dataset.items()) + "}"
        for dataset in datasets
    ]
    return f'{{"whitelist": {json.dumps(whitelist)}, "datasets": [\n' + ",\n".join(shown) + "]}"


def refused(text: str) -> tuple[int, int, str]:
    with pytest.raises(InvalidPurge) as caught:
        read_document(text)
    found = str(caught.value)
    where = f"purge document, line {caught.value.line}, column {caught.value.column}: "
    assert found.startswith(where)
    return caught.value.line, caught.value.column, found.removeprefix(where)


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
        assert found.document == PurgeDocument(("tracking.*", "orders"), (event, orders), Backup(3, 0), Trash(0))

    def test_nothing_said_purges_nothing(self) -> None:
        found = read_document("{}").document
        assert found == PurgeDocument((), (), Backup(30, 2), Trash(7))
        assert found.onboarded == ()

    def test_a_byte_order_mark_is_passed_over(self) -> None:
        assert read_document("\ufeff" + FULL) == read_document(FULL)

    def test_what_is_onboarded_is_in_order_of_prefixes(self) -> None:
        described = [{**DATASET, "name": name, "prefix": f"{name}/"} for name in ("b.z", "b.a", "c")]
        found = read_document(document(*described, whitelist=("b.*", "d")))
        assert [dataset.name for dataset in found.document.onboarded] == ["b.a", "b.z"]
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
        assert read_document(document(DATASET, {**DATASET, "name": "ab", "prefix": "ab/"})).warnings == ()


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "line", "column", "told"),
        [
            ({"name": "-a"}, 3, 1, "'-a' is not a name of a data set; use up to 255 letters"),
            ({"name": ""}, 3, 1, "'' is not a name of a data set"),
            ({"name": "a" * 256}, 3, 1, f"'{'a' * 80}' is not a name of a data set"),
            ({"prefix": "a"}, 4, 1, "prefix 'a' is no folder; end it with '/'"),
            ({"prefix": ""}, 4, 1, "prefix '' is no folder"),
            ({"prefix": "../a/"}, 4, 1, "a path must not contain '.' or '..'"),
            ({"identifier": ""}, 5, 1, "'' is not a column; write its name"),
            ({"identifier": "a..b"}, 5, 1, "'a..b' is not a column"),
            ({"identifier": "." * 200}, 5, 1, f"'{'.' * 80}' is not a column"),
            ({"mode": "delete"}, 6, 1, "field 'mode': invalid enum value 'delete'; docs/purge.md shows the format"),
            ({"format": "xml"}, 7, 1, "field 'format': invalid enum value 'xml'"),
            ({"format": None}, 2, 1, "mode 'rewrite' needs a format: parquet, orc, avro, json or csv"),
            ({"set_null": ["x", "y."]}, 8, 1, "'y.' is not a column"),
            ({"set_null": ["x"] * (COLUMNS_MAX + 1)}, 8, 1, "field 'set_null': expected `array` of length <= 100"),
            ({"mode": "erase", "set_null": ["x"]}, 8, 1, "mode 'erase' removes whole objects; leave set_null out"),
            ({"branches": ["main"]}, 8, 1, "mode 'rewrite' purges every version; leave branches out"),
            ({"mode": "keep-history", "branches": ["main", "[x"]}, 8, 22, "'[x' is neither a branch's name nor a glob"),
            ({"map_part": "both"}, 8, 1, "field 'map_part': invalid enum value 'both'"),
            ({"idetifier": "x"}, 8, 1, "unknown field 'idetifier'; did you mean 'identifier'?"),
            ({"zzz": "x"}, 8, 1, "unknown field 'zzz'; docs/purge.md shows the format"),
            ({"description": 7}, 8, 1, "field 'description': expected `str`, got `int`"),
        ],
    )
    def test_of_a_data_set(self, changes: dict[str, Any], line: int, column: int, told: str) -> None:
        found = refused(document({**DATASET, **changes}))
        assert found[:2] == (line, column)
        assert told in found[2]

    @pytest.mark.parametrize("field", ["name", "prefix", "identifier", "mode"])
    def test_of_a_data_set_that_lacks_a_field(self, field: str) -> None:
        line, column, told = refused(document({name: DATASET[name] for name in DATASET if name != field}))
        assert (line, column) == (2, 1)
        assert f"object missing required field `{field}`" in told

    def test_of_a_name_that_is_there_twice(self) -> None:
        assert refused(document(DATASET, {**DATASET, "prefix": "b/"})) == (
            9,
            1,
            "data set 'a' is there twice (first in line 3)",
        )

    @pytest.mark.parametrize("prefix", ["a/", "a/b/"])
    @pytest.mark.parametrize("is_first", [True, False])
    def test_of_prefixes_within_one_another(self, prefix: str, *, is_first: bool) -> None:
        datasets = [DATASET, {**DATASET, "name": "b", "prefix": prefix}]
        line, column, told = refused(document(*(datasets if is_first else reversed(datasets))))
        assert (line, column) == (10, 1)
        assert "lie within one another; an object can be in one data set only" in told

    @pytest.mark.parametrize(
        ("text", "line", "column", "told"),
        [
            ("", 1, 1, "the document ends too early"),
            ("[]", 1, 1, "expected `object`, got `array`"),
            ("{}\n{}", 2, 1, "something stands behind the document"),
            ('{\n  "whitelist": ["a",]\n}', 2, 20, "a comma with nothing after it"),
            ('{\n  "whitlist": []}', 2, 3, "unknown field 'whitlist'; did you mean 'whitelist'?"),
            ('{"whitelist": [],\n "whitelist": []}', 2, 2, "field 'whitelist' is there twice (first in line 1)"),
            ('{"whitelist": "a"}', 1, 2, "field 'whitelist': expected `array`, got `str`"),
            ('{"whitelist": ["a",\n 7]}', 2, 2, "expected `str`, got `int`"),
            ('{"whitelist": ["a",\n  "[b]"]}', 2, 3, "'[b]' is neither a data set's name nor a glob"),
            ('{"whitelist": [""]}', 1, 16, "'' is neither a data set's name nor a glob"),
            (f'{{"backup": {{"days": {DAYS_MAX + 1}}}}}', 1, 13, "field 'days': expected `int` <= 36500"),
            ('{"backup": {"days": -1}}', 1, 13, "field 'days': expected `int` >= 0"),
            (f'{{"backup": {{"versions": {VERSIONS_MAX + 1}}}}}', 1, 13, "expected `int` <= 1000"),
            ('{"backup": {"versions": -1}}', 1, 13, "field 'versions': expected `int` >= 0"),
            ('{"trash": {"days": 1.5}}', 1, 12, "field 'days': expected `int`, got `float`"),
            ('{"trash": {"days": -1}}', 1, 12, "field 'days': expected `int` >= 0"),
            ('{"trash": {"versions": 1}}', 1, 12, "unknown field 'versions'"),
            ('{"trash": {"days": 9999999999999999999}}', 1, 20, "a number of more than 18 digits"),
        ],
    )
    def test_of_the_document(self, text: str, line: int, column: int, told: str) -> None:
        found = refused(text)
        assert found[:2] == (line, column)
        assert told in found[2]

    def test_of_a_document_that_is_too_long(self) -> None:
        text = "{}" + " " * json_positions.CHARACTERS_MAX
        assert refused(text) == (1, 1, "the document has 262146 characters; it may have 262144")


def test_the_schema_knows_every_field_and_its_bounds() -> None:
    parts = schema()["$defs"]
    models: tuple[Any, ...] = (PurgeDocument, Dataset, Backup, Trash)
    for model in models:
        part = parts[model.__name__]
        assert set(part["properties"]) == set(model.__struct_fields__)
        assert part["additionalProperties"] is False
    assert parts["Dataset"]["required"] == ["name", "prefix", "identifier", "mode"]
    assert parts["Backup"]["properties"]["versions"]["maximum"] == VERSIONS_MAX
    assert parts["Trash"]["properties"]["days"]["maximum"] == DAYS_MAX
