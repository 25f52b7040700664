"""The demo's own parts: what must be on the branches, which files are taken, what its processes find."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from examples.demo import short_durations
from examples.demo.client_reports import Expected, Kind, Report, expected_branches, read_reports
from examples.demo.source_files import SIZE_BYTES_MAX, choose_files
from refstore.configuration.settings_loader import load_settings
from refstore.errors import Invalid
from tests.durations import set_constants
from tests.kit.short_durations import REAPER, SAFETY, environment


def report(kind: Kind, branch: str, **sources: str) -> Report:
    return Report(kind, branch, {path.replace("_", "/"): source for path, source in sources.items()})


class TestExpectedBranches:
    def test_branches_begin_with_what_was_committed_and_main_has_what_was_merged(self) -> None:
        expected = expected_branches(
            {
                "uploader": [report("uploaded", "main", lib_a="1", lib_b="2")],
                "etl": [
                    report("uploaded", "etl", lib_a="3"),
                    report("moved", "etl", archive_b="2"),
                    report("deleted", "etl", lib_b="2"),
                ],
                "ml": [report("linked", "ml", linked_c="4"), report("abandoned", "ml", linked_d="5")],
                "landing": [
                    report("uploaded", "landing", landing_g="8"),
                    report("left open", "landing", landing_h="9"),
                    report("deleted", "landing", lib_a="1"),
                ],
                "scratch": [report("copied", "etl", shared_e="6")],
                "last": [report("uploaded", "main", inbox_f="7")],
            }
        )
        etl = {"lib/a": "3", "archive/b": "2", "shared/e": "6"}
        assert expected["etl"].certain == etl
        assert expected["landing"].certain == {"lib/b": "2", "landing/g": "8"}
        merged = {"archive/b": "2", "shared/e": "6", "linked/c": "4", "landing/g": "8"}
        assert expected["main"].certain == {**merged, "inbox/f": "7"}
        assert expected["crash"].certain == expected["scratch"].certain == {"lib/a": "1", "lib/b": "2"}
        assert {*expected} == {"main", "etl", "landing", "scratch", "crash"}

    def test_a_reset_forgets(self) -> None:
        reports = [
            report("uploaded", "scratch", a="1"),
            report("reset", "scratch"),
            report("uploaded", "scratch", b="2"),
        ]
        assert expected_branches({"scratch": reports})["scratch"].certain == {"b": "2"}

    def test_what_was_begun_and_not_reported_may_be_there(self) -> None:
        begun = [report("uploaded", "crash", a="1"), report("began", "crash", a="1", b="2")]
        for last in ([], [report("repeated", "")]):  # the call may have met an error before its client was killed
            assert expected_branches({"victim": begun + last})["crash"] == Expected({"a": "1"}, {"a": "1", "b": "2"})
        ended = [*begun, report("uploaded", "crash", a="1", b="2")]
        assert expected_branches({"victim": ended})["crash"] == Expected({"a": "1", "b": "2"}, {})

    def test_half_a_line_does_not_count(self, tmp_path: Path) -> None:
        began = report("began", "main", a="1")
        (tmp_path / "c.reports").write_bytes(msgspec.json.encode(began) + b'\n{"kind": "uplo')
        assert read_reports(tmp_path / "c.reports") == [began]
        assert read_reports(tmp_path / "nobody.reports") == []


class TestSourceFiles:
    def test_a_folder_of_mine(self, tmp_path: Path) -> None:
        for number in range(70):
            (tmp_path / f"f{number:02}").write_text(str(number))
        (tmp_path / "huge").write_bytes(b"x" * (SIZE_BYTES_MAX + 1))
        (tmp_path / "link").symlink_to("f00")
        (tmp_path / "__pycache__").mkdir()
        (tmp_path / "__pycache__/x.pyc").touch()
        found = choose_files(tmp_path, 1000)
        assert [item.path for item in found] == [f"f{number:02}" for number in range(70)]
        assert found[7].sha256 == hashlib.sha256(b"7").hexdigest()
        assert choose_files(tmp_path, 65) == found[:65]

    def test_too_few(self, tmp_path: Path) -> None:
        with pytest.raises(Invalid, match="60 are needed"):
            choose_files(tmp_path, 1000)

    def test_this_python(self) -> None:
        assert len(choose_files(None, 100)) == 100


def test_a_process_of_the_demo_finds_its_stores_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFSTORE_SAFETY_GRACE", "99s")
    monkeypatch.setenv("REFSTORE_DATA", "/elsewhere")
    own = short_durations.environment({"kv": "redis://h/0", "objects": "s3://b/p"})
    found = load_settings({}, own, default_data=tmp_path).settings
    assert (found.kv, found.objects, found.data) == ("redis://h/0", "s3://b/p", None)
    assert found.safety.grace_seconds == short_durations.SAFETY.grace_seconds
    assert found.reaper.breaker_share == 1
    own = short_durations.environment({"data": str(tmp_path)})
    assert load_settings({}, own, default_data=Path("/nowhere")).settings.data == tmp_path


def test_a_process_of_a_test_finds_these_stores_and_durations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFSTORE_SAFETY_GRACE", "99s")
    monkeypatch.setenv("REFSTORE_DATA", "/elsewhere")
    own = environment({"kv": "redis://h/0", "objects": "s3://b/p"})
    set_constants(monkeypatch, **json.loads(own["SHORT_CONSTANTS"]))
    found = load_settings({}, own, default_data=tmp_path).settings
    assert (found.kv, found.objects, found.data) == ("redis://h/0", "s3://b/p", None)
    assert (found.safety, found.reaper) == (SAFETY, REAPER)
    found = load_settings({}, environment({"data": str(tmp_path)}), default_data=Path("/nowhere")).settings
    assert (found.data, found.safety) == (tmp_path, SAFETY)
