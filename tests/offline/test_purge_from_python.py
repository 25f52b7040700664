"""The functions of `refstore_purge`, as an application calls them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import refstore
import refstore_purge
from refstore import Dataset, PurgeDocument, Repository
from refstore.errors import Invalid, InvalidPurge, NotFound
from refstore_purge import IdsFile
from refstore_purge.ids_file import open_ids

SECRET = "guest-1"
DOCUMENT = PurgeDocument(("visits",), (Dataset("visits", "visits/", "guest", "rewrite", "csv"),))
BODY = f"guest,n\n{SECRET},1\nguest-2,2\n{SECRET},3\n".encode()


@pytest.fixture
def repo(tmp_path: Path) -> Generator[Repository]:
    """A repository of an embedded lake, with three rows of which two are to be purged."""
    with refstore.create(tmp_path / "lake") as lake:
        made = lake.create_repository("sales")
        made.upload("main", "visits/a.csv", BODY)
        made.commit("main", "visits")
        yield made


def test_a_purge_from_its_document_to_its_end(repo: Repository, tmp_path: Path) -> None:
    steps: list[str] = []
    notices: list[str] = []

    def note(progress: Any) -> None:
        steps.append(progress.step)

    assert refstore_purge.onboard(repo, DOCUMENT, by="ann", dry_run=True).document == DOCUMENT
    with pytest.raises(NotFound, match="nothing is onboarded"):
        refstore_purge.purge(repo, [SECRET])
    assert refstore_purge.onboard(repo, DOCUMENT, by="ann").warnings == ()
    assert (repo.purge_document().document, repo.purge_document().set_by) == (DOCUMENT, "ann")

    tried = refstore_purge.purge(repo, [SECRET], dry_run=True, breaker_share=1)
    assert (tried.state, [row.matched_rows for row in tried.rows]) == ("dry run", [2])
    assert repo.read("main", "visits/a.csv") == BODY

    done = refstore_purge.purge(
        repo, iter([SECRET]), breaker_share=1, report_progress=note, print_notice=notices.append
    )
    assert (done.state, [row.rows_changed for row in done.rows]) == ("done", [2])
    assert notices == ["ids: 1 value, text"]
    assert "listing every version" in steps
    assert repo.read("main", "visits/a.csv") == b"guest,n\nguest-2,2\n"
    left = refstore_purge.verify(repo, [SECRET])
    assert (left.objects, left.findings) == (1, [])
    assert (tmp_path / "lake" / "purge.key").exists()
    assert refstore_purge.purge(repo, ledger=True).is_from_ledger

    steps.clear()
    would = refstore_purge.restore(repo, done.run, dry_run=True, report_progress=note)
    assert (would.objects, steps) == (1, ["restoring objects"])
    assert repo.read("main", "visits/a.csv") != BODY
    assert refstore_purge.restore(repo, done.run).objects == 1
    assert repo.read("main", "visits/a.csv") == BODY
    (finding,) = refstore_purge.verify(repo, [SECRET]).findings
    assert (finding.ref, finding.path, finding.rows) == ("main", "visits/a.csv", 2)
    steps.clear()
    assert refstore_purge.clean_up(repo, report_progress=note).waiting_contents.objects == 1
    assert steps == ["cleaning up"]


def test_a_document_with_a_mistake_is_refused_and_an_empty_data_set_is_told(repo: Repository) -> None:
    with pytest.raises(InvalidPurge, match=r"datasets\[0\]\.prefix"):
        refstore_purge.onboard(repo, PurgeDocument(("a",), (Dataset("a", "no-folder", "id", "rewrite", "csv"),)))
    elsewhere = PurgeDocument(("a",), (Dataset("a", "nothing/", "id", "rewrite", "csv"),))
    (warning,) = refstore_purge.onboard(repo, elsewhere, dry_run=True).warnings
    assert "nothing lies below nothing/" in warning


def test_ids_or_the_ledger_are_needed(repo: Repository) -> None:
    calls: list[dict[str, Any]] = [{}, {"ids": [SECRET], "ledger": True}]
    for call in calls:
        with pytest.raises(Invalid, match="either ids or ledger=True"):
            refstore_purge.purge(repo, **call)


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        (SECRET, "ids is of type str; give a list of ids, or a file of them"),
        (SECRET.encode(), "ids is of type bytes"),
        (7, "ids is of type int"),
        ([], "ids is empty"),
        (["x", SECRET.encode()], "number 2 of the ids is of type bytes; give texts or integers"),
        ([True], "number 1 of the ids is of type bool"),
        ([float("nan")], "number 1 of the ids is of type float"),
        ([SECRET, 7], "ids has text and integers as ids"),
        ([10**30], "line 1 of ids has an integer of more than 64 bits"),
        ([f"{SECRET}\ud800"], "the ids of ids cannot be read"),
        ([""], "ids has no ids, but 1 empty values"),
    ],
)
def test_ids_that_cannot_be_used_are_refused_and_never_named(repo: Repository, ids: Any, told: str) -> None:
    refstore_purge.onboard(repo, DOCUMENT)
    for call in (refstore_purge.purge, refstore_purge.verify):
        with pytest.raises(Invalid) as refused:
            call(repo, ids)
        assert told in str(refused.value)
        assert SECRET not in str(refused.value)
        assert str(10**30) not in str(refused.value)


def test_values_are_in_a_file_while_they_are_used_and_files_are_taken_as_they_are(tmp_path: Path) -> None:
    with open_ids([7, 8]) as file:
        assert file.path.read_text() == '{"id": 7}\n{"id": 8}\n'
        assert file.path.parent.stat().st_mode & 0o077 == 0
    assert not file.path.exists()
    with open_ids(tmp_path / "ids.csv") as file:
        assert file == IdsFile(tmp_path / "ids.csv")
    own = IdsFile(tmp_path / "ids.csv", "guest")
    with open_ids(own) as file:
        assert file is own


def test_the_names_are_there_without_the_libraries_of_all_formats() -> None:
    code = "import sys, refstore_purge; print({'pyarrow', 'pandas'} & {*sys.modules}); refstore_purge.VerifyReport"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"
    assert all(getattr(refstore_purge, name).__doc__ for name in refstore_purge.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = refstore_purge.nonsense
