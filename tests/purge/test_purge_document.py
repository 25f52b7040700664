"""The purge document: what it says, and what is refused, with line and column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refstore.errors import InvalidPurge
from refstore.purge_document import document
from refstore.purge_document.purge_key import read_purge_key
from refstore_purge.formats import registry
from refstore_purge.verify_reader_process import READERS
from tests.purge.tracking import DOCUMENT

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "purge.schema.json"


def text(**changes: Any) -> str:
    return json.dumps({**DOCUMENT, "datasets": [{**DOCUMENT["datasets"][0], **changes}]}, indent=1)


def test_the_example_of_seed_002_is_onboarded() -> None:
    parsed = document.read_document(json.dumps(DOCUMENT))
    assert [dataset.name for dataset in parsed.document.onboarded_datasets] == ["tracking.event"]
    assert parsed.warnings == ()
    assert (parsed.document.backup.days, parsed.document.trash.days) == (30, 7)


def test_only_what_stands_on_both_lists_is_onboarded() -> None:
    parsed = document.read_document(json.dumps({**DOCUMENT, "whitelist": ["other.*"]}))
    assert parsed.document.onboarded_datasets == ()
    assert parsed.warnings == (
        "data set 'tracking.event' is not on the whitelist: it is not purged",
        "nothing is described for 'other.*' of the whitelist",
    )


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (text(name="-x"), "is not a name of a data set"),
        (text(prefix="tracking/event"), "end it with '/'"),
        (text(identifier="a..b"), "is not a column"),
        (text(set_null=["a."]), "is not a column"),
        (text(format=None), "needs a format"),
        (text(format="xml"), "xml"),
        (text(mode="all"), "mode"),
        (text(mode="rewrite", branches=["main"]), "leave branches out"),
        (text(mode="erase", set_null=["a"]), "leave set_null out"),
        (text(branches=["a[" * 90]), "branch"),
        (text(map_part="both"), "map_part"),
        (text(identifer="x"), "identifer"),
        (json.dumps({**DOCUMENT, "datasets": DOCUMENT["datasets"] * 2}), "is there twice"),
        (
            json.dumps(
                {
                    "datasets": [
                        DOCUMENT["datasets"][0],
                        {**DOCUMENT["datasets"][0], "name": "b", "prefix": "tracking/event/x/"},
                    ]
                }
            ),
            "lie within one another",
        ),
        (json.dumps({**DOCUMENT, "backup": {"days": -1}}), "days"),
        ("{", "line 1"),
        ("[]", "Expected `object`"),
    ],
)
def test_a_mistake_is_told(changed: str, told: str) -> None:
    with pytest.raises(InvalidPurge, match=told):
        document.read_document(changed)


def test_the_published_schema_is_the_one_of_the_code() -> None:
    """`python scripts/purge_schema.py` writes it."""
    assert json.loads(SCHEMA.read_text()) == json.loads(json.dumps(document.json_schema()))


def test_a_run_and_verify_have_each_format_of_a_document() -> None:
    assert set(registry.MODULES) == set(READERS) == set(document.FILE_FORMATS)
    for name in document.FILE_FORMATS:
        module = registry.load_format(name)
        assert (callable(module.find), callable(module.rewrite)) == (True, True)


class TestTheKey:
    def test_a_setting_wins_and_without_one_and_a_folder_there_is_none(self, tmp_path: Path) -> None:
        assert read_purge_key("x" * 32, tmp_path) == b"x" * 32
        assert not list(tmp_path.iterdir())
        assert read_purge_key("", None) is None

    def test_a_folder_gets_one_key_of_its_own_which_its_owner_alone_may_read(self, tmp_path: Path) -> None:
        made = read_purge_key("", tmp_path)
        assert made is not None
        assert len(made) == 64
        assert read_purge_key("", tmp_path) == made
        (file,) = tmp_path.iterdir()
        assert (file.name, file.stat().st_mode & 0o777) == ("purge.key", 0o600)
        other = tmp_path / "other"
        other.mkdir()
        assert read_purge_key("", other) != made

    def test_a_file_that_is_no_key_is_refused(self, tmp_path: Path) -> None:
        from refstore.errors import InvalidSettings

        (tmp_path / "purge.key").write_text("short\n")
        with pytest.raises(InvalidSettings, match="has no key of at least 32 characters"):
            read_purge_key("", tmp_path)
        with pytest.raises(InvalidSettings, match="cannot be read or made"):
            read_purge_key("", tmp_path / "nowhere")
