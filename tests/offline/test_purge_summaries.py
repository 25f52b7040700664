"""Places beside the rows: summary files of Parquet data sets, key-value metadata, and statistics that lie."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from refstore.core.safety import CopyMode
from refstore.public_types import stored_entry
from refstore_purge import purge_report, restore_backups
from refstore_purge.location_publisher import LocationPublisher
from refstore_purge.untyped_pandas import pa, pq
from tests.offline.purge_runs import Purge, purge_with
from tests.offline.world import World
from tests.purge import avro_files
from tests.purge.looking import parquet_of, summaries

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

KEY = b"k" * 32
BOTH = ("_metadata", "_common_metadata")


def onboard(world: World, mode: str, **changes: object) -> None:
    dataset: dict[str, object] = {
        "name": "t",
        "prefix": "t/",
        "format": "parquet",
        "identifier": "guest",
        "mode": mode,
        **changes,
    }
    world.repo.onboard_purge(json.dumps({"whitelist": ["t"], "datasets": [dataset]}), by="tests")


def files_of(days: Mapping[str, Sequence[str]], *, group_rows: int = 2, **metadata: str) -> dict[str, bytes]:
    """Return a data set by day, with its summary files as Dask and Spark write them."""
    schema = pa.schema([("guest", pa.string()), ("n", pa.int64())])
    parts: dict[str, bytes] = {}
    for day, guests in days.items():
        table = pa.table({"guest": list(guests), "n": list(range(len(guests)))}, schema=schema)
        parts[f"day={day}/part-0.parquet"] = parquet_of(table, compression="none", row_group_size=group_rows)
    return {f"t/{path}": body for path, body in (parts | summaries(parts, metadata or None, schema)).items()}


def bodies(world: World, ref: str) -> dict[str, bytes]:
    return {path: world.repo.read(ref, path) for path, _ in world.repo.list(ref, prefix="t/")}


def guests_by_summary(world: World, ref: str) -> list[str]:
    """Return the guests that a reader gets who believes `_metadata`, as Dask does."""
    import pyarrow.dataset as datasets

    folder = world.folder / "exported" / ref
    for path, body in bodies(world, ref).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(body)
    found: Any = datasets.parquet_dataset(str(folder / "t" / "_metadata"))
    return sorted(found.to_table().column("guest").to_pylist())


def has(bodies: Mapping[str, bytes], text: bytes) -> list[str]:
    return [path for path, body in bodies.items() if text in body]


FIRST = {"1": ["ann", "bob-x", "cid"], "2": ["dan", "eve"]}
SECOND = {**FIRST, "3": ["bob-x", "fay"]}


class TestEveryVersion:
    def test_summary_files_follow_the_files_that_they_describe(self, world: World, purge: Purge) -> None:
        first = world.commit_files(files_of(FIRST, owner="bob-x", made="by tests"))
        second = world.commit_files(files_of(SECOND, owner="bob-x", made="by tests"))
        world.repo.create_tag("v1", ref=first)
        onboard(world, "rewrite")
        identities = {ref: stored_entry(world.repo.resolve(ref, "t/_metadata").entry) for ref in (first, second)}
        assert len(has(bodies(world, first), b"bob-x")) == 3
        planned = purge("bob-x", dry_run=True)
        assert sum(row.rewritten_summaries for row in planned.rows) == 4
        made = purge("bob-x")

        assert made.is_whole, made.skipped_objects
        assert sum(row.rewritten_summaries for row in made.rows) == 4
        assert guests_by_summary(world, first) == guests_by_summary(world, "v1") == ["ann", "cid", "dan", "eve"]
        assert guests_by_summary(world, second) == ["ann", "cid", "dan", "eve", "fay"]
        for ref in (first, second, "v1", "main"):
            assert has(bodies(world, ref), b"bob-x") == []
            for name in BOTH:
                kept = pq.read_metadata(io.BytesIO(world.repo.read(ref, f"t/{name}")))
                assert kept.metadata.keys() == {b"made", b"ARROW:schema"}
        assert {ref: stored_entry(world.repo.resolve(ref, "t/_metadata").entry) for ref in identities} == identities
        again = purge("bob-x")
        assert (again.is_whole, sum(row.rewritten_summaries for row in again.rows)) == (True, 0)

    def test_also_where_no_statistics_had_the_id_and_after_a_kill(
        self, world: World, purge: Purge, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.commit_files(files_of({"1": ["ann", "zoe"], "2": ["ann", "bob-x"]}))
        onboard(world, "rewrite")

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(LocationPublisher, "purge_summaries", killed)
            with pytest.raises(KeyboardInterrupt):
                purge("zoe")
        assert has(bodies(world, "main"), b"zoe") == ["t/_metadata"]
        again = purge("nobody")
        assert sum(row.rewritten_summaries for row in again.rows) == 1
        assert guests_by_summary(world, "main") == ["ann", "ann", "bob-x"]

    def test_what_describes_files_that_are_left_is_left(self, world: World, purge: Purge) -> None:
        world.commit_files(files_of(FIRST))
        world.repo.set_retention(json.dumps({"legal_holds": [{"prefix": "t/day=1/", "reason": "a case"}]}))
        onboard(world, "rewrite")
        made = purge("bob-x", "dan")
        assert not made.is_whole
        assert {(each.path, each.reason) for each in made.skipped_objects} == {
            ("t/day=1/part-0.parquet", "a legal hold covers it"),
            ("t/_metadata", "it describes files that still have an id; see why these were not purged"),
        }

    @pytest.mark.parametrize("later", [["dan", "eve", "fay"], ["bob-x", "eve", "fay"]])
    def test_the_version_is_chosen_that_the_summary_describes(
        self, world: World, purge: Purge, later: list[str]
    ) -> None:
        first = world.commit_files(files_of({"1": ["ann", "bob-x"], "2": ["cid", "bob-x"]}))
        other = files_of({"2": later})
        world.commit_files({path: body for path, body in other.items() if "day=" in path})  # and `_metadata` stays
        onboard(world, "rewrite")
        assert purge("bob-x").is_whole
        assert guests_by_summary(world, first) == ["ann", "cid"]
        again = purge("bob-x")
        assert (again.is_whole, sum(row.rewritten_summaries for row in again.rows)) == (True, 0)
        assert purge("cid").is_whole
        assert guests_by_summary(world, first) == ["ann"]

    def test_a_dry_run_names_it_though_no_statistics_have_the_id(self, world: World, purge: Purge) -> None:
        world.commit_files(files_of(FIRST, group_rows=9))
        onboard(world, "rewrite")
        assert sum(row.rewritten_summaries for row in purge("bob-x", dry_run=True).rows) == 1

    @pytest.mark.parametrize("mode", ["rewrite", "keep-history"])
    def test_a_summary_of_files_that_were_changed_is_left(self, world: World, purge: Purge, mode: str) -> None:
        later = files_of({"1": ["bob-x", "zed"], "2": ["dan"]})
        world.commit_files({**later, "t/_metadata": files_of(FIRST)["t/_metadata"]})
        onboard(world, mode)
        (left,) = purge("bob-x").skipped_objects
        assert (left.path, "others by now" in left.reason) == ("t/_metadata", True)

    def test_a_summary_of_files_that_are_gone_is_left(self, world: World, purge: Purge) -> None:
        files = files_of(FIRST)
        world.commit_files({path: body for path, body in files.items() if "day=2" not in path})
        onboard(world, "rewrite")
        made = purge("bob-x")
        (left,) = made.skipped_objects
        assert (left.path, left.reason.split(",")[0]) == (
            "t/_metadata",
            "the files that it describes are others by now",
        )

    @pytest.mark.parametrize(("body", "told"), [(b"{}", "no Parquet"), (None, "rows of its own")])
    def test_what_only_has_the_name_of_a_summary_is_left(
        self, world: World, purge: Purge, body: bytes | None, told: str
    ) -> None:
        data = files_of({"1": ["ann"]})["t/day=1/part-0.parquet"]
        world.commit_files({"t/_metadata": body or data})
        onboard(world, "rewrite")
        (left,) = purge("bob-x").skipped_objects
        assert (left.path, told in left.reason) == ("t/_metadata", True)

    def test_a_path_that_no_object_can_have(self, world: World, purge: Purge) -> None:
        files = files_of({"1": ["ann", "bob-x"]})
        body = files["t/_metadata"]
        footer = pq.read_metadata(io.BytesIO(body))
        footer.set_file_path("x" * 4000)
        out = io.BytesIO()
        footer.write_metadata_file(out)
        world.commit_files({**files, "t/_metadata": out.getvalue()})
        onboard(world, "rewrite")
        (left,) = purge("bob-x").skipped_objects
        assert (left.path, "others by now" in left.reason) == ("t/_metadata", True)

    def test_a_copy_elsewhere_is_named_or_included(self, world: World, purge: Purge) -> None:
        world.commit_files(files_of(FIRST, owner="bob-x"))
        world.repo.copy("main", "t/_common_metadata", to_branch="main", to_path="elsewhere/x")
        world.repo.commit("main", "a copy")
        onboard(world, "rewrite")
        (left,) = purge("bob-x").skipped_objects
        assert (left.path, "--including-copies" in left.reason) == ("t/_common_metadata", True)
        assert purge("bob-x", includes_copies=True).is_whole
        assert b"bob-x" not in world.repo.read("main", "elsewhere/x")

    def test_a_restore_brings_the_summary_back_too(self, world: World, purge: Purge) -> None:
        files = files_of(FIRST, owner="bob-x")
        world.commit_files(files)
        onboard(world, "rewrite")
        made = purge("bob-x")
        restore_backups.restore_backups(world.repo, restore_backups.RestoreScope(run=made.run))
        assert bodies(world, "main") == files
        assert purge("bob-x").is_whole
        assert has(bodies(world, "main"), b"bob-x") == []

    @pytest.mark.parametrize("guests", [["bob-x"], ["bob-x", "fay"]])  # of the second no row is left
    def test_after_the_restore_of_a_part_the_summary_is_right_again(
        self, world: World, purge: Purge, guests: list[str]
    ) -> None:
        world.commit_files(files_of(SECOND))
        onboard(world, "rewrite")
        made = purge(*guests)
        assert guests_by_summary(world, "main") == sorted({"ann", "cid", "dan", "eve", "fay"} - set(guests))
        restore_backups.restore_backups(
            world.repo, restore_backups.RestoreScope(run=made.run, dataset="t", partition="day=3")
        )
        assert purge("nobody").is_whole
        assert guests_by_summary(world, "main") == ["ann", "bob-x", "cid", "dan", "eve", "fay"]

    def test_ids_stay_in_statistics_where_they_stay_in_rows(self, world: World, purge: Purge) -> None:
        world.commit_files(files_of(FIRST))
        onboard(world, "rewrite", set_null=["n"])
        made = purge("bob-x", "ann")
        assert (made.is_whole, sum(row.rewritten_summaries for row in made.rows)) == (True, 1)
        assert guests_by_summary(world, "main") == ["ann", "bob-x", "cid", "dan", "eve"]
        assert sum(row.rewritten_summaries for row in purge("bob-x", "ann").rows) == 0

    def test_an_identifier_that_is_set_to_null_leaves_statistics(self, world: World, purge: Purge) -> None:
        world.commit_files(files_of(FIRST))
        onboard(world, "rewrite", set_null=["guest"])
        assert purge("eve").is_whole
        assert has(bodies(world, "main"), b"eve") == []

    def test_where_folders_have_the_identifier(self, world: World, purge: Purge) -> None:
        world.commit_files(files_of({"200001": ["x"], "200002": ["y"]}, owner="200001"))
        onboard(world, "rewrite", identifier="day")
        made = purge("200001")
        assert (made.is_whole, sum(row.rewritten_summaries for row in made.rows)) == (True, 2)
        assert guests_by_summary(world, "main") == ["y"]

    def test_ids_of_the_ledger(self, world: World, purge: Purge, engines: Engines) -> None:
        world.commit_files(files_of(FIRST))
        onboard(world, "rewrite")
        assert purge("bob-x", "eve", purge_key=KEY).is_whole
        late = world.commit_files(files_of(FIRST, owner="bob-x"))
        made = purge_with(world, engines, None, purge_key=KEY)
        assert made.is_whole
        assert has(bodies(world, late), b"bob-x") == []
        assert guests_by_summary(world, late) == ["ann", "cid", "dan"]

    def test_without_backups_a_later_run_writes_it_again(self, world: World, purge: Purge) -> None:
        first = world.commit_files(files_of(SECOND, owner="bob-x"))
        onboard(world, "rewrite")
        identities = [entry.address for _, entry in world.repo.list(first, prefix="t/") if entry is not None]
        assert purge("bob-x").is_whole
        kept = {entry.address for _, entry in world.repo.list(first, prefix="t/") if entry is not None}
        world.ctx.objects.delete_many([each for each in identities if each not in kept])
        assert purge("ann", "eve").is_whole
        assert guests_by_summary(world, first) == ["cid", "dan", "fay"]
        assert has(bodies(world, first), b"ann") == []

    def test_in_the_trash_it_is_written_again_or_left(self, world: World, purge: Purge) -> None:
        files = files_of(FIRST, owner="bob-x")
        world.commit_files({path: body for path, body in files.items() if "day=" in path})
        of_others = files_of({"9": ["bob-x"]})["t/_metadata"]
        without_ids = files_of({"1": ["ann"], "9": ["ann"]})["t/_metadata"]
        for body in (files["t/_metadata"], files["t/_common_metadata"], of_others, without_ids):
            world.repo.upload("main", "t/_metadata", body)
        world.repo.delete("main", "t/_metadata")
        onboard(world, "rewrite")
        made = purge("bob-x")
        (left,) = made.skipped_objects
        assert (left.path, "others by now" in left.reason) == ("t/_metadata", True)
        assert sum(row.rewritten_summaries for row in made.rows) == 2

    def test_files_of_other_formats_have_no_summaries(self, world: World, purge: Purge) -> None:
        world.commit_files({"t/_metadata": b"bob-x", "t/x.json": b'{"guest": "ann"}\n'})
        onboard(world, "rewrite", format="json")
        assert purge("bob-x").is_whole


class TestHeads:
    @pytest.mark.parametrize("copy_linked", ["never", "always"])
    def test_one_commit_has_the_files_and_the_summaries(
        self, world: World, purge: Purge, copy_linked: CopyMode
    ) -> None:
        """With copies the rewritten files have other addresses than they were written to."""
        world.lake.safety = dataclasses.replace(world.lake.safety, copy_linked=copy_linked)
        world.repo = world.lake.repository("sales")
        before = world.commit_files(files_of(FIRST, owner="bob-x"))
        world.repo.create_branch("dev", source=before)
        world.commit_files(files_of({**FIRST, "4": ["bob-x", "gil"]}, owner="bob-x"), "dev")
        onboard(world, "keep-history")
        assert sum(row.rewritten_summaries for row in purge("bob-x", dry_run=True).rows) == 4
        made = purge("bob-x")

        assert made.is_whole, made.skipped_objects
        assert [(each.branch, each.paths) for each in made.published_commits] == [("dev", 4), ("main", 3)]
        assert sum(row.rewritten_summaries for row in made.rows) == 4
        assert guests_by_summary(world, "main") == ["ann", "cid", "dan", "eve"]
        assert guests_by_summary(world, "dev") == ["ann", "cid", "dan", "eve", "gil"]
        assert has(bodies(world, "main") | bodies(world, "dev"), b"bob-x") == []
        assert len(has(bodies(world, before), b"bob-x")) == 3
        again = purge("bob-x")
        assert (again.is_whole, again.published_commits) == (True, [])

    def test_after_every_version_was_purged(self, world: World, purge: Purge) -> None:
        world.commit_files(files_of(FIRST))
        onboard(world, "rewrite")
        assert purge("bob-x", "dan").is_whole
        onboard(world, "keep-history")
        assert purge("ann").is_whole
        assert guests_by_summary(world, "main") == ["cid", "eve"]

    def test_statistics_need_not_have_the_id(self, world: World, purge: Purge) -> None:
        world.commit_files(files_of(FIRST, group_rows=9))
        onboard(world, "keep-history")
        assert has(bodies(world, "main"), b"bob-x") == ["t/day=1/part-0.parquet"]
        assert sum(row.rewritten_summaries for row in purge("bob-x", dry_run=True).rows) == 1
        assert purge("bob-x").is_whole
        assert guests_by_summary(world, "main") == ["ann", "cid", "dan", "eve"]

    def test_an_id_that_only_the_summary_has(self, world: World, purge: Purge) -> None:
        world.commit_files(files_of({"1": ["ann"]}, owner="bob-x"))
        onboard(world, "keep-history")
        made = purge("bob-x")
        assert (made.is_whole, [each.paths for each in made.published_commits]) == (True, [2])
        assert has(bodies(world, "main"), b"bob-x") == []

    def test_a_summary_that_cannot_be_written_is_left_and_the_rows_go(self, world: World, purge: Purge) -> None:
        files = files_of(FIRST)
        world.commit_files({path: body for path, body in files.items() if "day=2" not in path})
        onboard(world, "keep-history")
        made = purge("bob-x")
        assert [(each.path, each.branch) for each in made.skipped_objects] == [("t/_metadata", "main")]
        assert [each.paths for each in made.published_commits] == [1]
        again = purge("dan")  # only the summary has that one
        assert ([each.path for each in again.skipped_objects], again.published_commits) == (["t/_metadata"], [])


ROWS = [{"guest": "ann"}, {"guest": "cid"}]
OWNER = {"owner": "bob-x"}
WITH_OWNER = {
    "parquet": (
        parquet_of(pa.Table.from_pylist(ROWS).replace_schema_metadata(OWNER)),
        2,
        lambda body: pq.read_table(io.BytesIO(body)).to_pylist(),
    ),
    "avro": (avro_files.of_rows(ROWS, metadata=OWNER), 1, avro_files.read),
}
"""By format: a file, how many entries of its metadata have an id, and how its rows are read."""


@pytest.mark.parametrize(
    ("mode", "format_"), [("rewrite", "parquet"), ("keep-history", "parquet"), ("rewrite", "avro")]
)
def test_a_file_whose_metadata_alone_has_an_id_is_written_again(
    world: World, purge: Purge, mode: str, format_: str
) -> None:
    original, entries, rows_of = WITH_OWNER[format_]
    world.commit_files({"t/part-0": original})
    onboard(world, mode, format=format_)
    assert purge("bee", purge_key=KEY).rows[0].index_bytes  # which must know of it
    made = purge("bob-x", purge_key=KEY)
    (row,) = made.rows
    assert made.is_whole
    assert (row.matched_objects, row.rewritten_objects, row.matched_rows, row.rows_changed) == (1, 1, 0, 0)
    assert (row.matched_entries, row.by_index) == (entries, 0)
    body = world.repo.read("main", "t/part-0")
    assert b"bob-x" not in body
    assert rows_of(body) == ROWS
    assert purge("bob-x").rows[0].matched_objects == 0
    assert purge_report.read_report(world.repo, made.run) == made


@pytest.mark.parametrize("key", [None, KEY])
def test_rows_that_statistics_deny_are_found_if_asked(world: World, purge: Purge, key: bytes | None) -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"guest": ["aaa", "zoe"]}), out, compression="none")
    body = out.getvalue()
    footer = int.from_bytes(body[-8:-4], "little") + 8
    world.commit_files({"t/part-0.parquet": body[:-footer] + body[-footer:].replace(b"zoe", b"aaa")})
    onboard(world, "rewrite")
    assert purge("zoe", purge_key=key).rows[0].by_statistics == 1
    made = purge("zoe", ignores_statistics=True, purge_key=key)
    assert (made.rows[0].by_column, made.rows[0].rows_changed) == (1, 1)
    assert b"zoe" not in world.repo.read("main", "t/part-0.parquet")
