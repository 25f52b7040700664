"""Each data set has ids of its own, of the type that its column has: in the run, in the ledger, and later."""

from __future__ import annotations

import io
import json
import re
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from refstore.errors import Invalid, NotFound
from refstore_purge import id_index, ledger, purge_run, verify
from refstore_purge.purge_report import PurgeReport
from tests.offline.purge_runs import onboard_visits, options_of, purge_with
from tests.offline.world import World
from tests.purge.looking import ids_at

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

SECRET = b"a key of at least thirty-two characters"
KEY = id_index.IndexKey.derive(SECRET)
ANN, BOB, CID = (uuid.UUID(int=number * (2**128 // 7)) for number in (2, 3, 5))

Purge = Callable[..., PurgeReport]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def purge(world: World, engines: Engines, said: list[str]) -> Purge:
    def purged(table: Any, *datasets: str, **options: Any) -> PurgeReport:
        """`table`: the bytes of a file of ids, or columns of one of Parquet; None: the ids of the ledger."""
        file = world.folder / "forget"
        if isinstance(table, bytes):
            file.write_bytes(table)
        elif table is not None:
            pq.write_table(pa.table(table), file)
        made = options_of(file if table is not None else None, datasets=datasets, **{"purge_key": SECRET, **options})
        return purge_run.run_purge(world.repo, engines, made, lambda _: None, print_notice=said.append)

    return purged


def parquet(values: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"id": values, "n": pa.array(range(len(values)))}), out)
    return out.getvalue()


def pq_without_ids(number: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"n": [number]}), out)
    return out.getvalue()


def onboard(world: World, *names: str, **changes: Any) -> None:
    datasets = [
        {
            "name": name,
            "prefix": f"{name}/",
            "format": "parquet",
            "identifier": "id",
            "mode": "keep-history",
            **changes.get(name, {}),
        }
        for name in names
    ]
    world.repo.onboard_purge(json.dumps({"whitelist": ["*"], "datasets": datasets}), by="tests")


def commit(world: World, files: dict[str, bytes]) -> None:
    for path, body in files.items():
        world.repo.upload("main", path, body)
    world.repo.commit("main", "data")


@pytest.fixture
def two(world: World) -> None:
    """Commit a data set with integers and one with strings, which have the same ids."""
    commit(world, {"events/a": parquet([7, 8, 9]), "clicks/a": parquet(["7", "8", "9", ""])})
    onboard(world, "events", "clicks")


@pytest.mark.usefixtures("two")
class TestSeveralTypes:
    def test_are_purged_by_one_run_of_a_table_that_names_data_sets(
        self, world: World, purge: Purge, said: list[str]
    ) -> None:
        made = purge(b"id,dataset\n7,events\n8,clicks\n", dataset_column="dataset")
        assert (made.is_whole, made.ids) == (True, 2)
        assert ids_at(world.repo, "events/a") == [8, 9]
        assert ids_at(world.repo, "clicks/a") == ["7", "9", ""]
        assert said == ["ids: 2 values, text; for clicks, events"]
        entries = sorted((each.datasets, each.kind, each.ids) for each in ledger.scan_ledger(world.ctx.objects, KEY))
        assert entries == [(("clicks",), "string", 1), (("events",), "integer", 1)]

    def test_of_json_lines_need_no_conversion(self, world: World, purge: Purge) -> None:
        table = b'{"d": "events", "id": 7}\n{"d": "clicks", "id": "8"}\n'
        assert purge(table, dataset_column="d").is_whole
        assert (ids_at(world.repo, "events/a"), ids_at(world.repo, "clicks/a")) == ([8, 9], ["7", "9", ""])

    def test_are_refused_of_a_table_that_names_none(self, world: World, purge: Purge) -> None:
        with pytest.raises(
            Invalid, match=r"'events' is int64, and its ids are text; say --id-type integer, or .*--dataset"
        ):
            purge(b"id\n7\n")
        with pytest.raises(Invalid, match=r"'clicks' is string, and its ids are integers; .*--dataset"):
            purge(b"id\n7\n", id_type="integer")
        assert ids_at(world.repo, "events/a") == [7, 8, 9]
        assert purge(b"id\n7\n", "clicks").is_whole
        assert purge(b"id\n7\n", "events", id_type="integer").is_whole
        assert (ids_at(world.repo, "events/a"), ids_at(world.repo, "clicks/a")) == ([8, 9], ["8", "9", ""])

    def test_are_looked_for_by_the_ledger_each_where_it_was_purged(
        self, world: World, purge: Purge, said: list[str]
    ) -> None:
        purge(b"id,dataset\n7,events\n8,clicks\n", dataset_column="dataset")
        commit(world, {"events/late": parquet([7, 8]), "clicks/late": parquet(["7", "8"])})
        onboard(world, "events", "clicks", "other")
        commit(world, {"other/late": parquet(["7", "8"])})
        made = purge(None)
        assert (made.is_whole, made.ids, made.is_from_ledger) == (True, 2, True)
        assert ids_at(world.repo, "events/late") == [8]
        assert ids_at(world.repo, "clicks/late") == ["7"]
        assert ids_at(world.repo, "other/late") == ["7", "8"]
        assert said[-1] == "ids: 2 of the ledger; not looked at, without ids: other"
        with pytest.raises(NotFound, match="no ids of these data sets"):
            purge(None, "other")

    def test_a_run_touches_only_the_data_sets_that_it_names(self, world: World, purge: Purge) -> None:
        # integers between the ids, so that statistics do not tell and an index is written
        purge(b"id,dataset\n77,events\n77,clicks\n", dataset_column="dataset")
        indexes = {info.key for info in world.ctx.objects.list(id_index.FOLDER)}
        made = purge(b"id,dataset\n8,events\n8,clicks\n", "events", dataset_column="dataset")
        assert {row.dataset for row in made.rows} == {"events"}
        assert (ids_at(world.repo, "events/a"), ids_at(world.repo, "clicks/a")) == ([7, 9], ["7", "8", "9", ""])
        kept = {info.key for info in world.ctx.objects.list(id_index.FOLDER)}
        assert {key for key in indexes if world.address("main", "clicks/a") in key} <= kept
        with pytest.raises(Invalid, match="no data set 'nobody' is onboarded; onboarded are: clicks, events"):
            purge(b"id\n7\n", "nobody")
        with pytest.raises(Invalid, match="no ids of what --dataset names"):
            purge(b"id,dataset\n8,events\n", "clicks", dataset_column="dataset")

    @pytest.mark.parametrize("value", ["secret", "4711" * 7, str(2**64), str(-(2**63) - 1)])
    def test_text_that_is_no_integer_of_the_column_is_refused_without_a_value(
        self, world: World, purge: Purge, value: str
    ) -> None:
        with pytest.raises(Invalid, match="not all of them integers of 64 bits; give ids of its type") as raised:
            purge(f"id,dataset\n7,events\n{value},events\n".encode(), dataset_column="dataset")
        assert value not in str(raised.value)
        assert purge(f"id,dataset\n7,events\n{value},clicks\n".encode(), dataset_column="dataset").is_whole
        assert (ids_at(world.repo, "events/a"), ids_at(world.repo, "clicks/a")) == ([8, 9], ["7", "8", "9", ""])

    def test_text_becomes_the_least_and_the_greatest_integer(self, world: World, purge: Purge) -> None:
        commit(world, {"events/a": parquet(pa.array([2**64 - 1, 7], pa.uint64()))})
        table = f"id,dataset\n{2**64 - 1},events\n{-(2**63)},events\n".encode()
        assert purge(table, dataset_column="dataset").is_whole
        assert ids_at(world.repo, "events/a") == [7]

    def test_an_empty_id_is_one_only_if_it_is_wanted(self, world: World, purge: Purge) -> None:
        table = b'id\n""\n"7"\n'
        purge(table, "clicks")
        assert ids_at(world.repo, "clicks/a") == ["8", "9", ""]
        purge(table, "clicks", takes_empty_id=True)
        assert ids_at(world.repo, "clicks/a") == ["8", "9"]


@pytest.mark.parametrize("mode", ["keep-history", "rewrite"])
def test_an_object_of_two_data_sets_with_different_ids_is_left(world: World, purge: Purge, mode: str) -> None:
    commit(world, {"a/x": parquet(["7", "8"])})
    world.repo.copy("main", "a/x", to_branch="main", to_path="b/x")
    world.repo.commit("main", "copy")
    onboard(world, "a", "b", a={"mode": mode}, b={"mode": mode})
    made = purge(b"id,dataset\n7,a\n8,b\n", dataset_column="dataset")
    assert [each.reason for each in made.skipped_objects] == [
        "data set 'a' has the same object, and other ids; upload it anew in one of the two"
    ]
    assert not made.is_whole
    assert ids_at(world.repo, "a/x") == ids_at(world.repo, "b/x") == ["7", "8"]
    made = purge(b"id\n7\n", "a")  # its other name lies outside of this run
    assert "also named outside the data sets of this run ('b/x'" in made.skipped_objects[0].reason
    assert purge(b"id\n7\n").is_whole
    assert ids_at(world.repo, "a/x") == ids_at(world.repo, "b/x") == ["8"]


class TestLedgerOfSeveralTypes:
    def test_of_one_data_set_the_column_tells(self, world: World, purge: Purge) -> None:
        commit(world, {"a/x": parquet(["7", "8"])})
        onboard(world, "a")
        purge(b"id\n7\n")
        commit(world, {"a/x": parquet([7, 8])})
        purge(b"id\n8\n", id_type="integer")
        commit(world, {"a/x": parquet([7, 8, 9])})
        assert purge(None).is_whole
        assert ids_at(world.repo, "a/x") == [7, 9]
        commit(world, {"a/x": parquet(["7", "8"])})
        assert purge(None).is_whole
        assert ids_at(world.repo, "a/x") == ["8"]
        commit(world, {"a/x": parquet([b"7", b"8"])})
        (left,) = purge(None).skipped_objects
        assert left.reason == "the ledger has no ids of the type binary of its identifiers; purge it once with --ids"
        assert ids_at(world.repo, "a/x") == [b"7", b"8"]
        assert purge(b"id\n7\n", id_type="binary").is_whole
        assert purge(None).is_whole

    def test_of_lines_nothing_tells_and_the_others_are_purged(self, world: World, purge: Purge) -> None:
        commit(world, {"a/x": b"id\n7\n8\n", "b/x": parquet(["7", "8"])})
        onboard(world, "a", "b", a={"format": "csv"})
        purge(b"id\n7\n")
        purge(b"id\n8\n", "a", id_type="integer")
        commit(world, {"a/x": b"id\n7\n8\n", "b/x": parquet(["7", "8"])})
        made = purge(None)
        assert [(each.path, each.reason) for each in made.skipped_objects] == [
            ("a/", "the ledger has ids of several types for it; run it alone with --id-type")
        ]
        assert ids_at(world.repo, "b/x") == ["8"]
        assert world.repo.read("main", "a/x") == b"id\n7\n8\n"
        assert purge(None, "a", id_type="integer").is_whole
        assert purge(None, "a", id_type="string").is_whole
        assert world.repo.read("main", "a/x") == b"id\n"

    def test_what_paths_tell_is_compared_with_all(self, world: World, purge: Purge) -> None:
        paths = {f"a/id={guest}/x": parquet(["x"]) for guest in ("7", "8", "9")}
        commit(world, paths)
        onboard(world, "a")
        purge(b"id\n7\n")
        purge(b"id\n8\n", id_type="integer")
        commit(world, paths)
        assert purge(None).is_whole
        assert [len(ids_at(world.repo, path)) for path in paths] == [0, 0, 1]


def uuids(type_: str) -> Any:
    storage = pa.array([each.bytes for each in (ANN, BOB, CID)] + [None], pa.binary(16))
    match type_:
        case "extension":
            return pa.ExtensionArray.from_storage(pa.uuid(), storage)
        case "list":
            return pa.ListArray.from_arrays([0, 1, 2, 3, 4], uuids("extension"))
        case _:
            return storage


class TestUuids:
    @pytest.mark.parametrize("mode", ["keep-history", "rewrite"])
    @pytest.mark.parametrize("type_", ["fixed", "extension", "list"])
    def test_as_text_match_16_bytes(self, world: World, purge: Purge, type_: str, mode: str) -> None:
        commit(world, {"a/x": parquet(uuids(type_))})
        onboard(world, "a", a={"mode": mode})
        before = ids_at(world.repo, "a/x")
        made = purge(f"id\n{BOB}\n{str(CID).upper().replace('-', '')}\n".encode())
        assert (made.is_whole, made.rows[0].rows_changed) == (True, 2)
        assert ids_at(world.repo, "a/x") == [before[0], before[3]]
        commit(world, {"a/x": parquet(uuids(type_)), "a/y": parquet(uuids(type_))})
        assert purge(None).is_whole
        assert ids_at(world.repo, "a/y") == [before[0], before[3]]
        assert purge({"id": uuids("extension").slice(0, 1)}).is_whole
        assert ids_at(world.repo, "a/x") == [before[3]]

    def test_of_parquet_without_arrows_schema_are_known(self, world: World, purge: Purge) -> None:
        out = io.BytesIO()
        pq.write_table(pa.table({"id": uuids("extension")}), out, store_schema=False)
        commit(world, {"a/x": out.getvalue()})
        onboard(world, "a", a={"set_null": ["id"]})
        assert purge(f"id\n{{{BOB}}}\nurn:uuid:{CID}\n".encode()).is_whole
        assert ids_at(world.repo, "a/x") == [ANN, None, None, None]

    def test_that_stand_as_text_in_the_metadata_of_a_file_go_too(self, world: World, purge: Purge) -> None:
        out = io.BytesIO()
        metadata = {"hoodie_min_record_key": f"id:{BOB}", "owner": str(CID).upper(), "other": str(ANN)}
        pq.write_table(pa.table({"id": uuids("fixed")}).replace_schema_metadata(metadata), out)
        commit(world, {"a/x": out.getvalue()})
        onboard(world, "a")
        assert purge(f"id\n{BOB}\n{CID}\n".encode()).is_whole
        found = pq.read_metadata(io.BytesIO(world.repo.read("main", "a/x"))).metadata
        assert {key for key in found if key != b"ARROW:schema"} == {b"other"}

    @pytest.mark.parametrize("mode", ["keep-history", "rewrite", "erase"])
    def test_of_bytes_match_the_text_of_folders(self, world: World, purge: Purge, mode: str) -> None:
        onboard(world, "a", a={"mode": mode, **({"format": None} if mode == "erase" else {})})
        paths = [f"a/id={text}/x" for text in (str(ANN), str(BOB), str(BOB).upper(), "none", "%C3%A9")]
        commit(world, {path: pq_without_ids(number) for number, path in enumerate(paths)})
        made = purge(f"id\n{BOB}\n".encode(), id_type="uuid")
        assert (made.is_done, [row.partition for row in made.rows if row.matched_objects]) == (
            True,
            sorted(path.split("/")[1] for path in paths[1:3]),
        )

    def test_match_though_the_first_object_cannot_be_read(self, world: World, purge: Purge) -> None:
        onboard(world, "a")
        commit(world, {"a/0": b"damaged", "a/1": parquet(uuids("fixed"))})
        left = ids_at(world.repo, "a/1")
        made = purge(f"id\n{BOB}\n".encode())
        assert [each.path for each in made.skipped_objects] == ["a/0"]
        assert len(ids_at(world.repo, "a/1")) == len(left) - 1

    def test_and_text_of_two_data_sets_go_by_one_run(self, world: World, purge: Purge) -> None:
        commit(world, {"a/x": parquet(uuids("fixed")), "b/x": parquet([str(ANN), str(BOB)])})
        onboard(world, "a", "b")
        assert purge(f"id\n{BOB}\n".encode()).is_whole
        assert ids_at(world.repo, "a/x") == [ANN.bytes, CID.bytes, None]
        assert ids_at(world.repo, "b/x") == [str(ANN)]

    def test_only_some_of_which_are_any_are_refused(self, world: World, purge: Purge) -> None:
        commit(world, {"a/x": parquet(uuids("fixed"))})
        onboard(world, "a")
        with pytest.raises(Invalid, match="text, not all of them UUIDs; give ids of its type") as raised:
            purge(f"id\n{BOB}\nsecret\n".encode())
        assert "secret" not in str(raised.value)


class TestAdvice:
    """What a refusal says to do finds the rows."""

    @pytest.mark.parametrize(
        ("column", "table"),
        [
            (pa.array([7, 8]), b"id\n7\n"),
            (pa.array(["7", "8"]), {"id": [7]}),
            (pa.array(["a", "b"]), {"id": [b"a"]}),
            (pa.array([b"a", b"b"]), b"id\na\n"),
            (pa.array([BOB.bytes, b"b"]), f"id\n{BOB}\n".encode()),
            (pa.array([b"x" * 16, b"y" * 16], pa.binary(16)), b"id\nxxxxxxxxxxxxxxxx\n"),
            (pa.array([b"x" * 4, b"y" * 4], pa.binary(4)), b"id\nxxxx\n"),
            (pa.array([b"7", b"8"]), {"id": [7]}),
        ],
    )
    def test_of_a_type_finds_the_row(self, world: World, purge: Purge, column: Any, table: Any) -> None:
        commit(world, {"a/x": parquet(column)})
        onboard(world, "a")
        with pytest.raises(Invalid) as raised:
            purge(table)
        advice = re.search(r"--id-type (\w+)", str(raised.value))
        assert advice, raised.value
        assert purge(table, id_type=advice[1]).rows[0].rows_changed == 1

    @pytest.mark.parametrize(
        ("column", "table", "options", "told"),
        [
            (pa.array([7, 8]), b"id\nabc\n", {}, "give ids of its type"),
            (pa.array(["a", "b"]), {"id": pa.array([BOB.bytes], pa.binary(16))}, {}, "give ids of its type"),
            (
                pa.array([BOB.bytes], pa.binary(16)),
                f"id\n{BOB}\n".encode(),
                {"id_type": "binary"},
                "leave --id-type out",
            ),
            (pa.array([b"abc"], pa.binary(3)), {"id": [b"abcd"]}, {}, "none of the ids has 3 bytes; give such ids"),
            (pa.array([1.5]), b"id\n7\n", {}, "is double; an identifier is text, an integer or binary"),
            (
                pa.array([{"guestid": "a", "n": 1}]),
                b"id\na\n",
                {},
                "of data set 'a' is a struct; name one of its fields as the data set's identifier: id.guestid, id.n",
            ),
        ],
    )
    def test_names_no_type_that_finds_none(
        self, world: World, purge: Purge, column: Any, table: Any, options: dict[str, str], told: str
    ) -> None:
        commit(world, {"a/x": parquet(column), "a/y": parquet(column)})
        onboard(world, "a")
        with pytest.raises(Invalid) as raised:
            purge(table, **options)
        assert told in str(raised.value)
        assert "--id-type " not in str(raised.value).replace("--id-type out", "")

    def test_of_orc_is_the_same(self, world: World, purge: Purge) -> None:
        out = io.BytesIO()
        orc.write_table(pa.table({"id": pa.array([{"guestid": "a"}]), "n": [1]}), out)
        commit(world, {"a/x": out.getvalue()})
        onboard(world, "a", a={"format": "orc"})
        with pytest.raises(Invalid, match=r"is a struct; name one of its fields .*: id\.guestid"):
            purge(b"id\na\n")


@pytest.mark.parametrize("mode", ["rewrite", "erase"])
@pytest.mark.parametrize("is_text", [True, False])
def test_uuids_in_folders_are_found(world: World, engines: Engines, mode: str, is_text: bool) -> None:
    body = io.BytesIO()
    pq.write_table(pa.table({"n": [1]}), body)
    for path in (f"guest={str(BOB).upper()}/a", f"guest={BOB.hex}/b", f"guest={ANN}/c"):
        world.repo.upload("main", f"visits/{path}", body.getvalue())
    world.repo.commit("main", "data")
    onboard_visits(world, mode=mode, format="parquet" if mode == "rewrite" else None)
    file = world.folder / "ids.parquet"
    values: Any = [str(BOB)] if is_text else pa.array([BOB.bytes], pa.binary(16))
    pq.write_table(pa.table({"id": values}), file)
    id_type = "uuid" if is_text else ""
    found = verify(world.repo, file, id_type=id_type).findings
    assert sorted((each.path[-1], each.rows) for each in found) == [("a", 1), ("b", 1)]
    assert purge_with(world, engines, file, id_type=id_type, share=1).is_whole
    assert verify(world.repo, file, id_type=id_type).findings == []
