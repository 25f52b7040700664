"""Whatever tells people to install something names this project's own distribution, or one that the locks hold.

`refstore` is another project on the Python index. A command that names it brings a stranger's code.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from refstore.distribution import DISTRIBUTION, install_command
from tests.unit.test_repository_hygiene import texts

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
KNOWN = {
    canonicalize_name(line.split("==")[0].split("[")[0])
    for lock in ROOT.glob("requirements*.lock")
    for line in lock.read_text("utf-8").splitlines()
    if "==" in line and not line.startswith((" ", "#"))
}

INSTALL = re.compile(r"\b(?:pip3?|pipx|uv tool) install\b|\buv add\b|\buvx\b")
END = re.compile(r"[`\n;|#]|&&|\)(?:\s|$)|\\n")
"""Where a command ends in a sentence, a string or a script."""
TAKES_A_VALUE = {
    "-r",
    "-c",
    "-e",
    "--python",
    "--target",
    "--requirement",
    "--constraint",
    "--editable",
    "--only-binary",
}
PLACE = re.compile(r"[/${}*]|^\.|\.whl$|\.tar\.gz$")
SOMEBODY_ELSES = re.compile(
    r"(?<![\w./-])refstore\\?\[[a-z]"  # extras
    r"|(?<![\w./-])refstore *(?:[=~!<>]=)[\d.]"
    r"|(?<![\w.-])refstore-(?:\d|\{)[^\s]*?(?:\.whl|\.tar\.gz|\.dist-info|\.egg-info)"
    r"|\b(?:version|distribution|metadata|requires|files)\(\s*[\"']refstore[\"']"
    r"|dependencies *= *\[[^\]]*[\"']refstore[\"'<>=~! ]"
)


def installed_by(text: str) -> list[str]:
    """Return what the commands of a text install: requirements, without options and places."""
    names: list[str] = []
    for found in INSTALL.finditer(text):
        command = END.split(text[found.end() :], maxsplit=1)[0]
        try:
            words = shlex.split(command)
        except ValueError:  # a quote that belongs to the string around the command
            words = [word.strip("\"'") for word in command.split()]
        options = [before in TAKES_A_VALUE for before in ["", *words][:-1]]
        names += [
            word
            for word, is_value in zip(words, options, strict=True)
            if not (is_value or word.startswith("-") or PLACE.search(word))
        ]
    return names


def strangers(text: str) -> list[str]:
    """Return the parts of a text that name a distribution which is neither ours nor locked."""
    wrong = [found.group() for found in SOMEBODY_ELSES.finditer(text)]
    for word in installed_by(text):
        try:
            wanted = Requirement(word)
        except InvalidRequirement:
            wrong.append(word)
            continue
        name = canonicalize_name(wanted.name)
        ours = name == DISTRIBUTION and wanted.extras <= set(PROJECT["optional-dependencies"])
        if not (ours or name in KNOWN):
            wrong.append(word)
    return wrong


def test_no_text_names_a_distribution_of_others() -> None:
    found = {name: strangers(text) for name, text in texts() if name != "tests/unit/test_distribution_name.py"}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    "text",
    [
        "Install it: `pip install refstore`.",
        "it needs Spark; install it with: pip install 'refstore[spark]'",
        r'match=r"install it with: .*refstore\[redis\]"',
        "    uv pip install --python .venv/bin/python refstore==0.1.0",
        "pipx install refstore && refstore doctor",
        "uvx refstore doctor",
        "RUN pip install 'refstore-lake[everything]'",
        "pip install refstore_lakes",
        'dependencies = ["pandas", "refstore>=0.1"]',
        'print(version("refstore"))',
        "pip install ./dist/refstore-0.1.0-py3-none-any.whl",
    ],
)
def test_what_would_bring_another_package_is_found(text: str) -> None:
    assert strangers(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'refstore-lake[redis,s3]' pandas",
        "pip install --quiet --python bin/python -r requirements.lock 'dist/refstore_lake-0.1.0-py3-none-any.whl[s3]'",
        "pip install -e .",
        "the module `refstore` and its command `refstore`",
    ],
)
def test_what_is_ours_is_not(text: str) -> None:
    assert strangers(text) == []


def test_the_name_in_errors_is_the_name_of_the_project() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert strangers(install_command("spark")) == []
    assert f"{DISTRIBUTION}[" in " ".join(PROJECT["optional-dependencies"]["all"])
