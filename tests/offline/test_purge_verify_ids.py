"""`refstore purge verify` takes the ids that a run takes, in every form, and says what a run says."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refstore.errors import Invalid
from refstore_purge import IdsFile, verify
from tests.commands import Command
from tests.offline.world import World
from tests.purge.looking import parquet_of

ANN, BOB = uuid.UUID(int=2**127 // 3), uuid.UUID(int=2**127 // 5)
UUIDS = pa.array([ANN.bytes, BOB.bytes], pa.binary(16))


def onboard(world: World, **files: Any) -> None:
    """Commit a data set for each of these arrays, or for the bytes of a CSV file."""
    datasets: list[dict[str, str]] = []
    for name, values in files.items():
        is_csv = isinstance(values, bytes)
        world.repo.upload("main", f"{name}/x", values if is_csv else parquet_of(pa.table({"id": values})))
        dataset = {"name": name, "prefix": f"{name}/", "identifier": "id", "mode": "keep-history"}
        datasets.append({**dataset, "format": "csv" if is_csv else "parquet"})
    world.repo.commit("main", "data")
    world.repo.onboard_purge(json.dumps({"whitelist": ["*"], "datasets": datasets}), by="tests")


def left(world: World, table: Any, **options: Any) -> dict[str, tuple[int, str]]:
    """Return the rows that are left, and why nobody could look, by path. `options`: of the file of ids, and others."""
    file = world.folder / "forget.csv"
    if isinstance(table, bytes):
        file.write_bytes(table)
    else:
        pq.write_table(pa.table(table), file)
    of_file = {name: options.pop(name) for name in IdsFile._fields if name in options}
    found = verify(world.repo, IdsFile(file, **of_file), **options).findings
    return {each.path: (each.rows, each.reason) for each in found}


@pytest.mark.parametrize(
    ("table", "options"),
    [
        (b"id\n7\n", {}),
        (b"name;id\nsecret, x;7\n", {"column": "id", "delimiter": ";"}),
        (b"7\n", {"has_header": False}),
        (b'{"id": 7, "name": "secret"}\n', {"column": "id", "id_type": "string"}),
        ({"id": ["7", None]}, {}),
        (b"d,id\na,7\n", {"dataset_column": "d"}),
        (f"d,id\na,{'7' * 25}\na,7\n".encode(), {"dataset_column": "d"}),
    ],
)
def test_every_form_of_a_table_is_read(world: World, table: Any, options: dict[str, Any]) -> None:
    onboard(world, a=pa.array(["7", "8", "", "secret", "x"]))
    assert left(world, table, **options) == {"a/x": (1, "")}


@pytest.mark.parametrize(
    ("table", "options", "told"),
    [
        (b"7\n8\n", {}, "line 1 of forget.csv is no header"),
        ({"id": [{"secret": 1}]}, {}, "are a struct; ids are strings, integers or binary"),
        (b"d,id\nsecret,7\n", {"dataset_column": "d"}, "line 2 of forget.csv names no onboarded data set"),
        (b"id\nsecret\n", {"id_type": "integer"}, "no integer"),
        (b"id\n7\n", {"datasets": ["nobody"]}, "no data set 'nobody' is onboarded; onboarded are: a"),
    ],
)
def test_what_a_run_refuses_is_refused(world: World, table: Any, options: dict[str, Any], told: str) -> None:
    onboard(world, a=pa.array(["7"]))
    with pytest.raises(Invalid) as raised:
        left(world, table, **options)
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)


def test_an_empty_id_is_one_only_if_it_is_wanted(world: World) -> None:
    onboard(world, a=pa.array(["7", "", ""]), b=b'id,n\n"",1\n,2\n7,3\n')
    for table in (b'id\n""\n"7"\n', {"id": ["", "7"]}, b'{"id": ""}\n{"id": "7"}\n'):
        assert left(world, table) == {"a/x": (1, ""), "b/x": (1, "")}
        assert left(world, table, takes_empty_id=True) == {"a/x": (3, ""), "b/x": (2, "")}


class TestDatasets:
    def test_have_ids_of_their_own_type(self, world: World) -> None:
        onboard(world, a=pa.array([7, 8]), b=pa.array(["7", "8"]), c=UUIDS, d=pa.array(["7"]), e=b"id\n7\n8\n")
        table = f"id,set\n7,a\n8,b\n{BOB},c\n8,e\n".encode()
        once = (1, "")
        found = left(world, table, column="id", dataset_column="set")
        assert found == {"a/x": once, "b/x": once, "c/x": once, "e/x": once}
        said: list[str] = []
        options: dict[str, Any] = {"column": "id", "dataset_column": "set"}
        assert left(world, table, **options, datasets=["a", "d"], print_notice=said.append) == {"a/x": once}
        assert said[0].endswith("; not looked at, without ids: d")
        with pytest.raises(Invalid, match="has no ids of what --dataset names"):
            left(world, table, **options, datasets=["d"])

    def test_without_ids_that_fit_are_not_called_clean(self, world: World) -> None:
        onboard(world, a=pa.array([7, 8]), b=pa.array(["7", "8"]))
        assert left(world, b"id\n7\n") == {
            "a/x": (0, "column 'id' is int64, and the ids are strings"),
            "b/x": (1, ""),
        }
        assert left(world, b"id\n7\n", datasets=["b"]) == {"b/x": (1, "")}


@pytest.mark.parametrize("digits", ["1" * 21, "9" * 60])
def test_digits_beyond_64_bits_are_text(world: World, digits: str) -> None:
    onboard(world, a=pa.array([digits, "7"]), b=pa.array([7]))
    assert left(world, f"set,id\na,{digits}\na,7\nb,7\n".encode(), column="id", dataset_column="set") == {
        "a/x": (2, ""),
        "b/x": (1, ""),
    }


class TestUuids:
    @pytest.mark.parametrize("text", [str(BOB), str(BOB).upper(), BOB.hex, f"{{{BOB}}}", f"urn:uuid:{BOB}"])
    def test_that_are_text_are_found_in_16_bytes(self, world: World, text: str) -> None:
        extension = pa.ExtensionArray.from_storage(pa.uuid(), UUIDS)
        onboard(world, a=UUIDS, b=extension, c=pa.ListArray.from_arrays([0, 1, 2], extension))
        once = (1, "")
        assert left(world, {"id": [text]}) == {"a/x": once, "b/x": once, "c/x": once}
        assert left(world, {"id": [text]}, id_type="uuid") == {"a/x": once, "b/x": once, "c/x": once}
        assert left(world, {"id": pa.ExtensionArray.from_storage(pa.uuid(), UUIDS.slice(1))}) == {
            "a/x": once,
            "b/x": once,
            "c/x": once,
        }

    def test_in_text_are_text(self, world: World) -> None:
        onboard(world, a=pa.array([str(BOB), BOB.hex]), b=UUIDS)
        assert left(world, {"id": [str(BOB)]}) == {"a/x": (1, ""), "b/x": (1, "")}

    def test_only_some_of_which_are_any_cannot_be_looked_for(self, world: World) -> None:
        onboard(world, a=UUIDS)
        assert left(world, {"id": [str(BOB), "x"]})["a/x"][0] == 0
        assert "no id has so many bytes" in left(world, {"id": [str(BOB)]}, id_type="binary")["a/x"][1]


def test_a_struct_is_told(world: World) -> None:
    onboard(world, a=pa.array([{"guestid": "a", "n": 1}]))
    told = "column 'id' is struct<guestid: string, n: int64>, and the ids are strings"
    assert left(world, b"id\na\n") == {"a/x": (0, told)}


def test_the_command_has_the_options_of_a_run(refstore: Command) -> None:
    world = World(refstore.folder / "lake")
    onboard(world, a=pa.array([7, 8]), b=pa.array(["7", "", ""]))
    file = refstore.folder / "forget.csv"
    file.write_text('id;set\n7;a\n"";b\n')
    words: list[str | Path] = ["purge", "verify", "sales", "--ids", file, "--delimiter", ";", "--dataset-column", "set"]
    ran = refstore(*words, "--empty-id", "--dataset", "b")
    assert ran.code == 4
    assert "ids: 2 values, text" in ran.err
    assert "b/x" in ran.out
    assert "a/x" not in ran.out
    ran = refstore(*words, "--dataset", "b")
    assert ran.code == 2
    assert "has no ids of what --dataset names" in ran.err
