"""The demo's own parts: what is planned, what is believed of a client, which files are taken."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from refstore.core.settings import load
from refstore.demo import pace, sources, steps
from refstore.demo.ledger import Ledger
from refstore.demo.plan import VICTIM, plan
from refstore.demo.steps import Item, Written
from refstore.errors import Invalid

DIGESTS = ["d0", "d1", "d2"]


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger()
    made.branch_created("main")
    made.apply("c", steps.Began("main", [Item("a", 0), Item("b", 1)]))
    made.apply("c", steps.Stored("main", [Written("a", 0, "A", 10), Written("b", 1, "B", 20)], "upload"))
    return made


class TestLedger:
    def test_what_was_told_must_be_there_and_nothing_else(self, ledger: Ledger) -> None:
        assert ledger.compare("main", {"a": "d0", "b": "d1"}, DIGESTS) == ((), (), ())
        assert ledger.compare("main", {"a": "d0"}, DIGESTS).missing == ("b",)
        assert ledger.compare("main", {"a": "d0", "b": "d1", "c": "d0"}, DIGESTS).unexpected == ("c",)
        assert ledger.compare("main", {"a": "d0", "b": "d2"}, DIGESTS).wrong == ("b",)
        assert ledger.compare("main", {"a": "d0", "b": "gone"}, DIGESTS).wrong == ("b",)

    def test_what_was_begun_and_not_told_may_be_there_or_not(self, ledger: Ledger) -> None:
        ledger.apply("c", steps.Began("main", [Item("b", 2), Item("c", 2)]))
        ledger.ended("c")
        assert ledger.maybe_blobs == 2
        for there in ({"b": "d1"}, {"b": "d2"}, {"b": "d1", "c": "d2"}):
            assert ledger.compare("main", {"a": "d0", **there}, DIGESTS) == ((), (), ())
        assert ledger.compare("main", {"a": "d0", "b": "d1", "c": "d0"}, DIGESTS).wrong == ("c",)
        assert ledger.compare("main", {"a": "d0"}, DIGESTS).missing == ("b",)

    def test_an_attempt_that_is_made_again_may_have_left_blobs(self, ledger: Ledger) -> None:
        ledger.apply("c", steps.Began("main", [Item("c", 2)]))
        ledger.apply("c", steps.Retried("Contention: x"))
        ledger.apply("c", steps.Began("main", [Item("c", 2)]))
        ledger.apply("c", steps.Stored("main", [Written("c", 2, "C", 5)], "upload"))
        ledger.ended("c")
        assert ledger.maybe_blobs == 1
        assert ledger.maybe == {}
        assert (ledger.counts["uploaded"], ledger.counts["uploaded bytes"]) == (3, 35)

    def test_a_merge_brings_what_changed_on_the_other_branch(self, ledger: Ledger) -> None:
        ledger.branch_created("dev", "main")
        ledger.apply("c", steps.Stored("dev", [Written("c", 2, "C", 5)], "link"))
        ledger.apply("c", steps.Removed("dev", ["a"]))
        ledger.apply("d", steps.Stored("main", [Written("d", 0, "D", 5)], "upload"))
        ledger.merged("dev", "main")
        assert ledger.branches["main"] == {"b": 1, "c": 2, "d": 0}

    def test_copies_keep_their_source_and_a_reset_forgets(self, ledger: Ledger) -> None:
        ledger.branch_created("dev", "main")
        ledger.apply("c", steps.Named("dev", [("z", "B")], "copy"))
        assert ledger.branches["dev"] == {"a": 0, "b": 1, "z": 1}
        ledger.apply("c", steps.WasReset("dev"))
        assert ledger.branches["dev"] == {"a": 0, "b": 1}
        ledger.apply("c", steps.BranchDeleted("dev"))
        assert set(ledger.branches) == {"main"}


class TestPlan:
    def test_the_same_seed_plans_the_same(self) -> None:
        names = [f"n{number}" for number in range(100)]
        assert plan(names, 7) == plan(names, 7)
        assert plan(names, 7) != plan(names, 8)

    @pytest.mark.parametrize("count", [sources.FILES_MIN, 1000])
    def test_every_client_has_something_to_do_and_no_two_write_one_path(self, count: int) -> None:
        made = plan([f"n{number}" for number in range(count)], 1)
        written: dict[tuple[str, str], str] = {}
        clients = {**made.uploaders, **made.branch_clients, "survivor": made.survivor, "last": made.last}
        for client, work in clients.items():
            assert work
            for step in work:
                match step:
                    case steps.UploadStep(branch=branch, items=items):
                        assert items
                        paths = [item.path for item in items]
                    case steps.LinkStep(branch=branch, linked=linked, abandoned=abandoned, unused=unused):
                        assert linked
                        assert abandoned
                        assert unused
                        paths = [item.path for item in [*linked, *abandoned, *unused]]
                    case steps.CopyStep(branch=branch, ways=ways) | steps.MoveStep(branch=branch, ways=ways):
                        assert ways
                        paths = [way.destination for way in ways]
                    case _:
                        continue
                assert len(set(paths)) == len(paths)
                for path in paths:
                    assert written.setdefault((branch, path), client) == client

    def test_the_victim_does_not_come_to_its_end(self) -> None:
        (step,) = plan([f"n{number}" for number in range(100)], 1).branch_clients[VICTIM]
        assert isinstance(step, steps.UploadStep)
        assert step.rounds * len(step.items) > 5000

    def test_jobs_and_events_survive_the_way_between_processes(self) -> None:
        made = plan([f"n{number}" for number in range(100)], 1)
        for work in [*made.uploaders.values(), made.committer, *made.branch_clients.values()]:
            job = steps.Job("demo", ["/x"], work)
            assert steps.decode_job(steps.encode(job)) == job
        event = steps.Stored("main", [Written("a", 0, "A", 10)], "link")
        assert steps.decode_event(steps.encode(event)) == event


class TestSources:
    def test_a_folder_of_mine(self, tmp_path: Path) -> None:
        for number in range(70):
            (tmp_path / f"f{number:02}").write_text(str(number))
        (tmp_path / "huge").write_bytes(b"x" * (sources.SIZE_BYTES_MAX + 1))
        (tmp_path / "link").symlink_to("f00")
        (tmp_path / "__pycache__").mkdir()
        (tmp_path / "__pycache__/x.pyc").touch()
        found = sources.choose(tmp_path, 1000, 1)
        assert [item.path for item in found] == [f"f{number:02}" for number in range(70)]
        assert found[7].sha256 == hashlib.sha256(b"7").hexdigest()
        assert len(sources.choose(tmp_path, 65, 1)) == 65
        assert sources.choose(tmp_path, 65, 1) == sources.choose(tmp_path, 65, 1)
        assert sources.choose(tmp_path, 65, 1) != sources.choose(tmp_path, 65, 2)

    def test_too_few(self, tmp_path: Path) -> None:
        with pytest.raises(Invalid, match="60 are needed"):
            sources.choose(tmp_path, 1000, 1)

    def test_this_python(self) -> None:
        assert len(sources.choose(None, 100, 1)) == 100


def test_a_process_gets_these_settings_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFSTORE_GRACE_SECONDS", "99")
    key = "k:" + "s" * 32
    given = load(
        {"kv": "redis://u:p@h/0", "objects": "s3://b/p"}, {"REFSTORE_SIGNING_KEYS": key}, default_data=tmp_path
    ).settings
    wanted = pace.settings(given)
    environment = pace.environment(wanted, tmp_path)
    assert load({}, environment, (tmp_path / "no.toml",), default_data=Path("/nowhere")).settings == wanted
    embedded = pace.settings(load({"data": tmp_path / "lake"}, {}, default_data=tmp_path).settings)
    assert load({}, pace.environment(embedded, tmp_path), default_data=Path("/nowhere")).settings == embedded
