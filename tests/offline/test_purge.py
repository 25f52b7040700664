"""The purge on Spark: what it removes from the heads, what it leaves, and what its report says."""

from __future__ import annotations

import hashlib
import io
import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refstore.context import Context
from refstore.core.ids import BranchName
from refstore.errors import Conflict, Invalid, NotFound, RefstoreError, TransactionEnded
from refstore.operations import commit as commit_operation
from refstore.operations.commit import CommitOptions
from refstore.operations.purge_roles import HIDDEN_BRANCHES
from refstore.operations.transaction import LEASE_MS
from refstore.operations.upload import Upload
from refstore.public_types import stored_commit, stored_entry
from refstore.records.s3_attributes import ContentDescription, S3Attributes
from refstore_purge import head_publisher, id_index, purge_report, purge_run, verify
from refstore_purge import purge_plan as planning
from refstore_purge.formats.parquet_footer import (
    ColumnChunkField,
    ColumnMetadataField,
    FileField,
    RowGroupField,
    ThriftStruct,
)
from refstore_purge.head_publisher import HeadPublisher
from tests.kit.logged_events import collecting_events
from tests.offline.purge_runs import Purge, options_of, purge_on
from tests.offline.world import World
from tests.purge import datasets
from tests.purge.test_parquet_kept import edited
from tests.purge.tracking import PARTITION, PATH, PREFIX, event, events, guestids, guests_at, onboard, parquet, rows_at
from tests.reaping import release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


def test_a_rewritten_object_keeps_what_was_given_and_not_what_described_its_content(world: World, purge: Purge) -> None:
    """The ETag of the rows that went would let If-Match pass for the rows that stay."""
    content = ContentDescription("crc32", "AAAAAA==", etag="e-2", part_runs=((2, 5),))
    given = {"expires": "0"}, {"team": "blue"}
    other = f"{PREFIX}datepartition=2017-02-16-00/is_guest=1/part-0.parquet"
    for path, guest in ((PATH, "bob"), (other, "eve")):
        body = parquet([event(guest, 1), event("ann", 2)])
        world.repo.upload_many("main", [Upload(path, body, {"a": "b"}, s3=lambda: S3Attributes(content, *given))])
    world.repo.commit("main", "both")
    onboard(world.repo)
    purge("bob")
    assert rows_at(world.repo, "main", PATH) == [event("ann", 2)]
    rewritten, kept = (stored_entry(world.repo.stat("main", path)) for path in (PATH, other))
    assert (rewritten.metadata, rewritten.s3) == ({"a": "b"}, S3Attributes(None, *given))
    assert (kept.metadata, kept.s3) == ({"a": "b"}, S3Attributes(content, *given))


def test_the_example_of_seed_002(world: World, both_engines: Engines) -> None:
    purge = purge_on(world, both_engines)
    rows = [event(guest, number) for number, guest in enumerate(["ann", "bob", None, "cid", "bob"])]
    other = f"{PREFIX}datepartition=2017-02-16-00/is_guest=1/part-0.parquet"
    before = world.commit_files({PATH: parquet(rows), other: parquet([event("eve", 9)])})
    onboard(world.repo)
    made = purge("bob", "nobody", None)

    assert rows_at(world.repo, "main", PATH) == [rows[0], rows[2], rows[3]]
    body = world.repo.read("main", PATH)
    assert stored_entry(world.repo.stat("main", PATH)).md5 == hashlib.md5(body, usedforsecurity=False).hexdigest()
    assert rows_at(world.repo, before, PATH) == rows  # the history stays
    assert world.address("main", other) == world.address(before, other)
    (published,) = made.published_commits
    head = world.repo.get_commit("main")
    assert (published.branch, published.commit, published.paths) == ("main", head.id, 1)
    assert stored_commit(head).notes["purge"] == made.run
    assert [(row.partition, row.objects, row.matched_objects, row.rewritten_objects) for row in made.rows] == [
        (PARTITION, 1, 1, 1),
        (PARTITION[:-1] + "1", 1, 0, 0),
    ]
    assert [(row.rows_before, row.rows_changed, row.rows_after) for row in made.rows] == [(5, 2, 3), (0, 0, 0)]
    assert (made.state, made.ids, made.is_whole) == ("done", 2, True)
    assert purge_report.read_report(world.repo) == made
    again = purge("bob")
    assert (again.published_commits, again.rows[0].matched_objects) == ([], 0)
    assert not list(world.repo.branches(prefix=HIDDEN_BRANCHES))
    assert verify(world.repo, guestids(world.folder, "bob")).findings == []
    assert [left.rows for left in verify(world.repo, guestids(world.folder, "ann")).findings] == [1]


@pytest.mark.parametrize("seed", range(2))
def test_random_data_sets_lose_the_rows_of_the_ids_and_nothing_else(
    world: World, both_engines: Engines, seed: int
) -> None:
    """Branches that differ, a merge, copies, renames: a plain reader reads every path of every head afterwards."""
    rng = random.Random(seed)
    for names in (True, False):  # ids that are strings, then ids that are integers
        cases = [case for case in datasets.CASES if case.is_integer != names]
        world.repo.onboard_purge(datasets.document_of(cases, "keep-history"), by="tests")

        def upload(branch: str, cases: list[datasets.Case] = cases) -> None:
            for case in cases:
                for _ in range(2):
                    rows = datasets.make_rows(rng, case, rng.choice([0, 3, 60]))
                    path = f"{case.name}/day={rng.randrange(2)}/{rng.randrange(3)}"
                    world.repo.upload(branch, path, datasets.write(case, rows))
            world.repo.commit(branch, "data", allow_empty=True)

        upload("main")
        branch = f"dev-{names}"
        world.repo.create_branch(branch, source="main")
        upload(branch)
        upload("main")
        for case in cases[:3]:
            paths = [path for path, _ in world.repo.list("main", prefix=f"{case.name}/")]
            world.repo.copy("main", paths[0], to_branch="main", to_path=f"{case.name}/day=9/copied")
        world.repo.commit("main", "copies")
        before = _content(world, cases)
        ids = set(rng.sample(datasets.GUESTS, 4)) if names else set(rng.sample(range(200), 30))
        file = world.folder / "ids.parquet"
        pq.write_table(pa.table({"id": pa.array(sorted(ids))}), file)
        if seed:  # the run below reads what this one wrote
            other = world.folder / "other.parquet"
            pq.write_table(pa.table({"id": pa.array(["guest-7"] if names else [7])}), other)
            purge_run.run_purge(
                world.repo, both_engines, options_of(other, dry_run=True, purge_key=TestIndex.KEY), lambda _: None
            )
        key = TestIndex.KEY if seed else None
        made = purge_run.run_purge(world.repo, both_engines, options_of(file, share=1, purge_key=key), lambda _: None)

        assert made.is_whole, made
        assert any(row.by_index for row in made.rows) == bool(seed)
        after = _content(world, cases)
        assert after.keys() == before.keys()
        by_name = {case.name: case for case in cases}
        changed: dict[str, int] = {}
        for (ref, path), (address, rows) in before.items():
            case = by_name[path.partition("/")[0]]
            kept = [row for row in rows if not case.has_id(row, ids)]
            assert after[ref, path][1] == kept, (ref, path)
            if len(kept) == len(rows):
                assert after[ref, path][0] == address
            else:
                changed[address] = len(rows) - len(kept)
        assert sum(row.rows_changed for row in made.rows) == sum(changed.values())
        assert sum(row.rewritten_objects for row in made.rows) == len(changed)
        assert verify(world.repo, file).findings == []


def _content(world: World, cases: list[datasets.Case]) -> dict[tuple[str, str], tuple[str, list[datasets.Row]]]:
    return {
        (branch, path): (entry.address, datasets.read(case, world.repo.read(branch, path)))
        for branch in [each.name for each in world.repo.branches()]
        for case in cases
        for path, entry in world.repo.list(branch, prefix=f"{case.name}/")
        if entry is not None
    }


class TestWhatIsLeft:
    def test_what_is_staged_is_listed_and_the_branch_left_as_it_is(self, world: World, purge: Purge) -> None:
        world.commit_files({PATH: events("bob")})
        onboard(world.repo)
        world.repo.upload("main", f"{PREFIX}new.parquet", events("bob"))
        made = purge("bob")
        assert not made.is_whole
        told = {each.path: each.reason for each in made.skipped_objects}
        assert told[f"{PREFIX}new.parquet"].startswith("staged: commit it")
        assert "uncommitted changes" in told[""]
        assert guests_at(world.repo, "main") == ["bob"]
        world.repo.commit("main", "staged")
        assert purge("bob").is_whole
        assert guests_at(world.repo, "main") == []

    def test_what_has_a_name_outside_the_data_sets_is_left_unless_copies_are_included(
        self, world: World, purge: Purge
    ) -> None:
        world.commit_files({PATH: events("bob", "ann")})
        world.repo.create_branch("dev", source="main")
        world.repo.copy("dev", PATH, to_branch="dev", to_path="elsewhere/copy")
        world.repo.commit("dev", "copy")
        onboard(world.repo)
        (left,) = purge("bob").skipped_objects
        assert "'elsewhere/copy' in 'dev'" in left.reason
        assert "--including-copies" in left.reason
        assert guests_at(world.repo, "main") == ["bob", "ann"]
        made = purge("bob", includes_copies=True)
        assert (made.is_whole, sorted(each.branch for each in made.published_commits)) == (True, ["dev", "main"])
        assert guests_at(world.repo, "main") == guests_at(world.repo, "dev") == ["ann"]
        assert guests_at(world.repo, "dev", "elsewhere/copy") == ["ann"]

    def test_what_a_legal_hold_covers_is_listed(self, world: World, purge: Purge) -> None:
        world.commit_files({PATH: events("bob")})
        world.repo.set_retention(
            json.dumps({"default_retention_days": 0, "legal_holds": [{"prefix": PREFIX, "reason": "a case"}]})
        )
        onboard(world.repo)
        made = purge("bob")
        assert [each.reason for each in made.skipped_objects] == ["a legal hold covers it"]
        assert guests_at(world.repo, "main") == ["bob"]

    def test_a_legal_hold_outside_the_data_sets_is_kept_with_copies_too(self, world: World, purge: Purge) -> None:
        world.commit_files({PATH: events("bob", "ann")})
        world.repo.copy("main", PATH, to_branch="main", to_path="elsewhere/copy")
        world.repo.commit("main", "copy")
        onboard(world.repo)
        world.repo.set_retention(json.dumps({"legal_holds": [{"prefix": "elsewhere/", "reason": "a case"}]}))
        (left,) = purge("bob", includes_copies=True).skipped_objects
        assert left.reason == "a legal hold covers it as 'elsewhere/copy' in 'main'"
        assert guests_at(world.repo, "main") == guests_at(world.repo, "main", "elsewhere/copy") == ["bob", "ann"]

    def test_a_file_that_cannot_be_read_fails_alone(self, world: World, purge: Purge) -> None:
        broken = f"{PREFIX}broken.parquet"
        world.commit_files({PATH: events("bob"), broken: events("bob")[:-20]})
        onboard(world.repo)
        made = purge("bob")
        assert [(each.path, "damaged" in each.reason) for each in made.skipped_objects] == [(broken, True)]
        assert guests_at(world.repo, "main") == []
        assert sum(row.failed_objects for row in made.rows) == 1

    def test_hidden_files_are_no_data(self, world: World, purge: Purge) -> None:
        world.commit_files({PATH: events("bob"), f"{PREFIX}_SUCCESS": b"", f"{PREFIX}.x.crc": b"?"})
        onboard(world.repo)
        assert purge("bob").is_whole

    def test_only_the_branches_that_are_named_are_purged(self, world: World, purge: Purge) -> None:
        world.commit_files({PATH: events("bob")})
        world.repo.create_branch("dev", source="main")
        onboard(world.repo, branches=["d*"])
        assert [each.branch for each in purge("bob").published_commits] == ["dev"]
        assert guests_at(world.repo, "main") == ["bob"]


class TestWhatIsRefused:
    def test_nothing_onboarded(self, world: World, purge: Purge) -> None:
        with pytest.raises(NotFound, match="onboard"):
            purge("bob")
        onboard(world.repo, name="other.event")  # described, but not on the whitelist
        with pytest.raises(Invalid, match="no data set of 'sales' is onboarded"):
            purge("bob")

    @pytest.mark.parametrize("path", ["a", "z"])  # it is the first or the last that the run looks at
    def test_an_object_whose_identifiers_are_all_null_matches_nothing(
        self, world: World, purge: Purge, path: str
    ) -> None:
        """Writers of tables without types, such as pandas, give such a column the type null."""
        device = pa.array([{"guestid": None, "device": 1}], pa.struct([("guestid", pa.null()), ("device", pa.int32())]))
        nulls = io.BytesIO()
        pq.write_table(pa.table({"metadata": device}), nulls)
        world.commit_files({PATH: events("bob", "ann"), f"{PREFIX}{path}": nulls.getvalue()})
        onboard(world.repo)
        made = purge("bob", purge_key=TestIndex.KEY)
        assert made.is_whole
        assert guests_at(world.repo, "main") == ["ann"]
        assert verify(world.repo, guestids(world.folder, "bob")).findings == []
        assert purge("ann", purge_key=TestIndex.KEY).is_whole

    @pytest.mark.parametrize("mode", ["keep-history", "rewrite"])
    @pytest.mark.parametrize(
        ("path", "table"),
        [
            (f"{PREFIX}_delta_log/0.json", "Delta"),
            ("tracking/_delta_log/0.json", "Delta"),  # the data set is a partition of it
            (f"{PREFIX}t/metadata/v1.metadata.json", "Iceberg"),
            ("tracking/metadata/00000-1f.gz.metadata.json", "Iceberg"),  # the data set is its `data/`
            ("metadata/v1.metadata.json.gz", "Iceberg"),
            ("tracking/.hoodie/hoodie.properties", "Hudi"),
            ("tracking/schema/schema-0", "Paimon"),
            (f"{PREFIX}snapshot/snapshot-1", "Paimon"),
            (f"{PREFIX}ducklake-0190b1c2-1111-7222-8333-444455556666.parquet", "DuckLake"),
            (f"{PREFIX}day=1/ducklake-0190b1c2-1111-7222-8333-444455556666-delete.parquet", "DuckLake"),
        ],
    )
    def test_tables_that_know_their_files(self, world: World, purge: Purge, path: str, table: str, mode: str) -> None:
        world.commit_files({PATH: events("bob"), path: b"{}"})
        onboard(world.repo, mode=mode)
        with pytest.raises(Invalid, match=f"{table}'s own means.*older commits here still name the files"):
            purge("bob")
        assert guests_at(world.repo, "main") == ["bob"]

    def test_a_table_of_an_earlier_version(self, world: World, purge: Purge) -> None:
        """What a run writes into every version would break the table there."""
        world.commit_files({PATH: events("bob"), "tracking/_delta_log/0.json": b"{}"})
        world.repo.delete("main", "tracking/_delta_log/0.json")
        world.repo.commit("main", "no table any more")
        onboard(world.repo, mode="rewrite")
        with pytest.raises(Invalid, match="is a part of the table of Delta at 'tracking/'"):
            purge("bob")
        onboard(world.repo)
        assert purge("bob").is_whole

    @pytest.mark.parametrize("path", ["tracking/other/_delta_log/0.json", "metadata/notes.json", "schema/schema-a"])
    def test_what_is_no_table_or_lies_elsewhere(self, world: World, purge: Purge, path: str) -> None:
        world.commit_files({PATH: events("bob"), path: b"{}"})
        onboard(world.repo, mode="rewrite")
        assert purge("bob").is_whole

    @pytest.mark.parametrize("mode", ["keep-history", "rewrite"])
    def test_more_than_anybody_expects(self, world: World, purge: Purge, mode: str) -> None:
        world.commit_files({PATH: events("bob", "bob", "ann")})
        onboard(world.repo, mode=mode)
        with pytest.raises(Conflict, match=r"2 of 3 rows would go.*--breaker-share 1"):
            purge("bob", floor_rows=1)
        assert purge_report.read_report(world.repo).state == "failed"
        assert guests_at(world.repo, "main") == ["bob", "bob", "ann"]
        assert purge("bob", floor_rows=1, share=1).is_whole


class TestRunningAgain:
    def test_a_dry_run_finds_and_writes_nothing(self, world: World, purge: Purge) -> None:
        head = world.commit_files({PATH: events("bob", "ann")})
        onboard(world.repo)
        data = world.data()
        made = purge("bob", dry_run=True)
        assert (made.state, made.rows[0].matched_objects, made.rows[0].rewritten_objects, made.published_commits) == (
            "dry run",
            1,
            0,
            [],
        )
        assert (world.data(), world.repo.get_branch("main").head) == (data, head)

    def test_partitions_are_done_in_order_up_to_a_number_and_from_a_watermark(self, world: World, purge: Purge) -> None:
        paths = {f"{PREFIX}day={day}/x": events("bob") for day in range(3)}
        world.commit_files(paths)
        onboard(world.repo)
        made = purge("bob", max_partitions=2)
        assert (made.partitions_left, made.watermark, made.is_whole) == (1, f"{PREFIX}day=1", False)
        assert [guests_at(world.repo, "main", path) for path in paths] == [[], [], ["bob"]]
        assert purge("bob", max_partitions=2, after=made.watermark).is_whole
        assert guests_at(world.repo, "main", f"{PREFIX}day=2/x") == []

    @pytest.mark.parametrize("when", ["its changes are listed", "copies are looked for", "objects are staged"])
    def test_a_branch_that_is_deleted_meanwhile_stops_nothing(
        self, world: World, purge: Purge, monkeypatch: pytest.MonkeyPatch, when: str
    ) -> None:
        world.commit_files({PATH: events("bob", "ann")})
        world.repo.create_branch("dev", source="main")
        world.repo.upload("dev", f"{PREFIX}dev.parquet", events("bob"))
        world.repo.commit("dev", "events")
        onboard(world.repo)
        owner, name = {
            "its changes are listed": (planning, "find_staged"),
            "copies are looked for": (HeadPublisher, "find_outside_names"),
            "objects are staged": (head_publisher.BranchPublication, "stage"),
        }[when]
        real = getattr(owner, name)

        def deleting(*args: Any) -> Any:
            monkeypatch.setattr(owner, name, real)
            world.repo.delete_branch("dev")
            return real(*args)

        monkeypatch.setattr(owner, name, deleting)
        made = purge("bob")
        assert made.is_whole, made
        assert guests_at(world.repo, "main") == ["ann"]
        assert [each.branch for each in made.published_commits] == ["main"]

    def test_a_run_renews_its_leases_between_its_steps(
        self, world: World, purge: Purge, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.commit_files({PATH: events("bob", "ann")})
        world.repo.create_branch("dev", source="main")
        for number in range(6):
            world.repo.upload("dev", f"{PREFIX}dev-{number}.parquet", events("bob", "ann", *["cid"] * number))
        world.repo.commit("dev", "events")
        onboard(world.repo)
        monkeypatch.setattr(head_publisher, "REWRITES_PER_CORE", 1)
        began = world.clock.now_ms()
        for step in ("issue", "publish"):
            real = getattr(head_publisher.BranchPublication, step)

            def late(self: head_publisher.BranchPublication, *args: Any, real: Any = real) -> Any:
                world.clock.sleep(LEASE_MS / 1000 * 0.7)
                release_all(world.repo)
                return real(self, *args)

            monkeypatch.setattr(head_publisher.BranchPublication, step, late)
        made = purge("bob")
        assert made.is_whole, made
        assert [each.branch for each in made.published_commits] == ["dev", "main"]
        assert guests_at(world.repo, "main") == ["ann"]
        assert world.clock.now_ms() - began > 2 * LEASE_MS, "this run was shorter than two leases"

    def test_a_run_whose_lease_ran_out_publishes_nothing(
        self, world: World, purge: Purge, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.commit_files({PATH: events("bob", "ann")})
        onboard(world.repo)
        commit = commit_operation.commit

        def paused(ctx: Context, name: BranchName, options: CommitOptions) -> Any:
            made = commit(ctx, name, options)
            world.clock.sleep(LEASE_MS / 1000 + 1)
            return made

        with monkeypatch.context() as patched:
            patched.setattr(commit_operation, "commit", paused)
            with pytest.raises(TransactionEnded, match="its lease ran out"):
                purge("bob")
        assert guests_at(world.repo, "main") == ["bob", "ann"]
        assert not list(world.repo.branches(prefix=HIDDEN_BRANCHES))
        assert purge("bob").is_whole
        assert guests_at(world.repo, "main") == ["ann"]


class TestSetNull:
    def test_columns_are_set_to_null_once(self, world: World, purge: Purge) -> None:
        rows = [event("bob", 1), event("ann", 2)]
        world.commit_files({PATH: parquet(rows)})
        onboard(world.repo, set_null=["metadata.device", "col_a"])
        made = purge("bob")
        assert (made.is_whole, made.rows[0].rows_changed, made.rows[0].rows_after) == (True, 1, 2)
        nulled = {"metadata": {"guestid": "bob", "device": None}, "col_a": None, "col_b": 1}
        assert rows_at(world.repo, "main", PATH) == [nulled, rows[1]]
        assert verify(world.repo, guestids(world.folder, "bob")).findings == []
        assert purge("bob").published_commits == []


def test_no_id_stands_in_what_a_run_leaves_behind(
    world: World, purge: Purge, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "4b1d-secret-guest"
    csv = f"{PREFIX}broken.csv"
    world.commit_files({PATH: events(secret), csv: secret.encode()})
    onboard(world.repo)
    with collecting_events() as logged:
        purge(secret)
        with pytest.raises(RefstoreError):
            purge(secret, id_type="integer")
    guestids(world.folder).unlink()
    captured = capfd.readouterr()
    assert secret not in captured.out + captured.err + str(logged)
    # the first version of the object, and the broken one, are data
    kept = {world.address("main~1", PATH), world.address("main", csv)}
    for file in world.folder.rglob("*"):
        if file.is_file() and not any(str(file).endswith(address) for address in kept):
            assert secret.encode() not in file.read_bytes(), file


def change_type(footer: ThriftStruct) -> None:
    """Let pyarrow end its process at a footer."""
    chunk = footer[FileField.ROW_GROUPS][0][RowGroupField.COLUMNS][0]
    chunk[ColumnChunkField.METADATA].change(ColumnMetadataField.TYPE, 6)


class TestIndex:
    KEY = b"a key of at least thirty-two characters"

    def test_a_later_run_reads_only_objects_that_may_match(self, world: World, purge: Purge) -> None:
        paths = {
            f"{PREFIX}day={day}/x": events(*(f"guest-{day}-{number}" for number in range(3000))) for day in range(4)
        }
        world.commit_files(paths)
        onboard(world.repo)
        # lies between the others, so that statistics do not tell
        first = purge("guest-0-5", "guest-3-5", "guest-9", dry_run=True, purge_key=self.KEY)
        assert [(row.by_index, row.index_bytes > 0, row.by_column) for row in first.rows] == [
            (0, True, 1),
            (0, False, 0),
            (0, False, 0),
            (0, True, 1),
        ]
        again = purge("guest-0-7", "guest-3-none", dry_run=True, purge_key=self.KEY)
        assert [(row.by_index, row.by_statistics, row.matched_objects) for row in again.rows] == [
            (0, 0, 1),
            (0, 1, 0),
            (0, 1, 0),
            (1, 0, 0),
        ]
        assert again.rows[3].read_bytes < first.rows[3].read_bytes
        made = purge("guest-0-7", purge_key=self.KEY)
        assert made.is_whole
        kept = [info.key for info in world.ctx.objects.list(id_index.FOLDER)]
        assert [key.partition("data/")[2] for key in kept] == [
            world.address("main", f"{PREFIX}day=3/x").partition("data/")[2]
        ]  # what was purged has none
        assert purge("guest-3-1", purge_key=b"another key of at least thirty-two characters").rows[3].by_index == 0
        assert kept[0] not in {info.key for info in world.ctx.objects.list(id_index.FOLDER)}

    def test_an_index_that_is_damaged_is_not_believed_and_made_again(self, world: World, purge: Purge) -> None:
        world.commit_files({PATH: events("bob", "ann", "cid")})
        onboard(world.repo)
        purge("b", dry_run=True, purge_key=self.KEY)
        (info,) = world.ctx.objects.list(id_index.FOLDER)
        body = world.ctx.objects.read(info.key)
        for damaged in (b"no Parquet at all", edited(body, change_type)):
            world.ctx.objects.put(info.key, damaged)
            assert purge("b", dry_run=True, purge_key=self.KEY).rows[0].index_bytes == len(body)
            assert world.ctx.objects.read(info.key) == body
            world.ctx.objects.put(info.key, damaged)
        assert purge("bob", purge_key=self.KEY).published_commits
        assert guests_at(world.repo, "main") == ["ann", "cid"]
