"""Commands that read objects, and what somebody else has staged from outside the lake."""

from __future__ import annotations

import pytest

from tests.commands import Command


@pytest.fixture
def staged(sales: Command) -> Command:
    (sales.folder / "secrets").mkdir()
    (sales.folder / "secrets/shadow").write_text("root:x")
    sales.ok("import", "--stage", "sales", "main", f"file://{sales.folder}/secrets/shadow", "x/shadow", "--size", "6")
    sales.ok("upload", "sales", "main", "-", "x/own", stdin=b"own")
    return sales


@pytest.mark.parametrize("command", [["cat"], ["download"]])
@pytest.mark.parametrize("allowed", [[], ["--allow-foreign", "secret"], ["--allow-foreign", "s3://bucket/"]])
def test_what_was_staged_from_outside_is_not_read(staged: Command, command: list[str], allowed: list[str]) -> None:
    ran = staged(*command, "sales", "main", "x/shadow", *allowed, "--json")
    assert (ran.code, ran.out, ran.error["code"]) == (6, "", "foreign_not_allowed")
    assert "import_from" in ran.error["message"]
    assert "--allow-foreign PREFIX" in ran.error["message"]
    assert not (staged.folder / "shadow").exists()


def test_an_operator_allows_a_place_for_one_command_or_by_the_settings(
    staged: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert staged.ok("cat", "sales", "main", "x/shadow", "--allow-foreign", "secrets").out == "root:x"
    prefix = f"file://{staged.folder}/secrets"
    staged.ok("download", "sales", "main", "x/shadow", "got", "--allow-foreign", "s3://b/", "--allow-foreign", prefix)
    assert (staged.folder / "got").read_text() == "root:x"
    monkeypatch.setenv("REFSTORE_IMPORT_FROM", prefix)
    assert staged.ok("cat", "sales", "main", "x/shadow").out == "root:x"


def test_a_recursive_download_brings_the_rest_and_ends_with_what_it_left_out(staged: Command) -> None:
    ran = staged("download", "-r", "sales", "main", "x/", "down")
    assert ran.code == 6
    assert [file.name for file in (staged.folder / "down").iterdir()] == ["own"]
    assert "'x/shadow'" in ran.err
    assert "--allow-foreign PREFIX" in ran.err
