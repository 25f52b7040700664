"""Naming the objects of others: what an import puts at its destination, what it refuses, and when it writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from refstore.configuration.settings import embedded_urls
from refstore.core.clock import to_datetime
from refstore.errors import (
    Conflict,
    DeadlineExceeded,
    DirtyBranch,
    ForeignNotAllowed,
    Gone,
    Invalid,
    InvalidName,
    InvalidPath,
    NothingToCommit,
    ObjectNotFound,
)
from refstore.lake import Lake, open_lake_at
from refstore.operations.import_objects import ImportResult
from refstore.public_types import stored_commit
from refstore.records.repository_records import ImportSource
from refstore.repository import Repository
from refstore.versioning.commits.tree_store import TreeStore
from tests.contents import paths
from tests.kit.clock import FakeClock


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    (tmp_path / "lake").mkdir()
    kv, objects = embedded_urls(tmp_path / "lake")
    with open_lake_at(kv, f"{objects}?fsync=0", import_from=[f"file://{tmp_path}/landing"]) as lake:
        yield lake


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return files(tmp_path / "landing", "a.csv", "b/1.csv", "b/2.csv", "b-c", "z")


def files(folder: Path, *names: str) -> Path:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"the data of {name}")
    return folder


def bring(repo: Repository, folder: Path, destination: str = "in/", **options: bool) -> ImportResult:
    return repo.import_objects("main", [ImportSource(f"file://{folder}", destination)], "import", **options)


def test_a_folder_is_named_in_one_commit_and_read_where_it_lies(repo: Repository, folder: Path) -> None:
    done = repo.import_objects(
        "main", [ImportSource(f"file://{folder}/", "in")], "import", metadata={"job": "7"}, committer="ann"
    )
    assert paths(repo) == ["in/a.csv", "in/b-c", "in/b/1.csv", "in/b/2.csv", "in/z"]
    assert repo.read("main", "in/b/2.csv") == b"the data of b/2.csv"
    entry = repo.stat("main", "in/a.csv")
    assert (entry.address, entry.size_bytes) == (f"file://{folder}/a.csv", 17)
    assert entry.modified == to_datetime((folder / "a.csv").stat().st_mtime_ns // 1_000_000)
    commit = repo.get_commit("main")
    assert (commit.id, commit.message, commit.metadata, commit.committer) == (
        done.commit and done.commit.id,
        "import",
        {"job": "7"},
        "ann",
    )
    assert (done.objects, done.size_bytes, done.existing_paths, done.removed_paths, done.skipped_objects) == (
        5,
        sum(map(size, folder.rglob("*"))),
        0,
        0,
        0,
    )


def size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def test_an_import_adds_no_address_and_makes_no_staging_entry(repo: Repository, folder: Path) -> None:
    bring(repo, folder)
    assert stored_commit(repo.get_commit("main")).added_addresses_id == ""
    assert not list(repo.diff("main"))
    assert [found.key for found in repo.context.objects.list("data/")] == []


def test_the_destination_is_replaced_and_nothing_beside_it(repo: Repository, folder: Path) -> None:
    for path in ("in/old", "in/b/0.csv", "in/b/1.csv", "inside", "a"):
        repo.upload("main", path, b"old")
    repo.commit("main", "old")
    done = bring(repo, folder)
    assert paths(repo) == ["a", "in/a.csv", "in/b-c", "in/b/1.csv", "in/b/2.csv", "in/z", "inside"]
    assert (done.existing_paths, done.removed_paths) == (3, 2)
    assert repo.read("main", "in/b/1.csv") == b"the data of b/1.csv"


def test_an_unchanged_folder_imported_again_is_no_change(repo: Repository, folder: Path) -> None:
    bring(repo, folder)
    with pytest.raises(NothingToCommit):
        bring(repo, folder)


def test_a_file_that_was_changed_in_place_is_a_change_also_to_a_merge(repo: Repository, folder: Path) -> None:
    bring(repo, folder)
    repo.create_branch("dev", source="main")
    (folder / "a.csv").write_text("THE DATA of a.csv")
    os.utime(folder / "a.csv", (1, 1))
    repo.import_objects("dev", [ImportSource(f"file://{folder}", "in/")], "again")
    assert [change.path for change in repo.diff("main", to="dev")] == ["in/a.csv"]
    repo.merge("dev", into="main")
    assert repo.stat("main", "in/a.csv").modified == to_datetime(1000)


def test_many_files_over_many_old_ones_are_what_a_plain_replacement_gives(repo: Repository, tmp_path: Path) -> None:
    for number in range(3000):
        repo_path = f"in/{number:05d}" if number % 3 else f"out/{number:05d}"
        repo.stage("main", repo_path, f"s3://elsewhere/{number}", size_bytes=1)
    repo.commit("main", "old")
    source = files(tmp_path / "many", *(f"{number:05d}" for number in range(0, 4000, 2)))
    bring(repo, source)
    expected = [f"in/{number:05d}" for number in range(0, 4000, 2)] + [
        f"out/{number:05d}" for number in range(0, 3000, 3)
    ]
    assert paths(repo) == expected
    assert all(
        item.entry is not None and item.entry.address.startswith("file:") for item in repo.list("main", prefix="in/")
    )


def test_several_sources_meet_and_single_objects_and_later_ones_win(repo: Repository, tmp_path: Path) -> None:
    one, two = files(tmp_path / "one", "a", "b", "c/d"), files(tmp_path / "two", "b", "c/e", "f")
    sources = [
        ImportSource(f"file://{tmp_path}/two/f", "in/a", is_object=True),
        ImportSource(f"file://{one}", "in/"),
        ImportSource(f"local://{two}", "in"),
        ImportSource(f"file://{one}/a", "elsewhere/x", is_object=True),
    ]
    done = repo.import_objects("main", sources, "several")
    assert {path: repo.stat("main", path).address.removeprefix(f"file://{tmp_path}/") for path in paths(repo)} == {
        "elsewhere/x": "one/a",
        "in/a": "two/f",
        "in/b": "two/b",
        "in/c/d": "one/c/d",
        "in/c/e": "two/c/e",
        "in/f": "two/f",
    }
    assert done.objects == 8  # listed; two of them were covered by others


def test_destinations_that_lie_in_one_another_are_replaced_together(repo: Repository, tmp_path: Path) -> None:
    one, two = files(tmp_path / "one", "a"), files(tmp_path / "two", "b")
    repo.upload("main", "in/deep/old", b"old")
    repo.commit("main", "old")
    repo.import_objects(
        "main", [ImportSource(f"file://{two}", "in/deep/"), ImportSource(f"file://{one}", "in/")], "both"
    )
    assert paths(repo) == ["in/a", "in/deep/b"]


def test_a_dry_run_counts_and_changes_nothing(repo: Repository, folder: Path) -> None:
    bring(repo, folder)
    head = repo.get_branch("main").head
    (folder / "a.csv").unlink()
    done = bring(repo, folder, dry_run=True)
    assert (done.commit, done.objects, done.existing_paths) == (None, 4, 5)
    assert repo.get_branch("main").head == head


def test_links_and_names_that_are_no_paths_are_left_out_and_counted(repo: Repository, folder: Path) -> None:
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "b" / "up").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    (folder / ".tmp").mkdir()
    (folder / "b" / ".tmp").mkdir()
    os.close(os.open(os.fsencode(folder) + b"/not-\xff-unicode", os.O_CREAT))
    (folder / "line\nbreak").touch()
    done = bring(repo, folder)
    assert (done.objects, done.skipped_objects) == (5, 7)
    assert dict(done.skipped_examples)["link"] == "it is a symbolic link"
    assert all(name.isprintable() and reason for name, reason in done.skipped_examples)
    commit = stored_commit(repo.get_commit("main"))
    assert (commit.message, commit.metadata, commit.notes) == (
        "import (7 names of the source were left out)",
        {},
        {"skipped": "7"},
    )
    assert len(paths(repo)) == 5


def test_names_with_every_character_come_back_as_they_are(repo: Repository, tmp_path: Path) -> None:
    names = ["100%.csv", "a b", "what?x=1", "a#b", "ä/ö", "%41", "a+b&c=d", "tab\x7f"]
    source = files(tmp_path / "landing" / "odd %41 names", *names)
    assert repo.import_objects(
        "main", [ImportSource(f"file://{tmp_path}/landing/odd%20%2541%20names", "")], "odd"
    ).objects == len(names)
    assert sorted(paths(repo)) == sorted(names)
    for name in names:
        assert repo.read("main", name) == (source / name).read_bytes()


def test_an_import_without_sources_is_refused(repo: Repository) -> None:
    head = repo.get_branch("main").head
    with pytest.raises(Invalid, match="needs at least one source"):
        repo.import_objects("main", [], "nothing", allow_empty=True)
    assert repo.get_branch("main").head == head


def test_a_path_that_would_be_too_long_is_left_out(repo: Repository, tmp_path: Path) -> None:
    source = files(tmp_path / "long", "a" * 200, "b")
    done = bring(repo, source, "x/" * 450)
    assert (done.objects, done.skipped_objects) == (1, 1)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda folder: ImportSource(f"file://{folder}/not-there", "in/"), ObjectNotFound),
        (lambda folder: ImportSource(f"file://{folder}/not-there", "in", is_object=True), ObjectNotFound),
        (lambda folder: ImportSource(f"file://{folder}/b", "in", is_object=True), ObjectNotFound),
        (lambda folder: ImportSource(f"file://{folder}/a.csv", "in/"), Conflict),
        (lambda folder: ImportSource(f"file://{folder}/empty", "in/"), ObjectNotFound),
        (lambda folder: ImportSource(f"file://{folder}/b/../../x", "in/"), InvalidName),
        (lambda folder: ImportSource(f"file://{folder}", "in/../x"), InvalidPath),
        (lambda folder: ImportSource(f"file://{folder}/a.csv", "", is_object=True), InvalidPath),
        (lambda _folder: ImportSource("gs://bucket/x", "in/"), InvalidName),
        (lambda folder: ImportSource(str(folder), "in/"), InvalidName),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_changes_nothing(
    repo: Repository, folder: Path, make: Callable[[Path], ImportSource], error: type[Exception]
) -> None:
    (folder / "empty").mkdir()
    repo.upload("main", "in/old", b"old")
    head = repo.commit("main", "old").id
    with pytest.raises(error):
        repo.import_objects("main", [make(folder)], "import")
    assert (repo.get_branch("main").head, paths(repo)) == (head, ["in/old"])
    assert not (folder / "not-there").exists()


def test_a_folder_that_may_not_be_read_fails_the_whole_import(
    repo: Repository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def refuse(where: int) -> object:
        if Path(f"/proc/self/fd/{where}").readlink().name == "b":
            raise PermissionError(13, "Permission denied")
        return real(where)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(Invalid, match="Permission denied"):
        bring(repo, folder)
    monkeypatch.undo()
    assert paths(repo) == []


def test_a_file_that_goes_while_it_is_listed_is_simply_not_there(
    repo: Repository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def stat(name: str, **options: object) -> os.stat_result:
        if name == "b-c":
            (folder / "b-c").unlink(missing_ok=True)
        return real(name, **options)

    monkeypatch.setattr(os, "stat", stat)
    assert bring(repo, folder).objects == 4


@pytest.mark.parametrize("where", ["lake/objects", "lake", "", "link", "link-above/objects"])
def test_what_lies_in_a_namespace_or_holds_one_is_refused(
    lake: Lake, repo: Repository, tmp_path: Path, where: str
) -> None:
    other = lake.create_repository("other")
    other.upload("main", "secret", b"secret")
    namespace = Path(lake.namespace_url(other.record).partition("?")[0].removeprefix("file://"))
    (tmp_path / "link").symlink_to(namespace)
    (tmp_path / "link-above").symlink_to(tmp_path / "lake")
    with pytest.raises(InvalidName, match="namespace"):
        bring(repo, tmp_path / where)
    single = next(namespace.rglob("data/*/*"))
    with pytest.raises(InvalidName, match="namespace"):
        repo.import_objects("main", [ImportSource(f"file://{single}", "x", is_object=True)], "one")


def test_staged_changes_stand_in_the_way_before_anything_is_listed(repo: Repository, folder: Path) -> None:
    repo.upload("main", "x", b"x")
    listed: list[int] = []
    with pytest.raises(DirtyBranch):
        repo.import_objects(
            "main", [ImportSource(f"file://{folder}", "")], "import", watch=lambda count, _: listed.append(count)
        )
    assert listed == []


def test_what_is_staged_meanwhile_stays_staged(repo: Repository, folder: Path) -> None:
    def upload(_objects: int, _skipped: int) -> None:
        if not repo.stat_many("main", ["late"]):
            repo.upload("main", "late", b"late")

    with pytest.raises(DirtyBranch):
        repo.import_objects("main", [ImportSource(f"file://{folder}", "")], "import", watch=upload)
    assert paths(repo) == ["late"]


def test_what_others_commit_meanwhile_stays(repo: Repository, folder: Path) -> None:
    def commit(_objects: int, _skipped: int) -> None:
        if not repo.stat_many("main", ["late"]):
            repo.upload("main", "late", b"late")
            repo.upload("main", "in/late", b"late")
            repo.commit("main", "late")

    done = repo.import_objects("main", [ImportSource(f"file://{folder}", "in/")], "import", watch=commit)
    assert paths(repo) == ["in/a.csv", "in/b-c", "in/b/1.csv", "in/b/2.csv", "in/z", "late"]
    assert done.removed_paths == 1


class TestReading:
    @pytest.mark.parametrize(
        ("change", "told"),
        [
            pytest.param(Path.unlink, "it is a foreign object", id="removed"),
            pytest.param(lambda file: file.write_text("short"), "had 17 when it was recorded", id="of another size"),
        ],
    )
    def test_an_object_that_its_owner_changed_is_gone_and_says_why(
        self, repo: Repository, folder: Path, change: Callable[[Path], object], told: str
    ) -> None:
        bring(repo, folder)
        change(folder / "a.csv")
        with pytest.raises(Gone, match=told):
            repo.read("main", "in/a.csv")

    def test_a_link_that_took_the_place_of_a_file_is_not_followed(
        self, repo: Repository, folder: Path, tmp_path: Path
    ) -> None:
        bring(repo, folder)
        secret = tmp_path / "secret"
        secret.write_text("the data of s.csv")  # of the same size
        (folder / "a.csv").unlink()
        (folder / "a.csv").symlink_to(secret)
        with pytest.raises(ForeignNotAllowed):
            repo.read("main", "in/a.csv")

    def test_ranges_are_read(self, repo: Repository, folder: Path) -> None:
        bring(repo, folder)
        assert b"".join(repo.get("main", "in/a.csv", start=4, end=8)) == b"data"


class TestWhenRangesAreWritten:
    """A range that no commit names yet is an orphan to the offline job once it is older than the longest operation."""

    def test_nothing_is_written_to_the_namespace_while_the_listing_goes_on(
        self, repo: Repository, folder: Path
    ) -> None:
        before = keys_of(repo)
        seen: list[set[str]] = []
        repo.import_objects(
            "main", [ImportSource(f"file://{folder}", "")], "x", watch=lambda *_: seen.append(keys_of(repo))
        )
        assert seen
        assert all(keys == before for keys in seen)
        assert keys_of(repo) > before

    def test_what_takes_longer_than_the_longest_operation_to_write_is_not_committed(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its first ranges could be gone by then. The listing may take as long as it takes."""
        clock = FakeClock()
        (tmp_path / "lake").mkdir()
        kv, objects = embedded_urls(tmp_path / "lake")
        with open_lake_at(kv, f"{objects}?fsync=0", clock=clock) as lake:
            repo = lake.create_repository("sales")

            def bring_slowly() -> ImportResult:
                source = ImportSource(f"file://{folder}", "in/")
                return repo.import_objects("main", [source], "x", watch=lambda *_: clock.advance(86_400))

            put = TreeStore.put_range
            with monkeypatch.context() as patch:
                patch.setattr(TreeStore, "put_range", lambda *given: (put(*given), clock.advance(2 * 3600)))
                with pytest.raises(DeadlineExceeded):
                    bring_slowly()
                assert paths(repo) == []
                # without the deadline it would be committed: the test sees that
                patch.setattr("refstore.core.deadline.limit_operation", lambda *_: nullcontext())
                assert bring_slowly().objects == 5
            assert len(paths(repo)) == 5


def keys_of(repo: Repository) -> set[str]:
    return {found.key for found in repo.context.objects.list("_refstore/")}
