"""What the documentation shows works as shown: README's blocks are run, every command line anywhere is one that
exists.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

import refstore
from refstore import cli
from refstore.cli.options import Invocation
from refstore.core.safety import FOR_TRYING, SHARED
from tests.git import need_git
from tests.kit.short_durations import constants_environment

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
FENCED = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def commands(
    group: TyperGroup, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], TyperCommand | TyperGroup]]:
    """Every command, by its words."""
    for name in group.commands:
        context = typer.Context(group, info_name="refstore")
        _, command, _ = group.resolve_command(context, [name])
        assert isinstance(command, TyperCommand | TyperGroup)
        if isinstance(command, TyperGroup):
            yield from commands(command, (*path, name))
        if not isinstance(command, TyperGroup) or command.invoke_without_command:
            yield (*path, name), command


@cache
def root() -> TyperGroup:
    found = typer.main.get_command(cli.app)
    assert isinstance(found, TyperGroup)
    return found


def lines(text: str) -> list[str]:
    """Command lines in a text: what stands in code, or behind "Example:", from `refstore` on."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith(("    ", "refstore ")) or "Example:" in line or "| refstore" in line:
            match = re.search(r"(?:^|Example:|\|)\s+(refstore [a-z].*)|^(refstore [a-z].*)", line)
            if match:
                found.append(match[1] or match[2])
    return found


def code(page: str) -> str:
    """The fenced and the indented lines of a page: in prose a sentence may begin with `refstore`, too."""
    indented = [line for line in FENCED.sub("", page).splitlines() if line.startswith("    ")]
    return "\n".join([*(body for _, body in FENCED.findall(page)), *indented])


def words(line: str) -> list[str]:
    """The arguments of the `refstore` in a command line, without what the shell takes."""
    taken: list[str] = []
    for word in shlex.split(line, comments=True)[1:]:
        if word in ("|", ">", "&"):
            break
        taken.append(word)
    return taken


def parse(args: list[str]) -> None:
    """Take the words apart as the command would, and stop before anything is done."""
    group, context = root(), typer.Context(root(), info_name="refstore", obj=Invocation())
    while args:
        name, command, rest = group.resolve_command(context, args)
        assert isinstance(command, TyperCommand | TyperGroup)
        context = command.make_context(name, rest, parent=context, obj=Invocation())
        if not isinstance(command, TyperGroup):
            return
        group, args = command, [*context._protected_args, *context.args]
    assert group.invoke_without_command


@cache
def help_of_commands() -> dict[str, str]:
    """Return each command's help, by its words. Not where tests are collected: it imports every command."""
    return {" ".join(path): command.help or "" for path, command in commands(root())}


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_teaches_by_example(name: str) -> None:
    helps = {path: text for path, text in help_of_commands().items() if path.split(" ")[0] == name}
    assert helps
    for path, text in helps.items():
        examples = lines(text)
        assert examples, path
        for example in examples:
            assert example.startswith("refstore ")
            parse(words(example))


@pytest.mark.parametrize(
    ("page", "at_least"),
    [
        ("README.md", 9),
        ("docs/usage.md", 9),
        ("docs/retention.md", 6),
        ("docs/purge.md", 7),
        ("docs/prune.md", 11),
        ("docs/api.md", 6),
        ("docs/s3.md", 4),
        ("docs/security.md", 3),
        ("docs/operating.md", 2),
        ("docs/upgrading.md", 4),
    ],
)
def test_every_command_line_exists(page: str, at_least: int) -> None:
    found = lines(code((ROOT / page).read_text()))
    assert len(found) >= at_least
    for line in found:
        parse(words(line))


def test_a_command_line_that_does_not_exist_is_noticed() -> None:
    """What the tests above rest on."""
    page = "refstore is prose\n\n    refstore ls a b\n\n```sh\nrefstore stat a b c\n```\n"
    assert lines(code(page)) == ["refstore stat a b c", "refstore ls a b"]
    assert lines("    refstore upload -r sales main x | head\nrefstore frobnicate\n    x | refstore link a b c") == [
        "refstore upload -r sales main x | head",
        "refstore frobnicate",
        "refstore link a b c",
    ]
    for line in ("refstore frobnicate", "refstore ls sales main --nonsense", "refstore repo make x"):
        with pytest.raises(typer.TyperException):
            parse(words(line))


def test_every_command_is_mentioned_where_commands_are_explained() -> None:
    listed = set(cli.COMMANDS)
    assert listed == {path.split(" ")[0] for path in help_of_commands()}


def script(blocks: Sequence[tuple[str, str]]) -> str:
    """The snippets, one after the other, as a new user types them. What they started ends with the shell."""
    return "\n".join(["trap 'kill $(jobs -p) && wait' EXIT", *(typed(kind, body) for kind, body in blocks)])


def typed(kind: str, body: str) -> str:
    """A snippet as commands of the shell: a service is waited for, what is "from the checkout" runs there."""
    match kind:
        case "python":
            return f"python - <<'END'\n{body}END"
        case "toml":
            return f"cat > {body.split()[1]} <<'END'\n{body}END"
        case _ if "-m examples." in body:
            return f"(cd {shlex.quote(str(ROOT))} && {body})"
        case _ if "refstore serve" in body:
            return (
                f"{body}for port in $REFSTORE_API_PORT ${{REFSTORE_S3_PORT:-}}; do "
                "until (exec 3<>/dev/tcp/127.0.0.1/$port) 2> /dev/null; do kill -0 $!; sleep 0.1; done; done"
            )
        case _:
            return body


def run_shell(program: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a program of the shell, and end all that it started; what it printed."""
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", program],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            out, errors = shell.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)  # the service, where the shell did not come to its end
    assert shell.returncode == 0, f"{out[-1000:]}\n{errors[-4000:]}"
    return out


def test_every_block_of_the_readme_is_run_or_is_output() -> None:
    fenced = [kind for kind, _ in FENCED.findall(README)]
    assert len(fenced) == README.count("```") / 2
    assert set(fenced) == {"sh", "python", "toml", "text"}
    assert fenced.count("text") == 1
    by_hand = {line.split("#")[0].strip() for line in FENCED.sub("", README).splitlines() if line.startswith("    ")}
    wheel = f"refstore_lake-{refstore.__version__}-py3-none-any.whl"
    install = {"pip wheel --no-deps --wheel-dir dist .", f'pip install "dist/{wheel}[redis,s3]"'}
    assert by_hand == {"make demo", "make test", *install}


def test_the_blocks_of_the_readme_run_one_after_the_other(tmp_path: Path) -> None:
    """In one shell, in an empty folder. An hour's wait is shortened, and another port taken."""
    need_git()
    for name in ("pyspark", "lakefs_spec", "pandas", "polars"):
        pytest.importorskip(name)
    project = tmp_path / "any-project"
    git = ["git", "-C", project, "-c", "user.name=ann", "-c", "user.email=ann@example.com"]
    project.mkdir()
    for number in range(2):
        (project / "file").write_text(str(number))
        for words_ in (["init", "-q"], ["add", "."], ["commit", "-qm", "change"]):
            subprocess.run([*git, *words_], check=True)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("REFSTORE_", "LAKECTL_"))}
    environment |= {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "REFSTORE_API_PORT": str(port),
        **constants_environment(
            {"Safety": {**{name: getattr(FOR_TRYING, name) for name in SHARED}, "recheck_after_seconds": 5}}
        ),
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    blocks = [
        (kind, body.replace("127.0.0.1:8000", f"127.0.0.1:{port}"))
        for kind, body in FENCED.findall(README)
        if kind != "text"
    ]
    work = tmp_path / "work"
    work.mkdir()
    out = run_shell(script(blocks), work, environment)
    shown = out.splitlines()
    assert "2026-11-21,42" in shown
    assert [line.split()[0] for line in shown if "branch-deleted" in line] == ["2026/11/21.csv"], (
        "the trash, before and not after"
    )
    assert [line.split()[-1] for line in shown if line.startswith("restored ")] == ["1"]
    assert "│ oslo ┆ -3      │" in shown, "polars, from a file of the repository"
    assert "['2026/11/21.csv', 'cold.parquet', 'warm.csv']" in shown
    assert "deleted 1 objects, 20 bytes" in shown, "what the application reaped"
    assert "weather: would mark 0 objects, 0 bytes" in shown, "what it would collect"
    assert [line.split() for line in shown if line.endswith(" 42")] == [["0", "2026-11-21", "42"]] * 2, "pandas"
    assert "The lake has exactly the objects of git's active commits, byte for byte, and no others." in out
    assert sum("swept" in line.split() and "visits" in line for line in shown) == 2, "the two oldest commits"
    assert "looked at 2 objects: nothing is left" in shown
    assert any(line.split()[:2] == ["reaper.rate_per_second", "500.0"] and "refstore.toml" in line for line in shown)


def test_the_readme_says_how_to_begin_in_two_commands() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    begin = re.search(r"## Try it\n\n((?:    .*\n)+)", README)
    assert begin is not None
    assert begin[1].split("\n")[:-1] == ["    make demo", "    make test"]
    assert {"demo", "test"} <= targets
    for target in re.findall(r"make ([a-z-]+)", README):
        assert target in targets
