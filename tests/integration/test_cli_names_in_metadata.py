"""Names of ours in `--meta`: every command refuses them, and says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from refstore.cli import COMMANDS, import_command
from tests.commands import Command
from tests.kit.names_of_ours import ATTACK, NAMES

WAYS: Final = {
    "upload": ("upload", "sales", "main", "{folder}/a.csv", "a.csv"),
    "upload -r": ("upload", "-r", "sales", "main", "{folder}/landing", "in/"),
    "import --stage": ("import", "--stage", "sales", "main", "s3://b/x", "a.csv", "--size", "1"),
    "link": ("link", "sales", "main", "a.csv"),
    "commit": ("commit", "sales", "main", "-m", "m", "--allow-empty"),
    "merge": ("merge", "sales", "dev", "--into", "main"),
    "import": ("import", "sales", "main", "{folder}/landing", "in/"),
    "repo create": ("repo", "create", "other"),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_command_takes_a_name_of_ours(sales: Command, way: str) -> None:
    landing = sales.folder / "landing"
    landing.mkdir()
    for file in (sales.folder / "a.csv", landing / "b.csv"):
        file.write_text("data")
    sales.ok("branch", "create", "sales", "dev")
    words = [word.format(folder=sales.folder) for word in WAYS[way]]
    if way == "link":
        issued = sales.json("issue", "sales", "main", "a.csv")
        Path(issued["file"]).parent.mkdir(parents=True, exist_ok=True)
        Path(issued["file"]).write_text("x")
        words += ["--token", issued["token"]]
    for name, value in [*((name, "x") for name in NAMES), *ATTACK.items()]:
        ran = sales(*words, "--meta", f"{name}={value}")
        assert (ran.code, "refstore's own; give it another name" in ran.err) == (2, True), (name, ran)
    assert sales.json("ls", "sales", "main", "--recursive") == []


def test_every_command_with_metadata_is_a_way_in() -> None:
    """A command with a new option must be given its line in the table."""

    def names(command: Any) -> Iterator[str]:
        yield from (parameter.name for parameter in command.params)
        for inner in getattr(command, "commands", {}).values():
            yield from names(inner)

    found = {name for name in COMMANDS if "meta" in names(import_command(name))}
    assert found == {way.split()[0] for way in WAYS}
